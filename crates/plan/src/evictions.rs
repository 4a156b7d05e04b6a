//! Pods that are on a node without an address, which nobody reaches there under the workload's own.
//!
//! For each object that evicts, the first line that applies:
//!
//! ```text
//! it is not active, or the breaker of its account is tripped     nothing
//! something about an address of its kind is not known            nothing
//! one of its own addresses is not where it stays                 nothing: first that, then the pods
//! ```
//!
//! and then for each node with pods of its workload that can be evicted, by name, the first line that applies:
//!
//! ```text
//! it is not Ready, its machine is not known, one of the
//!   object's addresses is there, or a move has to do with it     nothing
//! another object's address is there                              report it: the scheduler would bring them back
//! no Ready, schedulable node holds one of its addresses          report it: they would find no place
//! one is being evicted, or was a short while ago                 wait
//! otherwise                                                      evict one
//! ```

use crate::bits::Bits;
use crate::member::Member;
use crate::{Astray, Holding, Mode, NodeName, Plan, Pool, Readiness, Timestamp, Verdict, World};

/// What to evict for a pool now, what to say of it, and when to ask again.
#[derive(Debug, Default)]
pub(crate) struct EvictionDecision {
    pub(crate) from: Option<NodeName>,
    pub(crate) astray: Option<Astray>,
    pub(crate) ask_again: Option<Timestamp>,
}

/// What to evict for a pool. `holding` are the nodes that hold any address, `busy` those besides that have to do with one.
pub(crate) fn next(
    world: &World,
    member: &Member,
    plan: &Plan,
    holding: &Bits,
    busy: &Bits,
    now: Timestamp,
) -> EvictionDecision {
    let pool = &*member.pool;
    let is_sure = pool.policy.evicts
        && pool.policy.mode == Mode::Active
        && !plan.tripped.contains_key(&pool.scope)
        && !plan.marks.uncertain.contains(pool.key.kind);
    let Some(verdicts) = plan.verdicts.get(&pool.key).filter(|_| is_sure) else {
        return EvictionDecision::default();
    };
    let stays = |said: &Verdict| {
        !matches!(said, Verdict::Moving(_) | Verdict::Queued(_) | Verdict::Unknown(_) | Verdict::Waits(_))
    };
    if !verdicts.iter().all(|(_, said)| stays(said)) {
        return EvictionDecision::default();
    }
    let own = own(world, pool);
    let can_take = |slot: usize| {
        let node = world.at(slot).map(|(_, node)| node);
        node.is_some_and(|node| node.readiness == Readiness::Ready && !node.is_cordoned && !node.is_leaving)
    };
    let has_place = own.iter().any(|slot| can_take(*slot));
    let mut next = EvictionDecision::default();
    for slot in world.slots_by_name().filter(|slot| member.evictable.contains(*slot)) {
        let Some((name, node)) = world.at(slot) else { continue };
        let is_known = node.readiness == Readiness::Ready && node.machine.is_some();
        if !is_known || own.contains(&slot) || (busy.contains(slot) && !holding.contains(slot)) {
            continue;
        }
        let astray = match (holding.contains(slot), has_place) {
            (true, _) => Astray::AtAnothers(name.clone()),
            (false, false) => Astray::NoPlace(name.clone()),
            (false, true) => {
                next.astray = Some(Astray::Leave(name.clone()));
                match world.avoid_evictions.get(&pool.key).filter(|until| now < **until) {
                    Some(until) => next.ask_again = Some(*until),
                    None if world.in_flight.evictions.contains(&pool.key) => {}
                    None => next.from = Some(name.clone()),
                }
                return next;
            }
        };
        next.astray.get_or_insert(astray);
    }
    next
}

/// What is known of a pod of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadPod<'a, P> {
    /// What stands for the pod.
    pub pod: P,
    /// The node that it runs on; none while it is not scheduled.
    pub node: Option<&'a str>,
    /// Whether it is being deleted.
    pub is_leaving: bool,
    /// Whether it certainly belongs to the workload, and is of a kind that may be evicted.
    pub may_evict: bool,
}

/// The pod of a workload to evict from a node: the first one. None while a pod of the workload starts or ends, because one pod leaves
/// at a time.
pub fn pod_to_evict<'a, P>(pods: impl Iterator<Item = WorkloadPod<'a, P>>, from: &NodeName) -> Option<P> {
    let mut found = None;
    for WorkloadPod { pod, node, is_leaving, may_evict } in pods {
        if node.is_none() || is_leaving {
            return None;
        }
        if found.is_none() && may_evict && node == Some(from.as_str()) {
            found = Some(pod);
        }
    }
    found
}

/// The nodes that hold addresses of a pool.
fn own(world: &World, pool: &Pool) -> Vec<usize> {
    let holder = |address| match &world.fact(&pool.scope, address)?.holding {
        Holding::By(vm) => world.slot_of_machine(vm),
        Holding::Free | Holding::Missing | Holding::Unknown(_) => None,
    };
    pool.addresses.iter().filter_map(|address| holder(*address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &'static str, node: Option<&'static str>) -> WorkloadPod<'static, &'static str> {
        WorkloadPod { pod: name, node, is_leaving: false, may_evict: true }
    }

    #[test]
    fn the_first_pod_on_the_node_is_evicted() {
        let pods = [pod("a", Some("n1")), pod("b", Some("n2")), pod("c", Some("n2"))];
        assert_eq!(pod_to_evict(pods.into_iter(), &"n2".into()), Some("b"));
        assert_eq!(pod_to_evict(pods.into_iter(), &"n3".into()), None);
    }

    #[test]
    fn no_pod_is_evicted_while_another_starts_or_ends() {
        let starting = [pod("a", Some("n1")), pod("b", None)];
        assert_eq!(pod_to_evict(starting.into_iter(), &"n1".into()), None);
        let ending = WorkloadPod { is_leaving: true, ..pod("b", Some("n2")) };
        assert_eq!(pod_to_evict([pod("a", Some("n1")), ending].into_iter(), &"n1".into()), None);
    }

    #[test]
    fn a_pod_that_may_not_be_evicted_stays() {
        let kept = WorkloadPod { may_evict: false, ..pod("a", Some("n1")) };
        assert_eq!(pod_to_evict([kept, pod("b", Some("n1"))].into_iter(), &"n1".into()), Some("b"));
    }
}
