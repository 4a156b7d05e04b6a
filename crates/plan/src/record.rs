//! DNS record sets, their values, and the DNS name that a pool publishes.
//!
//! Plain data. `records` decides what the controller writes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::{Address, Timestamp};

/// A DNS service in which the controller publishes names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DnsProvider {
    DigitalOcean,
    Cloudflare,
    Route53,
    Rfc2136,
    ExternalDns,
}

impl DnsProvider {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::DigitalOcean, Self::Cloudflare, Self::Route53, Self::Rfc2136, Self::ExternalDns];

    /// The provider's name in specs.
    pub fn name(self) -> &'static str {
        match self {
            Self::DigitalOcean => "digitalocean",
            Self::Cloudflare => "cloudflare",
            Self::Route53 => "route53",
            Self::Rfc2136 => "rfc2136",
            Self::ExternalDns => "external-dns",
        }
    }
}

impl fmt::Display for DnsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum RecordKind {
    A,
    Aaaa,
}

impl RecordKind {
    /// The record type for an address.
    pub(crate) fn of(address: Address) -> Self {
        if address.0.is_ipv4() { Self::A } else { Self::Aaaa }
    }

    /// Its name in DNS.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
        }
    }
}

/// All records of one name and type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordName {
    /// The DNS service.
    pub provider: DnsProvider,
    /// Its zone, without a trailing dot.
    pub zone: Arc<str>,
    /// The full name, without a trailing dot.
    pub name: Arc<str>,
    /// The record type.
    pub kind: RecordKind,
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.kind.name(), self.name, self.provider)
    }
}

/// The DNS name that a pool publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The DNS service.
    pub provider: DnsProvider,
    /// The zone, without a trailing dot.
    pub zone: Arc<str>,
    /// The full name, without a trailing dot.
    pub name: Arc<str>,
    /// The TTL in seconds; none for the provider's default.
    pub ttl: Option<u32>,
    /// Whether the controller takes over records that it did not create.
    pub adopts: bool,
    /// Which addresses it contains.
    pub source: Source,
    /// The values that the controller published last, according to the object's status.
    pub published: BTreeSet<Address>,
}

/// Which addresses a DNS name contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The pool's addresses that are on nodes.
    Addresses,
    /// The addresses of the nodes themselves.
    Nodes,
}

/// The contents of a set of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSet {
    /// Its values.
    pub values: BTreeSet<Address>,
    /// The TTL in seconds, if the provider reports it.
    pub ttl: Option<u32>,
    /// The owner ID in its mark, if it has one.
    pub owner: Option<Arc<str>>,
}

/// A set of records as it was read, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFact {
    /// The set.
    pub set: RecordSet,
    /// When it was read or written.
    pub as_of: Timestamp,
}

/// The call in flight for a set of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum InFlightRecord {
    Read,
    Write,
}
