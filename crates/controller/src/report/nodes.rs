//! The marks on nodes: the label `ip.ready` and the annotation with the floating address.
//!
//! Both go out in one merge patch per node. A merge patch also removes a mark that a predecessor of this controller set,
//! which server-side apply would leave alone because another manager owns it.

use std::collections::{BTreeMap, BTreeSet};

use api::{IP_READY_LABEL, RESERVED_IP_ANNOTATION};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use plan::{Address, NodeName, Verdict};
use serde_json::{Value, json};

use super::{Said, Sayings};
use crate::observe;
use crate::watch::{SlimNode, Watched};

/// What a node should carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    is_ready: bool,
    floating: Option<Address>,
}

/// Writes the marks that differ.
pub(super) async fn mark(
    client: &Client,
    watched: &Watched,
    sayings: &Sayings<'_>,
) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let wanted = wanted(sayings);
    let uncertain = uncertain(watched, sayings);
    let mut result = Ok(());
    for node in watched.nodes.state() {
        let name = observe::node_name(&node);
        let marks = wanted.get(&name).cloned().unwrap_or_default();
        if let Some(patch) = difference(&node, &marks, uncertain.contains(&name)) {
            tracing::info!(node = %name, ?marks, "marking");
            let patched = api.patch(&name.0, &PatchParams::default(), &Patch::Merge(patch)).await;
            result = result.and(patched.map(drop));
        }
    }
    result
}

fn wanted(sayings: &Sayings<'_>) -> BTreeMap<NodeName, Marks> {
    let mut wanted: BTreeMap<NodeName, Marks> = BTreeMap::new();
    for (pool, addresses) in sayings {
        for (address, said) in addresses {
            let Said::On(node, _) = said else { continue };
            let marks = wanted.entry(node.clone()).or_default();
            match pool.kind {
                "FloatingIPPool" => marks.floating = Some(*address),
                _ => marks.is_ready = true,
            }
        }
    }
    wanted
}

/// Nodes that, by an object's last status, have an address whose whereabouts are not known now, or whose object can't be
/// acted on: their marks may be right.
fn uncertain(watched: &Watched, sayings: &Sayings<'_>) -> BTreeSet<NodeName> {
    let mut uncertain = BTreeSet::new();
    let mut add = |key: &plan::PoolKey, addresses: &[api::status::AddressStatus]| {
        for status in addresses {
            let said =
                status.address.parse().ok().and_then(|address: Address| sayings.get(key)?.get(&address));
            let is_certain = matches!(
                said,
                Some(
                    Said::On(..)
                        | Said::Off
                        | Said::Not(Verdict::Lingers(..) | Verdict::NoNode | Verdict::Missing)
                )
            );
            let node = status.last_holder.as_ref().and_then(|holder| holder.node_name.clone());
            if let Some(node) = node.filter(|_| !is_certain) {
                uncertain.insert(NodeName(node));
            }
        }
    };
    for object in watched.allocations.state() {
        if let Some(status) = &object.status {
            add(&observe::net_ip_allocation::key(&object), &status.addresses);
        }
    }
    for object in watched.pools.state() {
        if let Some(status) = &object.status {
            add(&observe::floating_ip_pool::key(&object), &status.addresses);
        }
    }
    uncertain
}

/// The patch that gives a node its marks, where it needs one. Nothing is taken from a node that is uncertain.
fn difference(node: &SlimNode, marks: &Marks, is_uncertain: bool) -> Option<Value> {
    let change = |present: Option<&String>, wanted: Option<String>| match (present, wanted) {
        (present, Some(wanted)) if present != Some(&wanted) => Some(Value::from(wanted)),
        (Some(_), None) if !is_uncertain => Some(Value::Null),
        _ => None,
    };
    let label = change(node.labels().get(IP_READY_LABEL), marks.is_ready.then(|| "true".to_owned()));
    let annotation = change(
        node.annotations().get(RESERVED_IP_ANNOTATION),
        marks.floating.map(|address| address.to_string()),
    );
    let mut metadata = serde_json::Map::new();
    if let Some(label) = label {
        metadata.insert("labels".into(), json!({IP_READY_LABEL: label}));
    }
    if let Some(annotation) = annotation {
        metadata.insert("annotations".into(), json!({RESERVED_IP_ANNOTATION: annotation}));
    }
    (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
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

    #[test]
    fn a_node_that_carries_its_marks_costs_no_write() {
        let bare = node(json!({}), json!({}));
        assert_eq!(difference(&bare, &Marks::default(), false), None);
        let marked = node(json!({"ip.ready": "true"}), json!({}));
        assert_eq!(difference(&marked, &Marks { is_ready: true, floating: None }, false), None);
    }

    #[test]
    fn both_marks_go_out_in_one_patch() {
        let marks = Marks { is_ready: true, floating: Some("203.0.113.7".parse().unwrap()) };
        let patch = difference(&node(json!({}), json!({})), &marks, false).unwrap();
        assert_eq!(patch["metadata"]["labels"]["ip.ready"], "true");
        assert_eq!(
            patch["metadata"]["annotations"]["flipop.digitalocean.com/ipv4-reserved-ip"],
            "203.0.113.7"
        );
    }

    #[test]
    fn an_uncertain_node_keeps_its_marks() {
        let marked = node(json!({"ip.ready": "true"}), json!({}));
        assert_eq!(difference(&marked, &Marks::default(), true), None);
        let patch = difference(&marked, &Marks::default(), false).unwrap();
        assert_eq!(patch["metadata"]["labels"]["ip.ready"], Value::Null);
    }
}
