//! DNS names follow the addresses, on a real name server. A name is never empty, never stale, and the controller never
//! changes a record that belongs to someone else.

mod answers;
mod fleet;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::cluster::{NodeFixture, eventually, node};
use testbed::external_dns::ExternalDns;
use testbed::fake::ledger::CloudChange;
use testbed::nameserver::Nameserver;

use self::answers::{Answers, ask_repeatedly, stale_times};
use self::fleet::Fleet;
use crate::manifests;
use crate::rig::{Controller, Rig, SOON, UNLIMITED};

const ZONE: &str = "example.com";
const NAME: &str = "hello.example.com";
const ADDRESSES: [&str; 2] = ["203.0.113.10", "203.0.113.11"];

/// A pool with the addresses and worker nodes of the demo, published as `hello` in the zone.
fn pool(provider: &str) -> Value {
    let mut pool = manifests::pool_of_workers("hello");
    pool["spec"]["dnsRecordSet"] =
        json!({"provider": provider, "zone": ZONE, "recordName": "hello", "ttl": 2});
    pool
}

/// Starts a controller that may change the zone and marks its records with this owner ID.
fn publisher(rig: &Rig, settings: &[(&str, String)], owner: &str) -> Controller {
    let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
    // The rate limits of the cloud are not under test.
    let environment: Vec<_> = settings.chain(UNLIMITED).chain([("DNS_OWNER_ID", owner)]).collect();
    rig.controller("ip-address-controller", &environment)
}

/// Waits until the condition Ready of the object has this reason.
async fn until_reason(rig: &Rig, what: &str, reason: &str) {
    let expected = format!("{what} reports {reason}");
    let reported = eventually(&expected, SOON, async || {
        let object = rig.get(what);
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_it = |condition: &Value| condition["type"] == "Ready" && condition["reason"] == reason;
        Ok(conditions.iter().any(is_it))
    });
    reported.await.unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(what)["status"], rig.logs()));
}

/// Waits until the name server answers with exactly these values.
async fn answers(rig: &Rig, nameserver: &Nameserver, name: &str, values: &[&str]) -> Duration {
    let expected = format!("{name} is {values:?}");
    let answered = eventually(&expected, SOON, async || Ok(nameserver.query(name, "A")? == values));
    answered.await.unwrap_or_else(|error| {
        panic!("{error}\n{:#?}\n{}", nameserver.records().unwrap(), rig.logs());
    })
}

/// All records of the zone except for those of a name, and except for ownership records.
fn others(nameserver: &Nameserver, name: &str) -> Vec<String> {
    let mut records = nameserver.records().unwrap();
    records.retain(|record| !record.starts_with(&format!("{name}. ")) && !record.starts_with("_owner-"));
    records
}

// F7
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_record_is_left_alone_until_adopt_is_set() {
    let rig = Rig::prepare().await;
    let nameserver = Nameserver::start(ZONE).unwrap();
    nameserver.nsupdate(&format!("update add {NAME} 60 A 192.0.2.99")).unwrap();
    let before = nameserver.records().unwrap();
    let elsewhere = others(&nameserver, NAME);
    let _controller = publisher(&rig, &nameserver.environment(), "ours");
    rig.control_plane.apply(&pool("rfc2136").to_string()).unwrap();
    until_reason(&rig, "floatingippool/hello", "RecordNotOurs").await;
    // The controller attaches the addresses nevertheless.
    eventually("the addresses are attached", SOON, async || {
        Ok(rig.get("floatingippool/hello")["status"]["summary"]["attached"] == 2)
    })
    .await
    .unwrap();
    assert_eq!(nameserver.records().unwrap(), before);

    let adopt = json!({"spec": {"dnsRecordSet": {"adopt": true}}}).to_string();
    rig.kubectl(&["patch", "floatingippool/hello", "--type=merge", "-p", &adopt]);
    println!("adopted after {:?}", answers(&rig, &nameserver, NAME, &ADDRESSES).await);
    let mark = nameserver.query(&format!("_owner-a.{NAME}"), "TXT").unwrap();
    assert_eq!(mark, ["heritage=ip-address-controller,owner=ours"]);
    rig.settled("floatingippool/hello").await;
    let dns = rig.get("floatingippool/hello")["status"]["dns"].clone();
    assert_eq!((&dns["name"], &dns["owner"]), (&json!(NAME), &json!("ours")));
    assert_eq!(dns["values"], json!(ADDRESSES));
    assert_eq!(others(&nameserver, NAME), elsewhere, "the controller changed another name");
    let of_name = |record: &&String| record.starts_with(&format!("{NAME}. 2 IN A "));
    assert_eq!(
        nameserver.records().unwrap().iter().filter(of_name).count(),
        2,
        "both records must have the TTL of the spec"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_owner_ids_in_one_zone_do_not_overwrite_each_other() {
    const STILL: Duration = Duration::from_secs(10);
    let nameserver = Nameserver::start(ZONE).unwrap();
    let first = Rig::prepare().await;
    let _first = publisher(&first, &nameserver.environment(), "first");
    first.control_plane.apply(&pool("rfc2136").to_string()).unwrap();
    answers(&first, &nameserver, NAME, &ADDRESSES).await;
    first.settled("floatingippool/hello").await;

    // The second cluster has only one of the addresses, so it would publish a different value.
    let second = Rig::prepare().await;
    let _second = publisher(&second, &nameserver.other_environment(), "second");
    let mut pool = pool("rfc2136");
    pool["spec"]["ips"] = json!(ADDRESSES[..1]);
    second.control_plane.apply(&pool.to_string()).unwrap();
    until_reason(&second, "floatingippool/hello", "RecordOwnedByOther").await;

    let (records, serial) = (nameserver.records().unwrap(), nameserver.serial().unwrap());
    tokio::time::sleep(STILL).await;
    assert_eq!(nameserver.serial().unwrap(), serial, "a controller changed the zone");
    assert_eq!(nameserver.records().unwrap(), records);
    assert_eq!(nameserver.query(NAME, "A").unwrap(), ADDRESSES);
    until_reason(&second, "floatingippool/hello", "RecordOwnedByOther").await;
    first.settled("floatingippool/hello").await;
}

/// A node with an address of each type, labelled `publish=yes`.
fn published_node(number: u8) -> NodeFixture {
    let name = format!("published-{number}");
    node(&name)
        .label("publish", "yes")
        .address("Hostname", &name)
        .address("InternalIP", &format!("10.0.0.{number}"))
        .address("ExternalIP", &format!("198.51.100.{number}"))
}

// F7
#[tokio::test(flavor = "multi_thread")]
async fn a_record_set_follows_its_nodes_and_keeps_the_last_addresses() {
    let rig = Rig::prepare().await;
    let nameserver = Nameserver::start(ZONE).unwrap();
    for number in 1..=3 {
        published_node(number).create(&rig.client).await.unwrap();
    }
    let _controller = publisher(&rig, &nameserver.environment(), "ours");
    let record_set = |name: &str, address_type: Option<&str>| {
        let mut spec = json!({
            "dnsRecordSet": {"provider": "rfc2136", "zone": ZONE, "recordName": name, "ttl": 2},
            "match": {"nodeLabel": "publish=yes"},
        });
        if let Some(address_type) = address_type {
            spec["addressType"] = json!(address_type);
        }
        rig.control_plane.apply(&manifests::record_set(name, spec).to_string()).unwrap();
    };
    record_set("inside", Some("InternalIP"));
    record_set("outside", None);
    let (inside, outside) = ("inside.example.com", "outside.example.com");
    answers(&rig, &nameserver, inside, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]).await;
    answers(&rig, &nameserver, outside, &["198.51.100.1", "198.51.100.2", "198.51.100.3"]).await;
    for object in ["nodednsrecordset/inside", "nodednsrecordset/outside"] {
        rig.settled(object).await;
        assert_eq!(rig.get(object)["status"]["state"], "active");
    }

    rig.kubectl(&["delete", "node", "published-2"]);
    let followed = answers(&rig, &nameserver, inside, &["10.0.0.1", "10.0.0.3"]).await;
    println!("node deleted -> its address removed from the name: {followed:?}");
    answers(&rig, &nameserver, outside, &["198.51.100.1", "198.51.100.3"]).await;

    // kubectl writes the nodes one after the other, so the name keeps the last node or both.
    rig.kubectl(&["label", "nodes", "published-1", "published-3", "publish-"]);
    for object in ["nodednsrecordset/inside", "nodednsrecordset/outside"] {
        until_reason(&rig, object, "LastAddressesKept").await;
    }
    let kept = nameserver.query(inside, "A").unwrap();
    assert!(!kept.is_empty() && kept.iter().all(|kept| ["10.0.0.1", "10.0.0.3"].contains(&kept.as_str())));
    let serial = nameserver.serial().unwrap();

    rig.kubectl(&["label", "node", "published-1", "publish=yes"]);
    answers(&rig, &nameserver, inside, &["10.0.0.1"]).await;
    answers(&rig, &nameserver, outside, &["198.51.100.1"]).await;
    rig.settled("nodednsrecordset/inside").await;
    println!("{} changes of the zone after no node matched", nameserver.serial().unwrap() - serial);
}

#[tokio::test(flavor = "multi_thread")]
async fn external_dns_publishes_our_dnsendpoint_and_its_changes() {
    let rig = Rig::prepare().await;
    let nameserver = Nameserver::start(ZONE).unwrap();
    let Some(external_dns) = ExternalDns::start(&rig.control_plane, &nameserver).unwrap() else {
        println!(
            "skipped: external-dns is not built: run `tools/build external-dns`, which takes about 10 minutes"
        );
        return;
    };
    // The controller needs neither a name server nor a key.
    let _controller = publisher(&rig, &[], "ours");
    rig.control_plane.apply(&pool("external-dns").to_string()).unwrap();
    rig.settled("floatingippool/hello").await;
    let published = eventually("external-dns has published both addresses", SOON, async || {
        Ok(nameserver.query(NAME, "A")? == ADDRESSES)
    });
    let published = published.await.unwrap_or_else(|error| {
        let endpoints = rig.kubectl(&["get", "dnsendpoints", "-A", "-o", "yaml"]);
        panic!("{error}\n{endpoints}\n{}", external_dns.log_tail())
    });
    println!("DNSEndpoint -> records: {published:?}");

    // When the pool loses its second address, the endpoint and then the name lose it too.
    let fewer = json!({"spec": {"ips": ADDRESSES[..1]}}).to_string();
    rig.kubectl(&["patch", "floatingippool/hello", "--type=merge", "-p", &fewer]);
    answers(&rig, &nameserver, NAME, &ADDRESSES[..1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dnsendpoint_follows_its_pool_and_is_deleted_with_it() {
    let rig = Rig::prepare().await;
    ExternalDns::install_crd(&rig.control_plane).unwrap();
    // Without DNS_OWNER_ID, the owner ID is the UID of the namespace kube-system.
    let _controller = rig.controller("ip-address-controller", &[]);
    let mut object = pool("external-dns");
    object["spec"]["policy"] = json!({"onDelete": "Detach"});
    rig.control_plane.apply(&object.to_string()).unwrap();
    rig.settled("floatingippool/hello").await;
    let endpoint = || rig.get("dnsendpoint/floatingippool-hello-a");
    assert_eq!(endpoint()["spec"]["endpoints"][0]["targets"], json!(ADDRESSES));
    assert_eq!(endpoint()["spec"]["endpoints"][0]["dnsName"], NAME);
    let cluster = rig.get("namespace/kube-system")["metadata"]["uid"].clone();
    assert_eq!(rig.get("floatingippool/hello")["status"]["dns"]["owner"], cluster);

    let fewer = json!({"spec": {"ips": ADDRESSES[..1]}}).to_string();
    rig.kubectl(&["patch", "floatingippool/hello", "--type=merge", "-p", &fewer]);
    eventually("the endpoint has only the first address", SOON, async || {
        Ok(endpoint()["spec"]["endpoints"][0]["targets"] == json!(ADDRESSES[..1]))
    })
    .await
    .unwrap();
    rig.kubectl(&["delete", "floatingippool/hello", "--timeout=180s"]);
    let left = rig.kubectl(&["get", "dnsendpoints", "-A", "-o", "name"]);
    assert_eq!(left, "", "policy.onDelete is Detach, so the endpoint must be gone");
    eventually("an Event reports the deletion", SOON, async || {
        let events = rig.kubectl(&["get", "events", "--field-selector", "reason=Unpublished"]);
        Ok(events.contains(&format!("{NAME} at ")) && events.contains("deleted the records of"))
    })
    .await
    .unwrap();
}

#[test]
fn the_check_finds_a_name_that_keeps_a_detached_address() {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let address = "198.51.100.1".to_owned();
    let attached = |vm: &str| CloudChange::Attached { address: address.clone(), vm: vm.to_owned() };
    let detached = |vm: &str| CloudChange::Detached { address: address.clone(), vm: vm.to_owned() };
    let changes = [(at(0), attached("1")), (at(10), detached("1")), (at(20), attached("2"))];
    let stale = |first: u64, last: u64, value: &str| {
        let answers = Answers { values: vec![value.to_owned()], first: at(first), last: at(last), count: 2 };
        let times = stale_times(&[answers], &changes, std::slice::from_ref(&address), Duration::ZERO);
        times.into_iter().max().unwrap_or_default().as_secs()
    };
    assert_eq!(stale(1, 9, "198.51.100.1"), 0, "the address was attached");
    assert_eq!(stale(1, 13, "198.51.100.1"), 3);
    assert_eq!(stale(15, 16, "198.51.100.1"), 6, "the name got the detached address again");
    assert_eq!(stale(1, 30, "198.51.100.1"), 10, "the period ends when the address is attached again");
    assert_eq!(stale(21, 30, "198.51.100.1"), 0);
    assert_eq!(stale(1, 30, "198.51.100.2"), 0, "another address");
}

// F4 F7
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_never_empty_through_200_failovers_and_node_losses() {
    const FAILOVERS: usize = 200;
    const TTL: Duration = Duration::from_secs(2);
    // The controller, the name server and the resolver share a busy machine, so each may be a little late.
    const SLACK: Duration = Duration::from_millis(500);
    let rig = Rig::prepare().await;
    let nameserver = Nameserver::start(ZONE).unwrap();
    let mut fleet = Fleet::create(&rig).await;
    let _controller = publisher(&rig, &nameserver.environment(), "ours");
    let mut pool = pool("rfc2136");
    pool["spec"]["ips"] = json!(fleet.addresses);
    pool["spec"]["match"] =
        json!({"nodeLabel": "fleet=yes", "podNamespace": "default", "podLabel": "app=fleet"});
    rig.control_plane.apply(&pool.to_string()).unwrap();
    let addresses = fleet.addresses.clone();
    let all: Vec<_> = addresses.iter().map(String::as_str).collect();
    answers(&rig, &nameserver, NAME, &all).await;

    // Without a pause, the queries occupy one core. `just nightly` runs the test that way.
    let pause = std::env::var("DNS_QUERY_PAUSE_MS").map_or(1, |pause| pause.parse().unwrap());
    let pause = Duration::from_millis(pause);
    let (address, stop) = (nameserver.address(), std::sync::Arc::new(AtomicBool::new(false)));
    let asking = std::thread::spawn({
        let stop = std::sync::Arc::clone(&stop);
        move || ask_repeatedly(address, NAME, pause, &stop)
    });
    let started = Instant::now();
    let (mut failovers, mut losses) = (0, 0);
    for round in 0.. {
        if failovers >= FAILOVERS {
            break;
        }
        failovers += match round % 10 {
            // All at once: for a moment no address is on a node with a pod.
            3 => {
                fleet.move_pods(4).await;
                4
            }
            // No node takes the address for so long that the controller must remove it from the name.
            6 => {
                losses += 1;
                fleet.lose_one(2 * TTL).await;
                1
            }
            8 => {
                losses += 1;
                fleet.lose_one(Duration::ZERO).await;
                1
            }
            _ => {
                fleet.move_pods(1).await;
                1
            }
        };
        fleet.followed().await;
    }
    let took = started.elapsed();
    answers(&rig, &nameserver, NAME, &all).await;
    stop.store(true, Ordering::Relaxed);
    let (noted, failed) = asking.join().unwrap();

    let changes = rig.clouds.digitalocean.changes();
    let changes: Vec<_> = changes.into_iter().map(|(at, change)| (at.into_std(), change)).collect();
    let all_times = stale_times(&noted, &changes, &addresses, Duration::ZERO);
    let longest = all_times.into_iter().max().unwrap_or_default();
    // In shorter periods, the controller does not have to remove the address.
    let mut times = stale_times(&noted, &changes, &addresses, 2 * TTL);
    times.sort();
    let usual = times.get(times.len() / 2).copied().unwrap_or_default();
    let queries: usize = noted.iter().map(|answers| answers.count).sum();
    let empty: usize =
        noted.iter().filter(|answers| answers.values.is_empty()).map(|answers| answers.count).sum();
    println!(
        "{}",
        json!({
            "failovers": failovers, "node_losses": losses, "seconds": took.as_secs(), "queries": queries,
            "without_an_answer": failed.len(), "empty_answers": empty, "different_answers": noted.len(),
            "changes_of_the_zone": nameserver.serial().unwrap() - 1,
            "unattached_and_served_milliseconds": usual.as_millis(),
            "longest_unattached_and_served_milliseconds": longest.as_millis(),
        })
    );
    assert_eq!(failed, Vec::<String>::new(), "a query had no answer");
    assert_eq!(empty, 0, "the name was empty");
    assert!(usual <= TTL + SLACK, "the name had a detached address for {times:?}");
    // The machine may stop for seconds.
    assert!(longest <= 10 * TTL, "the name had a detached address for {longest:?}");
    assert!(
        noted.iter().flat_map(|answers| &answers.values).all(|value| addresses.contains(value)),
        "the name had a foreign address"
    );
    assert!(noted.len() > losses, "the name never changed, so nothing was tested");
    assert!(queries > 100 * failovers, "{queries} queries are too few to find a short gap");
    assert_eq!(rig.clouds.digitalocean.ledger().double_holders(), Vec::<String>::new());
}
