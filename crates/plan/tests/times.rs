//! Extreme times and durations from users, objects and clocks: no plan overflows, and a longer duration never counts as
//! a shorter one.
#![allow(clippy::unwrap_used, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use plan::{
    Account, Address, DnsProvider, Epoch, Fact, Holding, Move, Node, NodeName, Pods, Pool, PoolKey, Provider,
    Publication, Readiness, RecordFact, RecordKind, RecordName, RecordSet, Scope, SignedDuration, Source,
    Target, Tenancy, Tick, Timestamp, VmId, World, plan,
};
use proptest::prelude::*;

/// The smallest and largest times, times around now, and random ones.
fn times() -> impl Strategy<Value = Timestamp> {
    let ends = [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH, Timestamp::constant(1_800_000_000, 0)];
    let anywhere = Timestamp::MIN.as_second()..=Timestamp::MAX.as_second();
    prop_oneof![
        proptest::sample::select(ends.to_vec()),
        (1_799_999_000_i64..1_800_001_000).prop_map(|second| Timestamp::from_second(second).unwrap()),
        anywhere.prop_map(|second| Timestamp::from_second(second).unwrap()),
    ]
}

/// Durations that users can set: any number of seconds.
fn durations() -> impl Strategy<Value = Duration> {
    let ends = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(60),
        Duration::from_secs(i64::MAX.unsigned_abs()),
        Duration::from_secs(i64::MIN.unsigned_abs()),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    prop_oneof![
        proptest::sample::select(ends.to_vec()),
        any::<u64>().prop_map(Duration::from_secs),
        (0_u64..2_000).prop_map(Duration::from_secs),
    ]
}

#[derive(Clone, Debug)]
struct Times {
    now: Timestamp,
    /// When a node became NotReady, an address was assigned, a move started, an address lost its match, a person
    /// confirmed losses, and a holder was lost.
    past: [Timestamp; 6],
    grace: Duration,
    cool_off: Duration,
    ttl: Option<u32>,
    moved: i64,
}

prop_compose! {
    fn all()(
        now in times(),
        past in proptest::array::uniform6(times()),
        grace in durations(),
        cool_off in durations(),
        ttl in proptest::option::of(prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()]),
        moved in prop_oneof![Just(i64::MIN), Just(i64::MAX), any::<i64>()],
    ) -> Times {
        Times { now, past, grace, cool_off, ttl, moved }
    }
}

fn address(number: u8) -> Address {
    format!("203.0.113.{number}").parse().unwrap()
}

fn scope() -> Scope {
    Scope { provider: Provider::Gcp, account: "demo".into() }
}

fn vm(number: usize) -> VmId {
    format!("vm-{number}").into()
}

fn record() -> RecordName {
    let (zone, name) = ("example.com".into(), "hello.example.com".into());
    RecordName { provider: DnsProvider::DigitalOcean, zone, name, kind: RecordKind::A }
}

/// A NotReady node holds the first address, the second one is free, the third one is moving, and a DNS name publishes
/// them.
fn world(times: &Times) -> World {
    let [not_ready_since, assigned, moving, unmatched, confirmed, lost] = times.past;
    let mut world = World::default();
    world.epoch = Epoch(1);
    world.dns_owner = Some("us".into());
    world.accounts.insert(scope(), Account { as_of: Tick(1), can_tag: true });
    let key = PoolKey { kind: "FloatingIPPool", namespace: "web".into(), name: "pool".into() };
    let mut pool = Pool::new(key.clone(), scope(), (1..=3).map(address).collect());
    pool.tenancy = Tenancy::UntilDisplaced { needs_pods: false };
    pool.policy.failover_grace = times.grace;
    pool.policy.cool_off = times.cool_off;
    pool.last_assignment = Some(assigned);
    pool.losses_confirmed = Some(confirmed);
    pool.last_holders.insert(address(1), vm(0));
    pool.moving_since.insert(address(3), moving);
    pool.publication = Some(Publication {
        provider: DnsProvider::DigitalOcean,
        zone: record().zone,
        name: record().name,
        ttl: times.ttl,
        adopts: false,
        source: Source::Addresses,
        published: BTreeSet::new(),
    });
    let target = Target { node: NodeName::from("n2"), vm: vm(2) };
    let entry = Move {
        from: None,
        to: Some(target),
        to_restore: BTreeSet::new(),
        releases: false,
        is_voluntary: false,
        epoch: Epoch(1),
        written: Tick(0),
    };
    if let plan::Journal::Known(journal) = &mut pool.journal {
        journal.insert(address(3), entry);
    }
    world.set_pool(pool);
    for number in 0..4 {
        let name = NodeName::from(format!("n{number}"));
        let readiness = match number {
            0 => Readiness::NotReadySince(not_ready_since),
            _ => Readiness::Ready,
        };
        let machine = Some((scope(), vm(number)));
        world.set_node(&name, Node::new(machine, readiness));
        world.set_member(&key, &name, Some(Pods::Ready));
    }
    for (number, holding) in [(1, Holding::By(vm(0))), (2, Holding::Free), (3, Holding::Free)] {
        let fact = Fact::new(holding, Tick(1));
        world.set_fact(&scope(), address(number), fact);
    }
    world.losses.insert(address(1), lost);
    world.unmatched.insert(address(2), unmatched);
    let values = (1..=3).map(address).collect();
    let set = RecordSet { values, ttl: times.ttl, owner: Some("us".into()) };
    world.records.insert(record(), RecordFact { set, as_of: lost });
    world
}

/// `at` plus `by` in wider arithmetic, at most the largest timestamp.
fn exact(at: Timestamp, by: Duration) -> i128 {
    let later = at.as_nanosecond() + i128::try_from(by.as_nanos()).unwrap();
    later.min(Timestamp::MAX.as_nanosecond())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_plan_overflows_and_no_pause_becomes_zero(times in all()) {
        let mut world = world(&times);
        let planned = plan(&world, times.now);
        let text = planned.to_string();
        let now = times.now.as_nanosecond();
        if now < exact(times.past[0], times.grace) {
            prop_assert!(!text.contains("begin to move 203.0.113.1 "), "in its grace period: {text}");
        }
        if !times.cool_off.is_zero() && now < exact(times.past[1], times.cool_off) {
            prop_assert!(!text.contains("begin to move 203.0.113.2 "), "within the cool-off: {text}");
        }
        world.clock_moved(SignedDuration::from_secs(times.moved));
        plan(&world, times.now);
    }
}
