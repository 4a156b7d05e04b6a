//! Limits how many steps of one account make calls at the same time.
//!
//! In: the calls of a step. Out: their result. A step reads the VM before it changes it. If many steps read at once,
//! they use up the account's rate limit, the changes have to wait, and the steps have to read again. So only some steps
//! make calls at a time. An urgent step never waits behind a waiting step that is not urgent. A step that would
//! wait for long fails with `NotSent`, because its decision would be stale by then. A slow call does not block other
//! steps. The gate never decides which calls a step makes.

use std::pin::pin;
use std::time::Duration;

use drivers::{DriverError, NotSent};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many steps may make calls at the same time. So many can use up the rate limit of a minute within seconds,
/// but are few compared with the number of requests that the limit allows.
const PLACES: usize = 64;

/// How many of these places steps that are not urgent may take.
const PLACES_FOR_ORDINARY: usize = 48;

/// How long a step waits for a place, and how long it then keeps the place.
const PATIENCE: Duration = Duration::from_secs(2);

/// The gate of one account.
pub(super) struct Gate {
    places: Semaphore,
    places_for_ordinary: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self { places: Semaphore::new(PLACES), places_for_ordinary: Semaphore::new(PLACES_FOR_ORDINARY) }
    }
}

impl Gate {
    /// Makes the calls as soon as there is a place.
    pub(super) async fn pass<T>(
        &self,
        is_urgent: bool,
        calls: impl Future<Output = Result<T, DriverError>>,
    ) -> Result<T, DriverError> {
        let Ok(place) = timeout(PATIENCE, self.enter(is_urgent)).await else {
            return Err(DriverError::NotSent(NotSent { wait: PATIENCE }));
        };
        let mut calls = pin!(calls);
        match timeout(PATIENCE, &mut calls).await {
            Ok(ended) => ended,
            Err(_) => {
                drop(place);
                calls.await
            }
        }
    }

    /// Waits for a place. The place is free again when the returned value is dropped.
    async fn enter(&self, is_urgent: bool) -> impl Sized + '_ {
        // The semaphores are never closed. A step that is not urgent waits for both, one after the other, so an urgent
        // step waits behind at most `PLACES_FOR_ORDINARY` of them.
        let ordinary = if is_urgent { None } else { self.places_for_ordinary.acquire().await.ok() };
        (ordinary, self.places.acquire().await.ok())
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// Starts steps whose calls take `each`. Returns when each step ended, or `None` if it was not sent.
    async fn ends(
        gate: &Gate,
        each: Duration,
        are_urgent: impl Iterator<Item = bool>,
    ) -> Vec<Option<Duration>> {
        let started = Instant::now();
        let steps = are_urgent.map(async |is_urgent| {
            let calls = async {
                tokio::time::sleep(each).await;
                Ok(started.elapsed())
            };
            gate.pass(is_urgent, calls).await.ok()
        });
        join_all(steps).await
    }

    const FAST: Duration = Duration::from_millis(600);

    #[tokio::test(start_paused = true)]
    async fn few_steps_make_calls_at_once_and_late_ones_are_not_sent() {
        let ends = ends(&Gate::default(), FAST, std::iter::repeat_n(false, 1_000)).await;
        for (at, end) in ends.iter().enumerate() {
            let turn = FAST * u32::try_from(at / PLACES_FOR_ORDINARY).unwrap();
            assert_eq!(*end, (turn < PATIENCE).then_some(turn + FAST), "{at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_urgent_step_never_waits_behind_a_waiting_ordinary_step() {
        let are_urgent = std::iter::repeat_n(false, 1_000).chain(std::iter::repeat_n(true, 2 * PLACES));
        let ends = ends(&Gate::default(), FAST, are_urgent).await;
        let (ordinary, urgent) = ends.split_at(1_000);
        let last = urgent.iter().map(|end| end.unwrap()).max();
        assert_eq!(last, Some(3 * FAST), "urgent steps wait only for the steps that began before them");
        let meanwhile =
            ordinary[PLACES_FOR_ORDINARY..].iter().flatten().filter(|end| Some(**end) < last).count();
        assert_eq!(meanwhile, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_a_response_does_not_block_other_steps() {
        let gate = Gate::default();
        let hanging = ends(&gate, Duration::from_secs(60), std::iter::repeat_n(true, PLACES));
        let other = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            ends(&gate, FAST, std::iter::once(false)).await
        };
        let (hanging, other) = futures::join!(hanging, other);
        assert_eq!(other, [Some(Duration::from_secs(1) + FAST)]);
        assert!(
            hanging.iter().all(Option::is_some),
            "the gate still waits for the responses of the slow steps"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_times_out_gives_up_its_place_in_the_queue() {
        let gate = Gate::default();
        for _ in 0..2 {
            let ends = ends(&gate, 3 * PATIENCE / 4, std::iter::repeat_n(false, 1_000)).await;
            assert_eq!(ends.iter().flatten().count(), 2 * PLACES_FOR_ORDINARY);
        }
    }
}
