//! Measurements on the real control plane: `just bench failover`, `just bench clouds`, `just bench idle`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::FloatingIPPool;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use plan::Timestamp;
use serde_json::json;
use testbed::burst::{ADDRESSES, Accounts, Burst, Holders, PLACES, Place, ip};
use testbed::cluster::{eventually, node};

use crate::rig::{Rig, UNLIMITED, read, resident_megabytes};
use crate::workloads::{address, allocation, grow, zone};

const LONG: Duration = Duration::from_secs(400);

fn place(provider: &str) -> &'static Place {
    PLACES.iter().find(|place| place.provider == provider).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench failover"]
async fn a_thousand_addresses_of_one_pool_fail_over_at_once() {
    let rig = Rig::prepare().await;
    rig.clouds.digitalocean.enforce_limits(false);
    let place = place("digitalocean");
    create_fleet(&rig, place).await;

    let pools: Api<FloatingIPPool> = Api::namespaced(rig.client.clone(), "default");
    pools.create(&PostParams::default(), &pool(place)).await.unwrap();
    let _controller = rig.controller("ip-address-controller", &UNLIMITED);
    rig.settled("floatingippool/big").await;

    // The watch starts before the change, so it sees every write.
    let config = watcher::Config::default().fields("metadata.name=big");
    let mut changes = Box::pin(watcher(pools.clone(), config).applied_objects());
    changes.try_next().await.unwrap().unwrap();
    let before = rig.clouds.digitalocean.ledger().calls();
    let started = Instant::now();
    // All holders stop matching at once.
    let edit = json!({"spec": {"match": {"nodeLabel": "batch=new"}}});
    let edited = pools.patch("big", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();

    let (mut writes, mut largest) = (BTreeMap::new(), 0);
    loop {
        let object = tokio::time::timeout(LONG, changes.try_next()).await.unwrap().unwrap().unwrap();
        if object.resource_version() == edited.resource_version() {
            continue;
        }
        largest = largest.max(serde_json::to_string(&object).unwrap().len());
        writes.insert(object.resource_version().unwrap(), ());
        let status = object.status.unwrap_or_default();
        let active = status.addresses.iter().filter(|address| {
            let holder: u64 =
                address.last_holder.as_ref().and_then(|holder| holder.vm.parse().ok()).unwrap_or(0);
            address.node_name.is_some() && holder >= 10_000 + ADDRESSES
        });
        if active.count() as u64 == ADDRESSES && status.moves.is_none() {
            break;
        }
    }
    let took = started.elapsed();
    let ledger = rig.clouds.digitalocean.ledger();
    assert_eq!(ledger.double_holders(), Vec::<String>::new());
    let calls: BTreeMap<_, _> = ledger
        .calls()
        .into_iter()
        .map(|(call, count)| (call, count - before.get(call).unwrap_or(&0)))
        .collect();
    println!(
        "{}",
        json!({
            "addresses": ADDRESSES, "seconds": took.as_secs_f64(), "writes_to_the_object": writes.len(),
            "largest_object_bytes": largest, "calls": calls,
        })
    );
}

/// Creates two thousand nodes with VMs, and a thousand addresses.
async fn create_fleet(rig: &Rig, place: &Place) {
    let accounts = accounts(rig);
    let fixture = |number: u64| {
        let batch = if number < ADDRESSES { "old" } else { "new" };
        let fate = if Holders::Mixed.dead().contains(&number) { "dead" } else { "alive" };
        node(&format!("big-{number:05}"))
            .provider_id(&(place.add_machine)(&accounts, number))
            .label("topology.kubernetes.io/region", place.region)
            .label("pool", "big")
            .label("batch", batch)
            .label("fate", fate)
    };
    let create = |number: u64| {
        let (fixture, client) = (fixture(number), rig.client.clone());
        async move { fixture.create(&client).await }
    };
    let created = futures::stream::iter((0..2 * ADDRESSES).map(create)).buffer_unordered(16);
    created.try_collect::<Vec<_>>().await.unwrap();
    (0..ADDRESSES).for_each(|number| (place.add_address)(&accounts, &ip(number), number));
    let nodes: Api<Node> = Api::all(rig.client.clone());
    eventually("all nodes are Ready", LONG, async || {
        let all = nodes.list(&ListParams::default().labels("pool=big")).await?;
        let is_ready = |node: &&Node| {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True").count()
                == 1
                && node.spec.as_ref().is_none_or(|spec| spec.taints.is_none())
        };
        Ok(all.items.iter().filter(is_ready).count() as u64 == 2 * ADDRESSES)
    })
    .await
    .unwrap();
}

fn accounts(rig: &Rig) -> Accounts<'_> {
    Accounts {
        project: testbed::demo::PROJECT,
        compute: &rig.clouds.compute,
        digitalocean: &rig.clouds.digitalocean,
        azure: &rig.clouds.azure,
        ec2: &rig.clouds.ec2,
    }
}

/// A pool with all addresses, for the nodes of the old batch.
fn pool(place: &Place) -> FloatingIPPool {
    let ips: Vec<_> = (0..ADDRESSES).map(ip).collect();
    let spec = json!({
        "provider": place.provider, "region": place.region, "ips": ips, "match": {"nodeLabel": "batch=old"},
    });
    FloatingIPPool::new("big", serde_json::from_value(spec).unwrap())
}

/// Measures how a thousand addresses of one pool move. One half is on VMs that are deleted, the other half on nodes
/// that stop matching.
async fn half_dead_and_half_alive(provider: &str) {
    let place = place(provider);
    let rig = Rig::with(testbed::control_plane::Options::everything()).await;
    create_fleet(&rig, place).await;
    let pools: Api<FloatingIPPool> = Api::namespaced(rig.client.clone(), "default");
    pools.create(&PostParams::default(), &pool(place)).await.unwrap();
    let _controller = rig.controller("ip-address-controller", &[]);
    rig.settled("floatingippool/big").await;
    // Wait until the rate limit of the account has recovered.
    tokio::time::sleep(Duration::from_secs(120)).await;

    let before = (place.ledger)(&accounts(&rig));
    Holders::Mixed.dead().for_each(|number| (place.remove_machine)(&accounts(&rig), number));
    let nodes: Api<Node> = Api::all(rig.client.clone());
    let (dead, at_once) = (ListParams::default().labels("fate=dead"), DeleteParams::default());
    nodes.delete_collection(&at_once, &dead).await.unwrap();
    let edit = json!({"spec": {"match": {"nodeLabel": "batch=new"}}});
    pools.patch("big", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
    let arrived = async || Ok(place.arrived(&accounts(&rig), &before) >= ADDRESSES);
    // If not all addresses arrive in time, the table shows how many did.
    _ = eventually("all addresses have arrived", 3 * LONG, arrived).await;
    let burst = place.judge(&accounts(&rig), &before, Holders::Mixed).unwrap();
    println!("{}\n{}", Burst::HEAD, burst.row(place, Holders::Mixed));
    assert_eq!(burst.doubled, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench clouds"]
async fn mass_failover_within_the_rate_limits_of_digitalocean() {
    half_dead_and_half_alive("digitalocean").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench clouds"]
async fn mass_failover_within_the_rate_limits_of_google_cloud() {
    half_dead_and_half_alive("gcp").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench clouds"]
async fn mass_failover_within_the_rate_limits_of_aws() {
    half_dead_and_half_alive("aws").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench clouds"]
async fn mass_failover_within_the_rate_limits_of_azure() {
    half_dead_and_half_alive("azure").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench idle"]
async fn five_hundred_addresses_on_two_thousand_nodes_cost_few_calls() {
    const MINUTE: Duration = Duration::from_secs(60);
    let rig = Rig::prepare().await;
    grow(&rig, 2_003, 500).await;
    rig.clouds.compute.with(|compute| {
        (1..=500).for_each(|at| compute.attach_now(&address(at), zone(at + 3), &format!("edge-{}", at + 3)));
    });
    let controller = rig.controller("ip-address-controller", &[]);
    rig.control_plane.apply(&allocation("edge", 1..=500, 5).to_string()).unwrap();
    let settled = eventually("all addresses are attached", LONG, async || {
        Ok(rig.get("nia/edge")["status"]["summary"]["attached"] == 500)
    });
    settled.await.unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = rig.clouds.compute.ledger().asked.len();
    tokio::time::sleep(MINUTE).await;
    let made = rig.clouds.compute.ledger().asked.len() - before;
    let resident = resident_megabytes(&controller.process);
    println!(
        "{}",
        json!({"addresses": 500, "nodes": 2_003, "calls_a_minute": made, "resident_megabytes": resident})
    );
    assert!(made <= 15, "{:?}", rig.clouds.compute.ledger().calls());
}

/// The average number of requests a minute from the controller to the apiserver, measured for two minutes.
async fn requests_a_minute(rig: &Rig) -> BTreeMap<String, f64> {
    const MINUTES: u64 = 2;
    let from = Timestamp::now();
    tokio::time::sleep(Duration::from_secs(60 * MINUTES)).await;
    let counted = rig.control_plane.requests(from, Timestamp::now());
    counted.into_iter().map(|(request, count)| (request, count as f64 / MINUTES as f64)).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench idle"]
async fn an_idle_leader_and_a_standby_send_few_requests_to_the_apiserver() {
    let (rig, _leader) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let alone = requests_a_minute(&rig).await;
    let _standby = rig.controller("ip-address-controller-2", &[]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let both = requests_a_minute(&rig).await;
    let sum = |requests: &BTreeMap<String, f64>| requests.values().sum::<f64>();
    let (leader, standby) = (sum(&alone), sum(&both) - sum(&alone));
    println!(
        "{}",
        json!({"leader": leader, "standby": standby, "requests_of_the_leader": alone, "of_both": both})
    );
    assert!(leader <= 40.0 && standby <= 10.0, "{alone:?}, with a standby {both:?}");
    let is_list_or_write = |request: &String| {
        request.starts_with("list ")
            || (!request.starts_with("watch ") && !request.starts_with("get ") && request != "update leases")
    };
    assert!(!both.keys().any(is_list_or_write), "{both:?}");
}
