//! The real control plane and name server on loopback, and the fake clouds: everything a test needs that is not the
//! controller.
//!
//! In: the servers that `just tools` built. Out: a Kubernetes API on free ports that ends with the test, Cluster API on it, a
//! DNS zone that takes signed updates, and clouds that behave as the vendors' own clients expect. Nothing here is part of
//! the product, and nothing here stands in for Kubernetes: the apiserver, etcd, the scheduler and the controller-manager are
//! the real ones.

pub mod audit;
pub mod burst;
pub mod cluster;
pub mod cluster_api;
pub mod control_plane;
pub mod demo;
pub mod external_dns;
pub mod fake;
pub mod moto;
pub mod nameserver;
pub mod process;
pub mod proxy;
pub mod python;
pub mod tools;
