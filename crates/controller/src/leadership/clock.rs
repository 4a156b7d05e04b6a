//! Time, from outside. The loop never asks the operating system itself, so a simulation can put its own clock here.

use std::time::Duration;

use plan::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// What time it is.
pub trait Clock: Send + Sync {
    /// The time of day, for what is written into objects and read from them.
    fn wall(&self) -> Timestamp;

    /// Time that only moves forward, also while the machine is suspended: a lease runs out while we sleep.
    fn since_boot(&self) -> Duration;
}

/// The operating system's clocks.
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
