//! The rate limits of the cloud APIs, counted as the vendors count them.
//!
//! In: calls and their times. Out: how long a caller has to wait, and the rate limit headers. This module never answers
//! a request itself.

use std::time::Duration;

use super::call::Route;

/// The headers of an answer, as names and values.
pub type Headers = Vec<(&'static str, String)>;

/// A rate limit for some calls of an API.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Returns whether a call counts towards this limit.
    pub counts: fn(&Route) -> bool,
    /// The rate that these calls must not exceed.
    pub rate: Rate,
    /// Returns the headers that report the remaining quota, if the vendor sends such headers.
    pub headers: Option<fn(Quota) -> Headers>,
}

/// A maximum rate of requests.
#[derive(Clone, Copy, Debug)]
pub enum Rate {
    /// A fixed number of requests per window. A new window starts when the previous one ends.
    Window {
        /// The maximum number of requests in one window.
        max: u32,
        /// The length of a window.
        window: Duration,
        /// Whether the first request over the limit restarts the window, so that the caller waits for a whole window.
        restarts: bool,
    },
    /// A token bucket. Each accepted request takes one token, a refused request takes none.
    Bucket {
        /// The capacity of the bucket in tokens.
        burst: u32,
        /// The time after which the bucket gets one token back.
        interval: Duration,
    },
}

/// The remaining quota of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The maximum number of requests in one window, or the capacity of the bucket.
    pub max: u32,
    /// The number of requests that are left.
    pub left: u32,
    /// The length of the window, or how long an empty bucket takes to fill up.
    pub window: Duration,
    /// How long until the full quota is available again.
    pub resets: Duration,
}

#[derive(Clone, Debug)]
struct Used {
    limit: Limit,
    /// When the window started, or when the bucket is full again.
    since: Duration,
    count: u32,
}

/// The limits of an API, and how much of each is used.
#[derive(Debug)]
pub(crate) struct Limits {
    used: Vec<Used>,
    enforced: bool,
}

impl Limits {
    pub(crate) fn new(limits: Vec<Limit>) -> Self {
        let used = limits.into_iter().map(|limit| Used { limit, since: Duration::ZERO, count: 0 });
        Self { used: used.collect(), enforced: true }
    }

    pub(crate) fn enforce(&mut self, enforced: bool) {
        self.enforced = enforced;
    }

    /// Counts a request. If it exceeds a limit, returns how long the caller has to wait.
    pub(crate) fn exceeded(&mut self, route: &Route, now: Duration) -> Option<Duration> {
        let counting = self.used.iter_mut().filter(|used| (used.limit.counts)(route));
        let wait = counting.filter_map(|used| used.count(now)).max();
        wait.filter(|_| self.enforced)
    }

    /// Whether a request is within the limits. A request over a limit is not counted.
    pub(crate) fn admits(&mut self, route: &Route, now: Duration) -> bool {
        let before = self.used.clone();
        let is_admitted = self.exceeded(route, now).is_none();
        if !is_admitted {
            self.used = before;
        }
        is_admitted
    }

    /// Returns the headers that report the remaining quota. There are none while the limits are not enforced.
    pub(crate) fn headers(&self, now: Duration) -> Headers {
        if !self.enforced {
            return Headers::new();
        }
        let headers_of =
            |used: &Used| used.limit.headers.map(|headers| headers(used.quota(now))).unwrap_or_default();
        self.used.iter().flat_map(headers_of).collect()
    }
}

impl Used {
    /// Counts a request. If it exceeds the limit, returns how long the caller has to wait.
    fn count(&mut self, now: Duration) -> Option<Duration> {
        match self.limit.rate {
            Rate::Window { max, window, restarts } => {
                if now >= self.since + window {
                    self.since = now;
                    self.count = 0;
                }
                self.count += 1;
                if restarts && self.count == max + 1 {
                    self.since = now;
                }
                (self.count > max).then(|| self.since + window - now)
            }
            Rate::Bucket { burst, interval } => {
                let full = self.since.max(now) + interval;
                let wait = (full - now).checked_sub(interval * burst).filter(|wait| !wait.is_zero());
                if wait.is_none() {
                    self.since = full;
                }
                wait
            }
        }
    }

    fn quota(&self, now: Duration) -> Quota {
        match self.limit.rate {
            Rate::Window { max, window, .. } => Quota {
                max,
                left: max.saturating_sub(self.count),
                window,
                resets: (self.since + window).saturating_sub(now),
            },
            Rate::Bucket { burst, interval } => {
                let resets = self.since.saturating_sub(now);
                let taken = resets.as_nanos().div_ceil(interval.as_nanos().max(1));
                let left = burst.saturating_sub(u32::try_from(taken).unwrap_or(burst));
                Quota { max: burst, left, window: interval * burst, resets }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_request_takes_no_token_from_the_bucket() {
        let rate = Rate::Bucket { burst: 3, interval: Duration::from_secs(1) };
        let limit = Limit { counts: |_| true, rate, headers: None };
        let mut used = Used { limit, since: Duration::ZERO, count: 0 };
        let at = Duration::from_secs;
        assert_eq!([0, 0, 0].map(|now| used.count(at(now))), [None; 3]);
        assert_eq!(used.quota(at(0)).left, 0);
        assert_eq!([0, 0].map(|now| used.count(at(now))), [Some(at(1)); 2]);
        assert_eq!([1, 1].map(|now| used.count(at(now))), [None, Some(at(1))]);
        assert_eq!(used.quota(at(100)).left, 3);
    }
}
