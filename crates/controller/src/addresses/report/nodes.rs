//! The marks on nodes: the label `ip.ready`, the label that names the allocation, and the annotation with the floating
//! address.
//!
//! All go out in one merge patch per node. A merge patch also removes a mark that a predecessor of this controller set,
//! which server-side apply would leave alone because another manager owns it. The patch names the version of the node that
//! was looked at, so one that was held up undoes nothing that came later.

use std::collections::BTreeMap;
use std::ops::Bound;

use api::{ALLOCATION_LABEL_PREFIX, IP_READY_LABEL, RESERVED_IP_ANNOTATION, allocation_label};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use plan::{Marks, NodeName};
use serde_json::{Value, json};

use crate::addresses::index::Index;
use crate::addresses::resources::{floating_ip_pool, net_ip_allocation};
use crate::addresses::watch::SlimNode;

/// The patches of all nodes that need one, with the node's version.
pub(super) fn differences(index: &Index, marks: &Marks) -> Vec<(NodeName, String, Value)> {
    let needs = |(name, node): (&NodeName, &SlimNode)| {
        let patch = difference(name, node, marks)?;
        Some((name.clone(), node.resource_version().unwrap_or_default(), patch))
    };
    // Nothing is written to a node that can't be decoded.
    index.nodes.iter().filter(|(_, node)| !node.is_stand_in).filter_map(needs).collect()
}

pub(super) async fn patch(client: Client, name: &NodeName, patch: Value) -> Result<(), kube::Error> {
    tracing::info!(node = %name, %patch, "marking");
    let api: Api<Node> = Api::all(client);
    api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// The patch that gives a node its marks, where it needs one. Nothing is taken away while something is not known, or what it tells of
/// is coming.
fn difference(name: &NodeName, node: &SlimNode, marks: &Marks) -> Option<Value> {
    let held = |kind: &'static str| marks.holders.get(kind).and_then(|holders| holders.get(name));
    let is_coming = |kind| marks.coming.get(kind).is_some_and(|nodes| nodes.contains(name));
    let may_remove =
        |kind| !marks.uncertain.contains(kind) && !is_coming(kind) && !plan::sabotaged!(MarksNeverRemoved);
    let of_allocation = held(net_ip_allocation::KIND).map(|mark| {
        [IP_READY_LABEL.to_owned(), allocation_label(&mark.object)].map(|label| (label, "true".to_owned()))
    });
    let labels = changes(
        node.labels(),
        of_allocation.into_iter().flatten().collect(),
        &[IP_READY_LABEL, ALLOCATION_LABEL_PREFIX],
        may_remove(net_ip_allocation::KIND),
    );
    let of_pool = held(floating_ip_pool::KIND)
        .map(|mark| (RESERVED_IP_ANNOTATION.to_owned(), mark.address.to_string()));
    let annotations = changes(
        node.annotations(),
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
    metadata.insert("resourceVersion".into(), json!(node.resource_version()));
    Some(json!({"metadata": metadata}))
}

/// What makes the present entries into the wanted ones. Ours are these, and all below one that ends in a slash.
fn changes(
    present: &BTreeMap<String, String>,
    wanted: Vec<(String, String)>,
    ours: &[&str],
    may_remove: bool,
) -> serde_json::Map<String, Value> {
    let mut changes = serde_json::Map::new();
    if may_remove {
        for name in ours {
            // This is asked of every node in every round, so only what begins like ours is looked at.
            let from = (Bound::Included(*name), Bound::Unbounded);
            let is_ours = |key: &str| key == *name || (name.ends_with('/') && key.starts_with(name));
            let present = present.range::<str, _>(from).map(|(key, _)| key).take_while(|key| is_ours(key));
            let is_spare = |key: &&String| !wanted.iter().any(|(wanted, _)| wanted == *key);
            changes.extend(present.filter(is_spare).map(|key| (key.clone(), Value::Null)));
        }
    }
    let is_missing = |(key, value): &(String, String)| present.get(key) != Some(value);
    changes.extend(wanted.into_iter().filter(is_missing).map(|(key, value)| (key, Value::from(value))));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::Mark;

    const OF_EDGE: &str = "allocation.netinfra.darkbrains.com/edge";

    fn node(labels: Value, annotations: Value) -> SlimNode {
        serde_json::from_value(
            json!({"metadata": {"name": "n1", "labels": labels, "annotations": annotations}}),
        )
        .unwrap()
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

    fn diff(node: &SlimNode, marks: &Marks) -> Option<Value> {
        difference(&"n1".into(), node, marks)
    }

    #[test]
    fn a_node_that_carries_its_marks_costs_no_write() {
        assert_eq!(diff(&node(json!({}), json!({})), &marks(&[], &[])), None);
        let marked = node(json!({"ip.ready": "true", OF_EDGE: "true"}), json!({}));
        assert_eq!(diff(&marked, &marks(&["NetIPAllocation"], &[])), None);
    }

    #[test]
    fn a_node_that_an_address_is_coming_to_keeps_the_label_that_it_may_need_by_now() {
        let marked = node(json!({"ip.ready": "true", OF_EDGE: "true"}), json!({}));
        let mut coming = marks(&[], &[]);
        coming.coming.entry("NetIPAllocation").or_default().insert("n1".into());
        assert_eq!(diff(&marked, &coming), None);
        assert!(diff(&marked, &marks(&[], &[])).is_some());
    }

    #[test]
    fn n9_a_label_names_the_allocation_and_follows_when_it_is_another() {
        let of_other = "allocation.netinfra.darkbrains.com/other";
        let marked = node(json!({"ip.ready": "true", of_other: "true", "role": "edge"}), json!({}));
        let patch = diff(&marked, &marks(&["NetIPAllocation"], &[])).unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({OF_EDGE: "true", of_other: null}));
    }

    #[test]
    fn labels_and_annotations_that_only_begin_like_ours_are_left_alone() {
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
    fn a_mark_is_taken_away_only_where_everything_of_its_kind_is_known() {
        let marked = node(json!({"ip.ready": "true"}), json!({}));
        assert_eq!(diff(&marked, &marks(&[], &["NetIPAllocation"])), None);
        let patch = diff(&marked, &marks(&[], &["FloatingIPPool"])).unwrap();
        assert_eq!(patch["metadata"]["labels"]["ip.ready"], Value::Null);
    }
}
