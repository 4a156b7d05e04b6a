//! Serves a fake over HTTP on loopback, with or without TLS: a thin shell around its service.

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

/// A fake that answers on a loopback port until this is dropped.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    scheme: &'static str,
    task: JoinHandle<()>,
}

impl Server {
    /// The server's address as a URL without a trailing slash.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
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
    Ok(Server { address, scheme: "http", task: tokio::spawn(serve_on(listener, fake.service())) })
}

/// Starts serving with TLS; port 0 chooses a free one.
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
    // An accept loop only ends with the task; a failed connection is the client's to notice.
    let _ = axum::serve(listener, app).await;
}

/// A certificate for loopback that nobody trusts unless told to.
pub struct Certificate {
    /// What a client has to trust.
    pub pem: String,
    acceptor: TlsAcceptor,
}

impl Certificate {
    /// A new one.
    pub fn new() -> anyhow::Result<Self> {
        let key = rcgen::KeyPair::generate()?;
        let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?;
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], secret)?;
        Ok(Self { pem: certificate.pem(), acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// The longest that a client may take to agree on a secret; others wait for it meanwhile.
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
            // Whoever does not trust us goes away, which is theirs to tell.
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

/// A body that breaks off, which makes the server drop the connection: the nearest thing to a lost reply over HTTP.
fn broken() -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::once(async { Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)) })
}
