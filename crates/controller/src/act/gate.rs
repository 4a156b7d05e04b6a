//! How many steps of one account may be between a look at a machine and the change that it leads to.
//!
//! In: steps that are about to look. Out: the same steps, some at a time, in the order in which they came. A crowd that looked
//! all at once would use the account's limit up for that, and what had looked and could not change would have to look again in
//! its turn. What is urgent never queues behind what is not. It never decides what is done, or holds anything while the
//! cloud works on a change.

use tokio::sync::Semaphore;

/// How many may be between look and change: enough for a minute's calls within seconds, few beside those calls.
const PLACES: usize = 48;

/// How many more of them if they are urgent.
const PLACES_FOR_URGENT: usize = 16;

/// The way to one account.
pub(super) struct Gate {
    places: Semaphore,
    places_for_urgent: Semaphore,
}

impl Default for Gate {
    fn default() -> Self {
        Self { places: Semaphore::new(PLACES), places_for_urgent: Semaphore::new(PLACES_FOR_URGENT) }
    }
}

impl Gate {
    /// Waits for a place. It is free again when what this returns is dropped.
    pub(super) async fn enter(&self, is_urgent: bool) -> impl Sized + '_ {
        // Neither is ever closed, so each gives a place sooner or later.
        let place = self.places.acquire();
        if !is_urgent {
            return place.await.ok();
        }
        tokio::select! {
            biased;
            place = place => place.ok(),
            place = self.places_for_urgent.acquire() => place.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// When each of some steps that take a second was done, in their order.
    async fn ends(gate: &Gate, are_urgent: impl Iterator<Item = bool>) -> Vec<Duration> {
        let started = Instant::now();
        let steps = are_urgent.map(async |is_urgent| {
            let _place = gate.enter(is_urgent).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            started.elapsed()
        });
        join_all(steps).await
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_are_between_look_and_change_and_the_first_come_first() {
        let ends = ends(&Gate::default(), std::iter::repeat_n(false, 3 * PLACES)).await;
        assert!(ends.is_sorted());
        assert_eq!(ends[PLACES - 1].as_secs(), 1);
        assert_eq!(ends[3 * PLACES - 1].as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_urgent_queues_behind_nothing_that_is_not() {
        let are_urgent =
            std::iter::repeat_n(false, 1_000).chain(std::iter::repeat_n(true, PLACES_FOR_URGENT));
        let ends = ends(&Gate::default(), are_urgent).await;
        assert!(ends[1_000..].iter().all(|end| end.as_secs() == 1), "{ends:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_takes_no_place_with_it() {
        let gate = Gate::default();
        let held = join_all(std::iter::repeat_with(|| gate.enter(false)).take(PLACES)).await;
        assert!(gate.enter(false).now_or_never().is_none(), "all are taken");
        drop(held);
        let ends = ends(&gate, std::iter::repeat_n(false, PLACES)).await;
        assert_eq!(ends[PLACES - 1].as_secs(), 1, "and all are free again");
    }
}
