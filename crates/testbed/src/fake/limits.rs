//! The vendors' rate limits, as the vendors count them.

use std::time::Duration;

use super::Route;

/// At most so many requests within a window that starts afresh when it ends.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Which calls count.
    pub counts: fn(&Route) -> bool,
    /// The most requests in one window.
    pub max: u32,
    /// The window.
    pub window: Duration,
    /// Header names that tell the limit, what remains and when it resets (seconds since the fake's first request plus
    /// the wall clock's start are the vendor's own business; fakes tell seconds from now), where the vendor has them.
    pub headers: Option<[&'static str; 3]>,
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
            if used.count > used.limit.max {
                wait = wait.max(Some(used.window_began + used.limit.window - now));
            }
        }
        wait.filter(|_| self.enforced)
    }

    /// The headers that tell a caller how much is left.
    pub(crate) fn headers(&self, now: Duration) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        for used in &self.used {
            let Some([limit, remaining, reset]) = used.limit.headers else { continue };
            let left = used.limit.max.saturating_sub(used.count);
            let resets = (used.window_began + used.limit.window).saturating_sub(now);
            headers.push((limit, used.limit.max.to_string()));
            headers.push((remaining, left.to_string()));
            headers.push((reset, resets.as_secs().to_string()));
        }
        headers
    }
}
