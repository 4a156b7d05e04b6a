//! Metrics about VIPs of Cluster API, with the names, labels and meaning of capi-vip-allocator's metrics.
//!
//! In: the pools and claims in the index, and the outcomes of allocations. Out: the metrics. The name of a pool for one
//! namespace is `NAMESPACE/NAME`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plan::vips::{Role, Verdict};
use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec, IntGaugeVec};

use super::index::Index;
use super::watch::Kind;
use crate::metrics::Metrics;

/// The metrics about VIPs. Clones share the same metrics.
#[derive(Clone)]
pub struct VipMetrics {
    process: Metrics,
    of: Arc<Inner>,
}

/// The most classes with series of their own. A tenant can give a Cluster or pool any class.
const CLASSES_MAX: usize = 1_000;

/// The longest name of a class, as Kubernetes allows it.
const CLASS_CHARS_MAX: usize = 253;

/// The label of all other classes.
const OTHER_CLASSES: &str = "other";

struct Inner {
    /// Classes with series of their own.
    classes: Mutex<BTreeSet<String>>,
    allocations: IntCounterVec,
    errors: IntCounterVec,
    allocation_seconds: HistogramVec,
    pools: IntGaugeVec,
    total: IntGaugeVec,
    free: IntGaugeVec,
    used: IntGaugeVec,
    claims: IntGaugeVec,
    claims_ready: IntGaugeVec,
    claims_pending: IntGaugeVec,
    reconciled: IntCounterVec,
    reconcile_seconds: HistogramVec,
}

impl VipMetrics {
    /// Registers the metrics.
    pub fn new(process: Metrics) -> Result<Self, prometheus::Error> {
        let new = process.registration();
        let of_pool = ["pool_name"];
        let of_claims = ["role", "namespace"];
        let of = Inner {
            classes: Mutex::default(),
            allocations: new.counters(
                "capi_vip_allocator_allocations_total",
                "VIPs that the controller wrote into Clusters",
                &["role", "cluster_class"],
            )?,
            errors: new.counters(
                "capi_vip_allocator_allocation_errors_total",
                "Failed steps of VIP allocations",
                &["role", "cluster_class", "reason"],
            )?,
            allocation_seconds: new.histograms(
                "capi_vip_allocator_allocation_duration_seconds",
                "Time from first seeing a Cluster without a VIP until the VIP is written, in seconds",
                &["role", "cluster_class"],
                DEFAULT_BUCKETS,
            )?,
            pools: new.gauges(
                "capi_vip_allocator_pools_available",
                "Pools for the ClusterClass and role",
                &["cluster_class", "role"],
            )?,
            total: new.gauges(
                "capi_vip_allocator_pool_addresses_total",
                "Addresses of the pool",
                &of_pool,
            )?,
            free: new.gauges(
                "capi_vip_allocator_pool_addresses_free",
                "Free addresses of the pool",
                &of_pool,
            )?,
            used: new.gauges(
                "capi_vip_allocator_pool_addresses_used",
                "Used addresses of the pool",
                &of_pool,
            )?,
            claims: new.gauges("capi_vip_allocator_claims_total", "Claims for VIPs", &of_claims)?,
            claims_ready: new.gauges(
                "capi_vip_allocator_claims_ready",
                "Claims for VIPs, only those that have an address",
                &of_claims,
            )?,
            claims_pending: new.gauges(
                "capi_vip_allocator_claims_pending",
                "Claims for VIPs that have no address yet",
                &of_claims,
            )?,
            reconciled: new.counters(
                "capi_vip_allocator_reconcile_total",
                "Reconciliations of Clusters, by result (success, requeued, skipped or error)",
                &["cluster_class", "result"],
            )?,
            reconcile_seconds: new.histograms(
                "capi_vip_allocator_reconcile_duration_seconds",
                "Duration of reconciliations of Clusters in seconds",
                &["cluster_class"],
                DEFAULT_BUCKETS,
            )?,
        };
        Ok(Self { process, of: Arc::new(of) })
    }

    /// The label of a class.
    fn label<'a>(&self, class: &'a str) -> &'a str {
        let mut classes = self.of.classes.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = class.len() <= CLASS_CHARS_MAX && classes.len() < CLASSES_MAX;
        if classes.contains(class) || (has_room && classes.insert(class.to_owned())) {
            class
        } else {
            OTHER_CLASSES
        }
    }

    /// Counts a VIP that the controller wrote into a Cluster. `took` is the time since it first saw the Cluster without
    /// a VIP.
    pub fn assigned(&self, role: Role, class: &str, took: Option<Duration>) {
        let class = self.label(class);
        self.of.allocations.with_label_values(&[role.name(), class]).inc();
        if let Some(took) = took {
            let seconds = self.of.allocation_seconds.with_label_values(&[role.name(), class]);
            seconds.observe(took.as_secs_f64());
        }
    }

    /// Counts a failed step of an allocation.
    pub fn failed(&self, role: Role, class: &str, reason: &str) {
        self.of.errors.with_label_values(&[role.name(), self.label(class), reason]).inc();
    }

    /// Counts a reconciliation of a Cluster, given the verdicts about its VIPs.
    pub fn considered<'a>(
        &self,
        class: &str,
        mut verdicts: impl Iterator<Item = &'a Verdict> + Clone,
        took: Duration,
    ) {
        let result = if verdicts.clone().any(Verdict::is_stuck) {
            "error"
        } else if verdicts.clone().any(Verdict::is_in_progress) {
            "requeued"
        } else if verdicts.any(|verdict| matches!(verdict, Verdict::Assigned { .. })) {
            "success"
        } else {
            "skipped"
        };
        let class = self.label(class);
        self.of.reconciled.with_label_values(&[class, result]).inc();
        self.of.reconcile_seconds.with_label_values(&[class]).observe(took.as_secs_f64());
    }

    /// Rewrites the gauges.
    pub fn describe(&self, index: &Index) {
        let _whole = self.process.describing();
        for kind in Kind::ALL {
            self.process.set_undecodable(kind.name(), index.undecodable.of(kind).count());
        }
        let world = &index.world;
        let Inner { pools, total, free, used, claims, claims_ready, claims_pending, .. } = &*self.of;
        for gauges in [pools, total, free, used, claims, claims_ready, claims_pending] {
            gauges.reset();
        }
        // Report 0 for a class that is in use and has no pool, so that an alert can select it.
        let mut available: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for class in world.clusters.values().filter_map(|cluster| cluster.class.as_deref()) {
            available.insert((self.label(class), Role::ControlPlane.name()), 0);
        }
        let known = world.global_pools.iter().chain(&world.namespaced_pools).flatten();
        for (name, pool) in known.filter(|(_, pool)| !pool.classes.is_empty() && !pool.role.is_empty()) {
            for class in &pool.classes {
                *available.entry((self.label(class), &pool.role)).or_default() += 1;
            }
            if let Some(count) = pool.count {
                let name = name.to_string();
                for (gauges, value) in [(total, count.total), (free, count.free), (used, count.used)] {
                    gauges.with_label_values(&[&name]).set(value);
                }
            }
        }
        for ((class, role), count) in available {
            pools.with_label_values(&[class, role]).set(count);
        }
        for (key, claim) in world.claims.iter().flatten() {
            let role = Role::ALL.into_iter().find(|role| key.name.starts_with(role.claim_prefix()));
            let Some(role) = role else { continue };
            let labels = [role.name(), &*key.namespace];
            let is_ready = claim.address.is_some();
            claims.with_label_values(&labels).inc();
            claims_ready.with_label_values(&labels).add(is_ready.into());
            claims_pending.with_label_values(&labels).add((!is_ready).into());
        }
    }
}
