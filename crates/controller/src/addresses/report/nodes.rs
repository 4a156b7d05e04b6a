//! The marks on nodes: the label `ip.ready`, the label that names the NetIPAllocation, and the annotation with the
//! floating address.
//!
//! In: nodes, and the marks in the plan. Out: one merge patch per node. A merge patch can also remove a mark that an
//! earlier controller set. Server-side apply would not remove it, because another field manager owns it. The patch
//! contains the `resourceVersion` of the node, so a delayed patch can't undo a later one.

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

/// Returns a patch for each node whose marks differ from the plan, with the node's resourceVersion.
pub(super) fn differences(index: &Index, marks: &Marks) -> Vec<(NodeName, String, Value)> {
    let needs = |(name, node): (&NodeName, &Node)| {
        let patch = difference(name, node, marks)?;
        Some((name.clone(), node.version.as_deref().unwrap_or_default().to_owned(), patch))
    };
    // The controller does not write to undecodable nodes.
    index.nodes.iter().filter(|(_, node)| !node.is_stand_in).filter_map(needs).collect()
}

pub(super) async fn patch(client: Client, name: &NodeName, patch: Value) -> Result<(), kube::Error> {
    tracing::info!(node = %name, %patch, "updating node labels and annotations");
    let api: Api<v1::Node> = Api::all(client);
    api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// The patch that a node needs to get its marks, if any. The patch removes no mark of a kind if the plan does not know
/// all objects of that kind, or if the node may hold one of their addresses.
fn difference(name: &NodeName, node: &Node, marks: &Marks) -> Option<Value> {
    let held = |kind: &'static str| marks.holders.get(kind).and_then(|holders| holders.get(name));
    let is_unsure = |kind| marks.unsure.get(kind).is_some_and(|nodes| nodes.contains(name));
    let may_remove =
        |kind| !marks.uncertain.contains(kind) && !is_unsure(kind) && !plan::sabotaged!(MarksNeverRemoved);
    let of_allocation = held(net_ip_allocation::KIND).map(|mark| {
        [IP_READY_LABEL.to_owned(), allocation_label(&mark.object)].map(|label| (label, "true".to_owned()))
    });
    let labels = changes(
        &node.labels,
        of_allocation.into_iter().flatten().collect(),
        &[IP_READY_LABEL, ALLOCATION_LABEL_PREFIX],
        may_remove(net_ip_allocation::KIND),
    );
    let of_pool = held(floating_ip_pool::KIND)
        .map(|mark| (RESERVED_IP_ANNOTATION.to_owned(), mark.address.to_string()));
    let annotations = changes(
        &node.annotations,
        of_pool.into_iter().collect(),
        &[RESERVED_IP_ANNOTATION],
        may_remove(floating_ip_pool::KIND),
    );
    let mut metadata = serde_json::Map::new();
    for (field, changes) in [("labels", labels), ("annotations", annotations)] {
        if !changes.is_empty() {
            metadata.insert(field.into(), changes.into());
        }
    }
    if metadata.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".into(), json!(node.version));
    Some(json!({"metadata": metadata}))
}

/// The changes from the present entries to the wanted ones. `ours` are our keys; one that ends in a slash is a prefix.
fn changes(
    present: &Labels,
    wanted: Vec<(String, String)>,
    ours: &[&str],
    may_remove: bool,
) -> serde_json::Map<String, Value> {
    let mut changes = serde_json::Map::new();
    if may_remove {
        for name in ours {
            let is_ours = |key: &&str| key == name || name.ends_with('/');
            let is_spare = |key: &&str| !wanted.iter().any(|(wanted, _)| wanted == *key);
            let spare = present.names_from(name).filter(is_ours).filter(is_spare);
            changes.extend(spare.map(|key| (key.to_owned(), Value::Null)));
        }
    }
    let is_missing = |(key, value): &(String, String)| present.get(key) != Some(value.as_str());
    changes.extend(wanted.into_iter().filter(is_missing).map(|(key, value)| (key, Value::from(value))));
    changes
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
        difference(&"n1".into(), node, marks)
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
