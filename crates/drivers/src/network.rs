//! Network connections to the providers.
//!
//! In: the fence, which says whether a change may be sent now. Out: an [`HttpService`]. Reads and changes use separate
//! connections. A connection for changes checks the fence before every write to its socket, which is the last possible
//! moment. So a process that was suspended, and resumes after another process has become the leader, sends nothing. If
//! the provider does not acknowledge what the socket has accepted, the kernel gives up after a bounded time, even if
//! the process has ended.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{Request, Response, Uri, uri::Scheme};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tower::{BoxError, ServiceExt};

use crate::http::{CALL_SECONDS_MAX, HttpService, is_read};

/// The longest response. A page of a listing has at most a few megabytes.
const RESPONSE_BYTES_MAX: usize = 32 << 20;

/// The fence: whether a change may be sent now.
pub type MaySend = Arc<dyn Fn() -> bool + Send + Sync>;

/// An HTTP service over the network. The kernel resends unacknowledged data for at most `linger`.
pub fn network(may_leave: MaySend, linger: Duration) -> Result<HttpService, BoxError> {
    let reads = connections(Arc::new(|| true), linger)?;
    let changes = connections(may_leave, linger)?;
    let send = move |request: Request<Bytes>| {
        let service = if is_read(&request) { &reads } else { &changes };
        service.clone().oneshot(request)
    };
    Ok(HttpService::new(tower::service_fn(send)))
}

/// A service with its own connections. It checks the fence before every write.
fn connections(may_leave: MaySend, linger: Duration) -> Result<HttpService, BoxError> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(Duration::from_secs(CALL_SECONDS_MAX)));
    tcp.set_tcp_user_timeout(Some(linger));
    let proxies = Arc::new(Matcher::from_env());
    let connect = move |to: Uri| connect(tcp.clone(), Arc::clone(&proxies), Arc::clone(&may_leave), to);
    let connector = HttpsConnectorBuilder::new()
        .try_with_platform_verifier()?
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tower::service_fn(connect));
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let send = move |request: Request<Bytes>| {
        let client = client.clone();
        async move {
            let answer = client.request(request.map(Full::new)).await.map_err(with_causes)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
                Ok(_) => format!("the response has more than {RESPONSE_BYTES_MAX} bytes").into(),
                Err(error) => with_causes(&*error),
            })?;
            Ok(Response::from_parts(head, body.to_bytes()))
        }
    };
    Ok(HttpService::new(tower::service_fn(send)))
}

/// Connects, through the proxy that the environment variables name for this URL, if any.
async fn connect(
    tcp: HttpConnector,
    proxies: Arc<Matcher>,
    may_leave: MaySend,
    to: Uri,
) -> Result<Asking, BoxError> {
    let stream = match proxies.intercept(&to) {
        None => tcp.oneshot(to).await?,
        Some(proxy) if proxy.uri().scheme() != Some(&Scheme::HTTP) => {
            let scheme = proxy.uri().scheme_str().unwrap_or_default();
            return Err(format!("the proxy scheme {scheme} is not supported: use http").into());
        }
        Some(proxy) => {
            let tunnel = Tunnel::new(proxy.uri().clone(), tcp);
            let tunnel = match proxy.basic_auth() {
                Some(password) => tunnel.with_auth(password.clone()),
                None => tunnel,
            };
            tunnel.oneshot(to).await?
        }
    };
    Ok(Asking { stream, may_leave })
}

/// The message of an error with its sources. Errors of the HTTP client say what failed; the reason is in their sources.
fn with_causes(error: impl std::error::Error) -> BoxError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text.into()
}

/// A connection that checks the fence before every write.
struct Asking {
    stream: TokioIo<TcpStream>,
    may_leave: MaySend,
}

impl Asking {
    fn ask(&self) -> io::Result<()> {
        if (self.may_leave)() {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "request not sent: the lease of this replica is no longer valid",
        ))
    }
}

impl Read for Asking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl Write for Asking {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.ask()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.ask()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connection for Asking {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ReadOnly;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    /// A server that keeps its connections open, and the requests that it receives.
    async fn server() -> (String, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (to, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let to = to.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1_000];
                    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                        to.send(String::from_utf8_lossy(&buffer[..length]).into_owned()).unwrap();
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                    }
                });
            }
        });
        (url, heard)
    }

    #[tokio::test]
    async fn a_response_without_end_fails() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            _ = stream.read(&mut [0; 1_024]).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            // Ends when the client closes the connection.
            while stream.write_all(&[b' '; 1 << 16]).await.is_ok() {}
        });
        let network = network(Arc::new(|| true), Duration::from_secs(5)).unwrap();
        let error = network.oneshot(Request::get(url).body(Bytes::new()).unwrap()).await.unwrap_err();
        assert_eq!(error.to_string(), "the response has more than 33554432 bytes");
    }

    #[tokio::test]
    async fn a_closed_fence_blocks_changes_on_open_connections_too() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (url, mut heard) = server().await;
        let may = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&may);
        let may_leave: MaySend = Arc::new(move || asked.load(Ordering::SeqCst));
        let network = network(may_leave, Duration::from_secs(5)).unwrap();
        let send = |method| {
            let request = Request::builder().method(method).uri(&url).body(Bytes::from("{}")).unwrap();
            network.clone().oneshot(request)
        };
        assert_eq!(send("POST").await.unwrap().body(), "ok");
        assert!(heard.recv().await.unwrap().starts_with("POST"));

        may.store(false, Ordering::SeqCst);
        for method in ["POST", "DELETE", "PATCH"] {
            let error = send(method).await.unwrap_err().to_string();
            assert!(
                error.contains("request not sent: the lease of this replica is no longer valid"),
                "{error}"
            );
        }
        assert!(send("GET").await.is_ok(), "reads are always allowed");
        assert!(
            heard.recv().await.unwrap().starts_with("GET"),
            "the server received a change, although the fence was closed"
        );
        let mut marked = Request::post(&url).body(Bytes::from("{}")).unwrap();
        marked.extensions_mut().insert(ReadOnly);
        assert!(network.clone().oneshot(marked).await.is_ok(), "so are requests that are marked as reads");
        assert!(heard.recv().await.unwrap().starts_with("POST"));

        may.store(true, Ordering::SeqCst);
        assert!(send("POST").await.is_ok());
    }
}
