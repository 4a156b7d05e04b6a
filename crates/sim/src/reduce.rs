//! Reduces the script of a failing run to a short one that still fails.
//!
//! In: a seed, its script and the violation. Out: the remaining events, and the violation that they cause. It never
//! changes the time of an event.

use std::time::Duration;

use crate::event::Event;
use crate::run::run;
use crate::violation::Violation;

/// Removes all events that the failure does not need. Returns the remaining events and their violation. This violation
/// is of the same invariant, but may concern another object.
pub fn reduce(
    seed: u64,
    script: &[(Duration, Event)],
    violation: Violation,
) -> (Vec<(Duration, Event)>, Violation) {
    let mut last = violation;
    let mut fails = |script: &[(Duration, Event)]| {
        let found = run(seed, script).violations.into_iter().find(|found| found.invariant == last.invariant);
        found.map(|found| last = found).is_some()
    };
    // Most events after the failure have no influence on it, so search for the shortest failing prefix first.
    let (mut enough, mut too_little) = (script.len(), 0);
    while too_little < enough {
        let middle = usize::midpoint(too_little, enough);
        if fails(&script[..middle]) { enough = middle } else { too_little = middle + 1 }
    }
    let mut left = script[..enough].to_vec();
    let mut size = left.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < left.len() {
            let mut shorter = left.clone();
            shorter.drain(at..(at + size).min(left.len()));
            if fails(&shorter) {
                left = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    (left, last)
}
