//! The marks on nodes: the label `ip.ready`, the label that names the NetIPAllocation, and the annotation with the
//! floating address.
//!
//! In: nodes, and the marks in the plan. Out: a merge patch per node. A merge patch can also remove a mark that an
//! earlier controller set. Server-side apply would not remove it, because another field manager owns it. The patch
//! contains the `resourceVersion` of the node, so a delayed patch can't undo a later one.

use std::collections::BTreeSet;

use api::{ALLOCATION_LABEL_PREFIX, IP_READY_LABEL, RESERVED_IP_ANNOTATION, allocation_label};
use k8s_openapi::api::core::v1;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use plan::{Marks, NodeName};
use serde_json::{Value, json};

use crate::addresses::index::Index;
use crate::addresses::labels::Labels;
use crate::addresses::node::Node;
use crate::addresses::resources::{floating_ip_pool, net_ip_allocation};

/// A mark, without its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MarkId {
    /// The key of the label that names a NetIPAllocation. Several nodes can have it.
    Label(String),
    /// The address in the annotation. One node can have it.
    Address(String),
}

/// How the labels and annotations of a node differ from the plan.
pub(super) struct Difference {
    /// The node.
    pub(super) node: NodeName,
    version: Option<Box<str>>,
    labels: Changes,
    annotations: Changes,
}

impl Difference {
    /// The version of the node that this is based on.
    pub(super) fn version(&self) -> &str {
        self.version.as_deref().unwrap_or_default()
    }

    /// The version as a number.
    pub(super) fn number(&self) -> u64 {
        self.version().parse().unwrap_or(0)
    }

    /// Whether the node has a mark that it should not have.
    pub(super) fn removes(&self) -> bool {
        !self.labels.removed.is_empty() || !self.annotations.removed.is_empty()
    }

    /// The marks that the node should not have.
    pub(super) fn removed(&self) -> Vec<MarkId> {
        ids(&self.labels.removed, &self.annotations.removed)
    }

    /// The marks that the node lacks.
    pub(super) fn added(&self) -> Vec<MarkId> {
        ids(&self.labels.added, &self.annotations.added)
    }

    /// A merge patch that removes and adds marks, or only removes them.
    pub(super) fn patch(&self, only_removes: bool) -> Value {
        let mut metadata = serde_json::Map::new();
        for (field, changes) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            let removed = changes.removed.iter().map(|(key, _)| (key.clone(), Value::Null));
            let added = changes.added.iter().filter(|_| !only_removes);
            let added = added.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
            // The new value of a key replaces its removal.
            let changes: serde_json::Map<_, _> = removed.chain(added).collect();
            if !changes.is_empty() {
                metadata.insert(field.into(), changes.into());
            }
        }
        metadata.insert("resourceVersion".into(), json!(self.version));
        json!({"metadata": metadata})
    }
}

fn ids(labels: &[(String, String)], annotations: &[(String, String)]) -> Vec<MarkId> {
    // All NetIPAllocations share this label, so it does not identify one of them.
    let labels = labels.iter().filter(|(key, _)| key != IP_READY_LABEL);
    let labels = labels.map(|(key, _)| MarkId::Label(key.clone()));
    labels.chain(annotations.iter().map(|(_, address)| MarkId::Address(address.clone()))).collect()
}

/// The nodes whose marks differ from the plan.
pub(super) fn differences(index: &Index, marks: &Marks) -> Vec<Difference> {
    // The controller does not write to undecodable nodes.
    let nodes = index.nodes.iter().filter(|(_, node)| !node.is_stand_in);
    let kept = kept_labels(marks);
    nodes.filter_map(|(name, node)| difference(name, node, marks, &kept)).collect()
}

pub(super) async fn patch(client: Client, name: &NodeName, patch: Value) -> Result<(), kube::Error> {
    tracing::info!(node = %name, %patch, "updating node labels and annotations");
    let api: Api<v1::Node> = Api::all(client);
    api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// The labels that name a NetIPAllocation on which the controller does not act.
fn kept_labels(marks: &Marks) -> BTreeSet<String> {
    let left_alone = marks.left_alone.get(net_ip_allocation::KIND);
    left_alone
        .into_iter()
        .flat_map(|left_alone| &left_alone.objects)
        .map(|name| allocation_label(name))
        .collect()
}

/// How the marks of a node differ from the plan, if they do. Marks of a kind are not removed if the plan does not know
/// all objects of that kind, or if the node may hold one of their addresses. A mark of an object that the controller does
/// not act on stays, too.
fn difference(name: &NodeName, node: &Node, marks: &Marks, kept: &BTreeSet<String>) -> Option<Difference> {
    let held = |kind: &'static str| marks.holders.get(kind).and_then(|holders| holders.get(name));
    let is_unsure = |kind| marks.unsure.get(kind).is_some_and(|nodes| nodes.contains(name));
    let may_remove =
        |kind| !marks.uncertain.contains(kind) && !is_unsure(kind) && !plan::sabotaged!(MarksNeverRemoved);
    let of_allocation = held(net_ip_allocation::KIND).map(|mark| {
        [IP_READY_LABEL.to_owned(), allocation_label(&mark.object)].map(|label| (label, "true".to_owned()))
    });
    let mut labels = Changes::new(
        &node.labels,
        of_allocation.into_iter().flatten().collect(),
        &[IP_READY_LABEL, ALLOCATION_LABEL_PREFIX],
        may_remove(net_ip_allocation::KIND),
    );
    if let Some(left_alone) = marks.left_alone.get(net_ip_allocation::KIND) {
        let is_marked = node.labels.names_from(ALLOCATION_LABEL_PREFIX).any(|key| kept.contains(key));
        let keeps_ready = is_marked || left_alone.nodes.contains(name);
        labels.removed.retain(|(key, _)| !(kept.contains(key) || (key == IP_READY_LABEL && keeps_ready)));
    }
    let of_pool = held(floating_ip_pool::KIND)
        .map(|mark| (RESERVED_IP_ANNOTATION.to_owned(), mark.address.to_string()));
    let mut annotations = Changes::new(
        &node.annotations,
        of_pool.into_iter().collect(),
        &[RESERVED_IP_ANNOTATION],
        may_remove(floating_ip_pool::KIND),
    );
    if let Some(left_alone) = marks.left_alone.get(floating_ip_pool::KIND) {
        let is_theirs =
            |text: &str| text.parse().is_ok_and(|address| left_alone.addresses.contains(&address));
        annotations.removed.retain(|(_, address)| !is_theirs(address));
    }
    let is_different = !labels.is_empty() || !annotations.is_empty();
    let version = node.version.clone();
    is_different.then(|| Difference { node: name.clone(), version, labels, annotations })
}

/// How the entries of a node differ from the wanted ones.
struct Changes {
    /// Present entries that are not wanted. A wrong value of a wanted key is one of them.
    removed: Vec<(String, String)>,
    /// Wanted entries that are not present.
    added: Vec<(String, String)>,
}

impl Changes {
    /// `ours` are our keys; one that ends in a slash is a prefix.
    fn new(present: &Labels, wanted: Vec<(String, String)>, ours: &[&str], may_remove: bool) -> Self {
        let is_ours = |name: &str, key: &str| key == name || name.ends_with('/');
        let found = ours.iter().filter(|_| may_remove).flat_map(|name| {
            let of_name = present.names_from(name).filter(move |key| is_ours(name, key));
            of_name.map(|key| (key.to_owned(), present.get(key).unwrap_or_default().to_owned()))
        });
        let removed = found.filter(|entry| !wanted.contains(entry)).collect();
        let is_missing = |(key, value): &(String, String)| present.get(key) != Some(value.as_str());
        Self { removed, added: wanted.into_iter().filter(is_missing).collect() }
    }

    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::Mark;

    const OF_EDGE: &str = "allocation.netinfra.darkbrains.com/edge";

    fn node(labels: Value, annotations: Value) -> Node {
        let metadata = json!({"name": "n1", "labels": labels, "annotations": annotations});
        Node::from_json(json!({"metadata": metadata}))
    }

    fn marks(holds: &[&'static str], uncertain: &[&'static str]) -> Marks {
        let mut marks = Marks::default();
        for kind in holds {
            let mark = Mark { address: "203.0.113.7".parse().unwrap(), object: "edge".into() };
            marks.holders.entry(kind).or_default().insert("n1".into(), mark);
        }
        marks.uncertain.extend(uncertain);
        marks
    }

    fn diff(node: &Node, marks: &Marks) -> Option<Value> {
        difference(&"n1".into(), node, marks, &kept_labels(marks)).map(|difference| difference.patch(false))
    }

    #[test]
    fn a_node_with_the_right_marks_is_not_patched() {
        assert_eq!(diff(&node(json!({}), json!({})), &marks(&[], &[])), None);
        let marked = node(json!({"ip.ready": "true", OF_EDGE: "true"}), json!({}));
        assert_eq!(diff(&marked, &marks(&["NetIPAllocation"], &[])), None);
    }

    #[test]
    fn a_node_keeps_its_label_while_an_address_is_being_attached() {
        let marked = node(json!({"ip.ready": "true", OF_EDGE: "true"}), json!({}));
        let mut coming = marks(&[], &[]);
        coming.unsure.entry("NetIPAllocation").or_default().insert("n1".into());
        assert_eq!(diff(&marked, &coming), None);
        assert!(diff(&marked, &marks(&[], &[])).is_some());
    }

    #[test]
    fn n9_a_label_names_the_allocation_and_changes_with_it() {
        let of_other = "allocation.netinfra.darkbrains.com/other";
        let marked = node(json!({"ip.ready": "true", of_other: "true", "role": "edge"}), json!({}));
        let patch = diff(&marked, &marks(&["NetIPAllocation"], &[])).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({OF_EDGE: "true", of_other: null}));
        let marks = marks(&["NetIPAllocation"], &[]);
        let difference = difference(&"n1".into(), &marked, &marks, &kept_labels(&marks)).unwrap();
        assert_eq!(difference.patch(true)["metadata"]["labels"], json!({of_other: null}));
    }

    #[test]
    fn a_wrong_address_is_replaced_in_one_patch() {
        let annotation = "flipop.digitalocean.com/ipv4-reserved-ip";
        let marked = node(json!({}), json!({annotation: "203.0.113.9"}));
        for uncertain in [&[][..], &["FloatingIPPool"]] {
            let patch = diff(&marked, &marks(&["FloatingIPPool"], uncertain)).unwrap();
            assert_eq!(patch["metadata"]["annotations"], json!({annotation: "203.0.113.7"}));
        }
    }

    #[test]
    fn i4_an_object_that_is_left_alone_keeps_only_its_own_marks() {
        const OF_OTHER: &str = "allocation.netinfra.darkbrains.com/other";
        let mut marks = marks(&[], &[]);
        let allocations = marks.left_alone.entry("NetIPAllocation").or_default();
        allocations.objects.insert("edge".into());
        let both = node(json!({"ip.ready": "true", OF_EDGE: "true", OF_OTHER: "true"}), json!({}));
        assert_eq!(diff(&both, &marks).unwrap()["metadata"]["labels"], json!({OF_OTHER: null}));
        let of_other = node(json!({"ip.ready": "true", OF_OTHER: "true"}), json!({}));
        let removed = diff(&of_other, &marks).unwrap();
        assert_eq!(removed["metadata"]["labels"], json!({"ip.ready": null, OF_OTHER: null}));
        marks.left_alone.entry("NetIPAllocation").or_default().nodes.insert("n1".into());
        let removed = diff(&of_other, &marks).unwrap();
        assert_eq!(
            removed["metadata"]["labels"],
            json!({OF_OTHER: null}),
            "its controller may have set ip.ready"
        );

        let annotated = |address: &str| node(json!({}), json!({RESERVED_IP_ANNOTATION: address}));
        let pools = marks.left_alone.entry("FloatingIPPool").or_default();
        pools.addresses.insert("203.0.113.7".parse().unwrap());
        assert_eq!(diff(&annotated("203.0.113.7"), &marks), None);
        assert!(diff(&annotated("203.0.113.8"), &marks).is_some());
    }

    #[test]
    fn keys_that_only_begin_like_ours_stay_unchanged() {
        let others = json!({"ip.ready2": "true", "ip.ready.example.com/x": "true"});
        let annotations = json!({"flipop.digitalocean.com/ipv4-reserved-ip-note": "x"});
        assert_eq!(diff(&node(others, annotations), &marks(&[], &[])), None);
    }

    #[test]
    fn both_marks_go_out_in_one_patch() {
        let patch =
            diff(&node(json!({}), json!({})), &marks(&["NetIPAllocation", "FloatingIPPool"], &[])).unwrap();
        assert_eq!(patch["metadata"]["labels"]["ip.ready"], "true");
        assert_eq!(
            patch["metadata"]["annotations"]["flipop.digitalocean.com/ipv4-reserved-ip"],
            "203.0.113.7"
        );
    }

    #[test]
    fn a_mark_is_removed_only_if_all_facts_of_its_kind_are_known() {
        let marked = node(json!({"ip.ready": "true"}), json!({}));
        assert_eq!(diff(&marked, &marks(&[], &["NetIPAllocation"])), None);
        let patch = diff(&marked, &marks(&[], &["FloatingIPPool"])).unwrap();
        assert_eq!(patch["metadata"]["labels"]["ip.ready"], Value::Null);
    }
}
