//! Exponential backoff with a limit, for each key separately.
//!
//! In: failures and successes of an operation on a key. Out: when the caller may retry it. It never retries anything
//! itself.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use drivers::times::later;
use drivers::{DriverError, NotSent};
use tokio::time::Instant;

/// The failures of each key. A failure belongs to one version of the object: a new version can be tried at once.
#[derive(Debug)]
pub struct Backoff<K> {
    retry: Retry,
    failures: BTreeMap<K, Failure>,
}

/// Pass this as the version if a failure also delays later versions of the object.
pub(crate) const ANY_VERSION: u64 = 0;

/// The consecutive failures of a key.
#[derive(Clone, Debug)]
pub struct Failure {
    version: u64,
    /// The number of failures.
    pub count: u32,
    /// The last error.
    pub why: Arc<str>,
    /// The end of the pause after the last failure.
    pub until: Instant,
}

impl<K: Ord> Backoff<K> {
    /// A backoff without failures. The first pause is `retry.shortest`, and each further failure doubles it up to
    /// `retry.longest`.
    pub fn new(retry: Retry) -> Self {
        Self { retry, failures: BTreeMap::new() }
    }

    /// Records a failure of this version. Returns the number of consecutive failures.
    pub fn failed(&mut self, key: K, version: u64, error: &impl Display) -> u32 {
        let pause = self.retry.grown(self.count(&key, version));
        self.failed_for(key, version, error, pause)
    }

    /// Records a failed call of a provider. Returns the number of consecutive failures and the pause, which depends on
    /// the error. A call that was not sent is no failure.
    pub fn failed_call(&mut self, key: K, error: &DriverError) -> (u32, Duration) {
        let before = self.count(&key, ANY_VERSION);
        let pause = self.retry.pause_after(error, before);
        if matches!(error, DriverError::NotSent(_)) {
            return (before, pause);
        }
        (self.failed_for(key, ANY_VERSION, error, pause), pause)
    }

    /// Like [`Self::failed`], with a pause that the caller chooses.
    pub fn failed_for(&mut self, key: K, version: u64, error: &impl Display, pause: Duration) -> u32 {
        let count = self.count(&key, version).saturating_add(1);
        let (why, until) = (error.to_string().into(), later(Instant::now(), pause));
        self.failures.insert(key, Failure { version, count, why, until });
        count
    }

    /// The consecutive failures of a key, if there are any.
    pub fn failure(&self, key: &K) -> Option<&Failure> {
        self.failures.get(key)
    }

    fn count(&self, key: &K, version: u64) -> u32 {
        let before = self.failures.get(key).filter(|failure| failure.version == version);
        before.map_or(0, |failure| failure.count)
    }

    /// Resets the backoff of this key.
    pub fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// The end of the current pause of this version, or `None` if it may be tried now.
    pub fn waits_until(&self, key: &K, version: u64) -> Option<Instant> {
        let failure = self.failures.get(key).filter(|failure| failure.version == version)?;
        Some(failure.until).filter(|until| Instant::now() < *until)
    }

    /// The end of the pause that ends first.
    pub fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        self.failures.values().map(|failure| failure.until).filter(|until| now < *until).min()
    }

    /// Forgets all keys for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.failures.retain(|key, _| keep(key));
    }
}

/// The pause after a missing permission, which only a person can grant. `--retry-seconds-max` can make it shorter.
const DENIED_RETRY: Duration = Duration::from_secs(30);

/// The longest pause after a throttled request without `Retry-After`. The rate limiter pauses for as long.
const LIMITED_RETRY_MAX: Duration = Duration::from_secs(60);

/// The shortest and longest pause before a retry.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// The pause after the first failure. Each further failure doubles it.
    pub shortest: Duration,
    /// The limit of the pause.
    pub longest: Duration,
}

impl Retry {
    /// The same pauses with a lower limit.
    pub(crate) fn at_most(self, longest: Duration) -> Self {
        Self { longest: self.longest.min(longest), ..self }
    }

    /// The pause after this number of earlier failures.
    pub(crate) fn grown(self, failures: u32) -> Duration {
        self.shortest.saturating_mul(1 << failures.min(16)).min(self.longest)
    }

    /// The pause after this error, given the number of earlier failures. If the provider asks for a longer pause, this is
    /// the provider's pause within the limits.
    pub(crate) fn pause_after(self, error: &DriverError, failures: u32) -> Duration {
        if plan::sabotaged!(UnboundedRetry) {
            // Not zero: a call can fail before it is sent, and would then be repeated without any pause.
            return Duration::from_millis(10);
        }
        let grows = self.grown(failures);
        let pause = match error {
            DriverError::RateLimited { retry_after, .. } => (*retry_after).max(grows.min(LIMITED_RETRY_MAX)),
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

    /// The pauses, in seconds, of a key that fails at each retry.
    async fn pauses(backoff: &mut Backoff<&str>, times: usize) -> Vec<u64> {
        let mut pauses = Vec::new();
        for _ in 0..times {
            backoff.failed("a", 7, &"late");
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
        assert_eq!(pauses(&mut backoff, 2).await, [1, 2], "a success resets the backoff");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_delays_only_its_own_key_and_version() {
        let mut backoff = Backoff::new(Retry { shortest: SHORTEST, longest: 5 * SHORTEST });
        assert_eq!(backoff.failed("a", 7, &"late"), 1);
        assert_eq!(backoff.failed("a", 7, &"refused"), 2);
        assert_eq!(&*backoff.failure(&"a").unwrap().why, "refused");
        assert!(backoff.waits_until(&"a", 7).is_some());
        assert_eq!(backoff.waits_until(&"b", 7), None);
        assert_eq!(backoff.waits_until(&"a", 8), None, "a new version may be tried at once");
        assert_eq!(backoff.failed("a", 8, &"late"), 1);
        assert!(backoff.next_due().is_some());
        backoff.retain(|key| *key != "a");
        assert_eq!(backoff.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_not_sent_is_no_failure() {
        let mut backoff = Backoff::new(Retry { shortest: SHORTEST, longest: 60 * SHORTEST });
        let refused = DriverError::Invalid("no".into());
        let not_sent = DriverError::NotSent(NotSent { wait: 9 * SHORTEST });
        assert_eq!(backoff.failed_call("a", &refused), (1, SHORTEST));
        assert_eq!(backoff.failed_call("a", &not_sent), (1, 9 * SHORTEST));
        assert_eq!(backoff.failed_call("a", &refused), (2, 2 * SHORTEST));
    }
}
