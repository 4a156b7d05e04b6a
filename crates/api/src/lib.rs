//! The custom resources `NetIPAllocation`, `FloatingIPPool` and `NodeDNSRecordSet`, and their CRDs.
//!
//! In: nothing. Out: Rust types for the three kinds, methods that resolve the defaults, and the CRDs that are generated
//! from the types. This crate never talks to a cluster and makes no decisions.
//!
//! The schema sets no defaults; methods of this crate and the controller resolve them. So `kubectl get -o yaml` shows
//! only what the user wrote, and two kinds that share a struct can have different defaults. An absent field and an
//! empty field mean the same.
//!
//! The doc comment of a field is its description in the CRD, which `kubectl explain` prints.
#![allow(clippy::duplicated_attributes, reason = "several printer columns have the same `type_`")]

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

/// Label of a node while it holds an address of any `NetIPAllocation`.
pub const IP_READY_LABEL: &str = "ip.ready";

/// Prefix of the label that names the `NetIPAllocation` whose address a node holds. [`allocation_label`] appends the
/// name.
pub const ALLOCATION_LABEL_PREFIX: &str = "allocation.netinfra.darkbrains.com/";

/// Annotation of a node with the floating address that it holds.
pub const RESERVED_IP_ANNOTATION: &str = "flipop.digitalocean.com/ipv4-reserved-ip";

/// Finalizer of an object while a move is unfinished, or while the controller must detach its addresses before it is
/// deleted.
pub const FINALIZER: &str = "netinfra.darkbrains.com/addresses";

/// Maximum number of addresses of one object. Its status must fit into etcd even while every address is moving.
pub const ADDRESSES_MAX: usize = 1_000;

/// Maximum length of the part of a label key after the slash.
const LABEL_NAME_MAX: usize = 63;

/// The label key for a `NetIPAllocation`. A name that is too long for a label key is shortened, and a hash of the whole
/// name is appended.
pub fn allocation_label(name: &str) -> String {
    if name.len() <= LABEL_NAME_MAX {
        return format!("{ALLOCATION_LABEL_PREFIX}{name}");
    }
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let number = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    // Object names are ASCII, so every index is a character boundary.
    let beginning = &name[..LABEL_NAME_MAX - 17];
    format!("{ALLOCATION_LABEL_PREFIX}{beginning}-{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n9_long_names_are_shortened_to_distinct_label_keys() {
        let long = |end: &str| allocation_label(&format!("{}{end}", "a".repeat(80)));
        let (one, two) = (long("1"), long("2"));
        assert_ne!(one, two);
        assert_eq!(one.strip_prefix(ALLOCATION_LABEL_PREFIX).unwrap().len(), LABEL_NAME_MAX);
        assert_eq!(allocation_label(&"a".repeat(63)), format!("{ALLOCATION_LABEL_PREFIX}{}", "a".repeat(63)));
    }
}
