//! Compares the planner with brute force on every small world: it places as many addresses as possible, and moves no
//! more than needed.
//!
//! The test tries every world with at most 5 addresses, 5 nodes and 2 pools, for both kinds of tenancy of each pool.
//! The kind of a node says which pools may place an address on it, and what it holds. Two worlds are the same if they
//! have the same number of nodes of each kind, and of free addresses of each owner.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::time::Duration;

use plan::{
    Action, Address, Fact, Holding, Node, NodeName, Pods, Policy, Pool, PoolKey, Provider, Readiness, Scope,
    Tenancy, Tick, Timestamp, VmId, World, plan,
};

const NODES_MAX: usize = 5;
const ADDRESSES_MAX: usize = 5;

/// What distinguishes a node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// It holds no address. For each pool, whether the pool may place an address on it.
    Idle([bool; 2]),
    /// It holds an address of this pool. Whether the address stays, and whether the other pool matches the node.
    Holds { owner: usize, stays: Stays, other: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stays {
    Fit,
    Keeps,
    Leaves,
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for first in [false, true] {
        for second in [false, true] {
            kinds.push(Kind::Idle([first, second]));
        }
    }
    for owner in [0, 1] {
        for stays in [Stays::Fit, Stays::Keeps, Stays::Leaves] {
            for other in [false, true] {
                kinds.push(Kind::Holds { owner, stays, other });
            }
        }
    }
    kinds
}

/// Every multiset of at most `size_max` kinds.
fn multisets(kinds: &[Kind], size_max: usize) -> Vec<Vec<Kind>> {
    let Some((first, rest)) = kinds.split_first() else { return vec![Vec::new()] };
    let mut all = Vec::new();
    for count in 0..=size_max {
        for mut set in multisets(rest, size_max - count) {
            set.extend(std::iter::repeat_n(*first, count));
            all.push(set);
        }
    }
    all
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn scope() -> Scope {
    Scope { provider: Provider::DigitalOcean, account: "".into() }
}

fn build(nodes: &[Kind], free: [usize; 2], tenancies: [Tenancy; 2]) -> World {
    let mut addresses: [Vec<Address>; 2] = Default::default();
    let mut world = World::default();
    let mut number = 0;
    let mut add = |owner: usize, holding: Holding, world: &mut World| {
        number += 1;
        let address: Address = format!("203.0.113.{number}").parse().unwrap();
        world.set_fact(&scope(), address, Fact::new(holding, Tick(1)));
        addresses[owner].push(address);
    };
    for owner in [0, 1] {
        for _ in 0..free[owner] {
            add(owner, Holding::Free, &mut world);
        }
    }
    let mut members = Vec::new();
    for (at, kind) in nodes.iter().enumerate() {
        let (name, vm): (NodeName, VmId) = (format!("n{at}").into(), format!("vm{at}").into());
        let mut readiness = Readiness::Ready;
        let matched = match *kind {
            Kind::Idle(matched) => matched,
            Kind::Holds { owner, stays, other } => {
                add(owner, Holding::By(vm.clone()), &mut world);
                if stays == Stays::Keeps {
                    readiness = Readiness::NotReadySince(now() - Duration::from_secs(10));
                }
                let mut matched = [other; 2];
                matched[owner] = stays != Stays::Leaves;
                matched
            }
        };
        let machine = Some((scope(), vm));
        world.set_node(&name, Node::new(machine, readiness));
        members.push((name, matched));
    }
    for owner in [0, 1] {
        let key = PoolKey { kind: "FloatingIPPool", namespace: "".into(), name: format!("p{owner}").into() };
        world.set_pool(Pool {
            created: now(),
            tenancy: tenancies[owner],
            policy: Policy { failover_grace: Duration::from_secs(60), ..Policy::default() },
            ..Pool::new(key.clone(), scope(), addresses[owner].clone())
        });
        for (name, matched) in &members {
            world.set_member(&key, name, matched[owner].then_some(Pods::Ready));
        }
    }
    world
}

/// The maximum number of placed addresses and, with that, the minimum number of addresses taken from a holder, by brute
/// force.
fn best(seekers: &[(usize, bool)], idle: &[[bool; 2]], used: &mut Vec<bool>) -> (usize, usize) {
    let Some(((owner, is_held), rest)) = seekers.split_first() else { return (0, 0) };
    let better = |one: (usize, usize), other: (usize, usize)| {
        if (one.0, std::cmp::Reverse(one.1)) >= (other.0, std::cmp::Reverse(other.1)) { one } else { other }
    };
    let mut most = best(rest, idle, used);
    let mut tried = Vec::new();
    for (at, matched) in idle.iter().enumerate() {
        // Nodes of one kind are equal, so it is enough to try one of them.
        if used[at] || !matched[*owner] || tried.contains(matched) {
            continue;
        }
        tried.push(*matched);
        used[at] = true;
        let (placed, moved) = best(rest, idle, used);
        most = better(most, (placed + 1, moved + usize::from(*is_held)));
        used[at] = false;
    }
    most
}

#[test]
fn every_small_world_is_placed_as_well_as_by_brute_force() {
    let tenancies = [Tenancy::UntilDrained, Tenancy::UntilDisplaced { needs_pods: false }];
    let started = std::time::Instant::now();
    let mut worlds = 0_u64;
    for nodes in multisets(&kinds(), NODES_MAX) {
        let held = nodes.iter().filter(|kind| matches!(kind, Kind::Holds { .. })).count();
        for first in 0..=ADDRESSES_MAX - held {
            for second in 0..=ADDRESSES_MAX - held - first {
                let mut seekers = [vec![(0, false); first], vec![(1, false); second]].concat();
                seekers.extend(nodes.iter().filter_map(|kind| match kind {
                    Kind::Holds { owner, stays: Stays::Leaves, .. } => Some((*owner, true)),
                    _ => None,
                }));
                let idle: Vec<_> = nodes
                    .iter()
                    .filter_map(|kind| match kind {
                        Kind::Idle(matched) => Some(*matched),
                        Kind::Holds { .. } => None,
                    })
                    .collect();
                let expected = best(&seekers, &idle, &mut vec![false; idle.len()]);
                for of_first in tenancies {
                    for of_second in tenancies {
                        let planned = plan(&build(&nodes, [first, second], [of_first, of_second]), now());
                        let begun = planned.steps.iter().filter_map(|step| match &step.action {
                            Action::Begin(entry) => entry.to.as_ref().map(|_| entry.from.is_some()),
                            other => panic!("{other:?} without a journal"),
                        });
                        let (placed, moved) = begun.fold((0, 0), |(placed, moved), is_held| {
                            (placed + 1, moved + usize::from(is_held))
                        });
                        assert_eq!((placed, moved), expected, "{nodes:?} {first} {second}: {planned}");
                        worlds += 1;
                    }
                }
            }
        }
    }
    println!("{worlds} of {worlds} worlds equal brute force, in {:?}", started.elapsed());
}
