//! A provider's rate limits, kept by asking no faster than they allow.
//!
//! In: requests of all pools. Out: the same requests, no more than the limits allow, wherever the provider's own windows
//! begin. A part of each limit is kept for what is urgent, so that a dead holder's address does not queue behind drained
//! ones. A request that would have to wait for long is answered as the provider would answer it: too many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::Request;
use bytes::Bytes;
use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::http::HttpService;

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

/// The part of each limit that only urgent requests may use, in percent.
const RESERVE_PERCENT: usize = 20;

/// The longest that a request waits for its turn.
const WAIT_MAX: Duration = Duration::from_secs(2);

tokio::task_local! {
    static IS_URGENT: bool;
}

/// Marks all requests that a future makes as urgent or not.
pub async fn with_urgency<F: Future>(is_urgent: bool, future: F) -> F::Output {
    IS_URGENT.scope(is_urgent, future).await
}

/// Lets requests through no faster than the limits allow.
pub fn budgeted(service: HttpService, limits: &[Limit]) -> HttpService {
    let budget = Arc::new(Budget::new(limits));
    let send = move |request: Request<Bytes>| {
        let (mut service, budget) = (service.clone(), Arc::clone(&budget));
        async move {
            let is_urgent = IS_URGENT.try_with(|is_urgent| *is_urgent).unwrap_or(false);
            if let Err(wait) = budget.take(&request, is_urgent).await {
                let answer = http::Response::builder().status(http::StatusCode::TOO_MANY_REQUESTS);
                let seconds = wait.as_secs() + 1;
                let body = r#"{"message": "not sent: our own budget of requests is used up"}"#;
                return Ok(answer.header(http::header::RETRY_AFTER, seconds).body(body.into())?);
            }
            service.ready().await?.call(request).await
        }
    };
    HttpService::new(tower::service_fn(send))
}

struct Budget {
    limits: Mutex<Vec<Kept>>,
}

/// A limit and what is used of it.
struct Kept {
    counts: fn(&Request<Bytes>) -> bool,
    used: Used,
}

enum Used {
    /// When the requests of this window were sent, the oldest first.
    Window { requests_max: usize, window: Duration, sent: VecDeque<Instant> },
    /// When everything has come back.
    Bucket { burst: u32, interval: Duration, full_at: Instant },
}

impl Budget {
    fn new(limits: &[Limit]) -> Self {
        let kept = limits.iter().map(|Limit { counts, rate }| {
            let used = match *rate {
                Rate::Window { requests_max, window } => {
                    Used::Window { requests_max, window, sent: VecDeque::new() }
                }
                Rate::Bucket { burst, interval } => Used::Bucket { burst, interval, full_at: Instant::now() },
            };
            Kept { counts: *counts, used }
        });
        Self { limits: Mutex::new(kept.collect()) }
    }

    /// Waits until a request may be sent, and counts it; or says how long that would take, where it is too long. What was
    /// decided on must not be sent much later, when it may not be so any more.
    async fn take(&self, request: &Request<Bytes>, is_urgent: bool) -> Result<(), Duration> {
        let latest = Instant::now() + WAIT_MAX;
        while let Some(at) = self.try_take(request, is_urgent, Instant::now()) {
            if at > latest {
                return Err(at - Instant::now());
            }
            tokio::time::sleep_until(at).await;
        }
        Ok(())
    }

    /// Counts a request, or says when to try again.
    fn try_take(&self, request: &Request<Bytes>, is_urgent: bool, now: Instant) -> Option<Instant> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counting: Vec<_> = limits.iter_mut().filter(|kept| (kept.counts)(request)).collect();
        let wait = counting.iter_mut().filter_map(|kept| kept.used.up_until(is_urgent, now)).max();
        if wait.is_none() {
            counting.iter_mut().for_each(|kept| kept.used.count(now));
        }
        wait
    }
}

impl Used {
    /// Until when it is used up, where it is.
    fn up_until(&mut self, is_urgent: bool, now: Instant) -> Option<Instant> {
        let allowed = |max: usize| {
            let reserve = if is_urgent { 0 } else { max * RESERVE_PERCENT / 100 };
            (max - reserve).max(1)
        };
        match self {
            Self::Window { requests_max, window, sent } => {
                while sent.front().is_some_and(|at| *at + *window <= now) {
                    sent.pop_front();
                }
                let over = sent.len().checked_sub(allowed(*requests_max))?;
                sent.get(over).map(|at| *at + *window)
            }
            Self::Bucket { burst, interval, full_at } => {
                *full_at = (*full_at).max(now);
                let taken = *full_at - now + *interval;
                let may_be_taken = interval.saturating_mul(allowed(*burst as usize) as u32);
                (taken > may_be_taken).then(|| now + (taken - may_be_taken))
            }
        }
    }

    /// Counts one that is sent now.
    fn count(&mut self, now: Instant) {
        match self {
            Self::Window { sent, .. } => sent.push_back(now),
            Self::Bucket { interval, full_at, .. } => *full_at += *interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: Limit) -> Budget {
        Budget::new(&[limit])
    }

    fn per_minute(requests_max: usize) -> Budget {
        budget(Limit::window(requests_max, Duration::from_secs(60)))
    }

    fn request(method: &str) -> Request<Bytes> {
        Request::builder().method(method).body(Bytes::new()).unwrap()
    }

    /// When each of so many urgent requests may be sent, if each is sent as soon as it may.
    async fn times(budget: &Budget, count: usize) -> Vec<Instant> {
        let mut times = Vec::new();
        while times.len() < count {
            match budget.take(&request("POST"), true).await {
                Ok(()) => times.push(Instant::now()),
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn no_window_ever_holds_more_than_the_limit() {
        let times = times(&per_minute(10), 40).await;
        for (at, time) in times.iter().enumerate() {
            let within = times[at..].iter().filter(|other| **other < *time + Duration::from_secs(60)).count();
            assert!(within <= 10, "{within} requests within a minute");
        }
        assert_eq!(times[39] - times[0], Duration::from_secs(180), "and not slower than needed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_gives_its_burst_at_once_and_then_as_much_as_comes_back() {
        let budget = budget(Limit::bucket(|_| true, 50, 5));
        let started = Instant::now();
        let times = times(&budget, 100).await;
        assert_eq!(times[49] - started, Duration::ZERO);
        assert_eq!(times[50] - started, Duration::from_millis(200));
        assert_eq!(times[99] - started, Duration::from_secs(10));
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        for _ in 0..50 {
            assert_eq!(budget.try_take(&request("POST"), true, Instant::now()), None);
        }
        assert!(
            budget.try_take(&request("POST"), true, Instant::now()).is_some(),
            "it holds no more than that"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_limit_does_not_count_is_not_held_up_by_it() {
        let budget = budget(Limit::bucket(|request| request.method() == "PUT", 1, 1));
        let put = |is_urgent| budget.try_take(&request("PUT"), is_urgent, Instant::now());
        assert_eq!(put(true), None);
        assert!(put(true).is_some());
        assert_eq!(budget.try_take(&request("GET"), false, Instant::now()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_is_kept_for_what_is_urgent() {
        for budget in [per_minute(10), budget(Limit::bucket(|_| true, 10, 1))] {
            let take = |is_urgent| budget.try_take(&request("POST"), is_urgent, Instant::now());
            for _ in 0..8 {
                assert_eq!(take(false), None);
            }
            assert!(take(false).is_some(), "the rest is not for everybody");
            assert!(take(true).is_none());
            assert!(take(true).is_none());
            assert!(take(true).is_some(), "and even that has an end");
        }
    }
}
