//! Time arithmetic that can't overflow: flags, objects and providers may contain any number.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Returns the current time in seconds since 1970, for signatures.
pub type Seconds = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The result of an addition that overflows.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Adds a duration to a time. If the result overflows, it is a century away, so a very long pause stays long.
pub fn later(at: Instant, by: Duration) -> Instant {
    at.checked_add(by).or_else(|| at.checked_add(CENTURY)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_overflows_is_a_century_away() {
        let now = Instant::now();
        assert_eq!(later(now, Duration::from_secs(60)) - now, Duration::from_secs(60));
        for by in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            assert_eq!(later(now, by) - now, CENTURY);
        }
    }
}
