//! VIPs for Clusters of Cluster API.
//!
//! | module | what it does |
//! |---|---|
//! | [`watch`] | watches Clusters, ClusterClasses, pools, claims and addresses in the served API versions |
//! | [`names`] | the labels and annotations on Clusters and pools |
//! | [`index`] | keeps the observed objects as a `World` |
//! | [`execute`] | creates and deletes claims, and updates Clusters |
//! | [`codec`] | reads the annotation with the state of the VIPs |
//! | [`report`], [`conditions`] | what the controller writes on a Cluster |
//! | [`metrics`] | metrics about pools, claims and VIPs |
//! | [`reconcile`] | the reconciler, which connects these modules |
//! | [`runtime_extension`] | answers Cluster API's runtime hooks with the reconciler's data |

mod codec;
mod conditions;
mod execute;
pub mod index;
pub mod metrics;
pub mod names;
pub mod reconcile;
mod report;
pub mod runtime_extension;
#[cfg(test)]
mod tests;
pub mod watch;
