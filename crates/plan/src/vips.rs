//! VIPs for the Clusters of Cluster API: one for the control plane, one for ingress.
//!
//! In: Clusters, the pools and claims of the IPAM provider, and the addresses that it assigned. Out: claims to create
//! or delete, what to write on each Cluster, and what to report. The IPAM provider chooses the addresses, not this
//! module. The controller never changes a claim of another owner, never deletes a claim with an address, never replaces
//! an existing VIP, and changes nothing while something is unknown.
//!
//! The name of a claim follows from the name of its Cluster. So after a crash, or in another process, the controller
//! finds the claim again and continues. It needs no other memory.
//!
//! For each of the two VIPs of each Cluster, independently, the first line that applies:
//!
//! ```text
//! the Cluster can't be decoded                                 leave it              Unknown
//! the Cluster is being deleted, or paused                      leave it              Leaving, Paused
//! it has no class                                              leave it              NotWanted
//! its claim can't be decoded                                   leave it              Unknown
//! its annotation wants no ingress VIP, it has none, and
//!   our claim waits for an address                             delete the claim      NotWanted
//! its annotation wants no ingress VIP                          leave it              NotWanted
//! claims, addresses, pools, or its class are unknown           leave it              Unknown, NoClass
//! no version of its class or of its claim's address was ever
//!   decoded                                                    leave it              Unknown
//! it has a VIP, but not yet the copy of it                     write the copy        Assigned, Manual
//! it has a VIP: the one of our claim, or another               leave it              Assigned, Manual
//! the claim with our name
//!   has another owner                                          wait for its deletion NotOurs
//!   is being deleted                                           wait for its deletion Releasing
//!   has its own address, which is already a VIP                wait until it is free InUse
//!   has its own address                                        write it              Allocating
//!   has the address of an earlier claim with its name          wait                  Allocating
//!   waits in a pool that is full or no longer matches,
//!     and another pool has room                                delete the claim      Releasing
//!   waits in a pool that is full                               wait                  Exhausted
//!   waits                                                      wait                  Allocating
//! there is no claim, and a matching pool has room              claim from it         Allocating
//! there is no claim, and a matching pool is not full           claim from it         Allocating
//! there is no claim, and all matching pools are full           claim from the first  Exhausted
//! there is no claim, and no pool matches                       leave it              NoPool, or NotWanted (ingress)
//! ```
//!
//! Then the controller holds back a step if
//!
//! ```text
//! the last one failed a short while ago                        wait                  Failed
//! Clusters are unknown                                         wait                  Unknown
//! ```
//!
//! The IPAM provider does not know endpoints that were set by hand. It also considers an address free as soon as its
//! claim is deleted, which may be before the machines are deleted that use it. So the controller compares a new VIP
//! with those of all Clusters.
//!
//! A Cluster with an endpoint keeps a claim that waits. After a move to another management cluster, the claim waits
//! until the IPAM provider there has seen it, and the endpoint may be the address of the claim.
//!
//! A pool has room if it has more free addresses than are reserved: by claims that wait in it, and by Clusters that
//! came first in this reconciliation. Otherwise many waiting Clusters would delete their claims for one free address,
//! and all but one would lose the time of that deletion.
//!
//! A pool matches by its class and role, and by its namespace if it has one. Pools with a higher priority come first,
//! then the name decides.
//!
//! The VIP of the control plane is stored as the host of the Cluster's endpoint, and copied to the variable `clusterVip`
//! if the class defines it. The ingress VIP is stored in an annotation, and copied to a label.
//!
//! The function `decide` is long because it is the truth table above, row by row.

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
    /// Delete the claim, if it has not changed since it was read.
    Delete,
    /// Write this VIP on the Cluster, if the Cluster has not changed since it was read.
    Write {
        /// The VIP.
        vip: Arc<str>,
        /// Whether to write the variable or label too.
        with_copy: bool,
    },
}

/// What the plan reports about a VIP of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The Cluster has the VIP of our claim.
    Assigned {
        /// The VIP.
        vip: Arc<str>,
        /// The pool of the claim.
        pool: PoolRef,
        /// The class, if it does not define the variable for patches.
        undefined_in: Option<Key>,
    },
    /// The Cluster has a VIP that is not from our claim.
    Manual(Arc<str>),
    /// The claim waits for an address.
    Allocating(PoolRef),
    /// The controller deletes the claim, to claim from another pool.
    Releasing {
        /// The pool of the claim.
        from: PoolRef,
        /// The pool of the next claim, if it is known.
        to: Option<PoolRef>,
    },
    /// All matching pools are full.
    Exhausted(Vec<PoolRef>),
    /// No pool matches.
    NoPool {
        /// The class of the Cluster.
        class: Arc<str>,
        /// The pool of our claim, if there is one.
        claimed_from: Option<PoolRef>,
    },
    /// The class of the Cluster does not exist.
    NoClass(Key),
    /// The claim with our name has another owner.
    NotOurs(Key),
    /// The address of our claim is already a VIP.
    InUse {
        /// The address.
        vip: Arc<str>,
        /// The role of that VIP.
        role: Role,
        /// The Cluster that has it.
        of: Key,
        /// Our claim.
        claim: Key,
    },
    /// The last attempt failed a short while ago.
    Failed(Arc<str>),
    /// The controller can't read this.
    Unknown(&'static str),
    /// The Cluster is paused.
    Paused,
    /// The Cluster is being deleted.
    Leaving,
    /// The Cluster does not request this VIP.
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

    /// Whether the Cluster gets a VIP without action by a person, mostly within seconds.
    pub fn is_in_progress(&self) -> bool {
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
            Self::Manual(vip) => write!(f, "{vip}, which this controller did not set"),
            Self::Allocating(pool) => write!(f, "waiting for an address from pool {pool}"),
            Self::Releasing { from, to } => {
                write!(
                    f,
                    "deleting the claim from pool {from}, which takes up to the pool's \
                     addressReuseGracePeriodSeconds"
                )?;
                to.iter().try_for_each(|to| write!(f, "; then claiming from pool {to}"))
            }
            Self::Exhausted(pools) => {
                let names: Vec<_> = pools.iter().map(ToString::to_string).collect();
                write!(f, "no address is free in {}: add addresses, or another pool", names.join(", "))
            }
            Self::NoPool { class, claimed_from } => {
                write!(
                    f,
                    "no pool matches class {class} and this role: label one with vip.capi.gorizond.io/cluster-class and \
                     vip.capi.gorizond.io/role"
                )?;
                claimed_from
                    .iter()
                    .try_for_each(|pool| write!(f, "; the claim waits in pool {pool}, which does not match"))
            }
            Self::NoClass(class) => {
                write!(f, "the ClusterClass {class} does not exist: create it, or correct the name")
            }
            Self::NotOurs(claim) => write!(
                f,
                "the IPAddressClaim {claim} has another owner, or is of an earlier Cluster with this name: waiting until it \
                 is deleted"
            ),
            Self::InUse { vip, role, of, claim } => write!(
                f,
                "{vip} is already the {role} VIP of the Cluster {of}. The controller waits until that Cluster is deleted. If \
                 the VIP was set by hand, add it to spec.excludedAddresses of the pool and delete the IPAddressClaim \
                 {claim}"
            ),
            Self::Failed(error) => write!(f, "the last attempt failed, retrying soon: {error}"),
            Self::Unknown(what) => write!(f, "the controller can't read {what}, so it changes nothing"),
            Self::Paused => write!(f, "the Cluster is paused"),
            Self::Leaving => write!(f, "the Cluster is being deleted"),
            Self::NotWanted => write!(f, "the Cluster does not request it"),
        }
    }
}

/// The plan for one VIP of one Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The step to take, if any.
    pub step: Option<Step>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Decision {
    fn without_action(verdict: Verdict) -> Self {
        Self { step: None, verdict }
    }

    fn take(step: Step, verdict: Verdict) -> Self {
        Self { step: Some(step), verdict }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(pool) => write!(f, "claim from {pool}"),
            Self::Delete => write!(f, "delete the claim"),
            Self::Write { vip, with_copy: false } => write!(f, "write {vip}"),
            Self::Write { vip, with_copy: true } => write!(f, "write {vip} in both places"),
        }
    }
}

/// The copy of a VIP in a variable or label.
enum Copy {
    /// This VIP has no copy.
    NotMeant,
    /// The copy would be in a variable that this class does not define.
    Undefined(Key),
    /// There is none yet.
    Missing,
    /// There is one.
    Present,
}

/// The plan for both VIPs of a Cluster.
pub fn plan(world: &World, key: &Key, cluster: &Cluster) -> [(Role, Decision); 2] {
    let control_plane = next(world, key, cluster, Role::ControlPlane);
    // Both VIPs are written in one change, so the second must not be the first.
    let after = match &control_plane.step {
        Some(Step::Write { vip, with_copy }) => {
            Some(cluster.clone().with(Role::ControlPlane, vip, *with_copy))
        }
        _ => None,
    };
    let ingress = next(world, key, after.as_ref().unwrap_or(cluster), Role::Ingress);
    [(Role::ControlPlane, control_plane), (Role::Ingress, ingress)]
}

fn next(world: &World, key: &Key, cluster: &Cluster, role: Role) -> Decision {
    let decide = decide(world, key, cluster, role);
    match (&decide.step, world.failed.get(&(key.clone(), role))) {
        (Some(_), Some(error)) => Decision::without_action(Verdict::Failed(Arc::clone(error))),
        (Some(_), None) if !world.are_clusters_known => {
            Decision::without_action(Verdict::Unknown("Clusters"))
        }
        _ => decide,
    }
}

/// The plan without regard to failures and to whether Clusters are known.
fn decide(world: &World, key: &Key, cluster: &Cluster, role: Role) -> Decision {
    if cluster.undecodable.is_some() {
        return Decision::without_action(Verdict::Unknown("the Cluster"));
    }
    if cluster.is_leaving {
        return Decision::without_action(Verdict::Leaving);
    }
    if cluster.is_paused && !crate::sabotaged!(PausedTouched) {
        return Decision::without_action(Verdict::Paused);
    }
    let Some(class) = &cluster.class else { return Decision::without_action(Verdict::NotWanted) };
    if world.undecodable.claims.contains(&role.claim(key)) {
        return Decision::without_action(Verdict::Unknown("its IPAddressClaim"));
    }
    let is_ours = |claim: &&Claim| claim.owners.contains(&cluster.uid) || crate::sabotaged!(ClaimAdopted);
    if role == Role::Ingress && cluster.wants_ingress == Some(false) {
        let claim = world.claims.as_ref().and_then(|claims| claims.get(&role.claim(key))).filter(is_ours);
        let waits = claim.is_some_and(|claim| claim.address.is_none() && !claim.is_leaving);
        let step = (waits && cluster.ingress.is_none()).then_some(Step::Delete);
        return Decision { step, verdict: Verdict::NotWanted };
    }
    let Some(claims) = &world.claims else {
        return Decision::without_action(Verdict::Unknown("IPAddressClaims"));
    };
    let Some(addresses) = &world.addresses else {
        return Decision::without_action(Verdict::Unknown("IPAddresses"));
    };
    let (Some(global), Some(namespaced)) = (&world.global_pools, &world.namespaced_pools) else {
        return Decision::without_action(Verdict::Unknown("pools"));
    };
    let claim = claims.get(&role.claim(key));
    let ours = claim.filter(is_ours);
    let is_undecodable =
        |address: &Key| world.undecodable.addresses.contains(address) && !addresses.contains_key(address);
    if ours.and_then(|claim| claim.address.as_ref()).is_some_and(is_undecodable) {
        return Decision::without_action(Verdict::Unknown("its IPAddress"));
    }
    let given = ours.and_then(|claim| {
        let address = addresses.get(claim.address.as_ref()?)?;
        (address.claim.as_ref() == Some(&claim.uid)).then_some(&address.ip)
    });
    let copy = match copy(world, cluster, role, given) {
        Ok(copy) => copy,
        Err(verdict) => return Decision::without_action(verdict),
    };
    let present = match role {
        Role::ControlPlane => &cluster.endpoint,
        Role::Ingress => &cluster.ingress,
    };
    let is_replaced = |vip: &Arc<str>| {
        crate::sabotaged!(VipReplaced) && given.is_some_and(|given| given.to_string() != **vip)
    };
    if let Some(vip) = present.as_ref().filter(|vip| !is_replaced(vip)) {
        let verdict = match ours.filter(|_| given.is_some_and(|given| given.to_string() == **vip)) {
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
        return Decision { step, verdict };
    }
    let pools = meant(global.iter().chain(namespaced), key, class, role);
    let find = |is_it: &dyn Fn(&PoolRef, &Pool) -> bool| {
        pools.iter().find(|(name, pool)| is_it(name, pool)).map(|(name, _)| (*name).clone())
    };
    let has_room = find(&|name, pool| world.has_room(name, pool));
    // A Cluster without a claim loses nothing if it creates one: the pool may have more free addresses than its status
    // shows, and other Clusters may get an address elsewhere.
    let has_any = || find(&|_, pool| !pool.is_full());
    let no_pool = |claimed_from| Verdict::NoPool { class: Arc::clone(class), claimed_from };
    let exhausted = || Verdict::Exhausted(pools.iter().map(|(name, _)| (*name).clone()).collect());
    match (claim, has_room) {
        (Some(_), _) if ours.is_none() => Decision::without_action(Verdict::NotOurs(role.claim(key))),
        (Some(claim), to) if claim.is_leaving => {
            Decision::without_action(Verdict::Releasing { from: claim.pool.clone(), to: to.or_else(has_any) })
        }
        (Some(claim), has_room) => {
            let allocating = Verdict::Allocating(claim.pool.clone());
            if let Some(address) = given {
                let vip = address.to_string().into();
                let holder = holder(world, key, cluster, *address);
                if let Some((of, of_role)) = holder.filter(|_| !crate::sabotaged!(VipShared)) {
                    return Decision::without_action(Verdict::InUse {
                        vip,
                        role: of_role,
                        of,
                        claim: role.claim(key),
                    });
                }
                let with_copy = matches!(copy, Copy::Missing | Copy::Present);
                return Decision::take(Step::Write { vip, with_copy }, allocating);
            }
            let is_lost = !pools.iter().any(|(name, pool)| **name == claim.pool && !pool.is_full());
            match has_room {
                // The IPAM provider assigns an address soon, or has assigned one that the watch does not show yet.
                _ if claim.address.is_some() || !is_lost => Decision::without_action(allocating),
                to @ Some(_) => {
                    Decision::take(Step::Delete, Verdict::Releasing { from: claim.pool.clone(), to })
                }
                None if pools.is_empty() => Decision::without_action(no_pool(Some(claim.pool.clone()))),
                None => Decision::without_action(exhausted()),
            }
        }
        (None, has_room) => match (has_room.or_else(has_any), pools.first()) {
            (Some(room), _) => Decision::take(Step::Create(room.clone()), Verdict::Allocating(room)),
            // The provider assigns an address as soon as the pool has one.
            (None, Some((first, _))) => Decision::take(Step::Create((*first).clone()), exhausted()),
            (None, None) if role == Role::Ingress && cluster.wants_ingress.is_none() => {
                Decision::without_action(Verdict::NotWanted)
            }
            (None, None) => Decision::without_action(no_pool(None)),
        },
    }
}

/// The state of the copy of a VIP, or the verdict if that is unknown.
fn copy(world: &World, cluster: &Cluster, role: Role, given: Option<&IpAddr>) -> Result<Copy, Verdict> {
    let is_there = |copy: &Option<Arc<str>>| if copy.is_some() { Copy::Present } else { Copy::Missing };
    match (role, &cluster.topology) {
        (Role::Ingress, _) => {
            // A label value can't contain a colon.
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

/// The Cluster and role that use an address as a VIP. The Cluster may be in deletion. It may also be the
/// Cluster that is being planned, with its other VIP.
fn holder(world: &World, key: &Key, cluster: &Cluster, address: IpAddr) -> Option<(Key, Role)> {
    let is_it = |vip: &Option<Arc<str>>| vip.as_ref().is_some_and(|vip| vip.parse::<IpAddr>() == Ok(address));
    let is_written = |((of, _), vip): &(&(Key, Role), &Arc<str>)| {
        of != key && vip.parse::<IpAddr>() == Ok(address) && !crate::sabotaged!(VipShared)
    };
    if let Some((of, _)) = world.writing.iter().find(is_written) {
        return Some(of.clone());
    }
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

/// The matching pools, the first choice first.
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
    /// Reserves the addresses that a Cluster is about to claim, so that other Clusters use other pools.
    pub fn reserve(&mut self, planned: &[(Role, Decision); 2]) {
        for (_, next) in planned {
            if let (Some(Step::Create(pool)), _) | (_, Verdict::Releasing { to: Some(pool), .. }) =
                (&next.step, &next.verdict)
            {
                *self.reserved.entry(pool.clone()).or_default() += 1;
            }
        }
    }
}
