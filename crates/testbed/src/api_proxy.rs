//! An HTTP proxy in front of the apiserver that can hold back the events of all watches.
//!
//! In: a kubeconfig; the proxy sends all requests with its identity. Out: a kubeconfig that leads to the proxy. While
//! the watches are silent, their connections stay open without events, and other requests work.

use std::path::{Path, PathBuf};

use anyhow::Result;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http_body_util::BodyExt;
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::control_plane::client_of;

/// A proxy. It stops when this value is dropped.
#[derive(Debug)]
pub struct ApiProxy {
    port: u16,
    is_silent: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiProxy {
    /// Starts a proxy to the apiserver of a kubeconfig.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let (client, listener) = (client_of(kubeconfig).await?, TcpListener::bind(("127.0.0.1", 0)).await?);
        let port = listener.local_addr()?.port();
        let (is_silent, silence) = watch::channel(false);
        let forward = move |request: Request| forward(client.clone(), silence.clone(), request);
        let app = axum::Router::new().fallback(forward);
        let task = tokio::spawn(async move {
            // The server runs until this task is aborted.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { port, is_silent, task })
    }

    /// Holds back the events of all watches, or sends everything that was held back.
    pub fn silence_watches(&self, is_silent: bool) {
        self.is_silent.send_replace(is_silent);
    }

    /// Writes a kubeconfig that leads to the proxy into a folder.
    pub fn kubeconfig(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join("through-proxy.kubeconfig");
        let server = format!("http://127.0.0.1:{}", self.port);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": server}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

async fn forward(client: Client, silence: watch::Receiver<bool>, request: Request) -> Response {
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let (mut head, body) = request.into_parts();
    // The client of the apiserver sets this header itself.
    head.headers.remove(axum::http::header::HOST);
    head.uri = head.uri.path_and_query().and_then(|path| path.as_str().parse().ok()).unwrap_or_default();
    let Ok(body) = body.collect().await else { return StatusCode::BAD_REQUEST.into_response() };
    let request = http::Request::from_parts(head, kube::client::Body::from(body.to_bytes()));
    let Ok(response) = client.send(request).await else { return StatusCode::BAD_GATEWAY.into_response() };
    let (head, body) = response.into_parts();
    let data = body.into_data_stream();
    let body = match is_watch {
        true => Body::from_stream(data.then(move |part| {
            let mut silence = silence.clone();
            async move {
                // Fails only if the proxy is gone.
                let _ = silence.wait_for(|is_silent| !is_silent).await;
                part
            }
        })),
        false => Body::from_stream(data),
    };
    Response::from_parts(head, body)
}
