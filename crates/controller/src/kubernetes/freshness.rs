//! Whether the known objects of a kind are recent.
//!
//! In: when its watch brought something, and when it was listed. Out: whether it counts as silent. A watch is silent if
//! nothing changes, but also if a proxy keeps the connection and forwards nothing.

use std::time::Duration;

use tokio::time::Instant;

/// How long objects count as fresh after the watch brought something, or after they were listed.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// How long objects count as fresh at least after their list is complete. Otherwise a kind whose list takes longer than
/// [`FRESH_FOR`] would be listed again and again.
const FRESH_AFTER_LONG_LIST: Duration = Duration::from_secs(3);

/// How recent the known objects of a kind are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freshness {
    /// Until when they count as fresh.
    until: Option<Instant>,
}

impl Freshness {
    /// Processes an event of the watch. An event after a silence may have been delayed, so it does not end the silence.
    pub(crate) fn heard(&mut self, now: Instant) {
        if !self.is_silent(now) {
            self.until = Some(now + FRESH_FOR);
        }
    }

    /// Processes a list that was requested at `began` and is complete at `now`. It does not show that the next watch
    /// works.
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
        nodes.listed(after(0), after(0));
        (5..60).step_by(5).for_each(|at| nodes.heard(after(at)));
        assert_eq!([64, 65].map(|at| nodes.is_silent(after(at))), [false, true]);
    }

    #[test]
    fn only_a_list_ends_a_silence() {
        let mut nodes = Freshness::default();
        nodes.listed(after(0), after(0));
        (30..60).for_each(|at| nodes.heard(after(at)));
        assert!(nodes.is_silent(after(60)), "these events may have been delayed");
        nodes.listed(after(60), after(60));
        nodes.heard(after(65));
        assert_eq!([74, 75].map(|at| nodes.is_silent(after(at))), [false, true]);
    }
}
