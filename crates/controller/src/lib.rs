//! Watch, observe, plan, act, report: where Kubernetes, the planner and the clouds meet.
//!
//! In: a Kubernetes client and the clouds' drivers. Out: addresses where workloads need them, and nodes and objects that
//! report it. Decisions are made in the `plan` crate and nowhere here.
//!
//! ```text
//! watch ──▶ observe ──▶ plan ──▶ act ──▶ report
//!  kube      facts      pure     clouds   status, labels, annotations
//! ```
//!
//! From the ground up: a file imports only from its own folder and from rows above it.
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`], [`tasks`], [`backoff`], [`logs`], [`bind_address`] | flags and environment as plain data; tasks; when to retry |
//! | [`leadership`] | who may act, and until when |
//! | [`metrics`] | the registry, and the metrics of the process |
//! | [`kubernetes`] | watches, decoding, Events, conditions |
//! | [`providers`] | drivers from settings, listings, metrics about calls |
//! | [`addresses`] | public addresses and DNS names |
//! | [`vips`] | VIPs of Cluster API's Clusters |
//! | [`health`], [`runtime`] | probes; puts the parts together |

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
pub mod runtime;
pub mod settings;
pub mod tasks;
pub mod vips;
