//! A model of the protocol of lease, journal and fence. It goes through all states that two candidates and up to three
//! addresses can reach.
//!
//! The model does not copy the controller's decisions, but calls them. `plan::leadership` decides who may lead, how
//! long a new leader waits, and until when it may send a change. [`plan::plan`] decides what to do. `Pool::note`
//! changes the journal. The model is the rest of the world: an apiserver that accepts a write only with the last
//! resource version, a network that delivers late or never, a cloud that carries out orders at any time, processes that
//! pause between any two steps or crash, lost answers, a person who deletes or empties the lease, and nodes that are
//! drained and come back. Time passes in seconds, at any point.
//!
//! Two things must never happen: an order to attach an address to a second VM before the first order has ended, and a
//! change of an earlier leader that arrives after a change of a later one.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use plan::leadership::{self, Sighting};
use plan::{
    Action, Address, Epoch, Fact, Holding, Journal, Move, Node, Pods, Pool, PoolKey, Provider, Readiness,
    Scope, Target, Tick, Timestamp, VmId, World,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// The lease duration in seconds.
const LEASE: u8 = 2;

/// D, in seconds. It must be longer than the margin of a leader, otherwise the wait for D would have no effect.
const TAKEOVER: u8 = 2;

/// How many processes run at a time. A process that crashed comes back with a new identity.
const PROCESSES: usize = 2;
const NAMES: [&str; 8] = ["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"];

/// The guards, each of which can be switched off, and limits on what happens.
#[derive(Clone, Debug)]
struct Protocol {
    addresses: usize,
    has_fence: bool,
    has_quarantine: bool,
    outlasts_silence: bool,
    finishes_first: bool,
    deaths_max: u8,
    drains_max: u8,
    /// How often a person deletes or empties the lease.
    deletions_max: u8,
    /// How many requests and answers are lost at most; none for no limit.
    losses_max: Option<u8>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct State {
    lease: Option<Lease>,
    object: Vec<Option<Entry>>,
    cloud: Vec<Spot>,
    network: Vec<Request>,
    processes: Vec<Process>,
    drained: BTreeSet<u8>,
    /// How many leaders there have been.
    terms: u8,
    deaths: u8,
    drains: u8,
    deletions: u8,
    losses: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Lease {
    holder: Option<u8>,
    epoch: i64,
    /// Whether the last leader marked it as released.
    is_released: bool,
}

/// A lease that never had a holder.
const NEW: Lease = Lease { holder: None, epoch: 0, is_released: false };

/// A journal entry in the object.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Entry {
    from: Option<u8>,
    to: Option<u8>,
    epoch: i64,
}

/// An address at the cloud.
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Spot {
    holder: Option<u8>,
    order: Option<Request>,
    /// The term of the last leader whose change arrived.
    acted: u8,
}

/// A change in flight.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    address: usize,
    to: Option<u8>,
    /// The identity of its sender, which leads at most once.
    by: u8,
    /// The term of its sender.
    term: u8,
    age: u8,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Process {
    identity: u8,
    /// The holder of the lease when the process last saw it change, and how long ago that was.
    seen: Option<(Option<u8>, u8)>,
    /// Whether the lease has not changed since.
    is_latest: bool,
    /// How long the lease is still valid, by the clock of this process.
    lease_left: u8,
    role: Role,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
enum Role {
    StandsBy,
    KeepsStill(u8),
    Leads(Mind),
}

/// What a leader knows.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
struct Mind {
    epoch: i64,
    term: u8,
    journal: Vec<Option<Entry>>,
    /// Whether it has the last version of the object.
    is_current: bool,
    drained: BTreeSet<u8>,
    facts: Vec<Known>,
    in_flight: Vec<Option<Option<u8>>>,
}

/// What a leader knows about an address, and whether it listed the address after the journal entry was written.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Known {
    holding: Option<Option<u8>>,
    is_since: bool,
}

const NOTHING: Known = Known { holding: None, is_since: false };

#[derive(Clone, Debug, PartialEq, Eq)]
enum Happens {
    Second,
    /// A process tries to take the lease. The answer arrives or not.
    Look(usize, bool),
    Renew(usize, bool),
    Begin(usize),
    Watch(usize),
    List(usize),
    /// A leader plans, sends the calls, and writes the journal. The answer to the write arrives or not.
    Round(usize, bool),
    Arrive(usize),
    Lose(usize),
    /// The cloud completes an order. The answer arrives or not.
    End(usize, bool),
    GiveUp(usize, usize),
    Die(usize),
    /// A leader releases the lease and stops. With the guard, only without calls in flight.
    Release(usize),
    DeleteLease,
    /// A person removes the holder of the lease.
    Empty,
    /// A person creates a new lease after a deletion.
    Reinstall,
    Drain(u8),
}

impl Happens {
    fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Lose(_)
                | Self::Look(_, false)
                | Self::Renew(_, false)
                | Self::Round(_, false)
                | Self::End(_, false)
        )
    }
}

fn seconds(count: u8) -> Duration {
    Duration::from_secs(u64::from(count))
}

fn vm(node: u8) -> VmId {
    format!("vm-{node}").as_str().into()
}

fn number(vm: &VmId) -> u8 {
    vm.as_str().trim_start_matches("vm-").parse().unwrap()
}

fn address(number: usize) -> Address {
    format!("203.0.113.{number}").parse().unwrap()
}

fn scope() -> Scope {
    Scope { provider: Provider::DigitalOcean, account: "".into() }
}

fn key() -> PoolKey {
    PoolKey { kind: "NetIPAllocation", namespace: "".into(), name: "edge".into() }
}

fn target(node: u8) -> Target {
    Target { vm: vm(node), node: format!("n{node}").as_str().into() }
}

fn process(identity: u8) -> Process {
    Process { identity, seen: None, is_latest: false, lease_left: 0, role: Role::StandsBy }
}

/// The calls that a leader sends, and the journal that it writes.
#[derive(Clone, Debug)]
struct Decision {
    calls: Vec<(usize, Option<u8>)>,
    journal: Option<Vec<Option<Entry>>>,
}

/// The decision of a leader. It is cached, because leaders know the same in many states.
fn decide(mind: &Mind) -> Decision {
    thread_local! {
        static DECIDED: RefCell<HashMap<Mind, Decision>> = RefCell::default();
    }
    DECIDED.with_borrow_mut(|decided| {
        if let Some(decision) = decided.get(mind) {
            return decision.clone();
        }
        let decision = mind.decide();
        decided.insert(mind.clone(), decision.clone());
        decision
    })
}

impl Mind {
    fn decide(&self) -> Decision {
        let addresses = self.facts.len();
        let world = self.world(addresses);
        let plan = plan::plan(&world, Timestamp::UNIX_EPOCH);
        let mut pool = world.pool(&key()).unwrap().clone();
        let mut calls = Vec::new();
        for step in &plan.steps {
            let place = (0..addresses).find(|at| address(*at) == step.address).unwrap();
            match &step.action {
                Action::Attach(to) => calls.push((place, Some(number(&to.vm)))),
                Action::Detach(_) => calls.push((place, None)),
                other => pool.note(step.address, other, Epoch(self.epoch), Timestamp::UNIX_EPOCH),
            }
        }
        let Journal::Known(moves) = &pool.journal else { panic!("the journal is readable") };
        let entry = |entry: &Move| {
            let (from, to) = (entry.from.as_ref().map(number), entry.to.as_ref().map(|to| number(&to.vm)));
            Entry { from, to, epoch: entry.epoch.0 }
        };
        let journal: Vec<_> = (0..addresses).map(|at| moves.get(&address(at)).map(entry)).collect();
        Decision { calls, journal: (journal != self.journal).then_some(journal) }
    }

    /// The world as this leader sees it. Entries were written at tick 5. Facts listed since then have tick 9, all
    /// others tick 1.
    fn world(&self, addresses: usize) -> World {
        let mut world = World::default();
        world.epoch = Epoch(self.epoch);
        world.moves_in_one_call.insert(Provider::DigitalOcean);
        let entries = self.journal.iter().enumerate().filter_map(|(at, entry)| {
            let Entry { from, to, epoch } = (*entry)?;
            let (from, to) = (from.map(vm), to.map(target));
            let entry = Move {
                from,
                to,
                to_restore: BTreeSet::new(),
                releases: false,
                is_voluntary: true,
                epoch: Epoch(epoch),
                written: Tick(5),
            };
            Some((address(at), entry))
        });
        let journal = Journal::Known(entries.collect());
        world.set_pool(Pool { journal, ..Pool::new(key(), scope(), (0..addresses).map(address).collect()) });
        for node in 0..=u8::try_from(addresses).unwrap() {
            let is_cordoned = self.drained.contains(&node);
            let (machine, name) = (Some((scope(), vm(node))), target(node).node);
            world.set_node(&name, Node { is_cordoned, ..Node::new(machine, Readiness::Ready) });
            world.set_member(&key(), &name, Some(if is_cordoned { Pods::Absent } else { Pods::Ready }));
        }
        for (at, known) in self.facts.iter().enumerate() {
            let holding = match known.holding {
                None => Holding::Unknown("not read".into()),
                Some(None) => Holding::Free,
                Some(Some(node)) => Holding::By(vm(node)),
            };
            let as_of = Tick(if known.is_since { 9 } else { 1 });
            world.set_fact(&scope(), address(at), Fact::new(holding, as_of));
        }
        let in_flight = self.in_flight.iter().enumerate().filter_map(|(at, to)| to.map(|to| (at, to)));
        for (at, to) in in_flight {
            world.in_flight.addresses.insert(address(at));
            world.in_flight.machines.extend(to.map(vm));
        }
        world
    }

    /// Reads the journal. For an unchanged entry, facts that were listed since it was written stay valid.
    fn read(&mut self, object: &[Option<Entry>]) {
        for (at, entry) in object.iter().enumerate() {
            // Without an entry, there is no time to compare with.
            if self.journal[at] != *entry || entry.is_none() {
                self.facts[at].is_since = false;
            }
        }
        self.journal = object.to_vec();
        self.is_current = true;
    }
}

impl Protocol {
    fn looks(&self, state: &mut State, at: usize, is_heard: bool) -> Option<()> {
        let process = &mut state.processes[at];
        if let (Some(lease), false) = (&state.lease, process.is_latest) {
            process.seen = Some((lease.holder, 0));
            process.is_latest = true;
        }
        let now = seconds(100);
        let sighting = process.seen.filter(|_| state.lease.is_some()).map(|(holder, age)| Sighting {
            holder: holder.map_or("", |holder| NAMES[usize::from(holder)]),
            is_released: state.lease.as_ref().is_some_and(|lease| lease.is_released),
            lasts: seconds(LEASE),
            since: now - seconds(age),
        });
        let me = NAMES[usize::from(process.identity)];
        let Some(gained) = leadership::candidacy(sighting, me, seconds(LEASE), now) else {
            // It only reads the lease.
            return is_heard.then_some(());
        };
        let identity = process.identity;
        let before = state.lease.take().unwrap_or(NEW);
        state.lease = Some(Lease { holder: Some(identity), is_released: false, ..before });
        state.processes.iter_mut().for_each(|process| process.is_latest = false);
        if is_heard {
            let wait = leadership::quarantine(gained, seconds(TAKEOVER)).as_secs();
            let left = if self.has_quarantine { u8::try_from(wait).unwrap() } else { 0 };
            let role = Role::KeepsStill(left);
            state.processes[at] = Process { identity, seen: None, is_latest: false, lease_left: LEASE, role };
        }
        Some(())
    }

    fn renews(&self, state: &mut State, at: usize, is_heard: bool) -> Option<()> {
        let identity = state.processes[at].identity;
        if matches!(state.processes[at].role, Role::StandsBy) {
            return None;
        }
        match &state.lease {
            Some(lease) if lease.holder == Some(identity) => {
                state.processes.iter_mut().for_each(|process| process.is_latest = false);
                if is_heard {
                    let process = &mut state.processes[at];
                    (process.seen, process.is_latest, process.lease_left) =
                        (Some((Some(identity), 0)), true, LEASE);
                }
                Some(())
            }
            // It has lost the lease, and stops.
            _ if is_heard => self.dies(state, at),
            _ => None,
        }
    }

    fn dies(&self, state: &mut State, at: usize) -> Option<()> {
        if state.deaths == self.deaths_max {
            return None;
        }
        state.deaths += 1;
        state.processes[at] = process(u8::try_from(PROCESSES).unwrap() + state.deaths);
        Some(())
    }

    /// A new leader writes its epoch into the lease, which is a renewal.
    fn begins(&self, state: &mut State, at: usize) -> Option<()> {
        let Role::KeepsStill(0) = state.processes[at].role else { return None };
        let identity = state.processes[at].identity;
        let known = state.lease.clone().filter(|lease| lease.holder == Some(identity))?;
        let written = state.object.iter().flatten().map(|entry| entry.epoch).max().unwrap_or(0);
        let epoch = leadership::next_epoch(Epoch(known.epoch), Epoch(written)).0;
        state.lease = Some(Lease { epoch, ..known });
        self.renews(state, at, true)?;
        state.terms += 1;
        state.processes[at].role = Role::Leads(Mind {
            epoch,
            term: state.terms,
            journal: state.object.clone(),
            is_current: true,
            drained: state.drained.clone(),
            facts: vec![NOTHING; self.addresses],
            in_flight: vec![None; self.addresses],
        });
        Some(())
    }

    /// Whether the fence lets a process act, by its own clock.
    fn may_act(&self, process: &Process) -> bool {
        let now = seconds(100);
        !self.has_fence || leadership::remaining(now + seconds(process.lease_left), now).is_some()
    }

    fn round(&self, state: &mut State, at: usize, is_heard: bool) -> Option<()> {
        let by = state.processes[at].identity;
        let Role::Leads(mind) = &mut state.processes[at].role else { return None };
        let Decision { calls, journal } = decide(mind);
        for (address, to) in &calls {
            mind.in_flight[*address] = Some(*to);
            state.network.push(Request { address: *address, to: *to, by, term: mind.term, age: 0 });
        }
        state.network.sort();
        match journal {
            // The apiserver refuses a write without the last version. The leader then drops the write.
            Some(journal) if mind.is_current => {
                state.object = journal;
                for (other, process) in state.processes.iter_mut().enumerate() {
                    if let Role::Leads(mind) = &mut process.role {
                        if other == at && is_heard {
                            mind.read(&state.object);
                        } else {
                            mind.is_current = false;
                        }
                    }
                }
                Some(())
            }
            // Without a write, no answer can be lost.
            _ => (is_heard && !calls.is_empty()).then_some(()),
        }
    }

    fn arrives(&self, state: &mut State, at: usize) {
        let request = state.network.remove(at);
        let spot = &mut state.cloud[request.address];
        if spot.order.is_some_and(|order| order.to != request.to) {
            state.wrong = Some("an order for a second VM arrived before the first order ended");
        }
        if spot.acted > request.term {
            state.wrong = Some("a change of an earlier leader arrived after one of a later leader");
        }
        spot.acted = spot.acted.max(request.term);
        spot.order = Some(Request { age: 0, ..request });
    }

    fn ends(&self, state: &mut State, at: usize, is_heard: bool) -> Option<()> {
        let order = state.cloud[at].order.take()?;
        state.cloud[at].holder = order.to;
        let waits = state.processes.iter_mut().find(|process| process.identity == order.by);
        let waiting = waits.and_then(|process| match &mut process.role {
            Role::Leads(mind) if mind.in_flight[at] == Some(order.to) => Some(mind),
            _ => None,
        });
        match waiting {
            Some(mind) if is_heard => {
                mind.in_flight[at] = None;
                mind.facts[at] = Known { holding: Some(order.to), is_since: mind.journal[at].is_some() };
            }
            // No leader waits for the answer, so it can't be lost.
            None if !is_heard => return None,
            _ => {}
        }
        Some(())
    }

    fn gives_up(&self, state: &mut State, at: usize, place: usize) -> Option<()> {
        let identity = state.processes[at].identity;
        let is_under_way = state.network.iter().any(|sent| sent.by == identity && sent.address == place);
        let Role::Leads(mind) = &mut state.processes[at].role else { return None };
        mind.in_flight[place]?;
        if is_under_way && self.outlasts_silence {
            return None;
        }
        mind.in_flight[place] = None;
        mind.facts[place] = NOTHING;
        Some(())
    }

    fn second(state: &mut State) -> Option<()> {
        // No request is in flight for longer than D.
        if state.network.iter().any(|request| request.age == TAKEOVER) {
            return None;
        }
        state.network.iter_mut().for_each(|request| request.age += 1);
        for process in &mut state.processes {
            process.lease_left = process.lease_left.saturating_sub(1);
            if let Some((_, age)) = &mut process.seen {
                *age = (*age + 1).min(LEASE);
            }
            if let Role::KeepsStill(left) = &mut process.role {
                *left = left.saturating_sub(1);
            }
        }
        Some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Happens;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            lease: Some(NEW),
            object: vec![None; self.addresses],
            cloud: vec![Spot::default(); self.addresses],
            network: Vec::new(),
            processes: (1..).map(process).take(PROCESSES).collect(),
            drained: BTreeSet::new(),
            terms: 0,
            deaths: 0,
            drains: 0,
            deletions: 0,
            losses: 0,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Happens>) {
        if state.wrong.is_some() {
            return;
        }
        for at in 0..PROCESSES {
            for is_heard in [true, false] {
                match state.processes[at].role {
                    Role::StandsBy => actions.push(Happens::Look(at, is_heard)),
                    Role::KeepsStill(_) => actions.push(Happens::Renew(at, is_heard)),
                    Role::Leads(_) => {
                        actions.push(Happens::Renew(at, is_heard));
                        if self.may_act(&state.processes[at]) {
                            actions.push(Happens::Round(at, is_heard));
                        }
                    }
                }
            }
            actions.extend([Happens::Begin(at), Happens::Die(at), Happens::Release(at)]);
            // A leader that may not act does not have to read: it reads again when it may.
            if self.may_act(&state.processes[at]) {
                actions.extend([Happens::Watch(at), Happens::List(at)]);
            }
            actions.extend((0..self.addresses).map(|place| Happens::GiveUp(at, place)));
            if state.terms == 0 {
                // Until there is a leader, both processes are equal.
                break;
            }
        }
        actions.extend((0..state.network.len()).flat_map(|at| [Happens::Arrive(at), Happens::Lose(at)]));
        actions.extend((0..self.addresses).flat_map(|at| [Happens::End(at, true), Happens::End(at, false)]));
        actions.extend([Happens::DeleteLease, Happens::Empty, Happens::Reinstall]);
        // The first node and the spare node: an address that moves to one of them may have to move to the other.
        actions.extend([Happens::Drain(0), Happens::Drain(u8::try_from(self.addresses).unwrap())]);
        actions.push(Happens::Second);
    }

    fn next_state(&self, last: &State, action: Happens) -> Option<State> {
        let mut state = last.clone();
        if let (Some(most), true) = (self.losses_max, action.is_loss()) {
            if state.losses == most {
                return None;
            }
            state.losses += 1;
        }
        match action {
            Happens::Second => Self::second(&mut state)?,
            Happens::Look(at, is_heard) => self.looks(&mut state, at, is_heard)?,
            Happens::Renew(at, is_heard) => self.renews(&mut state, at, is_heard)?,
            Happens::Begin(at) => self.begins(&mut state, at)?,
            Happens::Watch(at) => {
                let (object, drained) = (state.object.clone(), state.drained.clone());
                let Role::Leads(mind) = &mut state.processes[at].role else { return None };
                mind.read(&object);
                mind.drained = drained;
            }
            Happens::List(at) => {
                let Role::Leads(mind) = &mut state.processes[at].role else { return None };
                for (spot, known) in state.cloud.iter().zip(&mut mind.facts) {
                    // The cloud can't report an address that it is changing.
                    let holding = spot.order.is_none().then_some(spot.holder);
                    *known = Known { holding, is_since: true };
                }
                let journal = mind.journal.clone();
                for (known, entry) in mind.facts.iter_mut().zip(journal) {
                    known.is_since &= entry.is_some();
                }
            }
            Happens::Round(at, is_heard) => self.round(&mut state, at, is_heard)?,
            Happens::Arrive(at) => self.arrives(&mut state, at),
            Happens::Lose(at) => _ = state.network.remove(at),
            Happens::End(at, is_heard) => self.ends(&mut state, at, is_heard)?,
            Happens::GiveUp(at, place) => self.gives_up(&mut state, at, place)?,
            Happens::Die(at) => self.dies(&mut state, at)?,
            Happens::Release(at) => {
                let holder = Some(state.processes[at].identity);
                let Role::Leads(mind) = &state.processes[at].role else { return None };
                if self.finishes_first && mind.in_flight.iter().any(Option::is_some) {
                    return None;
                }
                let lease = state.lease.as_mut().filter(|lease| lease.holder == holder)?;
                (lease.holder, lease.is_released) = (None, true);
                state.processes.iter_mut().for_each(|process| process.is_latest = false);
                self.dies(&mut state, at)?;
            }
            Happens::Empty => {
                let lease = state.lease.as_mut().filter(|lease| lease.holder.is_some())?;
                if state.deletions == self.deletions_max {
                    return None;
                }
                lease.holder = None;
                state.deletions += 1;
                state.processes.iter_mut().for_each(|process| process.is_latest = false);
            }
            Happens::Reinstall => {
                if state.deletions == 0 || state.lease.is_some() {
                    return None;
                }
                state.lease = Some(NEW);
                state.processes.iter_mut().for_each(|process| process.is_latest = false);
            }
            Happens::DeleteLease => {
                if state.deletions == self.deletions_max || state.lease.is_none() {
                    return None;
                }
                state.deletions += 1;
                state.lease = None;
                state.processes.iter_mut().for_each(|process| process.is_latest = false);
            }
            Happens::Drain(node) => {
                if state.drains == self.drains_max {
                    return None;
                }
                state.drains += 1;
                if !state.drained.remove(&node) {
                    state.drained.insert(node);
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, state: &State| state.wrong.is_none()),
            Property::sometimes("every address finds its place", |_, state: &State| {
                state.cloud.iter().all(|spot| spot.holder.is_some())
                    && state.object.iter().all(Option::is_none)
            }),
            Property::sometimes("a second leader acts", |_, state: &State| {
                state.cloud.iter().any(|spot| spot.acted >= 2)
            }),
        ]
    }
}

const GUARDED: Protocol = Protocol {
    addresses: 1,
    has_fence: true,
    has_quarantine: true,
    outlasts_silence: true,
    finishes_first: true,
    deaths_max: 1,
    drains_max: 1,
    deletions_max: 0,
    losses_max: None,
};

/// Goes through all states. Returns whether none of them is wrong.
fn holds(protocol: Protocol) -> bool {
    let (began, verdict) = (std::time::Instant::now(), format!("{protocol:?}"));
    let checker = protocol.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{} states in {:.0?}: {verdict}", checker.unique_state_count(), began.elapsed());
    if let Some(path) = checker.discovery("nothing goes wrong") {
        let last = path.last_state().wrong.unwrap_or_default();
        println!("  {last}: {:?}", path.into_actions());
        return false;
    }
    checker.assert_any_discovery("every address finds its place");
    checker.assert_any_discovery("a second leader acts");
    true
}

#[test]
fn the_protocol_is_safe_with_delays_losses_and_crashes() {
    assert!(holds(GUARDED));
}

#[test]
fn the_protocol_is_safe_if_a_person_deletes_or_empties_the_lease() {
    assert!(holds(Protocol { deaths_max: 0, drains_max: 1, deletions_max: 1, ..GUARDED }));
}

#[test]
fn the_protocol_is_unsafe_without_the_fence() {
    assert!(!holds(Protocol { has_fence: false, ..GUARDED }));
}

#[test]
fn the_protocol_is_unsafe_without_the_wait_after_a_takeover() {
    assert!(!holds(Protocol { has_quarantine: false, ..GUARDED }));
}

#[test]
fn the_protocol_is_unsafe_without_the_wait_after_a_lost_answer() {
    assert!(!holds(Protocol { outlasts_silence: false, ..GUARDED }));
}

#[test]
fn the_protocol_is_unsafe_if_a_leader_releases_with_calls_in_flight() {
    assert!(!holds(Protocol { finishes_first: false, ..GUARDED }));
}

/// Millions of states: `just model`.
#[test]
#[ignore = "takes minutes and gigabytes"]
fn the_protocol_is_safe_with_three_addresses() {
    let three = Protocol { addresses: 3, losses_max: Some(1), ..GUARDED };
    assert!(!holds(Protocol { has_fence: false, ..three.clone() }));
    assert!(holds(Protocol { drains_max: 0, ..three.clone() }));
    assert!(holds(Protocol { deaths_max: 0, ..three }));
    assert!(holds(Protocol { addresses: 2, ..GUARDED }));
    assert!(holds(Protocol { deletions_max: 1, ..GUARDED }));
}
