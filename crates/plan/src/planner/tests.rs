//! One line of world in, one line of plan out.
//!
//! A world is clauses between bars. `n1 …` is a node: `cordoned`, `empty` or `pods` (none, or some that are not Ready; one
//! that is Ready otherwise), `notready 30` (for so many seconds), `zone b`, `unmatched`, `nomachine`, `holds a1`. `a1 …` is
//! an address: `free` (so is one that no node holds), `unknown`, `missing`, `foreign`, `left` (on a machine that was ours).
//! Other clauses change the pool, which is a NetIPAllocation: `floating`, `observe`, `takeover`, `grace 60`, `desired 1`,
//! `only zone a`, and `younger lists a1` adds a second one.

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::*;
use crate::{Node, Pods, Policy, Provider, Readiness};

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn seconds_ago(seconds: &str) -> Timestamp {
    now() - Duration::from_secs(seconds.parse().unwrap())
}

fn address(name: &str) -> Address {
    format!("203.0.113.{}", name.trim_start_matches('a')).parse().unwrap()
}

fn pool(name: &str, age: &str) -> Pool {
    Pool {
        key: PoolKey { kind: "NetIPAllocation", namespace: String::new(), name: name.into() },
        created: seconds_ago(age),
        scope: Scope { provider: Provider::Gcp, account: "demo".into() },
        addresses: Vec::new(),
        desired: 1_000,
        members: BTreeMap::new(),
        tenancy: Tenancy::UntilDrained,
        region: None,
        zones: Vec::new(),
        last_holders: BTreeMap::new(),
        policy: Policy { mode: Mode::Active, failover_grace: Duration::ZERO, takeover: Takeover::Never },
    }
}

fn world(text: &str) -> World {
    let mut world = World::default();
    let mut pool = pool("p", "1000");
    let mut younger = None;
    let word_is_address =
        |word: &&str| word.len() > 1 && word.starts_with('a') && word[1..].parse::<u8>().is_ok();
    let mut names: Vec<_> = text.split([' ', '|']).filter(word_is_address).collect();
    names.sort();
    names.dedup();
    for name in names {
        pool.addresses.push(address(name));
        world.addresses.insert(address(name), Fact::Known(Holding::Free));
    }
    for clause in text.split('|') {
        let words: Vec<_> = clause.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["floating"] => pool.tenancy = Tenancy::UntilDisplaced { needs_pods: true },
            ["floating", "anypods"] => pool.tenancy = Tenancy::UntilDisplaced { needs_pods: false },
            ["observe"] => pool.policy.mode = Mode::Observe,
            ["takeover"] => pool.policy.takeover = Takeover::Always,
            ["grace", seconds] => pool.policy.failover_grace = Duration::from_secs(seconds.parse().unwrap()),
            ["desired", count] => pool.desired = count.parse().unwrap(),
            ["only", "zone", zone] => pool.zones = vec![(*zone).into()],
            ["younger", "lists", listed @ ..] => {
                let mut other = self::pool("younger", "10");
                other.addresses = listed.iter().map(|name| address(name)).collect();
                younger = Some(other);
            }
            [name, state] if word_is_address(name) => {
                let vm = VmId(format!("vm-of-{state}"));
                let fact = match *state {
                    "free" => Fact::Known(Holding::Free),
                    "unknown" => Fact::Unknown("the cloud did not answer".into()),
                    "missing" => Fact::Known(Holding::Missing),
                    "foreign" => Fact::Known(Holding::By(vm)),
                    "left" => {
                        pool.last_holders.insert(address(name), vm.clone());
                        Fact::Known(Holding::By(vm))
                    }
                    other => panic!("no such state of an address: {other}"),
                };
                world.addresses.insert(address(name), fact);
            }
            [name, words @ ..] => add_node(&mut world, &mut pool, name, words),
        }
    }
    if let Some(mut younger) = younger {
        younger.members = pool.members.clone();
        world.pools.push(younger);
    }
    world.pools.push(pool);
    world
}

fn add_node(world: &mut World, pool: &mut Pool, name: &str, words: &[&str]) {
    let vm = VmId(format!("vm-{name}"));
    let mut pods = Some(Pods::Ready);
    let mut node = Node {
        vm: Some(vm.clone()),
        readiness: Readiness::Ready,
        is_cordoned: false,
        region: None,
        zone: Some("a".into()),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut next = || *words.next().unwrap();
        match *word {
            "ready" => {}
            "cordoned" => node.is_cordoned = true,
            "empty" => pods = Some(Pods::Absent),
            "pods" => pods = Some(Pods::Present),
            "unmatched" => pods = None,
            "nomachine" => node.vm = None,
            "notready" => node.readiness = Readiness::NotReadySince(seconds_ago(next())),
            "zone" => node.zone = Some(next().into()),
            "holds" => {
                world.addresses.insert(address(next()), Fact::Known(Holding::By(vm.clone())));
            }
            other => panic!("no such word for a node: {other}"),
        }
    }
    let name = NodeName(name.into());
    pool.members.extend(pods.map(|pods| (name.clone(), pods)));
    world.nodes.insert(name, node);
}

/// The steps, or where there are none, what is said of the pool's addresses.
fn check(text: &str, expected: Expect) {
    let world = world(text);
    let plan = plan(&world, now());
    assert_eq!(plan, super::plan(&world, now()), "the same world gives the same plan");
    let steps = plan.to_string().replace('\n', ", ");
    let says = |((pool, address), verdict): (&(PoolKey, Address), &Verdict)| match pool.name.as_str() {
        "p" => format!("{address} {verdict}"),
        _ => format!("{address} of {}: {verdict}", pool.name),
    };
    let verdicts: Vec<_> = plan.verdicts.iter().map(says).collect();
    let text = if steps.is_empty() { verdicts.join(", ") } else { steps };
    expected.assert_eq(&text.replace("203.0.113.", "a"));
}

#[test]
fn free_addresses_go_to_nodes_in_the_order_of_their_names() {
    check("n2 | n1 | a1 free | a2 free", expect!["attach a1 -> n1, attach a2 -> n2"]);
}

#[test]
fn a_settled_world_plans_nothing() {
    check("n1 holds a1 | n2 holds a2 | n3", expect!["a1 on n1, a2 on n2"]);
}

#[test]
fn a_drained_node_gives_its_address_to_the_next_one() {
    check("n1 cordoned empty holds a1 | n2 ready", expect!["move a1 n1 -> n2"]);
}

#[test]
fn a_cordoned_node_keeps_its_address_while_pods_are_on_it() {
    check("n1 cordoned pods holds a1 | n2", expect!["a1 on n1"]);
}

#[test]
fn n8_a_drained_node_without_a_successor_is_detached() {
    check("n1 cordoned empty holds a1", expect!["detach a1 from n1"]);
}

#[test]
fn a_notready_node_keeps_its_address_for_the_grace_and_the_plan_says_when_to_ask_again() {
    check("grace 60 | n1 notready 30 holds a1 | n2", expect!["a1 on n1"]);
    let asked = plan(&world("grace 60 | n1 notready 30 holds a1 | n2"), now()).ask_again;
    assert_eq!(asked, Some(now() + Duration::from_secs(30)));
    check("grace 60 | n1 notready 60 holds a1 | n2", expect!["move a1 n1 -> n2"]);
}

#[test]
fn an_address_of_a_deleted_node_moves_on_because_the_status_remembers_its_machine() {
    check("a1 left | n1", expect!["move a1 vm-of-left -> n1"]);
}

#[test]
fn an_address_on_a_foreign_machine_is_left_there() {
    check("a1 foreign | n1", expect!["a1 is held by vm-of-foreign, which is no node of this cluster"]);
}

#[test]
fn takeover_takes_an_address_from_a_foreign_machine_but_never_to_leave_it_nowhere() {
    check("takeover | a1 foreign | n1", expect!["move a1 vm-of-foreign -> n1"]);
    check("takeover | a1 foreign", expect!["a1 is held by vm-of-foreign, which is no node of this cluster"]);
}

#[test]
fn unknown_facts_cause_no_step_anywhere_in_their_scope() {
    check(
        "a1 unknown | a2 free | n1 | n2",
        expect!["a1 is left alone: the cloud did not answer, a2 waits: no node can take it"],
    );
}

#[test]
fn a_missing_address_is_reported_and_the_others_are_placed() {
    check("a1 missing | n1", expect!["a1 is not known to the cloud"]);
    check("a1 missing | a2 free | n1", expect!["attach a2 -> n1"]);
}

#[test]
fn one_machine_gets_one_address() {
    check("n1 holds a1 | a2 free", expect!["a1 on n1, a2 waits: no node can take it"]);
}

#[test]
fn n4_zones_restrict_new_placements_and_never_evict_a_holder() {
    check("only zone a | n1 zone b | a1 free", expect!["a1 waits: no node can take it"]);
    check("only zone a | n1 zone b holds a1 | n2 zone a", expect!["a1 on n1"]);
}

#[test]
fn the_older_object_owns_an_address_and_the_younger_is_told() {
    check(
        "younger lists a1 | n1 holds a1 | n2",
        expect!["a1 on n1, a1 of younger: belongs to NetIPAllocation/p, which is older"],
    );
}

#[test]
fn an_observed_pool_says_what_it_would_do() {
    check(
        "observe | n1 cordoned empty holds a1 | n2",
        expect!["a1 is only observed, otherwise: move a1 n1 -> n2"],
    );
}

#[test]
fn f3_floating_addresses_go_to_nodes_with_a_ready_pod() {
    check("floating | n1 pods | n2 empty | n3 | a1 free", expect!["attach a1 -> n3"]);
}

#[test]
fn f2_without_pod_selectors_every_node_will_do() {
    check("floating anypods | n1 empty | a1 free", expect!["attach a1 -> n1"]);
}

#[test]
fn f4_a_floating_address_leaves_only_when_another_node_needs_it() {
    check(
        "floating | n1 pods holds a1",
        expect!["a1 stays on n1 until another node can take it: no matching pod on the node is Ready"],
    );
    check("floating | n1 pods holds a1 | n2", expect!["move a1 n1 -> n2"]);
}

#[test]
fn addresses_beyond_the_desired_number_are_left_alone() {
    check("desired 1 | n1 | n2 | a1 free | a2 free", expect!["attach a1 -> n1"]);
}

#[test]
fn a_node_without_a_machine_is_never_chosen() {
    check("n1 nomachine | a1 free", expect!["a1 waits: no node can take it"]);
}

#[test]
fn a_node_that_stops_matching_gives_its_address_up() {
    check("n1 unmatched holds a1 | n2", expect!["move a1 n1 -> n2"]);
}
