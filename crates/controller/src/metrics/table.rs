//! Metrics whose series are all rewritten at once.
//!
//! In: all series of a metric. Out: the metric, when Prometheus scrapes it. A vector of the metrics library stores name,
//! help and label names with each series. In a large cluster, tens of thousands of series are derived from the
//! index. A table stores only their label values and values, and is faster to rewrite. It never adds to the value of a series.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// The values of the labels of a series, in the order of the registration, and its value.
type Series = (Box<[Arc<str>]>, i64);

/// All series of a metric. Clones share them.
#[derive(Clone)]
pub(crate) struct SeriesTable(Arc<Inner>);

struct Inner {
    desc: Desc,
    kind: MetricType,
    series: Mutex<Vec<Series>>,
}

impl SeriesTable {
    /// A table without series.
    pub(super) fn new(
        name: &str,
        help: &str,
        labels: &[&str],
        kind: MetricType,
    ) -> Result<Self, prometheus::Error> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())?;
        Ok(Self(Arc::new(Inner { desc, kind, series: Mutex::default() })))
    }

    /// Removes all series. The caller blocks scrapes until it has added the new ones.
    pub(crate) fn reset(&self) {
        self.series().clear();
    }

    /// Adds a series. If several have the same labels, the smallest value counts.
    pub(crate) fn add<const N: usize>(&self, labels: [&Arc<str>; N], value: i64) {
        self.series().push((Box::new(labels.map(Arc::clone)), value));
    }

    fn series(&self) -> MutexGuard<'_, Vec<Series>> {
        self.0.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for SeriesTable {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Inner { desc, kind, .. } = &*self.0;
        let names = &desc.variable_labels;
        // Prometheus expects the labels in the order of their names.
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by_key(|at| &names[*at]);
        let series = self.series();
        let mut sorted: Vec<&Series> = series.iter().collect();
        sorted.sort();
        sorted.dedup_by(|one, other| one.0 == other.0);
        let metric = |(values, value): &Series| {
            let pair = |at: &usize| {
                let mut pair = LabelPair::default();
                pair.set_name(names[*at].clone());
                pair.set_value(values.get(*at).map(ToString::to_string).unwrap_or_default());
                pair
            };
            let mut metric = Metric::from_label(order.iter().map(pair).collect());
            if *kind == MetricType::COUNTER {
                let mut counter = Counter::default();
                counter.set_value(*value as f64);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(*value as f64);
                metric.set_gauge(gauge);
            }
            metric
        };
        let mut family = MetricFamily::default();
        family.set_name(desc.fq_name.clone());
        family.set_help(desc.help.clone());
        family.set_field_type(*kind);
        family.set_metric(sorted.into_iter().map(metric).collect());
        vec![family]
    }
}
