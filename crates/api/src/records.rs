//! `dnsRecordSet`: the DNS name under which an object publishes its addresses.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The default DNS provider.
pub const DEFAULT_DNS_PROVIDER: &str = "digitalocean";

/// The DNS name under which the controller publishes the addresses of the object: IPv4 as A records, IPv6 as AAAA
/// records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecordSet {
    /// DNS provider: `digitalocean`, `cloudflare`, `route53`, `rfc2136` or `external-dns`. With any other value the
    /// controller publishes nothing and reports `UnsupportedProvider`. Default: `spec.provider` for a NodeDNSRecordSet
    /// that sets it, otherwise `digitalocean`. After a change, the records at the old provider stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,

    /// DNS zone of the record, such as `example.com`. At `cloudflare`, the ID of the zone also works; `recordName` must
    /// then be the full name.
    #[schemars(length(min = 1, max = 253))]
    pub zone: String,

    /// Name of the record. If it equals `zone` or ends in it, it is the full name. Otherwise the controller appends the
    /// zone: in the zone `example.com`, `hello` and `hello.example.com` are the same name, and `@` is the zone itself.
    /// After a change, the records under the old name stay.
    #[schemars(length(min = 1, max = 253))]
    pub record_name: String,

    /// TTL of the records in seconds: how long resolvers may cache an answer. Default, also for 0: 60 for a
    /// FloatingIPPool, the provider's default for a NodeDNSRecordSet (300 at `route53` and `rfc2136`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub ttl: Option<i64>,

    /// Whether the controller takes over existing records of this name that it did not create, and replaces their
    /// values. Records that are marked with another owner ID stay unchanged in any case. Default: false. The controller
    /// then changes no foreign records and reports `RecordNotOurs`, unless all of their values are addresses of this
    /// object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopt: Option<bool>,
}

impl DnsRecordSet {
    /// The record's full name, without a trailing dot.
    pub fn full_name(&self) -> String {
        let zone = self.zone.trim_end_matches('.');
        let name = self.record_name.trim_end_matches('.');
        if name == zone || name.ends_with(&format!(".{zone}")) {
            name.to_owned()
        } else if name == "@" {
            zone.to_owned()
        } else {
            format!("{name}.{zone}")
        }
    }

    /// `provider`, or else `fallback`, or else [`DEFAULT_DNS_PROVIDER`].
    pub fn provider_or<'a>(&'a self, fallback: Option<&'a str>) -> &'a str {
        [self.provider.as_deref(), fallback]
            .into_iter()
            .flatten()
            .find(|name| !name.is_empty())
            .unwrap_or(DEFAULT_DNS_PROVIDER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(record_name: &str) -> String {
        let records = DnsRecordSet {
            provider: None,
            zone: "example.com".into(),
            record_name: record_name.into(),
            ttl: None,
            adopt: None,
        };
        records.full_name()
    }

    #[test]
    fn f8_the_zone_is_appended_to_names_outside_of_it() {
        assert_eq!(named("hello"), "hello.example.com");
        assert_eq!(named("nodes.example.com"), "nodes.example.com");
        assert_eq!(named("example.com"), "example.com");
        assert_eq!(named("@"), "example.com");
        assert_eq!(named("notexample.com"), "notexample.com.example.com");
        assert_eq!(named("hello.example.com."), "hello.example.com");
    }
}
