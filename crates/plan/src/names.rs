//! Names that can't be wrong: parsed once at the edge, compared and ordered ever after. Cloning one is cheap.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{AddrParseError, IpAddr};
use std::str::FromStr;
use std::sync::Arc;

/// A public IP address that can move between machines.
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

/// Text that is compared by what it says and cloned by reference.
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
    /// A node's name in Kubernetes. A name can come back on another machine.
    NodeName
}

name! {
    /// A machine, by the id its cloud knows. Only that cloud's driver looks inside.
    VmId
}

/// A cloud that holds addresses.
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
    /// Why an address can never be attached to a machine of this cloud, if so.
    pub fn refuses(self, address: Address) -> Option<&'static str> {
        (self == Self::Gcp && address.0.is_ipv6()).then_some(NO_IPV6)
    }

    /// The provider's name as users write it.
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
    /// The project, account or subscription; empty where the credentials imply it.
    pub account: Arc<str>,
}

impl Scope {
    /// The account of a pool: that of the first matching node, or else of a VM that held one of its addresses.
    pub fn choose(
        provider: Provider,
        mut of_nodes: impl Iterator<Item = Self>,
        mut holders: impl Iterator<Item = VmId>,
    ) -> Option<Self> {
        let of_holder = |vm: VmId| Some(Self { provider, account: vm.as_str().split_once('/')?.0.into() });
        match provider {
            // The token implies the account.
            Provider::DigitalOcean => Some(Self { provider, account: "".into() }),
            _ => of_nodes.find(|scope| scope.provider == provider).or_else(|| holders.find_map(of_holder)),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.account {
            "" => write!(f, "{}", self.provider),
            account => write!(f, "{}/{account}", self.provider),
        }
    }
}

/// The object that a pool comes from. Ordered by kind, namespace and name, which breaks ties between pools of one age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey {
    /// `NetIPAllocation` or `FloatingIPPool`.
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

/// A leader's number. A later leader has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// A moment in the order in which this process wrote journals and began listings. It says which of two came first where
/// a clock could not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

/// The most addresses that a text about creations lists.
pub(crate) const ADDRESSES_SHOWN_MAX: usize = 50;

/// The most values of a record set that a text lists.
pub(crate) const RECORDS_SHOWN_MAX: usize = 10;

/// Addresses as text, the first ones where they are many.
pub(crate) fn list(addresses: &BTreeSet<Address>, shown_max: usize) -> String {
    let shown: Vec<String> = addresses.iter().take(shown_max).map(ToString::to_string).collect();
    match (shown.len(), addresses.len().saturating_sub(shown_max)) {
        (0, _) => "none".into(),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}
