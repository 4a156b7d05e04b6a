//! The result of parsing an object: its pool, and which nodes and pods it selects.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::RESERVED_IP_ANNOTATION;
use api::selection::Match;
use kube::ResourceExt;
use plan::{Address, Kinds, Pods, Pool, Provider, Reason, Timestamp};

use super::refusal::Refusal;
use super::selector::{self, Selector};
use super::workload::Workload;
use crate::addresses::kind::Kind;
use crate::addresses::node::{AddressType, Node};
use crate::providers::listings::Interval;

/// Which nodes and pods an object selects.
pub(crate) struct Selection {
    pub(crate) nodes: Selector,
    /// The tolerated taints. `None`: taints don't matter.
    pub(crate) tolerations: Option<Vec<k8s_openapi::api::core::v1::Toleration>>,
    pub(crate) pods: Option<PodSelection>,
    /// The state of pods if the object selects no pods.
    pub(crate) pods_if_none_selected: Pods,
    /// Which addresses of the nodes the object publishes, if any.
    pub(crate) publishes: Option<NodeAddress>,
}

impl Selection {
    /// Parses a `match`. Calls `refuse` for each selector that can't be parsed.
    pub(super) fn matching(
        matches: Match,
        publishes: Option<NodeAddress>,
        mut refuse: impl FnMut(Refusal),
    ) -> Self {
        let mut read = |text: Option<&str>| {
            selector::parse(text.unwrap_or_default()).unwrap_or_else(|invalid| {
                refuse(invalid);
                Selector::default()
            })
        };
        let nodes = read(matches.node_label.as_deref());
        let pods = matches.needs_pods().then(|| PodSelection::Labelled {
            namespace: matches.pod_namespace.clone().filter(|namespace| !namespace.is_empty()),
            labels: read(matches.pod_label.as_deref()),
        });
        let tolerations = Some(matches.tolerations.unwrap_or_default());
        Self { nodes, tolerations, pods, pods_if_none_selected: Pods::Ready, publishes }
    }
}

impl PodSelection {
    /// The kinds that decide which nodes have the selected pods.
    pub(crate) fn decided_by(&self) -> Kinds {
        match self {
            Self::Labelled { .. } => Kind::Pods.for_planner(),
            Self::Of(workload) => workload.decided_by().map(Kind::for_planner).collect(),
        }
    }
}

/// Which pods an object selects.
pub(crate) enum PodSelection {
    /// Pods with these labels, in this namespace or in all namespaces.
    Labelled { namespace: Option<String>, labels: Selector },
    /// Pods of a workload.
    Of(Workload),
}

/// A parsed object. Nothing in it depends on nodes.
pub(crate) struct Parsed {
    pub(crate) pool: Pool,
    pub(crate) provider: Option<Provider>,
    pub(crate) selection: Selection,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) record_refusal: Option<Refusal>,
    pub(crate) interval: Interval,
}

/// The creation timestamp of an object.
pub(crate) fn created(object: &impl ResourceExt) -> Timestamp {
    object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The listed addresses without duplicates. Checks them, because a CRD of another version may not validate them.
pub(crate) fn parse_addresses(listed: &[String]) -> (Vec<Address>, Option<Refusal>) {
    let mut addresses: Vec<Address> = Vec::new();
    let mut refusal = None;
    let mut seen = BTreeSet::new();
    for text in listed {
        match text.parse() {
            Ok(address) if seen.insert(address) => addresses.push(address),
            Ok(_) => {}
            Err(_) => {
                refusal = Some(Refusal {
                    reason: Reason::InvalidAddress,
                    message: format!("{text} is not an IP address"),
                });
            }
        }
    }
    (addresses, refusal)
}

/// Which addresses of a node are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// The addresses of this type in the node's status.
    InStatus(AddressType),
    /// The floating address in the node's annotation.
    Floating,
}

impl NodeAddress {
    pub(super) fn named(name: &str) -> Result<Self, Refusal> {
        match AddressType::named(name) {
            Some(kind) => Ok(Self::InStatus(kind)),
            None if name == RESERVED_IP_ANNOTATION => Ok(Self::Floating),
            None => Err(Refusal {
                reason: Reason::UnsupportedAddressType,
                message: format!(
                    "addressType {name} is not supported: use ExternalIP, InternalIP or {RESERVED_IP_ANNOTATION}"
                ),
            }),
        }
    }

    /// The addresses of a node that are published.
    pub(crate) fn of(self, node: &Node) -> Arc<[Address]> {
        match self {
            Self::InStatus(kind) => {
                let of_kind = node.addresses.iter().filter(|(found, _)| *found == kind);
                of_kind.map(|(_, address)| *address).collect()
            }
            Self::Floating => {
                let value = node.annotations.get(RESERVED_IP_ANNOTATION);
                value.and_then(|value| value.parse().ok()).into_iter().collect()
            }
        }
    }
}
