//! Arithmetic on times that can't overflow: users, objects and providers may contain any number.

use std::time::Duration;

use crate::Timestamp;

/// The time that is so much later. One that no clock can show is the last one that a clock can: a pause that is too long never
/// becomes none.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    // The error is for spans of days and months, which a duration is not.
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// A time as precise as Kubernetes keeps it.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_beyond_all_clocks_is_the_last_one() {
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
