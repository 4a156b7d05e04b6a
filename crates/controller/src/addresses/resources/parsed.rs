//! What a resource means: its pool, and which nodes and pods it selects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::RESERVED_IP_ANNOTATION;
use api::node_dns_record_set::ADDRESS_TYPE_DEFAULT;
use api::selection::Match;
use kube::ResourceExt;
use kube::core::Selector;
use plan::{Address, Pods, Pool, Provider, Reason, Timestamp};

use super::refusal::Refusal;
use super::selector;
use super::workload::Workload;
use crate::addresses::watch::SlimNode;

/// Which nodes an object means.
pub(crate) struct Who {
    pub(crate) nodes: Selector,
    /// Taints that are tolerated; without a list, taints don't matter.
    pub(crate) tolerations: Option<Vec<k8s_openapi::api::core::v1::Toleration>>,
    pub(crate) pods: Option<PodsMeant>,
    /// How pods fare where none are looked for.
    pub(crate) pods_otherwise: Pods,
    /// Which of the nodes' own addresses are published, if any.
    pub(crate) publishes: Option<NodeAddress>,
}

impl Who {
    /// Those that a `match` means. What of it can't be read is told to `refuse`.
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
        let pods = matches.needs_pods().then(|| PodsMeant::Labelled {
            namespace: matches.pod_namespace.clone().filter(|namespace| !namespace.is_empty()),
            labels: read(matches.pod_label.as_deref()),
        });
        let tolerations = Some(matches.tolerations.unwrap_or_default());
        Self { nodes, tolerations, pods, pods_otherwise: Pods::Ready, publishes }
    }
}

/// Which pods an object means.
pub(crate) enum PodsMeant {
    /// Those with these labels, in this namespace or in all.
    Labelled { namespace: Option<String>, labels: Selector },
    /// Those of a workload.
    Of(Workload),
}

impl PodsMeant {}

/// What a front end makes of an object, but for what depends on nodes.
pub(crate) struct Parsed {
    pub(crate) pool: Pool,
    pub(crate) provider: Option<Provider>,
    pub(crate) who: Who,
    pub(crate) refusal: Option<Refusal>,
    pub(crate) record_refusal: Option<Refusal>,
    pub(crate) age_max: Duration,
}

/// When an object was created.
pub(crate) fn created(object: &impl ResourceExt) -> Timestamp {
    object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// The addresses that a user listed, each once. The apiserver has checked them, but a CRD of another version may not have.
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

/// Which of a node's addresses are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// Those of this type in its status.
    InStatus(&'static str),
    /// The floating one in its annotation.
    Floating,
}

impl NodeAddress {
    pub(super) fn named(name: &str) -> Result<Self, Refusal> {
        match name {
            ADDRESS_TYPE_DEFAULT => Ok(Self::InStatus(ADDRESS_TYPE_DEFAULT)),
            "InternalIP" => Ok(Self::InStatus("InternalIP")),
            RESERVED_IP_ANNOTATION => Ok(Self::Floating),
            other => Err(Refusal {
                reason: Reason::UnsupportedAddressType,
                message: format!(
                    "addressType {other} is not known: use ExternalIP, InternalIP or {RESERVED_IP_ANNOTATION}"
                ),
            }),
        }
    }

    /// Those addresses of a node.
    pub(crate) fn of(self, node: &SlimNode) -> Arc<[Address]> {
        let of_status = |kind: &str| {
            let told = node.status.addresses.iter().filter(|address| address.kind == kind);
            told.filter_map(|told| told.address.parse().ok()).collect()
        };
        match self {
            Self::InStatus(kind) => of_status(kind),
            Self::Floating => {
                let told = node.annotations().get(RESERVED_IP_ANNOTATION);
                told.and_then(|told| told.parse().ok()).into_iter().collect()
            }
        }
    }
}
