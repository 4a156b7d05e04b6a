//! What every part needs of Kubernetes: watches that survive broken objects, Events, conditions, and what a failed write means.

pub(crate) mod conditions;
pub mod decode;
pub mod events;
pub(crate) mod limits;
pub mod watch;
pub(crate) mod write;
