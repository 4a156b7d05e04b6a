//! The service in front of a machine: it lets faults strike and enforces the API's limits.
//!
//! In: HTTP requests, and the faults that a test arranges. Out: the machine's answers, whole or cut, now, late or never, and the
//! ledger. It knows no API: what a request means is the machine's to say.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{Method, Request, Response};
use bytes::Bytes;
use tokio::time::Instant;
use tower::BoxError;

use super::call::{Answer, CONTENT_TYPE, Call, Refusal, Route, query_of};
use super::faults::{Fault, Faults, Rule};
use super::ledger::{Deed, Ledger};
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
    pub fn inject(&self, fault: Rule) {
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
