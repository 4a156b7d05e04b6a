//! Leader election: the clock, the Lease, and the fence, which is open only while this process holds the Lease.

pub mod clock;
pub mod fence;
pub mod lease;
mod lease_watch;
