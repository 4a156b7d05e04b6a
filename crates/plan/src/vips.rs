//! VIPs for Cluster API's Clusters: one for the control plane, one for ingress.
//!
//! In: Clusters, the pools and claims of their IPAM provider, and the addresses that it gave. Out: claims to be made or given
//! up, what is to be written on each Cluster, and what is to be said of it. An address is never chosen here: the provider does
//! that. A claim that belongs to somebody else is never touched, one that has an address is never given up, a VIP that is there
//! already is never replaced, and what is not known changes nothing.
//!
//! A claim's name follows from the Cluster's, and so is all that has to be remembered: whoever looks at the same Cluster again,
//! after a crash or in another process, finds the claim that was made before and goes on from there.
//!
//! For each of the two VIPs of each Cluster, on its own, the first line that applies:
//!
//! ```text
//! the Cluster can't be decoded                                 leave it              Unknown
//! the Cluster is being deleted, or paused                      leave it              Leaving, Paused
//! it has no class                                              leave it              NotWanted
//! its annotation wants no ingress VIP, it has none, and
//!   our claim waits for an address                             give the claim up     NotWanted
//! its annotation wants no ingress VIP                          leave it              NotWanted
//! claims, addresses, pools, or its class are not known         leave it              Unknown, NoClass
//! its claim, or its claim's address or its class of which
//!   no version was ever decoded, can't be decoded              leave it              Unknown
//! it has a VIP, and that is not where else it belongs          write it there too    Assigned, Manual
//! it has a VIP: the one of our claim, or another               leave it              Assigned, Manual
//! the claim under our name
//!   has another owner                                          wait until it is gone NotOurs
//!   is being deleted                                           wait until it is gone Releasing
//!   has an address of its own that is a VIP of some Cluster    wait until it is none InUse
//!   has an address, and that is the claim's own                write it              Allocating
//!   has the address of a claim that had its name before        wait                  Allocating
//!   waits in a pool that is full or is not meant any more,
//!     and another pool has room                                give the claim up     Releasing
//!   waits in a pool that is full                               wait                  Exhausted
//!   waits                                                      wait                  Allocating
//! there is no claim, and a pool is meant and has room          claim from it         Allocating
//! there is no claim, and a pool is meant and not full          claim from it         Allocating
//! there is no claim, and all that are meant are full           claim from the first  Exhausted
//! there is no claim, and no pool is meant                      leave it              NoPool, or NotWanted (ingress)
//! ```
//!
//! What would be done is not, where it
//!
//! ```text
//! failed a short while ago                                     wait                  Failed
//! makes any difference, and Clusters are not known             wait                  Unknown
//! ```
//!
//! The provider knows nothing of an endpoint that was set by hand, and takes an address for free when its claim is gone, which may
//! be before the machines are that answer there. So a new VIP is held against those of all Clusters.
//!
//! A Cluster with an endpoint keeps a claim that waits: one that was moved between management clusters looks like that until the
//! provider has seen its claim there, and the endpoint may be that claim's address.
//!
//! A pool has room if more of its addresses are free than are spoken for: by claims that wait in it, and by Clusters that came first in
//! this round. So those that wait don't all go after one address, which costs each of them the time that its pool takes to release a
//! claim.
//!
//! A pool is meant by its class and role, and by its namespace where it has one. Those with a higher priority come first, then
//! those whose name does.
//!
//! The control plane's VIP is the host of the Cluster's endpoint, and belongs into the variable `clusterVip` too, where the class
//! defines one. The ingress VIP is an annotation, and belongs into a label too.
//!
//! The function `wish` is long because it is the truth table above, row by row.

mod facts;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::reasons::VipReason;

pub use self::facts::{Address, Claim, Cluster, Count, Key, Pool, PoolRef, Role, Undecodable, World};

/// What to do for a VIP of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Claim an address from a pool.
    Create(PoolRef),
    /// Give the claim up, if it still is as it was seen.
    Delete,
    /// Write this VIP on the Cluster, if that still is as it was seen.
    Write {
        /// The VIP.
        vip: Arc<str>,
        /// Whether it goes into the variable or label too.
        with_copy: bool,
    },
}

/// What is to be said of a VIP of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The Cluster has the VIP that we claimed.
    Assigned {
        /// The VIP.
        vip: Arc<str>,
        /// Where it is from.
        pool: PoolRef,
        /// The class that does not define the variable in which patches look for the VIP.
        undefined_in: Option<Key>,
    },
    /// The Cluster has a VIP that we did not claim.
    Manual(Arc<str>),
    /// An address is on its way.
    Allocating(PoolRef),
    /// The claim is given up for one from another pool.
    Releasing {
        /// The pool that it claims from.
        from: PoolRef,
        /// Where an address is claimed next, as far as that is known.
        to: Option<PoolRef>,
    },
    /// Every pool that is meant is full.
    Exhausted(Vec<PoolRef>),
    /// No pool is meant.
    NoPool {
        /// The class that none is for.
        class: Arc<str>,
        /// Where our claim waits, where there is one.
        claimed_from: Option<PoolRef>,
    },
    /// The class of the Cluster does not exist.
    NoClass(Key),
    /// The claim under our name belongs to somebody else.
    NotOurs(Key),
    /// The address that was given is a VIP already.
    InUse {
        /// The address.
        vip: Arc<str>,
        /// What it is for.
        role: Role,
        /// The Cluster that has it.
        of: Key,
        /// The claim that it was given to.
        claim: Key,
    },
    /// The last try failed a short while ago.
    Failed(Arc<str>),
    /// Something is not known.
    Unknown(&'static str),
    /// Nobody is to touch the Cluster.
    Paused,
    /// The Cluster is being deleted.
    Leaving,
    /// Nobody asks for it.
    NotWanted,
}

impl Verdict {
    /// The reason that users see.
    pub fn reason(&self) -> VipReason {
        match self {
            Self::Assigned { .. } => VipReason::Assigned,
            Self::Manual(_) => VipReason::Manual,
            Self::Allocating(_) => VipReason::Allocating,
            Self::Releasing { .. } => VipReason::Releasing,
            Self::Exhausted(_) => VipReason::PoolExhausted,
            Self::NoPool { .. } => VipReason::NoPool,
            Self::NoClass(_) => VipReason::NoClass,
            Self::NotOurs(_) => VipReason::ClaimNotOurs,
            Self::InUse { .. } => VipReason::InUse,
            Self::Failed(_) => VipReason::Failed,
            Self::Unknown(_) => VipReason::Unknown,
            Self::Paused => VipReason::Paused,
            Self::Leaving => VipReason::Leaving,
            Self::NotWanted => VipReason::NotWanted,
        }
    }

    /// Whether a VIP comes by itself, mostly in a moment.
    pub fn is_on_its_way(&self) -> bool {
        matches!(self, Self::Allocating(_) | Self::Releasing { .. })
    }

    /// Whether a person has to do something.
    pub fn is_stuck(&self) -> bool {
        matches!(
            self,
            Self::Exhausted(_)
                | Self::NoPool { .. }
                | Self::NoClass(_)
                | Self::NotOurs(_)
                | Self::InUse { .. }
                | Self::Failed(_)
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assigned { vip, pool, undefined_in: None } => write!(f, "{vip} from pool {pool}"),
            Self::Assigned { vip, pool, undefined_in: Some(class) } => write!(
                f,
                "{vip} from pool {pool}; ClusterClass variable 'clusterVip' not found: add it to the class {class} for \
                 patches that need the VIP"
            ),
            Self::Manual(vip) => write!(f, "{vip}, which was set by somebody else"),
            Self::Allocating(pool) => write!(f, "waiting for an address from pool {pool}"),
            Self::Releasing { from, to } => {
                write!(
                    f,
                    "the claim from pool {from} is being released, which takes up to the pool's \
                     addressReuseGracePeriodSeconds"
                )?;
                to.iter().try_for_each(|to| write!(f, "; then an address of pool {to} is claimed"))
            }
            Self::Exhausted(pools) => {
                let names: Vec<_> = pools.iter().map(ToString::to_string).collect();
                write!(f, "no address is free in {}: add addresses, or another pool", names.join(", "))
            }
            Self::NoPool { class, claimed_from } => {
                write!(
                    f,
                    "no pool is for class {class} and this role: label one with vip.capi.gorizond.io/cluster-class and \
                     vip.capi.gorizond.io/role"
                )?;
                claimed_from
                    .iter()
                    .try_for_each(|pool| write!(f, "; the claim waits in pool {pool}, which is not"))
            }
            Self::NoClass(class) => write!(f, "the class {class} does not exist"),
            Self::NotOurs(claim) => write!(
                f,
                "the IPAddressClaim {claim} belongs to somebody else, or to an earlier Cluster of this name: waiting until \
                 it is gone"
            ),
            Self::InUse { vip, role, of, claim } => write!(
                f,
                "{vip} is the {role} VIP of the Cluster {of}: waiting until that is gone; if it was set by hand, exclude it \
                 from the pool and delete the IPAddressClaim {claim}"
            ),
            Self::Failed(error) => write!(f, "trying again soon: {error}"),
            Self::Unknown(what) => write!(f, "{what} can't be read, so nothing is done"),
            Self::Paused => write!(f, "the Cluster is paused"),
            Self::Leaving => write!(f, "the Cluster is being deleted"),
            Self::NotWanted => write!(f, "nobody asks for it"),
        }
    }
}

/// What should happen for one VIP of one Cluster, and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What should happen.
    pub step: Option<Step>,
    /// What is to be said.
    pub said: Verdict,
}

impl Decision {
    fn say(said: Verdict) -> Self {
        Self { step: None, said }
    }

    fn take(step: Step, said: Verdict) -> Self {
        Self { step: Some(step), said }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(pool) => write!(f, "claim from {pool}"),
            Self::Delete => write!(f, "give the claim up"),
            Self::Write { vip, with_copy: false } => write!(f, "write {vip}"),
            Self::Write { vip, with_copy: true } => write!(f, "write {vip} in both places"),
        }
    }
}

/// Where else a VIP belongs.
enum Copy {
    /// Nowhere.
    NotMeant,
    /// Into a variable that this class does not define.
    Undefined(Key),
    /// There, where nothing is yet.
    Missing,
    /// There, where something is already.
    Present,
}

/// What should happen for both VIPs of a Cluster.
pub fn plan(world: &World, key: &Key, cluster: &Cluster) -> [(Role, Decision); 2] {
    Role::ALL.map(|role| (role, next(world, key, cluster, role)))
}

fn next(world: &World, key: &Key, cluster: &Cluster, role: Role) -> Decision {
    let wish = wish(world, key, cluster, role);
    match (&wish.step, world.failed.get(&(key.clone(), role))) {
        (Some(_), Some(error)) => Decision::say(Verdict::Failed(Arc::clone(error))),
        (Some(_), None) if !world.are_clusters_known => Decision::say(Verdict::Unknown("Clusters")),
        _ => wish,
    }
}

/// What should happen if nothing stood in its way.
fn wish(world: &World, key: &Key, cluster: &Cluster, role: Role) -> Decision {
    if cluster.undecodable.is_some() {
        return Decision::say(Verdict::Unknown("the Cluster"));
    }
    if cluster.is_leaving {
        return Decision::say(Verdict::Leaving);
    }
    if cluster.is_paused && !crate::sabotaged!(PausedTouched) {
        return Decision::say(Verdict::Paused);
    }
    let Some(class) = &cluster.class else { return Decision::say(Verdict::NotWanted) };
    if world.undecodable.claims.contains(&role.claim(key)) {
        return Decision::say(Verdict::Unknown("its IPAddressClaim"));
    }
    let is_ours = |claim: &&Claim| claim.owners.contains(&cluster.uid) || crate::sabotaged!(ClaimAdopted);
    if role == Role::Ingress && cluster.wants_ingress == Some(false) {
        let claim = world.claims.as_ref().and_then(|claims| claims.get(&role.claim(key))).filter(is_ours);
        let waits = claim.is_some_and(|claim| claim.address.is_none() && !claim.is_leaving);
        let step = (waits && cluster.ingress.is_none()).then_some(Step::Delete);
        return Decision { step, said: Verdict::NotWanted };
    }
    let Some(claims) = &world.claims else { return Decision::say(Verdict::Unknown("IPAddressClaims")) };
    let Some(addresses) = &world.addresses else { return Decision::say(Verdict::Unknown("IPAddresses")) };
    let (Some(global), Some(namespaced)) = (&world.global_pools, &world.namespaced_pools) else {
        return Decision::say(Verdict::Unknown("pools"));
    };
    let claim = claims.get(&role.claim(key));
    let ours = claim.filter(is_ours);
    let is_undecodable =
        |address: &Key| world.undecodable.addresses.contains(address) && !addresses.contains_key(address);
    if ours.and_then(|claim| claim.address.as_ref()).is_some_and(is_undecodable) {
        return Decision::say(Verdict::Unknown("its IPAddress"));
    }
    let given = ours.and_then(|claim| {
        let address = addresses.get(claim.address.as_ref()?)?;
        (address.claim.as_ref() == Some(&claim.uid)).then_some(&address.ip)
    });
    let copy = match copy(world, cluster, role, given) {
        Ok(copy) => copy,
        Err(said) => return Decision::say(said),
    };
    let present = match role {
        Role::ControlPlane => &cluster.endpoint,
        Role::Ingress => &cluster.ingress,
    };
    let is_replaced = |vip: &Arc<str>| {
        crate::sabotaged!(VipReplaced) && given.is_some_and(|given| given.to_string() != **vip)
    };
    if let Some(vip) = present.as_ref().filter(|vip| !is_replaced(vip)) {
        let said = match ours.filter(|_| given.is_some_and(|given| given.to_string() == **vip)) {
            Some(claim) => {
                let undefined_in = match &copy {
                    Copy::Undefined(class) => Some(class.clone()),
                    _ => None,
                };
                Verdict::Assigned { vip: Arc::clone(vip), pool: claim.pool.clone(), undefined_in }
            }
            None => Verdict::Manual(Arc::clone(vip)),
        };
        let step =
            matches!(copy, Copy::Missing).then(|| Step::Write { vip: Arc::clone(vip), with_copy: true });
        return Decision { step, said };
    }
    let pools = meant(global.iter().chain(namespaced), key, class, role);
    let find = |is_it: &dyn Fn(&PoolRef, &Pool) -> bool| {
        pools.iter().find(|(name, pool)| is_it(name, pool)).map(|(name, _)| (*name).clone())
    };
    let has_room = find(&|name, pool| world.has_room(name, pool));
    // Whoever has no claim loses nothing by one: the status of a pool lags, and others may find an address elsewhere.
    let has_any = || find(&|_, pool| !pool.is_full());
    let no_pool = |claimed_from| Verdict::NoPool { class: Arc::clone(class), claimed_from };
    let exhausted = || Verdict::Exhausted(pools.iter().map(|(name, _)| (*name).clone()).collect());
    match (claim, has_room) {
        (Some(_), _) if ours.is_none() => Decision::say(Verdict::NotOurs(role.claim(key))),
        (Some(claim), to) if claim.is_leaving => {
            Decision::say(Verdict::Releasing { from: claim.pool.clone(), to: to.or_else(has_any) })
        }
        (Some(claim), has_room) => {
            let allocating = Verdict::Allocating(claim.pool.clone());
            if let Some(address) = given {
                let vip = address.to_string().into();
                let holder = holder(world, key, cluster, *address);
                if let Some((of, of_role)) = holder.filter(|_| !crate::sabotaged!(VipShared)) {
                    return Decision::say(Verdict::InUse { vip, role: of_role, of, claim: role.claim(key) });
                }
                let with_copy = matches!(copy, Copy::Missing | Copy::Present);
                return Decision::take(Step::Write { vip, with_copy }, allocating);
            }
            let is_lost = !pools.iter().any(|(name, pool)| **name == claim.pool && !pool.is_full());
            match has_room {
                // Its address is on its way to us.
                _ if claim.address.is_some() || !is_lost => Decision::say(allocating),
                to @ Some(_) => {
                    Decision::take(Step::Delete, Verdict::Releasing { from: claim.pool.clone(), to })
                }
                None if pools.is_empty() => Decision::say(no_pool(Some(claim.pool.clone()))),
                None => Decision::say(exhausted()),
            }
        }
        (None, has_room) => match (has_room.or_else(has_any), pools.first()) {
            (Some(room), _) => Decision::take(Step::Create(room.clone()), Verdict::Allocating(room)),
            // The provider serves it as soon as the pool has grown.
            (None, Some((first, _))) => Decision::take(Step::Create((*first).clone()), exhausted()),
            (None, None) if role == Role::Ingress && cluster.wants_ingress.is_none() => {
                Decision::say(Verdict::NotWanted)
            }
            (None, None) => Decision::say(no_pool(None)),
        },
    }
}

/// Where else a VIP of the Cluster belongs; or why that is not known.
fn copy(world: &World, cluster: &Cluster, role: Role, given: Option<&IpAddr>) -> Result<Copy, Verdict> {
    let is_there = |copy: &Option<Arc<str>>| if copy.is_some() { Copy::Present } else { Copy::Missing };
    match (role, &cluster.topology) {
        (Role::Ingress, _) => {
            // A label can't hold a colon.
            let is_v6 = match &cluster.ingress {
                Some(vip) => vip.contains(':'),
                None => given.is_some_and(IpAddr::is_ipv6),
            };
            Ok(if is_v6 { Copy::NotMeant } else { is_there(&cluster.ingress_label) })
        }
        (Role::ControlPlane, None) => Ok(Copy::NotMeant),
        (Role::ControlPlane, Some(class)) => {
            let classes = world.classes.as_ref().ok_or(Verdict::Unknown("ClusterClasses"))?;
            match classes.get(class) {
                None if world.undecodable.classes.contains(class) => {
                    Err(Verdict::Unknown("its ClusterClass"))
                }
                None => Err(Verdict::NoClass(class.clone())),
                Some(false) => Ok(Copy::Undefined(class.clone())),
                Some(true) => Ok(is_there(&cluster.variable)),
            }
        }
    }
}

/// The Cluster that has this address as a VIP, which may be being deleted, or be the one that is planned for with its other VIP.
fn holder(world: &World, key: &Key, cluster: &Cluster, address: IpAddr) -> Option<(Key, Role)> {
    let is_it = |vip: &Option<Arc<str>>| vip.as_ref().is_some_and(|vip| vip.parse::<IpAddr>() == Ok(address));
    let others = world.clusters.iter().filter(|(other, _)| *other != key);
    others.chain([(key, cluster)]).find_map(|(of, cluster)| match cluster {
        Cluster { endpoint, .. } if is_it(endpoint) => Some((of.clone(), Role::ControlPlane)),
        Cluster { ingress, .. } if is_it(ingress) => Some((of.clone(), Role::Ingress)),
        Cluster { undecodable: Some(addresses), .. } if addresses.contains(&address) => {
            Some((of.clone(), Role::ControlPlane))
        }
        _ => None,
    })
}

/// The pools that are meant, the first one first.
fn meant<'a>(
    pools: impl Iterator<Item = (&'a PoolRef, &'a Pool)>,
    key: &Key,
    class: &Arc<str>,
    role: Role,
) -> Vec<(&'a PoolRef, &'a Pool)> {
    let is_meant = |name: &PoolRef, pool: &Pool| {
        let is_near = name.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace);
        is_near && !pool.is_leaving && *pool.role == *role.name() && pool.classes.contains(class)
    };
    let mut meant: Vec<_> = pools.filter(|(name, pool)| is_meant(name, pool)).collect();
    meant.sort_by_key(|(name, pool)| (std::cmp::Reverse(pool.priority), *name));
    meant
}

impl World {
    /// Speaks for the addresses that a Cluster is about to claim, so that others look elsewhere.
    pub fn speak_for(&mut self, planned: &[(Role, Decision); 2]) {
        for (_, next) in planned {
            if let (Some(Step::Create(pool)), _) | (_, Verdict::Releasing { to: Some(pool), .. }) =
                (&next.step, &next.said)
            {
                *self.spoken_for.entry(pool.clone()).or_default() += 1;
            }
        }
    }
}
