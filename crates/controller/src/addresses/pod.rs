//! A pod as the index keeps it.
//!
//! In: a pod from the apiserver. Out: the fields that decisions need, in a few hundred bytes. A cluster can have
//! 150,000 pods, so equal texts, owners and sets of labels are kept once.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use plan::NodeName;
use tokio::sync::watch;

use super::interner::Interner;
use super::needed::Needed;
use super::owner::controller_of;
use super::slim::{MIRROR_ANNOTATION, SlimPod, SlimPodSpec, SlimStatus};
use crate::kubernetes::decode::Undecodable;

/// Namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

/// A pod, with the fields that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// The UID.
    pub uid: Option<Box<str>>,
    /// The `resourceVersion`.
    pub version: Option<Box<str>>,
    /// The node of the pod.
    pub node: Option<NodeName>,
    /// The owner that controls it.
    pub owner: Option<Arc<PodOwner>>,
    /// The labels that a selector uses.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Whether all its containers have ended.
    pub has_ended: bool,
    /// Whether it is running and Ready.
    pub is_ready: bool,
    /// Whether it is being deleted.
    pub is_leaving: bool,
    /// Whether it is a static pod of the kubelet.
    pub is_mirror: bool,
    /// Whether this is a substitute for an undecodable pod.
    pub is_stand_in: bool,
}

/// The owner that controls a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodOwner {
    /// Its kind.
    pub kind: String,
    /// Its UID.
    pub uid: String,
}

impl Pod {
    /// Reduces a pod, and keeps the labels for which `uses_label` returns true.
    fn new(pod: &SlimPod, shared: &mut Shared, uses_label: impl Fn(&str) -> bool) -> Self {
        let used = pod.labels().iter().filter(|(name, _)| uses_label(name));
        let labels: BTreeMap<_, _> = used.map(|(name, value)| (name.clone(), value.clone())).collect();
        let owner = controller_of(&pod.metadata)
            .map(|owner| shared.owners.intern(PodOwner { kind: owner.kind.clone(), uid: owner.uid.clone() }));
        let phase = pod.status.phase.as_deref();
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        let is_ready = pod.status.ready().is_some_and(|ready| ready.status == "True");
        Self {
            key: PodKey {
                namespace: shared.texts.intern(pod.metadata.namespace.clone().unwrap_or_default()),
                name: pod.name_any().into(),
            },
            uid: pod.metadata.uid.as_deref().map(Into::into),
            version: pod.metadata.resource_version.as_deref().map(Into::into),
            node: pod.spec.node_name.clone().map(|node| NodeName::from(shared.texts.intern(node))),
            owner,
            labels: shared.labels.intern(labels),
            has_ended: matches!(phase, Some("Succeeded" | "Failed")),
            is_ready: phase == Some("Running") && is_ready && !is_leaving,
            is_leaving,
            is_mirror: pod.annotations().contains_key(MIRROR_ANNOTATION),
            is_stand_in: false,
        }
    }

    /// A pod with all labels.
    pub fn with_all_labels(pod: &SlimPod) -> Self {
        Self::new(pod, &mut Shared::default(), |_| true)
    }

    /// A pod with all labels.
    #[cfg(test)]
    pub(crate) fn from_json(json: serde_json::Value) -> Self {
        Self::with_all_labels(&serde_json::from_value(json).unwrap())
    }

    /// The substitute for an undecodable pod: the last decoded version, or else the fields that can be read.
    pub(crate) fn stand_in(undecodable: &Undecodable, last: Option<&Self>) -> Self {
        let read = SlimPod {
            metadata: undecodable.metadata.clone(),
            spec: SlimPodSpec { node_name: undecodable.at(&["spec", "nodeName"]) },
            status: SlimStatus::default(),
        };
        let read = Self { is_stand_in: true, ..Self::with_all_labels(&read) };
        match last.filter(|last| last.uid == read.uid) {
            Some(last) => Self {
                is_stand_in: true,
                // A pod is bound to a node once, and never moves.
                node: last.node.clone().or(read.node),
                // Prefer the labels of this version: the last one has only those that a selector used then.
                labels: match undecodable.metadata.labels {
                    Some(_) => read.labels,
                    None => Arc::clone(&last.labels),
                },
                ..last.clone()
            },
            None => read,
        }
    }
}

/// Reduces pods to the fields that decisions need and the labels that selectors use.
pub(crate) struct PodReader {
    shared: Shared,
    needed: watch::Receiver<Needed>,
}

impl PodReader {
    /// A reader that has read no pod.
    pub(crate) fn new(needed: watch::Receiver<Needed>) -> Self {
        Self { shared: Shared::default(), needed }
    }

    /// The fields of a pod that decisions need.
    pub(crate) fn read(&mut self, pod: &SlimPod) -> Pod {
        let labels = Arc::clone(&self.needed.borrow().labels);
        Pod::new(pod, &mut self.shared, |name| labels.contains(name))
    }
}

/// Values that many pods share.
#[derive(Default)]
struct Shared {
    texts: Interner<str>,
    owners: Interner<PodOwner>,
    labels: Interner<BTreeMap<String, String>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str) -> SlimPod {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "r1", "controller": true});
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "web", "uid": "u", "resourceVersion": "7", "ownerReferences": [owner],
                "labels": {"app": "web", "pod-template-hash": name}, "annotations": {"large": "x"},
            },
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
        }))
        .unwrap()
    }

    fn reader(labels: &[&str]) -> PodReader {
        let labels = Arc::new(labels.iter().map(|name| (*name).to_owned()).collect());
        PodReader::new(watch::Sender::new(Needed { labels, ..Needed::default() }).subscribe())
    }

    #[test]
    fn only_labels_that_a_selector_uses_are_kept() {
        let mut reader = reader(&["app"]);
        assert_eq!(
            reader.read(&pod("a")).labels.iter().collect::<Vec<_>>(),
            [(&"app".into(), &"web".into())]
        );
    }

    #[test]
    fn pods_share_equal_values() {
        let mut reader = reader(&["app"]);
        let [one, two] = ["a", "b"].map(|name| reader.read(&pod(name)));
        assert!(Arc::ptr_eq(&one.labels, &two.labels));
        assert!(Arc::ptr_eq(&one.key.namespace, &two.key.namespace));
        assert!(Arc::ptr_eq(&one.owner.unwrap(), &two.owner.unwrap()));
    }
}
