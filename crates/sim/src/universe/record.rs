//! What a run remembers while it goes on: who changed what and when, what arrived, and what was wrong.
//!
//! In: changes by people and fate, requests, and violations from whoever sees one. Out: answers to those who judge, such as whether
//! anybody has touched a node lately. It never judges by itself.

use std::time::Duration;

use serde_json::Value;

use super::Universe;
use crate::arrivals::{Landed, Reading, Request};
use crate::lock::lock;
use crate::options::{RETRY_SHORTEST, TIMER_INEXACTNESS};
use crate::violation::Violation;

/// How long after a change of something nobody wonders at what is done with it.
const QUIET: Duration = Duration::from_secs(60);

/// How long what a change after D has done may go on. Clouds count time from their first request on, which is a little later.
const MENDED_WITHIN: Duration = Duration::from_secs(120);

impl Universe {
    /// The sender of a change hears that its connection has broken off.
    pub fn gives_up(&self, request: &Request) {
        let key = (request.process, request.subject().unwrap_or_default());
        lock(&self.arrivals.seen).failed.insert(key, self.now());
    }

    /// The answer to a listing has reached its process.
    pub fn heard(&self, reading: &Reading) {
        let mut seen = lock(&self.arrivals.seen);
        let read = seen.read.entry(reading.who).or_insert(reading.at);
        // Answers may overtake each other.
        *read = reading.at.max(*read);
    }

    /// The lease was written: takes note of the epoch in which its holder leads.
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

    /// Somebody asks Kubernetes for a change, whatever comes of it.
    pub fn asks_for_a_change(&self) {
        lock(&self.arrivals.seen).asked += 1;
    }

    /// How many changes Kubernetes was asked for so far, of leases apart.
    pub fn asked(&self) -> usize {
        lock(&self.arrivals.seen).asked
    }

    /// Whether what this tells of happened soon after a change of its address came after D to a cloud that takes no conditions.
    pub fn is_soon_after_d(&self, what: &str) -> bool {
        let at = what.split(' ').find_map(|word| word.strip_suffix('s')?.parse::<f64>().ok());
        let is_cause = |(late, subject, _): &(Duration, String, String)| {
            let is_soon = at.is_none_or(|at| (at - late.as_secs_f64()).abs() < MENDED_WITHIN.as_secs_f64());
            is_soon && what.contains(&format!(" {subject} "))
        };
        lock(&self.arrivals.seen).late.iter().any(is_cause)
    }

    /// Whether a change of a machine came so late.
    pub fn came_too_late_to(&self, machine: &str) -> bool {
        lock(&self.arrivals.seen).late.iter().any(|(.., path)| path.split('/').any(|part| part == machine))
    }

    /// Whether a change of Kubernetes that was sent then has, word for word, been sent by this process before, and less than the
    /// shortest pause apart. They may have arrived in any order.
    pub fn is_repeated(&self, process: u64, change: String, sent: Duration) -> bool {
        let before = lock(&self.arrivals.seen).repeated.insert((process, change), sent);
        before.is_some_and(|before| sent.abs_diff(before) + TIMER_INEXACTNESS < RETRY_SHORTEST)
    }

    /// Something was written into Kubernetes just now that must not be.
    pub fn condemn(&self, invariant: &'static str, what: String) {
        self.tell(&what);
        let mut seen = lock(&self.arrivals.seen);
        seen.is_condemned = true;
        seen.untrue.push(Violation { invariant, what });
    }

    /// Whether anything was wrong so far that can be told before the end.
    pub fn is_condemned(&self) -> bool {
        lock(&self.arrivals.seen).is_condemned
    }

    /// What was written into Kubernetes in the course of the run that must not be.
    pub fn untrue(&self) -> Vec<Violation> {
        lock(&self.arrivals.seen).untrue.clone()
    }

    /// The changes that arrived.
    pub fn landed(&self) -> Vec<Landed> {
        lock(&self.arrivals.seen).landed.clone()
    }

    /// Somebody changed something just now.
    pub fn disturb(&self, what: &str) {
        lock(&self.arrivals.seen).disturbed.insert(what.to_owned(), self.elapsed());
        self.grace.is_over(what);
    }

    /// A person has put an address where it is: what became of it before is over.
    pub fn begins_anew(&self, ip: &str) {
        lock(&self.arrivals.seen).raced.remove(ip);
    }

    /// Whether an address was taken from a machine outside of the cluster, and nobody could know that it was there.
    pub fn is_raced(&self, ip: &str) -> bool {
        lock(&self.arrivals.seen).raced.contains(ip)
    }

    /// How long ago somebody changed something.
    pub fn disturbed_for(&self, what: &str) -> Option<Duration> {
        let at = lock(&self.arrivals.seen).disturbed.get(what).copied()?;
        Some(self.elapsed().saturating_sub(at))
    }

    /// Whether nobody has changed any of these lately.
    pub fn is_quiet(&self, what: &[&str]) -> bool {
        let (seen, now) = (lock(&self.arrivals.seen), self.elapsed());
        what.iter().all(|what| seen.disturbed.get(*what).is_none_or(|at| *at + QUIET < now))
    }

    /// A node falls ill.
    pub fn falls_ill(&self, node: &str) {
        let is_ready = |object: &Value| object["status"]["conditions"][0]["status"] == "True";
        let was_well = self.api.one("nodes", "", node).is_some_and(|node| is_ready(&node));
        let was_quiet = self.is_quiet(&[node]);
        self.disturb(node);
        if was_well && was_quiet {
            self.grace.begins(node, self.elapsed());
        }
    }
}
