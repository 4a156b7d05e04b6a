//! A TCP proxy on loopback that can freeze its connections: they stay open, but carry no more data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A proxy to a loopback port. It stops accepting connections when this value is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// The port on which the proxy listens.
    pub port: u16,
    frozen_before: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy that forwards to the port `to`.
    pub async fn start(to: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let frozen_before: Arc<AtomicU64> = Arc::default();
        let connections: Arc<AtomicU64> = Arc::default();
        let (frozen, count) = (Arc::clone(&frozen_before), Arc::clone(&connections));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(forward(from_client, to_server, number, Arc::clone(&frozen)));
                tokio::spawn(forward(from_server, to_client, number, Arc::clone(&frozen)));
            }
        });
        Ok(Self { port, frozen_before, connections, task })
    }

    /// Freezes all current connections. It closes none of them. New connections work.
    pub fn freeze(&self) {
        self.frozen_before.store(self.connections.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    number: u64,
    frozen_before: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count) = from.read(&mut buffer).await {
        if number <= frozen_before.load(Ordering::SeqCst) {
            // Keep both ends open, and forward nothing.
            std::future::pending::<()>().await;
        }
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
