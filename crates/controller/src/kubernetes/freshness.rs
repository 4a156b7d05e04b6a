//! Whether the known objects of a kind are recent.
//!
//! In: when a watch brought something, when a kind was listed, and when the machine was suspended. Out: whether a kind
//! counts as silent. A watch is silent if nothing changes, but also if a proxy keeps the connection and forwards nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long objects count as fresh after the watch brought something, or after they were listed.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// The shortest time for which objects count as fresh after their list is complete. Without it, a kind whose list takes
/// longer than [`FRESH_FOR`] would be listed again and again.
const FRESH_AFTER_LONG_LIST: Duration = Duration::from_secs(3);

/// How recent the known objects of each kind are.
#[derive(Debug)]
pub(crate) struct Freshness<K> {
    /// When the objects of each kind stop being fresh. None after a suspend.
    until: BTreeMap<K, Option<Instant>>,
    /// When the process last noticed that the machine had been suspended.
    suspended_at: Option<Instant>,
}

impl<K> Default for Freshness<K> {
    fn default() -> Self {
        Self { until: BTreeMap::new(), suspended_at: None }
    }
}

impl<K: Copy + Ord> Freshness<K> {
    /// Processes an event of a watch. An event after a silence may have been delayed, so it does not end the silence.
    pub(crate) fn heard(&mut self, kind: K, now: Instant) {
        let until = self.until.entry(kind).or_default();
        if until.is_some_and(|until| now < until) {
            *until = Some(now + FRESH_FOR);
        }
    }

    /// Processes a list that was requested at `began` and is complete at `now`. The list does not show that the next
    /// watch works.
    pub(crate) fn listed(&mut self, kind: K, began: Instant, now: Instant) {
        let until = self.until.entry(kind).or_default();
        // The objects of a list that was requested before a suspend are at least as old as the suspend was long.
        if self.suspended_at.is_none_or(|suspended_at| began >= suspended_at) {
            *until = (*until).max(Some((began + FRESH_FOR).max(now + FRESH_AFTER_LONG_LIST)));
        }
    }

    /// Forgets a kind that is no longer watched, or that no longer exists.
    pub(crate) fn forget(&mut self, kind: K) {
        self.until.remove(&kind);
    }

    /// Processes a suspend of the machine. The watches bring only now what they missed.
    pub(crate) fn note_suspend(&mut self, now: Instant) {
        self.until.values_mut().for_each(|until| *until = None);
        self.suspended_at = Some(now);
    }

    /// Whether the objects of a kind may have changed unseen for a while. A kind without a list or an event so far is
    /// not silent but unknown.
    pub(crate) fn is_silent(&self, kind: K, now: Instant) -> bool {
        self.until.get(&kind).is_some_and(|until| until.is_none_or(|until| now >= until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Instant {
        static STARTED: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *STARTED + Duration::from_secs(seconds)
    }

    /// Whether a kind is silent, at each of these times.
    fn is_silent<const N: usize>(kinds: &Freshness<&str>, kind: &'static str, at: [u64; N]) -> [bool; N] {
        at.map(|at| kinds.is_silent(kind, after(at)))
    }

    #[test]
    fn a_kind_is_silent_ten_seconds_after_its_list() {
        let mut kinds = Freshness::default();
        assert_eq!(is_silent(&kinds, "nodes", [0]), [false], "a kind that was never listed is unknown");
        kinds.listed("nodes", after(0), after(0));
        assert_eq!(is_silent(&kinds, "nodes", [9, 10]), [false, true]);
        kinds.listed("nodes", after(20), after(50));
        assert_eq!(is_silent(&kinds, "nodes", [52, 53]), [false, true], "the list took long");
        assert_eq!(is_silent(&kinds, "pods", [53]), [false]);
    }

    #[test]
    fn a_watch_that_brings_events_is_not_silent() {
        let mut kinds = Freshness::default();
        kinds.listed("nodes", after(0), after(0));
        (5..60).step_by(5).for_each(|at| kinds.heard("nodes", after(at)));
        assert_eq!(is_silent(&kinds, "nodes", [64, 65]), [false, true]);
    }

    #[test]
    fn only_a_list_ends_a_silence() {
        let mut kinds = Freshness::default();
        kinds.listed("nodes", after(0), after(0));
        (30..60).for_each(|at| kinds.heard("nodes", after(at)));
        assert_eq!(is_silent(&kinds, "nodes", [60]), [true], "these events may have been delayed");
        kinds.listed("nodes", after(60), after(60));
        kinds.heard("nodes", after(65));
        assert_eq!(is_silent(&kinds, "nodes", [74, 75]), [false, true]);
    }

    #[test]
    fn after_a_suspend_only_a_list_that_was_requested_later_is_fresh() {
        let mut kinds = Freshness::default();
        kinds.listed("nodes", after(0), after(0));
        kinds.note_suspend(after(2));
        kinds.listed("nodes", after(1), after(3));
        kinds.listed("pods", after(1), after(3));
        assert_eq!(is_silent(&kinds, "nodes", [3]), [true]);
        assert_eq!(is_silent(&kinds, "pods", [3]), [true], "this was the first list of its kind");
        kinds.listed("nodes", after(4), after(5));
        assert_eq!(is_silent(&kinds, "nodes", [5]), [false]);
    }
}
