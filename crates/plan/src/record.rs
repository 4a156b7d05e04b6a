//! Names of DNS record sets, what they hold, and what a pool asks of them.
//!
//! Plain data. `records` decides what is written.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::{Address, Timestamp};

/// A service in which names are published.
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

    /// The provider's name as users write it.
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
    /// The type that holds an address.
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
    /// Where it is published.
    pub provider: DnsProvider,
    /// The zone that holds it, without a trailing dot.
    pub zone: Arc<str>,
    /// The full name, without a trailing dot.
    pub name: Arc<str>,
    /// The type.
    pub kind: RecordKind,
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.kind.name(), self.name, self.provider)
    }
}

/// A name that follows a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Where.
    pub provider: DnsProvider,
    /// The zone, without a trailing dot.
    pub zone: Arc<str>,
    /// The full name, without a trailing dot.
    pub name: Arc<str>,
    /// Seconds that resolvers may keep an answer; none leaves it to the provider.
    pub ttl: Option<u32>,
    /// Whether records that somebody else made are taken over.
    pub adopts: bool,
    /// What it holds.
    pub source: Source,
    /// What was published last, by the object's own status.
    pub published: BTreeSet<Address>,
}

/// What a name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The pool's addresses that are on nodes.
    Addresses,
    /// The addresses of the nodes themselves.
    Nodes,
}

/// What is known of a set of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordSet {
    /// Its values.
    pub values: BTreeSet<Address>,
    /// Seconds that resolvers may keep an answer, where the provider tells.
    pub ttl: Option<u32>,
    /// Whose mark is on it.
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

/// What is under way with a set of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum InFlightRecord {
    Read,
    Write,
}
