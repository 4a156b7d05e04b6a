//! The reconciler with a fake apiserver that gives most requests the same response. The tests send the events of the
//! watches.

use std::sync::Mutex;

use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::BoxError;

use super::*;
use crate::kubernetes::decode::Change;
use crate::leadership::clock::ManualClock;
use crate::metrics::{Identity, Metrics};
use crate::reconciler::Loop;
use crate::vips::names::{CLASS, ROLE};
use crate::vips::tests::served;

fn object<K: DeserializeOwned>(name: &str, mut rest: Value) -> K {
    let metadata = json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"});
    let given = rest["metadata"].take();
    rest["metadata"] = metadata;
    for (name, value) in given.as_object().into_iter().flatten() {
        rest["metadata"][name] = value.clone();
    }
    serde_json::from_value(rest).unwrap()
}

/// The first lists of all kinds: these Clusters, annotated with a class, these pools and claims, and nothing else.
fn first_lists(
    clusters: &[&str],
    pools: Vec<crate::vips::watch::Pool>,
    claims: Vec<crate::vips::watch::Claim>,
) -> Vec<Observed> {
    let cluster = |name: &&str| object(name, json!({"metadata": {"annotations": {CLASS: "k"}}}));
    Kind::ALL
        .into_iter()
        .map(served)
        .chain([
            Observed::Clusters(Change::All(clusters.iter().map(cluster).collect())),
            Observed::Classes(Change::All(Vec::new())),
            Observed::Pools(Kind::GlobalPools, Change::All(pools.into_iter().map(Into::into).collect())),
            Observed::Pools(Kind::NamespacedPools, Change::All(Vec::new())),
            Observed::Claims(Change::All(claims.into_iter().map(Into::into).collect())),
            Observed::Addresses(Change::All(Vec::new())),
        ])
        .collect()
}

fn pool(name: &str, free: i64) -> crate::vips::watch::Pool {
    let labels = json!({CLASS: "k", ROLE: "control-plane"});
    let count = json!({"total": 1, "used": 1 - free, "free": free});
    let metadata = json!({"namespace": null, "labels": labels});
    object(name, json!({"metadata": metadata, "status": {"ipAddresses": count}}))
}

fn claim(cluster: &str, pool: &str) -> crate::vips::watch::Claim {
    let owner = json!({"apiVersion": "v1", "kind": "Cluster", "name": cluster, "uid": cluster});
    let spec = json!({"poolRef": {"kind": "GlobalInClusterIPPool", "name": pool}});
    object(&format!("vip-cp-{cluster}"), json!({"metadata": {"ownerReferences": [owner]}, "spec": spec}))
}

/// A Cluster after its only patch.
fn changed(name: &str, mut patch: Value, version: usize) -> Value {
    let metadata = patch["metadata"].as_object_mut().unwrap();
    for (field, value) in [("name", name), ("namespace", "ns"), ("uid", name)] {
        metadata.insert(field.into(), value.into());
    }
    metadata.insert("resourceVersion".into(), (version + 1).to_string().into());
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    annotations.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    annotations[CLASS] = "k".into();
    patch
}

/// A leader, and the requests that it sent.
struct Leader {
    vips: Loop<VipReconciler>,
    to: mpsc::UnboundedSender<Observed>,
    sent: Arc<Mutex<Vec<String>>>,
}

/// The response to a refused request.
fn refusal(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "message": "refused", "code": code}))
}

impl Leader {
    /// The apiserver accepts patches of Clusters, and refuses other writes with this code.
    fn new(code: u16) -> Self {
        Self::with_conflicts(0, code)
    }

    /// The apiserver rejects this number of patches with a conflict before it accepts one.
    fn with_conflicts(conflicts: usize, code: u16) -> Self {
        Self::answering(conflicts, code, 200)
    }

    /// The apiserver gives patches of a Cluster's status their own code.
    fn answering(conflicts: usize, code: u16, of_status: u16) -> Self {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let stored = Arc::new(Mutex::new(BTreeMap::new()));
        let service = tower::service_fn({
            let sent = Arc::clone(&sent);
            move |request: http::Request<Body>| {
                let stored = Arc::clone(&stored);
                let mut parts = request.uri().path().rsplit('/').map(ToOwned::to_owned);
                let last = parts.next().unwrap_or_default();
                let is_status = last == "status";
                let name = if is_status { parts.next().unwrap_or_default() } else { last };
                let line = format!("{} {name}{}", request.method(), if is_status { "/status" } else { "" });
                let (count, changes) = {
                    let mut sent = sent.lock().unwrap();
                    sent.push(line);
                    (sent.len(), sent.iter().filter(|line| line.starts_with("PATCH")).count())
                };
                async move {
                    let (code, body) = match *request.method() {
                        http::Method::PATCH if changes <= conflicts => refusal(409),
                        http::Method::PATCH if is_status && of_status != 200 => refusal(of_status),
                        http::Method::PATCH => {
                            let patch = request.into_body().collect_bytes().await?;
                            let patch: Value = serde_json::from_slice(&patch)?;
                            let mut stored = stored.lock().unwrap();
                            let now = match stored.get(&name) {
                                Some(present) if is_status => {
                                    let mut now: Value = Value::clone(present);
                                    now["status"] = patch["status"].clone();
                                    now["metadata"]["resourceVersion"] = (count + 1).to_string().into();
                                    now
                                }
                                _ => changed(&name, patch, count),
                            };
                            stored.insert(name, now.clone());
                            (200, now)
                        }
                        http::Method::GET => {
                            let name =
                                request.uri().query().and_then(|query| query.rsplit("%3D").next()).unwrap();
                            let stored = stored.lock().unwrap().get(name).cloned();
                            let now = stored.unwrap_or_else(|| changed(name, json!({"metadata": {}}), count));
                            (200, json!({"metadata": {}, "items": [now]}))
                        }
                        _ => refusal(code),
                    };
                    let answer = http::Response::builder().status(code);
                    Ok::<_, BoxError>(answer.body(Body::from(body.to_string().into_bytes()))?)
                }
            }
        });
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(1));
        let fence = Fence::new(Arc::clone(&clock));
        fence.open_until(Duration::from_secs(3600));
        let Line { to, seen } = Line::default();
        let relists = Relists::new(Kind::ALL);
        let edges = Edges { relists, client: Client::new(service, "default"), fence, clock };
        let hour = Duration::from_secs(3600);
        let options = VipOptions { allocates: true, default_port: 6443 };
        let metrics =
            Metrics::new(&Identity { pod: "me".into(), version: "0".into(), cluster: None }).unwrap();
        let of_loop = metrics.of_loop("vips");
        let metrics = VipMetrics::new(metrics).unwrap();
        let vips =
            VipReconciler::new(seen, edges, metrics, "me", Retry { shortest: hour, longest: hour }, options);
        Self { vips: Loop::new(vips, of_loop), to, sent }
    }

    /// The requests that the leader sends after these events.
    async fn requests(&mut self, events: Vec<Observed>) -> Vec<String> {
        let before = self.sent.lock().unwrap().len();
        events.into_iter().for_each(|seen| self.to.send(seen).unwrap());
        self.vips.until_complete().await;
        let _ = tokio::time::timeout(Duration::from_millis(100), self.vips.lead()).await;
        self.sent.lock().unwrap()[before..].to_vec()
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_claim_is_sent_and_reported_once_per_backoff() {
    let events = first_lists(&["c"], vec![pool("p", 1)], Vec::new());
    let requests = Leader::new(403).requests(events).await;
    let conditions = ["GET clusters", "PATCH c/status"];
    assert_eq!(requests, [&["POST ipaddressclaims", "PATCH c", "POST events"][..], &conditions].concat());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_already_exists_is_no_failure() {
    let events = first_lists(&["c"], vec![pool("p", 1)], Vec::new());
    assert_eq!(Leader::new(409).requests(events).await, ["POST ipaddressclaims"]);
}

#[tokio::test(start_paused = true)]
async fn a_changed_claim_is_not_deleted_again_before_its_watch_event() {
    for code in [404, 409] {
        let events = first_lists(&["c"], vec![pool("p", 0), pool("q", 1)], vec![claim("c", "p")]);
        assert_eq!(Leader::new(code).requests(events).await, ["DELETE vip-cp-c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_the_cluster_is_read_and_patched_at_once() {
    let events = first_lists(&["c"], vec![pool("p", 1)], Vec::new());
    let requests = Leader::with_conflicts(1, 403).requests(events).await;
    assert_eq!(requests[..5], ["POST ipaddressclaims", "PATCH c", "GET clusters", "PATCH c", "POST events"]);
    assert_eq!(requests[5..], ["GET clusters", "PATCH c/status"]);
}

#[tokio::test(start_paused = true)]
async fn one_free_address_makes_one_of_many_claims_switch_pools() {
    let pools = vec![pool("p", 0), pool("q", 1)];
    let claims = vec![claim("a", "p"), claim("b", "p"), claim("c", "p")];
    let requests = Leader::new(409).requests(first_lists(&["a", "b", "c"], pools, claims)).await;
    let given_up: Vec<_> = requests.iter().filter(|request| request.starts_with("DELETE")).collect();
    assert_eq!(given_up, ["DELETE vip-cp-a"], "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_briefly_free_address_causes_no_reports() {
    let mut leader = Leader::new(403);
    let claims = vec![claim("a", "p"), claim("b", "p")];
    let mut requests = leader.requests(first_lists(&["a", "b"], vec![pool("p", 0)], claims)).await;
    requests.sort();
    let conditions = ["PATCH a/status", "PATCH b/status"];
    requests.retain(|request| !conditions.contains(&&**request) && request != "GET clusters");
    assert_eq!(requests, ["PATCH a", "PATCH b", "POST events", "POST events"]);
    for free in [1, 0, 1] {
        // The wait exceeds PATIENCE.
        if free > 0 {
            let VipReconciler { missed, allocating, .. } = &mut leader.vips.reconciler;
            missed.values_mut().chain(allocating.values_mut()).for_each(|since| *since -= PATIENCE);
        }
        let change = Change::Applied(Box::new(pool("p", free).into()));
        let requests = leader.requests(vec![Observed::Pools(Kind::GlobalPools, change)]).await;
        assert_eq!(requests, Vec::<String>::new(), "{free} free");
    }
}

#[tokio::test(start_paused = true)]
async fn v8_refused_conditions_back_off_and_block_nothing_else() {
    for code in [403, 409, 422] {
        let mut leader = Leader::answering(0, 403, code);
        let requests = leader.requests(first_lists(&["c"], vec![pool("p", 1)], Vec::new())).await;
        assert_eq!(requests[..3], ["POST ipaddressclaims", "PATCH c", "POST events"], "{code}");
        assert_eq!(requests[3..], ["GET clusters", "PATCH c/status"], "{code}");
        // Although the conditions were refused, the controller updates the annotation of the Cluster.
        let change = Change::All(vec![claim("c", "p").into()]);
        let requests = leader.requests(vec![Observed::Claims(change)]).await;
        assert_eq!(requests, ["PATCH c"], "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn v8_after_a_denial_no_other_cluster_gets_conditions() {
    let mut leader = Leader::answering(0, 403, 403);
    leader.requests(first_lists(&["a"], vec![pool("p", 1)], Vec::new())).await;
    let both = first_lists(&["a", "b"], vec![pool("p", 1)], Vec::new()).swap_remove(Kind::ALL.len());
    let requests = leader.requests(vec![both]).await;
    assert!(requests.contains(&"PATCH b".to_owned()), "{requests:?}");
    assert!(!requests.contains(&"PATCH b/status".to_owned()), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn v8_conditions_are_written_only_once() {
    let mut leader = Leader::new(403);
    leader.requests(first_lists(&["c"], vec![pool("p", 1)], Vec::new())).await;
    let change = Change::Applied(Box::new(pool("q", 1).into()));
    assert_eq!(leader.requests(vec![Observed::Pools(Kind::GlobalPools, change)]).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_vip_is_written_only_after_silent_watches_were_listed_again() {
    let listed = || {
        let decisive = [Kind::Clusters, Kind::Claims, Kind::Addresses];
        Vec::from(decisive.map(|kind| Observed::Listed(kind, Instant::now())))
    };
    let mut leader = Leader::new(403);
    let mut events = first_lists(&["c"], vec![pool("p", 0)], vec![claim("c", "p")]);
    events.extend(listed());
    leader.requests(events).await;

    // An event after a silence may be old, so it does not show that the address is still free.
    tokio::time::advance(Duration::from_secs(20)).await;
    let mut bound = claim("c", "p");
    bound.status = serde_json::from_value(json!({"addressRef": {"name": "a"}})).unwrap();
    let uid = bound.metadata.uid.clone().unwrap();
    let owner = json!({"apiVersion": "v1", "kind": "IPAddressClaim", "name": "vip-cp-c", "uid": uid, "controller": true});
    let address = json!({"metadata": {"ownerReferences": [owner]}, "spec": {"address": "10.0.0.1"}});
    let address: crate::vips::watch::Address = object("a", address);
    let events = vec![
        Observed::Addresses(Change::Applied(Box::new(address.into()))),
        Observed::Claims(Change::Applied(Box::new(bound.into()))),
    ];
    assert_eq!(leader.requests(events).await, Vec::<String>::new());
    assert_eq!(leader.requests(listed()).await[0], "PATCH c");
}
