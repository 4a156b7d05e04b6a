//! `FloatingIPPool`: floating addresses for the nodes that run matching, healthy pods.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::records::DnsRecordSet;
use crate::selection::Match;
use crate::status::{AddressStatus, Moves, RecordStatus, Summary};

/// Which floating addresses go to which nodes.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "flipop.digitalocean.com",
    version = "v1alpha1",
    kind = "FloatingIPPool",
    plural = "floatingippools",
    namespaced,
    status = "FloatingIPPoolStatus",
    derive = "PartialEq",
    doc = "Gives floating IP addresses to nodes that run matching, healthy pods, and keeps a DNS name in step with them.",
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
).message("creating addresses at DigitalOcean needs a region: set region, or list as many ips as desiredIPs"))]
pub struct FloatingIPPoolSpec {
    /// The provider of the addresses and nodes: `digitalocean`, `gcp`, `aws` or `azure`.
    pub provider: String,

    /// The region of the addresses and nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub region: Option<String>,

    /// How many addresses there should be. Those missing from `ips` are created and added there. 0 or omitted: as many as
    /// `ips` lists.
    #[serde(rename = "desiredIPs", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub desired_ips: Option<i64>,

    /// Existing addresses to use; at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::crds::optional_addresses")]
    pub ips: Option<Vec<String>>,

    /// Seconds to wait between two assignments; fractions are allowed. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub assignment_cool_off_seconds: Option<f64>,

    /// A DNS name that always holds the addresses that are on matching nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_record_set: Option<DnsRecordSet>,

    /// Which nodes may hold an address. Omitted: all nodes.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Match>,

    /// How addresses may be moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

impl FloatingIPPoolSpec {
    /// How many addresses there should be, where the object says so; otherwise all that it lists, and none is created.
    pub fn desired(&self) -> Option<usize> {
        let desired = self.desired_ips.filter(|desired| *desired != 0)?;
        Some(usize::try_from(desired).unwrap_or(0))
    }

    /// How long to wait between two assignments. More than a duration can hold is the longest one; what is no number, or less
    /// than nothing, is none.
    pub fn assignment_cool_off(&self) -> Duration {
        let seconds = self.assignment_cool_off_seconds.unwrap_or(0.0);
        let longest = if seconds > 0.0 { Duration::MAX } else { Duration::ZERO };
        Duration::try_from_secs_f64(seconds).unwrap_or(longest)
    }
}

/// What the controller knows and did. `ips`, `nodeErrors`, `assignableNodes` and `error` are as FLIPOP writes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FloatingIPPoolStatus {
    /// Each address and where it stands, as FLIPOP writes it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub ips: BTreeMap<String, IpStatus>,

    /// Nodes that match and refused an address lately, by name; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub node_errors: Vec<String>,

    /// Nodes that could get an address of the pool and have none of it, by name; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub assignable_nodes: Vec<String>,

    /// What is wrong with the pool as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,

    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, `Reconciling` and `Stalled`, with one reason. Exactly one of them is True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Counts of addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,

    /// Every address and where it stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub addresses: Vec<AddressStatus>,

    /// The journal of unfinished moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub moves: Option<Moves>,

    /// The tag that addresses were created with. From then on none is created while tags can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_tag: Option<String>,

    /// When an address was last assigned, so that the cool-off survives a change of leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_assignment: Option<Time>,

    /// What is known of the DNS name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub dns: Option<RecordStatus>,

    /// With `policy.mode: Observe`, the steps that would be taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub proposed: Vec<String>,
}

/// Where one address stands, as FLIPOP writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IpStatus {
    /// `active`, `in-progress`, `error`, `no-match`, `unassigned` or `disabled`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub state: IpState,

    /// The node that holds the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// The node's providerID.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,

    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// FLIPOP's address states.
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
    /// The state as FLIPOP writes it.
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
    fn f11_states_are_told_in_flipops_words() {
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
