//! Which object owns which address.
//!
//! In: all pools. Out: their order, and the owner of each address that several pools name. The result depends only on
//! the pools, so the world caches it until a pool changes.

use std::collections::BTreeMap;

use crate::{Address, Journal, Pool};

/// The owners of addresses, and the order of pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ownership {
    /// The positions of the pools, ordered by age and name. The rank of a pool is its index in this list.
    pub(crate) order: Vec<usize>,
    /// For each address that several pools name: the rank of the pool that owns it.
    contested: BTreeMap<Address, usize>,
    /// All addresses that a pool lists or has an unfinished move of, sorted.
    owned: Vec<Address>,
    /// All addresses that a pool lists, sorted.
    listed: Vec<Address>,
}

impl Ownership {
    /// The owner of an address is an object whose journal names it. If no journal names it, the owner is an object that
    /// lists it. Among several objects, the oldest one owns it, and among those of the same age the first by kind,
    /// namespace and name.
    pub(crate) fn new<'a>(pools: impl Iterator<Item = &'a Pool>) -> Self {
        let pools: Vec<&Pool> = pools.collect();
        let mut order: Vec<usize> = (0..pools.len()).collect();
        order.sort_by_key(|at| (pools[*at].created, &pools[*at].key));
        let mut claims = Vec::new();
        for (rank, at) in order.iter().enumerate() {
            let pool = pools[*at];
            let listed = pool.addresses.iter().chain(&pool.adopted);
            claims.extend(listed.map(|address| (*address, true, rank)));
            if let Journal::Known(moves) = &pool.journal {
                claims.extend(moves.keys().map(|address| (*address, false, rank)));
            }
        }
        claims.sort_unstable();
        let mut contested = BTreeMap::new();
        for several in claims.chunk_by(|(one, ..), (other, ..)| one == other) {
            let (address, _, owner) = several[0];
            if several.iter().any(|(_, _, rank)| *rank != owner) {
                contested.insert(address, owner);
            }
        }
        let is_listed = |claim: &&(Address, bool, usize)| claim.1;
        let mut listed: Vec<Address> =
            claims.iter().filter(is_listed).map(|(address, ..)| *address).collect();
        listed.dedup();
        let mut owned: Vec<Address> = claims.into_iter().map(|(address, ..)| address).collect();
        owned.dedup();
        Self { order, contested, owned, listed }
    }

    /// The rank of the pool that owns an address, if that is another pool than the one with the given rank.
    pub(crate) fn other_owner(&self, address: Address, rank: usize) -> Option<usize> {
        if crate::sabotaged!(PoolsPlannedAlone) {
            return None;
        }
        self.contested.get(&address).copied().filter(|owner| *owner != rank)
    }

    /// Whether several pools name an address.
    pub(crate) fn is_contested(&self, address: Address) -> bool {
        self.contested.contains_key(&address)
    }

    /// Whether a pool lists an address.
    pub(crate) fn is_listed(&self, address: Address) -> bool {
        self.listed.binary_search(&address).is_ok()
    }

    /// Whether a pool lists an address or has an unfinished move of it.
    pub(crate) fn is_owned(&self, address: Address) -> bool {
        self.owned.binary_search(&address).is_ok()
    }
}
