//! A provider's rate limits, kept by asking no faster than they allow.
//!
//! In: requests of all pools. Out: the same requests, no more than the limits allow in any window, wherever the provider's
//! own windows begin. A part of each window is kept for what is urgent, so that a dead holder's address does not queue
//! behind drained ones. A request that would have to wait for long is answered as the provider would answer it: too many.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tower::{Service, ServiceExt};

use crate::http::HttpService;

/// At most so many requests in any window of this length.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The most requests.
    pub requests_max: usize,
    /// The window.
    pub window: Duration,
}

/// The part of each window that only urgent requests may use, in percent.
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
    let windows = limits.iter().map(|limit| Window { limit: *limit, sent: VecDeque::new() }).collect();
    let budget = Arc::new(Budget { windows: Mutex::new(windows) });
    let send = move |request: http::Request<bytes::Bytes>| {
        let (mut service, budget) = (service.clone(), Arc::clone(&budget));
        async move {
            let is_urgent = IS_URGENT.try_with(|is_urgent| *is_urgent).unwrap_or(false);
            if let Err(wait) = budget.take(is_urgent).await {
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
    windows: Mutex<Vec<Window>>,
}

struct Window {
    limit: Limit,
    /// When the requests of this window were sent, the oldest first.
    sent: VecDeque<Instant>,
}

impl Budget {
    /// Waits until a request may be sent, and counts it; or says how long that would take, where it is too long. What was
    /// decided on must not be sent much later, when it may not be so any more.
    async fn take(&self, is_urgent: bool) -> Result<(), Duration> {
        let latest = Instant::now() + WAIT_MAX;
        while let Some(at) = self.try_take(is_urgent, Instant::now()) {
            if at > latest {
                return Err(at - Instant::now());
            }
            tokio::time::sleep_until(at).await;
        }
        Ok(())
    }

    /// Counts a request, or says when to try again.
    fn try_take(&self, is_urgent: bool, now: Instant) -> Option<Instant> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        for window in windows.iter_mut() {
            while window.sent.front().is_some_and(|at| *at + window.limit.window <= now) {
                window.sent.pop_front();
            }
        }
        let wait = windows.iter().filter_map(|window| window.full_until(is_urgent)).max();
        if wait.is_none() {
            windows.iter_mut().for_each(|window| window.sent.push_back(now));
        }
        wait
    }
}

impl Window {
    fn full_until(&self, is_urgent: bool) -> Option<Instant> {
        let max = self.limit.requests_max;
        let allowed = if is_urgent { max } else { max - max * RESERVE_PERCENT / 100 };
        let over = (self.sent.len() + 1).checked_sub(allowed.max(1))?.checked_sub(1)?;
        self.sent.get(over).map(|at| *at + self.limit.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(requests_max: usize, seconds: u64) -> Budget {
        let limit = Limit { requests_max, window: Duration::from_secs(seconds) };
        Budget { windows: Mutex::new(vec![Window { limit, sent: VecDeque::new() }]) }
    }

    #[tokio::test(start_paused = true)]
    async fn no_window_ever_holds_more_than_the_limit() {
        let budget = budget(10, 60);
        let mut times = Vec::new();
        while times.len() < 40 {
            match budget.take(true).await {
                Ok(()) => times.push(Instant::now()),
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
        for (at, time) in times.iter().enumerate() {
            let within = times[at..].iter().filter(|other| **other < *time + Duration::from_secs(60)).count();
            assert!(within <= 10, "{within} requests within a minute");
        }
        assert_eq!(times[39] - times[0], Duration::from_secs(180), "and not slower than needed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_is_kept_for_what_is_urgent() {
        let budget = budget(10, 60);
        let started = Instant::now();
        for _ in 0..8 {
            budget.take(false).await.unwrap();
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert!(budget.try_take(false, Instant::now()).is_some(), "the rest is not for everybody");
        assert!(budget.try_take(true, Instant::now()).is_none());
        assert!(budget.try_take(true, Instant::now()).is_none());
        assert!(budget.try_take(true, Instant::now()).is_some(), "and even that has an end");
    }
}
