//! Serves a fake over HTTP on loopback, with or without TLS.
//!
//! In: HTTP requests. Out: the answers of the fake's service. A fault that loses an answer closes the connection. This
//! module never changes a request or an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::Service;

use super::machine::Machine;
use super::service::{Fake, FakeService};

/// A fake that listens on a loopback port until this value is dropped.
#[derive(Debug)]
pub struct Server {
    /// The socket address that the server listens on.
    pub address: SocketAddr,
    scheme: &'static str,
    task: JoinHandle<()>,
}

impl Server {
    /// Returns the server's URL without a trailing slash.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a server. Port 0 selects a free port.
pub async fn serve<M: Machine>(fake: &Fake<M>, port: u16) -> std::io::Result<Server> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    Ok(Server { address, scheme: "http", task: tokio::spawn(serve_on(listener, fake.service())) })
}

/// Starts a server with TLS. Port 0 selects a free port.
pub async fn serve_tls<M: Machine>(
    fake: &Fake<M>,
    port: u16,
    certificate: &Certificate,
) -> std::io::Result<Server> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let listener = TlsListener { listener, acceptor: certificate.acceptor.clone() };
    Ok(Server { address, scheme: "https", task: tokio::spawn(serve_on(listener, fake.service())) })
}

async fn serve_on<M: Machine, L: axum::serve::Listener>(listener: L, service: FakeService<M>)
where
    L::Addr: std::fmt::Debug,
{
    let app = axum::Router::new().fallback(move |request: Request| forward(service.clone(), request));
    // The result can be ignored: the server runs until its task is aborted, and clients report failed connections.
    let _ = axum::serve(listener, app).await;
}

/// A self-signed certificate for loopback. A client trusts it only if the test configures that.
pub struct Certificate {
    /// The certificate in PEM format, for the client's trust store.
    pub pem: String,
    acceptor: TlsAcceptor,
}

impl Certificate {
    /// Creates a certificate.
    pub fn new() -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], secret)?;
        Ok(Self { pem: made.cert.pem(), acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// The maximum duration of a TLS handshake. Other clients wait during a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
            // A client that does not trust the certificate closes the connection and reports the error itself.
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_MAX, self.acceptor.accept(stream)).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn forward<M: Machine>(mut service: FakeService<M>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    match service.call(::http::Request::from_parts(parts, body)).await {
        Ok(answer) => answer.map(Body::from),
        Err(_) => Response::new(Body::from_stream(broken())),
    }
}

/// A body that fails at once. The server then drops the connection, which is as close to a lost answer as HTTP gets.
fn broken() -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::once(async { Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)) })
}
