//! When to try again what failed: for each thing on its own, after pauses that grow exponentially up to a limit.

use std::collections::BTreeMap;
use std::time::Duration;

use drivers::times::later;
use drivers::{DriverError, NotSent};
use tokio::time::Instant;

/// What failed, and when each may be tried again. A failure belongs to a version of a thing: another version may be tried at once.
#[derive(Debug)]
pub struct Backoff<K> {
    retry: Retry,
    failures: BTreeMap<K, Failure>,
}

/// The version of a thing whose failures outlast its versions.
pub(crate) const ANY_VERSION: u64 = 0;

#[derive(Clone, Copy, Debug)]
struct Failure {
    version: u64,
    count: u32,
    until: Instant,
}

impl<K: Ord> Backoff<K> {
    /// Nothing has failed. The first pause is the shortest, and each further one is twice as long, up to the longest.
    pub fn new(retry: Retry) -> Self {
        Self { retry, failures: BTreeMap::new() }
    }

    /// A version of something failed. Returns how often it has, one time after the other.
    pub fn failed(&mut self, key: K, version: u64) -> u32 {
        let before = self.failures.get(&key).filter(|failure| failure.version == version);
        let count = before.map_or(0, |failure| failure.count);
        let until = later(Instant::now(), self.retry.grown(count));
        self.failures.insert(key, Failure { version, count: count.saturating_add(1), until });
        count.saturating_add(1)
    }

    /// It did not fail this time.
    pub fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Until when a version of something is not tried again.
    pub fn waits_until(&self, key: &K, version: u64) -> Option<Instant> {
        let failure = self.failures.get(key).filter(|failure| failure.version == version)?;
        Some(failure.until).filter(|until| Instant::now() < *until)
    }

    /// When something may next be tried again.
    pub fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        self.failures.values().map(|failure| failure.until).filter(|until| now < *until).min()
    }

    /// Forgets everything for which this is not true.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.failures.retain(|key, _| keep(key));
    }
}

/// What a person has to change is not tried again sooner.
const DENIED_RETRY: Duration = Duration::from_secs(30);

/// The shortest and longest pause before a change that failed is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// After the first failure; each further one doubles it.
    pub shortest: Duration,
    /// However often it failed.
    pub longest: Duration,
}

impl Retry {
    /// Pauses that don't grow longer than this.
    pub(crate) fn at_most(self, longest: Duration) -> Self {
        Self { longest: self.longest.min(longest), ..self }
    }

    /// A pause that is longer each time.
    pub(crate) fn grown(self, failures: u32) -> Duration {
        self.shortest.saturating_mul(1 << failures.min(16)).min(self.longest)
    }

    /// How long to wait before a change is tried again: by what the error says, and longer each time.
    pub(crate) fn pause_after(self, error: &DriverError, failures: u32) -> Duration {
        if plan::sabotaged!(UnboundedRetry) {
            // Not none at all: what is refused without being sent takes no time, and would be tried for ever in one moment.
            return Duration::from_millis(10);
        }
        let grows = self.grown(failures);
        let pause = match error {
            DriverError::RateLimited { retry_after, .. } => (*retry_after).max(self.shortest),
            DriverError::NotSent(NotSent { wait }) => (*wait).max(self.shortest),
            DriverError::Denied { .. } => grows.max(DENIED_RETRY),
            DriverError::NotFound(_)
            | DriverError::Conflict(_)
            | DriverError::Invalid(_)
            | DriverError::Unavailable(_) => grows,
        };
        pause.min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: Duration = Duration::from_secs(1);

    /// How long a thing that fails whenever it may be tried waits each time.
    async fn pauses(backoff: &mut Backoff<&str>, times: usize) -> Vec<u64> {
        let mut pauses = Vec::new();
        for _ in 0..times {
            backoff.failed("a", 7);
            let until = backoff.waits_until(&"a", 7).unwrap();
            pauses.push((until - Instant::now()).as_secs());
            tokio::time::sleep_until(until).await;
            assert_eq!(backoff.waits_until(&"a", 7), None);
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Retry { shortest: SHORTEST, longest: 5 * SHORTEST });
        assert_eq!(pauses(&mut backoff, 5).await, [1, 2, 4, 5, 5]);
        backoff.succeeded(&"a");
        assert_eq!(pauses(&mut backoff, 2).await, [1, 2], "a success ends the series");
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_failed_waits_and_only_in_that_version() {
        let mut backoff = Backoff::new(Retry { shortest: SHORTEST, longest: 5 * SHORTEST });
        assert_eq!(backoff.failed("a", 7), 1);
        assert_eq!(backoff.failed("a", 7), 2);
        assert!(backoff.waits_until(&"a", 7).is_some());
        assert_eq!(backoff.waits_until(&"b", 7), None);
        assert_eq!(backoff.waits_until(&"a", 8), None, "somebody has changed it");
        assert_eq!(backoff.failed("a", 8), 1);
        assert!(backoff.next_due().is_some());
        backoff.retain(|key| *key != "a");
        assert_eq!(backoff.next_due(), None);
    }
}
