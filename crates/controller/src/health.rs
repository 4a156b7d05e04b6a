//! `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use tokio::net::TcpListener;

/// What probes and Prometheus are told.
#[derive(Clone)]
pub struct Health {
    is_ready: Arc<AtomicBool>,
    registry: Registry,
    ready: IntGauge,
}

impl Health {
    /// Not ready yet.
    pub fn new(version: &str) -> Result<Self> {
        let registry = Registry::new();
        let info = Opts::new("netipallocation_controller_info", "The running controller's version");
        let info = IntGaugeVec::new(info, &["version"])?;
        info.with_label_values(&[version]).set(1);
        let ready =
            IntGauge::new("netipallocation_controller_ready", "Whether all that is watched has been read")?;
        registry.register(Box::new(info))?;
        registry.register(Box::new(ready.clone()))?;
        Ok(Self { is_ready: Arc::default(), registry, ready })
    }

    /// Says whether all that is watched has been read.
    pub fn set_ready(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
        self.ready.set(i64::from(is_ready));
    }

    /// Serves on both ports, for ever.
    pub async fn serve(&self, health_port: u16, metrics_port: u16) -> Result<()> {
        let health = TcpListener::bind(("0.0.0.0", health_port)).await?;
        let metrics = TcpListener::bind(("0.0.0.0", metrics_port)).await?;
        let serve_metrics = async { axum::serve(metrics, self.metrics()).await };
        let serve_health = async { axum::serve(health, self.health()).await };
        tokio::try_join!(serve_metrics, serve_health)?;
        Ok(())
    }

    fn metrics(&self) -> Router {
        let registry = self.registry.clone();
        let text = move || async move {
            TextEncoder::new().encode_to_string(&registry.gather()).map_err(|error| {
                tracing::error!(%error, "metrics can't be written");
                StatusCode::INTERNAL_SERVER_ERROR
            })
        };
        Router::new().route("/metrics", get(text))
    }

    fn health(&self) -> Router {
        let is_ready = Arc::clone(&self.is_ready);
        let readiness = move || async move {
            match is_ready.load(Ordering::Relaxed) {
                true => (StatusCode::OK, "ok"),
                false => {
                    (StatusCode::SERVICE_UNAVAILABLE, "not everything that is watched has been read yet")
                }
            }
        };
        self.metrics().route("/healthz", get(async || "ok")).route("/readyz", get(readiness))
    }
}
