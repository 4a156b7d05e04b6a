//! Whether the objects of a kind are known as they were a short while ago.
//!
//! In: when its watch brought something, and when it was listed. Out: whether it counts as silent. A watch is silent if
//! nothing changes, but also if a proxy keeps the connection and forwards nothing.

use std::time::Duration;

use tokio::time::Instant;

/// How long objects count as known after the watch brought something, or after they were listed.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// How long objects count as known after their list is complete, even if the list took longer than `FRESH_FOR`.
/// Otherwise a kind with many objects would be relisted continuously.
const FRESH_AFTER_LONG_LIST: Duration = Duration::from_secs(3);

/// After a silence, the watch may first bring what happened during the silence. How long that can take.
const CATCHES_UP_WITHIN: Duration = Duration::from_secs(1);

/// How recent the known objects of a kind are.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    /// Until when they count as known.
    until: Option<Instant>,
    last_event: Option<Instant>,
    /// Until when an event may be as old as the silence before it.
    catches_up_until: Option<Instant>,
}

impl Freshness {
    /// Processes an event of the watch.
    pub(crate) fn heard(&mut self, now: Instant) {
        if self.last_event.is_none_or(|last| now >= last + FRESH_FOR) {
            self.catches_up_until = Some(now + CATCHES_UP_WITHIN);
        }
        self.last_event = Some(now);
        if self.catches_up_until.is_none_or(|until| now >= until) {
            self.until = self.until.max(Some(now + FRESH_FOR));
        }
    }

    /// Processes a list that was requested at a time and is complete now. It says nothing about the watch that follows it.
    pub(crate) fn listed(&mut self, began: Instant, now: Instant) {
        let until = (began + FRESH_FOR).max(now + FRESH_AFTER_LONG_LIST);
        self.until = self.until.max(Some(until));
    }

    /// Whether the objects may have changed unseen for a while.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Instant {
        static STARTED: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *STARTED + Duration::from_secs(seconds)
    }

    #[test]
    fn a_kind_is_silent_ten_seconds_after_its_list() {
        let mut nodes = Freshness::default();
        assert!(nodes.is_silent(after(0)));
        nodes.listed(after(0), after(0));
        assert_eq!([9, 10].map(|at| nodes.is_silent(after(at))), [false, true]);
        nodes.listed(after(20), after(50));
        assert_eq!([52, 53].map(|at| nodes.is_silent(after(at))), [false, true], "the list took long");
    }

    #[test]
    fn a_watch_that_brings_events_is_not_silent() {
        let mut nodes = Freshness::default();
        (0..60).step_by(5).for_each(|at| nodes.heard(after(at)));
        assert_eq!([64, 65].map(|at| nodes.is_silent(after(at))), [false, true]);
    }

    #[test]
    fn the_first_events_after_a_silence_may_be_old() {
        let mut nodes = Freshness::default();
        nodes.listed(after(0), after(0));
        nodes.heard(after(30));
        nodes.heard(after(30));
        assert!(nodes.is_silent(after(30)));
        nodes.heard(after(31));
        assert!(!nodes.is_silent(after(31)));
    }
}
