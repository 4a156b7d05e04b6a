//! The clock of leader election and the reconcilers. They never read the system time themselves, so a simulation can
//! use its own clock.

use std::time::Duration;

use plan::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Shorter suspends are not noticed: the two clocks can't be read at the same time.
const SUSPEND_MIN: Duration = Duration::from_secs(1);

/// A source of time.
pub trait Clock: Send + Sync {
    /// The wall clock time, for timestamps in objects.
    fn wall(&self) -> Timestamp;

    /// A monotonic time that includes suspends of the machine, because the lease also expires during a suspend.
    fn since_boot(&self) -> Duration;
}

/// The clocks of the operating system.
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn since_boot(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

/// Notices that the machine was suspended. Timers stand still meanwhile, so they don't show how old something is.
#[derive(Default)]
pub(crate) struct Suspends(Option<(Duration, Instant)>);

impl Suspends {
    /// Whether the machine was suspended since the last call.
    pub(crate) fn noticed(&mut self, clock: &dyn Clock) -> bool {
        let (boot, awake) = (clock.since_boot(), Instant::now());
        let Some((last_boot, last_awake)) = self.0.replace((boot, awake)) else { return false };
        boot.saturating_sub(last_boot) >= awake.duration_since(last_awake) + SUSPEND_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Boot(Mutex<Duration>);

    impl Clock for Boot {
        fn wall(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn since_boot(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspend_is_noticed_once() {
        let (clock, mut suspends) = (Boot(Mutex::default()), Suspends::default());
        let mut pass = async |awake, suspended| {
            tokio::time::advance(Duration::from_secs(awake)).await;
            *clock.0.lock().unwrap() += Duration::from_secs(awake + suspended);
            suspends.noticed(&clock)
        };
        assert!(!pass(100, 100).await, "nothing is known about the time before");
        assert!(!pass(60, 0).await);
        assert!(pass(1, 11).await);
        assert!(!pass(60, 0).await);
    }
}
