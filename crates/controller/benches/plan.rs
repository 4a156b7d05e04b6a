//! Measures the time from one watch event to the finished plan for growing clusters: `just bench plan`. The time
//! includes the update of the index.
//!
//! A cluster of N nodes has N / 15 pools and 2 N / 3 addresses: 15,000 nodes have 1,000 pools and 10,000 addresses.
//! Nine of ten pools select the nodes of their own team, the others select every node. All addresses are attached
//! except for one in a hundred. That one waits because no node is in its region, so every plan searches for a node in
//! vain. The events alternate: a node becomes NotReady and its address has to move, or another node becomes Ready.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "this is a measurement")]

use std::collections::BTreeMap;
use std::time::Instant;

use api::NetIPAllocation;
use controller::addresses::index::Index;
use controller::addresses::kind::Kind;
use controller::addresses::node::{Node, NodeReader};
use controller::addresses::watch::Observed;
use controller::kubernetes::decode::Change;
use drivers::{Listed, Listing};
use plan::{Address, Holding, Provider, Scope, Timestamp};
use serde_json::{Value, json};

const SIZES: [usize; 4] = [1_000, 5_000, 15_000, 65_000];
const EVENTS: usize = 41;
const POOL_SHARE: usize = 15;

const ZONES: [&str; 3] = ["us-west1-a", "us-west1-b", "us-west1-c"];

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn scope() -> Scope {
    Scope { provider: Provider::Gcp, account: "demo".into() }
}

fn node(reader: &mut NodeReader, number: usize, pools: usize, is_ready: bool) -> Node {
    let zone = ZONES[number % 3];
    let labels = json!({
        "team": format!("team-{}", number % pools),
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": "us-west1",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": format!("node-{number}"),
    });
    let status = if is_ready { "True" } else { "False" };
    let since = "2027-01-14T00:00:00Z";
    let node = json!({
        "metadata": {"name": format!("node-{number:06}"), "labels": labels},
        "spec": {"providerID": format!("gce://demo/{zone}/node-{number:06}")},
        "status": {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]},
    });
    reader.read(serde_json::from_value(node).unwrap())
}

fn address(number: usize) -> Address {
    format!("10.{}.{}.{}", number / 65_536, number / 256 % 256, number % 256).parse().unwrap()
}

fn allocation(number: usize, addresses: &[Address]) -> NetIPAllocation {
    let selector: Value = match number % 10 {
        0 => json!({"kubernetes.io/arch": "amd64"}),
        _ => json!({"team": format!("team-{number}")}),
    };
    let listed: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    serde_json::from_value(json!({
        "apiVersion": "netinfra.darkbrains.com/v1alpha1", "kind": "NetIPAllocation",
        "metadata": {
            "name": format!("pool-{number:05}"), "resourceVersion": "1",
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", number % 60),
        },
        "spec": {
            "reservedIPs": listed, "nodeSelector": selector, "cloud": {"provider": "gcp"},
            "policy": {"failoverGraceSeconds": 0},
        },
    }))
    .unwrap()
}

/// A cluster in which every address is attached to a fit node, except for those that wait. Returns it with its number
/// of pools.
fn cluster(reader: &mut NodeReader, nodes: usize) -> (Index, usize) {
    let pools = nodes / POOL_SHARE;
    let mut index = Index::default();
    index.observe(Observed::Absent(Kind::Pods));
    index.observe(Observed::Absent(Kind::FloatingIPPools));
    index.observe(Observed::Nodes(Change::All(
        (0..nodes).map(|number| node(reader, number, pools, true).into()).collect(),
    )));
    let addresses: Vec<Address> = (0..nodes * 2 / 3).map(address).collect();
    let share = addresses.len() / pools;
    let of_pool = |pool: usize| {
        &addresses[pool * share..if pool + 1 == pools { addresses.len() } else { (pool + 1) * share }]
    };
    let objects = (0..pools).map(|pool| allocation(pool, of_pool(pool)).into()).collect();
    index.observe(Observed::Allocations(Change::All(objects)));
    let mut listing = Listing::default();
    for pool in 0..pools {
        for (position, address) in of_pool(pool).iter().enumerate() {
            let number = pool + position * pools;
            let zone = ZONES[number % 3];
            let (holding, region) = match (pool * share + position) % 100 {
                99 => (Holding::Free, "elsewhere"),
                _ => (Holding::By(format!("demo/{zone}/node-{number:06}").into()), "us-west1"),
            };
            let region = Some(region.into());
            listing.addresses.insert(*address, Listed { holding, region, tag: None });
        }
    }
    let tick = index.tick();
    index.observe_listing(&scope(), Ok(listing), tick);
    (index, pools)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let mut medians = BTreeMap::new();
    println!(
        "{:>8} {:>7} {:>10} {:>16} {:>12} {:>7}",
        "nodes", "pools", "addresses", "event to plan ms", "plan alone", "steps"
    );
    for size in SIZES {
        let mut reader = NodeReader::default();
        let (mut index, pools) = cluster(&mut reader, size);
        let (mut whole, mut planning, mut steps) = (Vec::new(), Vec::new(), 0);
        for event in 0..EVENTS {
            let changed = node(&mut reader, event * 7 % size, pools, event % 2 == 1);
            let started = Instant::now();
            index.observe(Observed::Nodes(Change::Applied(Box::new(changed.into()))));
            let observed = Instant::now();
            let plan = plan::plan(&index.world, now());
            planning.push(observed.elapsed().as_secs_f64() * 1_000.0);
            whole.push(started.elapsed().as_secs_f64() * 1_000.0);
            steps = plan.steps.len();
        }
        let (whole, planning) = (median(whole), median(planning));
        println!("{size:>8} {pools:>7} {:>10} {whole:>16.2} {planning:>12.2} {steps:>7}", size * 2 / 3);
        medians.insert(size, whole);
    }
    // The slope of the regression line through the logarithms: 1 means that the time grows linearly.
    let points: Vec<(f64, f64)> = medians.iter().map(|(size, ms)| ((*size as f64).ln(), ms.ln())).collect();
    let count = points.len() as f64;
    let (sum_x, sum_y): (f64, f64) =
        points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let sum_xy: f64 = points.iter().map(|(x, y)| x * y).sum();
    let sum_xx: f64 = points.iter().map(|(x, _)| x * x).sum();
    let slope = (count * sum_xy - sum_x * sum_y) / (count * sum_xx - sum_x * sum_x);
    println!("{}", json!({"event_to_plan_ms_at_15000_nodes": medians[&15_000], "slope": slope}));
}
