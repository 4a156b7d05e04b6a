//! The options of a run: the size of its cluster, how long faults last, and the settings of the controller.
//!
//! In: the seed. Out: the numbers that the script, the cluster, the processes and the checks share. They never change
//! during a run.

use std::time::Duration;

use crate::rng::Rng;

/// Number of nodes at each cloud.
pub const NODES: u64 = 6;

/// Number of addresses that people reserved at each cloud.
pub const ADDRESSES: u64 = 4;

/// Maximum number of controller replicas.
pub(crate) const REPLICAS_MAX: u64 = 3;

/// How long events and faults happen. After that everything is repaired.
pub const CHAOS: Duration = Duration::from_secs(600);

/// D (`TAKEOVER_SECONDS`) of every run. A request stays in the network for less than this, unless an `Overdue` event
/// delays it.
pub const TAKEOVER: Duration = Duration::from_secs(2);

/// Lease duration.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// The owner ID that the controller writes next to its DNS records.
pub const DNS_OWNER: &str = "simulated";

/// Shortest backoff after a failed change.
pub const RETRY_SHORTEST: Duration = Duration::from_secs(1);

/// Maximum number of addresses that the controller creates. No script reaches it.
pub(crate) const CREATED_MAX: usize = 1_000;

/// Tolerance of the checks for the inexact timers of a process.
pub(crate) const TIMER_INEXACTNESS: Duration = Duration::from_millis(100);

/// Number of controller replicas in this run.
pub fn replicas(seed: u64) -> u64 {
    *Rng::new(seed, "replicas").pick(&[2, 2, REPLICAS_MAX])
}

/// Grace period of NotReady nodes in this run, in seconds.
pub fn grace(seed: u64) -> u64 {
    *Rng::new(seed, "grace").pick(&[0, 0, 20])
}
