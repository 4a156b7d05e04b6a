//! What both reconcilers need of Kubernetes: watches that tolerate undecodable objects, Events, conditions, and
//! handling of failed writes.

pub(crate) mod conditions;
pub mod decode;
pub mod events;
pub(crate) mod freshness;
pub(crate) mod limits;
pub mod transport;
pub mod watch;
pub(crate) mod write;
