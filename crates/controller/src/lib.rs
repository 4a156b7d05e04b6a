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
//! | module | verb |
//! |---|---|
//! | [`watch`] | keeps slim copies of what Kubernetes says |
//! | [`clouds`] | keeps what the clouds say, and how old it is |
//! | [`observe`] | turns both into a `World`: plain data |
//! | [`act`] | carries out a plan's steps and tells what became of each |
//! | [`report`] | writes what happened, and nothing that did not |
//! | [`rounds`] | the loop that calls them in this order |

pub mod act;
pub mod clouds;
pub mod health;
pub mod observe;
pub mod report;
pub mod rounds;
pub mod settings;
pub mod watch;
