//! Which workload a pod belongs to, by owner references and never by name: Deployment → ReplicaSet → Pod, StatefulSet →
//! Pod, DaemonSet → Pod.
//!
//! In: the metadata of all Deployments, ReplicaSets, StatefulSets and DaemonSets. Out: whether a pod belongs to a
//! workload. If the owner of a pod is unknown, the pod may belong to any workload in its namespace, so the controller
//! does not move an address that the pod may still use.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::addresses::kind::Kind;
use crate::addresses::owner::Owner;
use crate::addresses::pod::Pod;
use crate::addresses::resources::workload::Workload;
use crate::kubernetes::decode::Settled;

/// All workloads and ReplicaSets.
#[derive(Default)]
pub(crate) struct Owners {
    /// The UID of each workload and ReplicaSet, and the UID of its owner.
    known: BTreeMap<Workload, (String, Option<String>)>,
    /// The UIDs of all workloads and ReplicaSets.
    uids: BTreeSet<String>,
    /// The UID of each ReplicaSet, and the UID of its owner, if it has one.
    of_replica_sets: BTreeMap<String, Option<String>>,
}

impl Owners {
    /// Processes an event. Returns the namespaces in which the owner of a pod may have changed.
    pub(crate) fn observe(&mut self, kind: Kind, change: Settled<Owner>) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let gone: Vec<_> = match &change {
            Settled::All(all) => {
                let names: BTreeSet<_> = all.iter().map(|owner| Workload::of(kind, owner)).collect();
                let is_gone = |named: &&Workload| named.kind == kind && !names.contains(named);
                self.known.keys().filter(is_gone).cloned().collect()
            }
            Settled::Applied(_) | Settled::Deleted(_) => Vec::new(),
        };
        let mut set = |named: Workload, owner: Option<&Owner>| {
            let namespace = named.namespace.clone();
            if self.set(named, owner) {
                changed.insert(namespace);
            }
        };
        match change {
            Settled::All(all) => {
                for named in gone {
                    set(named, None);
                }
                for owner in &all {
                    set(Workload::of(kind, owner), Some(owner));
                }
            }
            Settled::Applied(owner) => set(Workload::of(kind, &owner), Some(&owner)),
            Settled::Deleted(owner) => set(Workload::of(kind, &Owner::from(*owner)), None),
        }
        changed
    }

    /// The last decoded version of an owner whose newest version is undecodable. `None` if no version was ever decoded;
    /// then its pods may belong to any workload.
    pub(crate) fn last_known(&self, kind: Kind, metadata: &ObjectMeta) -> Option<Owner> {
        let owner = Owner::from(metadata.clone());
        let (uid, controlled_by) = self.known.get(&Workload::of(kind, &owner))?;
        Some(Owner { uid: Some(uid.clone()), controlled_by: controlled_by.clone(), ..owner })
    }

    /// Forgets all owners of a kind.
    pub(crate) fn forget(&mut self, kind: Kind) {
        self.observe(kind, Settled::All(Vec::new()));
    }

    fn set(&mut self, named: Workload, owner: Option<&Owner>) -> bool {
        let new = owner.and_then(|owner| Some((owner.uid.clone()?, owner.controlled_by.clone())));
        let is_replica_set = named.kind == Kind::ReplicaSets;
        let old = match new.clone() {
            Some(new) => self.known.insert(named, new),
            None => self.known.remove(&named),
        };
        if old == new {
            return false;
        }
        if let Some((uid, _)) = &old {
            self.uids.remove(uid);
        }
        self.uids.extend(new.as_ref().map(|(uid, _)| uid.clone()));
        if is_replica_set {
            if let Some((uid, _)) = old {
                self.of_replica_sets.remove(&uid);
            }
            self.of_replica_sets.extend(new);
        }
        true
    }

    /// Whether a pod belongs to a workload, or may belong to it. If the pod's owner is not in the cache, or was deleted
    /// before the pod, the pod may belong to any workload in its namespace whose pods have owners of the same kind.
    pub(crate) fn has(&self, workload: &Workload, pod: &Pod) -> bool {
        let known = self.known.get(workload).map(|(uid, _)| uid);
        if !is_near(workload, pod) {
            return false;
        }
        let Some(owner) = &pod.owner else {
            // After a deletion with `--cascade=orphan`, the pods have no owner until a new workload adopts them.
            return known.is_none() && is_evictable(pod);
        };
        match self.of_replica_sets.get(&owner.uid) {
            Some(Some(above)) if self.uids.contains(above) => known == Some(above),
            Some(_) => workload.kind == Kind::Deployments,
            None if self.uids.contains(&owner.uid) => known == Some(&owner.uid),
            None => workload.owns_through(&owner.kind),
        }
    }

    /// Whether a pod certainly belongs to a workload.
    pub(crate) fn surely_has(&self, workload: &Workload, pod: &Pod) -> bool {
        let Some(owner) = &pod.owner else { return false };
        let above = match self.of_replica_sets.get(&owner.uid) {
            Some(above) => above.as_ref(),
            None => Some(&owner.uid),
        };
        is_near(workload, pod) && above.is_some() && above == self.known.get(workload).map(|(uid, _)| uid)
    }
}

/// Whether a pod is in the namespace of a workload. Owner references never lead to another namespace.
fn is_near(workload: &Workload, pod: &Pod) -> bool {
    *pod.key.namespace == *workload.namespace
}

/// Whether a drain evicts a pod. Pods of DaemonSets and static pods of the kubelet stay.
pub(crate) fn is_evictable(pod: &Pod) -> bool {
    !pod.is_mirror && pod.owner.as_ref().is_none_or(|owner| owner.kind != "DaemonSet")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::net_ip_allocation::WorkloadKind;
    use serde_json::json;

    fn owner(name: &str, uid: &str, of: &str) -> Owner {
        let controlled_by = (!of.is_empty()).then(|| of.to_owned());
        Owner { namespace: "web".into(), name: name.into(), uid: Some(uid.into()), controlled_by }
    }

    fn pod(kind: &str, uid: &str) -> Pod {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": uid, "controller": true});
        let metadata = json!({"name": "web-1", "namespace": "web", "ownerReferences": [owner]});
        Pod::from_json(json!({"metadata": metadata}))
    }

    fn orphan() -> Pod {
        Pod::from_json(json!({"metadata": {"name": "web-1", "namespace": "web"}}))
    }

    fn all(owner: Owner) -> Settled<Owner> {
        Settled::All(vec![owner])
    }

    /// What `observe` returns after a change of an owner in the namespace `web`.
    fn in_web() -> BTreeSet<String> {
        ["web".to_owned()].into()
    }

    fn web() -> Workload {
        Workload::new(WorkloadKind::Deployment, "web", "web")
    }

    #[test]
    fn n5_a_deployments_pods_are_found_by_owner_not_by_name() {
        let mut owners = Owners::default();
        owners
            .observe(Kind::Deployments, Settled::All(vec![owner("web", "d1", ""), owner("web-6", "d2", "")]));
        owners.observe(
            Kind::ReplicaSets,
            Settled::All(vec![owner("web-5", "r1", "d1"), owner("web-6", "r2", "d2")]),
        );
        assert!(owners.has(&web(), &pod("ReplicaSet", "r1")));
        assert!(!owners.has(&web(), &pod("ReplicaSet", "r2")), "its name does not count");
        assert!(!owners.has(&web(), &orphan()));
    }

    #[test]
    fn n5_a_pod_belongs_to_a_stateful_set_or_a_daemon_set_directly() {
        let mut owners = Owners::default();
        owners.observe(Kind::StatefulSets, all(owner("db", "s1", "")));
        let named = |kind| Workload::new(kind, "web", "db");
        assert!(owners.has(&named(WorkloadKind::StatefulSet), &pod("StatefulSet", "s1")));
        assert!(!owners.has(&named(WorkloadKind::DaemonSet), &pod("StatefulSet", "s1")), "another kind");
    }

    #[test]
    fn n5_pods_of_a_deleted_workload_count_until_they_are_gone() {
        let mut owners = Owners::default();
        owners.observe(Kind::Deployments, all(owner("web", "d1", "")));
        owners.observe(Kind::ReplicaSets, all(owner("web-5", "r1", "d1")));
        owners.observe(Kind::StatefulSets, all(owner("db", "s1", "")));
        assert_eq!(owners.observe(Kind::Deployments, Settled::All(Vec::new())), in_web());
        assert!(owners.has(&web(), &pod("ReplicaSet", "r1")), "its pods may still serve traffic");
        owners.observe(Kind::Deployments, all(owner("web", "d2", "")));
        assert!(
            owners.has(&web(), &pod("ReplicaSet", "r1")),
            "a new Deployment of this name may adopt the ReplicaSets"
        );
        let db = Workload::new(WorkloadKind::StatefulSet, "web", "db");
        owners.observe(Kind::StatefulSets, Settled::All(Vec::new()));
        assert!(owners.has(&db, &pod("StatefulSet", "s1")));
        assert!(owners.has(&db, &orphan()), "it may have been deleted with --cascade=orphan");
        assert!(!owners.has(&web(), &orphan()), "the Deployment exists and does not own the pod");
    }

    #[test]
    fn a_pod_of_an_unknown_or_orphaned_replica_set_may_be_ours() {
        let mut owners = Owners::default();
        owners
            .observe(Kind::Deployments, Settled::All(vec![owner("web", "d1", ""), owner("else", "d9", "")]));
        assert!(owners.has(&web(), &pod("ReplicaSet", "r9")));
        assert!(
            !owners.has(&Workload::new(WorkloadKind::Deployment, "other", "web"), &pod("ReplicaSet", "r9"))
        );
        assert_eq!(owners.observe(Kind::ReplicaSets, all(owner("else-1", "r9", ""))), in_web());
        assert!(owners.has(&web(), &pod("ReplicaSet", "r9")), "the Deployment may adopt the ReplicaSet");
        let changed = owners.observe(Kind::ReplicaSets, all(owner("else-1", "r9", "d9")));
        assert_eq!(changed, in_web(), "now its owner is known");
        assert!(!owners.has(&web(), &pod("ReplicaSet", "r9")));
    }

    #[test]
    fn an_owner_reference_into_another_namespace_does_not_count() {
        let mut owners = Owners::default();
        owners.observe(Kind::Deployments, all(owner("web", "d1", "")));
        owners.observe(Kind::ReplicaSets, all(owner("web-5", "r1", "d1")));
        let mut foreign = pod("ReplicaSet", "r1");
        foreign.key.namespace = "other".into();
        assert!(!owners.has(&web(), &foreign) && !owners.surely_has(&web(), &foreign));
    }

    #[test]
    fn n9_a_pod_certainly_belongs_only_if_its_owner_is_known() {
        let mut owners = Owners::default();
        owners.observe(Kind::Deployments, all(owner("web", "d1", "")));
        assert!(!owners.surely_has(&web(), &pod("ReplicaSet", "r1")), "its ReplicaSet is not in the cache");
        owners.observe(Kind::ReplicaSets, all(owner("web-5", "r1", "d1")));
        assert!(owners.surely_has(&web(), &pod("ReplicaSet", "r1")));
        assert!(!owners.surely_has(&web(), &orphan()));
        owners.observe(Kind::Deployments, all(owner("web", "d2", "")));
        assert!(!owners.surely_has(&web(), &pod("ReplicaSet", "r1")), "another Deployment replaced it");
    }

    #[test]
    fn an_event_without_a_change_of_owners_is_ignored() {
        let mut owners = Owners::default();
        let mut observe = |change| owners.observe(Kind::ReplicaSets, change);
        assert_eq!(observe(all(owner("web-5", "r1", "d1"))), in_web());
        assert_eq!(observe(Settled::Applied(owner("web-5", "r1", "d1"))), BTreeSet::new());
        assert_eq!(observe(Settled::All(Vec::new())), in_web());
    }

    #[test]
    fn n7_a_drain_leaves_daemon_set_pods_and_static_pods() {
        assert!(is_evictable(&pod("ReplicaSet", "r1")));
        assert!(!is_evictable(&pod("DaemonSet", "s1")));
        let mirror = json!({"metadata": {"name": "x", "annotations": {"kubernetes.io/config.mirror": "1"}}});
        assert!(!is_evictable(&Pod::from_json(mirror)));
    }
}
