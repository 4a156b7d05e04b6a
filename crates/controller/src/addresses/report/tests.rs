//! Which writes the reporter starts, and in which order. The apiserver is a fake that gives each path its own answer, or
//! none.

use std::sync::Mutex;
use std::time::Duration;

use http::{Method, StatusCode};
use kube::client::Body;
use plan::{Epoch, Journal, Mark, Move, PENDING, Target};
use serde_json::json;
use tower::BoxError;

use super::*;
use crate::addresses::node::Node;
use crate::addresses::resources::floating_ip_pool;
use crate::addresses::watch::Observed;
use crate::kubernetes::decode::{Change, Decoded};
use crate::leadership::clock::{Clock, SystemClock};

const ANNOTATION: &str = "flipop.digitalocean.com/ipv4-reserved-ip";

/// The requests so far, each as the last part of its path and its body.
type Requests = Arc<Mutex<Vec<(String, String)>>>;

/// A reporter whose requests get the answer that this function returns for their path. With `None` they get none, and a
/// gateway timeout takes three seconds.
fn reporter(answer: impl Fn(&str) -> Option<StatusCode> + Send + 'static) -> (Reporter, Requests) {
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (seen, code) = (Arc::clone(&seen), answer(request.uri().path()));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            if parts.method != Method::POST {
                let path = parts.uri.path().trim_end_matches("/status");
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                seen.lock().unwrap().push((name, String::from_utf8_lossy(&body).into_owned()));
            }
            let Some(code) = code else { return std::future::pending().await };
            if code == StatusCode::GATEWAY_TIMEOUT {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            let body = match code.is_success() {
                true => json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
                false => {
                    let reason = if code == StatusCode::CONFLICT { "Conflict" } else { "Unknown" };
                    json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "reason": reason})
                }
            };
            let response = http::Response::builder().status(code);
            Ok::<_, BoxError>(response.body(Body::from(body.to_string().into_bytes()))?)
        }
    });
    let fence = Fence::new(Arc::new(SystemClock));
    fence.open_until(SystemClock.since_boot() + Duration::from_secs(600));
    (Reporter::new(Client::new(service, "default"), fence, "me"), requests)
}

/// Nodes of this version, each with the address in its annotation, if any.
fn observe_nodes<'a>(
    index: &mut Index,
    version: &str,
    nodes: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) {
    let nodes = nodes.map(|(name, address)| {
        let annotations = address.map(|address| json!({ANNOTATION: address}));
        let metadata = json!({"name": name, "resourceVersion": version, "annotations": annotations});
        Decoded::from(Node::from_json(json!({"metadata": metadata})))
    });
    index.observe(Observed::Nodes(Change::All(nodes.collect())));
}

fn index(nodes: &[(&str, Option<&str>)]) -> Index {
    let mut index = Index::default();
    observe_nodes(&mut index, "5", nodes.iter().copied());
    index
}

/// A plan that wants these annotations.
fn plan_with(marks: &[(&str, &str)]) -> Plan {
    let mut plan = Plan::default();
    let marks = marks.iter().map(|(node, address)| {
        ((*node).into(), Mark { address: address.parse().unwrap(), object: "pool".into() })
    });
    plan.marks.holders.insert(floating_ip_pool::KIND, marks.collect());
    plan
}

/// Adds a NetIPAllocation to the index and to the plan, with a journal entry that is not written yet if it `begins`.
fn allocation(index: &mut Index, plan: &mut Plan, name: &str, begins: bool) {
    let spec = json!({"reservedIPs": ["203.0.113.200"], "nodeSelector": {"role": "edge"}, "cloud": {"provider": "gcp"}});
    let object = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": spec});
    index.observe(Observed::Allocations(Change::Applied(Box::new(serde_json::from_value(object).unwrap()))));
    let mut pool = index.world.pools().find(|pool| &*pool.key.name == name).unwrap().clone();
    plan.verdicts.insert(pool.key.clone(), Vec::new());
    if begins {
        let entry = Move {
            from: None,
            to: Some(Target { vm: "p/z/n00".into(), node: "n00".into() }),
            to_restore: BTreeSet::new(),
            releases: false,
            is_voluntary: false,
            epoch: Epoch(1),
            written: PENDING,
        };
        pool.journal = Journal::Known([("203.0.113.200".parse().unwrap(), entry)].into());
        index.world.set_pool(pool);
    }
}

/// Starts the writes, and waits until they have left. Returns the names of the objects that were written since the start.
async fn publish(reporter: &mut Reporter, requests: &Requests, index: &Index, plan: &Plan) -> Vec<String> {
    reporter.publish(index, plan, Timestamp::UNIX_EPOCH);
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    requests.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_mark_is_added_after_it_was_removed_from_its_old_node() {
    let plan = plan_with(&[("new", "203.0.113.7")]);
    for (answer, is_added) in [
        (None, false),
        (Some(StatusCode::OK), true),
        (Some(StatusCode::CONFLICT), false),
        (Some(StatusCode::FORBIDDEN), true),
        (Some(StatusCode::SERVICE_UNAVAILABLE), true),
    ] {
        let mut index = index(&[("new", None), ("old", Some("203.0.113.7"))]);
        let (mut reporter, requests) = reporter(move |_| answer);
        assert_eq!(
            publish(&mut reporter, &requests, &index, &plan).await,
            ["old"],
            "the removal comes first"
        );
        let removal = json!({"metadata": {"annotations": {ANNOTATION: null}, "resourceVersion": "5"}});
        assert_eq!(requests.lock().unwrap()[0].1, removal.to_string());
        if answer.is_some() {
            reporter.written().await;
        }
        let written = publish(&mut reporter, &requests, &index, &plan).await;
        let expected: &[_] = if is_added { &["new"] } else { &[] };
        assert_eq!(written[1..], *expected, "after {answer:?}");
        if answer == Some(StatusCode::CONFLICT) {
            observe_nodes(&mut index, "6", [("new", None), ("old", Some("203.0.113.7"))].into_iter());
            assert_eq!(publish(&mut reporter, &requests, &index, &plan).await[1..], ["old"], "again");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_can_not_be_patched_blocks_a_mark_only_once() {
    let index = index(&[("new", None), ("old", Some("203.0.113.7"))]);
    let is_refused = |path: &str| path.ends_with("/old").then_some(StatusCode::SERVICE_UNAVAILABLE);
    let (mut reporter, requests) = reporter(is_refused);
    publish(&mut reporter, &requests, &index, &plan_with(&[])).await;
    reporter.written().await;
    // The backoff of the old node has ended, so another removal is due.
    tokio::time::advance(Duration::from_secs(5)).await;
    let written = publish(&mut reporter, &requests, &index, &plan_with(&[("new", "203.0.113.7")])).await;
    assert_eq!(written, ["old", "old", "new"]);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_was_just_added_to_a_node_is_not_added_to_another() {
    let index = index(&[("n1", None), ("n2", None)]);
    let (mut reporter, requests) = reporter(|_| Some(StatusCode::OK));
    publish(&mut reporter, &requests, &index, &plan_with(&[("n1", "203.0.113.7")])).await;
    reporter.written().await;
    let moved = plan_with(&[("n2", "203.0.113.7")]);
    assert_eq!(
        publish(&mut reporter, &requests, &index, &moved).await,
        ["n1"],
        "the watch has not shown it yet"
    );
}

#[tokio::test(start_paused = true)]
async fn two_nodes_can_exchange_their_addresses() {
    let mut index = index(&[("n1", Some("203.0.113.1")), ("n2", Some("203.0.113.2"))]);
    let plan = plan_with(&[("n1", "203.0.113.2"), ("n2", "203.0.113.1")]);
    let (mut reporter, requests) = reporter(|_| Some(StatusCode::OK));
    publish(&mut reporter, &requests, &index, &plan).await;
    for _ in 0..2 {
        reporter.written().await;
    }
    observe_nodes(&mut index, "6", [("n1", None), ("n2", None)].into_iter());
    assert_eq!(publish(&mut reporter, &requests, &index, &plan).await, ["n1", "n2", "n1", "n2"]);
    let bodies: Vec<_> = requests.lock().unwrap().iter().map(|(_, body)| body.contains("null")).collect();
    assert_eq!(bodies, [true, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn writes_start_in_the_order_of_their_urgency_within_their_limit() {
    let names: Vec<_> = (0..30).map(|number| format!("n{number:02}")).collect();
    let address = |number: usize| format!("203.0.113.{number}");
    // The first twenty nodes lack their mark, and the last ten have one too many.
    let present: Vec<_> = (0..30).map(|number| (number >= 20).then(|| address(100 + number))).collect();
    let nodes: Vec<_> = names.iter().map(String::as_str).zip(present.iter().map(Option::as_deref)).collect();
    let mut index = index(&nodes);
    let addresses: Vec<_> = (0..20).map(address).collect();
    let wanted: Vec<_> = names.iter().map(String::as_str).zip(addresses.iter().map(String::as_str)).collect();
    let mut plan = plan_with(&wanted);
    allocation(&mut index, &mut plan, "begins", true);
    allocation(&mut index, &mut plan, "settled", false);
    let (mut reporter, requests) = reporter(|_| None);
    publish(&mut reporter, &requests, &index, &plan).await;
    let written = publish(&mut reporter, &requests, &index, &plan).await;
    let order = [&["begins".to_owned()], &names[20..], &["settled".to_owned()], &names[..12]].concat();
    assert_eq!(written, order, "the last eight nodes wait");
    assert_eq!(written.len(), WRITES_MAX - KEPT_FOR_JOURNALS);

    for number in 0..6 {
        allocation(&mut index, &mut plan, &format!("later-{number}"), true);
    }
    let written = publish(&mut reporter, &requests, &index, &plan).await;
    assert_eq!(written[24..], ["later-0", "later-1", "later-2", "later-3"], "places are kept for journals");
}

#[tokio::test(start_paused = true)]
async fn writes_that_get_no_answer_leave_room_for_others() {
    let names: Vec<_> = (0..60).map(|number| format!("n{number:02}")).collect();
    let present: Vec<_> = (0..60).map(|number| format!("203.0.113.{number}")).collect();
    let nodes: Vec<_> =
        names.iter().map(String::as_str).zip(present.iter().map(|address| Some(address.as_str()))).collect();
    let index = index(&nodes);
    // A webhook for the first forty nodes does not answer.
    let (mut reporter, requests) = reporter(|path| {
        let hangs = path.rsplit("/n").next().is_some_and(|number| number < "40");
        Some(if hangs { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK })
    });
    let plan = plan_with(&[]);
    for _ in 0..4 {
        publish(&mut reporter, &requests, &index, &plan).await;
        while let Ok(_written) = tokio::time::timeout(Duration::from_millis(1), reporter.written()).await {}
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let written: BTreeSet<_> = requests.lock().unwrap().iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(written.len(), 60, "the last twenty nodes were patched");
}

#[tokio::test(start_paused = true)]
async fn a_retry_gets_its_turn_although_many_writes_hang() {
    let names: Vec<_> = (0..20).map(|number| format!("h{number:02}")).chain(["z".to_owned()]).collect();
    let index = index(&names.iter().map(|name| (name.as_str(), Some("203.0.113.7"))).collect::<Vec<_>>());
    let (mut reporter, requests) = reporter(|_| Some(StatusCode::GATEWAY_TIMEOUT));
    for _ in 0..60 {
        publish(&mut reporter, &requests, &index, &plan_with(&[])).await;
        while let Ok(_written) = tokio::time::timeout(Duration::from_millis(1), reporter.written()).await {}
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let tries = requests.lock().unwrap().iter().filter(|(name, _)| name == "z").count();
    assert!(tries > 2, "{tries} tries of the last node in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_retry_gets_its_turn_although_more_urgent_retries_hang() {
    let mut index = index(&[("new", None)]);
    let mut plan = plan_with(&[("new", "203.0.113.7")]);
    (0..10).for_each(|number| allocation(&mut index, &mut plan, &format!("hangs-{number}"), false));
    let hangs = Arc::new(Mutex::new(false));
    let later = Arc::clone(&hangs);
    let (mut reporter, requests) = reporter(move |path| match *later.lock().unwrap() {
        true if path.contains("hangs") => None,
        true => Some(StatusCode::OK),
        false => Some(StatusCode::SERVICE_UNAVAILABLE),
    });
    publish(&mut reporter, &requests, &index, &plan).await;
    for _ in 0..11 {
        reporter.written().await;
    }
    *hangs.lock().unwrap() = true;
    tokio::time::advance(Duration::from_secs(5)).await;
    let written = publish(&mut reporter, &requests, &index, &plan).await;
    assert_eq!(written.len(), 11 + RETRIES_MAX + 1, "{written:?}");
    assert_eq!(written.last().map(String::as_str), Some("new"));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_is_about_to_end_patches_no_node_and_retries_nothing() {
    let mut index = index(&[("n1", Some("203.0.113.7"))]);
    let mut plan = plan_with(&[]);
    allocation(&mut index, &mut plan, "edge", false);
    let (mut reporter, requests) = reporter(|_| Some(StatusCode::SERVICE_UNAVAILABLE));
    reporter.write_last();
    assert_eq!(publish(&mut reporter, &requests, &index, &plan).await, ["edge"]);
    reporter.written().await;
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(publish(&mut reporter, &requests, &index, &plan).await, ["edge"], "no retry");
}
