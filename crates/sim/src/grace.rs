//! The NotReady nodes that must keep their addresses for the grace period.
//!
//! In: nodes that become NotReady after a minute without events, and processes whose wall clock was changed. Out: when
//! a node became NotReady, and whether a process can measure the time since then. A process that saw the node Ready can
//! always measure it, because it does not use its wall clock. This module never checks an invariant: `journals` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;
use crate::options;

/// The NotReady nodes in their grace period.
pub struct Grace {
    lasts: Duration,
    seen: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Nodes that were healthy for a while, and when they became NotReady.
    not_ready: BTreeMap<String, Duration>,
    /// Since when each process has watched the nodes, after its first complete list of them.
    watching: BTreeMap<u64, Duration>,
    /// Processes whose wall clock was changed.
    with_changed_clock: BTreeSet<u64>,
}

impl Grace {
    /// Starts without NotReady nodes, with the grace period of this run.
    pub fn new(seed: u64) -> Self {
        Self { lasts: Duration::from_secs(options::grace(seed)), seen: Mutex::default() }
    }

    /// The grace period.
    pub(crate) fn lasts(&self) -> Duration {
        self.lasts
    }

    /// Records that a node that was healthy for a while becomes NotReady.
    pub(crate) fn begins(&self, node: &str, now: Duration) {
        lock(&self.seen).not_ready.insert(node.to_owned(), now);
    }

    /// When a node became NotReady; None if it had not been healthy for a while, or if another event has changed it.
    fn not_ready_since(&self, node: &str) -> Option<Duration> {
        lock(&self.seen).not_ready.get(node).copied()
    }

    /// When a node became NotReady, if the process can know that: it saw the node Ready, or its wall clock was not changed.
    pub(crate) fn known_since(&self, node: &str, process: u64) -> Option<Duration> {
        let since = self.not_ready_since(node)?;
        let saw_it_ready = lock(&self.seen).watching.get(&process).is_some_and(|first| *first < since);
        (saw_it_ready || !self.has_changed_clock(process)).then_some(since)
    }

    /// Records that a process begins to watch the nodes.
    pub(crate) fn watches(&self, process: u64, now: Duration) {
        lock(&self.seen).watching.entry(process).or_insert(now);
    }

    /// Whether the wall clock of a process was changed.
    pub(crate) fn has_changed_clock(&self, process: u64) -> bool {
        lock(&self.seen).with_changed_clock.contains(&process)
    }

    /// Records that the wall clock of a process was changed.
    pub fn changes_clock(&self, process: u64) {
        lock(&self.seen).with_changed_clock.insert(process);
    }

    /// Forgets a node, because another event has changed it.
    pub fn is_over(&self, node: &str) {
        lock(&self.seen).not_ready.remove(node);
    }
}
