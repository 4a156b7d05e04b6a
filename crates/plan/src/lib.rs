//! Pure decisions: what the controller should do, given what it knows.
//!
//! In: a [`World`], which is plain data about pools, nodes and addresses, and the present time. Out: a [`Plan`]: the
//! steps to take, a verdict for everything else, and when to plan again. The same world always gives the same plan.
//! Nothing here waits, logs, reads a clock, draws a random number, or uses Kubernetes or a network. The crate's
//! manifest has no dependency that could.
//!
//! ```
//! use plan::{World, plan};
//!
//! let nothing_known = World::default();
//! assert_eq!(plan(&nothing_known, plan::Timestamp::UNIX_EPOCH).to_string(), "");
//! ```

/// Whether this defect is switched on, to test that the simulator finds it. Never in a release.
#[cfg(feature = "sabotage")]
#[macro_export]
macro_rules! sabotaged {
    ($what:ident) => {
        $crate::sabotage::is($crate::sabotage::Sabotage::$what)
    };
}

/// Whether this defect is switched on, to test that the simulator finds it. Never in a release.
#[cfg(not(feature = "sabotage"))]
#[macro_export]
macro_rules! sabotaged {
    ($what:ident) => {
        false
    };
}

mod account;
mod bits;
mod creation;
mod evictions;
mod facts;
mod journal;
mod kinds;
pub mod leadership;
mod losses;
mod member;
mod moves;
mod names;
mod ownership;
mod placement;
mod planner;
mod pool;
mod possible_holders;
mod reasons;
mod record;
mod records;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod standing;
mod steps;
mod times;
mod verdicts;
pub mod vips;
mod world;

pub use account::scope_of;
pub use creation::TAG_PREFIX;
pub use evictions::{WorkloadPod, pod_to_evict};
pub use facts::{
    Account, Doubt, Fact, Holding, InFlight, LastReported, LastSteps, MachineState, MayBeOn, Node, Pause,
    Readiness, Turn,
};
pub use jiff::{SignedDuration, Timestamp};
pub use kinds::{Kind, Kinds};
pub use losses::Tripped;
pub use names::{Address, Epoch, NO_IPV6, NodeName, PoolKey, Provider, Scope, Tick, VmId};
pub use planner::plan;
pub use pool::{
    ADDRESSES_MAX, Creation, Journal, Mode, Move, PENDING, Pods, Policy, Pool, Spread, Takeover, Target,
    Tenancy,
};
pub use reasons::{ConditionType, EventReason, Reason, VipReason};
pub use record::{
    DnsProvider, InFlightRecord, Publication, RecordFact, RecordKind, RecordName, RecordSet, Source,
};
pub use standing::{Standing, Why};
pub use steps::{
    Action, CreationAction, CreationStep, Eviction, LeftAlone, Mark, Marks, Plan, RecordAction, RecordStep,
    Step,
};
pub use times::{later, whole_seconds};
pub use verdicts::{Lacking, MisplacedPods, Published, Verdict, Waits};
pub use world::World;
