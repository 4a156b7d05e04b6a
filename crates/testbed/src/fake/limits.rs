//! The vendors' rate limits, as the vendors count them.

use std::time::Duration;

use super::call::Route;

/// Headers of an answer, by name.
pub type Headers = Vec<(&'static str, String)>;

/// How fast requests of one kind may follow each other.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Which calls count.
    pub counts: fn(&Route) -> bool,
    /// How fast they may follow each other.
    pub rate: Rate,
    /// The headers that tell a caller how much is left, where the vendor has them.
    pub headers: Option<fn(Quota) -> Headers>,
}

/// How fast requests may follow each other.
#[derive(Clone, Copy, Debug)]
pub enum Rate {
    /// At most so many requests within a window that starts afresh when it ends.
    Window {
        /// The most requests in one window.
        max: u32,
        /// The window.
        window: Duration,
        /// Whether the first request too many begins the window anew, so that all of it must be waited for.
        restarts: bool,
    },
    /// A bucket of tokens, of which each request takes one. A refused request takes none.
    Bucket {
        /// The most tokens that it holds.
        burst: u32,
        /// How long it takes until one comes back.
        interval: Duration,
    },
}

/// How much of a limit is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The most requests in one window, or at once.
    pub max: u32,
    /// The requests that are left.
    pub left: u32,
    /// The window, or how long an empty bucket takes to be full.
    pub window: Duration,
    /// When all is left again, from now.
    pub resets: Duration,
}

#[derive(Clone, Debug)]
struct Used {
    limit: Limit,
    /// When the window began; of a bucket, when it is full again.
    since: Duration,
    count: u32,
}

/// The limits and how much of each is used.
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

    /// Counts a request, and says how long to wait where it is one too many.
    pub(crate) fn exceeded(&mut self, route: &Route, now: Duration) -> Option<Duration> {
        let counting = self.used.iter_mut().filter(|used| (used.limit.counts)(route));
        let wait = counting.filter_map(|used| used.count(now)).max();
        wait.filter(|_| self.enforced)
    }

    /// Whether a request is not one too many. It is counted only then.
    pub(crate) fn admits(&mut self, route: &Route, now: Duration) -> bool {
        let before = self.used.clone();
        let is_admitted = self.exceeded(route, now).is_none();
        if !is_admitted {
            self.used = before;
        }
        is_admitted
    }

    /// The headers that tell a caller how much is left.
    pub(crate) fn headers(&self, now: Duration) -> Headers {
        let told =
            |used: &Used| used.limit.headers.map(|headers| headers(used.quota(now))).unwrap_or_default();
        self.used.iter().flat_map(told).collect()
    }
}

impl Used {
    /// Counts a request, and says how long to wait where it is one too many.
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
    fn a_bucket_holds_its_burst_and_refuses_without_taking_more() {
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
