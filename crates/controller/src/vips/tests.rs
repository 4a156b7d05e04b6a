//! The loop on an apiserver that answers every request in one way, and on watches that stay silent after what they told at first.

use std::sync::Mutex;

use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use plan::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::BoxError;

use super::*;
use crate::metrics::Identity;
use crate::watch::Change;

struct Stopped;

impl Clock for Stopped {
    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(1)
    }
}

fn object<K: DeserializeOwned>(name: &str, mut rest: Value) -> K {
    let metadata = json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"});
    let given = rest["metadata"].take();
    rest["metadata"] = metadata;
    for (name, value) in given.as_object().into_iter().flatten() {
        rest["metadata"][name] = value.clone();
    }
    serde_json::from_value(rest).unwrap()
}

/// A Cluster `c` that a class annotates, beside these pools and claims, and nothing else.
fn told(pools: Vec<watch::Pool>, claims: Vec<watch::Claim>) -> Vec<Seen> {
    let served = |kind: Kind| {
        Seen::Served(kind, ApiResource::from_gvk(&GroupVersionKind::gvk("any", "v1", kind.name())))
    };
    let cluster = object("c", json!({"metadata": {"annotations": {CLASS: "k"}}}));
    Kind::ALL
        .into_iter()
        .map(served)
        .chain([
            Seen::Clusters(Change::All(vec![cluster])),
            Seen::Classes(Change::All(Vec::new())),
            Seen::Pools(Kind::GlobalPools, Change::All(pools)),
            Seen::Pools(Kind::NamespacedPools, Change::All(Vec::new())),
            Seen::Claims(Change::All(claims)),
            Seen::Addresses(Change::All(Vec::new())),
        ])
        .collect()
}

fn pool(name: &str, free: i64) -> watch::Pool {
    let labels = json!({CLASS: "k", ROLE: "control-plane"});
    let count = json!({"total": 1, "used": 1 - free, "free": free});
    let metadata = json!({"namespace": null, "labels": labels});
    object(name, json!({"metadata": metadata, "status": {"ipAddresses": count}}))
}

fn claim(pool: &str) -> watch::Claim {
    let owner = json!({"apiVersion": "v1", "kind": "Cluster", "name": "c", "uid": "c"});
    let spec = json!({"poolRef": {"kind": "GlobalInClusterIPPool", "name": pool}});
    object("vip-cp-c", json!({"metadata": {"ownerReferences": [owner]}, "spec": spec}))
}

/// Leads on what was told, and says which requests were sent: changes of Clusters are taken, all others answered with this code.
async fn requests(told: Vec<Seen>, code: u16) -> Vec<String> {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let service = tower::service_fn({
        let sent = Arc::clone(&sent);
        move |request: http::Request<Body>| {
            let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            sent.lock().unwrap().push(format!("{} {path}", request.method()));
            async move {
                let (code, body) = if request.method() == http::Method::PATCH {
                    let patch = request.into_body().collect_bytes().await?;
                    let mut cluster: Value = serde_json::from_slice(&patch)?;
                    let metadata =
                        json!({"name": "c", "namespace": "ns", "uid": "c", "resourceVersion": "2"});
                    let Value::Object(metadata) = metadata else { unreachable!() };
                    cluster["metadata"].as_object_mut().unwrap().extend(metadata);
                    cluster["metadata"]["annotations"][CLASS] = "k".into();
                    (200, cluster)
                } else {
                    (code, json!({"kind": "Status", "status": "Failure", "message": "refused", "code": code}))
                };
                let answer = http::Response::builder().status(code);
                Ok::<_, BoxError>(answer.body(Body::from(body.to_string().into_bytes()))?)
            }
        }
    });
    let clock: Arc<dyn Clock> = Arc::new(Stopped);
    let fence = Fence::new(Arc::clone(&clock));
    fence.open_until(Duration::from_secs(3600));
    let Line { to, seen } = Line::default();
    let edges = Edges { client: Client::new(service, "default"), fence, clock };
    let hour = Duration::from_secs(3600);
    let terms = Terms { allocates: true, default_port: 6443 };
    let metrics = Metrics::new(&Identity { pod: "me".into(), version: "0".into(), cluster: None }).unwrap();
    let mut vips = Vips::new(seen, edges, metrics, "me", Retry { shortest: hour, longest: hour }, terms);
    told.into_iter().for_each(|seen| to.send(seen).unwrap());
    vips.until_complete().await;
    let _ = tokio::time::timeout(Duration::from_millis(100), vips.lead()).await;
    let sent = sent.lock().unwrap();
    sent.clone()
}

#[tokio::test]
async fn a_claim_that_is_refused_is_tried_once_and_told_once_until_its_pause_is_over() {
    let requests = requests(told(vec![pool("p", 1)], Vec::new()), 403).await;
    assert_eq!(requests, ["POST ipaddressclaims", "PATCH c", "POST events"]);
}

#[tokio::test]
async fn a_claim_that_is_there_already_is_waited_for_and_is_no_failure() {
    assert_eq!(requests(told(vec![pool("p", 1)], Vec::new()), 409).await, ["POST ipaddressclaims"]);
}

#[tokio::test]
async fn a_claim_that_has_changed_or_is_gone_is_not_given_up_again_before_the_watch_tells() {
    for code in [404, 409] {
        let told = told(vec![pool("p", 0), pool("q", 1)], vec![claim("p")]);
        assert_eq!(requests(told, code).await, ["DELETE vip-cp-c"]);
    }
}
