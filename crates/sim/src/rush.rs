//! A thousand addresses that fail over at once, under each cloud's real limits.
//!
//! In: a cloud, and whether the holders are dead or alive. Out: how long it took in simulated time, what was asked for it,
//! and the floor: how long the calls that the steps require take at the cloud's limits, whoever makes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use controller::metrics::{Identity, Metrics};
use controller::rounds::Retry;
use controller::run::{Terms, control};
use futures::FutureExt;
use serde_json::{Value, json};
use testbed::fake::Machine;
use testbed::fake::ledger::{Deed, Ledger};
use testbed::fake::limits::{Limit, Rate};

use crate::apiserver::moment;
use crate::cluster::{AWS_REGION, AWS_ZONE, clouds, conditions};
use crate::edges::edges;
use crate::universe::{PROJECT, Process, Universe};

/// How many addresses fail over.
pub const ADDRESSES: u64 = 1_000;

/// The longest that a run may take in its own time.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What becomes of the holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// Their machines and nodes are gone.
    Dead,
    /// They are well, and stop matching.
    Alive,
    /// One half is gone, and the other half stops matching.
    Mixed,
}

/// A cloud that addresses fail over in.
#[derive(Clone, Copy)]
pub struct Place {
    /// The provider, as users write it.
    pub provider: &'static str,
    region: &'static str,
    add_machine: fn(&Universe, u64) -> String,
    remove_machine: fn(&Universe, u64),
    add_address: fn(&Universe, &str, u64),
    ledger: fn(&Universe) -> Ledger,
    limits: fn() -> Vec<Limit>,
    /// The calls that one move takes, off a dead holder and off a live one.
    calls: [&'static [&'static str]; 2],
    /// A page of a listing, and how many addresses it tells of at the most.
    page: (&'static str, u64),
}

/// All clouds.
pub const PLACES: &[Place] = &[
    Place {
        provider: "digitalocean",
        region: "nyc3",
        add_machine: |universe, number| {
            universe.ocean.with(|ocean| ocean.add_droplet(10_000 + number, format!("m-{number}"), "nyc3"));
            format!("digitalocean://{}", 10_000 + number)
        },
        remove_machine: |universe, number| universe.ocean.with(|ocean| ocean.remove_droplet(10_000 + number)),
        add_address: |universe, ip, holder| {
            universe.ocean.with(|ocean| {
                ocean.add_reserved_ip(ip, "nyc3");
                ocean.assign_now(ip, 10_000 + holder);
            });
        },
        ledger: |universe| universe.ocean.ledger(),
        limits: testbed::fake::digitalocean::DigitalOcean::limits,
        calls: [&["reserved_ips_actions.post"], &["reserved_ips_actions.post"]],
        page: ("reserved_ips.list", 200),
    },
    Place {
        provider: "gcp",
        region: "us-west1",
        add_machine: |universe, number| {
            let name = format!("m-{number}");
            universe.compute.with(|compute| compute.add_instance_without_address("us-west1-a", &name));
            format!("gce://{PROJECT}/us-west1-a/{name}")
        },
        remove_machine: |universe, number| {
            universe.compute.with(|compute| compute.remove_instance("us-west1-a", &format!("m-{number}")));
        },
        add_address: |universe, ip, holder| {
            universe.compute.with(|compute| {
                compute.add_address("us-west1", &format!("a-{holder}"), ip);
                compute.attach_now(ip, "us-west1-a", &format!("m-{holder}"));
            });
        },
        ledger: |universe| universe.compute.ledger(),
        limits: testbed::fake::compute::Compute::limits,
        calls: [
            &["instances.get", "instances.addAccessConfig", "zoneOperations.get"],
            &[
                "instances.get",
                "instances.deleteAccessConfig",
                "zoneOperations.get",
                "instances.get",
                "instances.addAccessConfig",
                "zoneOperations.get",
            ],
        ],
        page: ("addresses.aggregatedList", 500),
    },
    Place {
        provider: "azure",
        region: "westeurope",
        add_machine: |universe, number| {
            universe.azure.with(|azure| {
                let name = format!("m-{number}");
                azure.add_machine(&name, "westeurope");
                format!("azure://{}", azure.id(&format!("Microsoft.Compute/virtualMachines/{name}")))
            })
        },
        remove_machine: |universe, number| {
            universe.azure.with(|azure| azure.remove_machine(&format!("m-{number}")));
        },
        add_address: |universe, ip, holder| {
            universe.azure.with(|azure| {
                azure.add_address(&format!("a-{holder}"), "westeurope", ip);
                azure.attach_now(ip, &format!("m-{holder}"));
            });
        },
        ledger: |universe| universe.azure.ledger(),
        limits: testbed::fake::azure::Azure::limits,
        calls: [
            &[
                "PublicIPAddresses_Get",
                "NetworkInterfaces_Get",
                "NetworkInterfaces_CreateOrUpdate",
                "Operations_Get",
            ],
            &[
                "PublicIPAddresses_Get",
                "NetworkInterfaces_Get",
                "NetworkInterfaces_CreateOrUpdate",
                "Operations_Get",
                "PublicIPAddresses_Get",
                "NetworkInterfaces_Get",
                "NetworkInterfaces_CreateOrUpdate",
                "Operations_Get",
            ],
        ],
        page: ("PublicIPAddresses_ListAll", 100),
    },
    Place {
        provider: "aws",
        region: AWS_REGION,
        add_machine: |universe, number| {
            let id = format!("i-{number}");
            universe.ec2.with(|ec2| ec2.add_instance_without_address(AWS_REGION, &id));
            format!("aws:///{AWS_ZONE}/{id}")
        },
        remove_machine: |universe, number| {
            universe.ec2.with(|ec2| ec2.terminate_instance(&format!("i-{number}")));
        },
        add_address: |universe, ip, holder| {
            universe.ec2.with(|ec2| {
                ec2.add_address(AWS_REGION, ip);
                ec2.attach_now(ip, &format!("i-{holder}"));
            });
        },
        ledger: |universe| universe.ec2.ledger(),
        limits: testbed::fake::ec2::Ec2::limits,
        calls: [
            &["DescribeInstances", "AssociateAddress"],
            &["DescribeAddresses", "DisassociateAddress", "DescribeInstances", "AssociateAddress"],
        ],
        page: ("DescribeAddresses", u64::MAX),
    },
];

/// What a failover came to.
pub struct Rush {
    /// From the event to the last address on its new machine.
    pub took: Duration,
    /// How long the calls that the steps require take at the cloud's limits.
    pub floor: Duration,
    /// What was asked, by call.
    pub calls: BTreeMap<&'static str, usize>,
    /// How often the cloud said that it was too much.
    pub throttled: usize,
    /// How many addresses arrived.
    pub arrived: usize,
    /// Of a mixed one, how many of live holders' addresses were ordered before the last of a dead one's.
    pub overtaken: usize,
    /// Moments at which an address was told to two machines.
    pub doubled: Vec<String>,
}

/// Lets a thousand addresses fail over.
pub fn rush(place: &Place, holders: Holders) -> Option<Rush> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().ok()?;
    runtime.block_on(fail_over(place, holders))
}

async fn fail_over(place: &Place, holders: Holders) -> Option<Rush> {
    let universe = Universe::new(0, clouds());
    for number in 0..2 * ADDRESSES {
        let batch = if number < ADDRESSES { "old" } else { "new" };
        universe.api.create("nodes", &node(&universe, place, number, batch), universe.now());
    }
    (0..ADDRESSES).for_each(|number| (place.add_address)(&universe, &ip(number), number));
    universe.api.create("floatingippools", &pool(place), universe.now());
    let process = Process::new(1, Arc::clone(&universe), 0);
    let (edges, metrics) = (edges(&universe, &process), Metrics::new(&Identity::default()).ok()?);
    let running = tokio::spawn(control(edges, terms(), metrics, std::future::pending().boxed()));
    wait(&universe, |universe| summary(universe) == Some(ADDRESSES)).await?;
    // The account has what a minute allows, and more.
    tokio::time::sleep(Duration::from_secs(120)).await;

    let (before, started) = ((place.ledger)(&universe), universe.elapsed());
    let dead = match holders {
        Holders::Dead => 0..ADDRESSES,
        Holders::Alive => 0..0,
        Holders::Mixed => 0..ADDRESSES / 2,
    };
    for number in dead.clone() {
        (place.remove_machine)(&universe, number);
        universe.api.delete("nodes", "", &name(number), universe.now());
    }
    universe.api.edit("floatingippools", "default", "big", universe.now(), |pool| {
        pool["spec"]["match"]["nodeLabel"] = "batch=new".into();
    });
    let began = before.done.len();
    let arrived = |universe: &Universe| {
        let done = (place.ledger)(universe).done;
        done[began.min(done.len())..].iter().filter(|done| matches!(done.deed, Deed::Attached { .. })).count()
    };
    // One that never ends shows in how many have arrived.
    _ = wait(&universe, |universe| arrived(universe) as u64 >= ADDRESSES).await;
    running.abort();
    let ledger = (place.ledger)(&universe);
    let asked = &ledger.asked[before.asked.len()..];
    let mut calls = BTreeMap::new();
    asked.iter().for_each(|asked| *calls.entry(asked.call).or_default() += 1);
    let last = ledger.done.iter().rev().find(|done| matches!(done.deed, Deed::Attached { .. }))?;
    let first_call = asked.first()?.at;
    Some(Rush {
        took: universe.elapsed().saturating_sub(started).min(last.at.saturating_sub(first_call)),
        floor: floor(place, dead.end - dead.start),
        throttled: asked.iter().filter(|asked| matches!(asked.status, 429 | 503)).count(),
        arrived: arrived(&universe),
        overtaken: overtaken(&ledger, began, dead.end),
        calls,
        doubled: ledger.double_holders(),
    })
}

/// How many orders for addresses of live holders came before the last one for an address of a dead holder.
fn overtaken(ledger: &Ledger, began: usize, dead: u64) -> usize {
    let is_dead = |address: &str| (0..dead).any(|number| ip(number) == address);
    let orders: Vec<bool> = ledger.done[began..]
        .iter()
        .filter_map(|done| match &done.deed {
            Deed::Told { address, .. } => Some(is_dead(address)),
            _ => None,
        })
        .collect();
    let last = orders.iter().rposition(|is_dead| *is_dead).unwrap_or(0);
    orders[..last].iter().filter(|is_dead| !**is_dead).count()
}

/// How long the calls that the steps require take at the cloud's limits: two listings, one before the moves are journalled
/// and one after, and each move's own calls.
fn floor(place: &Place, dead: u64) -> Duration {
    let [off_dead, off_live] = place.calls;
    let listings = 2 * (ADDRESSES.div_ceil(place.page.1));
    let mut required = BTreeMap::from([(place.page.0, listings)]);
    for (calls, moves) in [(off_dead, dead), (off_live, ADDRESSES - dead)] {
        calls.iter().for_each(|call| *required.entry(call).or_default() += moves);
    }
    let time = |limit: &Limit| {
        let route = |name: &'static str| testbed::fake::Route { name, params: Vec::new() };
        let counted = required.iter().filter(|(call, _)| (limit.counts)(&route(call)));
        let count: u64 = counted.map(|(_, count)| *count).sum();
        match limit.rate {
            Rate::Window { max, window, .. } => {
                window * u32::try_from(count.saturating_sub(1) / u64::from(max)).unwrap_or(u32::MAX)
            }
            Rate::Bucket { burst, interval } => {
                interval * u32::try_from(count.saturating_sub(u64::from(burst))).unwrap_or(u32::MAX)
            }
        }
    };
    (place.limits)().iter().map(time).max().unwrap_or_default()
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

fn ip(number: u64) -> String {
    format!("198.18.{}.{}", number / 250, number % 250 + 1)
}

fn name(number: u64) -> String {
    format!("big-{number:05}")
}

fn node(universe: &Universe, place: &Place, number: u64, batch: &str) -> Value {
    let labels = json!({"batch": batch, "topology.kubernetes.io/region": place.region});
    json!({
        "metadata": {"name": name(number), "labels": labels},
        "spec": {"providerID": (place.add_machine)(universe, number)},
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

fn terms() -> Terms {
    Terms {
        identity: "p1".into(),
        node: None,
        namespace: None,
        lease: ("kube-system".into(), "lease".into()),
        lease_duration: Duration::from_secs(15),
        takeover: Duration::from_secs(5),
        retry: Retry { shortest: Duration::from_secs(1), longest: Duration::from_secs(300) },
        dns_owner: Some("simulated".into()),
        keeps_addresses: true,
        vips: None,
    }
}
