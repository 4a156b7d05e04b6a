//! The controller: it connects Kubernetes, the planner and the providers.
//!
//! In: a Kubernetes client and the drivers of the providers. Out: addresses on the nodes that need them, and the status
//! of nodes and objects. This crate never decides what happens to an address: the `plan` crate does.
//!
//! ```text
//! watch ──▶ observe ──▶ plan ──▶ act ──▶ report
//!  kube      facts      pure     clouds   status, labels, annotations
//! ```
//!
//! A file imports only from its own folder and from the rows above it.
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`], [`tasks`], [`backoff`], [`logs`], [`bind_address`] | flags and environment as plain data; tasks; when to retry |
//! | [`pulse`] | whether a loop still runs |
//! | [`leadership`] | Lease, fence, clock |
//! | [`metrics`] | the registry and the metrics of the process |
//! | [`kubernetes`] | watches, decoding, Events, conditions |
//! | [`providers`] | builds the drivers, lists addresses, metrics about calls |
//! | [`reconciler`] | the loop of addresses and VIPs |
//! | [`addresses`] | public addresses and DNS names |
//! | [`vips`] | VIPs for Cluster API |
//! | [`health`], [`runtime`] | probes; starts and connects all parts |

pub mod addresses;
pub mod backoff;
pub mod bind_address;
#[cfg(feature = "failpoints")]
pub mod failpoints;
pub mod health;
pub mod kubernetes;
pub mod leadership;
pub mod logs;
pub mod metrics;
pub mod providers;
pub mod pulse;
pub mod reconciler;
pub mod runtime;
pub mod settings;
pub mod tasks;
pub mod vips;
