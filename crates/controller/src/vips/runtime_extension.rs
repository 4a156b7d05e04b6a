//! Answers Cluster API's runtime hooks, so that nothing of a Cluster is built before it has its VIP.
//!
//! In: requests of Cluster API's manager over TLS, and what the part for VIPs knows. Out: whether the building of a Cluster has to
//! wait, and the endpoint for its infrastructure where a class asks for that. It only reads, so every copy answers, also those
//! that don't lead. It never allocates: a hook that allocates has to be right about a Cluster that may never come to be.
//!
//! The certificate is read again when its files change, as those of a mounted Secret do. Whoever can reach the port may ask, so each
//! request is bounded in size and time, and so is what is held for all of them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{StatusCode, header};
use axum::middleware::{Next as Handler, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use k8s_openapi::ByteString;
use kube::ResourceExt;
use plan::vips::{Decision, Key, Role, Verdict};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::BoxError;

use super::reconcile::{age, may_be_built};
use super::watch::{Cluster, Seen};
use crate::bind_address::listen;
use crate::leadership::clock::{Clock, SystemClock};

const HOOKS: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";

/// The most that a request may hold: all templates of a Cluster.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// The most requests that are held at once, which is a quarter of the memory that a copy may have.
const REQUESTS_MAX: usize = 8;

/// The longest that a request may take, its turn included; Cluster API gives up after ten seconds.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The longest that a client may take to agree on a connection.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The longest that a client may take to begin a request.
const HEADERS_MAX: Duration = Duration::from_secs(30);

/// The most connections at once.
const CONNECTIONS_MAX: usize = 100;

/// The pause before a certificate that can't be read is looked for again.
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);

/// The longest that the part for VIPs may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// When Cluster API shall ask again for a VIP that is on its way: not sooner than this, and after half of the time that the
/// Cluster has waited already. Many that wait would otherwise take the time of those whom they wait for.
const RETRY_SOON_SECONDS: i32 = 1;

/// When it shall ask again at the latest, and for one that a person has to see to.
const RETRY_LATER_SECONDS: i32 = 10;

/// Answers hooks, for ever.
pub async fn serve(
    port: u16,
    name: String,
    certificates: &Path,
    to: mpsc::UnboundedSender<Seen>,
) -> Result<()> {
    let certificates = Certificates::once_readable(certificates).await;
    let mut config =
        rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut tcp =
        listen(port).await.with_context(|| format!("listening for runtime hooks at port {port}"))?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let routes = routes(&name, to, REQUEST_MAX);
    tracing::info!(port, name, "answering runtime hooks");
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            biased;
            Some(ended) = connections.join_next() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(error, "a client of the runtime hooks went away"),
                Err(error) => tracing::error!(%error, "a connection was cut off"),
            },
            (stream, _) = Listener::accept(&mut tcp), if has_room => {
                let (acceptor, routes) = (acceptor.clone(), routes.clone());
                connections.spawn(async move {
                    talk(acceptor, stream, routes).await.map_err(|error| error.to_string())
                });
            }
        }
    }
}

/// Answers a client until it goes away, or takes too long.
async fn talk(acceptor: TlsAcceptor, stream: TcpStream, routes: Router) -> Result<(), BoxError> {
    let stream = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await??;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX);
    Ok(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await?)
}

fn routes(name: &str, to: mpsc::UnboundedSender<Seen>, longest: Duration) -> Router {
    let (creating, patching) = (format!("{name}-before-create"), format!("{name}-generate-patches"));
    let discovered = discovered(&creating, &patching);
    let of_creating = to.clone();
    let turns = Arc::new(Semaphore::new(REQUESTS_MAX));
    Router::new()
        .route(&format!("/{HOOKS}/discovery"), post(async move || answer(&discovered)))
        .route(
            &format!("/{HOOKS}/beforeclustercreate/{creating}"),
            post(async move |body: Bytes| answer(&before_create(&body, &of_creating).await)),
        )
        .route(
            &format!("/{HOOKS}/generatepatches/{patching}"),
            post(async move |body: Bytes| answer(&generate_patches(&body, &to).await)),
        )
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn(move |request, handler| in_turn(Arc::clone(&turns), longest, request, handler)))
}

/// Reads and answers a request when it is its turn.
async fn in_turn(turns: Arc<Semaphore>, longest: Duration, request: Request, handler: Handler) -> Response {
    let answered = async {
        let _turn = turns.acquire().await;
        handler.run(request).await
    };
    let answered = tokio::time::timeout(longest, answered).await;
    answered.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
}

fn answer(value: &Value) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn response(kind: &str, rest: Value) -> Value {
    let mut response = json!({"apiVersion": HOOKS, "kind": kind, "status": "Success"});
    if let (Some(response), Value::Object(rest)) = (response.as_object_mut(), rest) {
        response.extend(rest);
    }
    response
}

/// Our handlers. Cluster API waits where they can't be reached: going on without them is what they are there to prevent.
fn discovered(creating: &str, patching: &str) -> Value {
    let handler = |name: &str, hook: &str| {
        json!({
            "name": name,
            "requestHook": {"apiVersion": HOOKS, "hook": hook},
            "timeoutSeconds": 10,
            "failurePolicy": "Fail",
        })
    };
    let handlers = [handler(creating, "BeforeClusterCreate"), handler(patching, "GeneratePatches")];
    response("DiscoveryResponse", json!({"handlers": handlers}))
}

/// What is asked before a Cluster is built, as far as the answer needs it.
#[derive(Deserialize)]
struct BeforeCreate {
    cluster: Cluster,
}

/// What is asked when templates are filled, as far as the answer needs it.
#[derive(Deserialize)]
struct GeneratePatches {
    items: Vec<Template>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Template {
    uid: String,
    #[serde(default)]
    holder_reference: HookHolder,
}

/// Who refers to a template, and in which field.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HookHolder {
    kind: String,
    namespace: String,
    name: String,
    field_path: String,
}

async fn before_create(body: &[u8], to: &mpsc::UnboundedSender<Seen>) -> Value {
    let kind = "BeforeClusterCreateResponse";
    let wait = |seconds: i32, message: String| {
        response(kind, json!({"retryAfterSeconds": seconds, "message": message}))
    };
    let BeforeCreate { cluster } = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("the Cluster can't be read: {error}");
            return response(kind, json!({"status": "Failure", "message": message, "retryAfterSeconds": 0}));
        }
    };
    let age = age(cluster.creation_timestamp().as_ref(), SystemClock.wall());
    let (tell, told) = oneshot::channel();
    match ask(to, Seen::Asked(Box::new(cluster), tell), told).await {
        Ok(planned) => match may_be_built(&planned, age) {
            Ok(()) => wait(0, String::new()),
            Err(message) => {
                wait(retry_after(&planned, age.unwrap_or_default()), format!("control-plane VIP: {message}"))
            }
        },
        Err(error) => wait(RETRY_SOON_SECONDS, error.to_string()),
    }
}

fn retry_after(planned: &[(Role, Decision); 2], age: Duration) -> i32 {
    let [(_, control_plane), _] = planned;
    // What failed is tried again by itself, and a pool that came with the Cluster is seen soon.
    let is_soon =
        matches!(control_plane.said, Verdict::Failed(_) | Verdict::NoPool { claimed_from: None, .. });
    match control_plane.said.is_stuck() && !is_soon {
        true => RETRY_LATER_SECONDS,
        false => {
            let half = i32::try_from(age.as_secs() / 2).unwrap_or(i32::MAX);
            half.clamp(RETRY_SOON_SECONDS, RETRY_LATER_SECONDS)
        }
    }
}

/// The endpoint of each Cluster for the template of its infrastructure. One that may be built without an endpoint gets no patch, and
/// where that is not known, Cluster API has to ask again.
async fn generate_patches(body: &[u8], to: &mpsc::UnboundedSender<Seen>) -> Value {
    let kind = "GeneratePatchesResponse";
    let fail = |message: String| response(kind, json!({"status": "Failure", "message": message}));
    let request: GeneratePatches = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => return fail(format!("the request can't be read: {error}")),
    };
    let mut items = Vec::new();
    for Template { uid, holder_reference: holder } in request.items {
        if holder.kind != "Cluster" || holder.field_path != "spec.infrastructureRef" {
            continue;
        }
        let key = Key { namespace: holder.namespace.into(), name: holder.name.into() };
        let (tell, told) = oneshot::channel();
        match ask(to, Seen::AskedEndpoint(key, tell), told).await {
            Ok(Ok(Some((host, port)))) => {
                let endpoint = json!({"host": host, "port": port});
                let patch = json!({"spec": {"template": {"spec": {"controlPlaneEndpoint": endpoint}}}});
                let patch = ByteString(patch.to_string().into_bytes());
                items.push(json!({"uid": uid, "patchType": "JSONMergePatch", "patch": patch}));
            }
            Ok(Ok(None)) => {}
            Ok(Err(waits)) => return fail(format!("control-plane VIP: {waits}")),
            Err(error) => return fail(error.to_string()),
        }
    }
    response(kind, json!({"items": items}))
}

async fn ask<T>(to: &mpsc::UnboundedSender<Seen>, question: Seen, answer: oneshot::Receiver<T>) -> Result<T> {
    to.send(question).map_err(|_| anyhow!("the part for VIPs has ended"))?;
    let answered = tokio::time::timeout(ANSWER_MAX, answer).await;
    answered.context("the part for VIPs does not answer")?.context("the part for VIPs has ended")
}

/// A certificate in files that may change.
#[derive(Debug)]
struct Certificates {
    folder: PathBuf,
    known: Mutex<(Option<SystemTime>, Arc<CertifiedKey>)>,
}

impl Certificates {
    /// The certificate as soon as it can be read: addresses and VIPs must not wait for a Secret that only hooks need.
    async fn once_readable(folder: &Path) -> Self {
        loop {
            match Self::read(folder) {
                Ok(certificates) => return certificates,
                Err(error) => tracing::error!("no runtime hook is answered: {error:#}"),
            }
            tokio::time::sleep(CERTIFICATE_RETRY).await;
        }
    }

    fn read(folder: &Path) -> Result<Self> {
        let known = load(folder).with_context(|| {
            format!("reading tls.crt and tls.key in {} for runtime hooks", folder.display())
        })?;
        Ok(Self { folder: folder.to_owned(), known: Mutex::new((changed(folder), known)) })
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = changed(&self.folder);
        if changed != known.0 {
            match load(&self.folder) {
                Ok(certificate) => *known = (changed, certificate),
                // Half of a change may have been read; the old one does until the other half is there.
                Err(error) => tracing::warn!(%error, "the certificate for runtime hooks can't be read"),
            }
        }
        Some(Arc::clone(&known.1))
    }
}

/// When either file was last changed.
fn changed(folder: &Path) -> Option<SystemTime> {
    let of = |name: &str| std::fs::metadata(folder.join(name)).and_then(|file| file.modified()).ok();
    of("tls.crt").max(of("tls.key"))
}

fn load(folder: &Path) -> Result<Arc<CertifiedKey>> {
    let chain = CertificateDer::pem_file_iter(folder.join("tls.crt"))?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(folder.join("tls.key"))?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
    let certificate = CertifiedKey::new(chain, key);
    certificate.keys_match()?;
    Ok(Arc::new(certificate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use tower::ServiceExt;

    /// Answers one question as the part for VIPs would, with this plan.
    fn with(planned: [(Role, Decision); 2]) -> mpsc::UnboundedSender<Seen> {
        let (to, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            if let Some(Seen::Asked(_, answer)) = seen.recv().await {
                let _ = answer.send(planned);
            }
        });
        to
    }

    fn planned(said: Verdict, step: Option<plan::vips::Step>) -> [(Role, Decision); 2] {
        let ingress = Decision { step: None, said: Verdict::NotWanted };
        [(Role::ControlPlane, Decision { step, said }), (Role::Ingress, ingress)]
    }

    fn pool() -> plan::vips::PoolRef {
        plan::vips::PoolRef { name: "p".into(), namespace: None }
    }

    async fn asked(said: Verdict, step: Option<plan::vips::Step>) -> Value {
        asked_after(3_600, said, step).await
    }

    /// The answer so many seconds after the Cluster was created.
    async fn asked_after(seconds: u64, said: Verdict, step: Option<plan::vips::Step>) -> Value {
        let created = SystemClock.wall() - Duration::from_secs(seconds);
        let metadata = json!({"name": "c", "namespace": "ns", "creationTimestamp": created.to_string()});
        let cluster = json!({"metadata": metadata, "spec": {}});
        let request = json!({"cluster": cluster}).to_string();
        before_create(request.as_bytes(), &with(planned(said, step))).await["retryAfterSeconds"].clone()
    }

    #[tokio::test]
    async fn v5_a_cluster_is_built_when_it_has_its_vip_and_not_before() {
        let step = Some(plan::vips::Step::Create(pool()));
        assert_eq!(asked_after(0, Verdict::Allocating(pool()), step).await, 1);
        assert_eq!(asked_after(0, Verdict::Exhausted(vec![pool()]), None).await, 10);
        assert_eq!(
            asked_after(0, Verdict::Unknown("pools"), None).await,
            1,
            "what is not known is waited for"
        );
        let (vip, pool) = ("10.0.0.1".into(), pool());
        assert_eq!(asked(Verdict::Assigned { vip, pool, undefined_in: None }, None).await, 0);
    }

    #[tokio::test]
    async fn v5_a_cluster_that_has_waited_for_long_asks_less_often() {
        for (age, pause) in [(0, 1), (2, 1), (4, 2), (12, 6), (60, 10), (3_600, 10)] {
            assert_eq!(asked_after(age, Verdict::Allocating(pool()), None).await, pause, "after {age} s");
        }
    }

    #[tokio::test]
    async fn v5_an_endpoint_without_its_variable_is_waited_for_too() {
        let step = plan::vips::Step::Write { vip: "10.0.0.1".into(), with_copy: true };
        assert_eq!(asked_after(0, Verdict::Manual("10.0.0.1".into()), Some(step)).await, 1);
        assert_eq!(asked(Verdict::Manual("10.0.0.1".into()), None).await, 0);
    }

    #[tokio::test]
    async fn v5_a_cluster_that_no_pool_is_meant_for_is_not_held_up_for_long() {
        let no_pool = |claimed_from| Verdict::NoPool { class: "k".into(), claimed_from };
        assert_eq!(asked(no_pool(None), None).await, 0);
        assert_eq!(asked(Verdict::NotWanted, None).await, 0);
        assert_eq!(asked_after(3, no_pool(None), None).await, 1, "its pool may not have been seen yet");
        assert_eq!(asked(no_pool(Some(pool())), None).await, 10, "who claimed has seen a pool");
        assert_eq!(asked_after(5, Verdict::NotWanted, None).await, 0);
    }

    #[tokio::test]
    async fn v5_the_patch_hook_tells_the_endpoint_that_is_there_and_nothing_else() {
        let (to, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(seen) = seen.recv().await {
                if let Seen::AskedEndpoint(key, answer) = seen {
                    let _ = answer.send(match &*key.name {
                        "c" => Ok(Some(("10.0.0.1".to_owned(), 6443))),
                        "without" => Ok(None),
                        _ => Err("not known yet".to_owned()),
                    });
                }
            }
        });
        let item = |uid: &str, name: &str, path: &str| {
            let holder = json!({"kind": "Cluster", "namespace": "ns", "name": name, "fieldPath": path});
            json!({"uid": uid, "holderReference": holder, "object": {}})
        };
        let request = json!({"items": [
            item("1", "c", "spec.infrastructureRef"),
            item("2", "c", "spec.controlPlaneRef"),
            item("3", "without", "spec.infrastructureRef"),
        ]});
        let answered = generate_patches(request.to_string().as_bytes(), &to).await;
        let patch = json!({"spec": {"template": {"spec": {
            "controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}}});
        let patch = ByteString(patch.to_string().into_bytes());
        assert_eq!(answered["items"], json!([{"uid": "1", "patchType": "JSONMergePatch", "patch": patch}]));
        let request = json!({"items": [item("4", "unknown", "spec.infrastructureRef")]});
        let answered = generate_patches(request.to_string().as_bytes(), &to).await;
        assert_eq!(answered["status"], "Failure", "Cluster API asks again");
        assert_eq!(answered["message"], "control-plane VIP: not known yet");
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused_with_a_word() {
        let (to, _seen) = mpsc::unbounded_channel();
        for request in ["", "[]", "1", "\"x\"", "null", "{\"cluster\": 1, \"items\": 1}"] {
            let request = request.as_bytes();
            for answered in [before_create(request, &to).await, generate_patches(request, &to).await] {
                assert_eq!(answered["status"], "Failure");
            }
        }
    }

    #[tokio::test]
    async fn a_request_that_never_ends_gives_way_to_others() {
        let (to, _seen) = mpsc::unbounded_channel();
        let routes = routes("vips", to, Duration::from_millis(20));
        let endless = || {
            let body = Body::from_stream(futures::stream::pending::<Result<Bytes, BoxError>>());
            let path = format!("/{HOOKS}/generatepatches/vips-generate-patches");
            routes.clone().oneshot(Request::post(path).body(body).unwrap())
        };
        let held = futures::future::join_all((0..=REQUESTS_MAX).map(|_| endless())).await;
        for answer in held {
            assert_eq!(answer.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        let discovery = Request::post(format!("/{HOOKS}/discovery")).body(Body::empty()).unwrap();
        assert_eq!(routes.oneshot(discovery).await.unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn a_cluster_of_either_version_can_be_read() {
        let read = |topology: Value| {
            let cluster = json!({"metadata": {"name": "c"}, "spec": {"topology": topology}});
            serde_json::from_value::<Cluster>(cluster).unwrap().spec.0.topology.unwrap()
        };
        assert_eq!(read(json!({"class": "k"})).class, "k");
        assert_eq!(read(json!({"classRef": {"name": "k"}})).class_ref.name, "k");
    }
}
