//! Which objects a pod can matter to.
//!
//! In: the pod selection of each object. Out: for a namespace, the objects that may select its pods. Without it, every
//! event of a pod would be compared with every object of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use plan::PoolKey;

use crate::addresses::resources::parsed::PodSelection;
use crate::addresses::watch::Kind;

/// The objects that select pods.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Objects that select pods in all namespaces.
    everywhere: BTreeSet<PoolKey>,
    by_namespace: BTreeMap<String, BTreeSet<PoolKey>>,
    /// The namespace of each object in `by_namespace`.
    namespaces: BTreeMap<PoolKey, String>,
}

impl PodSelection {
    /// The only namespace whose pods matter. None if pods of all namespaces do: a DaemonSet's node counts as drained when
    /// all other pods have left it.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Labelled { namespace, .. } => namespace.as_deref(),
            Self::Of(workload) => (workload.kind != Kind::DaemonSets).then_some(&workload.namespace),
        }
    }
}

impl Interest {
    /// Sets which pods an object selects.
    pub(super) fn set(&mut self, key: &PoolKey, pods: Option<&PodSelection>) {
        self.remove(key);
        match pods.map(PodSelection::namespace) {
            None => {}
            Some(None) => _ = self.everywhere.insert(key.clone()),
            Some(Some(namespace)) => {
                self.by_namespace.entry(namespace.to_owned()).or_default().insert(key.clone());
                self.namespaces.insert(key.clone(), namespace.to_owned());
            }
        }
    }

    /// Forgets an object.
    pub(super) fn remove(&mut self, key: &PoolKey) {
        self.everywhere.remove(key);
        if let Some(namespace) = self.namespaces.remove(key)
            && let Some(keys) = self.by_namespace.get_mut(&namespace)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_namespace.remove(&namespace);
            }
        }
    }

    /// The objects that may select a pod of this namespace.
    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = &PoolKey> {
        self.everywhere.iter().chain(self.by_namespace.get(namespace).into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::resources::workload::Workload;
    use api::net_ip_allocation::WorkloadKind;
    use kube::core::Selector;

    fn key(name: &str) -> PoolKey {
        PoolKey { kind: "FloatingIPPool", namespace: "default".into(), name: name.into() }
    }

    fn labelled(namespace: Option<&str>) -> PodSelection {
        PodSelection::Labelled { namespace: namespace.map(Into::into), labels: Selector::default() }
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
        assert!(interest.by_namespace.is_empty() && interest.namespaces.is_empty());
    }
}
