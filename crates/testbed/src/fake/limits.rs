//! The vendors' rate limits, as the vendors count them.

use std::time::Duration;

use super::Route;

/// Headers of an answer, by name.
pub type Headers = Vec<(&'static str, String)>;

/// At most so many requests within a window that starts afresh when it ends.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Which calls count.
    pub counts: fn(&Route) -> bool,
    /// The most requests in one window.
    pub max: u32,
    /// The window.
    pub window: Duration,
    /// Whether the first request too many begins the window anew, so that all of it must be waited for.
    pub restarts: bool,
    /// The headers that tell a caller how much is left, where the vendor has them.
    pub headers: Option<fn(Quota) -> Headers>,
}

/// How much of a limit is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The most requests in one window.
    pub max: u32,
    /// The requests that are left in this window.
    pub left: u32,
    /// The window.
    pub window: Duration,
    /// When the window ends, from now.
    pub resets: Duration,
}

#[derive(Debug)]
struct Used {
    limit: Limit,
    window_began: Duration,
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
        let used = limits.into_iter().map(|limit| Used { limit, window_began: Duration::ZERO, count: 0 });
        Self { used: used.collect(), enforced: true }
    }

    pub(crate) fn enforce(&mut self, enforced: bool) {
        self.enforced = enforced;
    }

    /// Counts a request, and says how long to wait where it is one too many.
    pub(crate) fn exceeded(&mut self, route: &Route, now: Duration) -> Option<Duration> {
        let mut wait = None;
        for used in self.used.iter_mut().filter(|used| (used.limit.counts)(route)) {
            if now >= used.window_began + used.limit.window {
                used.window_began = now;
                used.count = 0;
            }
            used.count += 1;
            if used.limit.restarts && used.count == used.limit.max + 1 {
                used.window_began = now;
            }
            if used.count > used.limit.max {
                wait = wait.max(Some(used.window_began + used.limit.window - now));
            }
        }
        wait.filter(|_| self.enforced)
    }

    /// The headers that tell a caller how much is left.
    pub(crate) fn headers(&self, now: Duration) -> Headers {
        let told = |used: &Used| {
            let quota = Quota {
                max: used.limit.max,
                left: used.limit.max.saturating_sub(used.count),
                window: used.limit.window,
                resets: (used.window_began + used.limit.window).saturating_sub(now),
            };
            used.limit.headers.map(|headers| headers(quota)).unwrap_or_default()
        };
        self.used.iter().flat_map(told).collect()
    }
}
