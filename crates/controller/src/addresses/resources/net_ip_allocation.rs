//! Parses a `NetIPAllocation`.

use std::time::Duration;

use api::NetIPAllocation;
use api::net_ip_allocation::{Provider as At, Workload as WorkloadRef};
use kube::ResourceExt;
use plan::{Pods, Pool, PoolKey, Provider, Scope, Tenancy};

use super::parsed::{Parsed, PodSelection, Selection, created, parse_addresses};
use super::policy::allowed;
use super::selector::Selector;
use super::workload::Workload;
use crate::addresses::codec::{self, losses_confirmed};
use crate::providers::listings::Interval;

/// The name of the kind.
pub const KIND: &str = "NetIPAllocation";

/// The default of `policy.failoverGraceSeconds`.
const FAILOVER_GRACE_DEFAULT: Duration = Duration::from_secs(60);

/// The key of the pool.
pub fn key(object: &NetIPAllocation) -> PoolKey {
    PoolKey { kind: KIND, namespace: "".into(), name: object.name_any().into() }
}

pub(super) fn parse(object: &NetIPAllocation) -> Parsed {
    let spec = &object.spec;
    let provider = match spec.cloud.provider {
        At::Gcp => Provider::Gcp,
        At::Aws => Provider::Aws,
        At::Azure => Provider::Azure,
        At::DigitalOcean => Provider::DigitalOcean,
    };
    let (addresses, refusal) = parse_addresses(&spec.reserved_ips);
    let status = object.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
    let zones = spec.cloud.zones.iter().flatten().map(|zone| zone.as_str().into()).collect();
    let region = spec.cloud.region.as_deref().filter(|region| !region.is_empty()).map(Into::into);
    let mut pool = Pool {
        created: created(object),
        tenancy: Tenancy::UntilDrained,
        region,
        zones,
        losses_confirmed: losses_confirmed(object),
        policy: allowed(spec.policy.as_ref(), FAILOVER_GRACE_DEFAULT, Duration::ZERO),
        ..Pool::new(key(object), Scope { provider, account: "".into() }, addresses)
    };
    codec::remember(&mut pool, status);
    let named = |workload: WorkloadRef| Workload::new(workload.kind, workload.namespace, workload.name);
    let pods = spec.workload().map(|workload| PodSelection::Of(named(workload)));
    let nodes = Selector::of_labels(spec.node_selector.clone().unwrap_or_default());
    let selection =
        Selection { nodes, tolerations: None, pods, pods_if_none_selected: Pods::Absent, publishes: None };
    Parsed {
        pool,
        provider: Some(provider),
        selection,
        refusal,
        record_refusal: None,
        interval: Interval::fixed(spec.reconcile_interval()),
    }
}
