//! What the controller observed of Clusters, pools, claims and addresses.
//!
//! Plain data. Nothing here decides what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// What a VIP is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Role {
    ControlPlane,
    Ingress,
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::ControlPlane, Self::Ingress];

    /// Its name in labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Ingress => "ingress",
        }
    }

    /// The type of the Cluster's condition about this VIP.
    pub fn condition_type(self) -> &'static str {
        match self {
            Self::ControlPlane => "vip.capi.gorizond.io/ControlPlaneVIPReady",
            Self::Ingress => "vip.capi.gorizond.io/IngressVIPReady",
        }
    }

    /// The prefix of the names of its claims. The name of the Cluster follows.
    pub fn claim_prefix(self) -> &'static str {
        match self {
            Self::ControlPlane => "vip-cp-",
            Self::Ingress => "vip-ingress-",
        }
    }

    /// The claim of a Cluster for this role.
    pub fn claim(self, cluster: &Key) -> Key {
        let name = format!("{}{}", self.claim_prefix(), cluster.name);
        Key { namespace: Arc::clone(&cluster.namespace), name: name.into() }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The key of a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The key of a pool, as in a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolRef {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; none for a pool for all namespaces.
    pub namespace: Option<Arc<str>>,
}

impl fmt::Display for PoolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A pool of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The classes whose Clusters may use it.
    pub classes: BTreeSet<Arc<str>>,
    /// The role of its addresses, from its label.
    pub role: Arc<str>,
    /// Pools with a higher priority come first.
    pub priority: u32,
    /// How many addresses it has, if it reports that.
    pub count: Option<Count>,
    /// Whether it is being deleted.
    pub is_leaving: bool,
}

/// How many addresses a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Count {
    pub total: i64,
    pub used: i64,
    pub free: i64,
}

impl Pool {
    pub(super) fn is_full(&self) -> bool {
        self.count.is_some_and(|count| count.free <= 0)
    }
}

/// A claim with a name that this controller uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its UID, to distinguish it from earlier claims with its name.
    pub uid: Arc<str>,
    /// The UIDs of its owners.
    pub owners: BTreeSet<Arc<str>>,
    /// The pool that it claims from.
    pub pool: PoolRef,
    /// The `IPAddress` object with its address, if it has one.
    pub address: Option<Key>,
    /// Whether it is being deleted.
    pub is_leaving: bool,
}

/// An address that the provider assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The UID of its claim. The name alone could be that of an earlier claim.
    pub claim: Option<Arc<str>>,
}

/// A Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its UID, to distinguish it from earlier Clusters with its name.
    pub uid: Arc<str>,
    /// The class by which the planner selects pools.
    pub class: Option<Arc<str>>,
    /// The class of its topology, if it has one.
    pub topology: Option<Key>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Whether it is being deleted.
    pub is_leaving: bool,
    /// The host of its endpoint.
    pub endpoint: Option<Arc<str>>,
    /// The variable `clusterVip`.
    pub variable: Option<Arc<str>>,
    /// Whether its annotation wants an ingress VIP; none without the annotation.
    pub wants_ingress: Option<bool>,
    /// The value of the annotation with the ingress VIP.
    pub ingress: Option<Arc<str>>,
    /// The value of the label with the ingress VIP.
    pub ingress_label: Option<Arc<str>>,
    /// If it can't be decoded: all addresses in the object. Any of them may be a VIP.
    pub undecodable: Option<BTreeSet<IpAddr>>,
}

impl Cluster {
    /// The Cluster as it will be after the controller has written a VIP on it.
    pub fn with(mut self, role: Role, vip: &Arc<str>, with_copy: bool) -> Self {
        let (place, copy) = match role {
            Role::ControlPlane => (&mut self.endpoint, &mut self.variable),
            Role::Ingress => (&mut self.ingress, &mut self.ingress_label),
        };
        *place = Some(Arc::clone(vip));
        if with_copy {
            *copy = Some(Arc::clone(vip));
        }
        self
    }
}

/// Everything the controller knows. Unknown parts are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Clusters, as the controller last saw them.
    pub clusters: BTreeMap<Key, Cluster>,
    /// Whether the Clusters are up to date.
    pub are_clusters_known: bool,
    /// Classes, and whether each defines the variable `clusterVip`.
    pub classes: Option<BTreeMap<Key, bool>>,
    /// Pools for all namespaces.
    pub global_pools: Option<BTreeMap<PoolRef, Pool>>,
    /// Pools for one namespace each.
    pub namespaced_pools: Option<BTreeMap<PoolRef, Pool>>,
    /// Claims with names that this controller uses.
    pub claims: Option<BTreeMap<Key, Claim>>,
    /// Addresses that the provider assigned.
    pub addresses: Option<BTreeMap<Key, Address>>,
    /// Objects that can't be decoded.
    pub undecodable: Undecodable,
    /// How many addresses of each pool are reserved, by waiting claims and by Clusters that are about to claim; 0 if
    /// absent.
    pub reserved: BTreeMap<PoolRef, i64>,
    /// VIPs for which an attempt failed a short while ago, and the error.
    pub failed: BTreeMap<(Key, Role), Arc<str>>,
    /// VIPs that are being written to Clusters, and those whose write may have taken effect without a response.
    pub writing: BTreeMap<(Key, Role), Arc<str>>,
}

/// Objects that exist but can't be decoded. If an earlier version of an object could be decoded, that version stays in
/// the world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Undecodable {
    pub classes: BTreeSet<Key>,
    pub claims: BTreeSet<Key>,
    pub addresses: BTreeSet<Key>,
}

impl World {
    /// Starts a reconciliation: resets the reservations to one address for each waiting claim.
    pub fn speak_for_claims(&mut self) {
        self.reserved.clear();
        let waits = |claim: &&Claim| claim.address.is_none() && !claim.is_leaving;
        for claim in self.claims.iter().flat_map(BTreeMap::values).filter(waits) {
            *self.reserved.entry(claim.pool.clone()).or_default() += 1;
        }
    }

    pub(super) fn has_room(&self, name: &PoolRef, pool: &Pool) -> bool {
        let reserved = self.reserved.get(name).copied().unwrap_or_default();
        pool.count.is_none_or(|count| count.free > reserved)
    }
}
