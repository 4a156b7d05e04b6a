//! The state, the reason and the urgency that each verdict has in a status.

use api::status::AddressState;
use plan::{Lacking, Published, Verdict, Waits};

use crate::kubernetes::conditions::Severity;

pub(super) fn state(said: &Verdict) -> AddressState {
    match said {
        Verdict::Settled(_) | Verdict::Lingers(..) | Verdict::Queued(_) => AddressState::Attached,
        Verdict::Moving(_) => AddressState::Moving,
        Verdict::NoNode | Verdict::OtherRegion(..) => AddressState::Unattached,
        Verdict::Foreign(_) => AddressState::Foreign,
        Verdict::OwnedBy(_) => AddressState::Conflict,
        Verdict::Missing => AddressState::Missing,
        Verdict::Disabled | Verdict::Releasing | Verdict::Unmarked => AddressState::Disabled,
        Verdict::Leaving => AddressState::Unattached,
        Verdict::Unknown(_) | Verdict::Unsupported(_) | Verdict::Waits(_) | Verdict::WouldStep(_) => {
            AddressState::Unknown
        }
    }
}

pub(super) fn reason(said: &Verdict) -> &'static str {
    match said {
        Verdict::Settled(_) => "Settled",
        Verdict::Lingers(..) => "NoMatch",
        Verdict::Moving(_) => "Moving",
        Verdict::Queued(_) => "Queued",
        Verdict::NoNode => "NoNode",
        Verdict::OtherRegion(..) => "OtherRegion",
        Verdict::Unsupported(_) => "UnsupportedAddress",
        Verdict::Foreign(_) => "Foreign",
        Verdict::OwnedBy(_) => "Conflict",
        Verdict::Missing => "Missing",
        Verdict::Disabled => "Disabled",
        Verdict::Releasing => "Releasing",
        Verdict::Unmarked => "NotReleased",
        Verdict::Leaving => "Deleted",
        Verdict::Unknown(_) => "Unknown",
        Verdict::WouldStep(_) => "Observing",
        Verdict::Waits(waits) => match waits {
            Waits::ForBudget => "MaxConcurrentMoves",
            Waits::ForHealthy => "MinHealthy",
            Waits::ForCoolOff(_) => "CoolOff",
            Waits::ForConfirmation(_) => "HoldersLost",
            Waits::ForNewerController => "NewerJournal",
            Waits::ForCorrection => "Refused",
            Waits::ForRetry(_) => "Failed",
            Waits::ForRoom => "JournalFull",
        },
    }
}

/// How a pool that lacks addresses stands, and the word for it.
pub(super) fn of_lacking(lacking: &Lacking) -> (Severity, &'static str) {
    match lacking {
        Lacking::Creating(_) => (Severity::Reconciling, "Creating"),
        Lacking::WouldCreate(_) => (Severity::Reconciling, "Observing"),
        Lacking::Unread => (Severity::Reconciling, "Unknown"),
        Lacking::Failed(_) => (Severity::Reconciling, "Failed"),
        Lacking::Ambiguous(_) => (Severity::Stalled, "AmbiguousCreation"),
        Lacking::Unlisted(_) => (Severity::Stalled, "UnlistedAddresses"),
        Lacking::TooMany(_) => (Severity::Stalled, "NoTags"),
        Lacking::TagsHidden => (Severity::Stalled, "NoTags"),
        Lacking::NoRegion => (Severity::Stalled, "NoRegion"),
        Lacking::Full(_) => (Severity::Stalled, "CreatedAddressesMax"),
    }
}

/// How a name in DNS stands, and the word for it.
pub(super) fn of_record(said: &Published) -> (Severity, &'static str) {
    match said {
        Published::Yes(_) | Published::Left | Published::Gone => (Severity::Ready, "Published"),
        Published::Publishing => (Severity::Reconciling, "Publishing"),
        Published::Unread => (Severity::Reconciling, "Unknown"),
        Published::Failed(_) => (Severity::Reconciling, "RecordFailed"),
        Published::Conflict(_) => (Severity::Stalled, "RecordConflict"),
        Published::NotOurs(_) => (Severity::Stalled, "RecordNotOurs"),
        Published::OwnedByOther(_) => (Severity::Stalled, "RecordOwnedByOther"),
        Published::LastKept(_) => (Severity::Reconciling, "LastAddressesKept"),
        Published::Nothing => (Severity::Reconciling, "NothingToPublish"),
        Published::Would(_) => (Severity::Reconciling, "Observing"),
    }
}

pub(super) fn severity(said: &Verdict) -> Severity {
    match said {
        Verdict::Settled(_) | Verdict::Disabled | Verdict::Leaving => Severity::Ready,
        Verdict::Foreign(_)
        | Verdict::OwnedBy(_)
        | Verdict::Unsupported(_)
        | Verdict::Missing
        | Verdict::Unmarked
        | Verdict::Waits(Waits::ForConfirmation(_) | Waits::ForNewerController | Waits::ForCorrection) => {
            Severity::Stalled
        }
        _ => Severity::Reconciling,
    }
}
