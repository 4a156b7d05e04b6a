//! Parses the DNS name of an object.

use api::records::DnsRecordSet;
use api::status::RecordStatus;
use plan::{DnsProvider, Publication, Reason, Source};

use super::refusal::Refusal;

/// The DNS name that an object publishes, or why the controller can't publish it. `present` is the DNS name in the
/// status.
pub(super) fn publication(
    records: &DnsRecordSet,
    provider: &str,
    source: Source,
    present: Option<&RecordStatus>,
) -> Result<Publication, Refusal> {
    let known = DnsProvider::ALL.into_iter().find(|known| known.name() == provider);
    let provider = known.ok_or_else(|| Refusal {
        reason: Reason::UnsupportedProvider,
        message: format!("DNS provider {provider} is not supported: use {}", names()),
    })?;
    let records = DnsRecordSet {
        zone: records.zone.to_ascii_lowercase(),
        record_name: records.record_name.to_ascii_lowercase(),
        ..records.clone()
    };
    // As in FLIPOP, `zone` may be the ID of a zone at Cloudflare. The ID is not part of the name, so `recordName` is
    // the full name.
    let is_id = provider == DnsProvider::Cloudflare && is_cloudflare_id(&records.zone);
    let name = if is_id { records.record_name.trim_end_matches('.').to_owned() } else { records.full_name() };
    let zone = records.zone.trim_end_matches('.').to_owned();
    if is_id && !name.contains('.') {
        return Err(Refusal {
            reason: Reason::InvalidName,
            message: format!("if zone is a zone ID, recordName must be the full name, and {name} is not"),
        });
    }
    for name in [&zone, &name] {
        if !is_name(name) {
            return Err(Refusal {
                reason: Reason::InvalidName,
                message: format!(
                    "{name} is not a valid DNS name: use only letters, digits, `.`, `-`, `_` and `*`"
                ),
            });
        }
    }
    Ok(Publication {
        provider,
        zone: zone.into(),
        name: name.into(),
        ttl: records.ttl.and_then(|seconds| u32::try_from(seconds).ok()).filter(|seconds| *seconds > 0),
        adopts: records.adopt.unwrap_or(false),
        source,
        published: present
            .iter()
            .flat_map(|dns| &dns.values)
            .filter_map(|value| value.parse().ok())
            .collect(),
    })
}

/// Whether a text is a DNS name that is safe in the requests of all providers.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte))
}

/// Whether a text is the ID of a zone at Cloudflare.
fn is_cloudflare_id(zone: &str) -> bool {
    zone.len() == 32 && zone.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn names() -> String {
    DnsProvider::ALL.map(DnsProvider::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(zone: &str, name: &str, provider: &str) -> Result<Publication, Refusal> {
        let records = serde_json::from_value(json!({"zone": zone, "recordName": name})).unwrap();
        publication(&records, provider, Source::Addresses, None)
    }

    #[test]
    fn f8_dns_names_are_case_insensitive() {
        let read = read("Example.com", "WWW.example.com", "digitalocean").unwrap();
        assert_eq!((&*read.zone, &*read.name), ("example.com", "www.example.com"));
    }

    #[test]
    fn an_invalid_dns_name_is_refused_before_any_provider_call() {
        for name in ["www.example.com&x=", "www/../other", "a b", "www?type=TXT", "ümlaut"] {
            assert_eq!(
                read("example.com", name, "digitalocean").unwrap_err().reason,
                Reason::InvalidName,
                "{name}"
            );
        }
        assert!(read("example.com", "*.apps", "rfc2136").is_ok());
    }

    #[test]
    fn a_cloudflare_zone_id_is_not_part_of_the_name() {
        let id = "9e3779b97f4a7c15f39cc0605cedc835";
        let read = read(id, "www.example.com", "cloudflare").unwrap();
        assert_eq!((&*read.zone, &*read.name), (id, "www.example.com"));
    }

    #[test]
    fn with_a_cloudflare_zone_id_the_record_name_must_be_full() {
        let id = "9e3779b97f4a7c15f39cc0605cedc835";
        assert_eq!(read(id, "www", "cloudflare").unwrap_err().reason, Reason::InvalidName);
    }
}
