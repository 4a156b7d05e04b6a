//! Fake clouds: state machines behind a tower service, with a ledger that judges every safety test.
//!
//! In: HTTP requests, either straight from a driver in the same process or over loopback through [`http::serve`].
//! Out: the answers the real cloud would give, at the times it would give them. A fake never helps the caller: it does
//! what it is told, refuses what the real cloud refuses, and writes down every change in its [`Ledger`].
//!
//! ```text
//! driver ──▶ FakeService ──▶ Fault? ──▶ Limit? ──▶ Machine::handle ──▶ answer (perhaps late, cut or lost)
//!                                                        └─▶ Ledger
//! ```
//!
//! Time is tokio's, so a test that pauses the clock gets the same answers in virtual time.

pub mod faults;
pub mod http;
pub mod ledger;
pub mod limits;
pub mod signature;
pub(crate) mod xml;

pub mod azure;
pub mod cloudflare;
pub mod compute;
pub mod digitalocean;
pub mod ec2;
pub mod entra;
pub mod metadata;
pub mod route53;
pub mod sts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{HeaderMap, Method, Request, Response};
use bytes::Bytes;
use tokio::time::Instant;
use tower::BoxError;

use faults::{Fault, Faults};
use ledger::{Deed, Ledger};
use limits::{Limit, Limits};

/// One API as a state machine. It sees one request at a time and never waits.
pub trait Machine: Send + 'static {
    /// Which of the API's calls a request is, or nothing where the API has no such call.
    fn route(request: &Request<Bytes>) -> Option<Route>;

    /// The API's limits, enforced before a request is handled.
    fn limits() -> Vec<Limit>;

    /// Carries out one request at the given moment and writes what it changed into the ledger.
    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer;

    /// Lets what is due by now happen, and writes it into the ledger. Called before anyone looks from outside, so that an
    /// operation takes effect at its time even where no request follows it, and after, so that what a person did with a
    /// console is in the ledger too.
    fn advance(&mut self, _now: Duration, _ledger: &mut Ledger) {}

    /// The API's own way of refusing.
    fn refuse(&self, refusal: &Refusal) -> Answer;

    /// Whether a request carries credentials that the API accepts.
    fn is_authorized(&self, request: &Request<Bytes>) -> bool;
}

/// One of an API's calls, with the variable parts of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The call's name in the vendor's documentation, such as `addresses.aggregatedList`.
    pub name: &'static str,
    /// The variable parts of the path, in order, percent-decoded.
    pub params: Vec<String>,
}

/// A request, parsed as far as every machine needs it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which call it is.
    pub route: Route,
    /// The query's parameters, decoded. A repeated parameter keeps its last value.
    pub query: BTreeMap<String, String>,
    /// The body as JSON, or null where it is none.
    pub body: serde_json::Value,
    /// The body as it came.
    pub raw: Bytes,
    /// The request's headers.
    pub headers: HeaderMap,
    /// Set by a [`Fault::FailLate`]: the operation that this call starts will fail when it ends.
    pub fails_late: bool,
    /// Set by a [`Fault::Overtake`]: the operation that this call starts ends at once, before those begun earlier.
    pub overtakes: bool,
}

/// Why a request is refused before the machine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such call.
    NoSuchCall,
    /// No or wrong credentials.
    Unauthorized,
    /// A limit was exceeded; the caller may come back after this long.
    RateLimited(Duration),
    /// The caller lacks a permission.
    Forbidden(String),
    /// The API is having a bad day; the status code says how.
    Unavailable(u16),
}

const CONTENT_TYPE: &str = "content-type";

/// A machine's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Headers. The content type is JSON's unless one is among them.
    pub headers: Vec<(&'static str, String)>,
    /// The body; null is sent as no body at all.
    pub body: serde_json::Value,
}

impl Answer {
    /// An answer with a JSON body.
    pub fn json(status: u16, body: serde_json::Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    /// An answer with a body that is not JSON; the content type among the headers says so.
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        let headers = vec![(CONTENT_TYPE, content_type.to_owned())];
        Self { status, headers, body: serde_json::Value::String(body.to_owned()) }
    }

    /// Whether the body is sent as it is instead of as JSON.
    fn is_text(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == CONTENT_TYPE)
    }
}

/// A fake cloud. Clones share one state.
pub struct Fake<M> {
    inner: Arc<Mutex<Inner<M>>>,
}

impl<M> Clone for Fake<M> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

struct Inner<M> {
    machine: M,
    ledger: Ledger,
    faults: Faults,
    limits: Limits,
    started: Option<Instant>,
}

impl<M: Machine> Fake<M> {
    /// A fake with the given state, the real limits in force and no faults.
    pub fn new(machine: M) -> Self {
        let inner = Inner {
            machine,
            ledger: Ledger::default(),
            faults: Faults::default(),
            limits: Limits::new(M::limits()),
            started: None,
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Looks at or changes the state from outside, as a person with a console would.
    pub fn with<R>(&self, look: impl FnOnce(&mut M) -> R) -> R {
        let mut inner = self.lock();
        inner.advance();
        let seen = look(&mut inner.machine);
        inner.advance();
        seen
    }

    /// Everything that was asked and done so far.
    pub fn ledger(&self) -> Ledger {
        let mut inner = self.lock();
        inner.advance();
        inner.ledger.clone()
    }

    /// Every change so far and when it took effect, on a clock that all fakes share.
    pub fn deeds(&self) -> Vec<(Instant, Deed)> {
        let mut inner = self.lock();
        inner.advance();
        let started = inner.started.unwrap_or_else(Instant::now);
        inner.ledger.done.iter().map(|done| (started + done.at, done.deed.clone())).collect()
    }

    /// Arranges for something to go wrong.
    pub fn inject(&self, fault: faults::Rule) {
        self.lock().faults.add(fault);
    }

    /// Lets everything go right again.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Takes away all limits, or puts the real ones back.
    pub fn enforce_limits(&self, enforced: bool) {
        self.lock().limits.enforce(enforced);
    }

    /// The service that a driver speaks to.
    pub fn service(&self) -> FakeService<M> {
        FakeService { fake: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<M>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Machine> Inner<M> {
    /// Lets what is due happen. Before the first request no time has passed.
    fn advance(&mut self) {
        let now = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.machine.advance(now, &mut self.ledger);
    }

    /// Decides the whole fate of one request at one moment.
    fn exchange(&mut self, request: &Request<Bytes>) -> Exchange {
        let started = *self.started.get_or_insert_with(Instant::now);
        let now = started.elapsed();
        let Some(route) = M::route(request) else {
            self.ledger.asked(now, "unknown", request, 404);
            return Exchange::prompt(self.machine.refuse(&Refusal::NoSuchCall));
        };
        // Amazon's calls are all POST.
        let only_reads = request.method() == Method::GET || route.name.starts_with("Describe");
        let fault = self.faults.next(&route, only_reads);
        let exchange = self.answer(request, route.clone(), fault, now);
        let status = exchange.answer.as_ref().map_or(0, |answer| answer.status);
        self.ledger.asked(now, route.name, request, status);
        exchange
    }

    fn answer(
        &mut self,
        request: &Request<Bytes>,
        route: Route,
        fault: Option<Fault>,
        now: Duration,
    ) -> Exchange {
        if !self.machine.is_authorized(request) {
            return Exchange::prompt(self.machine.refuse(&Refusal::Unauthorized));
        }
        match &fault {
            Some(Fault::LoseRequest) => return Exchange::lost(),
            Some(Fault::Refuse(refusal)) => return Exchange::prompt(self.machine.refuse(refusal)),
            _ => {}
        }
        if let Some(wait) = self.limits.exceeded(&route, now) {
            return Exchange::prompt(self.machine.refuse(&Refusal::RateLimited(wait)));
        }
        let call = Call {
            route,
            query: query_of(request),
            body: serde_json::from_slice(request.body()).unwrap_or_default(),
            raw: request.body().clone(),
            headers: request.headers().clone(),
            fails_late: fault == Some(Fault::FailLate),
            overtakes: fault == Some(Fault::Overtake),
        };
        let mut answer = self.machine.handle(&call, now, &mut self.ledger);
        answer.headers.extend(self.limits.headers(now));
        match fault {
            Some(Fault::LoseReply) => Exchange::lost(),
            Some(Fault::Delay(delay)) => Exchange { answer: Some(answer), delay, truncated: false },
            Some(Fault::Truncate) => {
                Exchange { answer: Some(answer), delay: Duration::ZERO, truncated: true }
            }
            _ => Exchange::prompt(answer),
        }
    }
}

/// What becomes of one request: an answer or none, now or later, whole or cut.
struct Exchange {
    answer: Option<Answer>,
    delay: Duration,
    truncated: bool,
}

impl Exchange {
    fn prompt(answer: Answer) -> Self {
        Self { answer: Some(answer), delay: Duration::ZERO, truncated: false }
    }

    fn lost() -> Self {
        Self { answer: None, delay: Duration::ZERO, truncated: false }
    }
}

/// A tower service in front of a fake. A lost reply is an error, as a dropped connection is to a client.
pub struct FakeService<M> {
    fake: Fake<M>,
}

impl<M> Clone for FakeService<M> {
    fn clone(&self) -> Self {
        Self { fake: self.fake.clone() }
    }
}

impl<M: Machine> tower::Service<Request<Bytes>> for FakeService<M> {
    type Response = Response<Bytes>;
    type Error = BoxError;
    type Future =
        std::pin::Pin<Box<dyn std::future::Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let fake = self.fake.clone();
        Box::pin(async move {
            let exchange = fake.lock().exchange(&request);
            if !exchange.delay.is_zero() {
                tokio::time::sleep(exchange.delay).await;
            }
            let answer = exchange.answer.ok_or("the connection was closed before an answer came")?;
            let is_text = answer.is_text();
            let mut body = match answer.body {
                serde_json::Value::Null => Bytes::new(),
                serde_json::Value::String(text) if is_text => Bytes::from(text),
                body => Bytes::from(body.to_string()),
            };
            if exchange.truncated {
                body.truncate(body.len() / 2);
            }
            let mut response = Response::builder().status(answer.status);
            if !is_text {
                response = response.header(CONTENT_TYPE, "application/json; charset=utf-8");
            }
            for (name, value) in answer.headers {
                response = response.header(name, value);
            }
            Ok(response.body(body)?)
        })
    }
}

/// The names in a table of calls.
pub(crate) const fn names<const N: usize>(calls: &[(&str, &str, &'static str); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = calls[at].2;
        at += 1;
    }
    names
}

/// The first call of a table of methods, patterns and names that a request is.
pub(crate) fn route_in(calls: &[(&str, &str, &'static str)], request: &Request<Bytes>) -> Option<Route> {
    let mut of_method = calls.iter().filter(|(accepted, ..)| *accepted == request.method().as_str());
    let path = request.uri().path();
    of_method.find_map(|(_, pattern, name)| matches(pattern, path).map(|params| Route { name, params }))
}

/// Matches a path against a pattern such as `v2/reserved_ips/{}/actions`, and gives the variable parts.
pub fn matches(pattern: &str, path: &str) -> Option<Vec<String>> {
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    let pattern: Vec<&str> = pattern.split('/').collect();
    if path.len() != pattern.len() {
        return None;
    }
    let mut params = Vec::new();
    for (expected, found) in pattern.into_iter().zip(path) {
        if expected == "{}" {
            params.push(percent_decoded(found));
        } else if expected != found {
            return None;
        }
    }
    Some(params)
}

fn query_of(request: &Request<Bytes>) -> BTreeMap<String, String> {
    pairs_of(request.uri().query().unwrap_or_default())
}

/// Names and values as a query or a form has them, decoded. A repeated name keeps its last value.
pub fn pairs_of(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (percent_decoded(name), percent_decoded(&value.replace('+', " "))))
        .collect()
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_gives_the_variable_parts_of_a_path() {
        assert_eq!(
            matches("v2/ips/{}/actions", "/v2/ips/203.0.113.7/actions"),
            Some(vec!["203.0.113.7".into()])
        );
        assert_eq!(matches("v2/ips/{}", "/v2/ips/a%2Fb"), Some(vec!["a/b".into()]));
        assert_eq!(matches("v2/ips/{}", "/v2/ips"), None);
    }
}
