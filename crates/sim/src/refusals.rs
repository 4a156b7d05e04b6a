//! Writes that the apiserver refused.
//!
//! In: which process was refused which version of which object, and when. Out: how often within the last minute. It never says
//! how often is too often.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;

/// How long a refusal counts.
const COUNTS_FOR: Duration = Duration::from_secs(60);

/// A process, a path, and the version of the object that was there.
pub(crate) type Write = (u64, String, String);

/// When each process was refused a write of a version of an object.
#[derive(Default)]
pub struct Refusals(Mutex<BTreeMap<Write, Vec<Duration>>>);

impl Refusals {
    /// A write was refused now; gives how often that was so within the last minute.
    pub(crate) fn add(&self, write: Write, now: Duration) -> usize {
        let times = &mut lock(&self.0);
        let times = times.entry(write).or_default();
        times.retain(|at| now < *at + COUNTS_FOR);
        times.push(now);
        times.len()
    }
}
