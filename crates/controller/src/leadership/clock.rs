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

/// A clock for tests: the wall clock stands still, and the test sets the time since the boot.
#[cfg(test)]
pub(crate) struct ManualClock(std::sync::Mutex<Duration>);

#[cfg(test)]
impl ManualClock {
    pub(crate) fn at(seconds: u64) -> Self {
        Self(std::sync::Mutex::new(Duration::from_secs(seconds)))
    }

    pub(crate) fn set(&self, seconds: u64) {
        *self.0.lock().unwrap() = Duration::from_secs(seconds);
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn since_boot(&self) -> Duration {
        *self.0.lock().unwrap()
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

    #[tokio::test(start_paused = true)]
    async fn a_suspend_is_noticed_once() {
        let (clock, mut suspends) = (ManualClock::at(0), Suspends::default());
        let mut since_boot = 0;
        let mut pass = async |awake, suspended| {
            tokio::time::advance(Duration::from_secs(awake)).await;
            since_boot += awake + suspended;
            clock.set(since_boot);
            suspends.noticed(&clock)
        };
        assert!(!pass(100, 100).await, "nothing is known about the time before");
        assert!(!pass(60, 0).await);
        assert!(pass(1, 11).await);
        assert!(!pass(60, 0).await);
    }
}
