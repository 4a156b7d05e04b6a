//! Metrics about calls to providers, with the names of the Python controller's and FLIPOP's metrics.
//!
//! In: every call, and the object for which the controller made it. Out: the metrics. When an object is deleted, its
//! series are removed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drivers::DriverError;
use plan::{PoolKey, Provider};
use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec};

use crate::metrics::{ERROR, Metrics, SUCCESS};

/// The metrics about calls. Clones share the same metrics.
#[derive(Clone)]
pub struct ProviderMetrics(Arc<Inner>);

struct Inner {
    gcp_errors: IntCounterVec,
    cloud_errors: IntCounterVec,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    /// Objects, providers and calls that have series, so that the series can be removed together with the object.
    callers: Mutex<BTreeSet<(PoolKey, String, &'static str)>>,
}

impl ProviderMetrics {
    /// Registers the metrics.
    pub fn new(process: &Metrics) -> Result<Self, prometheus::Error> {
        let new = process.registration();
        Ok(Self(Arc::new(Inner {
            gcp_errors: new.counters(
                "netipallocation_gcp_api_errors_total",
                "Failed calls to Google Cloud",
                &["operation", "error_type"],
            )?,
            cloud_errors: new.counters(
                "ip_address_controller_cloud_api_errors_total",
                "Failed calls to all clouds, including those in netipallocation_gcp_api_errors_total",
                &["provider", "operation", "error_type"],
            )?,
            calls: new.counters(
                "flipop_providers_calls_total",
                "Calls to providers, by outcome (success or error)",
                &["provider", "call", "outcome", "kind", "namespace", "name"],
            )?,
            call_seconds: new.histograms(
                "flipop_providers_call_duration_seconds",
                "Duration of calls to providers in seconds",
                &["provider", "call", "kind", "namespace", "name"],
                DEFAULT_BUCKETS,
            )?,
            callers: Mutex::default(),
        })))
    }

    /// Counts a failed call to a cloud.
    pub fn failed(&self, provider: Provider, operation: &str, error: &DriverError) {
        self.0.cloud_errors.with_label_values(&[&*provider.to_string(), operation, error.kind()]).inc();
        if provider == Provider::Gcp {
            self.0.gcp_errors.with_label_values(&[operation, error.kind()]).inc();
        }
    }

    /// Counts a call to a provider. `call` is FLIPOP's name for it. `object` is absent if the call serves a whole
    /// account.
    pub fn record_call(
        &self,
        provider: &str,
        call: &'static str,
        object: Option<&PoolKey>,
        is_done: bool,
        took: Duration,
    ) {
        if let Some(key) = object {
            let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
            callers.insert((key.clone(), provider.to_owned(), call));
        }
        let [kind, namespace, name] = object_labels(object);
        let outcome = if is_done { SUCCESS } else { ERROR };
        self.0.calls.with_label_values(&[provider, call, outcome, kind, namespace, name]).inc();
        let labels = [provider, call, kind, namespace, name];
        self.0.call_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Removes the series of calls for deleted objects. Some of the series may not exist.
    pub(crate) fn forget_objects(&self, is_deleted: impl Fn(&PoolKey) -> bool) {
        let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, provider, call) in callers.extract_if(.., |(key, ..)| is_deleted(key)) {
            let [kind, namespace, name] = object_labels(Some(&key));
            for outcome in [SUCCESS, ERROR] {
                let _ = self.0.calls.remove_label_values(&[&*provider, call, outcome, kind, namespace, name]);
            }
            let _ = self.0.call_seconds.remove_label_values(&[&*provider, call, kind, namespace, name]);
        }
    }
}

/// The values of the labels `kind`, `namespace` and `name`. They are empty without an object.
fn object_labels(object: Option<&PoolKey>) -> [&str; 3] {
    object.map_or([""; 3], |key| [key.kind, &*key.namespace, &*key.name])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Identity;

    #[test]
    fn n12_google_cloud_errors_count_under_the_old_and_the_new_name() {
        let process = Metrics::new(&Identity::default()).unwrap();
        let metrics = ProviderMetrics::new(&process).unwrap();
        metrics.failed(Provider::Gcp, "attach", &DriverError::Conflict("held".into()));
        metrics.failed(Provider::DigitalOcean, "list", &DriverError::Unavailable("gone".into()));
        let text = process.text().unwrap();
        let lines = |beginning: &str| -> Vec<&str> {
            text.lines().filter(|line| line.starts_with(beginning)).collect()
        };
        assert_eq!(
            lines("netipallocation_gcp_api_errors_total{"),
            [r#"netipallocation_gcp_api_errors_total{error_type="Conflict",operation="attach"} 1"#]
        );
        assert_eq!(lines("ip_address_controller_cloud_api_errors_total{").len(), 2);
    }
}
