//! One line of world in, one line of plan out.
//!
//! A world is a list of clauses between bars. The Cluster is `c` in the namespace `ns`. Its class is `k`, which defines
//! the variable `clusterVip`.
//!
//! - The Cluster: `plain` (no topology, but a class by annotation), `classless` (no class at all), `paused`, `leaving`
//!   (in deletion), `undefined` (the class does not define the variable), `nowhere` (the class does not exist),
//!   `undecodable`
//! - What it has: `endpoint 10.0.0.9`, `variable 10.0.0.9`, `ingress 10.0.0.9`, `label 10.0.0.9`
//! - What its annotation says: `ingress wanted`, `ingress unwanted`
//! - `pool p …` is a pool for its class and the control plane: `full`, `free` (it reports one free address), `leaving`,
//!   `ingress` (its role), `of other` (another class), `first` (a higher priority), `in ns` (its namespace)
//! - `claim …` is the claim for the control plane, `ingress-claim …` the other one: `from p`, `has 10.0.0.1`, `named`
//!   (the controller has not seen its address yet), `reborn` (the address belongs to an earlier claim with its name),
//!   `foreign`, `orphan`, `leaving`
//! - `others from p` is a claim of another Cluster that waits in p
//! - `another endpoint 10.0.0.9` is another Cluster with that endpoint; `another ingress 10.0.0.9` likewise; `leaving`
//!   may follow
//! - `undecodable class`, `undecodable claim`, `undecodable address`, `undecodable another 10.0.0.9` (a Cluster with
//!   that address)
//! - `no claims` and the like: these objects are unknown
//! - `failed`, `ingress-failed`: the last attempt failed

use expect_test::{Expect, expect};

use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn key(namespace: &str, name: &str) -> Key {
    Key { namespace: namespace.into(), name: name.into() }
}

fn pool_ref(words: &[&str]) -> PoolRef {
    let namespace = words.iter().position(|word| *word == "in").map(|at| words[at + 1].into());
    PoolRef { name: words[0].into(), namespace }
}

fn world(text: &str) -> World {
    let cluster = Cluster {
        uid: "uid".into(),
        class: Some("k".into()),
        topology: Some(key("ns", "k")),
        is_paused: false,
        is_leaving: false,
        endpoint: None,
        variable: None,
        wants_ingress: None,
        ingress: None,
        ingress_label: None,
        undecodable: None,
    };
    let mut world = World {
        clusters: BTreeMap::from([(key("ns", "c"), cluster)]),
        are_clusters_known: true,
        classes: Some(BTreeMap::from([(key("ns", "k"), true)])),
        global_pools: Some(BTreeMap::new()),
        namespaced_pools: Some(BTreeMap::new()),
        claims: Some(BTreeMap::new()),
        addresses: Some(BTreeMap::new()),
        undecodable: Undecodable::default(),
        reserved: BTreeMap::new(),
        failed: BTreeMap::new(),
        writing: BTreeMap::new(),
    };
    // Clauses that start with `no ` come last: they make a whole kind unknown, and so erase what other clauses add.
    let clauses: Vec<_> = text.split('|').map(str::trim).filter(|clause| !clause.is_empty()).collect();
    let (unknown, known): (Vec<_>, Vec<_>) = clauses.iter().partition(|clause| clause.starts_with("no "));
    known.into_iter().chain(unknown).for_each(|clause| read(&mut world, clause));
    world.speak_for_claims();
    world
}

fn read(world: &mut World, clause: &str) {
    let words: Vec<_> = clause.split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let cluster = world.clusters.get_mut(&key("ns", "c")).unwrap();
    match *words.as_slice() {
        ["plain"] => cluster.topology = None,
        ["classless"] => (cluster.topology, cluster.class) = (None, None),
        ["paused"] => cluster.is_paused = true,
        ["leaving"] => cluster.is_leaving = true,
        ["undefined"] => world.classes = Some(BTreeMap::from([(key("ns", "k"), false)])),
        ["nowhere"] => world.classes = Some(BTreeMap::new()),
        ["endpoint", vip] => cluster.endpoint = Some(vip.into()),
        ["variable", vip] => cluster.variable = Some(vip.into()),
        ["ingress", "wanted"] => cluster.wants_ingress = Some(true),
        ["ingress", "unwanted"] => cluster.wants_ingress = Some(false),
        ["ingress", vip] => cluster.ingress = Some(vip.into()),
        ["label", vip] => cluster.ingress_label = Some(vip.into()),
        ["failed"] => _ = world.failed.insert((key("ns", "c"), Role::ControlPlane), "refused".into()),
        ["ingress-failed"] => _ = world.failed.insert((key("ns", "c"), Role::Ingress), "refused".into()),
        ["another", place, vip, ..] => {
            let another = Cluster {
                uid: "another".into(),
                endpoint: (place == "endpoint").then(|| vip.into()),
                ingress: (place == "ingress").then(|| vip.into()),
                is_leaving: has("leaving"),
                ..cluster.clone()
            };
            world.clusters.insert(key("ns", "another"), another);
        }
        ["undecodable"] => cluster.undecodable = Some(BTreeSet::new()),
        ["undecodable", "another", vip] => {
            let undecodable = Some([vip.parse().unwrap()].into());
            let another = Cluster { uid: "another".into(), undecodable, ..cluster.clone() };
            world.clusters.insert(key("ns", "another"), another);
        }
        ["undecodable", "class"] => _ = world.undecodable.classes.insert(key("ns", "k")),
        ["undecodable", "claim"] => {
            _ = world.undecodable.claims.insert(Role::ControlPlane.claim(&key("ns", "c")));
        }
        ["undecodable", "address"] => {
            _ = world.undecodable.addresses.insert(Role::ControlPlane.claim(&key("ns", "c")));
        }
        ["no", "clusters"] => world.are_clusters_known = false,
        ["no", "claims"] => world.claims = None,
        ["no", "addresses"] => world.addresses = None,
        ["no", "classes"] => world.classes = None,
        ["no", "pools"] => world.global_pools = None,
        ["no", "namespaced", "pools"] => world.namespaced_pools = None,
        ["pool", ..] => {
            let name = pool_ref(&words[1..]);
            let free = if has("full") { Some(0) } else { has("free").then_some(1) };
            let pool = Pool {
                classes: BTreeSet::from([if has("of") { "other".into() } else { "k".into() }]),
                role: if has("ingress") { "ingress".into() } else { "control-plane".into() },
                priority: has("first").into(),
                count: free.map(|free| Count { total: 8, used: 8 - free, free }),
                is_leaving: has("leaving"),
            };
            let pools =
                if name.namespace.is_some() { &mut world.namespaced_pools } else { &mut world.global_pools };
            pools.as_mut().unwrap().insert(name, pool);
        }
        [kind @ ("claim" | "ingress-claim" | "others"), ..] => {
            let role = if kind == "ingress-claim" { Role::Ingress } else { Role::ControlPlane };
            let cluster = if kind == "others" { "others" } else { "c" };
            let name = role.claim(&key("ns", cluster));
            let after = |word: &str| words.iter().position(|found| *found == word).map(|at| &words[at + 1..]);
            let owner = if has("foreign") { "another" } else { "uid" };
            let address = (has("has") || has("named")).then(|| name.clone());
            if let Some(given) = after("has") {
                let claim = if has("reborn") { "earlier" } else { "claim" };
                let address = Address { ip: given[0].parse().unwrap(), claim: Some(claim.into()) };
                world.addresses.as_mut().unwrap().insert(name.clone(), address);
            }
            let claim = Claim {
                uid: "claim".into(),
                owners: if has("orphan") { BTreeSet::new() } else { BTreeSet::from([owner.into()]) },
                pool: pool_ref(after("from").unwrap()),
                address,
                is_leaving: has("leaving"),
            };
            world.claims.as_mut().unwrap().insert(name, claim);
        }
        _ => panic!("unknown clause: {clause}"),
    }
}

/// The plan as text, without an ingress VIP that the Cluster does not request.
fn planned(text: &str) -> String {
    let world = world(text);
    let key = key("ns", "c");
    let lines = plan(&world, &key, &world.clusters[&key]).into_iter().filter_map(
        |(role, Decision { step, verdict })| {
            let step = step.map(|step| format!("{step} ")).unwrap_or_default();
            let verdict = format!("{role}: {step}({})", verdict.reason().name());
            (verdict != "ingress: (NotWanted)").then_some(verdict)
        },
    );
    lines.collect::<Vec<_>>().join("; ")
}

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&planned(text));
}

#[test]
fn v1_a_cluster_claims_from_the_pool_of_its_class_and_role() {
    check(
        "pool p | pool q of other | pool r ingress",
        expect!["control-plane: claim from p (Allocating); ingress: claim from r (Allocating)"],
    );
}

#[test]
fn v1_priority_and_then_name_decide_between_pools() {
    check("pool b | pool a", expect!["control-plane: claim from a (Allocating)"]);
    check("pool b first | pool a", expect!["control-plane: claim from b (Allocating)"]);
}

#[test]
fn v8_a_namespaced_pool_is_for_the_clusters_of_its_namespace() {
    check("pool p in ns", expect!["control-plane: claim from ns/p (Allocating)"]);
    check("pool p in elsewhere", expect!["control-plane: (NoPool)"]);
}

#[test]
fn a_missing_pool_is_reported() {
    check("", expect!["control-plane: (NoPool)"]);
    check("pool p leaving", expect!["control-plane: (NoPool)"]);
}

#[test]
fn v8_a_missing_ingress_pool_is_reported_only_on_request() {
    check("pool p | ingress wanted", expect!["control-plane: claim from p (Allocating); ingress: (NoPool)"]);
    check("pool p | pool r ingress | ingress unwanted", expect!["control-plane: claim from p (Allocating)"]);
}

#[test]
fn v3_an_address_goes_into_the_endpoint_and_a_defined_variable() {
    check(
        "pool p | claim from p has 10.0.0.1",
        expect!["control-plane: write 10.0.0.1 in both places (Allocating)"],
    );
    check(
        "undefined | pool p | claim from p has 10.0.0.1",
        expect!["control-plane: write 10.0.0.1 (Allocating)"],
    );
}

#[test]
fn v3_a_new_endpoint_replaces_the_value_of_the_variable() {
    check(
        "variable 192.0.2.1 | pool p | claim from p has 10.0.0.1",
        expect!["control-plane: write 10.0.0.1 in both places (Allocating)"],
    );
}

#[test]
fn an_undecodable_cluster_is_not_changed() {
    check("undecodable | pool p | pool r ingress", expect!["control-plane: (Unknown); ingress: (Unknown)"]);
    check(
        "undecodable | endpoint 10.0.0.1 | pool p | claim from p has 10.0.0.1",
        expect!["control-plane: (Unknown); ingress: (Unknown)"],
    );
}

#[test]
fn an_address_in_an_undecodable_cluster_is_given_to_no_other() {
    check(
        "pool p | claim from p has 10.0.0.1 | undecodable another 10.0.0.1",
        expect!["control-plane: (InUse)"],
    );
}

#[test]
fn an_undecodable_claim_is_neither_created_nor_deleted() {
    check("undecodable claim | pool p", expect!["control-plane: (Unknown)"]);
    check(
        "undecodable claim | pool p full | pool q free | claim from p",
        expect!["control-plane: (Unknown)"],
    );
}

#[test]
fn a_class_or_address_that_was_never_decoded_is_not_absent() {
    check("nowhere | undecodable class | pool p", expect!["control-plane: (Unknown)"]);
    check("undecodable class | pool p", expect!["control-plane: claim from p (Allocating)"]);
    check("undecodable address | pool p | claim from p named", expect!["control-plane: (Unknown)"]);
}

#[test]
fn a_cluster_with_its_vip_is_not_changed() {
    check(
        "endpoint 10.0.0.1 | variable 10.0.0.1 | pool p | claim from p has 10.0.0.1",
        expect!["control-plane: (Assigned)"],
    );
}

#[test]
fn v4_a_manual_endpoint_stays_and_its_variable_is_filled() {
    check("endpoint 10.9.9.9 | pool p", expect!["control-plane: write 10.9.9.9 in both places (Manual)"]);
    check("endpoint 10.9.9.9 | variable 10.9.9.8 | pool p", expect!["control-plane: (Manual)"]);
    check("endpoint 10.9.9.9 | undefined | pool p", expect!["control-plane: (Manual)"]);
}

#[test]
fn v4_an_endpoint_that_differs_from_our_claim_is_manual() {
    check(
        "endpoint 10.9.9.9 | variable 10.9.9.9 | pool p | claim from p has 10.0.0.1",
        expect!["control-plane: (Manual)"],
    );
}

#[test]
fn v8_an_ingress_vip_goes_into_annotation_and_label() {
    check(
        "endpoint e | variable e | pool r ingress | ingress-claim from r has 10.0.0.2",
        expect!["control-plane: (Manual); ingress: write 10.0.0.2 in both places (Allocating)"],
    );
    check(
        "endpoint e | variable e | ingress 10.0.0.2 | ingress-claim from r has 10.0.0.2",
        expect!["control-plane: (Manual); ingress: write 10.0.0.2 in both places (Assigned)"],
    );
    check(
        "endpoint e | variable e | ingress 10.0.0.2 | label 10.0.0.2 | ingress-claim from r has 10.0.0.2",
        expect!["control-plane: (Manual); ingress: (Assigned)"],
    );
    check(
        "endpoint e | variable e | pool r ingress | ingress-claim from r has fd00::2",
        expect!["control-plane: (Manual); ingress: write fd00::2 (Allocating)"],
    );
    check(
        "endpoint e | variable e | ingress fd00::2 | ingress-claim from r has fd00::2",
        expect!["control-plane: (Manual); ingress: (Assigned)"],
    );
}

#[test]
fn v8_neither_vip_waits_for_the_other() {
    check(
        "pool p full | pool r ingress | claim from p | ingress-claim from r has 10.0.0.2",
        expect!["control-plane: (PoolExhausted); ingress: write 10.0.0.2 in both places (Allocating)"],
    );
    check(
        "pool p | pool r ingress full | claim from p has 10.0.0.1 | ingress-claim from r",
        expect!["control-plane: write 10.0.0.1 in both places (Allocating); ingress: (PoolExhausted)"],
    );
}

#[test]
fn a_cluster_waits_for_a_claim_without_an_address() {
    check("pool p | claim from p", expect!["control-plane: (Allocating)"]);
    check("pool p full | claim from p named", expect!["control-plane: (Allocating)"]);
}

#[test]
fn a_claim_in_a_full_pool_is_replaced_with_one_in_the_next_pool() {
    check("pool p full | pool q free | claim from p", expect!["control-plane: delete the claim (Releasing)"]);
    check("pool p full | pool q free | claim from p leaving", expect!["control-plane: (Releasing)"]);
    check("pool p full | pool q free", expect!["control-plane: claim from q (Allocating)"]);
}

#[test]
fn a_claim_in_a_pool_that_no_longer_matches_is_replaced() {
    check("pool p of other | pool q | claim from p", expect!["control-plane: delete the claim (Releasing)"]);
    check("pool q | claim from p", expect!["control-plane: delete the claim (Releasing)"]);
    check("claim from p", expect!["control-plane: (NoPool)"]);
}

#[test]
fn a_claim_with_an_address_is_never_deleted() {
    check(
        "pool p full | pool q free | claim from p has 10.0.0.1",
        expect!["control-plane: write 10.0.0.1 in both places (Allocating)"],
    );
    check("pool p full | pool q free | claim from p named", expect!["control-plane: (Allocating)"]);
}

#[test]
fn if_all_pools_are_full_a_cluster_waits_for_the_first() {
    check("pool p full | pool q full", expect!["control-plane: claim from p (PoolExhausted)"]);
    check("pool p full | pool q full | claim from q", expect!["control-plane: (PoolExhausted)"]);
    check("pool p full | pool q free | claim from q", expect!["control-plane: (Allocating)"]);
}

#[test]
fn a_claim_is_not_deleted_for_an_address_that_another_claim_gets() {
    check(
        "pool p full | pool q free | claim from p | others from q",
        expect!["control-plane: (PoolExhausted)"],
    );
    for served in ["others from q named", "others from q leaving", "others from p"] {
        let planned = planned(&format!("pool p full | pool q free | claim from p | {served}"));
        assert_eq!(planned, "control-plane: delete the claim (Releasing)", "{served}");
    }
}

#[test]
fn a_new_claim_prefers_a_pool_without_waiting_claims() {
    let rest = "pool p first free | others from p";
    check(&format!("{rest} | pool q free"), expect!["control-plane: claim from q (Allocating)"]);
    check(&format!("{rest} | pool q full"), expect!["control-plane: claim from p (Allocating)"]);
}

#[test]
fn an_address_that_a_cluster_is_about_to_claim_is_reserved() {
    for comes in
        ["pool p free", "pool p free | pool q full | claim from q", "pool p free | claim from q leaving"]
    {
        let mut world = world(comes);
        let key = key("ns", "c");
        let planned = plan(&world, &key, &world.clusters[&key]);
        world.reserve(&planned);
        let pool = PoolRef { name: "p".into(), namespace: None };
        assert!(!world.has_room(&pool, &world.global_pools.as_ref().unwrap()[&pool]), "{comes}");
    }
}

#[test]
fn v2_a_claim_of_another_owner_is_never_used() {
    check("pool p | claim from p foreign has 10.0.0.1", expect!["control-plane: (ClaimNotOurs)"]);
    check("pool p | claim from p orphan has 10.0.0.1", expect!["control-plane: (ClaimNotOurs)"]);
    check(
        "pool p full | pool q free | claim from p foreign leaving",
        expect!["control-plane: (ClaimNotOurs)"],
    );
}

#[test]
fn a_cluster_without_topology_uses_the_class_in_its_annotation() {
    check("plain | pool p", expect!["control-plane: claim from p (Allocating)"]);
    check(
        "plain | no classes | pool p | claim from p has 10.0.0.1",
        expect!["control-plane: write 10.0.0.1 (Allocating)"],
    );
    check("classless | pool p", expect!["control-plane: (NotWanted)"]);
}

#[test]
fn paused_and_deleted_clusters_are_not_changed() {
    let rest = "pool p | pool r ingress | claim from p has 10.0.0.1";
    check(&format!("paused | {rest}"), expect!["control-plane: (Paused); ingress: (Paused)"]);
    check(&format!("leaving | {rest}"), expect!["control-plane: (Leaving); ingress: (Leaving)"]);
}

#[test]
fn unknown_objects_cause_no_change() {
    let rest = "ingress unwanted | pool p | claim from p has 10.0.0.1";
    for unknown in ["claims", "addresses", "pools", "namespaced pools", "classes"] {
        assert_eq!(planned(&format!("no {unknown} | {rest}")), "control-plane: (Unknown)", "{unknown}");
    }
    check(&format!("nowhere | {rest}"), expect!["control-plane: (NoClass)"]);
}

#[test]
fn unknown_clusters_cause_no_change() {
    check("no clusters | pool p", expect!["control-plane: (Unknown)"]);
    check("no clusters | pool p full | pool q free | claim from p", expect!["control-plane: (Unknown)"]);
    check("no clusters | pool p | claim from p has 10.0.0.1", expect!["control-plane: (Unknown)"]);
}

#[test]
fn a_vip_of_another_cluster_is_not_written() {
    for place in ["endpoint 10.0.0.1", "ingress 10.0.0.1", "endpoint 10.0.0.1 leaving"] {
        let planned = planned(&format!("pool p | claim from p has 10.0.0.1 | another {place}"));
        assert_eq!(planned, "control-plane: (InUse)", "{place}");
    }
    check(
        "pool p | claim from p has fd00::1 | another endpoint fd00:0::0001",
        expect!["control-plane: (InUse)"],
    );
    check(
        "pool p | claim from p has 10.0.0.1 | another endpoint 10.0.0.10",
        expect!["control-plane: write 10.0.0.1 in both places (Allocating)"],
    );
}

#[test]
fn the_two_vips_of_a_cluster_are_never_one_address() {
    check(
        "endpoint 10.0.0.1 | variable e | pool r ingress | ingress-claim from r has 10.0.0.1",
        expect!["control-plane: (Manual); ingress: (InUse)"],
    );
    check(
        "pool p | pool r ingress | claim from p has 10.0.0.1 | ingress-claim from r has 10.0.0.1",
        expect!["control-plane: write 10.0.0.1 in both places (Allocating); ingress: (InUse)"],
    );
}

#[test]
fn a_vip_that_is_being_written_to_another_cluster_is_not_written() {
    let mut world = world("pool p | claim from p has 10.0.0.1");
    world.writing.insert((key("ns", "other"), Role::ControlPlane), "10.0.0.1".into());
    let key = key("ns", "c");
    let [(_, control_plane), _] = plan(&world, &key, &world.clusters[&key]);
    assert!(matches!(control_plane.verdict, Verdict::InUse { .. }), "{control_plane:?}");
}

#[test]
fn a_stale_copy_of_a_cluster_does_not_block_its_own_vip() {
    let world = world("endpoint 10.0.0.1 | pool p | claim from p has 10.0.0.1");
    let key = key("ns", "c");
    let earlier = Cluster { endpoint: None, ..world.clusters[&key].clone() };
    assert_eq!(plan(&world, &key, &earlier)[0].1.verdict.reason(), VipReason::Allocating);
}

#[test]
fn a_cluster_keeps_its_vip_even_if_another_cluster_has_it_too() {
    check(
        "endpoint 10.0.0.1 | variable e | pool p | claim from p has 10.0.0.1 | another endpoint 10.0.0.1",
        expect!["control-plane: (Assigned)"],
    );
}

#[test]
fn after_a_failure_the_next_step_waits() {
    check("failed | pool p", expect!["control-plane: (Failed)"]);
    check("failed | pool p full | pool q free | claim from p", expect!["control-plane: (Failed)"]);
    check("failed | pool p | claim from p has 10.0.0.1", expect!["control-plane: (Failed)"]);
    check("failed | endpoint 10.9.9.9", expect!["control-plane: (Failed)"]);
}

#[test]
fn a_failure_is_not_reported_if_there_is_nothing_to_do() {
    check("failed | ingress-failed | pool p | claim from p", expect!["control-plane: (Allocating)"]);
    check("failed | ingress-failed", expect!["control-plane: (NoPool)"]);
    check("failed | endpoint 10.9.9.9 | variable 10.9.9.9", expect!["control-plane: (Manual)"]);
}

#[test]
fn a_failure_for_one_vip_does_not_delay_the_other() {
    check(
        "ingress-failed | pool p | pool r ingress",
        expect!["control-plane: claim from p (Allocating); ingress: (Failed)"],
    );
}

#[test]
fn the_address_of_an_earlier_claim_is_never_written() {
    check("pool p | claim from p reborn has 10.0.0.1", expect!["control-plane: (Allocating)"]);
}

#[test]
fn a_waiting_claim_for_an_unwanted_ingress_vip_is_deleted() {
    let given_up = |rest: &str| planned(&format!("endpoint e | variable e | ingress unwanted | {rest}"));
    let gives_up = "control-plane: (Manual); ingress: delete the claim (NotWanted)";
    assert_eq!(given_up("ingress-claim from r"), gives_up);
    for stays in ["from r leaving", "from r foreign", "from r named", "from r has 10.0.0.2"] {
        assert_eq!(given_up(&format!("ingress-claim {stays}")), "control-plane: (Manual)", "{stays}");
    }
    let used = given_up("ingress-claim from r | ingress 10.0.0.2");
    assert_eq!(
        used, "control-plane: (Manual)",
        "after a move to another management cluster the claim waits, and the VIP may be its address"
    );
}

#[test]
fn a_waiting_claim_beside_an_endpoint_is_kept() {
    check(
        "endpoint 10.0.0.1 | variable 10.0.0.1 | pool p | claim from p",
        expect!["control-plane: (Manual)"],
    );
}

#[test]
fn each_reconciliation_continues_where_the_last_one_stopped() {
    // Each world is the result of the step that was planned for the world before.
    let steps = [
        "pool p full | pool q free | claim from p",
        "pool p full | pool q free | claim from p leaving",
        "pool p full | pool q free",
        "pool p full | pool q free | claim from q",
        "pool p full | pool q free | claim from q has 10.0.0.1",
        "pool p full | pool q full | claim from q has 10.0.0.1 | endpoint 10.0.0.1 | variable 10.0.0.1",
    ];
    let told: Vec<_> = steps.iter().map(|world| planned(world).replace("control-plane: ", "")).collect();
    expect![[r#"
        delete the claim (Releasing)
        (Releasing)
        claim from q (Allocating)
        (Allocating)
        write 10.0.0.1 in both places (Allocating)
        (Assigned)"#]]
    .assert_eq(&told.join("\n"));
}

#[test]
fn messages_say_what_to_do() {
    let verdict = |text: &str| {
        let world = world(text);
        let key = key("ns", "c");
        plan(&world, &key, &world.clusters[&key])[0].1.verdict.to_string()
    };
    expect!["no address is free in p, q: add addresses, or another pool"]
        .assert_eq(&verdict("pool p full | pool q full"));
    expect!["10.0.0.1 from pool p; ClusterClass variable 'clusterVip' not found: add it to the class ns/k for patches that need the VIP"]
        .assert_eq(&verdict("undefined | endpoint 10.0.0.1 | claim from p has 10.0.0.1"));
    expect!["deleting the claim from pool p, which takes up to the pool's addressReuseGracePeriodSeconds; then claiming from pool q"]
        .assert_eq(&verdict("pool p full | pool q free | claim from p leaving"));
    let no_pool = verdict("claim from p").replace(&verdict(""), "…");
    expect!["…; the claim waits in pool p, which does not match"].assert_eq(&no_pool);
    expect!["10.0.0.1 is already the control-plane VIP of the Cluster ns/another. The controller waits until that Cluster is deleted. If the VIP was set by hand, add it to spec.excludedAddresses of the pool and delete the IPAddressClaim ns/vip-cp-c"]
        .assert_eq(&verdict("claim from p has 10.0.0.1 | another endpoint 10.0.0.1"));
}
