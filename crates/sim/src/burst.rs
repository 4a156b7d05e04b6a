//! Fails over 1,000 addresses at once, under the real rate limits of a cloud.
//!
//! In: a cloud, and whether the previous holders are dead or alive. Out: how long the failover took in virtual time,
//! and which calls it needed. It never injects faults.

use std::sync::Arc;
use std::time::Duration;

use controller::backoff::Retry;
use controller::metrics::Identity;
use controller::runtime::{AllMetrics, Options, control};
use futures::FutureExt;
use serde_json::{Value, json};
use testbed::burst::{ADDRESSES, Burst, Holders, Place, ip};

use crate::apiserver::moment;
use crate::clouds::clouds;
use crate::edges::edges;
use crate::objects::conditions;
use crate::universe::{Process, Universe};

/// Maximum virtual time of each phase: the first placement, and the failover.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Fails over 1,000 addresses. Returns None if the first placement does not finish, or there is nothing to measure.
pub fn burst(place: &Place, holders: Holders) -> Option<Burst> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().ok()?;
    runtime.block_on(fail_over(place, holders))
}

async fn fail_over(place: &Place, holders: Holders) -> Option<Burst> {
    let universe = Universe::new(0, clouds());
    let accounts = universe.accounts();
    for number in 0..2 * ADDRESSES {
        let batch = if number < ADDRESSES { "old" } else { "new" };
        universe.api.create("nodes", &node(&universe, place, number, batch), universe.now());
    }
    (0..ADDRESSES).for_each(|number| (place.add_address)(&accounts, &ip(number), number));
    universe.api.create("floatingippools", &pool(place), universe.now());
    let process = Process::new(1, Arc::clone(&universe), 0);
    let metrics = AllMetrics::new(&Identity::default()).ok()?;
    let edges = edges(&universe, &process, &metrics.process);
    let running = tokio::spawn(control(edges, options(), metrics, std::future::pending().boxed()));
    wait(&universe, |universe| summary(universe) == Some(ADDRESSES)).await?;
    // Wait until the rate limits of the account have recovered.
    tokio::time::sleep(Duration::from_secs(120)).await;

    let before = (place.ledger)(&accounts);
    for number in holders.dead() {
        (place.remove_machine)(&accounts, number);
        universe.api.delete("nodes", "", &name(number), universe.now());
    }
    universe.api.edit("floatingippools", "default", "big", universe.now(), |pool| {
        pool["spec"]["match"]["nodeLabel"] = "batch=new".into();
    });
    // If the failover does not finish, the number of arrived addresses shows it.
    _ = wait(&universe, |universe| place.arrived(&universe.accounts(), &before) >= ADDRESSES).await;
    running.abort();
    place.judge(&accounts, &before, holders)
}

async fn wait(universe: &Universe, is_so: impl Fn(&Universe) -> bool) -> Option<()> {
    let until = universe.elapsed() + LONGEST;
    while !is_so(universe) {
        if universe.elapsed() > until {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Some(())
}

fn summary(universe: &Universe) -> Option<u64> {
    universe.api.all("floatingippools").first()?["status"]["summary"]["attached"].as_u64()
}

fn name(number: u64) -> String {
    format!("big-{number:05}")
}

fn node(universe: &Universe, place: &Place, number: u64, batch: &str) -> Value {
    let labels = json!({"batch": batch, "topology.kubernetes.io/region": place.region});
    json!({
        "metadata": {"name": name(number), "labels": labels},
        "spec": {"providerID": (place.add_machine)(&universe.accounts(), number)},
        "status": {"conditions": conditions("True", &moment(universe.now()))},
    })
}

fn pool(place: &Place) -> Value {
    let ips: Vec<_> = (0..ADDRESSES).map(ip).collect();
    json!({
        "metadata": {"name": "big", "namespace": "default"},
        "spec": {
            "provider": place.provider, "region": place.region, "ips": ips, "match": {"nodeLabel": "batch=old"},
        },
    })
}

fn options() -> Options {
    Options {
        identity: "p1".into(),
        node: None,
        namespace: None,
        lease: ("kube-system".into(), "lease".into()),
        lease_duration: Duration::from_secs(15),
        takeover: Duration::from_secs(5),
        retry: Retry { shortest: Duration::from_secs(1), longest: Duration::from_secs(300) },
        dns_owner: Some("simulated".into()),
        created_max: 0,
        keeps_addresses: true,
        vips: None,
    }
}
