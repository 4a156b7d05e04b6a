//! The record of a run: what changed and when, which requests arrived, and which invariants were violated.
//!
//! In: changes by events, requests, and violations that checks have found. Out: facts for the checks, such as whether
//! an event has recently changed a node. It never checks an invariant itself.

use std::time::Duration;

use serde_json::Value;

use super::Universe;
use crate::arrivals::{Landed, Reading, Request};
use crate::lock::lock;
use crate::options::{RETRY_SHORTEST, TIMER_INEXACTNESS};
use crate::violation::Violation;

/// For this long after an event, the event counts as a reason for the controller's actions.
const QUIET: Duration = Duration::from_secs(60);

/// How long the effect of a change that arrives after D (`TAKEOVER`) may last. Inexact: the fakes count time from their
/// first request, a little after the start of the run.
const MENDED_WITHIN: Duration = Duration::from_secs(120);

impl Universe {
    /// Records that the sender of a change sees a broken connection.
    pub fn gives_up(&self, request: &Request) {
        let key = (request.process, request.subject().unwrap_or_default());
        lock(&self.arrivals.seen).failed.insert(key, self.now());
    }

    /// Records that the response to a listing has reached its process.
    pub fn heard(&self, reading: &Reading) {
        let mut seen = lock(&self.arrivals.seen);
        let read = seen.read.entry(reading.who).or_insert(reading.at);
        // Responses may arrive out of order.
        *read = reading.at.max(*read);
    }

    /// Records the epoch of the leader after a write of the lease.
    pub fn leased(&self) {
        for lease in self.api.all("leases") {
            let annotations = &lease["metadata"]["annotations"];
            let epoch = annotations[controller::leadership::lease::EPOCH_ANNOTATION]
                .as_str()
                .and_then(|text| text.parse().ok());
            if let (Some(holder), Some(epoch)) = (lease["spec"]["holderIdentity"].as_str(), epoch) {
                lock(&self.arrivals.seen).epochs.insert(holder.to_owned(), epoch);
            }
        }
    }

    /// Counts a write request to Kubernetes, whether it succeeds or not.
    pub fn asks_for_a_change(&self) {
        lock(&self.arrivals.seen).asked += 1;
    }

    /// Number of write requests to Kubernetes so far, except those for leases.
    pub fn asked(&self) -> usize {
        lock(&self.arrivals.seen).asked
    }

    /// Whether a late change of the same address explains a violation: one that arrived after D at a cloud without
    /// preconditions, at about the same time. `what` contains the address and the time of the violation.
    pub fn is_soon_after_d(&self, what: &str) -> bool {
        let at = what.split(' ').find_map(|word| word.strip_suffix('s')?.parse::<f64>().ok());
        let is_cause = |(late, subject, _): &(Duration, String, String)| {
            let is_soon = at.is_none_or(|at| (at - late.as_secs_f64()).abs() < MENDED_WITHIN.as_secs_f64());
            is_soon && what.contains(&format!(" {subject} "))
        };
        lock(&self.arrivals.seen).late.iter().any(is_cause)
    }

    /// Whether a change that arrived after D at a cloud without preconditions concerned this VM.
    pub fn came_too_late_to(&self, machine: &str) -> bool {
        lock(&self.arrivals.seen).late.iter().any(|(.., path)| path.split('/').any(|part| part == machine))
    }

    /// Whether this process has sent exactly the same write to Kubernetes before, less than the shortest backoff apart.
    /// The two writes may arrive in any order.
    pub fn is_repeated(&self, process: u64, change: String, sent: Duration) -> bool {
        let before = lock(&self.arrivals.seen).repeated.insert((process, change), sent);
        before.is_some_and(|before| sent.abs_diff(before) + TIMER_INEXACTNESS < RETRY_SHORTEST)
    }

    /// Reports a violation by a write to Kubernetes.
    pub fn report_violation(&self, invariant: &'static str, what: String) {
        self.log(&what);
        let mut seen = lock(&self.arrivals.seen);
        seen.has_violation = true;
        seen.untrue.push(Violation { invariant, what });
    }

    /// Whether a check has failed so far. If so, the run ends.
    pub fn has_violation(&self) -> bool {
        lock(&self.arrivals.seen).has_violation
    }

    /// The violations by writes to Kubernetes.
    pub fn untrue(&self) -> Vec<Violation> {
        lock(&self.arrivals.seen).untrue.clone()
    }

    /// The changes that arrived at the clouds.
    pub fn landed(&self) -> Vec<Landed> {
        lock(&self.arrivals.seen).landed.clone()
    }

    /// Records that an event changes `what` now.
    pub fn record_change(&self, what: &str) {
        lock(&self.arrivals.seen).changed_at.insert(what.to_owned(), self.elapsed());
        self.grace.is_over(what);
    }

    /// Forgets earlier races for an address, because a person has moved it.
    pub fn begins_anew(&self, ip: &str) {
        lock(&self.arrivals.seen).raced.remove(ip);
    }

    /// Whether the controller is excused for this address: it detached the address from a VM outside the cluster before
    /// it could know that this VM has it, or a change arrived after D at a cloud without preconditions.
    pub fn is_raced(&self, ip: &str) -> bool {
        lock(&self.arrivals.seen).raced.contains(ip)
    }

    /// How long ago an event last changed `what`; None if never.
    pub fn changed_for(&self, what: &str) -> Option<Duration> {
        let at = lock(&self.arrivals.seen).changed_at.get(what).copied()?;
        Some(self.elapsed().saturating_sub(at))
    }

    /// Whether no event has recently changed any of these.
    pub fn is_quiet(&self, what: &[&str]) -> bool {
        let (seen, now) = (lock(&self.arrivals.seen), self.elapsed());
        what.iter().all(|what| seen.changed_at.get(*what).is_none_or(|at| *at + QUIET < now))
    }

    /// Records that a node becomes NotReady. If it was Ready, and no event had changed it recently, its grace period
    /// starts.
    pub fn becomes_not_ready(&self, node: &str) {
        let is_ready = |object: &Value| object["status"]["conditions"][0]["status"] == "True";
        let was_well = self.api.one("nodes", "", node).is_some_and(|node| is_ready(&node));
        let was_quiet = self.is_quiet(&[node]);
        self.record_change(node);
        if was_well && was_quiet {
            self.grace.begins(node, self.elapsed());
        }
    }
}
