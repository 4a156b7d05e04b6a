//! The DNS names of a run, and their invariants.
//!
//! In: DNS changes that arrive at a provider, and the records at the end. Out: violations. The pool's name is at
//! DigitalOcean and has the pool's addresses. The names of the nodes are at Cloudflare and Route 53 and have the nodes'
//! addresses. Each provider also has a name that belongs to somebody else. In some runs a person takes over the pool's
//! name, including its owner record.
//!
//! ```text
//! I10 a name that has records never becomes empty
//!     the controller does not change a name that belongs to somebody else, or that a person has taken over
//!     the controller does not remove the address of a healthy node from a name without a reason
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::fake::ledger::{CloudChange, Ledger};
use tokio::time::Instant;

use crate::clouds::DNS_ZONE;
use crate::objects::texts;
use crate::universe::Universe;
use crate::violation::Violation;

/// The DNS name of the pool.
const POOL: &str = "pool.example.com";
/// The DNS name of the nodes at Google Cloud.
const NODES: &str = "nodes.example.com";
/// The DNS name of the nodes at AWS.
const AWS_NODES: &str = "aws-nodes.example.com";
/// The ID of the hosted zone at Route 53.
const AWS_ZONE_ID: &str = "Z0000000000001";
/// A DNS name that belongs to somebody else.
const STRANGERS: &str = "other.example.com";
/// The value of [`STRANGERS`].
const STRANGERS_VALUE: &str = "203.0.113.200";
/// The value that a person publishes after taking over the pool's name.
const TAKEN_VALUE: &str = "203.0.113.66";

/// For this long after a person took over a name, the controller may still use what it read before.
const CANT_KNOW: Duration = Duration::from_secs(10);

/// The `dnsRecordSet` of the pool.
pub fn of_pool() -> Value {
    json!({"recordName": "pool", "zone": DNS_ZONE, "ttl": 30, "provider": "digitalocean"})
}

/// The NodeDNSRecordSets.
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

/// Creates somebody else's name at each provider.
pub fn prepare(universe: &Universe) {
    universe.ocean.with(|ocean| ocean.replace_records(DNS_ZONE, "A", "other", &[STRANGERS_VALUE]));
    universe.zones.with(|zones| _ = zones.add_record(DNS_ZONE, "A", STRANGERS, STRANGERS_VALUE));
    universe.route53.with(|names| names.set_record(AWS_ZONE_ID, STRANGERS, "A", 60, &[STRANGERS_VALUE]));
}

/// A person takes over the pool's name for another controller.
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
    universe.record_change("the name");
}

/// Whether a request concerns DNS.
pub fn is_about(path: &str) -> bool {
    ["/domains/", "/dns_records", "/rrset"].iter().any(|part| path.contains(part))
}

/// Checks a DNS change that arrives at a provider. Returns the invariant that it violates, if any.
pub fn wrong(universe: &Universe, path: &str, body: &str) -> Option<Violation> {
    let violation = |what: String| Some(Violation { invariant: "I10", what });
    let batch = body;
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let gone: Vec<(String, String)> = match path.rsplit_once("/records/") {
        None if path.contains("/rrset") => {
            let held = universe.route53.with(|names| names.values(AWS_ZONE_ID, AWS_NODES, "A"));
            // In a batch, a deleted value occurs once. A value that is deleted and created again occurs twice.
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
        return violation("changed a DNS name that a person has taken over".into());
    }
    gone.into_iter().find_map(|(name, value)| {
        let holder = well_node(universe, &name, &value)?;
        violation(format!("removed {value} from {name}, although node {holder} is healthy"))
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// How long ago a person took over the pool's name.
fn taken_for(universe: &Universe) -> Option<Duration> {
    universe.changed_for("the name")
}

/// The node that must keep this published address. None if the node is not healthy, or if the address may be removed,
/// for example after a recent event.
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
    // An address that a person removed from the list, or that is in the list after as many as the pool needs, stays on
    // its node, but is no longer published.
    let is_needed = |pool: &Arc<Value>| {
        let needed = pool["spec"]["desiredIPs"].as_u64().unwrap_or(u64::MAX);
        texts(&pool["spec"]["ips"]).zip(0..needed).any(|(ip, _)| ip == value)
    };
    let is_meant = name != POOL || universe.api.all("floatingippools").iter().any(is_needed);
    (is_well && has_pod && is_meant && is_quiet).then(|| node_name.to_owned())
}

/// The values of the pool's name. None if a person has taken it over.
pub fn of_the_pool(universe: &Universe) -> Option<BTreeSet<String>> {
    let values = universe.ocean.with(|ocean| ocean.record_values(DNS_ZONE, "A", "pool"));
    taken_for(universe).is_none().then(|| values.into_iter().collect())
}

/// The node roles that have DNS names, each with the values of its name.
pub fn of_nodes(universe: &Universe) -> [(&'static str, BTreeSet<String>); 2] {
    let edge = universe.zones.with(|zones| zones.values(NODES, "A"));
    let aws = universe.route53.with(|names| names.values(AWS_ZONE_ID, AWS_NODES, "A"));
    [("edge", edge.into_iter().collect()), ("aws", aws.into_iter().collect())]
}

/// The violations at the end of a run.
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
        found.push(format!("{STRANGERS}, which belongs to somebody else, has {values:?}"));
    }
    if let Some(taken) = taken_for(universe) {
        let values = universe.ocean.with(|ocean| ocean.record_values(DNS_ZONE, "A", "pool"));
        let late = set_right_after_takeover(universe, taken);
        let is_left = |value: &String| value == TAKEN_VALUE || late.contains(value);
        if !values.iter().any(|value| value == TAKEN_VALUE) || !values.iter().all(is_left) {
            found.push(format!("{POOL}, which a person has taken over, has {values:?}"));
        }
    }
    found
}

/// The values that the controller added to the pool's name right after a person took it over. DigitalOcean has no
/// preconditions, so it executes changes in flight, and the controller can't tell later whose records these are.
fn set_right_after_takeover(universe: &Universe, taken_for: Duration) -> BTreeSet<String> {
    let taken = Instant::now() - taken_for;
    let changes =
        universe.ocean.changes().into_iter().filter(|(at, _)| taken <= *at && *at <= taken + CANT_KNOW);
    let set = changes.filter_map(|(_, change)| match change {
        CloudChange::RecordSet { name, value } if name == POOL => Some(value),
        _ => None,
    });
    set.collect()
}

/// When a name that had values became empty. Changes at the same time count as one change.
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
