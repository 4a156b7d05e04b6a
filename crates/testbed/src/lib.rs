//! Everything that a test needs besides the controller: a real control plane and name server on loopback, and fake
//! clouds.
//!
//! In: the servers that `just tools` built. Out: a Kubernetes API on free ports, Cluster API on it, a DNS zone that
//! accepts signed updates, and fake clouds that the vendors' own clients can use. All of them stop when the test ends.
//!
//! Nothing here is part of the product. Nothing here replaces Kubernetes: apiserver, etcd, scheduler and
//! controller-manager are the real ones.

pub mod api_proxy;
pub mod audit;
pub mod burst;
pub mod checkpoint;
pub mod cluster;
#[cfg(feature = "cluster-api")]
pub mod cluster_api;
pub mod control_plane;
pub mod demo;
pub mod external_dns;
pub mod fake;
pub mod moto;
pub mod nameserver;
pub mod objects;
pub mod process;
pub mod proxy;
pub mod python;
pub mod spares;
pub mod tools;
