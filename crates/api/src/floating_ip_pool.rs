//! `FloatingIPPool`: keeps floating addresses on nodes that run matching, Ready pods.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::records::DnsRecordSet;
use crate::selection::Match;
use crate::status::{AddressStatus, Moves, RecordStatus, Summary};

/// Which floating addresses the controller keeps on which nodes.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "flipop.digitalocean.com",
    version = "v1alpha1",
    kind = "FloatingIPPool",
    plural = "floatingippools",
    namespaced,
    status = "FloatingIPPoolStatus",
    derive = "PartialEq",
    doc = "Keeps floating IP addresses on nodes that run matching, Ready pods. Optionally creates addresses and publishes them \
           under a DNS name.",
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Attached", type_ = "integer", json_path = ".status.summary.attached"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.summary.desired"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
    "self.provider != 'digitalocean' || !has(self.desiredIPs) || self.desiredIPs <= (has(self.ips) ? size(self.ips) : 0) || (has(self.region) && size(self.region) > 0)"
).message("creating addresses at DigitalOcean needs a region: set region, or list at least desiredIPs addresses in ips"))]
pub struct FloatingIPPoolSpec {
    /// Provider of the addresses and nodes: `digitalocean`, `gcp`, `aws` or `azure`. With any other value the
    /// controller does nothing for the pool and reports `UnsupportedProvider`.
    pub provider: String,

    /// Region of the addresses and nodes. Default: any region. Required if the controller has to create addresses;
    /// without it, the pool reports `NoRegion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub region: Option<String>,

    /// Number of addresses that the pool should have, at most 1,000. If `ips` lists fewer, the controller creates the
    /// missing ones and adds them to `ips`. If `ips` lists more, the rest stays unused (`Disabled`). Default: 0, which
    /// means as many as `ips` lists.
    #[serde(rename = "desiredIPs", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub desired_ips: Option<i64>,

    /// Addresses of the pool, at most 1,000. Each must exist in the cloud account. The controller adds the addresses
    /// that it creates. If several objects list the same address, the oldest object owns it and the others report
    /// `Conflict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::crds::optional_addresses")]
    pub ips: Option<Vec<String>>,

    /// Minimum time between two assignments of addresses of this pool, in seconds. Fractions are allowed. Default: 0,
    /// no pause. The pause survives a change of leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub assignment_cool_off_seconds: Option<f64>,

    /// DNS name under which the controller publishes the addresses that are on matching nodes. Default: none. If no
    /// address is on a matching node, the name keeps the last ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_record_set: Option<DnsRecordSet>,

    /// Which nodes can get an address. Default: all nodes.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Match>,

    /// Limits and options for moving addresses. Default: the default of each field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

impl FloatingIPPoolSpec {
    /// `desiredIPs`, or none if it is absent or 0. With none, the pool uses all addresses in `ips` and creates none.
    pub fn desired(&self) -> Option<usize> {
        let desired = self.desired_ips.filter(|desired| *desired != 0)?;
        Some(usize::try_from(desired).unwrap_or(0))
    }

    /// `assignmentCoolOffSeconds`, or zero. A value that is too large becomes [`Duration::MAX`]; NaN and negative
    /// values become zero.
    pub fn assignment_cool_off(&self) -> Duration {
        let seconds = self.assignment_cool_off_seconds.unwrap_or(0.0);
        let longest = if seconds > 0.0 { Duration::MAX } else { Duration::ZERO };
        Duration::try_from_secs_f64(seconds).unwrap_or(longest)
    }
}

/// Observed state of the addresses, written by the controller. `ips`, `nodeErrors`, `assignableNodes` and `error` have
/// the same format as in FLIPOP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FloatingIPPoolStatus {
    /// State of each address in the format of FLIPOP, keyed by address. `addresses` has more details. Not updated while
    /// the controller refuses the object, for example because of an unsupported provider.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub ips: BTreeMap<String, IpStatus>,

    /// Names of matching nodes to which the controller recently failed to attach an address, in alphabetical order, at
    /// most 100. It tries them again after a pause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub node_errors: Vec<String>,

    /// Names of matching nodes that could get an address of this pool and hold none of them, in alphabetical order, at
    /// most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub assignable_nodes: Vec<String>,

    /// Error that concerns the whole pool, such as an unsupported provider. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,

    /// Generation of the spec that this status describes. While it is lower than `metadata.generation`, the controller
    /// has not processed the latest change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the object. Exactly one of these types is True. `Ready`: every address is on a node that should
    /// have it, and the DNS name is up to date. `Reconciling`: something is in progress or waits, and the controller
    /// continues without help. `Stalled`: a person has to act. All three have the same message and the same reason,
    /// which is that of the worst address, or of the DNS name if that is worse.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Number of desired and attached addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// State of each address, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub addresses: Vec<AddressStatus>,

    /// Journal of unfinished moves, creations and releases. The controller writes an entry before the first call to the
    /// provider, so the next leader can resume after a crash. Absent if nothing is unfinished. Do not edit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub moves: Option<Moves>,

    /// Mark on the addresses that the controller has created for this pool: a tag, a label, or the name of a project.
    /// Absent until it first creates one with a mark. Once it is set, the controller creates no address while it can't
    /// read marks at the provider, and reports `NoTags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_tag: Option<String>,

    /// When the controller last assigned an address of this pool to a node. `assignmentCoolOffSeconds` counts from this
    /// time, also after a change of leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_assignment: Option<Time>,

    /// The DNS name and what the controller last published. Absent if `spec.dnsRecordSet` is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub dns: Option<RecordStatus>,

    /// With `policy.mode: Observe`: what the controller would do, at most 100 steps. Otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub proposed: Vec<String>,
}

/// State of one address in the format of FLIPOP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IpStatus {
    /// State of the address. `active`: on a matching node. `in-progress`: moving, or waiting for its turn to move.
    /// `no-match`: on a node that does not match. `unassigned`: on no VM, because no node can take it. `disabled`:
    /// beyond `desiredIPs`, or the pool is being deleted. `error`: any other state; see `error`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub state: IpState,

    /// Node that holds the address, if `active`; node that is about to get it, if `in-progress`. Otherwise absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// `spec.providerID` of that node. Present only if `active`.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,

    /// Why the address is in the state `error`, or why no node can take it. Absent if there is nothing to report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// States of an address in FLIPOP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum IpState {
    Active,
    InProgress,
    Error,
    NoMatch,
    #[default]
    Unassigned,
    Disabled,
    #[serde(other)]
    Unknown,
}

impl IpState {
    /// The name of the state in FLIPOP.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::InProgress => "in-progress",
            Self::Error => "error",
            Self::NoMatch => "no-match",
            Self::Unassigned => "unassigned",
            Self::Disabled => "disabled",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: serde_json::Value) -> FloatingIPPoolSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn f1_omitted_fields_have_their_documented_defaults() {
        let ips = ["203.0.113.1", "203.0.113.2"];
        let spec = spec(json!({"provider": "digitalocean", "ips": ips}));
        assert_eq!(spec.desired(), None, "0 or omitted desiredIPs means all ips");
        assert_eq!(spec.assignment_cool_off(), Duration::ZERO);
    }

    #[test]
    fn f1_the_cool_off_may_be_a_fraction() {
        let spec = spec(json!({"provider": "digitalocean", "assignmentCoolOffSeconds": 0.5}));
        assert_eq!(spec.assignment_cool_off(), Duration::from_millis(500));
        let cool_off = |seconds| {
            let assignment_cool_off_seconds = Some(seconds);
            FloatingIPPoolSpec { assignment_cool_off_seconds, ..spec.clone() }.assignment_cool_off()
        };
        assert_eq!([cool_off(1e308), cool_off(1e20), cool_off(f64::INFINITY)], [Duration::MAX; 3]);
        assert_eq!([cool_off(f64::NAN), cool_off(-1.0), cool_off(-1e308)], [Duration::ZERO; 3]);
    }

    #[test]
    fn f1_a_pool_without_a_dns_provider_publishes_at_digitalocean() {
        let spec = spec(json!({
            "provider": "digitalocean",
            "dnsRecordSet": {"recordName": "hello", "zone": "example.com", "ttl": 30},
        }));
        assert_eq!(spec.dns_record_set.unwrap().provider_or(None), "digitalocean");
    }

    #[test]
    fn f11_address_states_have_flipops_names() {
        use IpState::{Active, Disabled, Error, InProgress, NoMatch, Unassigned};
        let names = [Active, InProgress, Error, NoMatch, Unassigned, Disabled].map(|state| {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
            state.name()
        });
        assert_eq!(names, ["active", "in-progress", "error", "no-match", "unassigned", "disabled"]);
    }

    #[test]
    fn f2_without_pod_selectors_pods_do_not_matter() {
        let needs = |value| spec(value).matches.unwrap_or_default().needs_pods();
        assert!(!needs(json!({"provider": "digitalocean"})));
        assert!(!needs(json!({"provider": "digitalocean", "match": {"nodeLabel": "a=b"}})));
        assert!(needs(json!({"provider": "digitalocean", "match": {"podLabel": "app=nginx"}})));
        assert!(needs(json!({"provider": "digitalocean", "match": {"podNamespace": "ingress"}})));
    }
}
