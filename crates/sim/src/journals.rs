//! Whether a node that falls ill keeps its address for as long as its object says.
//!
//! In: what is written into journals, and which nodes are ill (`grace`). Out: I8 where a move off such a node begins before the
//! grace is over. It is judged when the move begins: one that has begun for another reason goes on.
//!
//! Nodes to which more than that happens are left out, because what the controller knows of them may be what was a moment before; and so
//! are processes whose time of day has jumped, by which they count.
//!
//! The same look at what is written tells whether a leader has forgotten the loss of a holder that is younger than a minute (I12).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use jiff::Timestamp;
use serde_json::Value;

use crate::objects::entries;
use crate::universe::Universe;

/// Kubernetes tells since when a node is ill in whole seconds, and no clock is exact.
const INEXACTNESS: Duration = Duration::from_secs(2);

/// A status tells of a loss for a minute, less what is not exact.
const LOSS_REMEMBERED: Duration = Duration::from_secs(57);

/// An object's journal, before it is written.
pub struct Journal {
    plural: &'static str,
    namespace: String,
    name: String,
    /// The object as it was.
    before: Arc<Value>,
}

impl Journal {
    /// The journal that a request writes.
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

    /// It was written by a process.
    pub fn written(self, universe: &Universe, process: u64) {
        let Some(after) = universe.api.one(self.plural, &self.namespace, &self.name) else { return };
        let moving: BTreeSet<_> = entries(&self.before).filter_map(|entry| text(&entry["address"])).collect();
        let is_new = |entry: &&Value| text(&entry["address"]).is_some_and(|ip| !moving.contains(&ip));
        let hasty = entries(&after).filter(is_new).filter_map(|entry| hasty(universe, process, entry));
        hasty.for_each(|what| universe.condemn("I8", what));
        if !universe.grace.is_misjudging(process) {
            let forgotten = forgotten_losses(universe, &self.before, &after);
            forgotten.into_iter().for_each(|what| universe.condemn("I12", what));
        }
    }
}

/// The losses that a status does not tell of any more, and should: they are younger than a minute. Edits change what is counted.
fn forgotten_losses(universe: &Universe, before: &Value, after: &Value) -> Vec<String> {
    if !universe.is_quiet(&["objects"]) {
        return Vec::new();
    }
    let told = |object: &Value| object["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let now = universe.now();
    let mut found = Vec::new();
    for (was, is) in told(before).iter().flat_map(|was| {
        let same = told(after).into_iter().find(|is| is["address"] == was["address"]);
        same.map(|is| (was.clone(), is))
    }) {
        let since = was["lostSince"].as_str().and_then(|since| since.parse::<Timestamp>().ok());
        let is_young = since.is_some_and(|since| now.duration_since(since).unsigned_abs() < LOSS_REMEMBERED);
        let is_counted = !matches!(is["reason"].as_str(), Some("Disabled" | "Conflict" | "Refused"));
        if is_young && is_counted && is["lostSince"].is_null() {
            let (address, since) = (&was["address"], &was["lostSince"]);
            found.push(format!("the status forgets that the holder of {address} was lost at {since}"));
        }
    }
    found
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(ToOwned::to_owned)
}

/// What is wrong about a move that a process begins now, if it is too soon.
fn hasty(universe: &Universe, process: u64, entry: &Value) -> Option<String> {
    let (ip, vm) = (text(&entry["address"])?, text(&entry["from"]["vm"])?);
    let nodes = universe.api.all("nodes");
    let is_it = |node: &&Arc<Value>| {
        let machine = node["spec"]["providerID"].as_str().and_then(drivers::machine_of);
        machine.is_some_and(|(_, machine)| machine.to_string() == vm)
    };
    let node = nodes.iter().find(is_it)?;
    let name = text(&node["metadata"]["name"])?;
    let since = universe.grace.ill_since(&name).filter(|_| !universe.grace.is_misjudging(process))?;
    let is_too_soon = universe.elapsed() + INEXACTNESS < since + universe.grace.lasts();
    let has_another_reason = node["spec"]["unschedulable"] == true
        || universe.holder(&ip) != Some(vm)
        || !universe.is_quiet(&[ip.as_str(), "objects"]);
    let needs_pod = name.starts_with("worker");
    let has_pod =
        !needs_pod || universe.api.all("pods").iter().any(|pod| pod["spec"]["nodeName"] == name.as_str());
    (is_too_soon && has_pod && !has_another_reason)
        .then(|| format!("{ip} is to leave {name} before the grace is over"))
}
