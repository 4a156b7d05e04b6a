//! The labels and annotations on Clusters and pools that users set or read.

/// On a pool: the label with the ClusterClass that it serves, or `true` if an annotation of the same name lists
/// several. On a Cluster without a topology: the annotation with the class by which the controller selects pools.
pub const CLASS: &str = "vip.capi.gorizond.io/cluster-class";

/// The label on a pool or claim with the role of its addresses.
pub const ROLE: &str = "vip.capi.gorizond.io/role";

/// The label on a pool with its priority. The controller uses pools with a higher number first.
pub const PRIORITY: &str = "vip.capi.gorizond.io/priority";

/// The annotation on a Cluster that requests (`true`) or declines (`false`) an ingress VIP.
pub const INGRESS_ENABLED: &str = "vip.capi.gorizond.io/ingress-enabled";

/// The annotation and label on a Cluster with its ingress VIP.
pub const INGRESS_VIP: &str = "vip.capi.gorizond.io/ingress-vip";

/// The annotation on a Cluster with the state of its VIPs.
pub const STATUS: &str = "vip.capi.gorizond.io/status";

/// Cluster API's annotation on a paused Cluster.
pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";

/// The ClusterClass variable for the control plane's VIP.
pub(crate) const VARIABLE: &str = "clusterVip";
