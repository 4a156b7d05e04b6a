//! Evictions of pods from nodes without an address: clients can't reach these pods at the workload's addresses.
//!
//! In: the world, and the verdicts of the plan so far. Out: for each pool, at most one node from which to evict a pod,
//! and what to report. Nothing here evicts a pod.
//!
//! For each object with `policy.evictPods`, the first line that applies:
//!
//! ```text
//! it is not active, or the breaker of its scope is tripped       nothing
//! an object of its kind has an unreadable journal, or can't be
//!   read                                                         nothing
//! one of its own addresses is moving or waiting                  nothing: the addresses come first
//! one of its own addresses is in an unknown state                nothing
//! ```
//!
//! Then for each node with pods of its workload that the controller may evict, by name, the first line that applies:
//!
//! ```text
//! it is not Ready, its VM is unknown, it holds an address of
//!   the object, a move or call involves it, or it may hold an
//!   address in an unknown state                                  nothing
//! it may have `ip.ready` because of an object that the
//!   controller does not act on                                   nothing: the scheduler would bring the pods back
//! it holds an address of another object                          report it: the scheduler would bring the pods back
//! no Ready, schedulable node that nobody is about to remove
//!   holds an address of the object                               report it: the pods would find no node
//! an eviction is in flight, or ended a short while ago           wait
//! the watch of nodes or pods has been silent for a while         list these again first
//! otherwise                                                      evict one pod
//! ```

use crate::bits::Bits;
use crate::member::Member;
use crate::possible_holders;
use crate::{
    Address, Holding, MisplacedPods, Mode, NodeName, Plan, Pool, Readiness, Timestamp, Verdict, World,
};

/// The node from which to evict a pod now, what to report, and when to plan again.
#[derive(Debug, Default)]
pub(crate) struct EvictionDecision {
    pub(crate) from: Option<NodeName>,
    pub(crate) misplaced_pods: Option<MisplacedPods>,
    pub(crate) ask_again: Option<Timestamp>,
}

/// What to evict for a pool. `holding`: nodes that hold any address. `busy`: these, and nodes that a move or call
/// involves, that may hold an address in an unknown state, or that may have the mark of an object that the controller does not
/// act on.
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
    let is_unknown =
        |address: &Address| possible_holders::is_unknown(pool, *address, world.fact(&pool.scope, *address));
    let is_sure = is_sure && !pool.addresses.iter().any(is_unknown);
    let Some(verdicts) = plan.verdicts.get(&pool.key).filter(|_| is_sure) else {
        return EvictionDecision::default();
    };
    let stays = |verdict: &Verdict| match verdict {
        Verdict::Moving(_)
        | Verdict::Queued(_)
        | Verdict::LeftToNextLeader { .. }
        | Verdict::Unknown(_)
        | Verdict::Waits(_) => false,
        Verdict::Settled(_)
        | Verdict::NoMatch(..)
        | Verdict::NoNode
        | Verdict::OtherRegion(..)
        | Verdict::Unsupported(_)
        | Verdict::Foreign(_)
        | Verdict::OwnedBy(_)
        | Verdict::Missing
        | Verdict::Disabled
        | Verdict::Releasing
        | Verdict::Unmarked
        | Verdict::Leaving
        | Verdict::WouldStep(_) => true,
    };
    if !verdicts.iter().all(|(_, verdict)| stays(verdict)) {
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
        let misplaced_pods = match (holding.contains(slot), has_place) {
            (true, _) => MisplacedPods::AtAnothers(name.clone()),
            (false, false) => MisplacedPods::NoPlace(name.clone()),
            (false, true) => {
                next.misplaced_pods = Some(MisplacedPods::Leave(name.clone()));
                match world.avoid_evictions.get(&pool.key).filter(|until| now < **until) {
                    Some(until) => next.ask_again = Some(*until),
                    None if world.in_flight.evictions.contains(&pool.key) => {}
                    None => next.from = Some(name.clone()),
                }
                return next;
            }
        };
        next.misplaced_pods.get_or_insert(misplaced_pods);
    }
    next
}

/// A pod of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadPod<'a, P> {
    /// The pod, in the caller's type.
    pub pod: P,
    /// The node that it runs on; none while it is not scheduled.
    pub node: Option<&'a str>,
    /// Whether it is being deleted.
    pub is_leaving: bool,
    /// Whether it certainly belongs to the workload, and the controller may evict pods of its kind.
    pub may_evict: bool,
}

/// The pod of a workload to evict from a node: the first one. None while a pod of the workload is not scheduled yet or
/// is being deleted, because only one pod leaves at a time.
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

/// The slots of nodes that hold addresses of a pool.
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
    fn no_pod_is_evicted_while_another_starts_or_terminates() {
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
