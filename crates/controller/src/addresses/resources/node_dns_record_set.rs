//! Parses a `NodeDNSRecordSet` into a pool without addresses, with nodes and a DNS name.

use std::time::Duration;

use api::NodeDNSRecordSet;
use kube::ResourceExt;
use plan::{Pool, PoolKey, Provider, Scope, Source, Tenancy};

use super::parsed::{NodeAddress, Parsed, Selection, created};
use super::publication::publication;
use crate::providers::listings::Interval;

/// The name of the kind.
pub const KIND: &str = "NodeDNSRecordSet";

/// The key of the pool.
pub fn key(object: &NodeDNSRecordSet) -> PoolKey {
    PoolKey {
        kind: KIND,
        namespace: object.namespace().unwrap_or_default().into(),
        name: object.name_any().into(),
    }
}

pub(super) fn parse(object: &NodeDNSRecordSet) -> Parsed {
    let spec = &object.spec;
    let mut refusal = None;
    let mut refuse = |why| refusal = Some(why);
    let present = object.status.as_ref().and_then(|status| status.dns.as_ref());
    let publication = publication(&spec.dns_record_set, spec.dns_provider(), Source::Nodes, present);
    let publication = publication.map_err(&mut refuse).ok();
    let publishes = NodeAddress::named(spec.address_type()).map_err(&mut refuse).ok();
    let matches = spec.matches.clone().unwrap_or_default();
    let needs_pods = matches.needs_pods();
    let selection = Selection::matching(matches, publishes, refuse);
    // This kind has no addresses, so the controller never lists this scope.
    let nowhere = Scope { provider: Provider::DigitalOcean, account: "".into() };
    let pool = Pool {
        created: created(object),
        tenancy: Tenancy::UntilDisplaced { needs_pods },
        publication,
        ..Pool::new(key(object), nowhere, Vec::new())
    };
    Parsed {
        pool,
        provider: None,
        selection,
        refusal,
        record_refusal: None,
        interval: Interval::fixed(Duration::MAX),
    }
}
