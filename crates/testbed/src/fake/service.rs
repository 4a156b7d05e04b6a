//! The tower service in front of a fake: it applies injected faults and enforces the API's rate limits.
//!
//! In: HTTP requests, and the faults that a test injects. Out: the answers of the state machine (complete, truncated,
//! late or lost), and the ledger. The service never interprets a request: that is the job of the state machine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{Method, Request, Response};
use bytes::Bytes;
use tokio::time::Instant;
use tower::BoxError;

use super::call::{Answer, CONTENT_TYPE, Call, Refusal, Route, query_of};
use super::faults::{Fault, Faults, Rule};
use super::ledger::{CloudChange, Ledger};
use super::limits::Limits;
use super::machine::Machine;

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
    /// Creates a fake with the given state, the real rate limits and no faults.
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

    /// Reads or changes the state directly, as a person would with the cloud's console.
    pub fn with<R>(&self, look: impl FnOnce(&mut M) -> R) -> R {
        let mut inner = self.lock();
        inner.advance();
        let seen = look(&mut inner.machine);
        inner.advance();
        seen
    }

    /// Returns all requests and changes so far.
    pub fn ledger(&self) -> Ledger {
        let mut inner = self.lock();
        inner.advance();
        inner.ledger.clone()
    }

    /// Returns every change so far and the instant at which it took effect. Instants of different fakes are comparable.
    pub fn changes(&self) -> Vec<(Instant, CloudChange)> {
        let mut inner = self.lock();
        inner.advance();
        let started = inner.started.unwrap_or_else(Instant::now);
        inner.ledger.done.iter().map(|done| (started + done.at, done.change.clone())).collect()
    }

    /// Adds a rule for a fault.
    pub fn inject(&self, fault: Rule) {
        self.lock().faults.add(fault);
    }

    /// Removes all injected faults.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Enables or disables the rate limits.
    pub fn enforce_limits(&self, enforced: bool) {
        self.lock().limits.enforce(enforced);
    }

    /// Returns the service that a driver sends its requests to.
    pub fn service(&self) -> FakeService<M> {
        FakeService { fake: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<M>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Machine> Inner<M> {
    /// Carries out everything that is due. The fake's clock starts with its first request.
    fn advance(&mut self) {
        let now = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.machine.advance(now, &mut self.ledger);
    }

    /// Decides everything about one request at one moment: its answer, its delay, and whether the answer arrives.
    fn exchange(&mut self, request: &Request<Bytes>) -> Exchange {
        let started = *self.started.get_or_insert_with(Instant::now);
        let now = started.elapsed();
        let Some(route) = M::route(request) else {
            self.ledger.asked(now, "unknown", request, 404);
            return Exchange::prompt(self.machine.refuse(&Refusal::NoSuchCall));
        };
        // All calls of the AWS query API are POST requests.
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

/// The result of one request: the answer, unless it is lost, its delay, and whether it is truncated.
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

/// A tower service in front of a fake. A lost answer is an error, as a dropped connection is for a client.
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
            let answer = exchange.answer.ok_or("the connection was closed before an answer arrived")?;
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
