//! Arithmetic on moments that can't overflow: users, objects and providers may contain any number.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The present time in seconds since 1970, which signatures carry.
pub type Seconds = Arc<dyn Fn() -> u64 + Send + Sync>;

/// As far away as matters.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The moment that is so much later. One that the clock can't show is a century away: a pause that is too long never becomes none.
pub fn later(at: Instant, by: Duration) -> Instant {
    at.checked_add(by).or_else(|| at.checked_add(CENTURY)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_beyond_the_clock_is_a_century_away() {
        let now = Instant::now();
        assert_eq!(later(now, Duration::from_secs(60)) - now, Duration::from_secs(60));
        for by in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            assert_eq!(later(now, by) - now, CENTURY);
        }
    }
}
