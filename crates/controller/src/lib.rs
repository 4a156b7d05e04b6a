//! Watch, observe, plan, act, report: where Kubernetes, the planner and the clouds meet.
//!
//! In: a Kubernetes client and the clouds' drivers. Out: addresses where workloads need them, and nodes and objects that
//! say so. Decisions are made in the `plan` crate and nowhere here.
//!
//! ```text
//! watch ──▶ observe ──▶ plan ──▶ act ──▶ report
//!  kube      facts      pure     clouds   status, labels, annotations
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`watch`] | tells what changed in Kubernetes |
//! | [`decode`] | decodes objects one by one, so that a broken one stops no other |
//! | [`clouds`] | asks the clouds, and tells what they said |
//! | [`observe`] | keeps both as a `World`: plain data |
//! | [`act`] | carries out calls, and tells what became of each |
//! | [`backoff`] | tells when to try again what failed |
//! | [`report`] | writes journals, status and marks |
//! | [`rounds`] | the loop that calls them in this order |
//! | [`vips`] | the same five for VIPs of Cluster API's Clusters |
//! | [`runtime_extension`] | answers Cluster API's hooks with what `vips` knows |
//! | [`metrics`], [`health`] | what Prometheus and probes are told |
//! | [`logs`] | what is logged, without credentials |
//! | [`lease`], [`fence`] | who may act, and until when |
//! | [`run`] | puts them together |

pub mod act;
pub mod backoff;
pub mod bind_address;
pub mod clock;
pub mod clouds;
pub mod decode;
mod external_dns;
#[cfg(feature = "failpoints")]
pub mod failpoints;
pub mod fence;
pub mod health;
pub mod lease;
pub mod logs;
mod metered;
pub mod metrics;
pub mod observe;
pub mod report;
pub mod rounds;
pub mod run;
pub mod runtime_extension;
pub mod settings;
pub mod tasks;
pub mod vips;
pub mod watch;
