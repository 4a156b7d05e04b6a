//! Parses a `FloatingIPPool`.

use std::time::Duration;

use api::FloatingIPPool;
use kube::ResourceExt;
use plan::{Pool, PoolKey, Provider, Reason, Scope, Source, TAG_PREFIX, Tenancy};

use super::parsed::{Parsed, Selection, created, parse_addresses};
use super::policy::allowed;
use super::publication::publication;
use super::refusal::Refusal;
use crate::addresses::codec::{self, disowned, losses_confirmed, moving_since};
use crate::providers::listings::Interval;

/// The name of the kind.
pub const KIND: &str = "FloatingIPPool";

/// The default of `policy.failoverGraceSeconds`. FLIPOP has no grace period.
const FAILOVER_GRACE_DEFAULT: Duration = Duration::ZERO;

/// How often to list the addresses. It is fixed, because this kind has no `reconcileInterval`.
const INTERVAL: Interval = Interval { busy: Duration::from_secs(60), idle: Duration::from_secs(300) };

/// The default TTL in seconds, as in FLIPOP.
const TTL_DEFAULT: u32 = 60;

/// The key of the pool.
pub fn key(object: &FloatingIPPool) -> PoolKey {
    PoolKey {
        kind: KIND,
        namespace: object.namespace().unwrap_or_default().into(),
        name: object.name_any().into(),
    }
}

pub(super) fn parse(object: &FloatingIPPool) -> Parsed {
    let spec = &object.spec;
    let (addresses, mut refusal) = parse_addresses(spec.ips.as_deref().unwrap_or_default());
    let provider = named(&spec.provider).map_err(|unsupported| refusal = Some(unsupported)).ok();
    let matches = spec.matches.clone().unwrap_or_default();
    let needs_pods = matches.needs_pods();
    let selection = Selection::matching(matches, None, |invalid| refusal = Some(invalid));
    let mut record_refusal = None;
    let publication = spec.dns_record_set.as_ref().and_then(|records| {
        let present = object.status.as_ref().and_then(|status| status.dns.as_ref());
        let read = publication(records, records.provider_or(None), Source::Addresses, present);
        let mut read = read.map_err(|why| record_refusal = Some(why)).ok()?;
        read.ttl = read.ttl.or(Some(TTL_DEFAULT));
        Some(read)
    });
    let status = object.status.as_ref();
    let addresses_status = status.map(|status| status.addresses.as_slice()).unwrap_or_default();
    let journal = status.and_then(|status| status.moves.as_ref()).map(|moves| moves.entries.as_slice());
    let journal = journal.unwrap_or_default();
    let scope = Scope { provider: provider.unwrap_or(Provider::DigitalOcean), account: "".into() };
    let tag = object.uid().map(|uid| format!("{TAG_PREFIX}{uid}"));
    let tag_used = status.and_then(|status| status.creation_tag.as_ref());
    let mut pool = Pool {
        created: created(object),
        desired: spec.desired().unwrap_or(addresses.len()),
        is_tag_used: tag_used.is_some() && tag_used == tag.as_ref(),
        creates: tag.map(Into::into),
        disowned: disowned(object),
        tenancy: Tenancy::UntilDisplaced { needs_pods },
        region: spec.region.as_deref().filter(|region| !region.is_empty()).map(Into::into),
        last_assignment: status.and_then(|status| status.last_assignment.as_ref()).map(|time| time.0),
        moving_since: moving_since(journal),
        publication,
        losses_confirmed: losses_confirmed(object),
        policy: allowed(spec.policy.as_ref(), FAILOVER_GRACE_DEFAULT, spec.assignment_cool_off()),
        ..Pool::new(key(object), scope, addresses)
    };
    codec::remember(&mut pool, addresses_status);
    Parsed { pool, provider, selection, refusal, record_refusal, interval: INTERVAL }
}

fn named(provider: &str) -> Result<Provider, Refusal> {
    match provider {
        "digitalocean" => Ok(Provider::DigitalOcean),
        "gcp" => Ok(Provider::Gcp),
        "aws" => Ok(Provider::Aws),
        "azure" => Ok(Provider::Azure),
        other => Err(Refusal {
            reason: Reason::UnsupportedProvider,
            message: format!(
                "provider {other} has no floating addresses: use digitalocean, gcp, aws or azure"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f10_a_provider_without_floating_addresses_is_refused() {
        assert_eq!(named("cloudflare").unwrap_err().reason, Reason::UnsupportedProvider);
        assert_eq!(named("digitalocean").unwrap(), Provider::DigitalOcean);
    }

    #[test]
    fn a_failed_move_keeps_the_start_time_of_its_journal_entry() {
        let entry = serde_json::json!({
            "id": "m", "address": "192.0.2.1", "step": "attach", "epoch": 1, "startedAt": "2026-01-10T02:14:07Z",
        });
        let object = serde_json::json!({
            "apiVersion": "flipop.digitalocean.com/v1alpha1", "kind": "FloatingIPPool",
            "metadata": {"name": "pool", "uid": "u1"}, "spec": {"provider": "digitalocean", "ips": ["192.0.2.1"]},
            "status": {
                "addresses": [{"address": "192.0.2.1", "state": "Unknown", "since": "2026-01-10T02:20:00Z"}],
                "moves": {"version": 1, "epoch": 1, "entries": [entry]},
            },
        });
        let pool = parse(&serde_json::from_value(object).unwrap()).pool;
        let since = pool.moving_since[&"192.0.2.1".parse().unwrap()];
        assert_eq!(since.to_string(), "2026-01-10T02:14:07Z");
    }

    #[test]
    fn with_desired_ips_zero_created_addresses_are_still_found() {
        let object = serde_json::json!({
            "apiVersion": "flipop.digitalocean.com/v1alpha1", "kind": "FloatingIPPool",
            "metadata": {"name": "pool", "uid": "u1"}, "spec": {"provider": "digitalocean", "desiredIPs": 0},
        });
        assert_eq!(
            parse(&serde_json::from_value(object).unwrap()).pool.creates.as_deref(),
            Some("ip-address-controller-u1")
        );
    }
}
