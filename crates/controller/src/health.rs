//! Serves `/healthz`, `/readyz` and `/metrics`.

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::bind_address::BindAddress;
use crate::metrics::Metrics;

/// Serves at both addresses, for ever. Where metrics are off, no address serves them.
pub async fn serve(metrics: &Metrics, health_at: &BindAddress, metrics_at: &BindAddress) -> Result<()> {
    let has_metrics = *metrics_at != BindAddress::Off;
    // Probes and metrics may share an address: those who look for metrics beside the probes find them there anyway.
    let metrics_at = if metrics_at == health_at { &BindAddress::Off } else { metrics_at };
    tokio::try_join!(
        serve_at(health_at, health_routes(metrics, has_metrics)),
        serve_at(metrics_at, metrics_route(metrics))
    )?;
    Ok(())
}

async fn serve_at(address: &BindAddress, routes: Router) -> Result<()> {
    let listener = address.bind().await.with_context(|| format!("listening at {address}"))?;
    match listener {
        Some(listener) => Ok(axum::serve(listener, routes).await?),
        None => std::future::pending().await,
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
fn health_routes(metrics: &Metrics, has_metrics: bool) -> Router {
    let of_readiness = metrics.clone();
    let readiness = move || async move {
        match of_readiness.is_ready() {
            true => (StatusCode::OK, "ok"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not everything that is watched has been read yet"),
        }
    };
    let routes = if has_metrics { metrics_route(metrics) } else { Router::new() };
    routes.route("/healthz", get(async || "ok")).route("/readyz", get(readiness))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Identity;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// An address of this machine that nobody listens at.
    async fn free() -> BindAddress {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        BindAddress::At { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() }
    }

    /// The status of a path at an address, once something answers there.
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

    /// What probes and metrics answer at these two addresses.
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

    #[tokio::test]
    async fn v6_probes_and_metrics_are_where_their_addresses_say() {
        let (health_at, metrics_at) = (free().await, free().await);
        assert_eq!(served(&health_at, &metrics_at).await, [200, 503, 200, 404, 404, 200]);
        assert_eq!(served(&health_at, &health_at).await[..3], [200, 503, 200], "both at one address");
        assert_eq!(
            served(&health_at, &BindAddress::Off).await,
            [200, 503, 404],
            "metrics are off everywhere"
        );
        assert_eq!(served(&BindAddress::Off, &metrics_at).await, [404, 404, 200]);
    }
}
