//! `dnsRecordSet`: the DNS name that follows the addresses.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The DNS provider where none is named.
pub const DEFAULT_DNS_PROVIDER: &str = "digitalocean";

/// A DNS record set that this object keeps in step with its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecordSet {
    /// The DNS provider: `digitalocean` (the default), `cloudflare`, `route53`, `rfc2136` or `external-dns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,

    /// The zone that holds the record, such as `example.com`.
    #[schemars(length(min = 1, max = 253))]
    pub zone: String,

    /// The record's name. One that equals the zone or ends in it is the full name; to any other the zone is appended.
    #[schemars(length(min = 1, max = 253))]
    pub record_name: String,

    /// Seconds that resolvers may keep an answer. Omitted: 60 for a FloatingIPPool, the provider's default for a NodeDNSRecordSet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub ttl: Option<i64>,

    /// Take over an existing record of this name, even though its values are not this object's addresses. Without it, a
    /// record that someone else made is reported and left alone.
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

    /// The provider to use, given what the object says beside its record set.
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
    fn f8_a_name_within_the_zone_is_the_full_name_and_any_other_gets_the_zone_appended() {
        assert_eq!(named("hello"), "hello.example.com");
        assert_eq!(named("nodes.example.com"), "nodes.example.com");
        assert_eq!(named("example.com"), "example.com");
        assert_eq!(named("@"), "example.com");
        assert_eq!(named("notexample.com"), "notexample.com.example.com");
        assert_eq!(named("hello.example.com."), "hello.example.com");
    }
}
