//! Keeps the requests to a provider within its rate limits.
//!
//! In: the requests of all pools. Out: the same requests, slowed down to what the limits allow, no matter when the
//! provider's own windows start. A request counts from the moment it is sent until one window or interval after its
//! response, because the provider may receive it late.
//!
//! A part of each limit is reserved, so that important requests do not queue behind others:
//!
//! - in each bucket and window, for urgent requests, so that the address of a failed node does not wait behind those
//!   of drained nodes;
//! - in each bucket, for steps that have begun, so that a step that has read can also write;
//! - in each window, for attaching addresses that were just detached;
//! - three quarters of each limit, for everything except reading again what is known. Such a read may need a second
//!   request, so all of them together use at most half.
//!
//! Some providers count the requests of each project or subscription on its own. Then each has its own budget.
//!
//! If the provider throttles one request (429 or the like), all requests under the same limits wait for the time in
//! `Retry-After`. Without this header, only requests of the same kind (reads or changes) wait, with exponential backoff.
//! Some providers report in each response how many requests are left. If more are used than this controller has sent, other
//! clients, such as the previous leader, have sent the others. The budget counts those too.
//!
//! A request that would have to wait for long is not sent at all. Its caller gets the time of its turn instead, because
//! the decision behind it may be outdated by then.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::http::{HeaderMap, Request, Response, StatusCode};
use bytes::Bytes;
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::NotSent;
use crate::http::{HttpService, is_read, retry_after};
use crate::times::later;

/// A rate limit on one kind of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Whether the limit counts a request.
    pub counts: fn(&Request<Bytes>) -> bool,
    /// The rate.
    pub rate: Rate,
    /// Reads from the headers of a response how many requests are left, if the provider reports it.
    pub quota: Option<fn(&HeaderMap) -> Option<Quota>>,
}

/// What a provider reports about a limit.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// How many requests are left, for all clients together.
    pub left: usize,
    /// How long until more requests are left, if the provider reports it.
    pub resets: Option<Duration>,
}

/// A rate of requests.
#[derive(Clone, Copy, Debug)]
pub enum Rate {
    /// At most `requests_max` in any `window`.
    Window {
        /// The maximum number of requests in a window.
        requests_max: usize,
        /// The length of the window.
        window: Duration,
    },
    /// A token bucket.
    Bucket {
        /// The size of the bucket.
        burst: u32,
        /// How long it takes to refill one token.
        interval: Duration,
    },
}

impl Limit {
    /// At most `requests_max` requests of any kind in any `window`.
    pub fn window(requests_max: usize, window: Duration) -> Self {
        Self::window_for(|_| true, requests_max, window)
    }

    /// At most `requests_max` requests of one kind in any `window`.
    pub fn window_for(counts: fn(&Request<Bytes>) -> bool, requests_max: usize, window: Duration) -> Self {
        Self { counts, rate: Rate::Window { requests_max, window }, quota: None }
    }

    /// A token bucket for one kind of requests, with size `burst` and `per_second` new tokens each second.
    pub fn bucket(counts: fn(&Request<Bytes>) -> bool, burst: u32, per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { counts, rate: Rate::Bucket { burst, interval }, quota: None }
    }

    /// This percentage of the limit, at least one request.
    pub fn percent(self, percent: u32) -> Self {
        let part = |max: u64| (max.saturating_mul(u64::from(percent)) / 100).max(1);
        let rate = match self.rate {
            Rate::Window { requests_max, window } => {
                let requests_max = usize::try_from(part(requests_max as u64)).unwrap_or(usize::MAX);
                Rate::Window { requests_max, window }
            }
            Rate::Bucket { burst, interval } => Rate::Bucket {
                burst: u32::try_from(part(u64::from(burst))).unwrap_or(u32::MAX),
                interval: interval.saturating_mul(100) / percent.max(1),
            },
        };
        Self { rate, ..self }
    }

    /// Sets the function that reads the remaining quota from a response.
    pub fn with_quota(self, quota: fn(&HeaderMap) -> Option<Quota>) -> Self {
        Self { quota: Some(quota), ..self }
    }
}

/// The number of ranks of [`Priority`].
const RANKS: usize = 6;

/// The percentage of a bucket that a request must leave for more urgent requests, by rank. Rank 0 is the most
/// urgent.
const LEAVES_OF_BUCKET: [usize; RANKS] = [0, 3, 8, 13, 13, 75];

/// The percentage of a window that a request must leave for more urgent requests, by rank. It is smaller than
/// for buckets, because an unused part of a window is lost. The last value but one keeps room for addresses that are
/// detached: each needs a read and a write, and would otherwise be on no VM until the next window.
const LEAVES_OF_WINDOW: [usize; RANKS] = [0, 0, 5, 5, 14, 75];

/// The first pause after a throttled request without `Retry-After`. Each further one doubles it.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// The maximum pause after a 429. It is short, because the provider may have meant only one kind of request.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The interval between requests that find out whether the requests of other clients still count.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The maximum time that a request waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// How urgent requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// It can wait. A part of each limit is reserved for requests that can't.
    Ordinary,
    /// Like `Ordinary`, but it detaches a working address, so the calls that attach it again must follow soon.
    Detaching,
    /// It moves an address off a failed or deleted node.
    Urgent,
    /// It reads known state again, because somebody else may have changed it. Such a request is never queued, so it does
    /// not delay a write to the same object.
    Refresh,
    /// A listing or a poll of operations. Nothing else can proceed without it. Its result is current even if the
    /// request is sent late.
    Reading,
}

/// The tolerance by which each limit is stricter than the provider's: the provider's clock may be coarser, and a
/// request that was cancelled may still arrive.
const JITTER: Duration = Duration::from_millis(500);

/// The priority of a request.
#[derive(Clone, Copy, Debug)]
pub struct Priority {
    /// How urgent the request is.
    pub urgency: Urgency,
    /// Whether earlier requests of the same step would be wasted without this one.
    pub has_begun: bool,
}

impl Priority {
    fn is_urgent(self) -> bool {
        matches!(self.urgency, Urgency::Urgent | Urgency::Reading)
    }

    /// The rank in the queue. A request waits behind all requests of the same or a lower rank.
    fn rank(self) -> usize {
        match (self.is_urgent(), self.has_begun) {
            (true, true) => 0,
            (true, false) => 1,
            (false, true) => 2,
            (false, false) if self.urgency == Urgency::Ordinary => 3,
            (false, false) if self.urgency == Urgency::Detaching => 4,
            (false, false) => 5,
        }
    }
}

tokio::task_local! {
    static PRIORITY: Cell<Priority>;
}

/// Sets the urgency of all requests that a future sends. The requests belong to one step: after the first one, the
/// others count as begun.
pub async fn with_haste<F: Future>(urgency: Urgency, future: F) -> F::Output {
    with_priority(Priority { urgency, has_begun: urgency == Urgency::Reading }, future).await
}

/// Like [`with_haste`], but the caller also says whether the step has begun, because another future may have sent the
/// first requests of the step.
pub async fn with_priority<F: Future>(priority: Priority, future: F) -> F::Output {
    PRIORITY.scope(Cell::new(priority), future).await
}

/// How a provider counts requests.
#[derive(Clone, Copy)]
pub struct Counting {
    /// Returns the unit whose limits count a request, such as a project.
    pub unit: fn(&Request<Bytes>) -> &str,
    /// Whether a response means that the request was throttled.
    pub is_throttled: fn(&Response<Bytes>) -> bool,
}

impl Default for Counting {
    /// All requests together, and 429.
    fn default() -> Self {
        Self { unit: |_| "", is_throttled: |response| response.status() == StatusCode::TOO_MANY_REQUESTS }
    }
}

/// Wraps a service so that its requests keep the limits.
pub fn budgeted(service: HttpService, limits: &[Limit], counting: Counting) -> HttpService {
    let Counting { unit, is_throttled } = counting;
    let budgets = Arc::new(Budgets { limits: limits.to_vec(), of_units: Mutex::default() });
    let send = move |request: Request<Bytes>| {
        let (mut service, budget) = (service.clone(), budgets.of(unit(&request)));
        async move {
            let alone = Priority { urgency: Urgency::Ordinary, has_begun: false };
            let priority = PRIORITY.try_with(Cell::get).unwrap_or(alone);
            let sent = budget.take(&request, priority).await?;
            // Outside of [`with_haste`], each request is a step of its own.
            _ = PRIORITY.try_with(|of_step| of_step.set(Priority { has_begun: true, ..priority }));
            let answer = service.ready().await?.call(request).await?;
            if is_throttled(&answer) {
                sent.was_throttled(retry_after(answer.headers()));
            } else if !answer.status().is_server_error() {
                sent.was_accepted();
                sent.record_quota(answer.headers());
            }
            Ok(answer)
        }
    };
    HttpService::new(tower::service_fn(send))
}

/// The part of a request's path that follows the part with this name, or an empty text.
pub fn part_after<'a>(request: &'a Request<Bytes>, name: &str) -> &'a str {
    request.uri().path().split('/').skip_while(|part| *part != name).nth(1).unwrap_or_default()
}

/// The budget of each unit with recent requests.
struct Budgets {
    limits: Vec<Limit>,
    of_units: Mutex<BTreeMap<String, Budget>>,
}

impl Budgets {
    /// The budget of a unit. If there is none yet, this function creates it and drops those that are not used, so that
    /// their number stays small.
    fn of(&self, unit: &str) -> Budget {
        let mut of_units = self.of_units.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = of_units.get(unit) {
            return budget.clone();
        }
        let (budget, now) = (Budget::new(&self.limits), Instant::now());
        of_units.retain(|_, budget| budget.is_used(now));
        of_units.insert(unit.to_owned(), budget.clone());
        budget
    }
}

#[derive(Clone)]
struct Budget {
    limits: Arc<Mutex<Vec<Kept>>>,
}

/// A request that was sent. It is dropped when the response has arrived or the caller has given up.
struct Sent {
    budget: Budget,
    at: Instant,
    kind: usize,
    /// The indexes of the limits that count it.
    counted: Vec<usize>,
}

impl Sent {
    /// Stops all requests under the same limits for as long as the provider asked. Without `Retry-After`, stops those of
    /// the same kind with exponential backoff. Our own count allowed the request, so another client probably uses the same
    /// account.
    fn was_throttled(&self, asked: Option<Duration>) {
        let (mut limits, now) = (self.budget.limits(), Instant::now());
        let asked = asked.filter(|asked| !asked.is_zero());
        for at in &self.counted {
            let throttles = &mut limits[*at].throttles;
            if let Some(asked) = asked {
                throttles.iter_mut().for_each(|throttle| throttle.pause(now, asked));
            }
            let throttle = &mut throttles[self.kind];
            let is_new = throttle.is_new(self.at);
            if asked.is_none() && is_new {
                throttle.pause(now, BACKOFF_MIN.saturating_mul(1 << throttle.count.min(16)));
            }
            throttle.count = throttle.count.saturating_add(u32::from(is_new));
        }
    }

    /// Resets the backoff.
    fn was_accepted(&self) {
        let mut limits = self.budget.limits();
        for at in &self.counted {
            let throttle = &mut limits[*at].throttles[self.kind];
            if throttle.is_new(self.at) {
                throttle.count = 0;
            }
        }
    }

    /// Updates the limits with the quota that a response reports.
    fn record_quota(&self, headers: &HeaderMap) {
        let (mut limits, now) = (self.budget.limits(), Instant::now());
        for at in &self.counted {
            let Kept { quota, used, .. } = &mut limits[*at];
            if let Some(quota) = quota.and_then(|quota| quota(headers)) {
                used.forget_before(now);
                used.reported(quota, self.at, now);
            }
        }
    }
}

/// What a limit knows about throttled requests of one kind.
#[derive(Clone, Copy, Default)]
struct Throttle {
    /// The end of the last pause, and its beginning.
    paused: Option<(Instant, Instant)>,
    /// The number of throttled requests since the last one that was accepted. Those of one burst count once.
    count: u32,
}

impl Throttle {
    fn pause(&mut self, now: Instant, lasts: Duration) {
        self.paused = self.paused.max(Some((later(now, lasts.min(PAUSE_MAX)), now)));
    }

    fn ends(&self) -> Option<Instant> {
        self.paused.map(|(until, _)| until)
    }

    /// Whether a request that was sent at this time counts for the backoff. One that was sent before the last pause does
    /// not, because it belongs to the same burst.
    fn is_new(&self, sent_at: Instant) -> bool {
        self.paused.is_none_or(|(_, began)| sent_at > began)
    }
}

/// The kind of a request: a provider may count changes and reads separately.
fn kind(request: &Request<Bytes>) -> usize {
    usize::from(is_read(request))
}

impl Drop for Sent {
    fn drop(&mut self) {
        let (mut limits, now) = (self.budget.limits(), Instant::now());
        self.counted.iter().for_each(|at| limits[*at].used.answered(now));
    }
}

/// A limit and its current use.
struct Kept {
    counts: fn(&Request<Bytes>) -> bool,
    quota: Option<fn(&HeaderMap) -> Option<Quota>>,
    used: Used,
    /// For each kind of request, see [`kind`].
    throttles: [Throttle; 2],
    /// The turns of requests that wait or that will come back at their turn, by rank.
    promised: [Vec<Instant>; RANKS],
}

enum Used {
    /// When the responses of this window arrived, the oldest first; the number of requests in flight; and the requests of
    /// other clients.
    Window {
        requests_max: usize,
        window: Duration,
        answered: VecDeque<Instant>,
        in_flight: usize,
        others: Option<OtherClients>,
    },
    /// When the bucket will be full again, and the number of requests in flight.
    Bucket { burst: u32, interval: Duration, full_at: Instant, in_flight: u32 },
}

/// What other clients leave of a limit, according to the last response.
#[derive(Clone, Copy)]
struct OtherClients {
    /// This controller's part of the window: the requests that it has sent, and those that are left.
    share: usize,
    /// When the request was sent whose response reported it, and when the response arrived.
    sent_at: Instant,
    reported_at: Instant,
    resets: Duration,
}

impl OtherClients {
    /// When the next request may be sent although other clients have used up the limit. Their requests may stop counting at
    /// any time, and only a response shows it. So the controller sends one probe at a time: an urgent request after a
    /// second, any other when the quota resets, at most a minute later.
    fn probe_at(
        &self,
        priority: Priority,
        waiting: usize,
        is_any_in_flight: bool,
        now: Instant,
    ) -> Option<Instant> {
        let (rests, longest) = match priority.is_urgent() {
            true => (PROBE_EVERY, WAIT_MAX),
            false => (self.resets, PAUSE_MAX),
        };
        let behind = PROBE_EVERY.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX));
        let turn = later(later(self.reported_at, rests).max(now), behind.min(longest));
        match is_any_in_flight {
            true => Some(turn.max(later(now, PROBE_EVERY))),
            false => Some(turn).filter(|turn| *turn > now),
        }
    }
}

impl Budget {
    fn new(limits: &[Limit]) -> Self {
        let kept = limits.iter().map(|Limit { counts, rate, quota }| {
            let used = match *rate {
                Rate::Window { requests_max, window } => {
                    let window = window.saturating_add(JITTER);
                    Used::Window {
                        requests_max,
                        window,
                        answered: VecDeque::new(),
                        in_flight: 0,
                        others: None,
                    }
                }
                Rate::Bucket { burst, interval } => {
                    let together = JITTER.as_nanos() / interval.as_nanos().max(1);
                    let burst = burst.saturating_sub(u32::try_from(together).unwrap_or(u32::MAX)).max(1);
                    Used::Bucket { burst, interval, full_at: Instant::now(), in_flight: 0 }
                }
            };
            Kept {
                counts: *counts,
                quota: *quota,
                used,
                throttles: Default::default(),
                promised: Default::default(),
            }
        });
        Self { limits: Arc::new(Mutex::new(kept.collect())) }
    }

    /// Whether a request waits or counts, or the provider asked to wait. A new budget would forget that.
    fn is_used(&self, now: Instant) -> bool {
        let mut limits = self.limits();
        limits.iter_mut().for_each(|kept| kept.used.forget_before(now));
        limits.iter().any(|kept| {
            let has_promised = kept.promised.iter().flatten().any(|turn| *turn > now);
            let is_paused =
                kept.throttles.iter().any(|throttle| throttle.ends().is_some_and(|ends| ends > now));
            has_promised || is_paused || kept.used.counts_any(now)
        })
    }

    fn limits(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request may be sent, and counts it. If its turn is too far away, returns the time until then at
    /// once.
    async fn take(&self, request: &Request<Bytes>, priority: Priority) -> Result<Sent, NotSent> {
        let latest = later(Instant::now(), WAIT_MAX);
        // A listing does not queue: without it, nothing else can proceed.
        let mut has_queued = priority.urgency == Urgency::Reading;
        loop {
            let now = Instant::now();
            let next = match self.try_take(request, priority, now) {
                Ok(sent) => return Ok(sent),
                // Another request took this turn, so this request takes the next one.
                Err(next) if has_queued => next,
                Err(_) => self.turn(request, priority, now),
            };
            let is_too_late = next > latest || priority.urgency == Urgency::Refresh;
            if is_too_late && priority.urgency != Urgency::Reading {
                return Err(NotSent { wait: next.saturating_duration_since(now) });
            }
            has_queued = true;
            tokio::time::sleep_until(next).await;
        }
    }

    /// Counts a request, or returns when to try again.
    fn try_take(&self, request: &Request<Bytes>, priority: Priority, now: Instant) -> Result<Sent, Instant> {
        let mut limits = self.limits();
        let counted: Vec<_> = (0..limits.len()).filter(|at| (limits[*at].counts)(request)).collect();
        counted.iter().for_each(|at| limits[*at].used.forget_before(now));
        match counted.iter().filter_map(|at| limits[*at].turn(0, priority, kind(request), now)).max() {
            Some(wait) => Err(wait),
            None => {
                counted.iter().for_each(|at| limits[*at].used.count());
                Ok(Sent { budget: self.clone(), at: now, kind: kind(request), counted })
            }
        }
    }

    /// Queues a request behind all waiting requests of the same or a lower rank, and returns its turn.
    fn turn(&self, request: &Request<Bytes>, priority: Priority, now: Instant) -> Instant {
        let mut limits = self.limits();
        let turns = limits.iter_mut().filter(|kept| (kept.counts)(request)).map(|kept| {
            kept.promised.iter_mut().for_each(|promised| promised.retain(|at| *at > now));
            let ahead = kept.promised[..=priority.rank()].iter().map(Vec::len).sum();
            let turn = kept.turn(ahead, priority, kind(request), now).unwrap_or(now);
            kept.promised[priority.rank()].push(turn);
            turn
        });
        turns.max().unwrap_or(now)
    }
}

impl Kept {
    /// When one more request of a kind may be sent behind `waiting` others. `None` means now.
    fn turn(&self, waiting: usize, priority: Priority, kind: usize, now: Instant) -> Option<Instant> {
        let pause_ends = self.throttles[kind].ends().filter(|ends| *ends > now);
        self.used.turn(waiting, priority, now).max(pause_ends)
    }
}

impl Used {
    /// Drops what no longer counts at `now`.
    fn forget_before(&mut self, now: Instant) {
        match self {
            Self::Window { window, answered, others, .. } => {
                others.take_if(|others| later(others.reported_at, *window) <= now);
                while answered.front().is_some_and(|at| later(*at, *window) <= now) {
                    answered.pop_front();
                }
            }
            Self::Bucket { interval, full_at, in_flight, .. } => {
                *full_at = (*full_at).max(later(now, interval.saturating_mul(*in_flight)));
            }
        }
    }

    /// Whether a request counts, in flight or answered.
    fn counts_any(&self, now: Instant) -> bool {
        match self {
            Self::Window { answered, in_flight, others, .. } => {
                *in_flight > 0 || !answered.is_empty() || others.is_some()
            }
            Self::Bucket { full_at, in_flight, .. } => *in_flight > 0 || *full_at > now,
        }
    }

    /// When one more request may be sent behind `waiting` others. `None` means now.
    fn turn(&self, waiting: usize, priority: Priority, now: Instant) -> Option<Instant> {
        let leaves = |max: usize, leaves: [usize; RANKS]| max.saturating_mul(leaves[priority.rank()]) / 100;
        let allowed = |max: usize, of: [usize; RANKS]| max.saturating_sub(leaves(max, of)).max(1);
        match self {
            Self::Window { requests_max, window, answered, in_flight, others } => {
                let used = answered.len() + in_flight;
                let turn_within = |max: usize| {
                    let allowed = allowed(max, LEAVES_OF_WINDOW);
                    let over = used.min(allowed).saturating_add(waiting).checked_sub(allowed)?;
                    // A request sent at its turn stops counting one window later, which is the turn of the next one.
                    let rounds = u32::try_from(over / allowed).unwrap_or(u32::MAX);
                    let behind = used.saturating_sub(allowed) + over % allowed;
                    let answer = answered.get(behind).copied().or((behind < used).then_some(now));
                    answer.map(|at| later(at, window.saturating_mul(rounds.saturating_add(1))))
                };
                let alone = turn_within(*requests_max);
                match others {
                    Some(others) if turn_within(others.share) > alone => {
                        alone.max(others.probe_at(priority, waiting, *in_flight > 0, now))
                    }
                    _ => alone,
                }
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

    /// Notes what the response to a request that was sent at `sent_at` reports, unless a later request has reported already.
    fn reported(&mut self, Quota { left, resets }: Quota, sent_at: Instant, now: Instant) {
        match self {
            Self::Window { others: Some(others), .. } if others.sent_at > sent_at => {}
            Self::Window { requests_max, answered, in_flight, others, .. } => {
                let share = left.saturating_add(answered.len() + *in_flight);
                let resets = resets.unwrap_or(PAUSE_MAX).clamp(PROBE_EVERY, PAUSE_MAX);
                let reported = OtherClients { share, sent_at, reported_at: now, resets };
                *others = (share < *requests_max).then_some(reported);
            }
            Self::Bucket { burst, interval, full_at, .. } => {
                let taken = burst.saturating_sub(u32::try_from(left).unwrap_or(u32::MAX));
                *full_at = (*full_at).max(later(now, interval.saturating_mul(taken)));
            }
        }
    }

    /// Counts a request that is sent now.
    fn count(&mut self) {
        match self {
            Self::Window { in_flight, .. } => *in_flight += 1,
            Self::Bucket { interval, full_at, in_flight, .. } => {
                *full_at = later(*full_at, *interval);
                *in_flight += 1;
            }
        }
    }

    /// Records that a response has arrived.
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
