//! Labels and annotations by which users and this part talk to each other on Clusters and pools.

/// On a pool, the class that it is for, or `true` where an annotation of this name lists them; on a Cluster without a topology,
/// an annotation with the class that pools are chosen by.
pub const CLASS: &str = "vip.capi.gorizond.io/cluster-class";

/// The label on a pool or claim that says what its addresses are for.
pub const ROLE: &str = "vip.capi.gorizond.io/role";

/// The label on a pool by which it comes before others.
pub const PRIORITY: &str = "vip.capi.gorizond.io/priority";

/// The annotation on a Cluster that asks for an ingress VIP, or for none.
pub const INGRESS_ENABLED: &str = "vip.capi.gorizond.io/ingress-enabled";

/// The annotation and label on a Cluster that hold its ingress VIP.
pub const INGRESS_VIP: &str = "vip.capi.gorizond.io/ingress-vip";

/// The annotation on a Cluster that says how its VIPs stand.
pub const STATUS: &str = "vip.capi.gorizond.io/status";

/// The annotation on a Cluster that nobody is to touch.
pub(crate) const PAUSED: &str = "cluster.x-k8s.io/paused";

/// The variable of a class that holds the control plane's VIP.
pub(crate) const VARIABLE: &str = "clusterVip";
