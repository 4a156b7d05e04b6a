//! Who may act, and until when: the clock, the Lease, and the fence that is open while we hold it.

pub mod clock;
pub mod fence;
pub mod lease;
