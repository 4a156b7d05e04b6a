//! Serves `/healthz`, `/readyz` and `/metrics`.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// Serves on both ports, for ever.
pub async fn serve(metrics: &Metrics, health_port: u16, metrics_port: u16) -> Result<()> {
    let (health_listener, metrics_listener) = (listen(health_port).await?, listen(metrics_port).await?);
    let serve_metrics = async { axum::serve(metrics_listener, metrics_route(metrics)).await };
    let serve_health = async { axum::serve(health_listener, health_routes(metrics)).await };
    tokio::try_join!(serve_metrics, serve_health)?;
    Ok(())
}

/// Listens in both families, where there are both: a cluster may have either.
pub async fn listen(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
}

fn metrics_route(metrics: &Metrics) -> Router {
    let metrics = metrics.clone();
    let text = move || async move {
        metrics.text().map_err(|error| {
            tracing::error!(%error, "metrics can't be written");
            StatusCode::INTERNAL_SERVER_ERROR
        })
    };
    Router::new().route("/metrics", get(text))
}

/// Those who look for metrics beside the probes find them there too.
fn health_routes(metrics: &Metrics) -> Router {
    let of_readiness = metrics.clone();
    let readiness = move || async move {
        match of_readiness.is_ready() {
            true => (StatusCode::OK, "ok"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not everything that is watched has been read yet"),
        }
    };
    metrics_route(metrics).route("/healthz", get(async || "ok")).route("/readyz", get(readiness))
}
