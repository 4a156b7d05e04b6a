//! Public addresses and DNS names: `NetIPAllocation`, `FloatingIPPool` and `NodeDNSRecordSet`.
//!
//! | module | what it does |
//! |---|---|
//! | [`watch`] | what the reconciler watches, and only the fields that it needs |
//! | [`object`], [`resources`] | our three kinds, and what each means as a pool |
//! | [`codec`] | journal and status, both directions |
//! | [`index`] | keeps everything that was observed as a `World` |
//! | [`execute`] | carries out cloud calls, evictions and DNS changes |
//! | [`report`] | writes journal, status, finalizers, marks on nodes and Events |
//! | [`metrics`] | metrics about objects and nodes |
//! | [`reconcile`] | the loop that calls them in this order |

pub(crate) mod codec;
pub(crate) mod create_request;
pub mod dropped_fields;
pub mod execute;
mod flipop_metrics;
pub mod index;
pub mod metrics;
pub mod object;
pub mod reconcile;
pub mod report;
pub mod resources;
pub mod watch;
