//! The state in the status for each verdict.

use api::status::AddressState;
use plan::Verdict;

pub(super) fn state(verdict: &Verdict) -> AddressState {
    match verdict {
        Verdict::Settled(_) | Verdict::NoMatch(..) | Verdict::Queued(_) => AddressState::Attached,
        Verdict::LeftToNextLeader { is_attached: true, .. } => AddressState::Attached,
        Verdict::LeftToNextLeader { is_attached: false, .. } => AddressState::Unattached,
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
