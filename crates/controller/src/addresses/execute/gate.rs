//! How many steps of one account may be between a look at a machine and the change that it leads to.
//!
//! In: the calls of steps. Out: what became of them. Some are made at a time: a crowd that looked all at once would use the
//! account's limit up for that, and what had looked and could not change would have to look again in its turn. What is urgent
//! waits behind none that is not and waits too. Who would wait for long is told to come again, because what was decided on
//! must not leave much later; and calls that take long hold up no others. It never decides what is done.

use std::pin::pin;
use std::time::Duration;

use drivers::{DriverError, NotSent};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many may be between look and change: enough for a minute's calls within seconds, few beside those calls.
const PLACES: usize = 64;

/// How many of them what is not urgent may take.
const PLACES_FOR_ORDINARY: usize = 48;

/// The longest that a step waits for a place, and keeps it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to one account.
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
    /// Makes calls once there is a place for them.
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

    /// Waits for a place, which is free again when what this returns is dropped.
    async fn enter(&self, is_urgent: bool) -> impl Sized + '_ {
        // Neither is ever closed, so each gives a place sooner or later. Who is not urgent waits for both, one after the other,
        // so those that are wait behind as few as may be there at a time.
        let ordinary = if is_urgent { None } else { self.places_for_ordinary.acquire().await.ok() };
        (ordinary, self.places.acquire().await.ok())
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// When each of some steps that take so long had made its calls, in their order; none where it was told to come again.
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
    async fn only_so_many_are_between_look_and_change_and_who_would_wait_for_long_is_told_to_come_again() {
        let ends = ends(&Gate::default(), FAST, std::iter::repeat_n(false, 1_000)).await;
        for (at, end) in ends.iter().enumerate() {
            let turn = FAST * u32::try_from(at / PLACES_FOR_ORDINARY).unwrap();
            assert_eq!(*end, (turn < PATIENCE).then_some(turn + FAST), "{at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_urgent_waits_behind_none_that_is_not_and_waits_too() {
        let are_urgent = std::iter::repeat_n(false, 1_000).chain(std::iter::repeat_n(true, 2 * PLACES));
        let ends = ends(&Gate::default(), FAST, are_urgent).await;
        let (ordinary, urgent) = ends.split_at(1_000);
        let last = urgent.iter().map(|end| end.unwrap()).max();
        assert_eq!(last, Some(3 * FAST), "they are where those were that had come before");
        let meanwhile =
            ordinary[PLACES_FOR_ORDINARY..].iter().flatten().filter(|end| Some(**end) < last).count();
        assert_eq!(meanwhile, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_gets_no_answer_holds_up_no_others() {
        let gate = Gate::default();
        let hanging = ends(&gate, Duration::from_secs(60), std::iter::repeat_n(true, PLACES));
        let other = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            ends(&gate, FAST, std::iter::once(false)).await
        };
        let (hanging, other) = futures::join!(hanging, other);
        assert_eq!(other, [Some(Duration::from_secs(1) + FAST)]);
        assert!(hanging.iter().all(Option::is_some), "and is waited for all the same");
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_takes_no_place_with_it() {
        let gate = Gate::default();
        for _ in 0..2 {
            let ends = ends(&gate, 3 * PATIENCE / 4, std::iter::repeat_n(false, 1_000)).await;
            assert_eq!(ends.iter().flatten().count(), 2 * PLACES_FOR_ORDINARY);
        }
    }
}
