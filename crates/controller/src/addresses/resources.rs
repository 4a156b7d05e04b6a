//! Parses our objects into pools for the planner, with one file for each kind.
//!
//! In: an object. Out: [`parsed::Parsed`]: the pool, which nodes and pods it selects, and why it is refused. These
//! files never look at other objects, and never decide what happens to an address.

pub mod floating_ip_pool;
pub mod net_ip_allocation;
pub mod node_dns_record_set;
pub(crate) mod parsed;
mod policy;
mod publication;
pub mod refusal;
pub(crate) mod selector;
pub(crate) mod workload;

use plan::{Mode, PoolKey};

use self::parsed::{Parsed, PodSelection};
use super::kind::Kind;
use super::object::Object;

/// Parses an object. For an object that is being deleted, the controller only finishes moves that have started.
pub(crate) fn parse(object: &Object) -> Parsed {
    let mut parsed = match object {
        Object::Allocation(object) => net_ip_allocation::parse(object),
        Object::Pool(object) => floating_ip_pool::parse(object),
        Object::Records(object) => node_dns_record_set::parse(object),
    };
    parsed.pool.pods_from = parsed.selection.pods.as_ref().map(PodSelection::decided_by).unwrap_or_default();
    let policy = &mut parsed.pool.policy;
    if object.metadata().deletion_timestamp.is_some() && policy.mode != Mode::Refused {
        // In the mode Observe the controller finishes moves that have started, but a deletion detaches nothing.
        policy.detaches_on_delete &= policy.mode == Mode::Active;
        policy.mode = Mode::Leaving;
    }
    parsed
}

/// The name of a kind in a `PoolKey`.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::FloatingIPPools => floating_ip_pool::KIND,
        Kind::NodeDNSRecordSets => node_dns_record_set::KIND,
        _ => net_ip_allocation::KIND,
    }
}

/// The key of an object's pool.
pub fn key_of(object: &Object) -> PoolKey {
    match object {
        Object::Allocation(object) => net_ip_allocation::key(object),
        Object::Pool(object) => floating_ip_pool::key(object),
        Object::Records(object) => node_dns_record_set::key(object),
    }
}
