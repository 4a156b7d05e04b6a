//! Serves a fake over HTTP on loopback: a thin shell around its service.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::Service;

use super::{Fake, FakeService, Machine};

/// A fake that answers on a loopback port until this is dropped.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// The server's address as a URL without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts serving; port 0 chooses a free one.
pub async fn serve<M: Machine>(fake: &Fake<M>, port: u16) -> std::io::Result<Server> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let service = fake.service();
    let app = axum::Router::new().fallback(move |request: Request| forward(service.clone(), request));
    let task = tokio::spawn(async move {
        // An accept loop only ends with the task; a failed connection is the client's to notice.
        let _ = axum::serve(listener, app).await;
    });
    Ok(Server { address, task })
}

async fn forward<M: Machine>(mut service: FakeService<M>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    match service.call(::http::Request::from_parts(parts, body)).await {
        Ok(answer) => answer.map(Body::from),
        Err(_) => Response::new(Body::from_stream(broken())),
    }
}

/// A body that breaks off, which makes the server drop the connection: the nearest thing to a lost reply over HTTP.
fn broken() -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::once(async { Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)) })
}
