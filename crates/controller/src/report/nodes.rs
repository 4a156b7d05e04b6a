//! The marks on nodes: the label `ip.ready` and the annotation with the floating address.
//!
//! Both go out in one merge patch per node. A merge patch also removes a mark that a predecessor of this controller set,
//! which server-side apply would leave alone because another manager owns it. The patch names the version of the node that
//! was looked at, so one that was held up undoes nothing that came later.

use api::{IP_READY_LABEL, RESERVED_IP_ANNOTATION};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use plan::{Marks, NodeName};
use serde_json::{Value, json};

use crate::observe::{Index, floating_ip_pool, net_ip_allocation};
use crate::watch::SlimNode;

/// The patches of all nodes that need one, with the node's version.
pub(super) fn differences(index: &Index, marks: &Marks) -> Vec<(NodeName, String, Value)> {
    let needs = |(name, node): (&NodeName, &SlimNode)| {
        let patch = difference(name, node, marks)?;
        Some((name.clone(), node.resource_version().unwrap_or_default(), patch))
    };
    index.nodes.iter().filter_map(needs).collect()
}

pub(super) async fn patch(client: Client, name: &NodeName, patch: Value) -> Result<(), kube::Error> {
    tracing::info!(node = %name, %patch, "marking");
    let api: Api<Node> = Api::all(client);
    api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// The patch that gives a node its marks, where it needs one. Nothing is taken away while something is not known.
fn difference(name: &NodeName, node: &SlimNode, marks: &Marks) -> Option<Value> {
    let change =
        |kind: &'static str, present: Option<&String>, wanted: Option<String>| match (present, wanted) {
            (present, Some(wanted)) if present != Some(&wanted) => Some(Value::from(wanted)),
            (Some(_), None) if plan::sabotaged!(MarksNeverRemoved) => None,
            (Some(_), None) if !marks.uncertain.contains(kind) => Some(Value::Null),
            _ => None,
        };
    let held = |kind: &'static str| marks.holders.get(kind).and_then(|holders| holders.get(name));
    let label = change(
        net_ip_allocation::KIND,
        node.labels().get(IP_READY_LABEL),
        held(net_ip_allocation::KIND).map(|_| "true".to_owned()),
    );
    let annotation = change(
        floating_ip_pool::KIND,
        node.annotations().get(RESERVED_IP_ANNOTATION),
        held(floating_ip_pool::KIND).map(ToString::to_string),
    );
    let mut metadata = serde_json::Map::new();
    if let Some(label) = label {
        metadata.insert("labels".into(), json!({IP_READY_LABEL: label}));
    }
    if let Some(annotation) = annotation {
        metadata.insert("annotations".into(), json!({RESERVED_IP_ANNOTATION: annotation}));
    }
    if metadata.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".into(), json!(node.resource_version()));
    Some(json!({"metadata": metadata}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: Value, annotations: Value) -> SlimNode {
        serde_json::from_value(
            json!({"metadata": {"name": "n1", "labels": labels, "annotations": annotations}}),
        )
        .unwrap()
    }

    fn marks(holds: &[&'static str], uncertain: &[&'static str]) -> Marks {
        let mut marks = Marks::default();
        for kind in holds {
            marks.holders.entry(kind).or_default().insert("n1".into(), "203.0.113.7".parse().unwrap());
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
        let marked = node(json!({"ip.ready": "true"}), json!({}));
        assert_eq!(diff(&marked, &marks(&["NetIPAllocation"], &[])), None);
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
