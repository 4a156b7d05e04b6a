//! Checks the invariants of a run.
//!
//! In: the state at the end of a run, and its record. Out: all violations. It never changes an object or an address.
//!
//! ```text
//! I1  an address is never assigned to two VMs at once; no address is taken from a VM outside the cluster
//! I2  once a change of a leader has arrived, no change of an earlier leader arrives; once a change of an address has
//!     arrived, no earlier change of it arrives
//! I3  after the last fault the run settles within a time limit, and then nothing is written
//! I4  no created address is leaked or created twice; none is released without a request, or without the pool's mark at
//!     the provider
//! I5  at the end, statuses report the true holders, and exactly the holders have labels and annotations; during the
//!     run no holder loses its label without a reason
//! I6  a journal entry covers every change, and the leader has read the cloud since the entry and since the last try
//! I7  the number of calls is limited, and every retry waits for the backoff
//! I8  an address stays on a healthy node, and on a NotReady node for the grace period: see `journals`
//! I9  at the end, a VM has an ephemeral address if it had one and holds none of ours, and never if it had none; at
//!     Google Cloud an ephemeral address is removed only after a journal entry says that the VM has one
//! I10 DNS names never become empty, and names of others are not changed: see `names`
//! I11 a VIP is on one Cluster, from the Cluster's own claim, and no object of others is changed: see `vips::checks`
//! I12 a status reports a lost holder for at least a minute, also after a change of the leader: see `journals`
//! I13 an object that can't be decoded is never written: see `broken`
//! ```
//!
//! Two independent checks verify that a run has settled. The planner, with facts that are read without network faults,
//! must have nothing left to do. And `places` checks holders and nodes with rules of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use controller::addresses::index::Index;
use controller::addresses::node::Node;
use controller::addresses::pod::Pod;
use controller::addresses::slim::{SlimNode, SlimPod};
use controller::addresses::watch::Observed;
use controller::kubernetes::decode::{Change, Decoded};
use drivers::http::HttpService;
use plan::{Address, Epoch, Fact, Holding, Plan, Provider, RecordFact, Scope, Timestamp, Verdict};
use serde::de::DeserializeOwned;
use serde_json::Value;
use testbed::fake::ledger::{Asked, CloudChange, Done, Ledger};

use crate::clouds::{AWS_REGION, AWS_ZONE, PROJECT, SUBSCRIPTION};
use crate::cluster::Cluster;
use crate::edges;
use crate::names;
use crate::objects::{entries, texts};
use crate::options::DNS_OWNER;
use crate::places;
use crate::universe::Universe;
use crate::violation::Violation;
use crate::vips;

/// Maximum number of changes with a response for each journalled move: detach, restore the old VM's ephemeral address,
/// remove the new VM's, attach, and restore the new VM's.
const CHANGES_PER_MOVE_MAX: usize = 5;

/// Maximum number of moves: for each event, and in addition for the beginning and the end of a run.
const MOVES_PER_EVENT_MAX: usize = 4;
const MOVES_OTHERWISE_MAX: usize = 40;

/// Maximum number of write requests to Kubernetes: for each event, for each change at a cloud, and in addition for the
/// whole run.
const ASKED_PER_EVENT_MAX: usize = 20;
const ASKED_PER_CHANGE_MAX: usize = 10;
const ASKED_OTHERWISE_MAX: usize = 400;

/// Maximum number of reads per second over the whole run, and for each attach in addition.
const READS_PER_SECOND_MAX: f64 = 3.0;
const READS_PER_ATTACHMENT_MAX: f64 = 4.0;

/// Maximum number of reads of DNS names per second over the whole run.
const NAME_READS_PER_SECOND_MAX: f64 = 1.0;

/// Prefix of a pool's mark. The pool's UID follows.
const MARK: &str = "ip-address-controller-";

/// How much was written: changes in Kubernetes, write requests to Kubernetes, and changes that arrived at clouds.
pub type Written = (usize, usize, usize);

/// How much was written so far.
pub fn written(universe: &Universe) -> Written {
    (universe.api.changes(), universe.asked(), universe.landed().len())
}

/// The ledgers of all clouds that have addresses.
fn ledgers(universe: &Universe) -> [Ledger; 4] {
    [universe.compute.ledger(), universe.ocean.ledger(), universe.azure.ledger(), universe.ec2.ledger()]
}

/// Number of attaches.
pub fn attached(universe: &Universe) -> usize {
    let count = |ledger: Ledger| {
        ledger.done.iter().filter(|done| matches!(done.change, CloudChange::Attached { .. })).count()
    };
    ledgers(universe).into_iter().map(count).sum()
}

/// Number of failovers: attaches of addresses that were attached before. Moves by people don't count.
pub fn failovers(universe: &Universe, cluster: &Cluster) -> usize {
    let of_cloud = |ledger: Ledger| {
        let mut seen = BTreeSet::new();
        let is_again = |done: &&Done| match &done.change {
            CloudChange::Attached { address, .. } => !seen.insert(address.clone()),
            _ => false,
        };
        ledger.done.iter().filter(is_again).count()
    };
    let all: usize = ledgers(universe).into_iter().map(of_cloud).sum();
    all.saturating_sub(cluster.moved_by_people)
}

/// The violations that were found during the run.
pub fn on_the_way(universe: &Universe) -> Vec<Violation> {
    let mut found = universe.untrue();
    for landed in universe.landed() {
        let (process, line) = (landed.process, landed.line);
        let described = |Violation { invariant, what }| Violation {
            invariant,
            what: format!("{what}: p{process} {line}"),
        };
        found.extend(landed.wrong.into_iter().map(described));
    }
    found
}

/// All violations of a run with this number of events. `before` is how much had been written when the run should have
/// settled.
pub async fn judge(
    universe: &Arc<Universe>,
    cluster: &Cluster,
    before: Written,
    events: usize,
) -> Vec<Violation> {
    let mut found = on_the_way(universe);
    let mut add = |invariant, what: String| found.push(Violation { invariant, what });
    for ledger in ledgers(universe) {
        // A cloud without preconditions executes changes that arrive after D (`options::TAKEOVER`). The controller
        // can't prevent that.
        let doubled = ledger.double_holders().into_iter().filter(|what| !universe.is_soon_after_d(what));
        doubled.for_each(|what| add("I1", what));
    }
    for (ip, vm) in &cluster.given_away {
        if universe.holder(ip).as_ref() != Some(vm) && !universe.is_raced(ip) {
            add("I1", format!("{ip} was taken from {vm}, which is outside the cluster"));
        }
    }
    stale_leaders(universe).into_iter().for_each(|what| add("I2", what));
    if written(universe) != before {
        add("I3", format!("not settled: {before:?} writes became {:?} without an event", written(universe)));
    }
    created(universe, cluster).into_iter().for_each(|what| add("I4", what));
    own(universe, cluster).into_iter().for_each(|what| add("I9", what));
    stripped(universe).into_iter().for_each(|what| add("I9", what));
    names::judge(universe).into_iter().for_each(|what| add("I10", what));
    vips::checks::judge(universe).into_iter().for_each(|what| add("I11", what));
    let (index, plan) = truth(universe).await;
    if !plan.to_string().is_empty() {
        add("I3", format!("not settled: the plan still has steps: {plan}"));
    }
    for (key, verdicts) in &plan.verdicts {
        for (address, verdict) in verdicts {
            if matches!(
                verdict,
                Verdict::Unknown(_) | Verdict::Waits(_) | Verdict::Moving(_) | Verdict::Queued(_)
            ) {
                add("I3", format!("not settled: {address} of {key}: {verdict}"));
            }
        }
    }
    untrue_holders(universe, &index).into_iter().for_each(|what| add("I5", what));
    statuses(universe).into_iter().for_each(|what| add("I5", what));
    marks(&index, &plan).into_iter().for_each(|what| add("I5", what));
    places::judge(universe).into_iter().for_each(|(invariant, what)| add(invariant, what));
    costs(universe, events).into_iter().for_each(|what| add("I7", what));
    found
}

/// The exceeded limits of a run with this number of events.
fn costs(universe: &Universe, events: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut at_most = |count: usize, most: usize, of: &str| {
        if count > most {
            found.push(format!("{count} {of}, but at most {most} are allowed"));
        }
    };
    let landed = universe.landed();
    let (moves, changes) = (moves(universe), landed.iter().filter(|landed| landed.is_known_move).count());
    at_most(moves, MOVES_OTHERWISE_MAX + events * MOVES_PER_EVENT_MAX, "moves");
    at_most(changes, moves * CHANGES_PER_MOVE_MAX, "changes by moves");
    let asked_most = ASKED_OTHERWISE_MAX + events * ASKED_PER_EVENT_MAX + landed.len() * ASKED_PER_CHANGE_MAX;
    at_most(universe.asked(), asked_most, "write requests to Kubernetes");
    let is_read = |asked: &&Asked| asked.line.starts_with("GET") || asked.call.starts_with("Describe");
    let reads = |ledgers: &[Ledger]| -> usize {
        ledgers.iter().map(|ledger| ledger.asked.iter().filter(is_read).count()).sum()
    };
    let seconds = universe.elapsed().as_secs_f64();
    let reads_most = seconds * READS_PER_SECOND_MAX + attached(universe) as f64 * READS_PER_ATTACHMENT_MAX;
    at_most(reads(&ledgers(universe)), reads_most as usize, "reads of addresses");
    let names = [universe.zones.ledger(), universe.route53.ledger()];
    at_most(reads(&names), (seconds * NAME_READS_PER_SECOND_MAX) as usize, "reads of DNS names");
    found
}

/// Number of journalled moves. A move that another leader resumes counts again.
fn moves(universe: &Universe) -> usize {
    let mut moves = BTreeSet::new();
    for object in
        ["netipallocations", "floatingippools"].into_iter().flat_map(|plural| universe.api.history(plural))
    {
        for entry in entries(&object) {
            let ends = [&entry["from"]["vm"], &entry["to"]["vm"]].map(ToString::to_string);
            moves.insert((entry["id"].to_string(), entry["startedAt"].to_string(), ends));
        }
    }
    moves.len()
}

/// Addresses that the drivers report on the wrong VM.
fn untrue_holders(universe: &Universe, index: &Index) -> Vec<String> {
    let wrong = |(address, fact): (&Address, &Fact)| {
        let Holding::By(vm) = &fact.holding else { return None };
        let holder = universe.holder(&address.to_string());
        let is_there = holder.as_ref().is_some_and(|holder| *holder == vm.to_string());
        (!is_there).then(|| format!("the driver reports {address} on {vm}, but it is on {holder:?}"))
    };
    let facts = index.world.pools().flat_map(|pool| index.world.facts_of(&pool.scope));
    facts.filter_map(wrong).collect()
}

/// Wrong statuses. A status must report every listed address, with a final state. An attached address must be on the
/// reported VM, an unattached or missing one on no VM, and the summary must count the attached ones.
fn statuses(universe: &Universe) -> Vec<String> {
    let mut found = Vec::new();
    for object in
        ["netipallocations", "floatingippools"].into_iter().flat_map(|plural| universe.api.all(plural))
    {
        if !object["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let (name, status, mut attached) = (&object["metadata"]["name"], &object["status"], 0);
        let is_reported = |ip: &String| {
            let mut reported = status["addresses"].as_array().into_iter().flatten();
            reported.any(|entry| entry["address"] == ip.as_str())
        };
        let listed = ["reservedIPs", "ips"].into_iter().flat_map(|list| texts(&object["spec"][list]));
        for unreported in listed.filter(|ip| !is_reported(ip)) {
            found.push(format!("the status of {name} does not report {unreported}"));
        }
        for entry in status["addresses"].as_array().into_iter().flatten() {
            let reported = match entry["state"].as_str() {
                Some("Attached") => {
                    attached += 1;
                    entry["lastHolder"]["vm"].as_str().map(str::to_owned)
                }
                Some("Unattached" | "Missing") => None,
                Some("Foreign" | "Conflict" | "Disabled") => continue,
                _ => {
                    found.push(format!("the status of {name} has an entry that is not final: {entry}"));
                    continue;
                }
            };
            let holder = entry["address"].as_str().and_then(|address| universe.holder(address));
            if reported != holder {
                found.push(format!("the status of {name} says {entry}, but the holder is {holder:?}"));
            }
        }
        if status["summary"]["attached"].as_u64().unwrap_or(0) != attached {
            found.push(format!(
                "the status of {name} counts {}, but {attached} are attached",
                status["summary"]
            ));
        }
    }
    found
}

/// Changes of stale leaders. A process leads at most once, so no change of another process may be between its changes.
fn stale_leaders(universe: &Universe) -> Vec<String> {
    let mut over = BTreeSet::new();
    let mut last = None;
    let mut found = Vec::new();
    for landed in universe.landed().into_iter().filter(|landed| !landed.is_overdue) {
        if last != Some(landed.process) {
            over.extend(last);
            last = Some(landed.process);
            if over.contains(&landed.process) {
                found.push(format!("p{} acted after another leader: {}", landed.process, landed.line));
            }
        }
    }
    found
}

/// Created addresses that are not listed, too many creations, and wrongly released addresses.
fn created(universe: &Universe, cluster: &Cluster) -> Vec<String> {
    let account: BTreeSet<String> = universe.ocean.with(|ocean| ocean.reserved_ips()).into_iter().collect();
    let pools = universe.api.all("floatingippools");
    let listed: BTreeSet<String> = pools.iter().flat_map(|pool| texts(&pool["spec"]["ips"])).collect();
    let mut found = Vec::new();
    let has_pool = !pools.is_empty();
    for ip in account.difference(&cluster.foreign).filter(|ip| !listed.contains(*ip)) {
        if has_pool && !cluster.orphans.contains(ip) && !cluster.unlisted.contains(ip) {
            found.push(format!("{ip} was created, but no pool lists it"));
        }
    }
    let made = account.difference(&cluster.foreign).filter(|ip| !cluster.orphans.contains(*ip)).count();
    if made > cluster.lacked_most {
        let most = cluster.lacked_most;
        found.push(format!("{made} addresses were created for a pool that needed at most {most}"));
    }
    // If marks can't be read, or a tool has unlisted addresses, a person has to decide.
    for pool in pools.iter().filter(|_| cluster.tags && cluster.unlisted.is_empty()) {
        let (desired, listed) =
            (pool["spec"]["desiredIPs"].as_u64(), texts(&pool["spec"]["ips"]).count() as u64);
        if desired.is_some_and(|desired| listed < desired) {
            found.push(format!("{desired:?} addresses are desired, but {listed} are listed"));
        }
    }
    for done in universe.ocean.ledger().done {
        let CloudChange::Released { address, marks } = done.change else { continue };
        let history = universe.api.history("floatingippools");
        let lists = |pool: &&Arc<Value>| texts(&pool["spec"]["ips"]).any(|ip| ip == address);
        let of_pool = |pool: &Value| pool["metadata"]["uid"].as_str().map(|uid| format!("{MARK}{uid}"));
        let is_marked = |pool: &&Arc<Value>| of_pool(pool).is_some_and(|mark| marks.contains(&mark));
        let asks = |pool: &Arc<Value>| pool["spec"]["policy"]["releaseCreated"] == "WhenUnneeded";
        let mut marked = history.iter().filter(lists).filter(is_marked).peekable();
        if marked.peek().is_none() {
            found.push(format!("{address} was released without the mark of a pool that lists it: {marks:?}"));
        } else if !marked.any(asks) {
            found.push(format!("{address} was released, but its pool did not request that"));
        }
    }
    // People list some initial addresses themselves. Addresses that others create later must never be listed.
    for ip in cluster.foreign.iter().filter(|ip| ip.starts_with("192.0.2.") && listed.contains(*ip)) {
        found.push(format!("{ip} was created by others, but a pool lists it"));
    }
    for ip in cluster.foreign.difference(&account) {
        found.push(format!("{ip} was released, although it belongs to others"));
    }
    found
}

/// VMs whose ephemeral address is wrong. A VM that began without one must have none. A VM that began with one must have
/// one, or hold an address of an object.
fn own(universe: &Universe, cluster: &Cluster) -> Vec<String> {
    let wrong = |((zone, name), had): (&(&str, String), &bool)| {
        let (exists, has, holds) = match *zone {
            AWS_ZONE => universe
                .ec2
                .with(|ec2| (ec2.exists(name), ec2.has_ephemeral(name), !ec2.held_by(name).is_empty())),
            zone => universe.compute.with(|compute| {
                (
                    compute.exists(zone, name),
                    compute.has_ephemeral(zone, name),
                    compute.has_address(zone, name),
                )
            }),
        };
        match (had, has) {
            (true, false) if exists && !holds => {
                Some(format!("{name} has no address, but had an ephemeral one"))
            }
            (false, true) => Some(format!("{name} got an ephemeral address, but never had one")),
            _ => None,
        }
    };
    // An object that stops listing an address forgets whether its holder had an ephemeral one.
    let held_forgotten = |(_, name): &&(&str, String)| {
        let ledgers = [universe.compute.ledger(), universe.ec2.ledger()];
        ledgers.iter().flat_map(|ledger| &ledger.done).any(|done| match &done.change {
            CloudChange::Attached { address, vm } => {
                cluster.forgotten.contains(address) && vm.ends_with(&format!("/{name}"))
            }
            _ => false,
        })
    };
    // A late detach removes whichever address the VM has when the detach arrives.
    let is_hit = |(_, name): &&(&str, String)| universe.came_too_late_to(name);
    let remembered = cluster
        .had_ephemeral_before
        .iter()
        .filter(|(machine, _)| !held_forgotten(machine) && !is_hit(machine));
    remembered.filter_map(wrong).collect()
}

/// VMs whose ephemeral address was removed although no journal entry says that they had one.
fn stripped(universe: &Universe) -> Vec<String> {
    let history = universe.api.history("netipallocations");
    let ends =
        history.iter().flat_map(|object| entries(object)).flat_map(|entry| [&entry["from"], &entry["to"]]);
    let journalled: BTreeSet<&str> =
        ends.filter(|end| end["hadEphemeral"] == true).filter_map(|end| end["vm"].as_str()).collect();
    let removed = universe.compute.ledger().done.into_iter().filter_map(|done| match done.change {
        CloudChange::EphemeralRemoved { address, vm } => Some((done.at, address, vm)),
        _ => None,
    });
    // A detach that arrives after D removes whichever address the VM has then.
    let is_late = |vm: &str| vm.rsplit('/').next().is_some_and(|name| universe.came_too_late_to(name));
    let unjournalled = removed.filter(|(.., vm)| !journalled.contains(vm.as_str()) && !is_late(vm));
    unjournalled
        .map(|(at, address, vm)| {
            format!("at {at:?} {vm} lost its ephemeral address {address} without a journal entry")
        })
        .collect()
}

/// The true state, as the controller would see it without network faults, and the plan for it.
async fn truth(universe: &Arc<Universe>) -> (Index, Plan) {
    let mut index = Index::default();
    let nodes: Vec<Decoded<SlimNode>> = read(universe.api.all("nodes"));
    let nodes = nodes.into_iter().map(|node| node.map(Node::alone));
    index.observe(Observed::Nodes(Change::All(nodes.collect())));
    index.observe(Observed::Allocations(Change::All(read(universe.api.all("netipallocations")))));
    index.observe(Observed::Pools(Change::All(read(universe.api.all("floatingippools")))));
    index.observe(Observed::RecordSets(Change::All(read(universe.api.all("nodednsrecordsets")))));
    let pods: Vec<Decoded<SlimPod>> = read(universe.api.all("pods"));
    let pods = pods.into_iter().map(|pod| pod.map(|pod| Pod::with_all_labels(&pod)));
    index.observe(Observed::Pods(Change::All(pods.collect())));
    universe.ocean.heal();
    universe.zones.heal();
    universe.route53.heal();
    universe.route53.enforce_limits(false);
    let services = edges::Services {
        compute: HttpService::new(universe.compute.service()),
        ocean: HttpService::new(universe.ocean.service()),
        zones: HttpService::new(universe.zones.service()),
        azure: HttpService::new(universe.azure.service()),
        ec2: HttpService::new(universe.ec2.service()),
        route53: HttpService::new(universe.route53.service()),
    };
    let seconds = u64::try_from(universe.now().as_second()).unwrap_or(0);
    let drivers = edges::drivers(services, &(Arc::new(move || seconds) as drivers::Seconds));
    for (provider, account) in [
        (Provider::Gcp, PROJECT),
        (Provider::DigitalOcean, ""),
        (Provider::Azure, SUBSCRIPTION),
        (Provider::Aws, AWS_REGION),
    ] {
        let scope = Scope { provider, account: account.into() };
        let listing = drivers.addresses[&provider].list(&scope).await;
        let tick = index.tick();
        index.observe_listing(&scope, listing, tick);
    }
    index.world.epoch = Epoch(i64::MAX);
    index.world.losses = index.remembered_losses();
    index.world.moves_in_one_call.insert(Provider::DigitalOcean);
    index.world.dns_owner = Some(DNS_OWNER.into());
    let addresses: Vec<_> = index.world.facts().map(|(_, address, _)| *address).collect();
    index.world.unmatched.extend(addresses.into_iter().map(|address| (address, Timestamp::UNIX_EPOCH)));
    for step in plan::plan(&index.world, universe.now()).records {
        if let Ok(set) = drivers.records[&step.name.provider].read(&step.name, &step.pool).await {
            index.world.records.insert(step.name, RecordFact { set, as_of: universe.now() });
        }
    }
    let plan = plan::plan(&index.world, universe.now());
    (index, plan)
}

fn read<K: DeserializeOwned>(objects: Vec<Arc<Value>>) -> Vec<K> {
    objects.iter().filter_map(|object| K::deserialize(&**object).ok()).collect()
}

/// Nodes with wrong labels or annotations.
fn marks(index: &Index, plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    for (name, node) in &index.nodes {
        let holder = |kind: &str| plan.marks.holders.get(kind).and_then(|holders| holders.get(name));
        let label = node.labels.get(api::IP_READY_LABEL);
        let wanted = holder("NetIPAllocation").map(|_| "true");
        if label != wanted {
            found.push(format!("node {name} has the label {label:?} instead of {wanted:?}"));
        }
        let labels = node.labels.iter().map(|(key, _)| key);
        let named: Vec<_> = labels.filter_map(|key| key.strip_prefix(api::ALLOCATION_LABEL_PREFIX)).collect();
        let wanted: Vec<_> = holder("NetIPAllocation").iter().map(|mark| &*mark.object).collect();
        if named != wanted {
            found.push(format!("node {name} has labels of {named:?} instead of {wanted:?}"));
        }
        let annotation = node.annotations.get(api::RESERVED_IP_ANNOTATION);
        let wanted = holder("FloatingIPPool").map(|mark| mark.address.to_string());
        if annotation != wanted.as_deref() {
            found.push(format!("node {name} has the annotation {annotation:?} instead of {wanted:?}"));
        }
    }
    found
}
