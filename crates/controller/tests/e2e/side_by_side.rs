//! Compares the speed of FLIPOP's binary with ours: `just bench flipop`.
//!
//! Both run on equal control planes and accounts, one after the other, so that they don't share CPU time. An action of
//! the account takes [`ACTION_TIME`]. Set `SIDE` to `flipop` or `ours` to measure only one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::floating_ip_pool::IpState;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::fake::ledger::CloudChange;
use tokio::time::Instant;

use crate::rig::{UNLIMITED, resident_megabytes};
use crate::side::{Implementation, Side, ZONE};

/// How long the account takes for an assignment.
const ACTION_TIME: Duration = Duration::from_secs(1);

/// How many addresses there are, and how many of them fail over at once.
const ADDRESSES: u64 = 150;
const FAILOVERS: u64 = 100;

/// How long the measurement waits for a controller.
const LONGEST: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(120);

/// Slightly more than the minute of the rate limit.
const LIMIT_WINDOW: Duration = Duration::from_secs(61);

/// The number of concurrent requests to the apiserver.
const CONCURRENCY: usize = 16;

fn address(number: u64) -> String {
    format!("198.18.0.{number}")
}

fn droplet(number: u64) -> u64 {
    10_000 + number
}

fn pod_name(number: u64) -> String {
    format!("nginx-{number}")
}

fn node_name(number: u64) -> String {
    format!("n{number:03}")
}

/// Creates nodes with one pod each. The pods of the first `holders` nodes are Ready, and these nodes hold an address.
async fn cluster(side: &Side, nodes: u64, holders: u64) {
    side.fresh_account(ACTION_TIME);
    let create = async |number: u64| {
        let name = node_name(number);
        side.node(&name, droplet(number), &[]).await;
        let app = if number < FAILOVERS { "leaves" } else { "stays" };
        side.pod("ingress", &pod_name(number), app, &name, number < holders).await;
    };
    futures::stream::iter(0..nodes).map(create).buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    side.cloud().with(|account| {
        for number in 0..holders {
            account.add_reserved_ip(address(number), "nyc3");
            account.assign_now(&address(number), droplet(number));
        }
    });
    let ips: Vec<_> = (0..holders).map(address).collect();
    let spec = json!({
        "provider": "digitalocean", "region": "nyc3", "ips": ips, "match": {"podNamespace": "ingress"},
        "dnsRecordSet": {"recordName": "pool", "zone": ZONE, "ttl": 30},
    });
    side.pool("pool", spec).await;
    all_active(side, holders).await;
    quiet(side).await;
}

/// Waits until the pool's status has this many active addresses.
async fn all_active(side: &Side, count: u64) {
    eventually("all addresses are active", SOON, async || {
        let status = side.pools().get("pool").await?.status.unwrap_or_default();
        Ok(status.ips.values().filter(|ip| ip.state == IpState::Active).count() as u64 == count)
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", side.process.log_tail()));
}

/// Waits until the cloud has had no request for three seconds.
async fn quiet(side: &Side) {
    let mut last = (side.cloud().ledger().asked.len(), Instant::now());
    while last.1.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let asked = side.cloud().ledger().asked.len();
        if asked != last.0 {
            last = (asked, Instant::now());
        }
    }
}

/// How many values the pool's DNS name has.
fn records(side: &Side) -> usize {
    let mut values = BTreeSet::new();
    for done in side.cloud().ledger().done {
        match done.change {
            CloudChange::RecordSet { value, .. } => _ = values.insert(value),
            CloudChange::RecordRemoved { value, .. } => _ = values.remove(&value),
            _ => {}
        }
    }
    values.len()
}

/// 20 addresses on 40 nodes: 20 times a pod moves to a node without an address. Then nothing happens for a minute.
async fn moves_then_idle(who: Implementation) -> Value {
    let side = Side::start(who, &UNLIMITED).await;
    side.cloud().enforce_limits(false);
    cluster(&side, 40, 20).await;
    let mut took = Vec::new();
    for number in 0..20 {
        let (from, to) = (number, number + 20);
        let changes_before = side.cloud().changes().len();
        let started = Instant::now();
        side.delete_pod("ingress", &pod_name(from)).await;
        side.pod_is_ready("ingress", &pod_name(to), true).await;
        let is_accepted = |change: &CloudChange| matches!(change, CloudChange::Accepted { vm, .. } if *vm == droplet(to).to_string());
        let accepted = || {
            side.cloud().changes().into_iter().skip(changes_before).find(|(_, change)| is_accepted(change))
        };
        eventually("the cloud accepts the assignment", SOON, async || Ok(accepted().is_some()))
            .await
            .unwrap();
        took.push((accepted().unwrap().0 - started).as_secs_f64());
        all_active(&side, 20).await;
        quiet(&side).await;
    }
    took.sort_by(f64::total_cmp);
    let before = side.cloud().ledger().asked.len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let idle = side.cloud().ledger().asked.len() - before;
    json!({
        "pod_moved_to_assign_accepted_seconds": {"median": took[took.len() / 2], "worst": took[took.len() - 1]},
        "idle_calls_in_60_seconds": idle,
        "resident_megabytes_20_addresses_40_nodes": resident_megabytes(&side.process),
    })
}

/// 100 of 150 addresses have to move at once, because the pods on their nodes end and pods on other nodes become Ready.
async fn failover(who: Implementation, is_limited: bool) -> Value {
    let environment: &[_] = if is_limited { &[] } else { &UNLIMITED };
    let side = Side::start(who, environment).await;
    side.cloud().enforce_limits(false);
    cluster(&side, ADDRESSES + FAILOVERS, ADDRESSES).await;
    if is_limited {
        tokio::time::sleep(LIMIT_WINDOW).await;
        side.cloud().enforce_limits(true);
    }
    let asked_before = side.cloud().ledger().asked.len();
    let started = Instant::now();
    let pods: Api<Pod> = Api::namespaced(side.rig.client.clone(), "ingress");
    let (leaving, at_once) =
        (ListParams::default().labels("app=leaves"), DeleteParams::default().grace_period(0));
    pods.delete_collection(&at_once, &leaving).await.unwrap();
    let becomes_ready = async |number: u64| side.pod_is_ready("ingress", &pod_name(number), true).await;
    let elsewhere = ADDRESSES..ADDRESSES + FAILOVERS;
    futures::stream::iter(elsewhere)
        .map(becomes_ready)
        .buffer_unordered(CONCURRENCY)
        .collect::<Vec<()>>()
        .await;
    let moved = || {
        side.cloud().with(|account| {
            let holders = (0..ADDRESSES).filter_map(|number| account.holder(&address(number)));
            holders.filter(|holder| *holder >= droplet(ADDRESSES)).count() as u64
        })
    };
    while moved() < FAILOVERS && started.elapsed() < LONGEST {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (seconds, reached) = (started.elapsed().as_secs_f64(), moved());
    if reached == FAILOVERS {
        quiet(&side).await;
    }
    let ledger = side.cloud().ledger();
    let asked = &ledger.asked[asked_before..];
    let mut calls = BTreeMap::new();
    asked.iter().for_each(|asked| *calls.entry(asked.call).or_insert(0) += 1);
    assert_eq!(ledger.double_holders(), Vec::<String>::new());
    json!({
        "moved": reached, "seconds": seconds, "calls": asked.len(),
        "calls_a_move": asked.len() as f64 / reached.max(1) as f64,
        "refused_by_a_limit": asked.iter().filter(|asked| asked.status == 429).count(),
        "by_call": calls, "records": records(&side),
        "resident_megabytes": resident_megabytes(&side.process),
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of half an hour: just bench flipop"]
async fn flipop_and_ours_side_by_side() {
    println!("an action of the account takes {} s", ACTION_TIME.as_secs());
    let only = std::env::var("SIDE").ok();
    let sides = [("flipop", Implementation::Flipop), ("ours", Implementation::Ours)];
    let sides = sides.into_iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name));
    let mut figures = json!({"action_seconds": ACTION_TIME.as_secs()});
    for what in ["moves", "failover", "failover_with_limits"] {
        for (name, who) in sides.clone() {
            let figure = match what {
                "moves" => moves_then_idle(who).await,
                "failover" => failover(who, false).await,
                _ => failover(who, true).await,
            };
            println!("{what}, {name}: {figure}");
            figures[what][name] = figure;
        }
    }
    println!("{figures}");
}
