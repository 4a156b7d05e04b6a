//! The clock of leader election and the reconcilers. They never read the system time themselves, so a simulation can
//! use its own clock.

use std::time::Duration;

use plan::Timestamp;
use rustix::time::{ClockId, clock_gettime};

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
