//! The registry of all metrics, and the metrics of the process itself.
//!
//! In: the metrics that the other modules register, under the names that existing dashboards and alerts use. Out: the
//! text of `/metrics`. This module knows no types of other modules and makes no decisions. The probes read two things
//! back: readiness for `/readyz`, and whether the loops run for `/healthz`.

mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricType;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};
use tokio::time::Instant;

pub(crate) use self::table::SeriesTable;
use crate::pulse::Pulse;

/// Values of the labels `status` and `outcome`.
pub(crate) const SUCCESS: &str = "success";
pub(crate) const ERROR: &str = "error";

/// Buckets for how long events wait.
const LAG_SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

/// Values of the labels that identify this process.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Version of the controller.
    pub version: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the cluster. If it is absent, metrics do not have the label `cluster`.
    pub cluster: Option<String>,
}

/// The metrics of the process. Clones share the same metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    pod: String,
    /// Name and labels of every registered metric.
    names: Mutex<Vec<String>>,
    /// Locked while gauges are rewritten, so that a scrape never sees half of them.
    describing: Mutex<()>,
    is_leader: IntGauge,
    ready: IntGauge,
    undecodable: IntGaugeVec,
    loop_lag: HistogramVec,
    event_to_plan: HistogramVec,
    loop_queue: IntGaugeVec,
    watch_age: IntGaugeVec,
    /// When the watch of each kind last brought something, or when the kind was first listed.
    watches: Mutex<BTreeMap<String, Instant>>,
    pulses: Mutex<Vec<Pulse>>,
}

impl Metrics {
    /// Registers the metrics of the process. At first they show a process that is not ready and does not lead.
    pub fn new(identity: &Identity) -> Result<Self, prometheus::Error> {
        let labels = identity.cluster.iter().map(|name| ("cluster".to_owned(), name.clone())).collect();
        let registry = Registry::new_custom(None, Some(labels))?;
        let names = Mutex::default();
        let new = Registration { registry: &registry, pod: &identity.pod, names: &names };
        let info = new.gauges(
            "netipallocation_controller_info",
            "Always 1; the label version is the version of the running controller",
            &["version", "pod_name"],
        )?;
        info.with_label_values(&[&identity.version, &identity.pod]).set(1);
        new.of_pod("netipallocation_controller_healthy", "Always 1 while the controller runs")?.set(1);
        let is_leader =
            new.of_pod("netipallocation_controller_is_leader", "1 while this pod leads, otherwise 0")?;
        let ready = new.of_pod(
            "netipallocation_controller_ready",
            "1 after the pod has read everything that it watches, otherwise 0",
        )?;
        let undecodable = new.gauges(
            "ip_address_controller_undecodable_objects",
            "Objects that the controller can't decode and does not act on, by kind",
            &["kind"],
        )?;
        let loop_lag = new.histograms(
            "ip_address_controller_loop_lag_seconds",
            "How long a loop (addresses or vips) was busy before it was ready for the next event",
            &["loop"],
            &LAG_SECONDS,
        )?;
        let event_to_plan = new.histograms(
            "ip_address_controller_event_to_plan_seconds",
            "Time from the first change since the last plan until the steps of the next plan were started, by loop (addresses)",
            &["loop"],
            &LAG_SECONDS,
        )?;
        let loop_queue = new.gauges(
            "ip_address_controller_loop_queue_length",
            "Watch events that a loop (addresses or vips) has not taken in yet",
            &["loop"],
        )?;
        let watch_age = new.gauges(
            "ip_address_controller_watch_age_seconds",
            "Seconds since the watch of this kind last brought something, or since its first list",
            &["kind"],
        )?;
        let pod = identity.pod.clone();
        Ok(Self(Arc::new(Inner {
            registry,
            pod,
            names,
            describing: Mutex::default(),
            is_leader,
            ready,
            undecodable,
            loop_lag,
            event_to_plan,
            loop_queue,
            watch_age,
            watches: Mutex::default(),
            pulses: Mutex::default(),
        })))
    }

    /// The [`Registration`] with which other modules register their metrics.
    pub(crate) fn registration(&self) -> Registration<'_> {
        Registration { registry: &self.0.registry, pod: &self.0.pod, names: &self.0.names }
    }

    /// Every metric with its labels, such as `flipop_nodednsrecordset_records{namespace,name,provider,dns}`. Includes
    /// metrics that [`Self::text`] lacks because they have no series before their first event.
    pub fn names(&self) -> Vec<String> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All metrics in the text format of Prometheus.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        for (kind, at) in &*self.watches() {
            let age = i64::try_from(at.elapsed().as_secs()).unwrap_or(i64::MAX);
            self.0.watch_age.with_label_values(&[kind]).set(age);
        }
        let gathered = {
            let _whole = self.describing();
            self.0.registry.gather()
        };
        TextEncoder::new().encode_to_string(&gathered)
    }

    /// Blocks scrapes while the caller rewrites gauges.
    pub(crate) fn describing(&self) -> MutexGuard<'_, ()> {
        self.0.describing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metrics of the loop with this name. The process is healthy while all loops beat.
    pub fn of_loop(&self, name: &str) -> LoopMetrics {
        let pulse = Pulse::default();
        self.0.pulses.lock().unwrap_or_else(PoisonError::into_inner).push(pulse.clone());
        LoopMetrics {
            pulse,
            lag: self.0.loop_lag.with_label_values(&[name]),
            event_to_plan: self.0.event_to_plan.clone(),
            name: name.to_owned(),
            queue: self.0.loop_queue.with_label_values(&[name]),
        }
    }

    /// The metrics of the watch of a kind.
    pub(crate) fn of_watch(&self, kind: &str) -> WatchMetrics {
        WatchMetrics { process: self.clone(), kind: kind.to_owned() }
    }

    fn watches(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all loops run.
    pub fn is_healthy(&self) -> bool {
        self.0.pulses.lock().unwrap_or_else(PoisonError::into_inner).iter().all(Pulse::is_alive)
    }

    /// Whether the controller has read everything that it watches.
    pub fn is_ready(&self) -> bool {
        self.0.ready.get() == 1
    }

    /// Sets whether the controller has read everything that it watches.
    pub fn set_ready(&self, is_ready: bool) {
        self.0.ready.set(i64::from(is_ready));
    }

    /// Sets whether this process leads.
    pub fn set_leader(&self, is_leader: bool) {
        self.0.is_leader.set(i64::from(is_leader));
    }

    /// Sets how many objects of a kind can't be decoded.
    pub(crate) fn set_undecodable(&self, kind: &str, count: usize) {
        self.0.undecodable.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// The metrics of a loop.
pub struct LoopMetrics {
    pulse: Pulse,
    name: String,
    lag: Histogram,
    /// Not every loop reports it, so its series appears with the first value.
    event_to_plan: HistogramVec,
    queue: IntGauge,
}

impl LoopMetrics {
    /// Records that the loop runs.
    pub(crate) fn beat(&self) {
        self.pulse.beat();
    }

    /// Records that the loop has ended as it should.
    pub(crate) fn stop(&self) {
        self.pulse.stop();
    }

    /// Records how long the loop worked, and how many events wait for it.
    pub(crate) fn worked(&self, took: Duration, waiting: usize) {
        self.lag.observe(took.as_secs_f64());
        self.queue.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Records the time from the first change that the last plan considered until the end of that plan.
    pub(crate) fn planned(&self, took: Duration) {
        self.event_to_plan.with_label_values(&[&self.name]).observe(took.as_secs_f64());
    }

    /// Whether the loop runs.
    #[cfg(test)]
    pub(crate) fn is_alive(&self) -> bool {
        self.pulse.is_alive()
    }
}

/// The metrics of a watch. Dropping this value removes them.
pub(crate) struct WatchMetrics {
    process: Metrics,
    kind: String,
}

impl WatchMetrics {
    /// Records that a list worked, so the watch of its kind should work too. From the first list on the watch has an age.
    pub(crate) fn listed(&self) {
        self.process.watches().entry(self.kind.clone()).or_insert_with(Instant::now);
    }

    /// Records that the apiserver has sent something on the watch.
    pub(crate) fn heard(&self) {
        self.process.watches().insert(self.kind.clone(), Instant::now());
    }
}

impl Drop for WatchMetrics {
    fn drop(&mut self) {
        self.process.watches().remove(&self.kind);
        // The series exists only if there was a scrape.
        let _ = self.process.0.watch_age.remove_label_values(&[&self.kind]);
    }
}

/// Creates metrics and registers them.
pub(crate) struct Registration<'a> {
    registry: &'a Registry,
    pod: &'a str,
    names: &'a Mutex<Vec<String>>,
}

impl Registration<'_> {
    fn registered<M: Collector + Clone + 'static>(&self, metric: M) -> Result<M, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        let with_labels = |desc: &Desc| format!("{}{{{}}}", desc.fq_name, desc.variable_labels.join(","));
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(metric.desc().into_iter().map(with_labels));
        Ok(metric)
    }

    fn of_pod(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        Ok(self.gauges(name, help, &["pod_name"])?.with_label_values(&[self.pod]))
    }

    pub(crate) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Registers a gauge whose series are all rewritten at once.
    pub(crate) fn gauge_table(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<SeriesTable, prometheus::Error> {
        self.registered(SeriesTable::new(name, help, labels, MetricType::GAUGE)?)
    }

    /// Registers a counter whose series are all rewritten at once.
    pub(crate) fn counter_table(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<SeriesTable, prometheus::Error> {
        self.registered(SeriesTable::new(name, help, labels, MetricType::COUNTER)?)
    }

    pub(crate) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(crate) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(options, labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n12_metrics_have_the_label_cluster_only_if_it_has_a_name() {
        let lines = |cluster: Option<&str>, beginning: &str| -> Vec<String> {
            let cluster = cluster.map(ToOwned::to_owned);
            let metrics =
                Metrics::new(&Identity { version: "9".into(), pod: "pod-1".into(), cluster }).unwrap();
            let text = metrics.text().unwrap();
            text.lines().filter(|line| line.starts_with(beginning)).map(ToOwned::to_owned).collect()
        };
        assert_eq!(
            lines(None, "netipallocation_controller_info{"),
            [r#"netipallocation_controller_info{pod_name="pod-1",version="9"} 1"#]
        );
        let named = lines(Some("prod"), "netipallocation_");
        assert!(named.iter().all(|line| line.contains(r#"cluster="prod""#)), "{named:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_age_of_a_watch_grows_until_it_brings_something() {
        let metrics = Metrics::new(&Identity::default()).unwrap();
        let ages = || {
            let text = metrics.text().unwrap();
            let ages = text.lines().filter(|line| line.starts_with("ip_address_controller_watch_age"));
            ages.map(|line| line.replace("ip_address_controller_watch_age_seconds", "")).collect::<Vec<_>>()
        };
        let pods = metrics.of_watch("Pod");
        assert_eq!(ages(), [""; 0], "the cluster may not have this kind");
        pods.listed();
        tokio::time::advance(Duration::from_secs(7)).await;
        pods.listed();
        assert_eq!(ages(), [r#"{kind="Pod"} 7"#], "a list does not show that the watch works");
        pods.heard();
        assert_eq!(ages(), [r#"{kind="Pod"} 0"#]);
        drop(pods);
        assert_eq!(ages(), [""; 0], "the kind is no longer watched");
    }
}
