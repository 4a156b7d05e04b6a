//! Which objects select which pods.
//!
//! In: the pod selection of each object. Out: the objects that may select the pods of a namespace, so that an event of a
//! pod is not compared with every object of the cluster. And [`Needed`]: whether to watch pods and owners, and which
//! labels to keep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plan::PoolKey;

use crate::addresses::kind::Kind;
use crate::addresses::needed::Needed;
use crate::addresses::resources::parsed::PodSelection;

/// The objects that select pods.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Objects that select pods in all namespaces.
    everywhere: BTreeSet<PoolKey>,
    by_namespace: BTreeMap<String, BTreeSet<PoolKey>>,
    /// What each object that selects pods needs.
    of_objects: BTreeMap<PoolKey, OfObject>,
    /// The labels that selectors use.
    labels: BTreeMap<String, Label>,
    /// The number of objects that select the pods of a workload.
    workloads: usize,
    needed: Needed,
    /// What was needed when [`Self::take_changed`] was last called.
    taken: Needed,
}

/// What one object needs.
#[derive(Debug)]
struct OfObject {
    /// The only namespace whose pods matter, if there is only one.
    namespace: Option<String>,
    labels: BTreeSet<String>,
    is_workload: bool,
}

/// A label that selectors use.
#[derive(Debug)]
struct Label {
    /// The number of objects whose selectors use the label.
    users: usize,
    /// The first version of [`Needed`] that contained the label.
    since: u64,
}

impl PodSelection {
    /// The only namespace whose pods matter. `None` if pods of all namespaces matter, also for a DaemonSet: its node
    /// counts as drained when all other pods have left.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Labelled { namespace, .. } => namespace.as_deref(),
            Self::Of(workload) => (workload.kind != Kind::DaemonSets).then_some(&workload.namespace),
        }
    }

    /// The labels that decide which pods it selects.
    fn labels(&self) -> BTreeSet<String> {
        let Self::Labelled { labels, .. } = self else { return BTreeSet::new() };
        labels.labels().map(ToOwned::to_owned).collect()
    }
}

impl Interest {
    /// Sets which pods an object selects.
    pub(super) fn set(&mut self, key: &PoolKey, pods: Option<&PodSelection>) {
        // Use the new labels before removing the old ones, so a label in both keeps its version.
        let labels = pods.map(PodSelection::labels).unwrap_or_default();
        labels.iter().for_each(|name| self.use_label(name));
        self.remove(key);
        let Some(pods) = pods else { return };
        let namespace = pods.namespace().map(ToOwned::to_owned);
        match &namespace {
            None => _ = self.everywhere.insert(key.clone()),
            Some(namespace) => {
                _ = self.by_namespace.entry(namespace.clone()).or_default().insert(key.clone());
            }
        }
        let is_workload = matches!(pods, PodSelection::Of(_));
        self.workloads += usize::from(is_workload);
        self.of_objects.insert(key.clone(), OfObject { namespace, labels, is_workload });
        self.update_needed();
    }

    /// Forgets an object.
    pub(super) fn remove(&mut self, key: &PoolKey) {
        let Some(OfObject { namespace, labels, is_workload }) = self.of_objects.remove(key) else { return };
        match namespace {
            None => _ = self.everywhere.remove(key),
            Some(namespace) => {
                if let Some(keys) = self.by_namespace.get_mut(&namespace) {
                    keys.remove(key);
                    if keys.is_empty() {
                        self.by_namespace.remove(&namespace);
                    }
                }
            }
        }
        self.workloads -= usize::from(is_workload);
        for name in labels {
            if let Some(label) = self.labels.get_mut(&name) {
                label.users -= 1;
                if label.users == 0 {
                    self.labels.remove(&name);
                }
            }
        }
        self.update_needed();
    }

    fn use_label(&mut self, name: &str) {
        if !self.labels.contains_key(name) {
            self.needed.version += 1;
            let since = self.needed.version;
            self.labels.insert(name.to_owned(), Label { users: 0, since });
        }
        if let Some(label) = self.labels.get_mut(name) {
            label.users += 1;
        }
    }

    fn update_needed(&mut self) {
        let needed = Needed {
            pods: !self.of_objects.is_empty(),
            owners: self.workloads > 0,
            labels: match self.labels.keys().eq(self.needed.labels.iter()) {
                true => Arc::clone(&self.needed.labels),
                false => Arc::new(self.labels.keys().cloned().collect()),
            },
            version: self.needed.version,
        };
        self.needed = needed;
    }

    /// What the objects need.
    pub(super) fn needed(&self) -> &Needed {
        &self.needed
    }

    /// What the objects need, if it has changed since the last call.
    pub(super) fn take_changed(&mut self) -> Option<Needed> {
        if self.needed == self.taken {
            return None;
        }
        self.taken = self.needed.clone();
        Some(self.needed.clone())
    }

    /// The version of [`Needed`] that first contained all labels of an object.
    pub(super) fn since(&self, key: &PoolKey) -> u64 {
        let labels = self.of_objects.get(key).into_iter().flat_map(|of_object| &of_object.labels);
        labels.filter_map(|name| self.labels.get(name)).map(|label| label.since).max().unwrap_or(0)
    }

    /// The objects that may select a pod of this namespace.
    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = &PoolKey> {
        self.everywhere.iter().chain(self.by_namespace.get(namespace).into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::resources::selector::{self, Selector};
    use crate::addresses::resources::workload::Workload;
    use api::net_ip_allocation::WorkloadKind;

    fn key(name: &str) -> PoolKey {
        PoolKey { kind: "FloatingIPPool", namespace: "default".into(), name: name.into() }
    }

    fn labelled(namespace: Option<&str>) -> PodSelection {
        PodSelection::Labelled { namespace: namespace.map(Into::into), labels: Selector::default() }
    }

    fn with_label(name: &str) -> PodSelection {
        let labels = selector::parse(name).unwrap();
        PodSelection::Labelled { namespace: None, labels }
    }

    fn workload(kind: WorkloadKind) -> PodSelection {
        PodSelection::Of(Workload::new(kind, "web", "app"))
    }

    #[test]
    fn a_pod_matters_only_to_objects_that_select_its_namespace() {
        let mut interest = Interest::default();
        interest.set(&key("all"), Some(&labelled(None)));
        interest.set(&key("none"), None);
        interest.set(&key("web"), Some(&labelled(Some("web"))));
        interest.set(&key("deployment"), Some(&workload(WorkloadKind::Deployment)));
        interest.set(&key("daemonset"), Some(&workload(WorkloadKind::DaemonSet)));
        let of = |interest: &Interest, namespace: &str| {
            interest
                .of(namespace)
                .map(|key| key.name.to_string())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&interest, "web"), ["all", "daemonset", "deployment", "web"]);
        assert_eq!(of(&interest, "other"), ["all", "daemonset"]);

        interest.set(&key("web"), Some(&labelled(Some("other"))));
        interest.remove(&key("all"));
        assert_eq!(of(&interest, "web"), ["daemonset", "deployment"]);
        assert_eq!(of(&interest, "other"), ["daemonset", "web"]);
        interest.remove(&key("web"));
        interest.remove(&key("deployment"));
        assert!(interest.by_namespace.is_empty());
    }

    #[test]
    fn pods_and_owners_are_watched_only_if_an_object_needs_them() {
        let mut interest = Interest::default();
        let kinds =
            |interest: &Interest| [Kind::Pods, Kind::ReplicaSets].map(|kind| interest.needed().has(kind));
        interest.set(&key("none"), None);
        assert_eq!(kinds(&interest), [false, false]);
        interest.set(&key("web"), Some(&labelled(None)));
        assert_eq!(kinds(&interest), [true, false]);
        interest.set(&key("web"), Some(&workload(WorkloadKind::Deployment)));
        assert_eq!(kinds(&interest), [true, true]);
        interest.remove(&key("web"));
        assert_eq!(kinds(&interest), [false, false]);
    }

    #[test]
    fn a_new_label_needs_a_new_list_and_a_used_one_does_not() {
        let mut interest = Interest::default();
        interest.set(&key("one"), Some(&with_label("app")));
        let first = interest.take_changed().unwrap();
        assert_eq!((first.version, interest.since(&key("one"))), (1, 1));
        interest.set(&key("one"), Some(&with_label("app")));
        interest.set(&key("two"), Some(&with_label("app")));
        assert_eq!((interest.take_changed(), interest.since(&key("two"))), (None, 1));
        interest.set(&key("two"), Some(&with_label("tier")));
        assert_eq!((interest.since(&key("one")), interest.since(&key("two"))), (1, 2));
        interest.remove(&key("one"));
        assert_eq!(interest.take_changed().unwrap().labels, Arc::new(["tier".to_owned()].into()));
        interest.set(&key("one"), Some(&with_label("app")));
        assert_eq!(
            interest.since(&key("one")),
            3,
            "pods that were read in the meantime were kept without the label"
        );
    }
}
