//! Types for names, so that they can't be mixed up. The controller parses each name once. Cloning one is cheap.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{AddrParseError, IpAddr};
use std::str::FromStr;
use std::sync::Arc;

/// A public IP address that can move between VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub IpAddr);

impl FromStr for Address {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Defines a type for text that is compared by value and cloned by reference.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A node's name in Kubernetes. A later node with the same name can have another VM.
    NodeName
}

name! {
    /// A VM, by the ID that its cloud uses. Only that cloud's driver parses it.
    VmId
}

/// A cloud with addresses that the controller can move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Provider {
    Gcp,
    Aws,
    Azure,
    DigitalOcean,
}

/// Why Google Cloud can't attach an IPv6 address.
pub const NO_IPV6: &str = "Google Cloud attaches IPv4 addresses only";

impl Provider {
    /// Why this cloud can never attach an address to a VM; none if it can.
    pub fn refuses(self, address: Address) -> Option<&'static str> {
        (self == Self::Gcp && address.0.is_ipv6()).then_some(NO_IPV6)
    }

    /// The provider's name in specs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gcp => "gcp",
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::DigitalOcean => "digitalocean",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The part of a cloud that one listing covers: a project, an account, a subscription.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The cloud.
    pub provider: Provider,
    /// The project, account or subscription; empty if the credentials determine it.
    pub account: Arc<str>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.account {
            "" => write!(f, "{}", self.provider),
            account => write!(f, "{}/{account}", self.provider),
        }
    }
}

/// The object that a pool is made from. Ordered by kind, namespace and name: this decides between pools of the same
/// age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey {
    /// `NetIPAllocation`, `FloatingIPPool` or `NodeDNSRecordSet`.
    pub kind: &'static str,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{}/{}", self.kind, self.name),
            namespace => write!(f, "{}/{namespace}/{}", self.kind, self.name),
        }
    }
}

/// The number of a leader, higher than that of every earlier leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// A logical time: the order in which this process wrote journals and started listings. A clock is not precise enough
/// for this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

/// The maximum number of addresses in a message about creations.
pub(crate) const ADDRESSES_SHOWN_MAX: usize = 50;

/// The maximum number of values in a message about a record set.
pub(crate) const RECORDS_SHOWN_MAX: usize = 10;

/// Addresses as text. If there are too many, the first ones and the number of the others.
pub(crate) fn list(addresses: &BTreeSet<Address>, shown_max: usize) -> String {
    let shown: Vec<String> = addresses.iter().take(shown_max).map(ToString::to_string).collect();
    match (shown.len(), addresses.len().saturating_sub(shown_max)) {
        (0, _) => "none".into(),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}
