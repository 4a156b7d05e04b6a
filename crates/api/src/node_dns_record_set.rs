//! `NodeDNSRecordSet`: a DNS name that holds the addresses of matching nodes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::records::DnsRecordSet;
use crate::selection::Match;
use crate::status::RecordStatus;

/// The address type where none is named.
pub const ADDRESS_TYPE_DEFAULT: &str = "ExternalIP";

/// Which nodes' addresses a DNS name holds.
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
    doc = "Keeps a DNS name in step with the addresses of matching nodes.",
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
    /// The DNS provider where `dnsRecordSet.provider` does not say. Default: `digitalocean`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,

    /// The DNS name.
    pub dns_record_set: DnsRecordSet,

    /// Which of a node's addresses to publish: `ExternalIP` (the default), `InternalIP`, or
    /// `flipop.digitalocean.com/ipv4-reserved-ip` for the floating address in that annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_type: Option<String>,

    /// Which nodes are published. Omitted: all nodes.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<Match>,
}

impl NodeDNSRecordSetSpec {
    /// The DNS provider to use.
    pub fn dns_provider(&self) -> &str {
        self.dns_record_set.provider_or(self.provider.as_deref())
    }

    /// The address type to publish.
    pub fn address_type(&self) -> &str {
        self.address_type.as_deref().filter(|name| !name.is_empty()).unwrap_or(ADDRESS_TYPE_DEFAULT)
    }
}

/// What the controller knows and did. `state` and `error` are as FLIPOP writes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeDNSRecordSetStatus {
    /// `active`, `in-progress` or `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,

    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,

    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, `Reconciling` and `Stalled`, with one reason. Exactly one of them is True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// What is known of the DNS name.
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
    fn f9_the_provider_is_the_record_sets_then_the_specs_then_digitalocean() {
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
