//! The shortest script that still fails.

use std::time::Duration;

use crate::run::run;
use crate::script::Event;

/// Leaves out whatever a failing run can do without.
pub fn reduce(seed: u64, script: &[(Duration, Event)], invariant: &str) -> Vec<(Duration, Event)> {
    let fails = |script: &[(Duration, Event)]| {
        run(seed, script).violations.iter().any(|violation| violation.invariant == invariant)
    };
    // Most of what comes after the fault has no part in it, so the shortest beginning that fails is looked for first.
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
    left
}
