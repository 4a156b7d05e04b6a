//! What an object says of its name in DNS, as the planner sees it.

use api::records::DnsRecordSet;
use api::status::RecordStatus;
use plan::{DnsProvider, Publication, Reason, Source};

use super::refusal::Refusal;

/// The name that an object publishes, or why it can't be.
pub(super) fn publication(
    records: &DnsRecordSet,
    provider: &str,
    source: Source,
    told: Option<&RecordStatus>,
) -> Result<Publication, Refusal> {
    let known = DnsProvider::ALL.into_iter().find(|known| known.name() == provider);
    let provider = known.ok_or_else(|| Refusal {
        reason: Reason::UnsupportedProvider,
        message: format!("{provider} publishes no names: use {}", names()),
    })?;
    let records = DnsRecordSet {
        zone: records.zone.to_ascii_lowercase(),
        record_name: records.record_name.to_ascii_lowercase(),
        ..records.clone()
    };
    // FLIPOP takes a zone's id at Cloudflare. An id is no part of a name, so the record's name is the full one then.
    let is_id = provider == DnsProvider::Cloudflare && is_cloudflare_id(&records.zone);
    let name = if is_id { records.record_name.trim_end_matches('.').to_owned() } else { records.full_name() };
    let zone = records.zone.trim_end_matches('.').to_owned();
    if is_id && !name.contains('.') {
        return Err(Refusal {
            reason: Reason::InvalidName,
            message: format!("with the zone's ID, recordName has to be the full name, and {name} is not one"),
        });
    }
    for name in [&zone, &name] {
        if !is_name(name) {
            return Err(Refusal {
                reason: Reason::InvalidName,
                message: format!(
                    "{name} is no name in DNS: letters, digits, dots, `-`, `_` and `*` make one"
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
        published: told.iter().flat_map(|told| &told.values).filter_map(|value| value.parse().ok()).collect(),
    })
}

/// Whether a text is a name that means the same to every provider, wherever it is put.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte))
}

/// Whether a zone is named by the id that Cloudflare gave it.
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
    fn f8_names_are_compared_without_regard_to_case() {
        let read = read("Example.com", "WWW.example.com", "digitalocean").unwrap();
        assert_eq!((&*read.zone, &*read.name), ("example.com", "www.example.com"));
    }

    #[test]
    fn what_is_no_name_is_refused_before_it_reaches_a_provider() {
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
    fn a_zones_id_at_cloudflare_is_no_part_of_the_name() {
        let id = "9e3779b97f4a7c15f39cc0605cedc835";
        let read = read(id, "www.example.com", "cloudflare").unwrap();
        assert_eq!((&*read.zone, &*read.name), (id, "www.example.com"));
    }

    #[test]
    fn with_a_zones_id_at_cloudflare_only_a_full_name_is_one() {
        let id = "9e3779b97f4a7c15f39cc0605cedc835";
        assert_eq!(read(id, "www", "cloudflare").unwrap_err().reason, Reason::InvalidName);
    }
}
