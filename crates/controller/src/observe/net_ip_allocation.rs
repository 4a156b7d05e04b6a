//! A `NetIPAllocation` as a pool.
//!
//! Which pods belong to the workload is not looked up yet (issue 6), and what is not known must not move an address: an
//! allocation that names a workload is treated as if its pods were on every node, so a cordoned node keeps its address.

use std::time::Duration;

use api::NetIPAllocation;
use api::net_ip_allocation::Provider as Named;
use kube::ResourceExt;
use plan::{Pods, Pool, PoolKey, Provider, Tenancy};

use super::{Cluster, Refusal, allowed, created, last_holders, machine, parse_addresses};

/// How long a NotReady node keeps its address where the object does not say.
const FAILOVER_GRACE_DEFAULT: Duration = Duration::from_secs(60);

/// The pool's name.
pub fn key(object: &NetIPAllocation) -> PoolKey {
    PoolKey { kind: "NetIPAllocation", namespace: String::new(), name: object.name_any() }
}

/// The pool, or why there is none.
pub fn pool(object: &NetIPAllocation, cluster: &Cluster) -> Result<Pool, Refusal> {
    let spec = &object.spec;
    let provider = match spec.cloud.provider {
        Named::Gcp => Provider::Gcp,
        Named::Aws => Provider::Aws,
        Named::Azure => Provider::Azure,
        Named::DigitalOcean => Provider::DigitalOcean,
    };
    let addresses = parse_addresses(&spec.reserved_ips)?;
    let status = object.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
    let last_holders = last_holders(status);
    let scope = cluster.scope(provider, &last_holders)?;
    let selector = spec.node_selector.clone().unwrap_or_default();
    let pods = if spec.workload().is_some() { Pods::Present } else { Pods::Absent };
    let members = cluster.nodes.iter().filter(|(_, node)| {
        let is_selected = selector.iter().all(|(name, value)| node.labels().get(name) == Some(value));
        is_selected && machine(node).is_some_and(|(of_node, _)| of_node == scope)
    });
    Ok(Pool {
        key: key(object),
        created: created(object),
        desired: addresses.len(),
        addresses,
        members: members.map(|(name, _)| (name.clone(), pods)).collect(),
        tenancy: Tenancy::UntilDrained,
        region: spec.cloud.region.clone().filter(|region| !region.is_empty()),
        zones: spec.cloud.zones.clone().unwrap_or_default(),
        last_holders,
        policy: allowed(spec.policy.as_ref(), FAILOVER_GRACE_DEFAULT),
        scope,
    })
}
