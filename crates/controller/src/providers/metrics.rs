//! Metrics about calls to providers, under the names that users of the Python original and of FLIPOP know.
//!
//! In: every call, with the object that it was for. Out: the metrics. What belongs to an object goes when the object does.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drivers::DriverError;
use plan::{PoolKey, Provider};
use prometheus::{DEFAULT_BUCKETS, HistogramVec, IntCounterVec};

use crate::metrics::{ERROR, Metrics, SUCCESS};

/// The metrics about calls. Copies share what they count.
#[derive(Clone)]
pub struct ProviderMetrics(Arc<Inner>);

struct Inner {
    gcp_errors: IntCounterVec,
    cloud_errors: IntCounterVec,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    /// Who has called whom for what, so that it can go with its object.
    callers: Mutex<BTreeSet<(PoolKey, String, &'static str)>>,
}

impl ProviderMetrics {
    /// Nobody was called yet.
    pub fn new(process: &Metrics) -> Result<Self, prometheus::Error> {
        let new = process.registration();
        Ok(Self(Arc::new(Inner {
            gcp_errors: new.counters(
                "netipallocation_gcp_api_errors_total",
                "Calls to Google Cloud that failed",
                &["operation", "error_type"],
            )?,
            cloud_errors: new.counters(
                "ip_address_controller_cloud_api_errors_total",
                "Calls to any cloud that failed",
                &["provider", "operation", "error_type"],
            )?,
            calls: new.counters(
                "flipop_providers_calls_total",
                "Calls to providers",
                &["provider", "call", "outcome", "kind", "namespace", "name"],
            )?,
            call_seconds: new.histograms(
                "flipop_providers_call_duration_seconds",
                "How long calls to providers took",
                &["provider", "call", "kind", "namespace", "name"],
                DEFAULT_BUCKETS,
            )?,
            callers: Mutex::default(),
        })))
    }

    /// A cloud did not do or tell what it was asked.
    pub fn failed(&self, provider: Provider, operation: &str, error: &DriverError) {
        self.0.cloud_errors.with_label_values(&[&*provider.to_string(), operation, error.kind()]).inc();
        if provider == Provider::Gcp {
            self.0.gcp_errors.with_label_values(&[operation, error.kind()]).inc();
        }
    }

    /// A provider was called, for this object where it was for one. The call's name is in the words of FLIPOP.
    pub fn called(
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
        let [kind, namespace, name] = words(object);
        let outcome = if is_done { SUCCESS } else { ERROR };
        self.0.calls.with_label_values(&[provider, call, outcome, kind, namespace, name]).inc();
        let labels = [provider, call, kind, namespace, name];
        self.0.call_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Takes the calls for objects that are gone away. Those that it never had are not missed.
    pub(crate) fn forget_objects(&self, is_gone: impl Fn(&PoolKey) -> bool) {
        let mut callers = self.0.callers.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, provider, call) in callers.extract_if(.., |(key, ..)| is_gone(key)) {
            let [kind, namespace, name] = words(Some(&key));
            for outcome in [SUCCESS, ERROR] {
                let _ = self.0.calls.remove_label_values(&[&*provider, call, outcome, kind, namespace, name]);
            }
            let _ = self.0.call_seconds.remove_label_values(&[&*provider, call, kind, namespace, name]);
        }
    }
}

/// What labels say of an object.
fn words(object: Option<&PoolKey>) -> [&str; 3] {
    object.map_or([""; 3], |key| [key.kind, &*key.namespace, &*key.name])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Identity;

    #[test]
    fn n12_errors_of_google_cloud_are_counted_under_the_old_name_and_with_those_of_all_clouds() {
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
