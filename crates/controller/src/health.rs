//! Serves `/healthz`, `/readyz` and `/metrics`.
//!
//! In: the metrics and two bind addresses. Out: HTTP responses. The process is ready after it has read everything that
//! it watches; a standby replica is ready too. It is healthy while its reconcile loops run.

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::bind_address::BindAddress;
use crate::metrics::Metrics;

/// Serves probes and metrics at `health_at`, and metrics at `metrics_at`, until a server fails. If `metrics_at` is off,
/// `health_at` serves only probes.
pub async fn serve(metrics: &Metrics, health_at: &BindAddress, metrics_at: &BindAddress) -> Result<()> {
    let has_metrics = *metrics_at != BindAddress::Off;
    // If both addresses are the same, one server is enough: the routes of the probes include metrics.
    let metrics_at = if metrics_at == health_at { &BindAddress::Off } else { metrics_at };
    tokio::try_join!(
        serve_at(health_at, health_routes(metrics, has_metrics)),
        serve_at(metrics_at, metrics_route(metrics))
    )?;
    Ok(())
}

async fn serve_at(address: &BindAddress, routes: Router) -> Result<()> {
    let listener = address.bind().await.with_context(|| format!("listening on {address}"))?;
    match listener {
        Some(listener) => Ok(axum::serve(listener, routes).await?),
        None => std::future::pending().await,
    }
}

fn metrics_route(metrics: &Metrics) -> Router {
    let metrics = metrics.clone();
    let text = move || async move {
        metrics.text().map_err(|error| {
            tracing::error!(%error, "failed to encode metrics");
            StatusCode::INTERNAL_SERVER_ERROR
        })
    };
    Router::new().route("/metrics", get(text))
}

/// The routes of the probes. They include metrics, because existing scrape configurations use this port.
fn health_routes(metrics: &Metrics, has_metrics: bool) -> Router {
    let for_readiness = metrics.clone();
    let readiness = move || async move {
        match for_readiness.is_ready() {
            true => (StatusCode::OK, "ok"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "initial list of watched resources is incomplete"),
        }
    };
    let for_health = metrics.clone();
    let health = move || async move {
        if for_health.is_healthy() {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "a reconcile loop has not run for 30 seconds")
        }
    };
    let routes = if has_metrics { metrics_route(metrics) } else { Router::new() };
    routes.route("/healthz", get(health)).route("/readyz", get(readiness))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Identity;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// A loopback address with a free port.
    async fn free() -> BindAddress {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        BindAddress::At { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() }
    }

    /// The HTTP status of a path. Retries until a server listens at the address.
    async fn status(address: &BindAddress, path: &str) -> u16 {
        let mut stream = loop {
            match TcpStream::connect(address.to_string()).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// The HTTP statuses of `/healthz`, `/readyz` and `/metrics` at each of the two addresses that is not off.
    async fn served(health_at: &BindAddress, metrics_at: &BindAddress) -> Vec<u16> {
        let metrics = Metrics::new(&Identity::default()).unwrap();
        let ask = async {
            let mut found = Vec::new();
            for address in [health_at, metrics_at].into_iter().filter(|address| **address != BindAddress::Off)
            {
                for path in ["/healthz", "/readyz", "/metrics"] {
                    found.push(status(address, path).await);
                }
            }
            found
        };
        tokio::select! {
            found = ask => found,
            ended = serve(&metrics, health_at, metrics_at) => panic!("{ended:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn healthz_fails_while_a_loop_hangs() {
        let metrics = Metrics::new(&Identity::default()).unwrap();
        let (first, second) = (metrics.of_loop("first"), metrics.of_loop("second"));
        first.beat();
        second.beat();
        assert!(metrics.is_healthy());
        tokio::time::advance(Duration::from_secs(30)).await;
        first.beat();
        assert!(!metrics.is_healthy(), "the second loop hangs");
        second.beat();
        assert!(metrics.is_healthy());
    }

    #[tokio::test]
    async fn v6_probes_and_metrics_are_served_at_their_addresses() {
        let (health_at, metrics_at) = (free().await, free().await);
        assert_eq!(served(&health_at, &metrics_at).await, [200, 503, 200, 404, 404, 200]);
        assert_eq!(served(&health_at, &health_at).await[..3], [200, 503, 200], "both share an address");
        assert_eq!(
            served(&health_at, &BindAddress::Off).await,
            [200, 503, 404],
            "metrics are off everywhere"
        );
        assert_eq!(served(&BindAddress::Off, &metrics_at).await, [404, 404, 200]);
    }
}
