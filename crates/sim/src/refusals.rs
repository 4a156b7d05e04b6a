//! A record of the writes that the apiserver rejected.
//!
//! In: rejected writes: process, object, version and time. Out: how often the same write was rejected within the last
//! minute. It never decides how often is too often: `broken` does.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;

/// How long a rejected write counts.
const COUNTS_FOR: Duration = Duration::from_secs(60);

/// A process, a path, and the version of the object before the write.
pub(crate) type Write = (u64, String, String);

/// The times of rejected writes.
#[derive(Default)]
pub struct Refusals(Mutex<BTreeMap<Write, Vec<Duration>>>);

impl Refusals {
    /// Records a rejected write. Returns how often it was rejected within the last minute.
    pub(crate) fn add(&self, write: Write, now: Duration) -> usize {
        let times = &mut lock(&self.0);
        let times = times.entry(write).or_default();
        times.retain(|at| now < *at + COUNTS_FOR);
        times.push(now);
        times.len()
    }
}
