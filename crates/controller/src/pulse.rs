//! Whether a loop still runs.
//!
//! In: a beat from each pass of a loop. Out: whether the last beat is recent, for `/healthz`. It never restarts
//! anything: the kubelet does, when the probe fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The longest pause between two beats of a loop that runs.
const EVERY: Duration = Duration::from_secs(5);

/// A loop without a beat for this long counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// When a loop last ran. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Mutex<Option<Instant>>>);

impl Pulse {
    /// When the next beat is due.
    pub(crate) fn next() -> Instant {
        Instant::now() + EVERY
    }

    /// Records that the loop runs.
    pub fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Records that the loop has ended as it should.
    pub fn stop(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether the loop runs, has not begun yet, or has ended as it should.
    pub fn is_alive(&self) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|last| last.elapsed() < HANGS_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_a_beat_hangs_after_half_a_minute() {
        let pulse = Pulse::default();
        tokio::time::advance(2 * HANGS_AFTER).await;
        assert!(pulse.is_alive(), "a loop that has not begun is alive");
        pulse.beat();
        tokio::time::advance(HANGS_AFTER - Duration::from_secs(1)).await;
        assert!(pulse.is_alive());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!pulse.is_alive());
        pulse.clone().beat();
        assert!(pulse.is_alive());
    }
}
