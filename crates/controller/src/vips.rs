//! VIPs for Cluster API's Clusters.
//!
//! | module | what it does |
//! |---|---|
//! | [`watch`] | Clusters, classes, pools, claims and addresses, in whatever versions the cluster serves |
//! | [`names`] | the labels and annotations by which users talk to this part |
//! | [`index`] | keeps what was observed as a `World` |
//! | [`execute`] | makes and deletes claims, and writes on Clusters |
//! | [`codec`] | the annotation that reports how VIPs stand, both directions |
//! | [`report`], [`conditions`] | what is written on a Cluster |
//! | [`metrics`] | metrics about pools, claims and VIPs |
//! | [`reconcile`] | the loop that calls them in this order |
//! | [`runtime_extension`] | answers Cluster API's hooks with what the reconciler knows |

mod codec;
mod conditions;
mod execute;
pub mod index;
pub mod metrics;
pub mod names;
pub mod reconcile;
mod report;
pub mod runtime_extension;
pub mod watch;
