//! Pure decisions: what should happen, given what is known.
//!
//! In: a [`World`], which is plain data about pools, nodes and addresses, and the present time. Out: a [`Plan`], which is
//! the steps to take, the reason for everything not done, and when to ask again. The same world always gives the same
//! plan. Nothing here waits, logs, reads a clock, draws a random number, or knows of Kubernetes or a network; the crate's
//! manifest is what makes that impossible.
//!
//! ```
//! use plan::{World, plan};
//!
//! let nothing_known = World::default();
//! assert_eq!(plan(&nothing_known, plan::Timestamp::UNIX_EPOCH).to_string(), "");
//! ```

mod names;
mod placement;
mod planner;
mod standing;
mod steps;
mod world;

pub use jiff::Timestamp;
pub use names::{Address, NodeName, PoolKey, Provider, Scope, VmId};
pub use planner::plan;
pub use standing::{Standing, Why};
pub use steps::{Plan, Step, Verdict};
pub use world::{Fact, Holding, Mode, Node, Pods, Policy, Pool, Readiness, Takeover, Tenancy, World};
