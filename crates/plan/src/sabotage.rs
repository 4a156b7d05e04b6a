//! Known defects that can be switched on, to test that the simulator finds them. Only with the feature `sabotage`, and
//! never in a release.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names describe the defects")]
pub enum Sabotage {
    NoFence,
    FenceOnlyAtTheStart,
    JournalAfterCall,
    EpochIgnored,
    UnknownReadAsFree,
    RetryWithoutReading,
    StaleListingBelieved,
    PoolsPlannedAlone,
    LeaseWithoutPrecondition,
    NoWaitAfterTakeover,
    NoWaitAfterSilence,
    AuthorityIgnored,
    UnboundedRetry,
    InFlightForgotten,
    TagIgnored,
    CandidateAdopted,
    UnlistedReplaced,
    ReleasedUnasked,
    ReleasedWithoutMark,
    FinalizerForgotten,
    MarksNeverRemoved,
    UnknownGoneOnWith,
    CreationBeforeJournal,
    AnswerForgotten,
    SpecForgotten,
    FailedWatchReadAsEmpty,
    OwnForgotten,
    ConditionForgotten,
    StatusWrittenAnyway,
    RecordEmptied,
    RecordOwnerIgnored,
    UnknownUnpublished,
    RecordBlindlyWritten,
    ClaimAdopted,
    VipBlindlyWritten,
    ClaimBlindlyGivenUp,
    VipReplaced,
    PausedTouched,
    UnknownVipsReadAsEmpty,
    AnswerRepeated,
    VipShared,
    DeadKept,
    CordonIgnored,
    NeverPublished,
    NeverCreated,
    EmptiedTakenForReleased,
    GraceIgnored,
    LossesForgotten,
    WrongInterfaceDetached,
    UndecodableReadAsAbsent,
    RefusedWriteRetriedAtOnce,
    JournalCut,
    SilentWatchTrusted,
    StaleListBelieved,
    UnreadPodsReadAsNone,
    ReleasedWithCallsInFlight,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 56] = [
        Self::NoFence,
        Self::FenceOnlyAtTheStart,
        Self::JournalAfterCall,
        Self::EpochIgnored,
        Self::UnknownReadAsFree,
        Self::RetryWithoutReading,
        Self::StaleListingBelieved,
        Self::PoolsPlannedAlone,
        Self::LeaseWithoutPrecondition,
        Self::NoWaitAfterTakeover,
        Self::NoWaitAfterSilence,
        Self::AuthorityIgnored,
        Self::UnboundedRetry,
        Self::InFlightForgotten,
        Self::TagIgnored,
        Self::CandidateAdopted,
        Self::UnlistedReplaced,
        Self::ReleasedUnasked,
        Self::ReleasedWithoutMark,
        Self::FinalizerForgotten,
        Self::MarksNeverRemoved,
        Self::UnknownGoneOnWith,
        Self::CreationBeforeJournal,
        Self::AnswerForgotten,
        Self::SpecForgotten,
        Self::FailedWatchReadAsEmpty,
        Self::OwnForgotten,
        Self::ConditionForgotten,
        Self::StatusWrittenAnyway,
        Self::RecordEmptied,
        Self::RecordOwnerIgnored,
        Self::UnknownUnpublished,
        Self::RecordBlindlyWritten,
        Self::ClaimAdopted,
        Self::VipBlindlyWritten,
        Self::ClaimBlindlyGivenUp,
        Self::VipReplaced,
        Self::PausedTouched,
        Self::UnknownVipsReadAsEmpty,
        Self::AnswerRepeated,
        Self::VipShared,
        Self::DeadKept,
        Self::CordonIgnored,
        Self::NeverPublished,
        Self::NeverCreated,
        Self::EmptiedTakenForReleased,
        Self::GraceIgnored,
        Self::LossesForgotten,
        Self::WrongInterfaceDetached,
        Self::UndecodableReadAsAbsent,
        Self::RefusedWriteRetriedAtOnce,
        Self::JournalCut,
        Self::SilentWatchTrusted,
        Self::StaleListBelieved,
        Self::UnreadPodsReadAsNone,
        Self::ReleasedWithCallsInFlight,
    ];
}

/// One more than the position of the chosen defect; 0 for none.
static CHOSEN: AtomicUsize = AtomicUsize::new(0);

/// Switches on one defect and all others off, or all off.
pub fn choose(what: Option<Sabotage>) {
    CHOSEN.store(what.map_or(0, |what| what as usize + 1), Ordering::SeqCst);
}

/// Whether this defect is switched on.
pub fn is(what: Sabotage) -> bool {
    CHOSEN.load(Ordering::SeqCst) == what as usize + 1
}
