//! Properties of all plans, on 100,000 random worlds per run. A cloud without errors carries out each plan until
//! nothing is left to do.
//!
//! A failure prints the number of its world. `WORLD=n cargo test -p plan --test properties` runs only that world.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use plan::{
    Account, Action, Address, Creation, CreationAction, CreationStep, Epoch, Fact, Holding, Journal, Kind,
    Kinds, Lacking, Mode, Move, Node, NodeName, PENDING, Plan, Pods, Policy, Pool, PoolKey, Provider,
    Readiness, Scope, Spread, Takeover, Tenancy, Tick, Timestamp, VmId, World, plan,
};

const WORLDS: u64 = 100_000;

/// The upper bound for the desired number of addresses of a pool that may create them.
const CREATED_MAX: u64 = 12;

/// The maximum number of plans until a cloud without errors settles. A move takes up to seven: begin, detach, attach to
/// a target that turns out to have an ephemeral address, note that, attach in its place, restore one at the source, and
/// finish. Policies may let only one address at a time move. After that, each node may lose a pod.
fn rounds_max(world: &World) -> usize {
    7 * world.facts_of(&scope(0)).count() + world.nodes().count() + 4
}

/// Pseudo-random numbers that depend only on the seed.
struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// All facts of a world, before they are added to it in some order.
#[derive(Clone, Debug)]
struct Facts {
    nodes: Vec<(NodeName, Node)>,
    pools: Vec<Pool>,
    members: Vec<(PoolKey, NodeName, Option<Pods>)>,
    holdings: BTreeMap<Address, Fact>,
    one_call: bool,
    can_tag: bool,
}

fn start() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn scope(number: u64) -> Scope {
    Scope { provider: Provider::Gcp, account: format!("account-{number}").into() }
}

fn vm(number: u64) -> VmId {
    format!("vm-{number}").into()
}

fn address(number: u64) -> Address {
    format!("203.0.113.{number}").parse().unwrap()
}

/// Whether a VM turns out to have an ephemeral address.
fn has_ephemeral(vm: &VmId) -> bool {
    vm.as_str().ends_with(['1', '3', '5'])
}

fn random(seed: u64) -> Facts {
    let mut rng = Rng(seed);
    let zones = ["a", "b"];
    let nodes: Vec<_> = (0..rng.roll(8))
        .map(|number| {
            let machine = (!rng.one_in(12)).then(|| (scope(u64::from(rng.one_in(8))), vm(number)));
            let readiness = match rng.roll(8) {
                0 => Readiness::NotReadySince(start() - Duration::from_secs(rng.roll(120))),
                _ => Readiness::Ready,
            };
            let node = Node {
                is_cordoned: rng.one_in(5),
                is_leaving: rng.one_in(8),
                region: (!rng.one_in(6)).then(|| if rng.one_in(6) { "far".into() } else { "near".into() }),
                zone: Some(zones[usize::from(rng.one_in(2))].into()),
                ..Node::new(machine, readiness)
            };
            (NodeName::from(format!("n{number}")), node)
        })
        .collect();

    let count = rng.roll(8);
    let mut holdings = BTreeMap::new();
    for number in 0..count {
        let holding = match rng.roll(20) {
            0 => Holding::Unknown("no answer".into()),
            1 => Holding::Missing,
            2 => Holding::By(vm(90 + number)),
            3..9 => Holding::Free,
            // Two addresses may be on one VM, because a person attached them.
            _ => Holding::By(vm(rng.roll(8))),
        };
        let region = rng.one_in(4).then(|| if rng.one_in(4) { "far".into() } else { "near".into() });
        // In clouds where changes can fail like this, VMs have no ephemeral addresses.
        let is_unconfirmed = matches!(&holding, Holding::By(vm) if !has_ephemeral(vm)) && rng.one_in(4);
        let tag = rng.one_in(3).then(|| format!("tag-{}", rng.roll(3)).into());
        holdings.insert(address(number), Fact { holding, region, tag, is_unconfirmed, as_of: Tick(1) });
    }

    let mut pools = Vec::new();
    let mut members = Vec::new();
    for number in 0..=rng.roll(3) {
        let pool = random_pool(&mut rng, number, count, &holdings);
        for (name, _) in &nodes {
            let pods = [None, Some(Pods::Absent), Some(Pods::Present), Some(Pods::Ready), Some(Pods::Ready)];
            members.push((pool.key.clone(), name.clone(), pods[rng.roll(5) as usize]));
        }
        pools.push(pool);
    }
    Facts { nodes, pools, members, holdings, one_call: rng.one_in(2), can_tag: rng.one_in(2) }
}

fn random_pool(rng: &mut Rng, number: u64, addresses: u64, holdings: &BTreeMap<Address, Fact>) -> Pool {
    let listed: Vec<Address> = (0..addresses).filter(|_| !rng.one_in(3)).map(address).collect();
    let mut last_holders = BTreeMap::new();
    for address in &listed {
        if let Holding::By(vm) = &holdings[address].holding
            && rng.one_in(2)
        {
            last_holders.insert(*address, vm.clone());
        }
    }
    let created_here = listed.iter().copied().filter(|_| rng.one_in(2)).collect();
    let creates = rng.one_in(4).then(|| format!("tag-{number}").into());
    Pool {
        key: PoolKey { kind: "NetIPAllocation", namespace: "".into(), name: format!("p{number}").into() },
        created: start() - Duration::from_secs(rng.roll(3)),
        scope: scope(u64::from(rng.one_in(8))),
        desired: if rng.one_in(3) { rng.roll(CREATED_MAX) as usize } else { listed.len() },
        addresses: listed,
        adopted: BTreeSet::new(),
        creates,
        is_tag_used: false,
        created_here,
        disowned: BTreeSet::new(),
        tenancy: match rng.roll(3) {
            0 => Tenancy::UntilDrained,
            1 => Tenancy::UntilDisplaced { needs_pods: true },
            _ => Tenancy::UntilDisplaced { needs_pods: false },
        },
        pods_from: Kinds::default().with(Kind::Pods),
        region: rng.one_in(5).then(|| "near".into()),
        zones: if rng.one_in(5) { vec!["a".into()] } else { Vec::new() },
        held: last_holders.keys().copied().filter(|_| rng.one_in(2)).collect(),
        replaced_ephemeral: last_holders
            .keys()
            .copied()
            .filter(|address| rng.one_in(3) && !holdings[address].is_unconfirmed)
            .collect(),
        returned: BTreeMap::new(),
        ptrs: BTreeMap::new(),
        last_holders,
        last_assignment: rng.one_in(3).then(|| start() - Duration::from_secs(rng.roll(30))),
        moving_since: BTreeMap::new(),
        publication: None,
        losses_confirmed: rng.one_in(2).then(start),
        journal: Journal::default(),
        creation: None,
        policy: Policy {
            evicts: rng.one_in(2),
            mode: match rng.roll(16) {
                0 | 1 => Mode::Observe,
                2 => Mode::Leaving,
                _ => Mode::Active,
            },
            failover_grace: Duration::from_secs([0, 60][rng.roll(2) as usize]),
            concurrent_moves_max: rng.one_in(4).then_some(1 + rng.roll(2) as usize),
            healthy_min: if rng.one_in(5) { rng.roll(3) as usize } else { 0 },
            cool_off: Duration::from_secs(if rng.one_in(5) { 20 } else { 0 }),
            takeover: if rng.one_in(4) { Takeover::Always } else { Takeover::Never },
            spread: if rng.one_in(3) { Spread::Zone } else { Spread::None },
            leaves_on_disruption: rng.one_in(3),
            releases_created: rng.one_in(2),
            detaches_on_delete: rng.one_in(2),
        },
    }
}

/// Builds the world from the facts, in the given or in the opposite order.
fn build(facts: &Facts, backwards: bool) -> World {
    let mut facts = facts.clone();
    let mut world = World::default();
    world.epoch = Epoch(1);
    if facts.one_call {
        world.moves_in_one_call.insert(Provider::Gcp);
    }
    if backwards {
        facts.nodes.reverse();
        facts.pools.reverse();
        facts.members.reverse();
        for pool in &facts.pools {
            world.set_pool(pool.clone());
        }
        set_holdings(&mut world, &facts.holdings);
        // The VM that a node had before leaves no trace.
        for (at, (name, node)) in facts.nodes.iter().enumerate() {
            let machine = Some((scope(0), vm((at as u64 + 3) % 8)));
            let readiness = Readiness::NotReadySince(start());
            world.set_node(name, Node { machine, readiness, ..node.clone() });
        }
        // A deleted node leaves no trace.
        let passer_by = NodeName::from("n-passer-by");
        world.set_node(&passer_by, Node { machine: None, ..example_node() });
        world.remove_node(&passer_by);
    }
    for account in [0, 1] {
        world.accounts.insert(scope(account), Account { as_of: Tick(1), can_tag: facts.can_tag });
    }
    for (name, node) in &facts.nodes {
        world.set_node(name, node.clone());
    }
    for pool in facts.pools {
        world.set_pool(pool);
    }
    for (key, name, pods) in &facts.members {
        world.set_member(key, name, *pods);
        world.set_evictable(key, name, *pods == Some(Pods::Present));
    }
    set_holdings(&mut world, &facts.holdings);
    world
}

fn set_holdings(world: &mut World, holdings: &BTreeMap<Address, Fact>) {
    for (address, fact) in holdings {
        for account in [0, 1] {
            // A removed fact leaves no trace.
            world.set_fact(
                &scope(account),
                self::address(200),
                Fact { holding: Holding::By(vm(1)), ..fact.clone() },
            );
            world.retain_facts(&scope(account), |known| known != self::address(200));
            world.set_fact(&scope(account), *address, fact.clone());
        }
    }
}

fn example_node() -> Node {
    Node::new(Some((scope(0), vm(77))), Readiness::Ready)
}

/// Asserts that each step of a plan is allowed in its world.
fn assert_sound(world: &World, plan: &Plan) {
    let mut addresses = BTreeSet::new();
    let mut targets = BTreeSet::new();
    let holders: BTreeSet<_> = world
        .facts()
        .filter_map(|(_, address, fact)| match &fact.holding {
            Holding::By(vm) => Some((vm.clone(), *address)),
            _ => None,
        })
        .collect();
    for step in &plan.steps {
        assert!(addresses.insert(step.address), "two steps for {}", step.address);
        let pool = world.pool(&step.pool).unwrap();
        assert!(
            matches!(pool.policy.mode, Mode::Active | Mode::Leaving),
            "{step} for a pool that the controller must not act on"
        );
        assert!(!plan.tripped.contains_key(&step.scope), "{step} although the breaker is tripped");
        let (to, from) = match &step.action {
            Action::Begin(entry) => {
                // A free address has no source, unless its last holder gets an ephemeral address again.
                let is_free =
                    world.fact(&step.scope, step.address).is_some_and(|fact| fact.holding == Holding::Free);
                assert!(
                    !is_free || entry.from.as_ref().is_none_or(|from| entry.to_restore.contains(from)),
                    "{step}"
                );
                (entry.to.clone(), entry.from.clone().filter(|_| !is_free))
            }
            Action::Attach(to) | Action::Replace(to) => (Some(to.clone()), None),
            Action::Detach(from) => (None, Some(from.clone())),
            Action::Release(mark) => {
                let shown = world.fact(&step.scope, step.address).and_then(|fact| fact.tag.as_ref());
                assert!(
                    pool.creates.as_ref() == Some(mark) && shown == Some(mark),
                    "{step} without its mark"
                );
                (None, None)
            }
            Action::Restore(vm) => {
                assert!(
                    !holders.iter().any(|(holder, _)| holder == vm),
                    "{step}, which holds an address of a pool"
                );
                continue;
            }
            Action::Claim
            | Action::NoteEphemeral
            | Action::KeepPtr(_)
            | Action::Finish
            | Action::Abandon
            | Action::Drop => continue,
        };
        let fact = world.fact(&step.scope, step.address).unwrap_or_else(|| panic!("{step} without a fact"));
        assert!(!matches!(fact.holding, Holding::Unknown(_) | Holding::Missing), "{step} on an unknown fact");
        if let Some(from) = from {
            assert_eq!(fact.holding, Holding::By(from.clone()), "{step}, but it is not there");
            let is_ours =
                world.node_of(&from).is_some() || pool.last_holders.get(&step.address) == Some(&from);
            assert!(is_ours || pool.policy.takeover == Takeover::Always, "{step} takes from a foreign VM");
        }
        let entry = match &step.action {
            Action::Begin(entry) => Some(entry),
            _ => pool.entry(step.address),
        };
        if entry.is_some_and(Move::repeats_attach) {
            let is_there = to.is_some_and(|to| fact.holding == Holding::By(to.vm));
            assert!(fact.is_unconfirmed && is_there, "{step}, without a failed attach there");
        } else if let Some(to) = to {
            assert!(targets.insert(to.vm.clone()), "{step}, but another step has the same target");
            let holds_other = holders.iter().any(|(vm, held)| *vm == to.vm && *held != step.address);
            assert!(!holds_other, "{step}, which holds an address already");
            let (name, node) = world.node_of(&to.vm).unwrap();
            assert_eq!(*name, to.node);
            assert_eq!(node.readiness, Readiness::Ready, "{step}, which is not Ready");
        }
    }
    for step in &plan.evictions {
        let vm = &world.node(&step.node).unwrap().machine.as_ref().unwrap().1;
        assert!(!holders.iter().any(|(holder, _)| holder == vm), "{step}, which holds an address");
        let is_unknown = |fact: &Fact| matches!(fact.holding, Holding::Unknown(_));
        let of =
            |pool: &Pool| pool.addresses.iter().map(|address| world.fact(&pool.scope, *address)).collect();
        let known: Vec<Option<&Fact>> = of(world.pool(&step.pool).unwrap());
        assert!(
            known.iter().all(|fact| fact.is_some_and(|fact| !is_unknown(fact))),
            "{step} on an unknown fact"
        );
    }
}

/// Carries out a plan on a cloud without errors, and lists everything again.
fn carry_out(world: &mut World, plan: &Plan, tick: &mut u64, now: Timestamp) {
    world.losses = plan.losses.clone();
    for step in &plan.steps {
        let mut pool = world.pool(&step.pool).unwrap().clone();
        match &step.action {
            // A target may turn out to have an ephemeral address.
            Action::Attach(to) if has_ephemeral(&to.vm) => {
                world.has_ephemeral.insert(to.vm.clone());
            }
            Action::Replace(to) => {
                world.has_ephemeral.remove(&to.vm);
                hold(world, step.address, Holding::By(to.vm.clone()), *tick);
            }
            Action::Attach(to) => hold(world, step.address, Holding::By(to.vm.clone()), *tick),
            Action::Restore(vm) => _ = world.has_ephemeral.insert(vm.clone()),
            Action::Detach(_) => hold(world, step.address, Holding::Free, *tick),
            Action::Release(_) => hold(world, step.address, Holding::Missing, *tick),
            Action::Drop => pool.addresses.retain(|address| *address != step.address),
            noted => pool.note(step.address, noted, world.epoch, now),
        }
        let Journal::Known(moves) = &mut pool.journal else { panic!("no journal was unreadable") };
        moves
            .values_mut()
            .filter(|entry| entry.written == PENDING)
            .for_each(|entry| entry.written = Tick(*tick));
        world.set_pool(pool);
    }
    for step in &plan.creations {
        create(world, step, *tick);
    }
    for step in &plan.evictions {
        world.set_evictable(&step.pool, &step.node, false);
    }
    *tick += 1;
    for account in world.accounts.values_mut() {
        account.as_of = Tick(*tick);
    }
    let facts: Vec<_> =
        world.facts().map(|(scope, address, fact)| (scope.clone(), *address, fact.clone())).collect();
    for (scope, address, fact) in facts {
        world.set_fact(&scope, address, Fact { as_of: Tick(*tick), ..fact });
    }
}

/// Carries out a step of a creation. The answer to a tagged request is lost, so that only the tag shows the new
/// address.
fn create(world: &mut World, step: &CreationStep, tick: u64) {
    let mut pool = world.pool(&step.pool).unwrap().clone();
    match &step.action {
        CreationAction::Begin(entry) => {
            pool.creation = Some(Creation { written: Tick(tick), ..entry.clone() });
        }
        CreationAction::Claim => pool.creation.as_mut().unwrap().epoch = world.epoch,
        CreationAction::Adopt(found) => {
            pool.addresses.extend(found);
            pool.created_here.extend(found);
        }
        CreationAction::Finish => pool.creation = None,
        CreationAction::Ask { count, region, tag } => {
            assert!(pool.creation.is_some(), "{step} before it was journalled");
            for _ in 0..*count {
                let made = address(world.facts_of(&scope(0)).count() as u64 + 100);
                let fact = Fact {
                    holding: Holding::Free,
                    region: Some(region.clone()),
                    tag: tag.clone(),
                    is_unconfirmed: false,
                    as_of: Tick(tick),
                };
                for account in [0, 1] {
                    world.set_fact(&scope(account), made, fact.clone());
                }
                if tag.is_none() {
                    pool.addresses.push(made);
                }
            }
        }
    }
    world.set_pool(pool);
}

fn hold(world: &mut World, address: Address, holding: Holding, tick: u64) {
    // Both accounts list every address, so that a random pool can be in either.
    for account in [0, 1] {
        let fact = world.fact(&scope(account), address).unwrap().clone();
        world.set_fact(
            &scope(account),
            address,
            Fact { holding: holding.clone(), is_unconfirmed: false, as_of: Tick(tick), ..fact },
        );
    }
}

/// Plans a world until it is settled. Returns the number of plans with steps, and of attaches.
fn settle(seed: u64) -> (usize, usize) {
    let facts = random(seed);
    let mut world = build(&facts, false);
    let (mut now, mut tick, mut rounds, mut attached) = (start(), 2, 0, 0);
    let mut stripped: BTreeSet<VmId> = BTreeSet::new();
    let first = plan(&world, now);
    assert_eq!(first, plan(&build(&facts, true), now), "the order of facts changed the plan");
    loop {
        let planned = plan(&world, now);
        assert_eq!(format!("{planned:?}"), format!("{:?}", plan(&world, now)));
        assert_sound(&world, &planned);
        let is_idle = planned.to_string().is_empty();
        if is_idle {
            match planned.ask_again.filter(|at| *at > now) {
                // Nothing is left to do now, but there may be later.
                Some(at) => now = at,
                None => break,
            }
        }
        attached += planned
            .steps
            .iter()
            .filter(|step| matches!(step.action, Action::Attach(_) | Action::Replace(_)))
            .count();
        stripped.extend(planned.steps.iter().filter_map(|step| match &step.action {
            Action::Replace(to) => Some(to.vm.clone()),
            _ => None,
        }));
        carry_out(&mut world, &planned, &mut tick, now);
        rounds += usize::from(!is_idle);
        assert!(rounds <= rounds_max(&world), "not settled after {rounds} rounds: {planned}");
    }
    let again = plan(&world, now);
    assert_eq!(again.to_string(), "", "a settled world has no steps");
    for vm in &stripped {
        let holds = world.facts().any(|(_, _, fact)| fact.holding == Holding::By(vm.clone()));
        assert!(
            holds || world.has_ephemeral.contains(vm),
            "{vm} lost its ephemeral address and has no public address"
        );
    }
    for pool in world.pools().filter(|pool| pool.policy.mode == Mode::Active && pool.creates.is_some()) {
        // A person decides about addresses with the pool's mark that no object lists.
        if matches!(again.lacking.get(&pool.key), Some(Lacking::Unlisted(_))) {
            continue;
        }
        let has_enough = pool.addresses.len() >= pool.desired;
        assert!(has_enough || pool.region.is_none(), "{} still needs addresses", pool.key);
        assert_eq!(pool.creation, None);
    }
    (rounds, attached)
}

#[test]
fn every_random_world_gets_sound_plans_and_settles() {
    if let Ok(seed) = std::env::var("WORLD") {
        println!("{:#?}", random(seed.parse().unwrap()));
        settle(seed.parse().unwrap());
        return;
    }
    let (mut most, mut attached) = (0, 0);
    for seed in 0..WORLDS {
        let settled = std::panic::catch_unwind(|| settle(seed));
        let (rounds, moved) =
            settled.unwrap_or_else(|_| panic!("world {seed} fails; run it alone with WORLD={seed}"));
        most = most.max(rounds);
        attached += moved;
    }
    println!("{WORLDS} worlds settled within {most} rounds at the most, with {attached} attachments");
    assert!(attached as u64 > WORLDS / 4, "the worlds have too few moves to test anything");
}
