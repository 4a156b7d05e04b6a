//! What was observed of Clusters, pools, claims and addresses.
//!
//! Plain data. Nothing here says what follows from it.

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

    /// As users write it in a label.
    pub fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Ingress => "ingress",
        }
    }

    /// How the name of a claim for it begins; the Cluster's follows.
    pub fn claim_prefix(self) -> &'static str {
        match self {
            Self::ControlPlane => "vip-cp-",
            Self::Ingress => "vip-ingress-",
        }
    }

    /// The claim of a Cluster for it.
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

/// A namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where.
    pub namespace: Arc<str>,
    /// Its name there.
    pub name: Arc<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pool, by the name that a claim calls it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolRef {
    /// Its name.
    pub name: Arc<str>,
    /// Where it is; none where it is for all namespaces.
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
    /// The classes that it is for.
    pub classes: BTreeSet<Arc<str>>,
    /// What its addresses are for, as its label says.
    pub role: Arc<str>,
    /// Those with a higher one are used first.
    pub priority: u32,
    /// How many addresses it has in all, in use and left, where it tells.
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

/// A claim under a name that is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Tells it from others that had its name.
    pub uid: Arc<str>,
    /// The UIDs of its owners.
    pub owners: BTreeSet<Arc<str>>,
    /// Where it claims from.
    pub pool: PoolRef,
    /// The object that holds its address, where it has one.
    pub address: Option<Key>,
    /// Whether it is being deleted.
    pub is_leaving: bool,
}

/// An address that the provider gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The UID of the claim that it was given to. The name alone may be that of an earlier one.
    pub claim: Option<Arc<str>>,
}

/// A Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Tells it from others that had its name.
    pub uid: Arc<str>,
    /// The class that pools are chosen by.
    pub class: Option<Arc<str>>,
    /// The class of its topology, where it has one.
    pub topology: Option<Key>,
    /// Whether nobody is to touch it.
    pub is_paused: bool,
    /// Whether it is being deleted.
    pub is_leaving: bool,
    /// The host of its endpoint.
    pub endpoint: Option<Arc<str>>,
    /// The variable `clusterVip`.
    pub variable: Option<Arc<str>>,
    /// Whether an ingress VIP is wanted, where that is said.
    pub wants_ingress: Option<bool>,
    /// The annotation that holds the ingress VIP.
    pub ingress: Option<Arc<str>>,
    /// The label that does.
    pub ingress_label: Option<Arc<str>>,
    /// Every address in the object, where it can't be decoded: any of them may be a VIP.
    pub undecodable: Option<BTreeSet<IpAddr>>,
}

impl Cluster {
    /// The Cluster as it will be once a VIP is written on it.
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

/// All that is known. What is not known is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Clusters, as they were last seen.
    pub clusters: BTreeMap<Key, Cluster>,
    /// Whether each Cluster still is as it was last seen.
    pub are_clusters_known: bool,
    /// Classes, and whether each defines the variable `clusterVip`.
    pub classes: Option<BTreeMap<Key, bool>>,
    /// Pools for all namespaces.
    pub global_pools: Option<BTreeMap<PoolRef, Pool>>,
    /// Pools for one namespace each.
    pub namespaced_pools: Option<BTreeMap<PoolRef, Pool>>,
    /// Claims under names that are ours.
    pub claims: Option<BTreeMap<Key, Claim>>,
    /// Addresses that the provider gave.
    pub addresses: Option<BTreeMap<Key, Address>>,
    /// What is there and can't be decoded.
    pub undecodable: Undecodable,
    /// How many addresses of each pool somebody waits for or is about to claim; none for one that is not here.
    pub spoken_for: BTreeMap<PoolRef, i64>,
    /// VIPs of Clusters for which something failed a short while ago, and what was said.
    pub failed: BTreeMap<(Key, Role), Arc<str>>,
}

/// Objects that are there and can't be decoded. Those of which an earlier version could be decoded stay in the world in that version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Undecodable {
    pub classes: BTreeSet<Key>,
    pub claims: BTreeSet<Key>,
    pub addresses: BTreeSet<Key>,
}

impl World {
    /// Begins a round: of each pool those addresses are spoken for that claims wait for.
    pub fn speak_for_claims(&mut self) {
        self.spoken_for.clear();
        let waits = |claim: &&Claim| claim.address.is_none() && !claim.is_leaving;
        for claim in self.claims.iter().flat_map(BTreeMap::values).filter(waits) {
            *self.spoken_for.entry(claim.pool.clone()).or_default() += 1;
        }
    }

    pub(super) fn has_room(&self, name: &PoolRef, pool: &Pool) -> bool {
        let spoken_for = self.spoken_for.get(name).copied().unwrap_or_default();
        pool.count.is_none_or(|count| count.free > spoken_for)
    }
}
