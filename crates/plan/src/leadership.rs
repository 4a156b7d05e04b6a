//! Who may lead, and from when until when a leader may act.
//!
//! In: what a candidate saw of the Lease, and its own clock, which counts from any moment and is never compared with
//! another's. Out: whether it may take the Lease now, how long it must keep still after that, and how long a change that
//! begins now may take. The model in `tests/protocol.rs` goes through what can happen to two candidates that decide by
//! this.
//!
//! ```text
//! lease                                   what a candidate does
//! absent                                  create it; then wait out the lease that may have been deleted under its holder,
//!                                           and D
//! held by nobody, and not given up        take it, and wait as if it had been absent: somebody may have put it in the
//!                                           place of one that was deleted, or taken it from its holder
//! held by another, changed lately         wait
//! held by another, not changed for its    take it; then wait out D, in which a request of the old leader may still
//!   duration or ours                        take effect
//! held by nobody, and given up in order   take it; nothing to wait for
//! ours, by a write without an answer      as if it had been absent: what it was then is not known
//! ```
//!
//! D is the longest time after its lease has ended that a request of an old leader can still take effect. Its own deadline
//! was over before that, by [`MARGIN`]; D is for what is on its way in the network and in the cloud.

use std::time::Duration;

use crate::Epoch;

/// The longest that a lease lasts, whatever somebody has written there: nobody may wait for ever.
pub const LEASE_MAX: Duration = Duration::from_secs(3_600);

/// A change must have ended this long before the lease does.
pub const MARGIN: Duration = Duration::from_secs(1);

/// The Lease as a candidate last saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting<'a> {
    /// Who holds it; empty where nobody does.
    pub holder: &'a str,
    /// Whether the last who led by it says that it gave it up in order. People empty the holder too, and then nobody says so.
    pub is_released: bool,
    /// How long it lasts when it is not renewed.
    pub lasts: Duration,
    /// When the candidate saw it change, on its own clock.
    pub since: Duration,
}

/// How leadership was gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gained {
    /// The one before gave it up in order.
    Released,
    /// Nobody knows what was before: there was no lease, or a new one, so that nobody ever led, or somebody deleted or emptied
    /// it under a leader; or it is ours by a write whose answer was lost. Somebody may still lead by a lease of this length.
    Unknown(Duration),
    /// The one before stopped renewing it.
    TakenOver,
}

/// Whether a candidate whose own lease lasts for `mine` may take the Lease now, and what that would mean. What was seen of one
/// that is not there any more tells nothing: it may have been renewed since. One that lasts for less than ours may have been
/// made shorter under its holder, who does not go by what others write.
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

/// How long a new leader keeps still.
pub fn quarantine(gained: Gained, takeover: Duration) -> Duration {
    match gained {
        _ if crate::sabotaged!(NoWaitAfterTakeover) => Duration::ZERO,
        Gained::Released => Duration::ZERO,
        Gained::TakenOver => takeover,
        Gained::Unknown(lease) => lease.saturating_add(takeover),
    }
}

/// The epoch of a new leader: above all that were.
pub fn next_epoch(of_lease: Epoch, of_journals: Epoch) -> Epoch {
    // Nobody has led that often, but people can write any number.
    Epoch(of_lease.max(of_journals).0.saturating_add(1))
}

/// How long a change that begins now may take for a leader whose lease ends then; nothing where none may begin.
pub fn remaining(end: Duration, now: Duration) -> Option<Duration> {
    end.checked_sub(now)?.checked_sub(MARGIN).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_is_taken_when_nobody_holds_it_or_nobody_has_renewed_it_for_its_duration() {
        let seen = |holder, is_released| {
            Some(Sighting { holder, is_released, lasts: SECOND * 5, since: SECOND * 10 })
        };
        let at = |lease, seconds| candidacy(lease, "me", SECOND * 5, SECOND * seconds);
        let unknown = Some(Gained::Unknown(SECOND * 5));
        assert_eq!(at(None, 0), unknown);
        assert_eq!(at(seen("", true), 10), Some(Gained::Released));
        assert_eq!(at(seen("", false), 10), unknown, "somebody may have emptied it");
        assert_eq!(at(seen("me", false), 10), unknown);
        assert_eq!(at(seen("other", false), 14), None);
        assert_eq!(at(seen("other", false), 15), Some(Gained::TakenOver));
    }

    #[test]
    fn a_lease_lasts_for_what_it_says_or_for_ours_whichever_is_longer_and_not_for_ever() {
        let seen = |holder, lasts| Some(Sighting { holder, is_released: false, lasts, since: SECOND * 10 });
        let at = |lasts, seconds| candidacy(seen("other", lasts), "me", SECOND * 5, SECOND * seconds);
        assert_eq!(at(SECOND, 14), None, "somebody may have made it shorter");
        assert_eq!(at(SECOND, 15), Some(Gained::TakenOver));
        assert_eq!(at(SECOND * 8, 17), None, "whoever holds it may be set up otherwise");
        assert_eq!(at(SECOND * 8, 18), Some(Gained::TakenOver));
        assert_eq!(at(SECOND * 99_999, 3_609), None);
        assert_eq!(at(SECOND * 99_999, 3_610), Some(Gained::TakenOver));
        let emptied = |lasts| candidacy(seen("", lasts), "me", SECOND * 5, SECOND * 10);
        assert_eq!(emptied(SECOND), Some(Gained::Unknown(SECOND * 5)));
        assert_eq!(emptied(SECOND * 8), Some(Gained::Unknown(SECOND * 8)));
    }

    #[test]
    fn a_leader_that_was_not_handed_the_lease_keeps_still_for_as_long_as_another_could_act() {
        let wait = |gained| quarantine(gained, SECOND * 10);
        assert_eq!(wait(Gained::Released), Duration::ZERO);
        assert_eq!(wait(Gained::TakenOver), SECOND * 10);
        assert_eq!(wait(Gained::Unknown(SECOND * 15)), SECOND * 25);
    }

    #[test]
    fn an_epoch_is_above_that_of_the_lease_and_of_every_journal() {
        assert_eq!(next_epoch(Epoch(3), Epoch(7)), Epoch(8));
        assert_eq!(next_epoch(Epoch(7), Epoch(3)), Epoch(8));
        assert_eq!(next_epoch(Epoch(i64::MAX), Epoch(3)), Epoch(i64::MAX), "a person's number ends nobody");
    }

    #[test]
    fn a_change_may_take_what_is_left_of_the_lease_less_the_margin() {
        assert_eq!(remaining(SECOND * 15, SECOND * 4), Some(SECOND * 10));
        assert_eq!(remaining(SECOND * 15, SECOND * 14), None);
        assert_eq!(remaining(SECOND * 15, SECOND * 20), None);
    }
}
