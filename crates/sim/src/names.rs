//! The names in DNS of a run: who publishes what, and what must never happen to them.
//!
//! The pool's name is at DigitalOcean and holds its addresses. Those of the nodes are at Cloudflare and at Route 53, and hold theirs. Beside each
//! there is one that somebody else made. In some runs a person takes the pool's name over, mark and all.
//!
//! ```text
//! I10 a name that holds something never becomes empty
//!     a name that is somebody else's, or has become so, is left alone
//!     an address that is well, or a node's that is, is not taken out of its name for no reason
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::fake::ledger::{Deed, Ledger};
use tokio::time::Instant;

use crate::clouds::DNS_ZONE;
use crate::universe::Universe;
use crate::violation::Violation;

/// The pool's name.
const POOL: &str = "pool.example.com";
/// The name of the nodes at Compute Engine.
const NODES: &str = "nodes.example.com";
/// The name of the nodes at Amazon.
const AWS_NODES: &str = "aws-nodes.example.com";
/// The zone at Route 53.
const AWS_ZONE_ID: &str = "Z0000000000001";
/// A name that somebody else made.
const STRANGERS: &str = "other.example.com";
/// What it holds.
const STRANGERS_VALUE: &str = "203.0.113.200";
/// What a person publishes who takes the pool's name over.
const TAKEN_VALUE: &str = "203.0.113.66";

/// Whoever has read right before a person took a name over can't know that.
const CANT_KNOW: Duration = Duration::from_secs(10);

/// The `dnsRecordSet` of the pool.
pub fn of_pool() -> Value {
    json!({"recordName": "pool", "zone": DNS_ZONE, "ttl": 30, "provider": "digitalocean"})
}

/// The objects that publish nodes.
pub fn node_names() -> [Value; 2] {
    [("nodes", "cloudflare", "role=edge"), ("aws-nodes", "route53", "role=aws")].map(
        |(name, provider, nodes)| {
            json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "provider": provider, "dnsRecordSet": {"recordName": name, "zone": DNS_ZONE, "ttl": 60},
                    "match": {"nodeLabel": nodes},
                },
            })
        },
    )
}

/// Lets somebody else have a name at each provider.
pub fn prepare(universe: &Universe) {
    universe.ocean.with(|ocean| ocean.replace_records(DNS_ZONE, "A", "other", &[STRANGERS_VALUE]));
    universe.zones.with(|zones| _ = zones.add_record(DNS_ZONE, "A", STRANGERS, STRANGERS_VALUE));
    universe.route53.with(|names| names.set_record(AWS_ZONE_ID, STRANGERS, "A", 60, &[STRANGERS_VALUE]));
}

/// A person takes the pool's name over for another controller.
pub fn take(universe: &Universe) {
    universe.ocean.with(|ocean| {
        ocean.replace_records(
            DNS_ZONE,
            "TXT",
            "_owner-a.pool",
            &["heritage=ip-address-controller,owner=other"],
        );
        ocean.replace_records(DNS_ZONE, "A", "pool", &[TAKEN_VALUE]);
    });
    universe.disturb("the name");
}

/// Whether a request is about names.
pub fn is_about(path: &str) -> bool {
    ["/domains/", "/dns_records", "/rrset"].iter().any(|part| path.contains(part))
}

/// What is wrong with a change of names that arrives now.
pub fn wrong(universe: &Universe, path: &str, body: &str) -> Option<Violation> {
    let violation = |what: String| Some(Violation { invariant: "I10", what });
    let batch = body;
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let gone: Vec<(String, String)> = match path.rsplit_once("/records/") {
        None if path.contains("/rrset") => {
            let held = universe.route53.with(|names| names.values(AWS_ZONE_ID, AWS_NODES, "A"));
            // What is deleted and not made again is named once.
            let is_gone = |value: &String| batch.matches(&format!("<Value>{value}</Value>")).count() == 1;
            held.into_iter().filter(is_gone).map(|value| (AWS_NODES.to_owned(), value)).collect()
        }
        Some((_, id)) => {
            let known = universe.ocean.with(|ocean| ocean.record_of(DNS_ZONE, id.parse().unwrap_or(0)));
            let stays =
                |data: &str| body["type"].is_string() && body["data"].as_str().unwrap_or(data) == data;
            known.into_iter().filter(|(_, data)| !stays(data)).collect()
        }
        None => {
            let changed = body["patches"].as_array().into_iter().flatten();
            let deleted = body["deletes"].as_array().into_iter().flatten();
            let ids: Vec<&Value> = changed
                .filter(|change| change["content"].is_string())
                .chain(deleted)
                .map(|change| &change["id"])
                .collect();
            let records = universe.zones.with(|zones| zones.records(NODES, "A"));
            let meant = records.iter().filter(|record| ids.contains(&&record["id"]));
            meant.map(|record| (NODES.to_owned(), text(&record["content"]))).collect()
        }
    };
    let is_taken = taken_for(universe).is_some_and(|taken| taken > CANT_KNOW);
    if is_taken && path.contains("/domains/") {
        return violation("the name that a person took over is changed".into());
    }
    gone.into_iter().find_map(|(name, value)| {
        let holder = well_node(universe, &name, &value)?;
        violation(format!("{value} is taken out of {name} though it is well on {holder}"))
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// How long ago a person took the pool's name over.
fn taken_for(universe: &Universe) -> Option<Duration> {
    universe.disturbed_for("the name")
}

/// The node that a published address is well on, where nobody has changed anything lately that could be a reason.
fn well_node(universe: &Universe, name: &str, value: &str) -> Option<String> {
    let nodes = universe.api.all("nodes");
    let droplet = universe.ocean.with(|ocean| ocean.holder(value)).map(|id| format!("digitalocean://{id}"));
    let has_it = |node: &&Arc<Value>| match name {
        NODES | AWS_NODES => node["status"]["addresses"][0]["address"] == value,
        POOL => droplet.as_deref() == node["spec"]["providerID"].as_str(),
        _ => false,
    };
    let node = nodes.iter().find(has_it)?;
    let node_name = node["metadata"]["name"].as_str()?;
    let is_well =
        node["status"]["conditions"][0]["status"] == "True" && node["spec"]["unschedulable"] != true;
    let has_pod =
        name != POOL || universe.api.all("pods").iter().any(|pod| pod["spec"]["nodeName"] == node_name);
    let is_quiet = universe.is_quiet(&[node_name, value, "objects", "the name"]);
    // An address that a person took off the list stays where it is, and is no longer published.
    let is_listed =
        |pool: &Arc<Value>| pool["spec"]["ips"].as_array().is_some_and(|ips| ips.contains(&value.into()));
    let is_meant = name != POOL || universe.api.all("floatingippools").iter().any(is_listed);
    (is_well && has_pod && is_meant && is_quiet).then(|| node_name.to_owned())
}

/// What the pool's name has, unless a person took that over.
pub fn of_the_pool(universe: &Universe) -> Option<BTreeSet<String>> {
    let values = universe.ocean.with(|ocean| ocean.record_values(DNS_ZONE, "A", "pool"));
    taken_for(universe).is_none().then(|| values.into_iter().collect())
}

/// The roles of nodes that have names, and what these have.
pub fn of_nodes(universe: &Universe) -> [(&'static str, BTreeSet<String>); 2] {
    let edge = universe.zones.with(|zones| zones.values(NODES, "A"));
    let aws = universe.route53.with(|names| names.values(AWS_ZONE_ID, AWS_NODES, "A"));
    [("edge", edge.into_iter().collect()), ("aws", aws.into_iter().collect())]
}

/// What is wrong with names in the end.
pub fn judge(universe: &Universe) -> Vec<String> {
    let mut found = Vec::new();
    for (ledger, name) in [
        (universe.ocean.ledger(), POOL),
        (universe.zones.ledger(), NODES),
        (universe.route53.ledger(), AWS_NODES),
    ] {
        if let Some(at) = emptied(&ledger, name) {
            found.push(format!("{name} was emptied at {at:?}"));
        }
    }
    let strangers = [
        universe.ocean.with(|ocean| ocean.record_values(DNS_ZONE, "A", "other")),
        universe.zones.with(|zones| zones.values(STRANGERS, "A")),
        universe.route53.with(|names| names.values(AWS_ZONE_ID, STRANGERS, "A")).into_iter().collect(),
    ];
    for values in strangers.iter().filter(|values| **values != [STRANGERS_VALUE]) {
        found.push(format!("{STRANGERS}, which is somebody else's, holds {values:?}"));
    }
    if let Some(taken) = taken_for(universe) {
        let values = universe.ocean.with(|ocean| ocean.record_values(DNS_ZONE, "A", "pool"));
        let late = set_while_nobody_could_know(universe, taken);
        let is_left = |value: &String| value == TAKEN_VALUE || late.contains(value);
        if !values.iter().any(|value| value == TAKEN_VALUE) || !values.iter().all(is_left) {
            found.push(format!("{POOL}, which a person took over, holds {values:?}"));
        }
    }
    found
}

/// What was added to the pool's name right after a person took it over: DigitalOcean takes no condition, so what is on its way
/// then arrives, and nobody can tell later whose it is.
fn set_while_nobody_could_know(universe: &Universe, taken_for: Duration) -> BTreeSet<String> {
    let taken = Instant::now() - taken_for;
    let deeds = universe.ocean.deeds().into_iter().filter(|(at, _)| taken <= *at && *at <= taken + CANT_KNOW);
    let set = deeds.filter_map(|(_, deed)| match deed {
        Deed::RecordSet { name, value } if name == POOL => Some(value),
        _ => None,
    });
    set.collect()
}

/// When a name that held something became empty. What happens in one moment is one change.
fn emptied(ledger: &Ledger, name: &str) -> Option<Duration> {
    let states = ledger.values_of(name);
    let mut held = false;
    for (at, state) in states.iter().enumerate() {
        let is_last = states.get(at + 1).is_none_or(|next| next.0 > state.0);
        let values: &BTreeSet<String> = &state.1;
        if held && is_last && values.is_empty() {
            return Some(state.0);
        }
        held |= is_last && !values.is_empty();
    }
    None
}
