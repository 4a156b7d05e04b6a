//! Checks of status writes: the grace period of NotReady nodes (I8), and remembered losses (I12).
//!
//! In: status writes with journal entries, and the NotReady nodes (`grace`). Out: a violation of I8 if a move off such
//! a node begins before the grace period ends. The check applies when a move begins: a move that began for another
//! reason may continue.
//!
//! The check skips nodes with other recent events, because the controller may have seen an older state of them. It also
//! skips a process if its wall clock was changed and it never saw the node Ready. Such a process compares its wall clock
//! with the time in the node's condition.
//!
//! A write violates I12 if the status stops reporting the loss of a holder less than a minute after the loss.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use jiff::Timestamp;
use serde_json::Value;

use crate::objects::entries;
use crate::universe::Universe;

/// Tolerance: Kubernetes reports in whole seconds when a node became NotReady, and clocks drift.
const INEXACTNESS: Duration = Duration::from_secs(2);

/// How long a status must report a loss: a minute, less a tolerance.
const LOSS_REMEMBERED: Duration = Duration::from_secs(57);

/// An object before a write of its status, which contains the journal.
pub struct Journal {
    plural: &'static str,
    namespace: String,
    name: String,
    /// The object before the write.
    before: Arc<Value>,
}

impl Journal {
    /// The object whose status a request writes; None for other requests.
    pub fn of(universe: &Universe, request: &Request<Bytes>) -> Option<Self> {
        let parts: Vec<&str> = request.uri().path().split('/').collect();
        let (plural, namespace, name) = match parts.as_slice() {
            [.., "netipallocations", name, "status"] => ("netipallocations", "", *name),
            [.., "namespaces", namespace, "floatingippools", name, "status"] => {
                ("floatingippools", *namespace, *name)
            }
            _ => return None,
        };
        if request.method() == Method::GET {
            return None;
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let before = universe.api.one(plural, &namespace, &name)?;
        Some(Self { plural, namespace, name, before })
    }

    /// Checks the status after a process has written it.
    pub fn written(self, universe: &Universe, process: u64) {
        let Some(after) = universe.api.one(self.plural, &self.namespace, &self.name) else { return };
        let moving: BTreeSet<_> = entries(&self.before).filter_map(|entry| text(&entry["address"])).collect();
        let is_new = |entry: &&Value| text(&entry["address"]).is_some_and(|ip| !moving.contains(&ip));
        let too_early =
            entries(&after).filter(is_new).filter_map(|entry| too_early(universe, process, entry));
        too_early.for_each(|what| universe.report_violation("I8", what));
        if !universe.grace.has_changed_clock(process) {
            let forgotten = forgotten_losses(universe, &self.before, &after);
            forgotten.into_iter().for_each(|what| universe.report_violation("I12", what));
        }
    }
}

/// The losses of the last minute that a status no longer reports. Empty after a recent edit, because edits change which
/// losses count.
fn forgotten_losses(universe: &Universe, before: &Value, after: &Value) -> Vec<String> {
    if !universe.is_quiet(&["objects"]) {
        return Vec::new();
    }
    let addresses = |object: &Value| object["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let now = universe.now();
    let mut found = Vec::new();
    for (was, is) in addresses(before).iter().flat_map(|was| {
        let same = addresses(after).into_iter().find(|is| is["address"] == was["address"]);
        same.map(|is| (was.clone(), is))
    }) {
        let since = was["lostSince"].as_str().and_then(|since| since.parse::<Timestamp>().ok());
        let is_young = since.is_some_and(|since| now.duration_since(since).unsigned_abs() < LOSS_REMEMBERED);
        let is_counted = !matches!(is["reason"].as_str(), Some("Disabled" | "Conflict" | "Refused"));
        if is_young && is_counted && is["lostSince"].is_null() {
            let (address, since) = (&was["address"], &was["lostSince"]);
            found.push(format!("the status no longer reports the loss of {address}'s holder at {since}"));
        }
    }
    found
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

/// The violation if a process begins a move now, before the grace period ends.
fn too_early(universe: &Universe, process: u64, entry: &Value) -> Option<String> {
    let (ip, vm) = (text(&entry["address"])?, text(&entry["from"]["vm"])?);
    let nodes = universe.api.all("nodes");
    let is_it = |node: &&Arc<Value>| {
        let machine = node["spec"]["providerID"].as_str().and_then(drivers::machine_of);
        machine.is_some_and(|(_, machine)| machine.to_string() == vm)
    };
    let node = nodes.iter().find(is_it)?;
    let name = text(&node["metadata"]["name"])?;
    let since = universe.grace.known_since(&name, process)?;
    let is_too_soon = universe.elapsed() + INEXACTNESS < since + universe.grace.lasts();
    let has_another_reason = node["spec"]["unschedulable"] == true
        || universe.holder(&ip) != Some(vm)
        || !universe.is_quiet(&[ip.as_str(), "objects"]);
    let needs_pod = name.starts_with("worker");
    let has_pod =
        !needs_pod || universe.api.all("pods").iter().any(|pod| pod["spec"]["nodeName"] == name.as_str());
    (is_too_soon && has_pod && !has_another_reason)
        .then(|| format!("a move of {ip} off node {name} begins before the grace period ends"))
}
