//! `NodeDNSRecordSet`: publishes the addresses of matching nodes under a DNS name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::records::DnsRecordSet;
use crate::selection::Match;
use crate::status::RecordStatus;

/// Default of `addressType`.
pub const ADDRESS_TYPE_DEFAULT: &str = "ExternalIP";

/// Which addresses of which nodes the controller publishes, and under which DNS name.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "flipop.digitalocean.com",
    version = "v1alpha1",
    kind = "NodeDNSRecordSet",
    plural = "nodednsrecordsets",
    shortname = "nodedns",
    namespaced,
    status = "NodeDNSRecordSetStatus",
    derive = "PartialEq",
    doc = "Publishes the addresses of matching, Ready nodes under a DNS name and keeps the records up to date.",
    printcolumn(name = "Zone", type_ = "string", json_path = ".spec.dnsRecordSet.zone"),
    printcolumn(name = "Record", type_ = "string", json_path = ".spec.dnsRecordSet.recordName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeDNSRecordSetSpec {
    /// DNS provider if `dnsRecordSet.provider` is not set. Default: `digitalocean`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,

    /// DNS name and DNS provider.
    pub dns_record_set: DnsRecordSet,

    /// Which address of a node to publish. `ExternalIP` or `InternalIP`: the addresses of that type in the status of
    /// the node. `flipop.digitalocean.com/ipv4-reserved-ip`: the floating address in that annotation of the node.
    /// Default: `ExternalIP`. With any other value the controller publishes nothing and reports
    /// `UnsupportedAddressType`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_type: Option<String>,

    /// Which nodes to publish. Only Ready nodes are published. Default: all nodes. If no address is left, the name
    /// keeps the last ones.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Match>,
}

impl NodeDNSRecordSetSpec {
    /// The DNS provider, with defaults resolved.
    pub fn dns_provider(&self) -> &str {
        self.dns_record_set.provider_or(self.provider.as_deref())
    }

    /// `addressType`, or its default.
    pub fn address_type(&self) -> &str {
        self.address_type.as_deref().filter(|name| !name.is_empty()).unwrap_or(ADDRESS_TYPE_DEFAULT)
    }
}

/// Observed state of the DNS name, written by the controller. `state` and `error` have the same format as in FLIPOP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDNSRecordSetStatus {
    /// State of the DNS name. `active`: it contains the right addresses. `in-progress`: the controller is reading or
    /// writing it, or waits for an address. `error`: see `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,

    /// Message of the failure. Present only in the state `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,

    /// Generation of the spec that this status describes. While it is lower than `metadata.generation`, the controller
    /// has not processed the latest change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the object. Exactly one of these types is True. `Ready`: the DNS name contains the right
    /// addresses. `Reconciling`: the controller is working, waiting or retrying, and continues without help. `Stalled`:
    /// a person has to act. All three have the same reason and message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// The DNS name and what the controller last published.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = StructMerge::Atomic)]
    pub dns: Option<RecordStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(provider: serde_json::Value, within: serde_json::Value) -> NodeDNSRecordSetSpec {
        let records = json!({"zone": "example.com", "recordName": "nodes", "provider": within});
        serde_json::from_value(json!({"provider": provider, "dnsRecordSet": records})).unwrap()
    }

    #[test]
    fn f9_the_provider_of_the_record_set_overrides_that_of_the_spec() {
        let null = serde_json::Value::Null;
        assert_eq!(spec(json!("cloudflare"), json!("rfc2136")).dns_provider(), "rfc2136");
        assert_eq!(spec(json!("cloudflare"), null.clone()).dns_provider(), "cloudflare");
        assert_eq!(spec(json!("cloudflare"), json!("")).dns_provider(), "cloudflare");
        assert_eq!(spec(null.clone(), null).dns_provider(), "digitalocean");
    }

    #[test]
    fn f7_the_address_type_defaults_to_external_ip() {
        let null = serde_json::Value::Null;
        assert_eq!(spec(null.clone(), null).address_type(), "ExternalIP");
    }
}
