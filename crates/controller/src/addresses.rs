//! Public addresses and DNS names: `NetIPAllocation`, `FloatingIPPool` and `NodeDNSRecordSet`.
//!
//! | module | what it does |
//! |---|---|
//! | [`watch`] | watches the kinds that the reconciler needs, and decodes only the fields that it needs |
//! | [`object`], [`resources`] | our three kinds, and how each becomes a `Pool` |
//! | [`codec`] | reads and writes the journal in the status |
//! | [`index`] | keeps everything that the watches and the providers report as a `World` |
//! | [`execute`] | makes provider calls, evictions and DNS changes |
//! | [`report`] | writes journal, status, finalizers, labels and annotations of nodes, and Events |
//! | [`metrics`] | metrics about objects and nodes |
//! | [`reconcile`] | the loop that calls them in this order |

pub(crate) mod codec;
pub(crate) mod create_request;
pub mod dropped_fields;
pub mod execute;
mod flipop_metrics;
pub mod index;
mod interner;
pub mod kind;
pub mod labels;
pub mod metrics;
pub mod needed;
pub mod node;
pub mod object;
pub mod owner;
pub mod pod;
pub mod reconcile;
pub mod report;
pub mod resources;
pub mod slim;
#[cfg(test)]
mod tests;
pub mod watch;
