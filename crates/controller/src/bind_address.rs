//! Addresses that the controller listens at, in the notation of Go: `:8080`, `127.0.0.1:8080`, `[::1]:8080`.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use tokio::net::TcpListener;

/// The address that a server listens on, or `Off` if the server is disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// The server is off. Written as `0`.
    Off,
    /// The server listens here.
    At {
        /// An IP address or a host name. An empty host means every address of the machine.
        host: String,
        /// The port.
        port: u16,
    },
}

impl BindAddress {
    /// A port on every address of the machine.
    pub fn every(port: u16) -> Self {
        Self::At { host: String::new(), port }
    }

    /// Binds the address. Returns none if the server is off.
    pub async fn bind(&self) -> io::Result<Option<TcpListener>> {
        match self {
            Self::Off => Ok(None),
            Self::At { host, port } if host.is_empty() => listen(*port).await.map(Some),
            Self::At { host, port } => TcpListener::bind((host.as_str(), *port)).await.map(Some),
        }
    }
}

/// Listens on IPv6 and IPv4, or only on IPv4 if IPv6 is not available.
pub async fn listen(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
}

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "0" {
            return Ok(Self::Off);
        }
        let invalid = || {
            format!("{text:?} is not a valid bind address: use host:port, :port, or 0 to disable the server")
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // Without brackets, the last part of an IPv6 address would be read as the port.
        if unbracketed.is_none() && host.contains(':') {
            return Err(invalid());
        }
        let port = port.parse().map_err(|_| invalid())?;
        Ok(Self::At { host: unbracketed.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("0"),
            Self::At { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::At { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v6_addresses_are_read_as_go_writes_them() {
        for text in ["0", ":8080", "127.0.0.1:8080", "[::1]:8080", "localhost:8080", ":0"] {
            assert_eq!(text.parse::<BindAddress>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "8080", "::1:8080", ":", ":http", ":65536"] {
            assert!(text.parse::<BindAddress>().is_err(), "{text}");
        }
    }
}
