//! A `NetIPAllocation` as a pool.
//!
//! Which pods belong to the workload is not looked up yet (issue 6), and what is not known must not move an address: an
//! allocation that names a workload is treated as if its pods were on every node, so a cordoned node keeps its address.

use std::collections::BTreeSet;
use std::time::Duration;

use api::NetIPAllocation;
use api::net_ip_allocation::Provider as Named;
use kube::ResourceExt;
use plan::{Journal, Pods, Pool, PoolKey, Provider, Scope, Tenancy};

use super::{Front, Who, allowed, created, last_holders, losses_confirmed, parse_addresses};

/// The kind's name.
pub const KIND: &str = "NetIPAllocation";

/// How long a NotReady node keeps its address where the object does not say.
const FAILOVER_GRACE_DEFAULT: Duration = Duration::from_secs(60);

/// The pool's name.
pub fn key(object: &NetIPAllocation) -> PoolKey {
    PoolKey { kind: KIND, namespace: "".into(), name: object.name_any().into() }
}

pub(super) fn front(object: &NetIPAllocation) -> Front {
    let spec = &object.spec;
    let provider = match spec.cloud.provider {
        Named::Gcp => Provider::Gcp,
        Named::Aws => Provider::Aws,
        Named::Azure => Provider::Azure,
        Named::DigitalOcean => Provider::DigitalOcean,
    };
    let (addresses, refusal) = parse_addresses(&spec.reserved_ips);
    let status = object.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
    let zones = spec.cloud.zones.iter().flatten().map(|zone| zone.as_str().into()).collect();
    let region = spec.cloud.region.as_deref().filter(|region| !region.is_empty()).map(Into::into);
    let pool = Pool {
        key: key(object),
        created: created(object),
        scope: Scope { provider, account: "".into() },
        desired: addresses.len(),
        addresses,
        adopted: BTreeSet::new(),
        creates: None,
        created_here: BTreeSet::new(),
        disowned: BTreeSet::new(),
        tenancy: Tenancy::UntilDrained,
        region,
        zones,
        last_holders: last_holders(status),
        last_assignment: None,
        losses_confirmed: losses_confirmed(object),
        journal: Journal::default(),
        creation: None,
        policy: allowed(spec.policy.as_ref(), FAILOVER_GRACE_DEFAULT, Duration::ZERO),
    };
    let pods_otherwise = if spec.workload().is_some() { Pods::Present } else { Pods::Absent };
    let labels = spec.node_selector.clone().unwrap_or_default();
    let who = Who { nodes: labels.into_iter().collect(), tolerations: None, pods: None, pods_otherwise };
    Front { pool, provider: Some(provider), who, refusal, age_max: spec.reconcile_interval() }
}
