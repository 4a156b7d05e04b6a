//! Tests of the planner's decisions in small worlds. The module `worlds` documents their syntax.

mod worlds;

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::expect;

use self::worlds::{address, check, fact, now, pool, record, scope, seconds_ago, vm, world};
use super::*;
use crate::{
    Account, Epoch, Fact, Lacking, Node, Pause, Pods, PoolKey, Published, Readiness, SignedDuration, Turn,
};

#[test]
fn free_addresses_go_to_nodes_in_the_order_of_their_names() {
    check("n2 | n1 | a1 free | a2 free", expect!["begin to attach a1 to n1, begin to attach a2 to n2"]);
}

#[test]
fn a_settled_world_plans_nothing() {
    check("n1 holds a1 | n2 holds a2 | n3", expect!["a1 on n1, a2 on n2"]);
}

#[test]
fn a_drained_node_gives_its_address_to_the_next_one() {
    check("n1 cordoned empty holds a1 | n2 ready", expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn a_cordoned_node_keeps_its_address_while_pods_are_on_it() {
    check("n1 cordoned pods holds a1 | n2", expect!["a1 on n1"]);
}

#[test]
fn an_undecodable_node_keeps_its_address_and_gets_none() {
    check("n1 undecodable holds a1 | n2", expect!["a1 on n1"]);
    check("n1 undecodable cordoned empty holds a1 | n2", expect!["a1 on n1"]);
    check("floating | n1 undecodable unmatched holds a1 | n2", expect!["a1 on n1"]);
    check("n1 undecodable | a1 free", expect!["a1 is attached to no VM: no node can take it"]);
    check("n1 undecodable | n2 | a1 moves - -> n1", expect!["abandon the move of a1"]);
    let lost = "n1 undecodable holds a1 | n2 undecodable holds a2 | n3 undecodable holds a3 | n4 undecodable holds a4 | n5 undecodable holds a5";
    assert!(plan(&world(lost), now()).tripped.is_empty(), "undecodable nodes are not lost");
}

#[test]
fn a_node_with_an_undecodable_pod_keeps_its_address_and_gets_none() {
    check("floating | n1 undecodable-pods holds a1 | n2", expect!["a1 on n1"]);
    check("floating | n1 pods holds a1 | n2", expect!["begin to move a1 from n1 to n2"]);
    check(
        "floating | n1 undecodable-pods | a1 free",
        expect!["a1 is attached to no VM: no node can take it"],
    );
    check("n1 cordoned undecodable-pods holds a1 | n2", expect!["a1 on n1"]);
}

#[test]
fn an_undecodable_node_represents_its_vm_before_a_notready_one() {
    check("n1 notready 500 machine n2 unmatched | n2 undecodable holds a1 | n3", expect!["a1 on n2"]);
}

#[test]
fn a_vm_in_an_undecodable_object_gets_no_address() {
    check("n1 reserved | n2 | a1 free | a2 free", expect!["begin to attach a1 to n2"]);
}

#[test]
fn an_unwritable_object_starts_nothing_and_blocks_no_node() {
    let mut world = world("n1 | n2 holds a1 | a2 free | a3 free | younger lists a3");
    let plan_of = |world: &World| plan(world, now()).to_string();
    assert_eq!(plan_of(&world), "begin to attach 203.0.113.2 to n1");
    let key = PoolKey { kind: "NetIPAllocation", namespace: "".into(), name: "p".into() };
    world.unwritable.insert(key.clone(), now() + Duration::from_secs(30));
    let plan = plan(&world, now());
    assert!(plan.steps.iter().all(|step| step.pool != key), "{plan}");
    assert_eq!(plan.ask_again, Some(now() + Duration::from_secs(30)));
}

/// A pool that lists `listed` addresses, and has unfinished moves of `removed` addresses that it no longer lists.
fn full(listed: u32, removed: u32) -> World {
    let mut world = World::default();
    world.epoch = Epoch(7);
    let ip = |number: u32| Address(std::net::Ipv4Addr::from(0x0a00_0000 + number).into());
    let mut pool = Pool { addresses: (removed..removed + listed).map(ip).collect(), ..pool("p", "1000") };
    let entry = Move {
        from: None,
        to: Some(Target { vm: vm("old"), node: "old".into() }),
        to_restore: BTreeSet::new(),
        releases: false,
        is_voluntary: false,
        epoch: Epoch(7),
        written: Tick(5),
    };
    pool.journal = Journal::Known((0..removed).map(|number| (ip(number), entry.clone())).collect());
    (0..removed + listed).for_each(|number| world.set_fact(&scope(), ip(number), fact(Holding::Free)));
    let node = Node::new(None, Readiness::Ready);
    let names: Vec<NodeName> = (0..listed).map(|number| format!("n{number}").as_str().into()).collect();
    for name in &names {
        let machine = Some((scope(), vm(name.as_str())));
        world.set_node(name, Node { machine, ..node.clone() });
    }
    let key = pool.key.clone();
    world.set_pool(pool);
    names.iter().for_each(|name| world.set_member(&key, name, Some(Pods::Ready)));
    world
}

#[test]
fn a_move_that_does_not_fit_into_the_journal_waits() {
    let begun = |world: &World| {
        let plan = plan(world, now());
        let begun = plan.steps.iter().filter(|step| matches!(step.action, Action::Begin(_))).count();
        let waits = |(_, verdict): &&(Address, Verdict)| *verdict == Verdict::Waits(Waits::ForRoom);
        (begun, plan.verdicts.values().flatten().filter(waits).count())
    };
    assert_eq!(begun(&full(1_000, 0)), (1_000, 0));
    assert_eq!(begun(&full(1_000, 30)), (970, 30));
    assert_eq!(begun(&full(900, 30)), (900, 0));

    let mut creating = full(970, 30);
    let mut pool = creating.pools().next().unwrap().clone();
    (pool.creates, pool.desired) = (Some("tag".into()), 1_000);
    pool.region = Some("r".into());
    creating.set_pool(pool);
    creating.accounts.insert(scope(), Account { as_of: Tick(10), can_tag: true });
    let plan = plan(&creating, now());
    let begun = plan.steps.iter().filter(|step| matches!(step.action, Action::Begin(_))).count();
    assert_eq!((plan.creations.len(), begun), (1, 969), "a creation needs room in the journal, too");
}

#[test]
fn n8_a_drained_nodes_address_is_detached_if_no_node_can_take_it() {
    check("n1 cordoned empty holds a1", expect!["begin to detach a1 from n1"]);
}

#[test]
fn a_notready_node_keeps_its_address_for_the_grace_period() {
    check("grace 60 | n1 notready 30 holds a1 | n2", expect!["a1 on n1"]);
    let asked = plan(&world("grace 60 | n1 notready 30 holds a1 | n2"), now()).ask_again;
    assert_eq!(asked, Some(now() + Duration::from_secs(30)));
    check("grace 60 | n1 notready 60 holds a1 | n2", expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn i15_grace_starts_when_the_controller_sees_the_node_notready() {
    check("grace 60 | n1 notready 90 seen 30 holds a1 | n2", expect!["a1 on n1"]);
    check("grace 60 | n1 notready 1 seen 60 holds a1 | n2", expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn a_huge_grace_period_does_not_overflow() {
    check("grace 18446744073709551615 | n1 notready 30 holds a1 | n2", expect!["a1 on n1"]);
    check("grace 9223372036854775807 | n1 notready 30 holds a1 | n2", expect!["a1 on n1"]);
}

#[test]
fn an_address_of_a_deleted_node_moves_to_another_node() {
    check("a1 left | n1", expect!["begin to move a1 from left to n1"]);
}

#[test]
fn an_address_on_a_foreign_vm_stays_there() {
    check(
        "a1 foreign | n1",
        expect![
            "a1 is attached to foreign, which is not a node of this cluster: detach it there, or see policy.takeover"
        ],
    );
}

#[test]
fn takeover_moves_a_foreign_address_only_to_a_node() {
    check("takeover | a1 foreign | n1", expect!["begin to move a1 from foreign to n1"]);
    check(
        "takeover | a1 foreign",
        expect![
            "a1 is attached to foreign, which is not a node of this cluster: detach it there, or see policy.takeover"
        ],
    );
}

#[test]
fn an_address_in_an_unknown_state_blocks_every_node_that_may_hold_it() {
    check(
        "a1 unknown | a2 free | n1 | n2",
        expect![
            "a1 is in an unknown state and is not moved: the cloud did not answer; 1 other address waits until this state is known, a2 waits: each node that could take it may hold another address whose state is unknown, such as a1"
        ],
    );
    for holder in ["n1 cordoned empty holds a2", "n1 notready 500 holds a2", "n1 unmatched holds a2"] {
        assert_eq!(plan(&world(&format!("a1 unknown | {holder} | n2")), now()).to_string(), "", "{holder}");
    }
}

#[test]
fn an_address_that_stays_unknown_is_read_less_and_less_often() {
    let mut unknown = world("n1 | a1 unknown | a2 unknown");
    let age_after = |world: &World, seconds| {
        let plan = plan(world, now() + Duration::from_secs(seconds));
        plan.listing_age_max.get(&scope()).map(Duration::as_secs)
    };
    assert_eq!(age_after(&unknown, 0), Some(1));
    unknown.unknown_since = plan(&unknown, now()).unknown_since;
    let ages = [2, 40, 3_600].map(|seconds| age_after(&unknown, seconds));
    assert_eq!(ages, [Some(1), Some(10), Some(60)]);
    unknown.unknown_since.remove(&address("a2"));
    assert_eq!(age_after(&unknown, 3_600), Some(1), "a2 is newly unknown");
    unknown.clock_moved(SignedDuration::from_secs(3_600));
    unknown.unknown_since.insert(address("a2"), (now(), "the cloud did not answer".into()));
    assert_eq!(age_after(&unknown, 3_600), Some(1), "a1 is newly unknown, because somebody set the clock");
    unknown.unknown_since.insert(address("a1"), (now(), "another reason".into()));
    assert_eq!(age_after(&unknown, 3_600), Some(1), "the reason of a1 is new");
    let mut waiting = world("n1 | a1 unknown | a2 free");
    waiting.unknown_since = plan(&waiting, now()).unknown_since;
    assert_eq!(age_after(&waiting, 3_600), Some(5), "a2 waits for a1");
    let mut spare = world("desired 1 | a1 free | a2 unknown | n1");
    spare.unknown_since = plan(&spare, now()).unknown_since;
    assert_eq!(age_after(&spare, 3_600), Some(5), "a1 waits for a2, which is beyond the desired number");
    let unasked = world("n1 | a1 unknown unasked");
    assert_eq!(plan(&unasked, now()).unknown_since, BTreeMap::new());
    let mut moving = world("n1 | n2 | a1 unknown | a1 moves n1 -> n2");
    moving.unknown_since = plan(&moving, now()).unknown_since;
    assert_eq!(age_after(&moving, 3_600), Some(60), "also during a move");
}

#[test]
fn a_node_that_surely_does_not_hold_an_unknown_address_gets_another() {
    for (elsewhere, node) in [
        ("a1 unknown on n1", "n2"),
        ("a1 unknown on n3", "n1"),
        ("a1 unknown but n2", "n2"),
        ("a1 unknown in s | n2 region t", "n2"),
        ("a1 unknown | a1 of s | n2 region t", "n2"),
    ] {
        let text = format!("{elsewhere} | a2 free | n1 region s | n2 | n3 unmatched");
        assert_eq!(
            plan(&world(&text), now()).to_string(),
            format!("begin to attach 203.0.113.2 to {node}"),
            "{text}"
        );
    }
    let blocked = "a1 unknown in s | a2 free | n1 region - | n2 region s";
    assert_eq!(plan(&world(blocked), now()).to_string(), "", "a node without a region may be in any region");
    let drained = "a1 unknown on n2 | n1 cordoned empty holds a2 | n2";
    assert_eq!(
        plan(&world(drained), now()).to_string(),
        "",
        "n2 may turn out to be free, so a2 is not detached"
    );
}

#[test]
fn if_the_cloud_refuses_a_second_address_a_node_that_may_hold_one_is_tried_last() {
    let tried = |text: &str| plan(&world(&format!("strict | {text}")), now()).to_string();
    assert_eq!(tried("a1 unknown | a2 free | n1 | n2"), "begin to attach 203.0.113.2 to n1");
    assert_eq!(tried("a1 unknown on n1 | a2 free | n1 | n2"), "begin to attach 203.0.113.2 to n2");
    assert_eq!(
        tried("a1 unknown on n1 | a2 free | a3 free | n1 | n2"),
        "begin to attach 203.0.113.2 to n2\nbegin to attach 203.0.113.3 to n1"
    );
    let dead = "a1 unknown | n1 notready 500 holds a2 | n2";
    assert_eq!(tried(&format!("{dead} | onecall")), "begin to move 203.0.113.2 from vm-n1 to n2");
    assert_eq!(tried(dead), "", "it would be detached first, and n1 may still serve it");
    assert_eq!(tried("a1 unknown unasked | a2 free | n1"), "", "the next listing shows where a1 is");
    for live in [
        "a1 unknown | n1 cordoned empty holds a2 | n2",
        "a1 unknown | n1 unmatched holds a2 | n2",
        "onecall | a1 unknown | n1 cordoned empty holds a2 | n2",
        "onecall | takeover | a1 unknown | a2 foreign | n2",
    ] {
        assert_eq!(tried(live), "", "a live VM keeps its address: {live}");
    }
    assert_eq!(tried("a1 unknown | a2 free | n1 holds a3"), "", "n1 surely holds another address");
}

#[test]
fn an_unknown_address_that_is_not_used_blocks_all_nodes_too() {
    for unwanted in ["desired 1 | a9 unknown", "younger lists a9 | a9 unknown"] {
        assert_eq!(
            plan(&world(&format!("{unwanted} | a1 free | n1 | n2")), now()).to_string(),
            "",
            "{unwanted}"
        );
    }
}

#[test]
fn if_no_node_can_take_it_only_a_drained_node_loses_its_address() {
    check(
        "n1 notready 500 holds a1",
        expect![
            "a1 stays on n1 although it should move (the node is NotReady): no other node can take it yet"
        ],
    );
    check(
        "n1 unmatched holds a1",
        expect![
            "a1 stays on n1 although it should move (the node does not match the selectors): no other node can take it yet"
        ],
    );
    check(
        "a1 left",
        expect![
            "a1 stays on left although it should move (the node no longer exists): no other node can take it yet"
        ],
    );
}

#[test]
fn a_vm_that_registered_twice_gets_one_address() {
    let mut twins = world("n1 | n2 | a1 free | a2 free");
    let mut twin = twins.node(&"n2".into()).unwrap().clone();
    twin.machine = Some((scope(), vm("n1")));
    twins.set_node(&"n2".into(), twin);
    assert_eq!(plan(&twins, now()).to_string(), "begin to attach 203.0.113.1 to n1");
    let mut dead = world("n1 holds a1 | n3");
    let mut twin = dead.node(&"n1".into()).unwrap().clone();
    twin.readiness = Readiness::NotReadySince(seconds_ago("500"));
    dead.set_node(&"n0".into(), twin);
    assert_eq!(plan(&dead, now()).to_string(), "", "the Ready node represents the VM");
}

#[test]
fn a_refused_object_still_owns_its_addresses() {
    check(
        "refused | younger lists a1 | n1 holds a1 | n2",
        expect![
            "a1 waits: the controller can't act on the object: see the object's conditions and Events, a1 of younger: belongs to NetIPAllocation/p, which is older: remove it from one of the two objects"
        ],
    );
}

#[test]
fn a_refusal_pauses_the_node_and_the_address() {
    let mut refused = world("n1 | n2 | a1 free");
    refused.avoid_machines.insert(vm("n1"), now() + Duration::from_secs(5));
    assert_eq!(plan(&refused, now()).to_string(), "begin to attach 203.0.113.1 to n2");
    let until = now() + Duration::from_secs(3);
    refused.avoid_addresses.insert(address("a1"), Pause { until, why: "refused".into() });
    let waiting = plan(&refused, now());
    assert_eq!((waiting.to_string().as_str(), waiting.ask_again), ("", Some(now() + Duration::from_secs(3))));
}

#[test]
fn a_mark_is_removed_only_if_the_node_surely_holds_no_address() {
    let kind = "NetIPAllocation";
    let marks = |text: &str| {
        let marks = plan(&world(text), now()).marks;
        let nodes: Vec<_> =
            marks.holders.get(kind).into_iter().flatten().map(|(node, _)| node.to_string()).collect();
        let unsure: Vec<_> = marks.unsure.get(kind).into_iter().flatten().map(ToString::to_string).collect();
        let unsure = if marks.uncertain.contains(kind) { "all".to_owned() } else { unsure.join(" ") };
        (nodes.join(" "), unsure)
    };
    assert_eq!(marks("n1 holds a1 | n2"), ("n1".into(), "".into()));
    assert_eq!(marks("n1 holds a1 | n2 | a2 unknown"), ("n1".into(), "n1 n2".into()));
    assert_eq!(marks("n1 holds a1 | n2 | a2 unknown on n2"), ("n1".into(), "n2".into()));
    assert_eq!(
        marks("n1 holds a1 | n2 | a2 unknown but n2"),
        ("n1".into(), "n1 n2".into()),
        "another interface"
    );
    assert_eq!(
        marks("n1 cordoned empty holds a1 | n2"),
        ("n1".into(), "".into()),
        "the address has to leave, and is still there"
    );
    assert_eq!(
        marks("floating | n1 pods holds a1 | n2"),
        ("".into(), "".into()),
        "no pod on the node is Ready"
    );
    for left_alone in [
        "observe | n1 unmatched holds a1 | n2 | n3 unmatched",
        "refused | n1 unmatched holds a1 | n2 | n3 unmatched",
    ] {
        let plan = plan(&world(left_alone), now());
        assert!(plan.marks.holders.is_empty(), "{left_alone}: it marks no node");
        let kept = &plan.marks.left_alone[kind];
        let nodes: Vec<_> = kept.nodes.iter().map(ToString::to_string).collect();
        assert_eq!((nodes, kept.addresses.len(), kept.objects.len()), (vec!["n1".into(), "n2".into()], 1, 1));
        assert!(!plan.marks.uncertain.contains(kind), "{left_alone}: other objects' marks are removed");
    }
    let used = plan(&world("n1 holds a1 | n2 | younger lists a1 | younger refused"), now()).marks.left_alone;
    assert!(used.values().all(|left_alone| left_alone.addresses.is_empty()), "an active object uses a1");
    let coming = |text: &str| plan(&world(text), now()).marks.unsure.contains_key(kind);
    assert!(coming("n1 | a1 moves - -> n1 | a1 busy"), "the address may be there already");
    assert!(!coming("n1 | a1 moves - -> n1"), "there was no call yet");
    assert!(coming("late | n1 | a1 moves - -> n1"), "an earlier leader may have attached it");
    assert!(coming("late before | n1 | a1 moves - -> n1"), "the cloud was not listed since");
    assert!(!coming("late once | n1 | a1 moves - -> n1"), "the listing would show it");
}

#[test]
fn a_missing_address_does_not_block_the_others() {
    check(
        "a1 missing | n1",
        expect!["a1 was not found in the account: correct the list of addresses, or reserve it again"],
    );
    check("a1 missing | a2 free | n1", expect!["begin to attach a2 to n1"]);
}

#[test]
fn one_vm_gets_one_address() {
    check("n1 holds a1 | a2 free", expect!["a1 on n1, a2 is attached to no VM: no node can take it"]);
}

#[test]
fn n4_zones_restrict_new_placements_and_move_no_address() {
    check("only zone a | n1 zone b | a1 free", expect!["a1 is attached to no VM: no node can take it"]);
    check("only zone a | n1 zone b holds a1 | n2 zone a", expect!["a1 on n1"]);
}

#[test]
fn an_address_goes_only_to_its_own_region() {
    check("n1 | a1 of elsewhere | a2 of r", expect!["begin to attach a2 to n1"]);
}

#[test]
fn n4_an_address_in_another_region_than_its_nodes_is_reported() {
    for only in ["n1", "n1 | n2 region elsewhere unmatched"] {
        check(
            &format!("{only} | a1 of elsewhere"),
            expect!["a1 can't be attached: it is in region elsewhere, but all matching nodes are in r"],
        );
    }
    check(
        "n1 | n2 region s cordoned | a1 of elsewhere",
        expect!["a1 can't be attached: it is in region elsewhere, but all matching nodes are in r, s"],
    );
    // A NotReady node in that region, or one whose region is unknown, may take it later.
    for could in ["n2 region elsewhere notready 9", "n2 region - notready 9"] {
        check(
            &format!("n1 | {could} | a1 of elsewhere"),
            expect!["a1 is attached to no VM: no node can take it"],
        );
    }
    check("a1 of elsewhere", expect!["a1 is attached to no VM: no node can take it"]);
}

#[test]
fn an_address_that_its_cloud_cant_attach_is_reported() {
    let mut world = world("desired 1 | n1 | n2 | a1 free");
    let six: Address = "2600:1900:4000::7".parse().unwrap();
    let mut pool = world.pools().next().unwrap().clone();
    pool.addresses.insert(0, six);
    world.set_pool(pool.clone());
    let planned = plan(&world, now());
    assert_eq!(
        planned.to_string(),
        format!("begin to attach {} to n1", address("a1")),
        "it does not count for the desired number"
    );
    assert_eq!(planned.verdicts[&pool.key][0], (six, Verdict::Unsupported(crate::NO_IPV6)));
    assert!(
        planned.listing_age_max.is_empty() && planned.read_again.is_empty(),
        "no listing is needed for it"
    );
}

#[test]
fn a_ptr_name_is_saved_before_its_address_is_detached() {
    let moves = "n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2";
    check(moves, expect!["detach a1 from n1"]);
    check(&format!("{moves} | a1 named x"), expect!["save the PTR name x of a1 in the status"]);
    check(&format!("{moves} | a1 named x | a1 kept y"), expect!["save the PTR name x of a1 in the status"]);
    check(&format!("{moves} | a1 named x | a1 kept x"), expect!["detach a1 from n1"]);
    let steps = plan(&world("n1 cordoned | n2 | a1 moves n1 -> n2 | a1 kept x"), now()).steps;
    let [Step { action: Action::Attach(_), ptr, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(ptr.as_deref(), Some("x"), "the next VM gets the name");

    let mut pool = world(moves).pools().next().unwrap().clone();
    pool.note(address("a1"), &Action::KeepPtr("x".into()), Epoch(7), now());
    assert_eq!(pool.ptrs[&address("a1")], "x".into());
    let mut abandoned = pool.clone();
    abandoned.note(address("a1"), &Action::Abandon, Epoch(7), now());
    assert_eq!(abandoned.ptrs.len(), 1, "the move to another node still needs it");
    pool.note(address("a1"), &Action::Finish, Epoch(7), now());
    assert_eq!(pool.ptrs.len(), 0);
}

#[test]
fn with_zone_spreading_zones_fill_evenly() {
    check(
        "spread | n1 zone a holds a1 | n2 zone a | n3 zone b | n4 zone b | a2 free | a3 free",
        expect!["begin to attach a2 to n2, begin to attach a3 to n3"],
    );
    check(
        "spread | n1 zone a holds a1 | n2 zone a | n3 zone b | a2 free",
        expect!["begin to attach a2 to n3"],
    );
}

#[test]
fn with_zone_spreading_an_address_that_leaves_a_zone_does_not_count_there() {
    check(
        "spread | n1 zone a notready 99 holds a1 | n2 zone b holds a2 | n3 zone b | n4 zone a",
        expect!["begin to move a1 from n1 to n4"],
    );
}

#[test]
fn with_zone_spreading_a_moving_address_counts_in_the_zone_of_its_target() {
    check(
        "spread | n1 zone a | n2 zone a | n3 zone b | a1 free | a1 moves - -> n1 | a2 free",
        expect!["attach a1 to n1, begin to attach a2 to n3"],
    );
}

#[test]
fn the_oldest_object_that_lists_an_address_owns_it() {
    check(
        "younger lists a1 | n1 holds a1 | n2",
        expect![
            "a1 on n1, a1 of younger: belongs to NetIPAllocation/p, which is older: remove it from one of the two objects"
        ],
    );
}

#[test]
fn a_pool_in_observe_mode_reports_what_it_would_do() {
    check(
        "observe | n1 cordoned empty holds a1 | n2",
        expect!["a1 would be changed, but policy.mode is Observe: begin to move a1 from n1 to n2"],
    );
    check(
        "observe | n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2",
        expect!["a1 is being attached to n2"],
    );
    check("observe | n1 | a1 free | a2 elsewhere | younger lists a2", expect!["begin to attach a2 to n1"]);
}

#[test]
fn f3_floating_addresses_go_to_nodes_with_a_ready_pod() {
    check("floating | n1 pods | n2 empty | n3 | a1 free", expect!["begin to attach a1 to n3"]);
}

#[test]
fn f2_without_pod_selectors_every_node_is_fit() {
    check("floating anypods | n1 empty | a1 free", expect!["begin to attach a1 to n1"]);
}

#[test]
fn f4_a_floating_ip_is_detached_only_when_another_node_needs_it() {
    for lingers in ["floating | n1 pods holds a1", "floating | n1 cordoned empty holds a1"] {
        check(
            lingers,
            expect![
                "a1 stays on n1 although it should move (no matching pod on the node is Ready): no other node can take it yet"
            ],
        );
    }
    check("floating | n1 pods holds a1 | n2", expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn a_free_address_goes_before_one_that_a_vm_holds() {
    check("floating | n1 pods holds a1 | n2 | a2 free", expect!["begin to attach a2 to n2"]);
}

#[test]
fn an_address_of_a_dead_holder_goes_first() {
    check(
        "floating | n1 pods holds a1 | n2 notready 9 holds a2 | n3",
        expect!["begin to move a2 from n2 to n3"],
    );
}

#[test]
fn addresses_beyond_the_desired_number_stay_as_they_are() {
    check("desired 1 | n1 | n2 | a1 free | a2 free", expect!["begin to attach a1 to n1"]);
}

#[test]
fn a_node_without_a_vm_gets_no_address() {
    check("n1 nomachine | a1 free", expect!["a1 is attached to no VM: no node can take it"]);
}

#[test]
fn a_node_that_stops_matching_loses_its_address() {
    check("n1 unmatched holds a1 | n2", expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn with_the_policy_a_node_about_to_be_removed_loses_its_address() {
    check("n1 leaving holds a1 | n2", expect!["a1 on n1"]);
    check("disruption | n1 leaving holds a1 | n2 leaving | n3", expect!["begin to move a1 from n1 to n3"]);
}

#[test]
fn max_concurrent_moves_limits_voluntary_moves_only() {
    check(
        "budget 1 | n1 cordoned empty holds a1 | n2 cordoned empty holds a2 | n3 notready 9 holds a3 | n4 | n5 | n6",
        expect!["begin to move a3 from n3 to n4, begin to move a1 from n1 to n5"],
    );
    check(
        "budget 1 | n1 cordoned empty holds a1 | n2 cordoned empty holds a2 | n3 | n4 | a1 moves n1 -> n3 | a1 busy",
        expect![
            "a1 is being attached to n3, a2 waits: the number of moves in flight has reached policy.maxConcurrentMoves"
        ],
    );
}

#[test]
fn voluntary_moves_wait_while_too_few_addresses_are_healthy() {
    check(
        "healthy 2 | n1 cordoned empty holds a1 | n2 holds a2 | n3",
        expect!["a1 waits: fewer than policy.minHealthy addresses are on healthy nodes, a2 on n2"],
    );
    check(
        "healthy 1 | n1 cordoned empty holds a1 | n2 holds a2 | n3",
        expect!["begin to move a1 from n1 to n3"],
    );
}

#[test]
fn f5_the_next_assignment_waits_until_the_cool_off_ends() {
    check("cooloff 20 | assigned 20 | n1 | n2 | a1 free | a2 free", expect!["begin to attach a1 to n1"]);
    check(
        "cooloff 20 | assigned 5 | n1 | a1 free",
        expect!["a1 waits: the cool-off (assignmentCoolOffSeconds) ends at 1970-01-12T13:46:55Z"],
    );
    check("cooloff 20 | n1 | n2 | a1 free | a1 moves - -> n1 | a2 free", expect!["attach a1 to n1"]);
    check(
        "cooloff 18446744073709551615 | assigned 5 | n1 | a1 free",
        expect!["a1 waits: the cool-off (assignmentCoolOffSeconds) ends at 9999-12-30T22:00:00.999999999Z"],
    );
    let asked = plan(&world("cooloff 20 | assigned 5 | n1 | a1 free"), now()).ask_again;
    assert_eq!(asked, Some(now() + Duration::from_secs(15)));
}

#[test]
fn an_unfinished_move_resumes_from_what_the_cloud_reports() {
    let two_nodes = "n1 cordoned empty | n2 | a1 moves n1 -> n2";
    check(&format!("{two_nodes} | n1 cordoned empty holds a1"), expect!["detach a1 from n1"]);
    check(&format!("onecall | {two_nodes} | n1 cordoned empty holds a1"), expect!["attach a1 to n2"]);
    check(two_nodes, expect!["attach a1 to n2"]);
    check(&format!("{two_nodes} | n2 holds a1"), expect!["finish the move of a1"]);
    check("n1 cordoned empty holds a1 | a1 moves n1 -> -", expect!["detach a1 from n1"]);
    check("n1 cordoned empty | a1 moves n1 -> -", expect!["finish the move of a1"]);
}

#[test]
fn an_unfinished_move_waits_while_its_state_is_unknown() {
    check("n1 | n2 | a1 moves n1 -> n2 | a1 unknown", expect!["a1 is being attached to n2"]);
    check("n1 | n2 | a1 moves n1 -> n2 | a1 stale", expect!["a1 is being attached to n2"]);
    check("n1 | n2 | a1 moves n1 -> n2 | a1 busy", expect!["a1 is being attached to n2"]);
    let plan = plan(&world("n1 | n2 | a1 moves n1 -> n2 | a1 stale"), now());
    assert!(plan.read_again.contains(&scope()));
}

#[test]
fn a_move_waits_for_its_journal_entry_and_for_its_backoff() {
    let mut pending = world("n1 | n2 | a1 moves n1 -> n2");
    let mut pool = pending.pools().next().unwrap().clone();
    let Journal::Known(moves) = &mut pool.journal else { panic!() };
    moves.values_mut().for_each(|entry| entry.written = crate::PENDING);
    pending.set_pool(pool);
    let waiting = plan(&pending, now());
    assert!(
        waiting.steps.is_empty() && waiting.read_again.is_empty(),
        "a listing is useless before the entry is written"
    );

    let mut failed = world("n1 | n2 | a1 moves n1 -> n2");
    let until = now() + Duration::from_secs(4);
    failed.avoid_addresses.insert(address("a1"), Pause { until, why: "refused".into() });
    assert_eq!(
        (plan(&failed, now()).to_string().as_str(), plan(&failed, now()).ask_again),
        ("", Some(until))
    );
    failed.avoid_addresses.clear();
    failed.avoid_machines.insert(vm("n2"), until);
    assert_eq!(
        plan(&failed, now()).to_string(),
        "abandon the move of 203.0.113.1",
        "a target that refused is abandoned"
    );
}

#[test]
fn a_rate_limited_move_waits_and_is_not_reported_as_failed() {
    let mut held_back = world("n1 cordoned empty | n2 | a1 free | a1 moves n1 -> n2");
    let turn = now() + Duration::from_secs(4);
    held_back.turns.insert(address("a1"), Turn { at: turn, is_urgent: true });
    let waiting = plan(&held_back, now());
    assert_eq!((waiting.to_string().as_str(), waiting.ask_again), ("", Some(turn)));
    let verdict = waiting.verdicts.values().flatten().next().map(|(_, verdict)| verdict);
    assert!(matches!(verdict, Some(Verdict::Moving(_))), "{verdict:?}");
    assert_eq!(plan(&held_back, turn).to_string(), "attach 203.0.113.1 to n2");
}

#[test]
fn a_voluntary_move_waits_while_an_urgent_one_is_rate_limited() {
    let mut crowded = world(
        "n1 cordoned empty holds a1 | n2 | n3 | n4 notready 99 | a2 free | a1 moves n1 -> n2 | a2 moves n4 -> n3",
    );
    let turn = now() + Duration::from_secs(4);
    crowded.turns.insert(address("a2"), Turn { at: turn, is_urgent: true });
    let waiting = plan(&crowded, now());
    assert_eq!((waiting.to_string().as_str(), waiting.ask_again), ("", Some(turn)));
    let steps = plan(&crowded, turn).to_string();
    assert_eq!(steps, "attach 203.0.113.2 to n3\ndetach 203.0.113.1 from vm-n1");
    crowded.turns = BTreeMap::from([(address("a1"), Turn { at: now(), is_urgent: false })]);
    assert!(plan(&crowded, now()).to_string().contains("detach"), "no urgent move waits");
}

#[test]
fn a_move_that_becomes_urgent_ignores_its_old_wait_time() {
    let moving = "n1 HOLDS a1 | n2 | a1 moves n1 -> n2";
    let (at, soon) = (now() + Duration::from_secs(2_400), now() + Duration::from_secs(4));
    let held_back = |holds: &str, turn| {
        let mut world = world(&moving.replace("HOLDS", holds));
        world.turns.insert(address("a1"), turn);
        let plan = plan(&world, now());
        (plan.to_string(), plan.ask_again)
    };
    let told = Turn { at, is_urgent: false };
    assert_eq!(held_back("cordoned empty holds", told), (String::new(), Some(at)));
    assert_eq!(held_back("notready 99 holds", told).0, "detach 203.0.113.1 from vm-n1");
    let told = Turn { at: soon, is_urgent: true };
    assert_eq!(
        held_back("notready 99 holds", told),
        (String::new(), Some(soon)),
        "it got this time while it was urgent"
    );
}

#[test]
fn an_urgent_move_and_a_plain_detach_wait_for_no_other_move() {
    for a1 in ["n1 notready 99 holds a1 | a1 moves n1 -> n2", "n1 cordoned empty holds a1 | a1 moves n1 -> -"]
    {
        let mut crowded = world(&format!("{a1} | n2 | n3 | n4 notready 99 | a2 free | a2 moves n4 -> n3"));
        let turn = Turn { at: now() + Duration::from_secs(4), is_urgent: true };
        crowded.turns.insert(address("a2"), turn);
        assert_eq!(plan(&crowded, now()).to_string(), "detach 203.0.113.1 from vm-n1", "{a1}");
    }
}

#[test]
fn few_addresses_are_detached_at_once_by_moves_that_can_wait() {
    let (crowd, max) = (140, moves::DETACHED_MAX);
    let clause = |at| {
        let to = at + 500;
        format!("n{at} cordoned empty holds a{at} | n{to} | a{at} moves n{at} -> n{to}")
    };
    let living = (1..=crowd).map(clause).collect::<Vec<_>>().join(" | ");
    let detached = |text: &str| plan(&world(text), now()).to_string().matches("detach").count();
    assert_eq!(detached(&living), max);
    assert_eq!(detached(&format!("{living} | a7 busy")), max - 1, "it may be detached already");
    assert_eq!(detached(&format!("{living} | a7 free | a8 free")), max - 2);
    let from_nowhere = living
        .replace("a7 moves n7 -> n507", "a7 moves - -> n507 | a7 free")
        .replace("n7 cordoned empty holds a7", "n7");
    assert_eq!(detached(&from_nowhere), max, "it was never attached");
    assert_eq!(
        detached(&format!("{from_nowhere} | a7 last n7")),
        max - 1,
        "it was detached for a target that refused it"
    );
    let unknown = "a7 unknown | a8 unknown | a9 unknown";
    assert_eq!(detached(&format!("{living} | {unknown}")), max - 3, "they may be detached");
    let observed = world(&format!("{living} | observe | a7 free"));
    assert_eq!(moves::detached_for_moves(&observed), BTreeMap::new(), "mode Observe detaches nothing");
    assert!(moves::detached_for_moves(&world("n1 holds a1 | n2")).is_empty());
    assert_eq!(detached(&format!("{living} | urgent")), crowd);
    let one_leaves = living.replace("a7 moves n7 -> n507", "a7 moves n7 -> -");
    assert_eq!(detached(&one_leaves), max + 1, "a plain detach does not wait");
    let plan = plan(&world(&living), now());
    let queued: Vec<_> = plan
        .verdicts
        .values()
        .flatten()
        .filter(|(_, verdict)| matches!(verdict, Verdict::Queued(_)))
        .collect();
    assert_eq!(queued.len(), crowd - max, "the others report that they wait");
    assert!(
        queued[0].1.to_string().starts_with("still works on its current VM; its move to n"),
        "{}",
        queued[0].1
    );
}

#[test]
fn an_unfinished_move_that_makes_no_sense_any_more_is_abandoned() {
    check("n1 holds a1 | n2 | a1 moves n1 -> n2", expect!["abandon the move of a1"]);
    check("n1 cordoned empty holds a1 | n2 cordoned | a1 moves n1 -> n2", expect!["abandon the move of a1"]);
    check("n1 | n2 holds a2 | a1 moves n1 -> n2", expect!["abandon the move of a1"]);
    check("n1 | a1 moves n1 -> n2", expect!["abandon the move of a1"]);
    check("n1 cordoned empty | n2 | n3 holds a1 | a1 moves n1 -> n2", expect!["abandon the move of a1"]);
    check("n1 | n2 | a1 moves n1 -> n2 | a1 missing", expect!["abandon the move of a1"]);
}

#[test]
fn an_earlier_leaders_move_is_claimed_before_it_resumes() {
    check("n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2 | epoch 6", expect!["claim a1"]);
}

#[test]
fn a_failed_attach_is_repeated_even_if_the_cloud_reports_it() {
    check("n1 cordoned empty | n2 holds a1 | a1 moves n1 -> n2 | a1 unconfirmed", expect!["attach a1 to n2"]);
    check("n1 | n2 cordoned empty holds a1 | a1 moves n1 -> n2 | a1 unconfirmed", expect!["attach a1 to n2"]);
}

#[test]
fn a_failed_attach_without_a_journal_entry_is_repeated() {
    check("n1 holds a1 | n2 | a1 unconfirmed", expect!["begin to move a1 from n1 to n1"]);
    check("n1 holds a1 | n2 | a1 moves n1 -> n1 | a1 unconfirmed", expect!["attach a1 to n1"]);
    check("n1 holds a1 | n2 | a1 moves n1 -> n1", expect!["finish the move of a1"]);
    check(
        "grace 60 | n1 notready 1 holds a1 | n2 | a1 unconfirmed",
        expect!["begin to move a1 from n1 to n1"],
    );
    check("n1 holds a1 | n2 | a1 last n1 | a1 unconfirmed", expect!["begin to move a1 from n1 to n1"]);
    check("n1 holds a1 | n2 | a1 was on n2 | a1 unconfirmed", expect!["begin to move a1 from n1 to n1"]);
    check(
        "observe | n1 holds a1 | n2 | a1 unconfirmed",
        expect!["a1 would be changed, but policy.mode is Observe: begin to move a1 from n1 to n1"],
    );
    check(
        "n1 holds a1 | n2 | a1 moves n1 -> n1 | a1 unconfirmed | a1 busy",
        expect![
            "a1 is in an unknown state and is not moved: the provider reports it on its VM, but the call to attach it failed; the controller attaches it again"
        ],
    );
    let mut rested = world("n1 holds a1 | n2 | a1 unconfirmed");
    rested.avoid_machines.insert(vm("n1"), now());
    assert!(!plan(&rested, now()).steps.is_empty(), "the backoff ends now");
}

#[test]
fn an_address_in_the_status_of_its_vm_is_not_attached_again() {
    check("n1 holds a1 | n2 | a1 was on n1 | a1 unconfirmed", expect!["a1 on n1"]);
    check(
        "n1 notready 99 holds a1 | n2 | a1 was on n1 | a1 unconfirmed",
        expect!["begin to move a1 from n1 to n2"],
    );
}

#[test]
fn a_leaving_holder_repeats_an_attach_only_without_a_new_node() {
    check("n1 notready 99 holds a1 | n2 | a1 unconfirmed", expect!["begin to move a1 from n1 to n2"]);
    check("n1 notready 99 holds a1 | a1 unconfirmed", expect!["begin to move a1 from n1 to n1"]);
    check("n1 cordoned empty holds a1 | a1 unconfirmed", expect!["begin to detach a1 from n1"]);
}

#[test]
fn a_repeated_attach_that_fails_detaches_nothing() {
    let gives_up = "n1 refuses holds a1 | n2 | a1 moves n1 -> n1 | a1 unconfirmed";
    check(gives_up, expect!["abandon the move of a1"]);
    let waits = "n1 refuses holds a1 | n2 | a1 unconfirmed";
    check(
        waits,
        expect![
            "a1 is in an unknown state and is not moved: the provider reports it on its VM, but the call to attach it failed; the controller attaches it again"
        ],
    );
    for text in [gives_up, waits] {
        let marks = plan(&world(text), now()).marks;
        assert!(
            marks.unsure.values().flatten().any(|node| *node == "n1".into()),
            "the mark of the node stays"
        );
    }
    let mut failed = world("n1 holds a1 | n2 | a1 unconfirmed");
    let pause = Pause { until: now() + Duration::from_secs(5), why: "no".into() };
    failed.avoid_addresses.insert(address("a1"), pause);
    assert!(plan(&failed, now()).steps.is_empty(), "the backoff also delays a repeated attach");
    check("n1 refuses notready 99 holds a1 | n2 | a1 unconfirmed", expect!["begin to move a1 from n1 to n2"]);
    check(
        "n1 refuses notready 99 holds a1 | a1 unconfirmed",
        expect![
            "a1 stays on n1 although it should move (the node is NotReady): no other node can take it yet"
        ],
    );
}

#[test]
fn a_repeated_attach_delays_no_other_address_and_marks_no_node() {
    let cooling = "floating | cooloff 30 | n1 holds a1 | n2 | a2 free | a1 moves n1 -> n1 | a1 unconfirmed";
    check(cooling, expect!["attach a1 to n1, begin to attach a2 to n2"]);
    let assigned = |text: &str| {
        let mut pool = world(text).pools().next().unwrap().clone();
        pool.note(address("a1"), &Action::Finish, Epoch(7), now());
        pool.last_assignment
    };
    assert_eq!(assigned("n1 holds a1 | a1 moves n1 -> n1"), None);
    assert_eq!(assigned("n1 | n2 holds a1 | a1 moves n1 -> n2"), Some(now()));
    let healed = plan(&world("floating | n1 holds a1 | a1 moves n1 -> n1 | epoch 6"), now());
    assert!(healed.marks.unsure.values().flatten().any(|node| *node == "n1".into()), "{healed}");
    let displaced = plan(&world("floating | n1 cordoned empty holds a1 | n2 | a1 unconfirmed"), now());
    assert!(displaced.marks.unsure.is_empty(), "the node has to leave and gets no mark: {displaced}");
}

#[test]
fn an_address_whose_attach_keeps_failing_is_detached() {
    let failing = world("n1 | n2 refuses holds a1 | n3 | a1 moves n1 -> n2 | a1 unconfirmed");
    let plan = plan(&failing, now());
    assert_eq!(plan.to_string().replace("203.0.113.", "a").replace("vm-", ""), "detach a1 from n2");
    assert!(plan.marks.holders.values().all(BTreeMap::is_empty), "no node has a mark for it");
}

#[test]
fn a_node_that_a_move_targets_or_leaves_is_not_free() {
    check(
        "n1 | n2 | a1 moves n1 -> n2 | a1 busy | a2 free",
        expect!["a1 is being attached to n2, a2 is attached to no VM: no node can take it"],
    );
}

#[test]
fn the_journal_of_a_newer_controller_stops_the_pool() {
    check(
        "newer | n1 | a1 free",
        expect![
            "a1 waits: a newer controller wrote its journal, and this version can't read it: upgrade again"
        ],
    );
}

#[test]
fn a_breaker_trips_when_many_holders_are_lost_at_once() {
    let lost = "n1 notready 9 holds a1 | n2 notready 9 holds a2 | n3 notready 9 holds a3 | n4 notready 9 holds a4 \
                | n5 notready 9 holds a5 | n6 | n7";
    check(&format!("{lost} | floating | desired 1"), expect!["begin to move a1 from n1 to n6"]);
    let tripped = plan(&world(lost), now());
    assert_eq!(tripped.to_string(), "");
    assert_eq!(tripped.tripped[&scope()].lost, 5);
    assert_eq!(tripped.ask_machines[&scope()].len(), 5, "the plan asks for the states of the VMs");
    assert!(
        tripped.verdicts.values().flatten().any(|(_, verdict)| verdict.to_string().contains("confirm-loss="))
    );

    let confirmed = plan(&world(&format!("{lost} | confirmed 9")), now());
    assert!(confirmed.tripped.is_empty() && !confirmed.steps.is_empty());
    let dead = lost.replace("notready", "dead notready");
    assert!(plan(&world(&dead), now()).tripped.is_empty(), "stopped VMs are not lost");
    let spread = lost.replacen("notready 9", "notready 99", 1);
    assert!(plan(&world(&spread), now()).tripped.is_empty(), "four within a minute are too few");
    let releasing = plan(&world(&format!("{lost} | a8 made | releases | desired 5")), now());
    let [.., (last, verdict)] = releasing.verdicts.values().next().unwrap().as_slice() else {
        panic!("none")
    };
    assert_eq!(*last, address("a8"));
    assert!(verdict.to_string().contains("confirm-loss="), "nothing is released meanwhile: {verdict}");
}

#[test]
fn a_tripped_breaker_lets_a_detached_address_replace_an_ephemeral_one() {
    let lost = "n1 notready 9 holds a1 | n2 notready 9 holds a2 | n3 notready 9 holds a3 | n4 notready 9 holds a4 \
                | n5 notready 9 holds a5 | n6 | n8 cordoned empty | a6 free | own n6";
    check(
        &format!("{lost} | a6 moves n8 -> n6"),
        expect!["record for a6 that the target VM has an ephemeral address"],
    );
    check(
        &format!("{lost} | a6 moves n8 -> n6 | restore n6"),
        expect!["attach a6 to n6 in place of the VM's ephemeral address"],
    );
}

#[test]
fn a_tripped_breaker_stops_detaches_but_not_attaches() {
    let lost = "n1 notready 9 holds a1 | n2 notready 9 holds a2 | n3 notready 9 holds a3 | n4 notready 9 holds a4 \
                | n5 notready 9 holds a5 | n6 | n7 | n8 cordoned empty | n9 cordoned empty holds a7";
    let moving = format!("{lost} | a6 free | a6 moves n8 -> n6 | a7 moves n9 -> n7");
    let plan = plan(&world(&moving), now());
    assert!(!plan.tripped.is_empty());
    assert_eq!(plan.to_string(), "attach 203.0.113.6 to n6");
    let verdict = |name: &str| {
        let mut all = plan.verdicts.values().flatten();
        all.find(|(of, _)| *of == address(name)).map(|(_, verdict)| verdict.to_string()).unwrap()
    };
    assert_eq!(verdict("a6"), "is being attached to n6");
    let steps = |clause: &str| super::plan(&world(&format!("{lost} | {clause}")), now()).to_string();
    assert_eq!(
        steps("a6 free | a6 moves n8 -> n6 | epoch 6"),
        "claim 203.0.113.6",
        "so that the move can continue"
    );
    let arrived = moving.replacen("n6 |", "n6 holds a6 |", 1).replace("a6 free | ", "");
    assert_eq!(super::plan(&world(&arrived), now()).to_string(), "finish the move of 203.0.113.6");
    assert!(verdict("a7").contains("confirm-loss="), "{}", verdict("a7"));
}

#[test]
fn pauses_keep_their_length_when_the_clock_is_set() {
    let mut failed = world("n1 | a1 free | a2 free | n2");
    let until = now() + Duration::from_secs(4);
    failed.avoid_addresses.insert(address("a1"), Pause { until, why: "refused".into() });
    failed.turns.insert(address("a2"), Turn { at: until, is_urgent: true });
    failed.avoid_machines.insert(vm("n2"), until);
    let hour = SignedDuration::from_hours(1);
    failed.clock_moved(-hour);
    assert_eq!(failed.avoid_addresses[&address("a1")].until, until - hour);
    assert_eq!(failed.turns[&address("a2")].at, until - hour);
    assert_eq!(failed.avoid_machines[&vm("n2")], until - hour);
}

#[test]
fn holders_lost_one_after_another_add_up_even_if_each_is_replaced_at_once() {
    let mut world =
        world("n1 holds a1 | n2 holds a2 | n3 holds a3 | n4 holds a4 | n5 notready 9 holds a5 | n6 | n7");
    assert!(!plan(&world, now()).steps.is_empty());
    for name in ["a1", "a2", "a3", "a4"] {
        world.losses.insert(address(name), seconds_ago("20"));
    }
    assert_eq!(plan(&world, now()).tripped[&scope()].lost, 5);
    for name in ["a1", "a2", "a3", "a4"] {
        world.losses.insert(address(name), seconds_ago("70"));
    }
    let later = plan(&world, now());
    assert!(later.tripped.is_empty());
    assert_eq!(later.losses.len(), 1, "a loss that ended a minute ago is forgotten");
}

#[test]
fn losses_keep_their_times_after_a_change_of_leader() {
    let gone = "n1 | n2 | a1 left | a2 left | a3 left | a4 left | a5 left";
    let tripped = |text: &str| plan(&world(text), now()).tripped.remove(&scope());
    assert_eq!(tripped(gone).unwrap().until, now(), "losses without a stored time count from now");
    let at = |seconds: [u32; 5]| {
        let lost = |(number, seconds): (usize, u32)| format!(" | a{} lost {seconds}", number + 1);
        format!("{gone}{}", seconds.into_iter().enumerate().map(lost).collect::<String>())
    };
    let together = tripped(&at([70, 71, 72, 73, 74])).unwrap();
    assert_eq!((together.lost, together.until), (5, seconds_ago("70")), "the breaker stays tripped");
    assert_eq!(tripped(&at([100, 200, 300, 400, 500])), None, "old losses stay old");
    assert_eq!(tripped(&format!("{} | confirmed 70", at([70, 71, 72, 73, 74]))), None);
}

#[test]
fn a_loss_lasts_while_the_cloud_does_not_answer() {
    let mut unknown = world("n1 | a1 left | a1 lost 3600 | a1 unknown | a2 free | a2 last n1 | a2 lost 3600");
    let kept = BTreeMap::from([(address("a1"), seconds_ago("3600"))]);
    assert_eq!(plan(&unknown, now()).losses, kept);
    unknown.retain_facts(&scope(), |_| false);
    let before_the_first_answer = plan(&unknown, now()).losses;
    assert_eq!(before_the_first_answer[&address("a1")], seconds_ago("3600"), "{before_the_first_answer:?}");
}

#[test]
fn times_of_losses_are_whole_seconds() {
    // 60.3 s apart to the millisecond, and 60 s apart in whole seconds.
    let (first, last) = (now() - Duration::from_millis(59_900), now() + Duration::from_millis(400));
    let mut lost = world("n1 | n2 | a1 left | a2 left | a3 left | a4 left | a5 left");
    lost.losses = plan(&lost, first).losses;
    lost.losses.remove(&address("a5"));
    let decided = plan(&lost, last);
    assert!(decided.losses.values().all(|at| at.subsec_nanosecond() == 0), "{:?}", decided.losses);
    assert_eq!(decided.tripped[&scope()].lost, 5);
    lost.losses = decided.losses.clone();
    assert_eq!(plan(&lost, last).tripped, decided.tripped, "the next leader decides the same");
}

#[test]
fn a_creation_waits_until_objects_with_a_silent_watch_are_listed() {
    let creating = "creates | desired 2 | n1 holds a1 | creating";
    check(&format!("{creating} | silent pools"), expect!["list NetIPAllocations or FloatingIPPools"]);
    check(
        "creates | desired 2 | n1 holds a1 | silent pools",
        expect!["begin to create addresses, tagged tag"],
    );
}

#[test]
fn a_creation_is_journalled_before_its_first_request() {
    check("creates | desired 2 | n1 holds a1", expect!["begin to create addresses, tagged tag"]);
    check("creates | desired 2 | n1 holds a1 | creating", expect!["create 1 in r, tagged tag"]);
    check("creates | desired 30 | n1 holds a1 | creating", expect!["create 10 in r, tagged tag"]);
    check("creates | desired 1 | n1 holds a1", expect!["a1 on n1"]);
}

#[test]
fn nothing_is_created_without_need() {
    check(
        "creates | desired 3 | creating | n1 holds a1 | observe",
        expect!["a1 on n1, would create addresses, still missing: 2"],
    );
    check(
        "creates | desired 3 | n1 holds a1 | observe",
        expect!["a1 on n1, would create addresses, still missing: 2"],
    );
    check(
        "creates | desired 3 | n1 holds a1 | refused",
        expect!["a1 waits: the controller can't act on the object: see the object's conditions and Events"],
    );
    check("creates | desired 3 | n1 holds a1 | deleted", expect!["a1 on n1"]);
    check("desired 3 | n1 holds a1", expect!["a1 on n1"]);
}

/// A world of two pools that need ten addresses each, in an account with `created` addresses of other pools, and with a
/// limit.
fn two_that_lack(created: u8, max: usize) -> World {
    let mut world = world("creates | desired 10 | creating");
    let first = world.pools().next().unwrap().clone();
    let key = PoolKey { name: "q".into(), ..first.key.clone() };
    world.set_pool(Pool { key, created: first.created + Duration::from_secs(1), ..first });
    for number in 0..created {
        let tag = Some("ip-address-controller-of-a-pool".into());
        world.set_fact(&scope(), address(&format!("a{}", 100 + number)), Fact { tag, ..fact(Holding::Free) });
    }
    world.created_max = Some(max);
    world
}

#[test]
fn pools_together_create_no_more_than_the_limit_allows() {
    let text = |world: &World| plan(world, now()).to_string().replace('\n', ", ");
    assert_eq!(text(&two_that_lack(5, 100)), "create 10 in r, tagged tag, create 10 in r, tagged tag");
    let close = two_that_lack(5, 17);
    assert_eq!(
        text(&close),
        "create 10 in r, tagged tag, create 2 in r, tagged tag",
        "both in the same plan"
    );
    assert_eq!(text(&two_that_lack(5, 5)), "finish the creation, finish the creation");
    let verdict = plan(&two_that_lack(5, 5), now()).lacking;
    assert!(verdict.values().all(|lacking| *lacking == Lacking::Full(5)), "{verdict:?}");
    check(
        "creates | desired 2 | n1 holds a1 | limit 0",
        expect![
            "a1 on n1, the cluster has reached CREATED_ADDRESSES_MAX (0): release created addresses that nobody needs, or raise the limit"
        ],
    );
}

#[test]
fn requests_without_an_answer_count_for_the_limit() {
    let of_second = |world: &World| {
        let plan = plan(world, now());
        let step = plan.creations.iter().find(|step| &*step.pool.name == "q");
        step.map(ToString::to_string).unwrap_or_default()
    };
    let first = PoolKey { kind: "NetIPAllocation", namespace: "".into(), name: "p".into() };
    let mut asking = two_that_lack(0, 12);
    asking.in_flight.creations.insert(first.clone(), 7);
    assert_eq!(of_second(&asking), "create 5 in r, tagged tag", "seven requests are in flight");
    let mut lost = two_that_lack(0, 12);
    let mut pool = lost.pool(&first).unwrap().clone();
    pool.creation.as_mut().unwrap().may_have_asked = true;
    lost.set_pool(pool);
    assert_eq!(of_second(&lost), "create 2 in r, tagged tag", "ten may have been created");
    // If the provider shows no marks, the status counts.
    check(
        "creates untagged | desired 9 | creating | n1 holds a1 | a1 claimed | limit 1",
        expect!["finish the creation"],
    );
    check(
        "creates | desired 2 | creating | n1 holds a1 | a1 claimed | limit 1",
        expect!["create 1 in r, tagged tag"],
    );
    check(
        "creates untagged | desired 9 | creating | a1 missing | a1 claimed | limit 1",
        expect!["create 1 in r"],
    );
}

#[test]
fn a_new_address_with_the_pools_tag_is_adopted() {
    check("creates | desired 3 | creating | a7 tagged | a8 elsewhere", expect!["adopt a7"]);
    check("creates | desired 1 | creating | n1 holds a1 | a7 tagged", expect!["adopt a7"]);
    check("creates | desired 1 | creating | n1 holds a1 | a8 elsewhere", expect!["finish the creation"]);
    // a9 had the tag before and is not listed: a person removed it from the list.
    check("creates | desired 1 | creating | n1 holds a1 | a9 tagged", expect!["finish the creation"]);
}

#[test]
fn a_created_address_that_no_object_lists_is_not_replaced() {
    check(
        "creates | desired 3 | n1 holds a1 | a7 tagged | a9 tagged",
        expect![
            "a1 on n1, the controller created a7, a9 for this object, but no object lists them. It creates no more until each is in spec.ips (to use it) or in the annotation netinfra.darkbrains.com/not-created (to ignore it)"
        ],
    );
    check(
        "creates | desired 3 | a7 tagged | observe",
        expect![
            "the controller created a7 for this object, but no object lists them. It creates no more until each is in spec.ips (to use it) or in the annotation netinfra.darkbrains.com/not-created (to ignore it)"
        ],
    );
    // An address with an unfinished move is unlisted too, and so is one that was removed during a creation.
    check("creates | desired 3 | n1 | n2 | a7 tagged | a7 moves n1 -> n2", expect!["attach a7 to n2"]);
    check(
        "creates | desired 3 | creating | a9 tagged",
        expect![
            "the controller created a9 for this object, but no object lists them. It creates no more until each is in spec.ips (to use it) or in the annotation netinfra.darkbrains.com/not-created (to ignore it)"
        ],
    );
    check("creates | desired 3 | a7 tagged | a7 disowned", expect!["begin to create addresses, tagged tag"]);
    check("creates | desired 3 | creating | a9 tagged | a9 disowned", expect!["create 3 in r, tagged tag"]);
    check(
        "creates | desired 3 | a7 tagged | younger lists a7",
        expect!["begin to create addresses, tagged tag"],
    );
    check("creates | desired 3 | a7 tagged | a7 missing", expect!["begin to create addresses, tagged tag"]);
    check("creates | desired 1 | n1 holds a1 | a7 tagged", expect!["a1 on n1"]);
}

#[test]
fn a_creation_needs_a_complete_listing_after_its_entry() {
    check(
        "creates | desired 1 | creating | unread | a7 tagged",
        expect!["waiting for a complete listing of the account before creating addresses"],
    );
    check(
        "creates | desired 1 | creating | hidden | n1 holds a1",
        expect![
            "a1 on n1, the DigitalOcean token can no longer read projects, so the controller can't find the addresses that it created. Grant the scope project:read; until then the controller creates no address"
        ],
    );
    check(
        "creates untagged | tagged-before | desired 2 | n1 holds a1 | a7 elsewhere",
        expect![
            "a1 on n1, the DigitalOcean token can no longer read projects, so the controller can't find the addresses that it created. Grant the scope project:read; until then the controller creates no address"
        ],
    );
    check(
        "creates | tagged-before | desired 2 | n1 holds a1",
        expect!["begin to create addresses, tagged tag"],
    );
    check("creates | desired 1 | creating | asking", expect!["creating addresses, still missing: 1"]);
    check("creates | desired 1 | creating | creating-epoch 6 | a7 tagged", expect!["claim the creation"]);
}

#[test]
fn without_tags_addresses_are_created_one_at_a_time() {
    check(
        "creates untagged | desired 9 | a8 elsewhere",
        expect!["begin to create addresses; the account already has these, which no object lists: a8"],
    );
    check("creates untagged | desired 9 | a8 elsewhere | creating", expect!["create 1 in r"]);
    check(
        "creates untagged | desired 9 | a8 elsewhere | creating asked",
        expect!["begin to create addresses; the account already has these, which no object lists: a8"],
    );
}

#[test]
fn a_possible_result_of_a_lost_answer_is_only_reported() {
    check(
        "creates untagged | desired 9 | releases | a7 elsewhere | a8 elsewhere | creating asked",
        expect![
            "a request to create an address got no answer, and may have created one of these: a7; add those of this object to spec.ips, and the others to the annotation netinfra.darkbrains.com/not-created"
        ],
    );
    check(
        "creates untagged | desired 9 | a7 elsewhere | a8 elsewhere | creating",
        expect!["begin to create addresses; the account already has these, which no object lists: a7, a8"],
    );
    check(
        "creates untagged | desired 2 | n7 holds a7 | a8 elsewhere | creating asked",
        expect!["begin to create addresses; the account already has these, which no object lists: a8"],
    );
}

#[test]
fn only_free_addresses_of_the_object_are_released() {
    check("desired 1 | releases | n1 holds a1 | a2 made", expect!["begin to release a2"]);
    check(
        "desired 1 | n1 holds a1 | a2 made",
        expect!["a1 on n1, a2 is not used: it is beyond spec.desiredIPs"],
    );
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 disowned",
        expect!["a1 on n1, a2 is not used: it is beyond spec.desiredIPs"],
    );
    check(
        "desired 1 | releases | n1 holds a1 | a2 free",
        expect!["a1 on n1, a2 is not used: it is beyond spec.desiredIPs"],
    );
    check(
        "desired 1 | releases | n1 holds a1 | n2 holds a2 | a2 made",
        expect!["a1 on n1, a2 is not used: it is beyond spec.desiredIPs"],
    );
    check(
        "desired 1 | releases | n1 holds a1 | a2 unknown | a2 made",
        expect!["a1 on n1, a2 is not used: it is beyond spec.desiredIPs"],
    );
}

#[test]
fn an_address_without_the_providers_mark_is_not_released() {
    let spare = "desired 1 | releases | n1 holds a1 | a2 claimed";
    for spare in [spare, &format!("{spare} | a2 marked other")] {
        check(
            spare,
            expect![
                "a1 on n1, a2 is not released: at the provider it has no tag, label or project of this object; release it there, or remove it from spec.ips"
            ],
        );
    }
    check(
        "desired 1 | releases | n1 holds a1 | a2 marked other",
        expect!["a1 on n1, a2 is not used: it is beyond spec.desiredIPs"],
    );
    // An earlier version started the release: the entry ends, and the address stays.
    check(&format!("{spare} | a2 released"), expect!["abandon the move of a2"]);
    check(&format!("{spare} | a2 released | epoch 6"), expect!["claim a2"]);
    check(&format!("{spare} | a2 released | a2 marked other"), expect!["abandon the move of a2"]);
    // The mark was read before the entry was written.
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 released | a2 stale",
        expect!["a1 on n1, a2 is beyond spec.desiredIPs: the controller is releasing it"],
    );
}

#[test]
fn a_release_continues_only_while_its_conditions_hold() {
    check("desired 1 | releases | n1 holds a1 | a2 made | a2 released", expect!["release a2"]);
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 released | a2 busy",
        expect!["a1 on n1, a2 is beyond spec.desiredIPs: the controller is releasing it"],
    );
    let begun = plan(&world("desired 1 | releases | n1 holds a1 | a2 made | a2 free"), now()).steps;
    assert!(begun.iter().any(|step| matches!(&step.action, Action::Begin(entry) if entry.releases)));
    check("desired 2 | releases | n1 holds a1 | a2 made | a2 released", expect!["abandon the move of a2"]);
    check("desired 1 | n1 holds a1 | a2 made | a2 released", expect!["abandon the move of a2"]);
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 released | a2 elsewhere",
        expect!["abandon the move of a2"],
    );
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 released | younger lists a2",
        expect!["abandon the move of a2"],
    );
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 released | deleted",
        expect!["abandon the move of a2"],
    );
    check("desired 1 | n1 holds a1 | n2 holds a2 | a2 released", expect!["abandon the move of a2"]);
    check("desired 1 | n1 holds a1 | a2 missing | a2 released", expect!["remove a2 from the object"]);
    check(
        "desired 1 | n1 holds a1 | a2 elsewhere | a2 missing | a2 released",
        expect!["finish the move of a2"],
    );
}

#[test]
fn a_deleted_object_finishes_its_moves_and_detaches_on_request() {
    check(
        "deleted | n1 holds a1 | a2 free | n2",
        expect!["a1 on n1, a2 stays as it is: the object is being deleted"],
    );
    check("deleted | n1 cordoned empty holds a1 | a1 moves n1 -> n2 | n2", expect!["detach a1 from n1"]);
    check(
        "deleted detaching | n1 holds a1 | a2 foreign | a3 left",
        expect!["begin to detach a1 from n1, begin to detach a3 from left"],
    );
    check("deleted detaching | n1 holds a1 | a1 moves n1 -> -", expect!["detach a1 from n1"]);
    check("deleted | n1 holds a1 | a1 moves n1 -> -", expect!["abandon the move of a1"]);
}

#[test]
fn n9_pods_are_evicted_one_at_a_time_from_nodes_without_an_address() {
    check("evicts | n1 holds a1 | n3 evictable | n2 evictable", expect!["evict a pod from n2"]);
    check("evicts | n1 holds a1 | n2 evictable unmatched", expect!["evict a pod from n2"]);
    check("n1 holds a1 | n2 evictable", expect!["a1 on n1"]);
    check("evicts | n1 holds a1 evictable | n2", expect!["a1 on n1"]);
    let text = "evicts | evicted | n1 holds a1 | n2 evictable";
    check(
        text,
        expect![
            "a1 on n1, pods of the workload are on n2, which holds no address: the controller evicts them one by one"
        ],
    );
    assert_eq!(plan(&world(text), now()).ask_again, Some(now() + Duration::from_secs(5)));
    assert_eq!(plan(&world("evicts | evicting | n1 holds a1 | n2 evictable"), now()).evictions, []);
}

#[test]
fn n9_pods_on_another_objects_node_are_reported_and_not_evicted() {
    check(
        "evicts | n1 holds a1 | n2 holds a2 evictable | a2 elsewhere | younger lists a2",
        expect![
            "a1 on n1, a2 of younger: on n2, pods of the workload are on n2, which holds another object's address: in the pod template, set the nodeSelector allocation.netinfra.darkbrains.com/<name of this object>=true"
        ],
    );
}

#[test]
fn n9_pods_that_fit_on_no_other_node_stay() {
    check(
        "evicts | n1 holds a1 cordoned pods | n2 cordoned empty evictable",
        expect![
            "a1 on n1, pods of the workload stay on n2, which holds no address: no Ready, schedulable node holds one"
        ],
    );
    check(
        "evicts | a1 missing | n2 evictable",
        expect![
            "a1 was not found in the account: correct the list of addresses, or reserve it again, pods of the workload stay on n2, which holds no address: no Ready, schedulable node holds one"
        ],
    );
}

#[test]
fn no_pod_is_evicted_while_something_is_unknown() {
    for text in [
        "evicts | a1 unknown | n1 holds a2 | n2 evictable",
        "evicts | desired 1 | n1 holds a1 | a2 unknown on n1 | n2 evictable",
        "evicts | n1 holds a1 | n2 evictable nomachine",
        "evicts | n1 holds a1 | n2 evictable notready 5",
        "evicts | newer | n1 holds a1 | n2 evictable",
        "evicts | observe | n1 holds a1 | n2 evictable",
        "evicts | refused | n1 holds a1 | n2 evictable",
        "evicts | deleted | n1 holds a1 | n2 evictable",
        "evicts | n1 holds a1 | n2 evictable | younger lists a7 | younger refused",
        "evicts | n1 holds a1 | n2 evictable | younger lists a7 | a7 unknown",
        "evicts | n1 holds a1 | a2 moves - -> n2 | n2 evictable",
        "evicts | n1 holds a1 | a2 free | n2 evictable",
    ] {
        assert_eq!(plan(&world(text), now()).evictions, [], "{text}");
    }
}

#[test]
fn an_ephemeral_address_is_journalled_before_it_is_removed() {
    check("a1 moves - -> n1 | n1", expect!["attach a1 to n1"]);
    check(
        "a1 moves - -> n1 | n1 | own n1",
        expect!["record for a1 that the target VM has an ephemeral address"],
    );
    check(
        "a1 moves - -> n1 | n1 | own n1 | restore n1",
        expect!["attach a1 to n1 in place of the VM's ephemeral address"],
    );
    check(
        "a1 moves - -> n1 | n1 | restore n1",
        expect!["attach a1 to n1 in place of the VM's ephemeral address"],
    );
    let both = "a1 moves n1 -> n2 | n1 cordoned empty | n2 | restore n1 n2";
    check(both, expect!["restore an ephemeral address on n1 in place of a1"]);
    check(&format!("{both} | own n1"), expect!["attach a1 to n2 in place of the VM's ephemeral address"]);
}

#[test]
fn an_ephemeral_address_is_restored_before_the_move_ends() {
    let moved = "a1 moves n1 -> n2 | n2 holds a1 | n1 cordoned empty | restore n1";
    check(moved, expect!["restore an ephemeral address on n1 in place of a1"]);
    check(&format!("{moved} | own n1"), expect!["finish the move of a1"]);
    check("a1 moves n1 -> n2 | n2 holds a1 | n1 holds a2 | restore n1", expect!["finish the move of a1"]);
    check(
        "a1 moves n1 -> - | n1 cordoned empty | restore n1",
        expect!["restore an ephemeral address on n1 in place of a1"],
    );
    check("a1 moves n1 -> n2 | n2 holds a1 | n1 | restore n2", expect!["finish the move of a1"]);
}

#[test]
fn a_failed_target_gets_an_ephemeral_address_again() {
    let given_up = "a1 moves - -> n1 | n1 cordoned empty | n2 | restore n1";
    check(given_up, expect!["restore an ephemeral address on n1 in place of a1"]);
    check(&format!("{given_up} | own n1"), expect!["abandon the move of a1"]);
}

#[test]
fn the_next_move_remembers_the_holders_ephemeral_address() {
    let Plan { steps, .. } = plan(&world("n1 cordoned empty holds a1 | a1 replaced | n2"), now());
    let [Step { action: Action::Begin(entry), .. }] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(entry.to_restore, BTreeSet::from([vm("n1")]));
    let mut pool = pool("p", "1");
    pool.note(address("a1"), &Action::Begin(entry.clone()), Epoch(7), now());
    pool.note(address("a1"), &Action::NoteEphemeral, Epoch(7), now());
    pool.note(address("a1"), &Action::Finish, Epoch(7), now());
    assert_eq!(
        pool.replaced_ephemeral,
        BTreeSet::from([address("a1")]),
        "the new holder had an ephemeral address too"
    );
    assert_eq!(pool.returned[&address("a1")], [vm("n1")], "the old holder has one again");
}

/// Returns the plan after a listing has shown the changes of an earlier leader. Checks that until then the plan has no
/// steps, and requests a listing as soon as one can help.
fn once_shown(text: &str) -> Plan {
    let late = |late: &str| plan(&world(&format!("{text} | {late}")), now());
    let is_idle = |plan: &Plan| plan.steps.is_empty() && plan.creations.is_empty();
    let waits = late("late");
    assert!(is_idle(&waits) && waits.listing_age_max.contains_key(&scope()), "{text}: {waits}");
    let reads = late("late before");
    assert!(is_idle(&reads) && reads.read_again.contains(&scope()), "{text}: {reads}");
    late("late once")
}

#[test]
fn an_ephemeral_address_to_restore_survives_stale_listings() {
    let arrived = "a1 moves n1 -> n2 | n2 holds a1 | n1 | restore n1";
    let given_up = "a1 moves n1 -> n2 | n1 cordoned holds a1 | n2 cordoned empty | restore n2";
    for text in [arrived, given_up] {
        assert!(!once_shown(text).steps.is_empty(), "{text}");
    }
    check("late | a1 moves n1 -> n2 | n2 holds a1 | n1", expect!["finish the move of a1"]);
}

#[test]
fn a_creation_of_an_earlier_leader_waits_for_fresh_listings() {
    for lacking in ["desired 2", "desired 1"] {
        let text = format!("creates | {lacking} | n1 holds a1 | creating asked");
        assert_eq!(once_shown(&text).creations.len(), 1, "{text}");
    }
    check("creates | desired 1 | creating asked | a7 tagged | late", expect!["adopt a7"]);
    check("creates | desired 1 | creating | late", expect!["create 1 in r, tagged tag"]);
}

#[test]
fn a_stale_listing_does_not_end_an_earlier_leaders_move() {
    for told in ["n1 holds a1 | n2", "n1 notready 300 | n2 holds a1"] {
        let text = format!("a1 moves n1 -> n2 | a1 inherited | {told}");
        assert!(!once_shown(&text).steps.is_empty(), "{text}");
    }
    let free = "late | a1 moves n1 -> n2 | a1 inherited | n1 | n2 cordoned empty";
    check(free, expect!["abandon the move of a1"]);
}

#[test]
fn a_restored_ephemeral_address_counts_before_the_cloud_shows_it() {
    let moves = "a1 moves - -> n1 | n1 | a1 returned n1";
    check(&format!("late | {moves}"), expect!["record for a1 that the target VM has an ephemeral address"]);
    check(&format!("late once | {moves}"), expect!["attach a1 to n1"]);
    check("late | a1 moves - -> n1 | n1 | n2 | a1 returned n2", expect!["attach a1 to n1"]);
}

#[test]
fn an_abandoned_move_remembers_a_restored_target() {
    let mut pool = pool("p", "1");
    pool.last_holders.insert(address("a1"), vm("n1"));
    let world = world("a1 moves n1 -> n2 | n1 holds a1 | n2 | restore n2");
    let entry = world.pools().next().unwrap().entry(address("a1")).unwrap().clone();
    pool.note(address("a1"), &Action::Begin(entry), Epoch(7), now());
    pool.note(address("a1"), &Action::Abandon, Epoch(7), now());
    assert_eq!(pool.returned[&address("a1")], [vm("n2")]);
}

#[test]
fn the_last_four_restored_vms_of_an_address_are_remembered() {
    let mut pool = pool("p", "1");
    for number in 1..=6 {
        let (from, to_restore) =
            (Some(vm(&format!("n{number}"))), BTreeSet::from([vm(&format!("n{number}"))]));
        let (epoch, written) = (Epoch(7), Tick(5));
        let entry = Move { from, to: None, to_restore, releases: false, is_voluntary: true, epoch, written };
        pool.last_holders.extend(entry.from.clone().map(|vm| (address("a1"), vm)));
        pool.note(address("a1"), &Action::Begin(entry), epoch, now());
        pool.note(address("a1"), &Action::Finish, epoch, now());
    }
    assert_eq!(pool.returned[&address("a1")], ["n3", "n4", "n5", "n6"].map(vm));
}

#[test]
fn the_last_holder_of_a_free_address_gets_an_ephemeral_one() {
    // A journal entry contains only the source and the target, so the VM to restore must be one of them.
    let begun = |text: &str| match plan(&world(text), now()).steps.as_slice() {
        [Step { action: Action::Begin(entry), .. }] => (entry.from.clone(), entry.to_restore.clone()),
        steps => panic!("{text}: {steps:?}"),
    };
    let n1 = || BTreeSet::from([vm("n1")]);
    assert_eq!(begun("n1 cordoned | n2 | a1 last n1 | a1 replaced"), (Some(vm("n1")), n1()));
    assert_eq!(begun("n1 | a1 last n1 | a1 replaced"), (None, n1()), "the address returns to it");
    assert_eq!(begun("n1 cordoned | n2 | a1 last n1"), (None, BTreeSet::new()));
    assert_eq!(begun("n2 | a1 last n1 | a1 replaced"), (None, BTreeSet::new()), "its node was deleted");
    // Another node holds the address now.
    let elsewhere = "n1 cordoned | n2 cordoned empty holds a1 | a1 last n1 | a1 replaced | n3";
    assert_eq!(begun(elsewhere), (Some(vm("n2")), BTreeSet::new()));
    check("a1 moves n1 -> n2 | restore n1 | n1 cordoned | n2", expect!["attach a1 to n2"]);
    check(
        "a1 moves n1 -> n2 | restore n1 | n1 cordoned | n2 holds a1",
        expect!["restore an ephemeral address on n1 in place of a1"],
    );
}

#[test]
fn a_leader_does_not_cut_off_its_own_node() {
    for cut in ["a1 moves n1 -> n2 | n1 cordoned empty holds a1 | n2", "a1 moves - -> n1 | n1 | restore n1"] {
        let planned = |text: String| plan(&world(&text), now());
        let elsewhere = planned(format!("{cut} | here n2"));
        assert!(!elsewhere.hands_over && !elsewhere.steps.is_empty(), "{cut}");
        let here = planned(format!("{cut} | here n1"));
        assert!(here.hands_over && here.steps.is_empty(), "{cut}");
    }
    let only_journalled = plan(&world("n1 cordoned empty holds a1 | n2 | here n1"), now());
    assert!(!only_journalled.hands_over, "every leader may start a move");
}

#[test]
fn a_leader_does_not_cut_off_its_vm_after_its_node_was_deleted() {
    let mut world = world("a1 moves n1 -> n2 | n1 cordoned empty holds a1 | n2 | here n1");
    world.remove_node(&"n1".into());
    let planned = plan(&world, now());
    assert!(planned.hands_over && planned.steps.is_empty(), "{planned}");
}

#[test]
fn f7_a_name_contains_the_addresses_on_matching_nodes() {
    let settled = "floating | publishes | n1 holds a1 | n2 holds a2";
    check(settled, expect!["publish A hello.example.com at digitalocean: a1, a2"]);
    check(&format!("{settled} | record ours a1 a2"), expect!["a1 on n1, a2 on n2, name contains a1, a2"]);
    check(
        &format!("{settled} | record ours a1"),
        expect!["publish A hello.example.com at digitalocean: a1, a2"],
    );
    check(&format!("{settled} | record unread"), expect!["read A hello.example.com at digitalocean"]);
}

#[test]
fn f4_an_unmatched_address_leaves_the_name_unless_it_is_moving() {
    let left = "floating | publishes | n1 holds a1 | n2 empty holds a2 | record ours a1 a2";
    check(
        left,
        expect![
            "a1 on n1, a2 stays on n2 although it should move (no matching pod on the node is Ready): no other node can take it yet, name contains a1, a2"
        ],
    );
    check(
        &format!("{left} | a2 unmatched 1"),
        expect![
            "a1 on n1, a2 stays on n2 although it should move (no matching pod on the node is Ready): no other node can take it yet, name contains a1, a2"
        ],
    );
    check(&format!("{left} | a2 unmatched 2"), expect!["publish A hello.example.com at digitalocean: a1"]);
    let going = "floating | publishes | n1 holds a1 | n2 | a2 moves n9 -> n2 | a2 busy | record ours a1 a2";
    check(
        &format!("{going} | a2 going 26"),
        expect!["a1 on n1, a2 is being attached to n2, name contains a1, a2"],
    );
    check(
        &format!("{} | a2 going 27", going.replace("| n2 |", "| n2 holds a2 |")),
        expect!["a1 on n1, a2 is being attached to n2, name contains a1, a2"],
    );
    check(&format!("{going} | a2 going 27"), expect!["publish A hello.example.com at digitalocean: a1"]);
    check(
        &format!("{} | a2 going 27 | a2 unconfirmed", going.replace("| n2 |", "| n2 holds a2 |")),
        expect!["publish A hello.example.com at digitalocean: a1"],
    );
    check(
        &going.replace("record ours a1 a2", "record ours a1"),
        expect!["a1 on n1, a2 is being attached to n2, name contains a1"],
    );
}

#[test]
fn an_unknown_address_does_not_change_a_name() {
    check(
        "floating | publishes | n1 holds a1 | a2 unknown | record ours a1 a2",
        expect![
            "a1 on n1, a2 is in an unknown state and is not moved: the cloud did not answer, name contains a1, a2"
        ],
    );
    check(
        "floating | publishes | n1 holds a1 | a2 unknown | record ours a1",
        expect![
            "a1 on n1, a2 is in an unknown state and is not moved: the cloud did not answer, name contains a1"
        ],
    );
    check(
        "floating | publishes | newer | n1 holds a1 | record ours a1 a2",
        expect![
            "a1 waits: a newer controller wrote its journal, and this version can't read it: upgrade again, a2 waits: a newer controller wrote its journal, and this version can't read it: upgrade again, name contains a1, a2"
        ],
    );
}

#[test]
fn a_name_is_never_emptied() {
    check(
        "floating | publishes | n1 empty holds a1 | a1 unmatched 2 | record ours a1",
        expect![
            "a1 stays on n1 although it should move (no matching pod on the node is Ready): no other node can take it yet, name still contains a1: no address is on a matching node, and the controller does not remove the last addresses of a name"
        ],
    );
    check(
        "floating | publishes | a1 free | record ours",
        expect![
            "a1 is attached to no VM: no node can take it, name is not published: no address is on a matching node"
        ],
    );
}

#[test]
fn a_name_of_another_owner_is_not_changed() {
    let settled = "floating | publishes | n1 holds a1";
    check(
        &format!("{settled} | record nobody a1"),
        expect!["publish A hello.example.com at digitalocean: a1"],
    );
    check(
        &format!("{settled} | a9 elsewhere | record nobody a1 a9"),
        expect![
            "a1 on n1, name contains a1, a9, which the controller did not publish: remove the records, or set dnsRecordSet.adopt"
        ],
    );
    check(
        &format!("{settled} | a9 elsewhere | record nobody a9 | adopts"),
        expect!["publish A hello.example.com at digitalocean: a1"],
    );
    check(
        &format!("{settled} | record other a1"),
        expect![
            "a1 on n1, name belongs to the controller with the owner ID other: if that controller no longer exists, delete its owner mark"
        ],
    );
    check(
        &format!("{settled} | record other a1 | adopts"),
        expect![
            "a1 on n1, name belongs to the controller with the owner ID other: if that controller no longer exists, delete its owner mark"
        ],
    );
}

#[test]
fn the_oldest_object_owns_a_shared_name() {
    check(
        "floating | publishes | younger publishes | n1 holds a1 | record ours a1",
        expect![
            "a1 on n1, name contains a1, name of younger belongs to NetIPAllocation/p, which is older: choose another recordName"
        ],
    );
}

#[test]
fn a_deleted_object_leaves_its_name_to_another_object() {
    check(
        "floating | publishes | deleted detaching | younger publishes | record ours a1 | a1 free",
        expect![
            "a1 stays as it is: the object is being deleted, name stays as it is: the object is being deleted, name of younger still contains a1: no address is on a matching node, and the controller does not remove the last addresses of a name"
        ],
    );
    check(
        "floating | publishes | deleted detaching | younger publishes | younger refused | record ours a1 | a1 free",
        expect![
            "a1 stays as it is: the object is being deleted, name stays as it is: the object is being deleted, name of younger is unknown: the controller has not read its records yet"
        ],
    );
}

#[test]
fn the_records_of_a_dns_name_are_read_again_after_a_while() {
    let settled = "floating | publishes | n1 holds a1 | record ours a1";
    check(&format!("{settled} | record old | record reading"), expect!["a1 on n1, name contains a1"]);
    check(&format!("{settled} | record old"), expect!["read A hello.example.com at digitalocean"]);
    let mut delayed = world(&format!("{settled} | record old"));
    delayed.record_reads_due.insert(record(), now() + Duration::from_secs(7));
    let delayed = plan(&delayed, now());
    assert_eq!(
        (delayed.to_string(), delayed.ask_again),
        (String::new(), Some(now() + Duration::from_secs(7)))
    );
    let mut published = delayed.published.into_values().flatten().map(|(_, state)| state);
    assert!(published.all(|state| matches!(state, Published::Yes(_))), "a delay forgets nothing");
    check("floating | publishes | n1 holds a1 | record busy", expect!["a1 on n1, name is being published"]);
    check(
        "floating | publishes | n1 holds a1 | record failed",
        expect![
            "a1 on n1, name may be out of date: the controller could not read or write it: no answer; next retry at 1970-01-12T13:46:45Z"
        ],
    );
}

#[test]
fn the_dns_records_of_a_pool_in_observe_mode_are_not_written() {
    check(
        "floating | observe | publishes | n1 holds a1",
        expect!["a1 on n1, name would be changed, but policy.mode is Observe: publish a1"],
    );
}

#[test]
fn f16_a_deleted_pools_name_stays_unless_on_delete_is_detach() {
    check(
        "floating | publishes | deleted | n1 holds a1 | record ours a1",
        expect!["a1 on n1, name stays as it is: the object is being deleted"],
    );
    check(
        "floating | publishes | deleted detaching | record ours a1 | a1 free",
        expect!["remove A hello.example.com at digitalocean"],
    );
    check(
        "floating | publishes | deleted detaching | record nobody | a1 free",
        expect!["a1 stays as it is: the object is being deleted, name is deleted"],
    );
    check(
        "floating | publishes | deleted detaching | record nobody a1 | a1 free",
        expect!["a1 stays as it is: the object is being deleted, name is deleted"],
    );
}

#[test]
fn f7_addresses_of_ready_matching_nodes_are_published() {
    let nodes = "floating | publishes nodes | n1 | n2 empty | n3 unmatched | n4 notready 5";
    check(&format!("{nodes} | record ours"), expect!["publish A hello.example.com at digitalocean: a101"]);
    check(
        "floating | publishes nodes | n1 | n2 unmatched | record nobody a102 | a102 elsewhere",
        expect![
            "name contains a102, which the controller did not publish: remove the records, or set dnsRecordSet.adopt"
        ],
    );
    check(
        "floating | publishes nodes | n1 empty | record nobody",
        expect!["name is not published: no address is on a matching node"],
    );
}

#[test]
fn an_address_in_backoff_does_not_block_a_node() {
    let mut world = world("n1 | a1 free | a2 free");
    let until = now() + Duration::from_secs(4);
    world.avoid_addresses.insert(address("a1"), Pause { until, why: "refused".into() });
    assert_eq!(plan(&world, now()).to_string(), "begin to attach 203.0.113.2 to n1");
    assert_eq!(plan(&world, until).to_string(), "begin to attach 203.0.113.1 to n1");
    world.avoid_machines.insert(vm("n1"), until);
    assert_eq!(plan(&world, now()).to_string(), "");
    assert_eq!(plan(&world, until).to_string(), "begin to attach 203.0.113.1 to n1");
}

#[test]
fn a_move_from_a_lost_holder_is_urgent() {
    let is_urgent =
        |text: &str| plan(&world(text), now()).steps.iter().map(|step| step.is_urgent).collect::<Vec<_>>();
    assert_eq!(is_urgent("n1 notready 99 holds a1 | n2"), [true]);
    assert_eq!(is_urgent("n1 cordoned empty holds a1 | n2"), [false], "it works until it is detached");
    assert_eq!(is_urgent("n1 | a1 free"), [false], "it was never on a node");
}

#[test]
fn before_a_hand_over_a_leader_takes_only_steps_that_can_not_wait() {
    let takes = |text: &str, last: &str| {
        let usual = plan(&world(text), now()).to_string();
        assert_ne!(usual, "", "{text}");
        let planned = plan(&world(&format!("{text} | last {last}")), now());
        assert!(planned.to_string().is_empty() || planned.to_string() == usual, "{text}: {planned}");
        planned.to_string() == usual
    };
    for (text, urgent, attach) in [
        ("n1 notready 99 holds a1 | n2", true, false),
        ("n1 notready 99 holds a1 | n2 | a1 moves n1 -> n2", true, false),
        ("n1 cordoned empty | n2 | a1 moves n1 -> n2", true, true),
        ("n1 cordoned empty | n2 | a1 free | a1 last n1", true, false),
        ("n1 cordoned empty holds a1 | n2", false, false),
        ("n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2", false, false),
        ("deleted detaching | a1 left | a1 last n9 | n1 | a1 moves n9 -> -", false, false),
        ("n1 | a1 free", false, false),
        ("creates | desired 2 | n1 holds a1", false, false),
        ("evicts | n1 holds a1 | n2 evictable unmatched", false, false),
        ("floating | publishes | n1 holds a1 | record ours", false, false),
    ] {
        let taken = ["urgent", "attach", "nothing"].map(|last| takes(text, last));
        assert_eq!(taken, [urgent, attach, false], "{text}");
    }
    check(
        "n1 cordoned empty holds a1 | n2 | last nothing",
        expect!["a1 waits for the next leader to move it to n2: this leader is about to stop"],
    );
    // The next leader must learn that it is uncertain where the address is.
    check(
        "n1 holds a1 | a1 unconfirmed | last nothing",
        expect![
            "a1 is in an unknown state and is not moved: the provider reports it on its VM, but the call to attach it failed; the controller attaches it again"
        ],
    );
    let serving = plan(&world("n1 cordoned empty holds a1 | n2 | last nothing"), now());
    assert!(serving.marks.unsure.values().flatten().any(|node| node.as_str() == "n1"), "n1 keeps its label");
}

#[test]
fn a_pause_ends_exactly_at_its_time() {
    let mut world = world("n1 | a1 moves - -> n1");
    let pause = Pause { until: now(), why: "no answer".into() };
    world.avoid_addresses.insert(address("a1"), pause);
    world.avoid_machines.insert(vm("n1"), now());
    assert_eq!(plan(&world, now()).to_string(), "attach 203.0.113.1 to n1");
    let verdict = |at| plan(&world, at).verdicts.into_values().flatten().next().unwrap().1.to_string();
    assert!(verdict(now() - Duration::from_secs(1)).contains("no answer"));
    assert_eq!(verdict(now()), "is being attached to n1");
    assert_eq!(verdict(now() + Duration::from_secs(1)), "is being attached to n1");
}

#[test]
fn a_listing_as_old_as_the_journal_entry_does_not_count() {
    let mut world = world("n1 | a1 moves - -> n1");
    world.set_fact(&scope(), address("a1"), Fact { as_of: Tick(10), ..fact(Holding::Free) });
    let mut pool = world.pools().next().unwrap().clone();
    let Journal::Known(moves) = &mut pool.journal else { panic!("the journal is readable") };
    moves.values_mut().for_each(|entry| entry.written = Tick(10));
    world.set_pool(pool);
    let plan = plan(&world, now());
    assert_eq!((plan.to_string(), plan.read_again.contains(&scope())), (String::new(), true));
}

#[test]
fn two_moves_that_share_a_vm_take_turns() {
    check(
        "n1 cordoned empty holds a1 | n2 cordoned empty holds a2 | n3 | a1 moves n1 -> n3 | a2 moves n2 -> n3",
        expect!["detach a1 from n1"],
    );
}

#[test]
fn an_address_that_someone_moved_elsewhere_is_not_detached() {
    let elsewhere = "n1 cordoned empty | n2 cordoned empty holds a1 | n3";
    check(&format!("{elsewhere} | a1 moves n1 -> -"), expect!["abandon the move of a1"]);
    check(&format!("{elsewhere} | a1 moves n1 -> n3"), expect!["abandon the move of a1"]);
    check(&format!("{elsewhere} | onecall | a1 moves n1 -> n3"), expect!["abandon the move of a1"]);
}

#[test]
fn a_lost_or_detached_address_goes_before_those_that_can_wait() {
    let begun = "n1 unmatched holds a1 | n2 HOLDS a2 | n3 | n4 | a1 moves n1 -> n3 | a2 moves n2 -> n4";
    let well = plan(&world(&begun.replace("HOLDS", "unmatched holds")), now());
    assert_eq!(well.steps.iter().map(|step| step.is_urgent).collect::<Vec<_>>(), [false, false]);
    let lost = plan(&world(&begun.replace("HOLDS", "unmatched notready 99 holds")), now());
    let order: Vec<_> = lost.steps.iter().map(|step| (step.address, step.is_urgent)).collect();
    assert_eq!(order, [(address("a2"), true), (address("a1"), false)]);
    let detached_for_moves = plan(
        &world("n1 unmatched holds a1 | n2 unmatched | n3 | n4 | a1 moves n1 -> n3 | a2 moves n2 -> n4"),
        now(),
    );
    let order: Vec<_> = detached_for_moves.steps.iter().map(|step| (step.address, step.is_urgent)).collect();
    assert_eq!(order, [(address("a2"), true), (address("a1"), false)], "a2 is detached");
}

#[test]
fn an_urgent_move_does_not_restore_its_source_first() {
    let to_restore = "n1 cordoned empty | n2 | a1 moves n1 -> n2 | restore n1 n2";
    check(to_restore, expect!["restore an ephemeral address on n1 in place of a1"]);
    check(
        &format!("{to_restore} | urgent"),
        expect!["attach a1 to n2 in place of the VM's ephemeral address"],
    );
}

#[test]
fn a_changed_journal_entry_is_pending_until_it_is_written() {
    let mut pool = pool("p", "1");
    let entry = Move {
        from: None,
        to: Some(Target { vm: vm("n1"), node: "n1".into() }),
        to_restore: BTreeSet::new(),
        releases: false,
        is_voluntary: true,
        epoch: Epoch(7),
        written: Tick(3),
    };
    pool.note(address("a1"), &Action::Begin(entry), Epoch(7), now());
    assert_eq!(pool.entry(address("a1")).map(|entry| entry.written), Some(crate::PENDING));
    for action in [Action::Claim, Action::NoteEphemeral, Action::KeepPtr("x".into())] {
        let Journal::Known(moves) = &mut pool.journal else { panic!("the journal is readable") };
        moves.values_mut().for_each(|entry| entry.written = Tick(3));
        pool.note(address("a1"), &action, Epoch(8), now());
        assert_eq!(pool.entry(address("a1")).map(|entry| entry.written), Some(crate::PENDING), "{action:?}");
    }
}

#[test]
fn a_move_waits_until_nodes_with_a_silent_watch_are_listed() {
    let drained = "n1 cordoned empty holds a1 | n2";
    check(&format!("{drained} | silent"), expect!["list nodes, pods"]);
    check(&format!("{drained} | silent pods"), expect!["list pods"]);
    let plan = plan(&world(&format!("{drained} | silent")), now());
    assert_eq!(plan.awaits_list.len(), 1, "its status is not written before the list");
    assert_eq!(plan.marks.uncertain.len(), 1, "its node keeps the mark");
    check("n1 holds a1 | silent", expect!["a1 on n1"]);
}

#[test]
fn a_failover_does_not_wait_for_pods_that_do_not_matter() {
    let dead = "n1 notready 60 holds a1 | n2";
    check(&format!("{dead} | silent"), expect!["list nodes"]);
    check(&format!("{dead} | silent pods"), expect!["begin to move a1 from n1 to n2"]);
    check(&format!("{dead} | silent pods | floating"), expect!["list pods"]);
    check(&format!("{dead} | silent pods | floating anypods"), expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn a_working_address_is_not_detached_before_the_list() {
    let begun = "n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2 | silent";
    check(begun, expect!["list nodes, pods"]);
    check(&format!("{begun} | onecall"), expect!["list nodes, pods"]);
    check("n1 cordoned empty | n2 | a1 moves n1 -> n2 | silent", expect!["attach a1 to n2"]);
}

#[test]
fn a_node_keeps_its_mark_until_the_list_shows_that_it_should_not() {
    let displaced = "floating | n1 empty holds a1 | n2 notready 60";
    let settled = plan(&world(displaced), now());
    assert_eq!((settled.relist, settled.marks.uncertain.len()), (Kinds::default(), 0));
    for outdated in ["silent pods", "unread pods"] {
        let plan = plan(&world(&format!("{displaced} | {outdated}")), now());
        let stays = plan.marks.uncertain.len() + plan.marks.unsure.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(stays, 1, "{outdated}");
        assert_eq!(plan.relist.has(Kind::Pods), outdated == "silent pods");
    }
    let mut paused = world(&format!("{displaced} | silent pods"));
    let until = later(now(), Duration::from_secs(60));
    paused.avoid_addresses.insert(address("a1"), Pause { until, why: "refused".into() });
    assert_eq!(plan(&paused, now()).marks.unsure.len(), 1, "a pause after a failure changes nothing");
}

#[test]
fn a_detached_address_does_not_wait_for_pods_that_do_not_matter() {
    let begun = "n1 cordoned empty | n2 notready 60 | n3 | a1 moves n1 -> n2";
    for unread in ["pods", "replicasets"] {
        check(&format!("{begun} | unread {unread}"), expect!["abandon the move of a1"]);
    }
}

#[test]
fn pods_decide_again_whether_a_node_that_recovered_keeps_its_address() {
    let begun = "n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2 | urgent";
    check(&format!("{begun} | silent pods"), expect!["list pods"]);
    let dead = begun.replace("cordoned empty", "notready 60");
    check(&format!("{dead} | silent pods"), expect!["detach a1 from n1"]);
}

#[test]
fn a_step_that_is_held_back_does_not_block_the_moves_of_its_vms() {
    let begun = "n1 notready 60 holds a1 | n2 | n3 | a2 free | a1 moves n1 -> n2 | a2 moves n1 -> n3";
    let mut world = world(&format!("{begun} | unread pods"));
    let fact = world.fact(&scope(), address("a1")).unwrap().clone();
    world.set_fact(&scope(), address("a2"), fact);
    let mut pool = world.pools().next().unwrap().clone();
    let Journal::Known(moves) = &mut pool.journal else { panic!("the journal can be read") };
    moves.get_mut(&address("a2")).unwrap().is_voluntary = false;
    world.set_pool(pool);
    let steps = plan(&world, now()).to_string();
    assert_eq!(steps, "detach 203.0.113.2 from vm-n1", "pods don't matter for a2");
}

#[test]
fn a_floating_pool_abandons_no_move_while_pods_are_unread() {
    let begun = "floating | n1 notready 60 | n2 undecodable-pods | a1 moves n1 -> n2";
    check(begun, expect!["abandon the move of a1"]);
    check(
        &format!("{begun} | unread pods"),
        expect![
            "a1 is in an unknown state and is not moved: the controller can't read pods from the apiserver at present"
        ],
    );
}

#[test]
fn a_leader_hands_nothing_over_that_its_successor_would_hold_back() {
    let begun = "here n1 | n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2";
    assert!(plan(&world(begun), now()).hands_over);
    for outdated in ["silent", "unread nodes"] {
        assert!(!plan(&world(&format!("{begun} | {outdated}")), now()).hands_over, "{outdated}");
    }
}

#[test]
fn an_eviction_waits_for_the_list() {
    check("evicts | n1 holds a1 | n2 evictable | silent", expect!["list nodes, pods"]);
    check("evicts | n1 holds a1 | n2 evictable | unread replicasets", expect!["a1 on n1"]);
}

#[test]
fn a_dns_name_changes_only_after_the_list() {
    let unmatched =
        "floating | publishes | n1 unmatched holds a1 | n2 holds a2 | record ours a1 a2 | a1 unmatched 5";
    let added = "floating | publishes | n1 holds a1 | n2 holds a2 | record ours a1";
    check(unmatched, expect!["publish A hello.example.com at digitalocean: a2"]);
    check(added, expect!["publish A hello.example.com at digitalocean: a1, a2"]);
    for changed in [unmatched, added] {
        check(&format!("{changed} | silent"), expect!["list nodes, pods"]);
        check(&format!("{changed} | silent names"), expect!["list FloatingIPPools or NodeDNSRecordSets"]);
    }
    check(&format!("{unmatched} | silent pools"), expect!["list NetIPAllocations or FloatingIPPools"]);
    check(&format!("{added} | silent pools"), expect!["publish A hello.example.com at digitalocean: a1, a2"]);
    check(
        &format!("{unmatched} | unread pods"),
        expect![
            "a1 is in an unknown state and is not moved: the controller can't read pods from the apiserver at present, a2 on n2, name contains a1, a2"
        ],
    );
    check(
        &format!("{added} | unread names"),
        expect![
            "a1 on n1, a2 on n2, name stays as it is: the controller can't read FloatingIPPools or NodeDNSRecordSets from the apiserver at present"
        ],
    );
}

#[test]
fn a_status_waits_for_uncounted_pods_only_if_they_can_be_read() {
    for (unread, waits) in [
        ("", true),
        (" | unread pods", false),
        (" | unread replicasets", false),
        (" | unread daemonsets", true),
    ] {
        let mut world = world(&format!("n1 holds a1{unread}"));
        let key = world.pools().next().unwrap().key.clone();
        world.uncounted.insert(key.clone());
        assert_eq!(plan(&world, now()).awaits_list.contains(&key), waits, "{unread}");
    }
}

#[test]
fn nothing_begins_while_a_kind_that_it_depends_on_is_unread() {
    let drained = "n1 cordoned empty holds a1 | n2";
    for kind in ["nodes", "pods", "replicasets", "pools"] {
        let plan = plan(&world(&format!("{drained} | unread {kind}")), now());
        assert_eq!((plan.steps, plan.relist), (Vec::new(), Kinds::default()), "{kind}");
        let (_, verdict) = &plan.verdicts.values().next().unwrap()[0];
        assert!(verdict.to_string().contains("can't read"), "{kind}: {verdict}");
    }
    for other in ["unread daemonsets", "podless | unread pods"] {
        check(&format!("{drained} | {other}"), expect!["begin to move a1 from n1 to n2"]);
    }
    let dead = "n1 notready 60 holds a1 | n2";
    check(&format!("{dead} | unread pods"), expect!["begin to move a1 from n1 to n2"]);
    check(&format!("{dead} | unread replicasets"), expect!["begin to move a1 from n1 to n2"]);
}

#[test]
fn an_unfinished_move_continues_while_pools_are_unread() {
    let begun = "n1 cordoned empty holds a1 | n2 | a1 moves n1 -> n2";
    check(&format!("{begun} | unread pools"), expect!["detach a1 from n1"]);
    check(
        "desired 1 | releases | n1 holds a1 | a2 made | a2 released | unread pools",
        expect![
            "a1 on n1, a2 is in an unknown state and is not moved: the controller can't read NetIPAllocations or FloatingIPPools from the apiserver at present"
        ],
    );
    check(
        "creates | desired 1 | n1 | unread pools",
        expect![
            "no address is created: the controller can't read NetIPAllocations or FloatingIPPools from the apiserver at present"
        ],
    );
}

#[test]
fn a_move_of_an_address_that_the_object_no_longer_lists_is_abandoned_before_it_is_detached() {
    let unlisted = "n1 unmatched holds a1 | n2 | a1 moves n1 -> n2 | a1 elsewhere";
    check(unlisted, expect!["abandon the move of a1"]);
    check("n2 | a1 free | a1 moves - -> n2 | a1 elsewhere", expect!["abandon the move of a1"]);
    check("n1 unmatched | n2 | a1 free | a1 moves n1 -> n2 | a1 elsewhere", expect!["attach a1 to n2"]);
}

#[test]
fn a_move_from_a_foreign_vm_needs_the_policy_until_the_detach() {
    check("a1 foreign | n1 | a1 moves foreign -> n1", expect!["abandon the move of a1"]);
    check("a1 foreign | n1 | a1 moves foreign -> n1 | takeover", expect!["detach a1 from foreign"]);
}

#[test]
fn an_assignment_in_the_future_delays_none() {
    let mut world = world("floating | cooloff 20 | n1 | a1 free");
    let mut pool = world.pools().next().unwrap().clone();
    pool.last_assignment = Some(now() + Duration::from_secs(3_600));
    world.set_pool(pool);
    assert_eq!(plan(&world, now()).to_string(), "begin to attach 203.0.113.1 to n1");
}

#[test]
fn an_account_whose_listings_stay_incomplete_is_not_listed_at_once_for_a_creation() {
    let mut world = world("creates | desired 2 | n1 holds a1 | creating | unread");
    assert!(!plan(&world, now()).read_again.is_empty());
    world.incomplete.insert(scope());
    assert!(plan(&world, now()).read_again.is_empty());
}

#[test]
fn a_move_begins_with_current_objects_while_the_cloud_may_show_old_holders() {
    check("late | silent pools | n1 | a1 free", expect!["list NetIPAllocations or FloatingIPPools"]);
    check("silent pools | n1 | a1 free", expect!["begin to attach a1 to n1"]);
}
