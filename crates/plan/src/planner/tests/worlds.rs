//! One line of world in, one line of plan out.
//!
//! A world is a list of clauses between bars.
//!
//! A clause `n1 …` describes a node:
//! - `cordoned`, `leaving` (about to be removed), `undecodable`, `unmatched`, `notready 30` (for 30 seconds), `seen 20` (the
//!   controller saw it stop being Ready 20 seconds ago)
//! - its pods: one is Ready by default; `empty` (none), `pods` (some, none Ready), `undecodable-pods` (some can't be
//!   decoded), `evictable` (pods of the workload that the controller may evict)
//! - `zone b`, `region s` (`region -` for unknown; `r` by default)
//! - its VM: `nomachine`, `machine n2` (the same VM as n2), `dead` (the cloud reports it as stopped), `refuses` (it
//!   refused an address recently), `reserved` (an undecodable object contains it)
//! - `holds a1`
//!
//! A clause `a1 …` describes an address:
//! - `free` (the default if no node holds it), `unknown`, `unknown on n1` (only n1 may hold it), `unknown but n1` (any
//!   other may), `unknown in r` (any in region r), `unknown unasked` (not asked about yet), `missing`, `foreign`, `left` (on a VM whose node was deleted)
//! - `unconfirmed` (the change that attached it failed), `stale` (the last listing is older than the journal), `busy` (a
//!   call is in flight)
//! - `moves n1 -> n2` (in the journal; `-` for none), `released` (the journal has its release), `inherited` (an earlier
//!   leader started the move), `going 10` (moving for 10 seconds)
//! - `last n1` (its last holder), `was on n1` (the status reports it there), `lost 30` (its holder was lost 30
//!   seconds ago)
//! - `replaced` (its last holder had an ephemeral address), `returned n1` (n1 has an ephemeral address again since a1 left it)
//! - `named x` (the name in its PTR record), `kept x` (the name that the status has saved)
//! - `of r` (it can be used in region r only)
//! - `tagged` or `elsewhere`: in the account but not in the pool, with or without the pool's tag
//! - `made` (the provider shows the pool's mark), `claimed` (created according to the status), `marked x` (it has
//!   another mark), `disowned`
//! - `unmatched 1` (on no matching node for 1 second)
//!
//! Other clauses change the pool, which is a NetIPAllocation, or the rest of the world:
//! - `floating` (like a FloatingIPPool; `floating anypods` without pod selectors), `podless` (no workload), `observe`, `refused`, `deleted`,
//!   `deleted detaching`
//! - `takeover`, `grace 60`, `desired 1`, `only zone a`, `budget 1`, `healthy 2`, `cooloff 20`, `assigned 5` (seconds
//!   ago), `spread`, `disruption`, `releases` (policy.releaseCreated), `evicts` (policy.evictPods)
//! - `epoch 8` (the epoch of the journal; that of this leader is 7), `newer` (a journal that this version can't read),
//!   `urgent` (the moves have a dead holder), `confirmed 30` (losses up to 30 seconds ago)
//! - `onecall` (the cloud moves an address in one call), `strict` (the cloud refuses to attach an address to a VM that
//!   holds one), `here n1` (the controller runs there), `last urgent`, `last attach`,
//!   `last nothing` (the steps that it takes before it releases its lease)
//! - `own n1` (its VM has an ephemeral address), `restore n1` (according to the journal, it had one)
//! - `late` (the cloud may not show the changes of an earlier leader yet), `late before` (a new listing would show
//!   them), `late once` (the last listing shows them)
//! - `creates` (the pool creates addresses with a tag), `creates untagged`, `creating` (the journal has a creation),
//!   `creating asked` (with a request of unknown outcome), `asking` (a request is in flight), `unread` (no complete
//!   listing since), `hidden` (tags can't be read any more), `tagged-before` (the pool created addresses earlier),
//!   `limit 1` (on created addresses)
//! - `silent` (the watches of nodes and pods have been silent), `silent pods`, `silent pools`, `silent names`, `unread
//!   nodes` (the controller can't read nodes at present), `unread pods`, `unread replicasets`, `unread daemonsets`,
//!   `unread pools`, `unread names`
//! - `evicting` (an eviction is in flight), `evicted` (a moment ago)
//! - `publishes` (the pool has a DNS name with a TTL of 30 s), `publishes nodes` (for the addresses of the nodes),
//!   `adopts`
//! - `record nobody a1 a2` (the owner and the values of the records; the owner is `ours`, `nobody` or `other`),
//!   `record unread`, `record busy` (a write is in flight), `record reading`, `record failed`, `record old`
//! - `younger lists a1` and `younger publishes` add a second pool, `younger refused` stops it

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::Expect;

use super::super::*;
use crate::{
    Account, Creation, DnsProvider, Doubt, Epoch, Fact, InFlightRecord, LastSteps, MachineState, MayBeOn,
    Node, Pause, Pods, PoolKey, Provider, Publication, Readiness, RecordFact, RecordKind, RecordName,
    RecordSet, Source,
};

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

pub(super) fn seconds_ago(seconds: &str) -> Timestamp {
    now() - Duration::from_secs(seconds.parse().unwrap())
}

pub(super) fn address(name: &str) -> Address {
    format!("203.0.113.{}", name.trim_start_matches('a')).parse().unwrap()
}

pub(super) fn vm(name: &str) -> VmId {
    format!("vm-{name}").into()
}

pub(super) fn scope() -> Scope {
    Scope { provider: Provider::Gcp, account: "demo".into() }
}

pub(super) fn pool(name: &str, age: &str) -> Pool {
    let key = PoolKey { kind: "NetIPAllocation", namespace: "".into(), name: name.into() };
    let pods_from = [Kind::Pods, Kind::Deployments, Kind::ReplicaSets].into_iter().collect();
    Pool { created: seconds_ago(age), desired: 1_000, pods_from, ..Pool::new(key, scope(), Vec::new()) }
}

/// A world under construction. Pools and their matching nodes are added last, because nodes must exist before.
struct Sketch {
    world: World,
    pool: Pool,
    younger: Option<Pool>,
    members: Vec<(NodeName, Option<Pods>)>,
    misplaced_pods: Vec<NodeName>,
    facts: BTreeMap<Address, Fact>,
}

fn publication(source: Source) -> Publication {
    let RecordName { provider, zone, name, .. } = record();
    let published = BTreeSet::new();
    Publication { provider, zone, name, ttl: Some(30), adopts: false, source, published }
}

pub(super) fn record() -> RecordName {
    let (zone, name) = ("example.com".into(), "hello.example.com".into());
    RecordName { provider: DnsProvider::DigitalOcean, zone, name, kind: RecordKind::A }
}

pub(super) fn fact(holding: Holding) -> Fact {
    Fact::new(holding, Tick(10))
}

fn is_address(word: &str) -> bool {
    word.len() > 1 && word.starts_with('a') && word[1..].parse::<u8>().is_ok()
}

pub(super) fn world(text: &str) -> World {
    let mut world = World::default();
    world.epoch = Epoch(7);
    let mut sketch = Sketch {
        world,
        pool: pool("p", "1000"),
        younger: None,
        members: Vec::new(),
        misplaced_pods: Vec::new(),
        facts: BTreeMap::new(),
    };
    let mut names: Vec<_> = text.split([' ', '|']).filter(|word| is_address(word)).collect();
    names.sort_by_key(|name| name[1..].parse::<u8>().unwrap());
    names.dedup();
    for name in names {
        sketch.pool.addresses.push(address(name));
        sketch.facts.insert(address(name), fact(Holding::Free));
    }
    for clause in text.split('|') {
        sketch.read(&clause.split_whitespace().collect::<Vec<_>>());
    }
    sketch.finish()
}

impl Sketch {
    fn read(&mut self, words: &[&str]) {
        let pool = &mut self.pool;
        let seconds = |text: &str| Duration::from_secs(text.parse().unwrap());
        match words {
            [] => {}
            ["floating"] => {
                pool.tenancy = Tenancy::UntilDisplaced { needs_pods: true };
                pool.pods_from = Kinds::default().with(Kind::Pods);
            }
            ["floating", "anypods"] => {
                pool.tenancy = Tenancy::UntilDisplaced { needs_pods: false };
                pool.pods_from = Kinds::default();
            }
            ["podless"] => pool.pods_from = Kinds::default(),
            ["observe"] => pool.policy.mode = Mode::Observe,
            ["refused"] => pool.policy.mode = Mode::Refused,
            ["takeover"] => pool.policy.takeover = Takeover::Always,
            ["spread"] => pool.policy.spread = Spread::Zone,
            ["disruption"] => pool.policy.leaves_on_disruption = true,
            ["late"] => _ = self.world.stale_until.insert(Provider::Gcp, crate::PENDING),
            ["late", "before"] => _ = self.world.stale_until.insert(Provider::Gcp, Tick(10)),
            ["late", "once"] => _ = self.world.stale_until.insert(Provider::Gcp, Tick(9)),
            ["strict"] => _ = self.world.refuses_occupied.insert(Provider::Gcp),
            ["last", "urgent"] => self.world.last_steps = Some(LastSteps::Urgent),
            ["last", "attach"] => self.world.last_steps = Some(LastSteps::Attach),
            ["last", "nothing"] => self.world.last_steps = Some(LastSteps::Nothing),
            ["onecall"] => _ = self.world.moves_in_one_call.insert(Provider::Gcp),
            ["creates", how @ ..] => {
                pool.creates = Some("tag".into());
                pool.region = Some("r".into());
                let can_tag = how != ["untagged"];
                self.world.accounts.insert(scope(), Account { as_of: Tick(10), can_tag });
            }
            ["creating", how @ ..] => {
                let tag = self.world.accounts[&scope()].can_tag.then(|| "tag".into());
                let may_have_asked = how == ["asked"];
                let (epoch, written) = (Epoch(7), Tick(5));
                let before = BTreeSet::from([address("a8"), address("a9")]);
                pool.creation = Some(Creation { tag, before, may_have_asked, epoch, written });
            }
            ["creating-epoch", number] => {
                pool.creation.as_mut().unwrap().epoch = Epoch(number.parse().unwrap());
            }
            ["limit", max] => self.world.created_max = Some(max.parse().unwrap()),
            ["tagged-before"] => pool.is_tag_used = true,
            ["hidden"] => self.world.accounts.get_mut(&scope()).unwrap().can_tag = false,
            ["unread"] => self.world.accounts.get_mut(&scope()).unwrap().as_of = Tick(1),
            ["asking"] => _ = self.world.in_flight.creations.insert(pool.key.clone(), 1),
            ["publishes", how @ ..] => {
                self.world.dns_owner = Some("us".into());
                let source = if how == ["nodes"] { Source::Nodes } else { Source::Addresses };
                pool.publication = Some(publication(source));
                if source == Source::Addresses {
                    let (set, as_of) = (RecordSet::default(), now());
                    self.world.records.entry(record()).or_insert(RecordFact { set, as_of });
                }
            }
            ["adopts"] => pool.publication.as_mut().unwrap().adopts = true,
            ["record", "unread"] => _ = self.world.records.remove(&record()),
            ["record", "busy"] => _ = self.world.in_flight.records.insert(record(), InFlightRecord::Write),
            ["record", "reading"] => _ = self.world.in_flight.records.insert(record(), InFlightRecord::Read),
            ["record", "failed"] => {
                let pause = Pause { until: now() + Duration::from_secs(5), why: "no answer".into() };
                self.world.avoid_records.insert(record(), pause);
            }
            ["record", "old"] => self.world.records.get_mut(&record()).unwrap().as_of = seconds_ago("300"),
            ["record", owner, values @ ..] => {
                let owner = match *owner {
                    "ours" => Some("us".into()),
                    "nobody" => None,
                    other => Some(other.into()),
                };
                let values = values.iter().map(|name| address(name)).collect();
                let set = RecordSet { values, ttl: Some(30), owner };
                self.world.records.insert(record(), RecordFact { set, as_of: now() });
            }
            ["silent"] => self.world.silent = [Kind::Nodes, Kind::Pods].into_iter().collect(),
            ["silent", "pods"] => self.world.silent = Kinds::default().with(Kind::Pods),
            ["silent", "pools"] => self.world.silent = Kinds::default().with(Kind::Pools),
            ["silent", "names"] => self.world.silent = Kinds::default().with(Kind::Names),
            ["unread", kind] => self.world.unread.add(Kinds::default().with(match *kind {
                "nodes" => Kind::Nodes,
                "pods" => Kind::Pods,
                "replicasets" => Kind::ReplicaSets,
                "daemonsets" => Kind::DaemonSets,
                "pools" => Kind::Pools,
                "names" => Kind::Names,
                other => panic!("unknown kind: {other}"),
            })),
            ["evicts"] => pool.policy.evicts = true,
            ["evicting"] => _ = self.world.in_flight.evictions.insert(pool.key.clone()),
            ["evicted"] => {
                let until = now() + Duration::from_secs(5);
                self.world.avoid_evictions.insert(pool.key.clone(), until);
            }
            ["releases"] => {
                pool.policy.releases_created = true;
                pool.creates = Some("tag".into());
            }
            ["deleted", how @ ..] => {
                pool.policy.mode = Mode::Leaving;
                pool.policy.detaches_on_delete = how == ["detaching"];
            }
            ["newer"] => pool.journal = Journal::Unreadable,
            ["grace", text] => pool.policy.failover_grace = seconds(text),
            ["cooloff", text] => pool.policy.cool_off = seconds(text),
            ["assigned", text] => pool.last_assignment = Some(seconds_ago(text)),
            ["confirmed", text] => pool.losses_confirmed = Some(seconds_ago(text)),
            ["budget", count] => pool.policy.concurrent_moves_max = Some(count.parse().unwrap()),
            ["healthy", count] => pool.policy.healthy_min = count.parse().unwrap(),
            ["desired", count] => pool.desired = count.parse().unwrap(),
            ["restore", names @ ..] => {
                let to_restore: BTreeSet<_> = names.iter().map(|name| vm(name)).collect();
                self.each_move(|entry| entry.to_restore.clone_from(&to_restore));
            }
            ["urgent"] => self.each_move(|entry| entry.is_voluntary = false),
            ["here", name] => self.world.own_node = Some((*name).into()),
            ["own", names @ ..] => self.world.has_ephemeral.extend(names.iter().map(|name| vm(name))),
            ["epoch", number] => self.each_move(|entry| entry.epoch = Epoch(number.parse().unwrap())),
            ["only", "zone", zone] => pool.zones = vec![(*zone).into()],
            ["younger", "publishes"] => {
                let mut other = self::pool("younger", "10");
                other.publication = Some(publication(Source::Addresses));
                self.younger = Some(other);
            }
            ["younger", "refused"] => self.younger.as_mut().unwrap().policy.mode = Mode::Refused,
            ["younger", "lists", listed @ ..] => {
                let mut other = self::pool("younger", "10");
                other.addresses = listed.iter().map(|name| address(name)).collect();
                self.younger = Some(other);
            }
            [name, words @ ..] if is_address(name) => self.read_address(address(name), words),
            [name, words @ ..] => self.read_node(name, words),
        }
    }

    fn each_move(&mut self, change: impl Fn(&mut Move)) {
        if let Journal::Known(moves) = &mut self.pool.journal {
            moves.values_mut().for_each(change);
        }
    }

    fn read_address(&mut self, address: Address, words: &[&str]) {
        let known = self.facts.get_mut(&address).unwrap();
        match words {
            ["free"] => known.holding = Holding::Free,
            ["unknown", may_be @ ..] => {
                let machines = || may_be[1..].iter().map(|name| vm(name)).collect::<BTreeSet<_>>();
                let may_be_on = match may_be {
                    [] => MayBeOn::Any,
                    ["on", ..] => MayBeOn::Only(machines()),
                    ["but", ..] => MayBeOn::AllBut(Arc::new(machines())),
                    ["in", regions @ ..] => {
                        MayBeOn::Regions(regions.iter().map(|region| (*region).into()).collect())
                    }
                    ["unasked"] => MayBeOn::Any,
                    other => panic!("unknown clause: {other:?}"),
                };
                let (why, is_unasked) = ("the cloud did not answer".into(), may_be == ["unasked"]);
                known.holding = Holding::Unknown(Doubt { why, may_be_on, is_unasked });
            }
            ["tagged" | "elsewhere"] => {
                known.tag = (words == ["tagged"]).then(|| "tag".into());
                self.pool.addresses.retain(|listed| *listed != address);
            }
            ["unconfirmed"] => known.is_unconfirmed = true,
            ["made"] => known.tag = Some("tag".into()),
            ["claimed"] => _ = self.pool.created_here.insert(address),
            ["marked", other] => known.tag = Some((*other).into()),
            ["disowned"] => _ = self.pool.disowned.insert(address),
            ["unmatched", seconds] => _ = self.world.unmatched.insert(address, seconds_ago(seconds)),
            ["going", seconds] => _ = self.pool.moving_since.insert(address, seconds_ago(seconds)),
            ["replaced"] => _ = self.pool.replaced_ephemeral.insert(address),
            ["named", name] => _ = self.world.ptrs.insert(address, (*name).into()),
            ["kept", name] => _ = self.pool.ptrs.insert(address, (*name).into()),
            ["inherited"] => _ = self.world.inherited.insert(address),
            ["returned", name] => self.pool.returned.entry(address).or_default().push(vm(name)),
            ["was", "on", name] => {
                self.pool.last_holders.insert(address, vm(name));
                self.pool.held.insert(address);
            }
            ["lost", seconds] => _ = self.world.losses.insert(address, seconds_ago(seconds)),
            ["last", name] => _ = self.pool.last_holders.insert(address, vm(name)),
            ["released"] => {
                let (epoch, written) = (Epoch(7), Tick(5));
                let to_restore = BTreeSet::new();
                let entry = Move {
                    from: None,
                    to: None,
                    to_restore,
                    releases: true,
                    is_voluntary: true,
                    epoch,
                    written,
                };
                if let Journal::Known(moves) = &mut self.pool.journal {
                    moves.insert(address, entry);
                }
            }
            ["missing"] => known.holding = Holding::Missing,
            ["foreign"] => known.holding = Holding::By(vm("foreign")),
            ["of", region] => known.region = Some((*region).into()),
            ["stale"] => known.as_of = Tick(1),
            ["busy"] => _ = self.world.in_flight.addresses.insert(address),
            ["left"] => {
                known.holding = Holding::By(vm("left"));
                self.pool.last_holders.insert(address, vm("left"));
            }
            ["moves", from, "->", to] => {
                let to = (*to != "-").then(|| Target { vm: vm(to), node: (*to).into() });
                let from = (*from != "-").then(|| vm(from));
                let entry = Move {
                    from,
                    to,
                    to_restore: BTreeSet::new(),
                    releases: false,
                    is_voluntary: true,
                    epoch: Epoch(7),
                    written: Tick(5),
                };
                if let Journal::Known(moves) = &mut self.pool.journal {
                    moves.insert(address, entry);
                }
            }
            other => panic!("unknown clause of an address: {other:?}"),
        }
    }

    fn read_node(&mut self, name: &str, words: &[&str]) {
        let mut pods = Some(Pods::Ready);
        let mut node = Node {
            region: Some("r".into()),
            zone: Some("a".into()),
            ..Node::new(Some((scope(), vm(name))), Readiness::Ready)
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut next = || *words.next().unwrap();
            match *word {
                "ready" => {}
                "refuses" => {
                    let until = now() + Duration::from_secs(5);
                    self.world.avoid_machines.insert(vm(name), until);
                }
                "cordoned" => node.is_cordoned = true,
                "leaving" => node.is_leaving = true,
                "evictable" => self.misplaced_pods.push(name.into()),
                "empty" => pods = Some(Pods::Absent),
                "pods" => pods = Some(Pods::Present),
                "undecodable-pods" => pods = Some(Pods::Unknown),
                "undecodable" => node.readiness = Readiness::Unknown,
                "reserved" => _ = self.world.reserved_machines.insert(vm(name)),
                "unmatched" => pods = None,
                "nomachine" => node.machine = None,
                "machine" => node.machine = Some((scope(), vm(next()))),
                "dead" => _ = self.world.machines.insert(vm(name), MachineState::Stopped),
                "notready" => node.readiness = Readiness::NotReadySince(seconds_ago(next())),
                "seen" => node.grace_starts = Some(seconds_ago(next())),
                "zone" => node.zone = Some(next().into()),
                "region" => node.region = Some(next()).filter(|region| *region != "-").map(Into::into),
                "holds" => {
                    let held = address(next());
                    self.facts.get_mut(&held).unwrap().holding = Holding::By(vm(name));
                    self.pool.last_holders.insert(held, vm(name));
                }
                other => panic!("unknown word for a node: {other}"),
            }
        }
        self.world.set_node(&name.into(), node);
        self.members.push((name.into(), pods));
    }

    fn finish(mut self) -> World {
        for (address, fact) in self.facts {
            self.world.set_fact(&scope(), address, fact);
        }
        for pool in [Some(self.pool), self.younger].into_iter().flatten() {
            let key = pool.key.clone();
            self.world.set_pool(pool);
            for (name, pods) in &self.members {
                self.world.set_member(&key, name, *pods);
            }
            for (at, (name, _)) in self.members.iter().enumerate() {
                let own = format!("203.0.113.{}", 101 + at % 150).parse().unwrap();
                self.world.set_node_addresses(&key, name, Arc::new([own]));
            }
            for name in self.misplaced_pods.iter().filter(|_| &*key.name == "p") {
                self.world.set_evictable(&key, name, true);
            }
        }
        self.world
    }
}

/// Compares the steps, or if there are none, the verdicts.
pub(super) fn check(text: &str, expected: Expect) {
    let world = world(text);
    let plan = plan(&world, now());
    assert_eq!(plan, crate::plan(&world, now()), "the same world gives the same plan");
    let steps = plan.to_string().replace('\n', ", ");
    let says = |(key, verdicts): (&PoolKey, &Vec<(Address, Verdict)>)| {
        let of = if &*key.name == "p" { String::new() } else { format!(" of {}:", key.name) };
        verdicts
            .iter()
            .map(|(address, verdict)| format!("{address}{of} {verdict}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut verdicts: Vec<_> = plan.verdicts.iter().map(says).filter(|verdict| !verdict.is_empty()).collect();
    verdicts.extend(plan.lacking.values().map(ToString::to_string));
    verdicts.extend(plan.misplaced_pods.values().map(ToString::to_string));
    for (key, published) in &plan.published {
        let of = if &*key.name == "p" { String::new() } else { format!(" of {}", key.name) };
        verdicts.extend(published.iter().map(|(_, verdict)| format!("name{of} {verdict}")));
    }
    let text = if steps.is_empty() { verdicts.join(", ") } else { steps };
    expected.assert_eq(&text.replace("203.0.113.", "a").replace("vm-", ""));
}
