//! The connections of watches and lists to the apiserver.
//!
//! In: the configuration of the client. Out: a client whose requests share one HTTP/2 connection. The client sends a
//! ping every few seconds. So it notices a dead apiserver within ten seconds, although a watch may be silent for
//! minutes. A list does not wait for a response on a connection that died while it was idle. A server that only speaks
//! HTTP/1.1 gets a connection for each watch, and the kernel checks whether that connection is alive.

use std::time::Duration;

use anyhow::Result;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// The pause between two pings.
const PING_EVERY: Duration = Duration::from_secs(3);

/// A connection without a response to a ping for this long is dead.
const PONG_MAX: Duration = Duration::from_secs(4);

/// The longest time until a connection is established, TLS included.
const CONNECT_MAX: Duration = Duration::from_secs(8);

/// The longest time until a dead connection is noticed.
pub const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// A client for watches or lists, with a connection of its own. It has no timeout for responses.
pub fn client(config: &Config) -> Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(PING_EVERY));
    tcp.set_keepalive_interval(Some(Duration::from_secs(1)));
    tcp.set_keepalive_retries(Some(3));
    tcp.set_tcp_user_timeout(Some(PING_EVERY + PONG_MAX));
    let mut connector =
        HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        connector =
            connector.with_server_name_resolver(FixedServerNameResolver::new(name.clone().try_into()?));
    }
    let mut connector = TimeoutConnector::new(connector.enable_http1().enable_http2().wrap_connector(tcp));
    connector.set_connect_timeout(Some(CONNECT_MAX));
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PONG_MAX)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}
