//! Arithmetic on times that can't overflow: users, objects and providers may supply any number.

use std::time::Duration;

use crate::Timestamp;

/// Adds a duration to a time. The result is at most the largest timestamp, so a pause that is too long never becomes
/// zero.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    // `saturating_add` fails only for spans of days and months.
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Rounds a time to whole seconds, as Kubernetes stores it.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_too_late_becomes_the_largest_timestamp() {
        let at = Timestamp::UNIX_EPOCH;
        assert_eq!(later(at, Duration::from_secs(60)).as_second(), 60);
        assert_eq!(later(Timestamp::MIN, Duration::from_secs(631_107_230_402)), Timestamp::MAX);
        for by in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(i64::MAX as u64)] {
            assert_eq!(later(at, by), Timestamp::MAX);
            assert_eq!(later(Timestamp::MIN, by), Timestamp::MAX);
        }
        assert_eq!(later(Timestamp::MAX, Duration::from_nanos(1)), Timestamp::MAX);
    }
}
