//! The clients of a simulated process: a `kube::Client` and drivers whose requests pass through a network with faults.
//!
//! In: the shared state of a run, and a process. Out: the `Edges` that the controller runs on. A request in flight
//! continues even if the process that sent it ends. Like a real socket, the client of a cloud checks the fence again
//! right before it sends a change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use controller::kubernetes::transport::NOTICED_WITHIN;
use controller::kubernetes::watch::Clients;
use controller::leadership::clock::Clock;
use controller::leadership::fence::{Fence, fenced};
use controller::metrics::Metrics;
use controller::providers::build::Drivers;
use controller::runtime::Edges;
use drivers::aws::addresses::Ec2;
use drivers::aws::records::Route53;
use drivers::aws::{Aws, Identity};
use drivers::azure::addresses::Azure;
use drivers::budget::{Counting, Limit, budgeted};
use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::digitalocean::records::Records;
use drivers::google::addresses::Compute;
use drivers::http::{HttpService, is_read, with_deadline};
use drivers::record::RecordDriver;
use drivers::{AddressDriver, Seconds, tokens};
use futures::stream;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use plan::{DnsProvider, Provider};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tower::{BoxError, ServiceExt};

use crate::apiserver::{self, After, Watch};
use crate::broken;
use crate::clouds::{Cloud, GROUP, TOKEN};
use crate::event::{Asked, Death};
use crate::journals::Journal;
use crate::options::TAKEOVER;
use crate::universe::{Fate, Process, Universe};
use crate::vips;

/// The body of a response: complete, or the stream of a watch.
type Answer = UnsyncBoxBody<Bytes, BoxError>;

/// Longer than every client's timeout.
const SILENCE: Duration = Duration::from_secs(30);

/// The apiserver closes a watch after this time, as the controller requests.
const WATCH_SECONDS: u64 = 120;

/// How often a silent watch checks whether the silence has ended.
const SILENCE_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// The apiserver sends a bookmark if a watch had no event for this long.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// Creates the clients of a process.
pub fn edges(universe: &Arc<Universe>, process: &Arc<Process>, metrics: &Metrics) -> Edges {
    let fence = Fence::new(Arc::clone(process) as Arc<dyn Clock>);
    let client = |seconds| kubernetes(universe, process, Duration::from_secs(seconds));
    let reach = |cloud, server| reach(universe, process, &fence, cloud, server);
    let compute = reach(Cloud::Compute, HttpService::new(universe.compute.service()));
    let ocean = reach(Cloud::Ocean, HttpService::new(universe.ocean.service()));
    // The checks of a cloud concern addresses. DNS providers have none, so they can count as any cloud.
    let zones = reach(Cloud::Ocean, HttpService::new(universe.zones.service()));
    let route53 = reach(Cloud::Ocean, HttpService::new(universe.route53.service()));
    let azure = reach(Cloud::Azure, HttpService::new(universe.azure.service()));
    let ec2 = reach(Cloud::Aws, HttpService::new(universe.ec2.service()));
    let clock = Arc::clone(process);
    let now: Seconds = Arc::new(move || u64::try_from(clock.wall().as_second()).unwrap_or(0));
    Edges {
        watching: Clients { lists: client(10), watches: client(10), metrics: metrics.clone() },
        writing: client(3),
        writing_vips: client(15),
        leasing: client(3),
        drivers: drivers(Services { compute, ocean, zones, azure, ec2, route53 }, &now),
        clock: Arc::clone(process) as Arc<dyn Clock>,
        fence,
        vips: controller::vips::reconcile::Line::default(),
    }
}

/// The HTTP services of the clouds and DNS providers.
#[allow(missing_docs, reason = "the names of the fields say it all")]
pub struct Services {
    pub compute: HttpService,
    pub ocean: HttpService,
    pub zones: HttpService,
    pub azure: HttpService,
    pub ec2: HttpService,
    pub route53: HttpService,
}

/// Creates the drivers on the clouds' services, with the controller's default rate limits.
pub fn drivers(services: Services, now: &Seconds) -> Drivers {
    let Services { compute, ocean, zones, azure, ec2, route53 } = services;
    let limits = [Limit::window(drivers::google::addresses::REQUESTS_PER_MINUTE, Duration::from_secs(60))];
    let compute = budgeted(compute, &limits, drivers::google::addresses::counting());
    let limits = drivers::digitalocean::addresses::limits(
        drivers::digitalocean::addresses::REQUESTS_PER_MINUTE,
        drivers::digitalocean::addresses::REQUESTS_PER_HOUR,
    );
    let ocean = budgeted(ocean, &limits, Counting::default());
    let token = || tokens::fixed(TOKEN);
    let compute: Arc<dyn AddressDriver> =
        Arc::new(Compute::new(compute, "http://compute.invalid/compute/v1", token()));
    let url = "http://digitalocean.invalid";
    let records: Arc<dyn RecordDriver> = Arc::new(Records::new(ocean.clone(), url, token()));
    let ocean: Arc<dyn AddressDriver> = Arc::new(DigitalOcean::new(ocean, url, token()));
    let limits =
        drivers::cloudflare::records::limits(drivers::cloudflare::records::REQUESTS_PER_FIVE_MINUTES);
    let zones = budgeted(zones, &limits, Counting::default());
    let zones: Arc<dyn RecordDriver> =
        Arc::new(Cloudflare::new(zones, "http://cloudflare.invalid/client/v4", token()));
    let limits = drivers::azure::addresses::limits();
    let azure = budgeted(azure, &limits, drivers::azure::addresses::counting());
    let azure: Arc<dyn AddressDriver> =
        Arc::new(Azure::new(azure, "http://azure.invalid", token(), Some(GROUP.into())));
    let aws = |service| {
        let keys = Identity::Keys { id: TOKEN.into(), secret: "secret".into() };
        Arc::new(Aws::new(service, keys, "", Arc::clone(now)))
    };
    let ec2: Arc<dyn AddressDriver> = Arc::new(Ec2::new(
        aws(ec2),
        drivers::aws::addresses::limits(),
        drivers::aws::addresses::STALENESS_MAX,
    ));
    let route53: Arc<dyn RecordDriver> =
        Arc::new(Route53::new(aws(route53), drivers::aws::records::limits()));
    Drivers {
        addresses: BTreeMap::from([
            (Provider::Gcp, compute),
            (Provider::DigitalOcean, ocean),
            (Provider::Azure, azure),
            (Provider::Aws, ec2),
        ]),
        records: BTreeMap::from([
            (DnsProvider::DigitalOcean, records),
            (DnsProvider::Cloudflare, zones),
            (DnsProvider::Route53, route53),
        ]),
    }
}

/// Wraps the service of a cloud in the fence, a deadline and the simulated network.
fn reach(
    universe: &Arc<Universe>,
    process: &Arc<Process>,
    fence: &Arc<Fence>,
    cloud: Cloud,
    server: HttpService,
) -> HttpService {
    let (universe, process, wire) = (Arc::clone(universe), Arc::clone(process), Arc::clone(fence));
    let send = move |request: Request<Bytes>| {
        let (universe, process, fence, server) =
            (Arc::clone(&universe), Arc::clone(&process), Arc::clone(&wire), server.clone());
        async move {
            let is_change = !is_read(&request);
            // A request spends a moment in the client before it is sent.
            tokio::time::sleep(universe.in_client()).await;
            if is_change && fence.remaining().is_none() && !plan::sabotaged!(FenceOnlyAtTheStart) {
                return Err(BoxError::from("request not sent: the lease of this replica is no longer valid"));
            }
            if is_change && universe.is_doomed(Asked::Cloud(cloud), Death::Before) {
                process.dies().await;
            }
            let (mut fate, mut out, back) = universe.fate(true);
            let (to, answer) = oneshot::channel();
            let (mut sent, is_silent) =
                (universe.sends(process.number, cloud, &request), universe.is_silent());
            if let Some(late) = sent.moves_an_address().then(|| universe.overdue(cloud)).flatten() {
                (fate, out, sent.is_overdue) = (Fate::Echo, TAKEOVER + late, true);
                universe.gives_up(&sent);
            }
            let dies = is_change && universe.is_doomed(Asked::Cloud(cloud), Death::After);
            let server_side = Arc::clone(&universe);
            tokio::spawn(async move {
                let universe = server_side;
                // The client of a late request (`Echo`) sees a broken connection at once.
                let to = (fate != Fate::Echo).then_some(to);
                tokio::time::sleep(out).await;
                if fate == Fate::RequestLost {
                    return lost(to, is_silent).await;
                }
                if fate == Fate::Unavailable {
                    let mut answer = Response::new(Bytes::from("{}"));
                    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    if let Some(to) = to {
                        _ = to.send(Ok(answer));
                    }
                    return;
                }
                universe.trace(sent.process, request.method(), request.uri(), request.body());
                let arrived = universe.arrives(sent);
                let answer = server.oneshot(request).await;
                let status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
                let is_whole = answer.as_ref().is_ok_and(|answer| is_whole(answer.body()));
                let reading = universe.answered(arrived, status, is_whole && fate == Fate::Well);
                tokio::time::sleep(back).await;
                reading.iter().for_each(|reading| universe.heard(reading));
                if fate == Fate::ReplyLost {
                    return lost(to, is_silent).await;
                }
                if let Some(to) = to {
                    _ = to.send(answer);
                }
            });
            if dies {
                process.dies().await;
            }
            answer.await.map_err(|_| BoxError::from("connection closed before the response"))?
        }
    };
    with_deadline(fenced(HttpService::new(tower::service_fn(send)), Arc::clone(fence)))
}

/// Loses a response: the connection breaks, or stays open without data.
async fn lost<T>(to: T, is_silent: bool) {
    if is_silent {
        tokio::time::sleep(SILENCE).await;
    }
    drop(to);
}

/// Creates a client whose requests pass through the simulated network and time out after `longest`.
fn kubernetes(universe: &Arc<Universe>, process: &Arc<Process>, longest: Duration) -> Client {
    let (universe, process) = (Arc::clone(universe), Arc::clone(process));
    let send = move |request: Request<Body>| {
        let (universe, process) = (Arc::clone(&universe), Arc::clone(&process));
        async move {
            let (head, body) = request.into_parts();
            let request = Request::from_parts(head, body.collect().await?.to_bytes());
            let answer = tokio::time::timeout(longest, exchange(universe, process, request));
            answer.await.map_err(|_| BoxError::from("timed out waiting for the response"))?
        }
    };
    Client::new(tower::service_fn(send), "default")
}

async fn exchange(
    universe: Arc<Universe>,
    process: Arc<Process>,
    request: Request<Bytes>,
) -> Result<Response<Answer>, BoxError> {
    let asked = asked(&request);
    if asked.is_some_and(|asked| universe.is_doomed(asked, Death::Before)) {
        process.dies().await;
    }
    let dies = asked.is_some_and(|asked| universe.is_doomed(asked, Death::After));
    let (fate, out, back) = universe.fate(false);
    let watch = apiserver::watched(&request);
    let (to, answer) = oneshot::channel();
    let (server, is_silent) = (Arc::clone(&universe), universe.is_silent());
    // A watch of a kind that does not exist gets an ordinary error response.
    let is_watch = watch.as_ref().is_some_and(|watch| universe.api.has_kind(watch.kind.plural));
    let (number, sent) = (process.number, universe.elapsed());
    tokio::spawn(async move {
        // The client of a late request (`Echo`) sees a broken connection at once.
        let to = (fate != Fate::Echo).then_some(to);
        tokio::time::sleep(out).await;
        let answer = match fate {
            Fate::RequestLost => return lost(to, is_silent).await,
            Fate::Unavailable => refusal(StatusCode::SERVICE_UNAVAILABLE, "shutting down"),
            _ if is_refused(&server, &request) => refusal(StatusCode::SERVICE_UNAVAILABLE, "try again later"),
            Fate::TooMany => refusal(StatusCode::TOO_MANY_REQUESTS, "too many requests"),
            _ if is_watch => Response::default(),
            _ if let Some(list) = stale_list(&server, number, &request) => list,
            Fate::Well | Fate::ReplyLost | Fate::Echo => carried_out(&server, number, sent, &request),
            Fate::Truncated => {
                carried_out(&server, number, sent, &request).map(|body| body.slice(..body.len() / 2))
            }
        };
        tokio::time::sleep(back).await;
        if fate == Fate::ReplyLost {
            return lost(to, is_silent).await;
        }
        if let Some(to) = to {
            _ = to.send(answer);
        }
    });
    if dies {
        process.dies().await;
    }
    let answer = answer.await.map_err(|_| BoxError::from("connection closed before the response"))?;
    match watch {
        Some(watch) if answer.status().is_success() => {
            universe.watches(number, watch.kind.plural);
            Ok(Response::new(watch_body(universe, watch)))
        }
        _ => Ok(answer.map(|bytes| Full::new(bytes).map_err(|never| match never {}).boxed_unsync())),
    }
}

/// An outdated response to a list request, if the script asks for one.
fn stale_list(universe: &Universe, process: u64, request: &Request<Bytes>) -> Option<Response<Bytes>> {
    let kind = apiserver::read_kind(request)?;
    let age = universe.age_of_list(process, kind.plural)?;
    let list = universe.api.list_at(kind, universe.now() - age);
    Some(Response::new(Bytes::from(list.to_string())))
}

/// Whether the apiserver refuses to list or watch this kind at present.
fn is_refused(universe: &Universe, request: &Request<Bytes>) -> bool {
    apiserver::read_kind(request).is_some_and(|kind| universe.is_unreadable(kind.plural))
}

/// What a request to Kubernetes changes; None for a read.
fn asked(request: &Request<Bytes>) -> Option<Asked> {
    let of_lease = request.uri().path().contains("/leases");
    (request.method() != Method::GET).then_some(if of_lease { Asked::Lease } else { Asked::Kubernetes })
}

/// The response of an apiserver that does not execute a request.
fn refusal(code: StatusCode, message: &str) -> Response<Bytes> {
    let status = json!({"kind": "Status", "status": "Failure", "message": message, "code": code.as_u16()});
    let mut answer = Response::new(Bytes::from(status.to_string()));
    *answer.status_mut() = code;
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Whether a body is complete. Some responses are truncated.
fn is_whole(body: &Bytes) -> bool {
    match body.first() {
        Some(b'{') => serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok(),
        _ => body.trim_ascii_end().last().is_none_or(|last| *last == b'>'),
    }
}

/// Executes a request on the apiserver, and checks what it changed. `sent` is when the process sent it.
fn carried_out(
    universe: &Universe,
    process: u64,
    sent: Duration,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    let node = || {
        let (_, name) = request.uri().path().rsplit_once("/nodes/")?;
        universe.api.one("nodes", "", name)
    };
    universe.trace(process, request.method(), request.uri(), request.body());
    let before = (request.method() == Method::PATCH).then(node).flatten();
    if asked(request) == Some(Asked::Kubernetes) {
        universe.asks_for_a_change();
    }
    let journal = Journal::of(universe, request);
    let written = broken::is_write(request).then(|| universe.api.meant(request)).flatten();
    let answer = vips::checks::carried_out(universe, process, sent, request);
    broken::judge(universe, process, request, written.as_deref(), answer.status());
    if let Some(journal) = journal {
        journal.written(universe, process);
    }
    if let (Some(before), Some(after)) = (&before, before.as_ref().and_then(|_| node())) {
        universe.marked(before, &after);
    }
    if request.method() == Method::PUT && request.uri().path().contains("/leases/") {
        universe.leased();
    }
    answer
}

/// The progress of a watch.
struct Position {
    /// The watch has processed events up to this version.
    version: u64,
    /// The version that the client was last sent, and when.
    sent: (u64, Duration),
    /// Lines to send before all events: the objects at the beginning of a watch that names no version.
    first: Vec<u8>,
}

/// The body of a watch: events in order, each with a delay, until the server closes the watch or the connection breaks.
fn watch_body(universe: Arc<Universe>, watch: Watch) -> Answer {
    let began = universe.elapsed();
    let Watch { kind, version, name, wants_bookmarks } = watch;
    let is_named =
        move |name: Option<&str>, object: &Value| name.is_none_or(|name| object["metadata"]["name"] == name);
    let (objects, version) =
        version.map_or_else(|| universe.api.present(kind), |version| (Vec::new(), version));
    let objects = objects.iter().filter(|object| is_named(name.as_deref(), object));
    let first =
        objects.flat_map(|object| line(&json!({"type": "ADDED", "object": **object})).to_vec()).collect();
    let next = move |position: Option<Position>| {
        let (universe, name) = (Arc::clone(&universe), name.clone());
        async move {
            let Position { version: mut at, sent, mut first } = position?;
            loop {
                if let Some(silence) = universe.watches_are_silent_for() {
                    // The silence ends early when all faults end.
                    tokio::time::sleep(silence.min(SILENCE_CHECKED_EVERY)).await;
                    continue;
                }
                let left = Duration::from_secs(WATCH_SECONDS).checked_sub(universe.elapsed() - began)?;
                if left.is_zero() {
                    return None;
                }
                let (events, reached) = match universe.api.events_after(kind.plural, at) {
                    After::Events(events, reached) => (events, reached),
                    After::Forgotten => return Some((Ok(line(&apiserver::expired())), None)),
                    After::Absent => return None,
                };
                let is_meant = |event: &&apiserver::Event| is_named(name.as_deref(), &event.object);
                let mut lines = std::mem::take(&mut first);
                lines.extend(events.iter().filter(is_meant).flat_map(|event| event.line.iter().copied()));
                at = reached;
                let is_silent = universe.elapsed() >= sent.1 + BOOKMARK_EVERY;
                if lines.is_empty() && wants_bookmarks && is_silent && at > sent.0 {
                    lines = line(&apiserver::bookmark(kind, at)).to_vec();
                }
                if lines.is_empty() {
                    let silence = (sent.1 + BOOKMARK_EVERY).saturating_sub(universe.elapsed());
                    let longest = if silence.is_zero() { left } else { left.min(silence) };
                    universe.api.changed(longest).await;
                    continue;
                }
                let (fate, out, back) = universe.fate(false);
                if universe.is_unreadable(kind.plural) {
                    return Some((Err(BoxError::from("the apiserver has ended the watch")), None));
                }
                if fate != Fate::Well {
                    if universe.is_silent() {
                        // The connection stays open. The client notices the loss only by a ping without response.
                        tokio::time::sleep(NOTICED_WITHIN).await;
                    }
                    return Some((Err(BoxError::from("the watch connection broke")), None));
                }
                // Watch events arrive later than responses, so the watched state is older than the real one.
                tokio::time::sleep(out + back * 4).await;
                let sent = (at, universe.elapsed());
                return Some((Ok(Bytes::from(lines)), Some(Position { version: at, sent, first })));
            }
        }
    };
    let frames = stream::unfold(Some(Position { version, sent: (version, began), first }), next);
    let frames =
        futures::StreamExt::map(frames, |bytes: Result<Bytes, BoxError>| bytes.map(http_body::Frame::data));
    StreamBody::new(frames).boxed_unsync()
}

fn line(event: &Value) -> Bytes {
    Bytes::from(format!("{event}\n"))
}
