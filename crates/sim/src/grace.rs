//! Which nodes are to keep their addresses for a while although they are ill.
//!
//! In: which nodes fall ill after a minute in which nothing happened to them, and whose clocks have jumped. Out: since when a node is
//! ill, and whether a process can tell. It never judges: what is written into journals is held against it in `journals`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;
use crate::options;

/// Who has to be given time to recover.
pub struct Grace {
    lasts: Duration,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Nodes that were well for a while, and since when they are not.
    ill: BTreeMap<String, Duration>,
    /// Processes whose time of day has jumped.
    misjudging: BTreeSet<u64>,
}

impl Grace {
    /// That of a run.
    pub fn new(seed: u64) -> Self {
        Self { lasts: Duration::from_secs(options::grace(seed)), seen: Mutex::default() }
    }

    /// How long a node that falls ill keeps its address.
    pub(crate) fn lasts(&self) -> Duration {
        self.lasts
    }

    /// A node that was well for a while falls ill now.
    pub(crate) fn begins(&self, node: &str, now: Duration) {
        lock(&self.seen).ill.insert(node.to_owned(), now);
    }

    /// Since when a node that was well for a while is ill.
    pub(crate) fn ill_since(&self, node: &str) -> Option<Duration> {
        lock(&self.seen).ill.get(node).copied()
    }

    /// Whether the time of day of a process has jumped.
    pub(crate) fn is_misjudging(&self, process: u64) -> bool {
        lock(&self.seen).misjudging.contains(&process)
    }

    /// The time of day of a process has jumped.
    pub fn misjudges(&self, process: u64) {
        lock(&self.seen).misjudging.insert(process);
    }

    /// Something else has happened to a node.
    pub fn is_over(&self, node: &str) {
        lock(&self.seen).ill.remove(node);
    }
}
