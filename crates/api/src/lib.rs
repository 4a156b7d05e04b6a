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
