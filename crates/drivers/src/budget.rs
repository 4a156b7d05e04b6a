//! A provider's rate limits, kept by asking no faster than they allow.
//!
//! In: requests of all pools. Out: the same requests, no more than the limits allow, wherever the provider's own windows
//! begin: while a request has no answer it may not have arrived yet, so what it takes comes back from its answer on. A part of
//! each limit is kept for what is urgent, so that a dead holder's address does not queue behind drained ones, a part of each
//! bucket for what has begun, so that who has looked can go on, and a part of each window for putting on what is taken off.
//! Where a provider asks one request to wait, all that it counts together wait. A request that would have to wait for long is not sent at all, and is told when
//! its turn comes: what was decided on must not leave much later, when it may not be so any more.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{Request, StatusCode};
use bytes::Bytes;
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::NotSent;
use crate::http::{HttpService, retry_after};
use crate::times::later;

/// How fast requests of one kind may follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Which requests count.
    pub counts: fn(&Request<Bytes>) -> bool,
    /// How fast they may follow each other.
    pub rate: Rate,
}

/// How fast requests may follow each other.
#[derive(Clone, Copy, Debug)]
pub enum Rate {
    /// At most so many in any window of this length.
    Window {
        /// The most requests.
        requests_max: usize,
        /// The window.
        window: Duration,
    },
    /// So many at once, and then one for each that has come back since.
    Bucket {
        /// The most requests at once.
        burst: u32,
        /// How long one takes to come back.
        interval: Duration,
    },
}

impl Limit {
    /// At most so many requests of any kind in any window of this length.
    pub fn window(requests_max: usize, window: Duration) -> Self {
        Self { counts: |_| true, rate: Rate::Window { requests_max, window } }
    }

    /// So many requests of a kind at once, and then so many a second.
    pub fn bucket(counts: fn(&Request<Bytes>) -> bool, burst: u32, per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { counts, rate: Rate::Bucket { burst, interval } }
    }
}

/// How many ranks there are.
const RANKS: usize = 5;

/// What a request leaves of a bucket to those before it, by rank, in percent.
const LEAVES_OF_BUCKET: [usize; RANKS] = [0, 3, 8, 13, 13];

/// What it leaves of a window: what nobody uses of that is lost, while a bucket gives the same in the long run. The last is for
/// those addresses that are off their machines, each of which needs a look and a change, and would be on none until the next window.
const LEAVES_OF_WINDOW: [usize; RANKS] = [0, 0, 5, 5, 14];

/// The longest that a provider that has no room is left alone: it may have meant one kind of request only.
const REST_MAX: Duration = Duration::from_secs(60);

/// The longest that a request waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// How much of a hurry there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// What can wait does, so that the rest of each limit is there for what can't.
    Ordinary,
    /// The same, and it takes an address off a machine where it serves, so more calls have to follow soon.
    TakingOff,
    /// A dead holder's address is on its way.
    Urgent,
    /// Nothing goes on without it, and it says what is when it is sent, however late that is: a listing, a look at operations.
    Reading,
}

/// A provider may count by a coarser clock than ours, and what was cut off without an answer may still arrive.
const JITTER: Duration = Duration::from_millis(500);

/// What a request may use.
#[derive(Clone, Copy, Debug)]
pub struct Priority {
    /// How much of a hurry there is.
    pub haste: Haste,
    /// Whether earlier ones would have been for nothing without it.
    pub has_begun: bool,
}

impl Priority {
    fn is_urgent(self) -> bool {
        matches!(self.haste, Haste::Urgent | Haste::Reading)
    }

    /// Its place among those that wait: behind all of the same rank and of lower ones.
    fn rank(self) -> usize {
        match (self.is_urgent(), self.has_begun) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) if self.haste == Haste::Ordinary => 3,
            (false, false) => 4,
        }
    }
}

tokio::task_local! {
    static PRIORITY: Cell<Priority>;
}

/// Says how much of a hurry there is for all requests that a future makes. They belong together: what the first of them was made for
/// needs the others.
pub async fn with_haste<F: Future>(haste: Haste, future: F) -> F::Output {
    with_priority(Priority { haste, has_begun: haste == Haste::Reading }, future).await
}

/// The same for a future that may go on with what another one has begun.
pub async fn with_priority<F: Future>(priority: Priority, future: F) -> F::Output {
    PRIORITY.scope(Cell::new(priority), future).await
}

/// Lets requests through no faster than the limits allow.
pub fn budgeted(service: HttpService, limits: &[Limit]) -> HttpService {
    let budget = Budget::new(limits);
    let send = move |request: Request<Bytes>| {
        let (mut service, budget) = (service.clone(), budget.clone());
        async move {
            let alone = Priority { haste: Haste::Ordinary, has_begun: false };
            let priority = PRIORITY.try_with(Cell::get).unwrap_or(alone);
            let sent = budget.take(&request, priority).await?;
            // Who has not said what belongs together makes each request for itself.
            _ = PRIORITY.try_with(|of_step| of_step.set(Priority { has_begun: true, ..priority }));
            let answer = service.ready().await?.call(request).await?;
            if answer.status() == StatusCode::TOO_MANY_REQUESTS
                && let Some(asked) = retry_after(answer.headers())
            {
                sent.rest(asked.min(REST_MAX));
            }
            Ok(answer)
        }
    };
    HttpService::new(tower::service_fn(send))
}

#[derive(Clone)]
struct Budget {
    limits: Arc<Mutex<Vec<Kept>>>,
}

/// A request that was sent. When this is dropped, it has been answered, or nobody waits for that any more.
struct Sent {
    budget: Budget,
    /// The limits that count it.
    counted: Vec<usize>,
}

impl Sent {
    /// The provider has no room for so long, though by our count it should: somebody else uses the same account.
    fn rest(&self, asked: Duration) {
        let (mut limits, until) = (self.budget.limits(), later(Instant::now(), asked));
        self.counted.iter().for_each(|at| limits[*at].rests_until = limits[*at].rests_until.max(Some(until)));
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let (mut limits, now) = (self.budget.limits(), Instant::now());
        self.counted.iter().for_each(|at| limits[*at].used.answered(now));
    }
}

/// A limit and what is used of it.
struct Kept {
    counts: fn(&Request<Bytes>) -> bool,
    used: Used,
    /// Nothing is sent before, because the provider asked for that.
    rests_until: Option<Instant>,
    /// The turns of those that wait, or were told when to come again, by rank.
    told: [Vec<Instant>; RANKS],
}

enum Used {
    /// When the requests of this window were answered, the oldest first, and how many were not yet.
    Window { requests_max: usize, window: Duration, answered: VecDeque<Instant>, in_flight: usize },
    /// When everything will have come back, and how many requests were not answered yet.
    Bucket { burst: u32, interval: Duration, full_at: Instant, in_flight: u32 },
}

impl Budget {
    fn new(limits: &[Limit]) -> Self {
        let kept = limits.iter().map(|Limit { counts, rate }| {
            let used = match *rate {
                Rate::Window { requests_max, window } => {
                    let window = window.saturating_add(JITTER);
                    Used::Window { requests_max, window, answered: VecDeque::new(), in_flight: 0 }
                }
                Rate::Bucket { burst, interval } => {
                    let together = JITTER.as_nanos() / interval.as_nanos().max(1);
                    let burst = burst.saturating_sub(u32::try_from(together).unwrap_or(u32::MAX)).max(1);
                    Used::Bucket { burst, interval, full_at: Instant::now(), in_flight: 0 }
                }
            };
            Kept { counts: *counts, used, rests_until: None, told: Default::default() }
        });
        Self { limits: Arc::new(Mutex::new(kept.collect())) }
    }

    fn limits(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be sent, and counts it; or tells it its turn, where that is too far away.
    async fn take(&self, request: &Request<Bytes>, priority: Priority) -> Result<Sent, NotSent> {
        let latest = later(Instant::now(), WAIT_MAX);
        // A listing queues behind nobody: where nothing is known, nothing goes on.
        let mut has_queued = priority.haste == Haste::Reading;
        loop {
            let now = Instant::now();
            let next = match self.try_take(request, priority, now) {
                Ok(sent) => return Ok(sent),
                // Somebody else was sent in its turn, so it is the next one's.
                Err(next) if has_queued => next,
                Err(_) => self.turn(request, priority, now),
            };
            if next > latest && priority.haste != Haste::Reading {
                return Err(NotSent { wait: next.saturating_duration_since(now) });
            }
            has_queued = true;
            tokio::time::sleep_until(next).await;
        }
    }

    /// Counts a request, or says when to try again.
    fn try_take(&self, request: &Request<Bytes>, priority: Priority, now: Instant) -> Result<Sent, Instant> {
        let mut limits = self.limits();
        let counted: Vec<_> = (0..limits.len()).filter(|at| (limits[*at].counts)(request)).collect();
        counted.iter().for_each(|at| limits[*at].used.forget_before(now));
        match counted.iter().filter_map(|at| limits[*at].turn(0, priority, now)).max() {
            Some(wait) => Err(wait),
            None => {
                counted.iter().for_each(|at| limits[*at].used.count());
                Ok(Sent { budget: self.clone(), counted })
            }
        }
    }

    /// The turn of a request behind all that wait already and are not of a higher rank.
    fn turn(&self, request: &Request<Bytes>, priority: Priority, now: Instant) -> Instant {
        let mut limits = self.limits();
        let turns = limits.iter_mut().filter(|kept| (kept.counts)(request)).map(|kept| {
            kept.told.iter_mut().for_each(|told| told.retain(|at| *at > now));
            let ahead = kept.told[..=priority.rank()].iter().map(Vec::len).sum();
            let turn = kept.turn(ahead, priority, now).unwrap_or(now);
            kept.told[priority.rank()].push(turn);
            turn
        });
        turns.max().unwrap_or(now)
    }
}

impl Kept {
    /// When one more may be sent, behind so many others that wait, where that is not now.
    fn turn(&self, waiting: usize, priority: Priority, now: Instant) -> Option<Instant> {
        self.used.turn(waiting, priority, now).max(self.rests_until.filter(|until| *until > now))
    }
}

impl Used {
    /// Forgets what has come back by now.
    fn forget_before(&mut self, now: Instant) {
        match self {
            Self::Window { window, answered, .. } => {
                while answered.front().is_some_and(|at| later(*at, *window) <= now) {
                    answered.pop_front();
                }
            }
            Self::Bucket { interval, full_at, in_flight, .. } => {
                *full_at = (*full_at).max(later(now, interval.saturating_mul(*in_flight)));
            }
        }
    }

    /// When one more may be sent, behind so many others that wait, where that is not now.
    fn turn(&self, waiting: usize, priority: Priority, now: Instant) -> Option<Instant> {
        let leaves = |max: usize, leaves: [usize; RANKS]| max.saturating_mul(leaves[priority.rank()]) / 100;
        let allowed = |max: usize, of: [usize; RANKS]| max.saturating_sub(leaves(max, of)).max(1);
        match self {
            Self::Window { requests_max, window, answered, in_flight } => {
                let (allowed, used) = (allowed(*requests_max, LEAVES_OF_WINDOW), answered.len() + in_flight);
                let over = used.min(allowed).saturating_add(waiting).checked_sub(allowed)?;
                // What is sent at a turn comes back a window later, and is the next one's turn.
                let rounds = u32::try_from(over / allowed).unwrap_or(u32::MAX);
                let behind = used.saturating_sub(allowed) + over % allowed;
                let answer = answered.get(behind).copied().or((behind < used).then_some(now));
                answer.map(|at| later(at, window.saturating_mul(rounds.saturating_add(1))))
            }
            Self::Bucket { burst, interval, full_at, .. } => {
                let before = u32::try_from(waiting).unwrap_or(u32::MAX);
                let own = interval.saturating_mul(before.saturating_add(1));
                let taken = full_at.saturating_duration_since(now).saturating_add(own);
                let allowed = allowed(*burst as usize, LEAVES_OF_BUCKET);
                let may_be_taken = interval.saturating_mul(u32::try_from(allowed).unwrap_or(u32::MAX));
                (taken > may_be_taken).then(|| later(now, taken.saturating_sub(may_be_taken)))
            }
        }
    }

    /// Counts one that is sent now.
    fn count(&mut self) {
        match self {
            Self::Window { in_flight, .. } => *in_flight += 1,
            Self::Bucket { interval, full_at, in_flight, .. } => {
                *full_at = later(*full_at, *interval);
                *in_flight += 1;
            }
        }
    }

    /// One that was sent has been answered.
    fn answered(&mut self, now: Instant) {
        self.forget_before(now);
        match self {
            Self::Window { answered, in_flight, .. } => {
                *in_flight -= 1;
                answered.push_back(now);
            }
            Self::Bucket { in_flight, .. } => *in_flight -= 1,
        }
    }
}
