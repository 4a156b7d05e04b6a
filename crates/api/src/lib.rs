//! The custom resources, exactly as users write them, and the definitions generated from them.
//!
//! In: nothing. Out: Rust types for `NetIPAllocation`, `FloatingIPPool` and `NodeDNSRecordSet`, their defaults resolved
//! in code, and their CRDs. This crate never talks to a cluster and never decides anything.
//!
//! Defaults are resolved by methods here and not by the schema, so that `kubectl get -o yaml` shows what a person wrote
//! and a default can differ between two kinds that share a struct. A field that is absent and a field that is empty
//! mean the same thing.
#![allow(clippy::duplicated_attributes, reason = "each printer column of a kind has a type of its own")]

pub mod crds;
pub mod floating_ip_pool;
pub mod net_ip_allocation;
pub mod node_dns_record_set;
pub mod policy;
pub mod records;
pub mod selection;
pub mod status;

pub use floating_ip_pool::{FloatingIPPool, FloatingIPPoolSpec, FloatingIPPoolStatus};
pub use net_ip_allocation::{NetIPAllocation, NetIPAllocationSpec, NetIPAllocationStatus};
pub use node_dns_record_set::{NodeDNSRecordSet, NodeDNSRecordSetSpec, NodeDNSRecordSetStatus};

/// The label a node carries exactly while it holds an address of some `NetIPAllocation`.
pub const IP_READY_LABEL: &str = "ip.ready";

/// The first part of the label that tells of which `NetIPAllocation` a node holds an address; its name is the second.
pub const ALLOCATION_LABEL_PREFIX: &str = "allocation.netinfra.darkbrains.com/";

/// The annotation that tells which floating address a node holds.
pub const RESERVED_IP_ANNOTATION: &str = "flipop.digitalocean.com/ipv4-reserved-ip";

/// The finalizer of an object that must not go yet: something was begun, or its addresses are to be taken off first.
pub const FINALIZER: &str = "netinfra.darkbrains.com/addresses";

/// The most addresses one object may hold, so that its status still fits an object while every address moves.
pub const ADDRESSES_MAX: usize = 1_000;

/// The most characters that the second part of a label's name may have.
const LABEL_NAME_MAX: usize = 63;

/// The label that names a `NetIPAllocation`. A name that is too long for a label is cut and gets a hash of the whole name.
pub fn allocation_label(name: &str) -> String {
    if name.len() <= LABEL_NAME_MAX {
        return format!("{ALLOCATION_LABEL_PREFIX}{name}");
    }
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let number = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    // Names are made of ASCII, so any place is between two characters.
    let beginning = &name[..LABEL_NAME_MAX - 17];
    format!("{ALLOCATION_LABEL_PREFIX}{beginning}-{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n9_a_name_that_is_too_long_for_a_label_is_cut_and_still_tells_two_apart() {
        let long = |end: &str| allocation_label(&format!("{}{end}", "a".repeat(80)));
        let (one, two) = (long("1"), long("2"));
        assert_ne!(one, two);
        assert_eq!(one.strip_prefix(ALLOCATION_LABEL_PREFIX).unwrap().len(), LABEL_NAME_MAX);
        assert_eq!(allocation_label(&"a".repeat(63)), format!("{ALLOCATION_LABEL_PREFIX}{}", "a".repeat(63)));
    }
}
