//! Answers Cluster API's runtime hooks, so that Cluster API creates no objects of a Cluster before the Cluster has its
//! VIP.
//!
//! In: requests of Cluster API's manager over TLS, and the data of the VIP reconciler. Out: whether the creation of a
//! Cluster has to wait, and the endpoint for the infrastructure template if the class uses that hook. It only reads, so
//! standby replicas answer too. It never allocates a VIP: the Cluster of a hook request may never be created.
//!
//! The certificate is reloaded when its files change, for example in a mounted Secret. The port has no client
//! authentication, so this module limits the size and the time of each request, and the number of requests and
//! connections.

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
use super::watch::{Cluster, Observed};
use crate::bind_address::listen;
use crate::leadership::clock::{Clock, SystemClock};

const HOOKS: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";

/// The maximum size of a request in bytes. A request can contain all templates of a Cluster.
const REQUEST_BYTES_MAX: usize = 8 << 20;

/// The most concurrent requests. Together they need at most a quarter of the memory limit.
const REQUESTS_MAX: usize = 8;

/// The timeout of a request, including its wait in the queue. Cluster API's own timeout is ten seconds.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The timeout of a TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// The timeout for the headers of a request.
const HEADERS_MAX: Duration = Duration::from_secs(30);

/// The most concurrent connections.
const CONNECTIONS_MAX: usize = 100;

/// The pause after a failed attempt to read the certificate.
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);

/// The timeout of a query to the VIP reconciler.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The shortest pause after which Cluster API asks again for a VIP that is being allocated. The actual pause is half of
/// the Cluster's age, so that many waiting Clusters do not slow down the controllers that they wait for.
const RETRY_SOON_SECONDS: i32 = 1;

/// The longest time after which Cluster API retries, also if a person has to act first.
const RETRY_LATER_SECONDS: i32 = 10;

/// Serves the hooks. Returns only with an error.
pub async fn serve(
    port: u16,
    name: String,
    certificates: &Path,
    to: mpsc::UnboundedSender<Observed>,
) -> Result<()> {
    let certificates = Certificates::once_readable(certificates).await;
    let mut config =
        rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut tcp =
        listen(port).await.with_context(|| format!("listening for runtime hooks on port {port}"))?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let routes = routes(&name, to, REQUEST_MAX);
    tracing::info!(port, name, "serving runtime hooks");
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        tokio::select! {
            biased;
            Some(ended) = connections.join_next() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(error, "a runtime hook connection failed"),
                Err(error) => tracing::error!(%error, "a runtime hook connection task failed"),
            },
            (stream, _) = Listener::accept(&mut tcp), if has_room => {
                let (acceptor, routes) = (acceptor.clone(), routes.clone());
                connections.spawn(async move {
                    serve_connection(acceptor, stream, routes).await.map_err(|error| error.to_string())
                });
            }
        }
    }
}

/// Serves a connection until the client closes it or a timeout expires.
async fn serve_connection(acceptor: TlsAcceptor, stream: TcpStream, routes: Router) -> Result<(), BoxError> {
    let stream = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await??;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX);
    Ok(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await?)
}

fn routes(name: &str, to: mpsc::UnboundedSender<Observed>, longest: Duration) -> Router {
    let (creating, patching) = (format!("{name}-before-create"), format!("{name}-generate-patches"));
    let discovered = discovered(&creating, &patching);
    let to_create = to.clone();
    let turns = Arc::new(Semaphore::new(REQUESTS_MAX));
    Router::new()
        .route(&format!("/{HOOKS}/discovery"), post(async move || answer(&discovered)))
        .route(
            &format!("/{HOOKS}/beforeclustercreate/{creating}"),
            post(async move |body: Bytes| answer(&before_create(&body, &to_create).await)),
        )
        .route(
            &format!("/{HOOKS}/generatepatches/{patching}"),
            post(async move |body: Bytes| answer(&generate_patches(&body, &to).await)),
        )
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(from_fn(move |request, handler| in_turn(Arc::clone(&turns), longest, request, handler)))
}

/// Waits for a free slot, then handles the request. Responds with 503 if both together take longer than `longest`.
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

/// The response to discovery. With the failure policy `Fail`, Cluster API waits if the extension is unreachable: it
/// must not create a Cluster without asking.
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

/// The fields of a BeforeClusterCreate request that the response needs.
#[derive(Deserialize)]
struct BeforeCreate {
    cluster: Cluster,
}

/// The fields of a GeneratePatches request that the response needs.
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

/// The object that refers to a template, and the field with the reference.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HookHolder {
    kind: String,
    namespace: String,
    name: String,
    field_path: String,
}

async fn before_create(body: &[u8], to: &mpsc::UnboundedSender<Observed>) -> Value {
    let kind = "BeforeClusterCreateResponse";
    let wait = |seconds: i32, message: String| {
        response(kind, json!({"retryAfterSeconds": seconds, "message": message}))
    };
    let BeforeCreate { cluster } = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("can't decode the Cluster in the request: {error}");
            return response(kind, json!({"status": "Failure", "message": message, "retryAfterSeconds": 0}));
        }
    };
    let age = age(cluster.creation_timestamp().as_ref(), SystemClock.wall());
    let (sender, receiver) = oneshot::channel();
    match ask(to, Observed::Asked(Box::new(cluster), sender), receiver).await {
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
    // The controller retries a failed write itself, and soon sees a pool that was applied together with the Cluster.
    let is_soon =
        matches!(control_plane.verdict, Verdict::Failed(_) | Verdict::NoPool { claimed_from: None, .. });
    match control_plane.verdict.is_stuck() && !is_soon {
        true => RETRY_LATER_SECONDS,
        false => {
            let half = i32::try_from(age.as_secs() / 2).unwrap_or(i32::MAX);
            half.clamp(RETRY_SOON_SECONDS, RETRY_LATER_SECONDS)
        }
    }
}

/// Returns a patch with the endpoint for each infrastructure template of a Cluster. A Cluster that needs no endpoint
/// gets no patch. If the endpoint is not known yet, the response is a failure, and Cluster API retries.
async fn generate_patches(body: &[u8], to: &mpsc::UnboundedSender<Observed>) -> Value {
    let kind = "GeneratePatchesResponse";
    let fail = |message: String| response(kind, json!({"status": "Failure", "message": message}));
    let request: GeneratePatches = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(error) => return fail(format!("can't decode the request: {error}")),
    };
    let mut items = Vec::new();
    for Template { uid, holder_reference: holder } in request.items {
        if holder.kind != "Cluster" || holder.field_path != "spec.infrastructureRef" {
            continue;
        }
        let key = Key { namespace: holder.namespace.into(), name: holder.name.into() };
        let (sender, receiver) = oneshot::channel();
        match ask(to, Observed::AskedEndpoint(key, sender), receiver).await {
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

async fn ask<T>(
    to: &mpsc::UnboundedSender<Observed>,
    question: Observed,
    answer: oneshot::Receiver<T>,
) -> Result<T> {
    to.send(question).map_err(|_| anyhow!("the VIP reconciler has stopped"))?;
    let answered = tokio::time::timeout(ANSWER_MAX, answer).await;
    answered.context("the VIP reconciler did not answer in time")?.context("the VIP reconciler has stopped")
}

/// A certificate in files, reloaded when they change.
#[derive(Debug)]
struct Certificates {
    folder: PathBuf,
    known: Mutex<(Option<SystemTime>, Arc<CertifiedKey>)>,
}

impl Certificates {
    /// Waits until the certificate can be read. Addresses and VIPs must not wait for a Secret that only the hooks need.
    async fn once_readable(folder: &Path) -> Self {
        loop {
            match Self::read(folder) {
                Ok(certificates) => return certificates,
                Err(error) => tracing::error!(error = %format!("{error:#}"), "not serving runtime hooks"),
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
                // Only one of the two files may have been replaced yet, so the previous certificate stays in use.
                Err(error) => {
                    tracing::warn!(%error, "failed to reload the runtime hook certificate, using the previous one")
                }
            }
        }
        Some(Arc::clone(&known.1))
    }
}

/// The later of the two modification times.
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

    /// A fake VIP reconciler that answers one query with this plan.
    fn with(planned: [(Role, Decision); 2]) -> mpsc::UnboundedSender<Observed> {
        let (to, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            if let Some(Observed::Asked(_, answer)) = seen.recv().await {
                let _ = answer.send(planned);
            }
        });
        to
    }

    fn planned(verdict: Verdict, step: Option<plan::vips::Step>) -> [(Role, Decision); 2] {
        let ingress = Decision { step: None, verdict: Verdict::NotWanted };
        [(Role::ControlPlane, Decision { step, verdict }), (Role::Ingress, ingress)]
    }

    fn pool() -> plan::vips::PoolRef {
        plan::vips::PoolRef { name: "p".into(), namespace: None }
    }

    async fn asked(verdict: Verdict, step: Option<plan::vips::Step>) -> Value {
        asked_after(3_600, verdict, step).await
    }

    /// The `retryAfterSeconds` of the response for a Cluster with this age in seconds.
    async fn asked_after(seconds: u64, verdict: Verdict, step: Option<plan::vips::Step>) -> Value {
        let created = SystemClock.wall() - Duration::from_secs(seconds);
        let metadata = json!({"name": "c", "namespace": "ns", "creationTimestamp": created.to_string()});
        let cluster = json!({"metadata": metadata, "spec": {}});
        let request = json!({"cluster": cluster}).to_string();
        before_create(request.as_bytes(), &with(planned(verdict, step))).await["retryAfterSeconds"].clone()
    }

    #[tokio::test]
    async fn v5_cluster_creation_waits_for_the_vip() {
        let step = Some(plan::vips::Step::Create(pool()));
        assert_eq!(asked_after(0, Verdict::Allocating(pool()), step).await, 1);
        assert_eq!(asked_after(0, Verdict::Exhausted(vec![pool()]), None).await, 10);
        assert_eq!(asked_after(0, Verdict::Unknown("pools"), None).await, 1, "an unknown state has to wait");
        let (vip, pool) = ("10.0.0.1".into(), pool());
        assert_eq!(asked(Verdict::Assigned { vip, pool, undefined_in: None }, None).await, 0);
    }

    #[tokio::test]
    async fn v5_the_retry_interval_grows_with_the_age_of_a_cluster() {
        for (age, pause) in [(0, 1), (2, 1), (4, 2), (12, 6), (60, 10), (3_600, 10)] {
            assert_eq!(asked_after(age, Verdict::Allocating(pool()), None).await, pause, "after {age} s");
        }
    }

    #[tokio::test]
    async fn v5_cluster_creation_waits_for_the_variable_too() {
        let step = plan::vips::Step::Write { vip: "10.0.0.1".into(), with_copy: true };
        assert_eq!(asked_after(0, Verdict::Manual("10.0.0.1".into()), Some(step)).await, 1);
        assert_eq!(asked(Verdict::Manual("10.0.0.1".into()), None).await, 0);
    }

    #[tokio::test]
    async fn v5_a_cluster_without_a_matching_pool_waits_only_briefly() {
        let no_pool = |claimed_from| Verdict::NoPool { class: "k".into(), claimed_from };
        assert_eq!(asked(no_pool(None), None).await, 0);
        assert_eq!(asked(Verdict::NotWanted, None).await, 0);
        assert_eq!(
            asked_after(3, no_pool(None), None).await,
            1,
            "the watch may not have delivered its pool yet"
        );
        assert_eq!(asked(no_pool(Some(pool())), None).await, 10, "a claim means that there was a pool");
        assert_eq!(asked_after(5, Verdict::NotWanted, None).await, 0);
    }

    #[tokio::test]
    async fn v5_the_patch_hook_returns_only_known_endpoints() {
        let (to, mut seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(seen) = seen.recv().await {
                if let Observed::AskedEndpoint(key, answer) = seen {
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
        assert_eq!(answered["status"], "Failure", "so that Cluster API retries");
        assert_eq!(answered["message"], "control-plane VIP: not known yet");
    }

    #[tokio::test]
    async fn an_invalid_request_gets_a_failure_response() {
        let (to, _seen) = mpsc::unbounded_channel();
        for request in ["", "[]", "1", "\"x\"", "null", "{\"cluster\": 1, \"items\": 1}"] {
            let request = request.as_bytes();
            for answered in [before_create(request, &to).await, generate_patches(request, &to).await] {
                assert_eq!(answered["status"], "Failure");
            }
        }
    }

    #[tokio::test]
    async fn an_endless_request_does_not_block_others() {
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
    fn clusters_of_both_api_versions_are_decoded() {
        let read = |topology: Value| {
            let cluster = json!({"metadata": {"name": "c"}, "spec": {"topology": topology}});
            serde_json::from_value::<Cluster>(cluster).unwrap().spec.0.topology.unwrap()
        };
        assert_eq!(read(json!({"class": "k"})).class, "k");
        assert_eq!(read(json!({"classRef": {"name": "k"}})).class_ref.name, "k");
    }
}
