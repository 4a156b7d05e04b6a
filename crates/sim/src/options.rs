//! What is fixed before a run begins: how large its cluster is, how long things go wrong, and how the controller is set up.
//!
//! In: the seed. Out: the numbers that the script, the cluster, the processes and the judges agree on. Nothing here changes in
//! the course of a run.

use std::time::Duration;

use crate::rng::Rng;

/// Nodes at each cloud.
pub const NODES: u64 = 6;

/// Addresses that people reserved at each cloud.
pub const ADDRESSES: u64 = 4;

/// The most processes of the controller.
pub(crate) const REPLICAS_MAX: u64 = 3;

/// How long things go wrong.
pub const CHAOS: Duration = Duration::from_secs(600);

/// D of every run. What is under way in the network is under way for less.
pub const TAKEOVER: Duration = Duration::from_secs(2);

/// How long a lease lasts.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// What our mark on DNS records says.
pub const DNS_OWNER: &str = "simulated";

/// The shortest pause before a change that failed is tried again.
pub const RETRY_SHORTEST: Duration = Duration::from_secs(1);

/// The most addresses that are created: enough for every script.
pub(crate) const CREATED_MAX: usize = 1_000;

/// Timers of a process are not exact.
pub(crate) const TIMER_INEXACTNESS: Duration = Duration::from_millis(100);

/// How many processes of the controller there are in this run.
pub fn replicas(seed: u64) -> u64 {
    *Rng::new(seed, "replicas").pick(&[2, 2, REPLICAS_MAX])
}

/// How long a NotReady node keeps its address in this run, in seconds.
pub fn grace(seed: u64) -> u64 {
    *Rng::new(seed, "grace").pick(&[0, 0, 20])
}
