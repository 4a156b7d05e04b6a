//! Who may lead, and when a leader may act.
//!
//! In: the Lease as a candidate last saw it, and the candidate's own monotonic clock, which is never compared with
//! another clock. Out: whether the candidate may take the Lease now, how long it must wait before it acts, and how long
//! a change that starts now may take. Nothing here reads or writes the Lease. The model in `tests/protocol.rs` checks
//! these decisions for two candidates, in all orders of events.
//!
//! ```text
//! lease                                   what a candidate does
//! absent                                  creates it; then waits for the lease duration, because another replica may
//!                                           have held the deleted one, and for D
//! no holder, not marked as released       takes it, and waits as if it had been absent: a person may have created it
//!                                           after a deletion, or have removed its holder
//! another holder, changed recently        waits
//! another holder, not changed for its     takes it; then waits for D, because a request of the old leader may still
//!   duration (at least for ours)            take effect
//! no holder, marked as released           takes it, and acts at once
//! ours, by a write without an answer      waits as if it had been absent: its earlier state is unknown
//! ```
//!
//! D is the longest time for which a request of an old leader can still take effect after its lease has expired. The
//! old leader itself stops earlier, by [`MARGIN`]. D covers requests that are in flight in the network and in the
//! cloud.

use std::time::Duration;

use crate::Epoch;

/// The maximum lease duration, whatever the Lease contains: no candidate waits forever.
pub const LEASE_MAX: Duration = Duration::from_secs(3_600);

/// A change must end this long before the lease expires.
pub const MARGIN: Duration = Duration::from_secs(1);

/// The Lease as a candidate last saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting<'a> {
    /// Its holder; empty if it has none.
    pub holder: &'a str,
    /// Whether its last leader marked it as released. If a person removes the holder, the mark is missing.
    pub is_released: bool,
    /// The lease duration.
    pub lasts: Duration,
    /// When the candidate last saw it change, on its own clock.
    pub since: Duration,
}

/// How a leader got the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gained {
    /// The last leader released it.
    Released,
    /// Another replica may still lead, for up to this duration. This happens in three cases. The Lease did not exist,
    /// for example because a person deleted it. It had no holder, although no leader had released it. Or it already
    /// named this replica, because the response to the replica's own write was lost.
    Unknown(Duration),
    /// The last leader stopped renewing it.
    TakenOver,
}

/// Whether a candidate with the lease duration `mine` may take the Lease now, and how it gets it. If the Lease was
/// deleted, what the candidate saw before does not count: the Lease may have been renewed since. If the duration in the
/// Lease is shorter than `mine`, a person may have shortened it without the holder's knowledge. So the longer duration
/// counts.
pub fn candidacy(lease: Option<Sighting<'_>>, me: &str, mine: Duration, now: Duration) -> Option<Gained> {
    let Some(Sighting { holder, is_released, lasts, since }) = lease else {
        return Some(Gained::Unknown(mine));
    };
    let lasts = lasts.min(LEASE_MAX).max(mine);
    match holder {
        "" if is_released || crate::sabotaged!(EmptiedTakenForReleased) => Some(Gained::Released),
        "" => Some(Gained::Unknown(lasts)),
        holder if holder == me => Some(Gained::Unknown(lasts)),
        _ => (now >= since.saturating_add(lasts)).then_some(Gained::TakenOver),
    }
}

/// How long a new leader waits before it acts.
pub fn quarantine(gained: Gained, takeover: Duration) -> Duration {
    match gained {
        _ if crate::sabotaged!(NoWaitAfterTakeover) => Duration::ZERO,
        Gained::Released => Duration::ZERO,
        Gained::TakenOver => takeover,
        Gained::Unknown(lease) => lease.saturating_add(takeover),
    }
}

/// The epoch of a new leader: higher than all earlier ones.
pub fn next_epoch(of_lease: Epoch, of_journals: Epoch) -> Epoch {
    // A person may have written any number, so the sum must not overflow.
    Epoch(of_lease.max(of_journals).0.saturating_add(1))
}

/// How long a change that starts now may take, if the lease ends at `end`; none if no change may start.
pub fn remaining(end: Duration, now: Duration) -> Option<Duration> {
    end.checked_sub(now)?.checked_sub(MARGIN).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_candidate_takes_a_lease_without_a_holder_or_an_expired_one() {
        let seen = |holder, is_released| {
            Some(Sighting { holder, is_released, lasts: SECOND * 5, since: SECOND * 10 })
        };
        let at = |lease, seconds| candidacy(lease, "me", SECOND * 5, SECOND * seconds);
        let unknown = Some(Gained::Unknown(SECOND * 5));
        assert_eq!(at(None, 0), unknown);
        assert_eq!(at(seen("", true), 10), Some(Gained::Released));
        assert_eq!(at(seen("", false), 10), unknown, "a person may have removed the holder");
        assert_eq!(at(seen("me", false), 10), unknown);
        assert_eq!(at(seen("other", false), 14), None);
        assert_eq!(at(seen("other", false), 15), Some(Gained::TakenOver));
    }

    #[test]
    fn the_longer_lease_duration_counts_up_to_the_maximum() {
        let seen = |holder, lasts| Some(Sighting { holder, is_released: false, lasts, since: SECOND * 10 });
        let at = |lasts, seconds| candidacy(seen("other", lasts), "me", SECOND * 5, SECOND * seconds);
        assert_eq!(at(SECOND, 14), None, "a person may have shortened it");
        assert_eq!(at(SECOND, 15), Some(Gained::TakenOver));
        assert_eq!(at(SECOND * 8, 17), None, "the holder may have a longer duration");
        assert_eq!(at(SECOND * 8, 18), Some(Gained::TakenOver));
        assert_eq!(at(SECOND * 99_999, 3_609), None);
        assert_eq!(at(SECOND * 99_999, 3_610), Some(Gained::TakenOver));
        let emptied = |lasts| candidacy(seen("", lasts), "me", SECOND * 5, SECOND * 10);
        assert_eq!(emptied(SECOND), Some(Gained::Unknown(SECOND * 5)));
        assert_eq!(emptied(SECOND * 8), Some(Gained::Unknown(SECOND * 8)));
    }

    #[test]
    fn a_leader_waits_while_an_earlier_one_could_still_act() {
        let wait = |gained| quarantine(gained, SECOND * 10);
        assert_eq!(wait(Gained::Released), Duration::ZERO);
        assert_eq!(wait(Gained::TakenOver), SECOND * 10);
        assert_eq!(wait(Gained::Unknown(SECOND * 15)), SECOND * 25);
    }

    #[test]
    fn an_epoch_is_higher_than_those_of_the_lease_and_the_journals() {
        assert_eq!(next_epoch(Epoch(3), Epoch(7)), Epoch(8));
        assert_eq!(next_epoch(Epoch(7), Epoch(3)), Epoch(8));
        assert_eq!(next_epoch(Epoch(i64::MAX), Epoch(3)), Epoch(i64::MAX), "a huge number does not overflow");
    }

    #[test]
    fn a_change_may_take_the_rest_of_the_lease_minus_the_margin() {
        assert_eq!(remaining(SECOND * 15, SECOND * 4), Some(SECOND * 10));
        assert_eq!(remaining(SECOND * 15, SECOND * 14), None);
        assert_eq!(remaining(SECOND * 15, SECOND * 20), None);
    }
}
