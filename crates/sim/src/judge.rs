//! Holds a run against what must never happen, and against what must have happened in the end.
//!
//! ```text
//! I1  never two machines told to hold one address at the same time; none taken from a machine outside of the cluster
//! I2  once a leader's change has arrived, no earlier leader's does; once a change has arrived, no earlier one about the same
//!     address does
//! I3  once nothing goes wrong any more it settles within a bound, and then nothing is written
//! I4  no created address is leaked or created twice, none is released unasked or without the
//!     provider's mark of the pool that releases it
//! I5  when settled, what statuses say of addresses is so, and labels and annotations are those of the holders; on the way no
//!     holder loses its label for no reason
//! I6  nothing is changed that is in no journal, or without having read the cloud since it was journalled or last tried
//! I7  calls are bounded, and nothing is tried again without a pause
//! I8  an address that is well where it is stays there, and one on a node that falls ill for the grace: see `journals`
//! I9  in the end a machine has an address of its own if it had one and holds none of ours, and never if it had none; at Google
//!     Cloud none is removed before a journal says of its machine that it has one
//! I10 names in DNS are never emptied, and those of others are left alone: see `names`
//! I11 a VIP is on one Cluster, from a claim of its own, and nothing of anybody else is touched: see `vips::checks`
//! I12 a status tells of a lost holder for a minute at least, whoever leads: see `journals`
//! I13 nothing is written to an object that can't be decoded: see `broken`
//! ```
//!
//! What is settled is judged twice: by the planner on the true facts, read without any weather, which must have nothing left to do; and
//! from who holds what and what nodes are alone, by rules of its own: see `places`.

use std::collections::BTreeSet;
use std::sync::Arc;

use controller::addresses::index::Index;
use controller::addresses::watch::Seen;
use controller::kubernetes::decode::Change;
use drivers::http::HttpService;
use plan::{Address, Epoch, Fact, Holding, Plan, Provider, RecordFact, Scope, Timestamp, Verdict};
use serde::de::DeserializeOwned;
use serde_json::Value;
use testbed::fake::ledger::{Asked, Deed, Done, Ledger};

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

/// The most changes that a journalled move may cost, each of which was answered: off, the old machine's own address back, the new
/// one's off, on, and that back again.
const CHANGES_PER_MOVE_MAX: usize = 5;

/// The most moves that an event may cost, and those that the beginning and the end of a run may cost beside that.
const MOVES_PER_EVENT_MAX: usize = 4;
const MOVES_OTHERWISE_MAX: usize = 40;

/// The most changes that Kubernetes may be asked for: by events, by what arrives at clouds, and beside that.
const ASKED_PER_EVENT_MAX: usize = 20;
const ASKED_PER_CHANGE_MAX: usize = 10;
const ASKED_OTHERWISE_MAX: usize = 400;

/// The most reads a second, over the whole run, and as many more for each address that went to a machine.
const READS_PER_SECOND_MAX: f64 = 3.0;
const READS_PER_ATTACHMENT_MAX: f64 = 4.0;

/// The most reads of names a second, over the whole run.
const NAME_READS_PER_SECOND_MAX: f64 = 1.0;

/// What the mark of a pool begins with; the pool's UID follows.
const MARK: &str = "ip-address-controller-";

/// How much was written: what changed in Kubernetes, what it was asked to change, and what clouds were.
pub type Written = (usize, usize, usize);

/// How much was written so far.
pub fn written(universe: &Universe) -> Written {
    (universe.api.changes(), universe.asked(), universe.landed().len())
}

/// What was asked of each cloud that has addresses, and what it did.
fn ledgers(universe: &Universe) -> [Ledger; 4] {
    [universe.compute.ledger(), universe.ocean.ledger(), universe.azure.ledger(), universe.ec2.ledger()]
}

/// How many addresses went to a machine.
pub fn attached(universe: &Universe) -> usize {
    let count =
        |ledger: Ledger| ledger.done.iter().filter(|done| matches!(done.deed, Deed::Attached { .. })).count();
    ledgers(universe).into_iter().map(count).sum()
}

/// How many addresses of ours went from one machine to another, or came back to one: neither those that went to their first, nor those
/// that people moved.
pub fn failovers(universe: &Universe, cluster: &Cluster) -> usize {
    let of_cloud = |ledger: Ledger| {
        let mut seen = BTreeSet::new();
        let is_again = |done: &&Done| match &done.deed {
            Deed::Attached { address, .. } => !seen.insert(address.clone()),
            _ => false,
        };
        ledger.done.iter().filter(is_again).count()
    };
    let all: usize = ledgers(universe).into_iter().map(of_cloud).sum();
    all.saturating_sub(cluster.moved_by_people)
}

/// What was seen to be wrong in the moment in which it happened.
pub fn on_the_way(universe: &Universe) -> Vec<Violation> {
    let mut found = universe.untrue();
    for landed in universe.landed() {
        let (process, line) = (landed.process, landed.line);
        let told = |Violation { invariant, what }| Violation {
            invariant,
            what: format!("{what}: p{process} {line}"),
        };
        found.extend(landed.wrong.into_iter().map(told));
    }
    found
}

/// Everything that is wrong after so many events. `before` is what had been written when the run should have been settled.
pub async fn judge(
    universe: &Arc<Universe>,
    cluster: &Cluster,
    before: Written,
    events: usize,
) -> Vec<Violation> {
    let mut found = on_the_way(universe);
    let mut add = |invariant, what: String| found.push(Violation { invariant, what });
    for ledger in ledgers(universe) {
        // Nobody can keep a cloud that takes no conditions from carrying out what comes after D.
        let doubled = ledger.double_holders().into_iter().filter(|what| !universe.is_soon_after_d(what));
        doubled.for_each(|what| add("I1", what));
    }
    for (ip, vm) in &cluster.given_away {
        if universe.holder(ip).as_ref() != Some(vm) && !universe.is_raced(ip) {
            add("I1", format!("{ip} was taken from {vm}, which is not in the cluster"));
        }
    }
    stale_leaders(universe).into_iter().for_each(|what| add("I2", what));
    if written(universe) != before {
        add("I3", format!("{before:?} writes became {:?} though nothing happened", written(universe)));
    }
    created(universe, cluster).into_iter().for_each(|what| add("I4", what));
    own(universe, cluster).into_iter().for_each(|what| add("I9", what));
    stripped(universe).into_iter().for_each(|what| add("I9", what));
    names::judge(universe).into_iter().for_each(|what| add("I10", what));
    vips::checks::judge(universe).into_iter().for_each(|what| add("I11", what));
    let (index, plan) = truth(universe).await;
    if !plan.to_string().is_empty() {
        add("I3", format!("not settled, there is still to do: {plan}"));
    }
    for (key, verdicts) in &plan.verdicts {
        for (address, said) in verdicts {
            if matches!(
                said,
                Verdict::Unknown(_) | Verdict::Waits(_) | Verdict::Moving(_) | Verdict::Queued(_)
            ) {
                add("I3", format!("{address} of {key} {said}"));
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

/// What cost more than it may, after so many events.
fn costs(universe: &Universe, events: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut at_most = |count: usize, most: usize, of: &str| {
        if count > most {
            found.push(format!("{count} {of} where {most} would do"));
        }
    };
    let landed = universe.landed();
    let (moves, changes) = (moves(universe), landed.iter().filter(|landed| landed.is_known_move).count());
    at_most(moves, MOVES_OTHERWISE_MAX + events * MOVES_PER_EVENT_MAX, "moves");
    at_most(changes, moves * CHANGES_PER_MOVE_MAX, "answered changes of moves");
    let asked_most = ASKED_OTHERWISE_MAX + events * ASKED_PER_EVENT_MAX + landed.len() * ASKED_PER_CHANGE_MAX;
    at_most(universe.asked(), asked_most, "changes of Kubernetes");
    let is_read = |asked: &&Asked| asked.line.starts_with("GET") || asked.call.starts_with("Describe");
    let reads = |ledgers: &[Ledger]| -> usize {
        ledgers.iter().map(|ledger| ledger.asked.iter().filter(is_read).count()).sum()
    };
    let seconds = universe.elapsed().as_secs_f64();
    let reads_most = seconds * READS_PER_SECOND_MAX + attached(universe) as f64 * READS_PER_ATTACHMENT_MAX;
    at_most(reads(&ledgers(universe)), reads_most as usize, "reads of addresses");
    let names = [universe.zones.ledger(), universe.route53.ledger()];
    at_most(reads(&names), (seconds * NAME_READS_PER_SECOND_MAX) as usize, "reads of names");
    found
}

/// How many moves were journalled. One that another leader goes on with is another one.
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

/// What the drivers read to be on a machine must be there.
fn untrue_holders(universe: &Universe, index: &Index) -> Vec<String> {
    let wrong = |(address, fact): (&Address, &Fact)| {
        let Holding::By(vm) = &fact.holding else { return None };
        let holder = universe.holder(&address.to_string());
        let is_there = holder.as_ref().is_some_and(|holder| *holder == vm.to_string());
        (!is_there).then(|| format!("{address} is told to be on {vm}, and is on {holder:?}"))
    };
    let facts = index.world.pools().flat_map(|pool| index.world.facts_of(&pool.scope));
    facts.filter_map(wrong).collect()
}

/// Something must be said of every address, and nothing that passes. One whose status says that it is on a node must be on that node's
/// machine, one that is said to be on none must be on none, and as many must be counted.
fn statuses(universe: &Universe) -> Vec<String> {
    let mut found = Vec::new();
    for object in
        ["netipallocations", "floatingippools"].into_iter().flat_map(|plural| universe.api.all(plural))
    {
        if !object["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        let (name, status, mut attached) = (&object["metadata"]["name"], &object["status"], 0);
        let is_told = |ip: &String| {
            let mut told = status["addresses"].as_array().into_iter().flatten();
            told.any(|said| said["address"] == ip.as_str())
        };
        let listed = ["reservedIPs", "ips"].into_iter().flat_map(|list| texts(&object["spec"][list]));
        for untold in listed.filter(|ip| !is_told(ip)) {
            found.push(format!("the status of {name} says nothing of {untold}"));
        }
        for said in status["addresses"].as_array().into_iter().flatten() {
            let told = match said["state"].as_str() {
                Some("Attached") => {
                    attached += 1;
                    said["lastHolder"]["vm"].as_str().map(str::to_owned)
                }
                Some("Unattached" | "Missing") => None,
                Some("Foreign" | "Conflict" | "Disabled") => continue,
                _ => {
                    found.push(format!("the status of {name} still says {said}"));
                    continue;
                }
            };
            let holder = said["address"].as_str().and_then(|address| universe.holder(address));
            if told != holder {
                found.push(format!("the status of {name} says {said}, and the holder is {holder:?}"));
            }
        }
        if status["summary"]["attached"].as_u64().unwrap_or(0) != attached {
            found.push(format!(
                "the status of {name} counts {} where {attached} are attached",
                status["summary"]
            ));
        }
    }
    found
}

/// Every process leads once at the most, so the changes of one must follow each other.
fn stale_leaders(universe: &Universe) -> Vec<String> {
    let mut over = BTreeSet::new();
    let mut last = None;
    let mut found = Vec::new();
    for landed in universe.landed().into_iter().filter(|landed| !landed.is_overdue) {
        if last != Some(landed.process) {
            over.extend(last);
            last = Some(landed.process);
            if over.contains(&landed.process) {
                found.push(format!("p{} after another led: {}", landed.process, landed.line));
            }
        }
    }
    found
}

/// What was created must be listed, and nothing else must be gone.
fn created(universe: &Universe, cluster: &Cluster) -> Vec<String> {
    let account: BTreeSet<String> = universe.ocean.with(|ocean| ocean.reserved_ips()).into_iter().collect();
    let pools = universe.api.all("floatingippools");
    let listed: BTreeSet<String> = pools.iter().flat_map(|pool| texts(&pool["spec"]["ips"])).collect();
    let mut found = Vec::new();
    let has_pool = !pools.is_empty();
    for ip in account.difference(&cluster.foreign).filter(|ip| !listed.contains(*ip)) {
        if has_pool && !cluster.orphans.contains(ip) && !cluster.unlisted.contains(ip) {
            found.push(format!("{ip} was created and is nobody's"));
        }
    }
    let made = account.difference(&cluster.foreign).filter(|ip| !cluster.orphans.contains(*ip)).count();
    if made > cluster.lacked_most {
        let most = cluster.lacked_most;
        found.push(format!("{made} addresses were created for a pool that never lacked more than {most}"));
    }
    // Where tags can't be read, or a tool has taken some off the list, a person has the last word.
    for pool in pools.iter().filter(|_| cluster.tags && cluster.unlisted.is_empty()) {
        let (desired, listed) =
            (pool["spec"]["desiredIPs"].as_u64(), texts(&pool["spec"]["ips"]).count() as u64);
        if desired.is_some_and(|desired| listed < desired) {
            found.push(format!("{desired:?} addresses are desired, and {listed} are listed"));
        }
    }
    for done in universe.ocean.ledger().done {
        let Deed::Released { address, marks } = done.deed else { continue };
        let history = universe.api.history("floatingippools");
        let lists = |pool: &&Arc<Value>| texts(&pool["spec"]["ips"]).any(|ip| ip == address);
        let of_pool = |pool: &Value| pool["metadata"]["uid"].as_str().map(|uid| format!("{MARK}{uid}"));
        let is_marked = |pool: &&Arc<Value>| of_pool(pool).is_some_and(|mark| marks.contains(&mark));
        let asks = |pool: &Arc<Value>| pool["spec"]["policy"]["releaseCreated"] == "WhenUnneeded";
        let mut marked = history.iter().filter(lists).filter(is_marked).peekable();
        if marked.peek().is_none() {
            found.push(format!("{address} was released without the mark of a pool that lists it: {marks:?}"));
        } else if !marked.any(asks) {
            found.push(format!("{address} was released, and nobody asked for that"));
        }
    }
    // People list the first few themselves; what others created in the account is theirs.
    for ip in cluster.foreign.iter().filter(|ip| ip.starts_with("192.0.2.") && listed.contains(*ip)) {
        found.push(format!("{ip} was created by others and is listed"));
    }
    for ip in cluster.foreign.difference(&account) {
        found.push(format!("{ip} was released, and was not ours"));
    }
    found
}

/// What has an address of its own must have had one, and what had one must have one or one of ours.
fn own(universe: &Universe, cluster: &Cluster) -> Vec<String> {
    let wrong = |((zone, name), had): (&(&str, String), &bool)| {
        let (exists, has, holds) = match *zone {
            AWS_ZONE => {
                universe.ec2.with(|ec2| (ec2.exists(name), ec2.has_own(name), !ec2.held_by(name).is_empty()))
            }
            zone => universe.compute.with(|compute| {
                (compute.exists(zone, name), compute.has_own(zone, name), compute.has_address(zone, name))
            }),
        };
        match (had, has) {
            (true, false) if exists && !holds => {
                Some(format!("{name} has no address at all, and had one of its own"))
            }
            (false, true) => Some(format!("{name} was given an address of its own, and never had one")),
            _ => None,
        }
    };
    // Whoever stops listing an address forgets what its holder had.
    let held_forgotten = |(_, name): &&(&str, String)| {
        let ledgers = [universe.compute.ledger(), universe.ec2.ledger()];
        ledgers.iter().flat_map(|ledger| &ledger.done).any(|done| match &done.deed {
            Deed::Attached { address, vm } => {
                cluster.forgotten.contains(address) && vm.ends_with(&format!("/{name}"))
            }
            _ => false,
        })
    };
    // What takes an address off a machine takes off whichever it has then.
    let is_hit = |(_, name): &&(&str, String)| universe.came_too_late_to(name);
    let remembered =
        cluster.had_own.iter().filter(|(machine, _)| !held_forgotten(machine) && !is_hit(machine));
    remembered.filter_map(wrong).collect()
}

/// Machines whose own address a call removed though no journal ever said that they had one.
fn stripped(universe: &Universe) -> Vec<String> {
    let history = universe.api.history("netipallocations");
    let ends =
        history.iter().flat_map(|object| entries(object)).flat_map(|entry| [&entry["from"], &entry["to"]]);
    let journalled: BTreeSet<&str> =
        ends.filter(|end| end["hadEphemeral"] == true).filter_map(|end| end["vm"].as_str()).collect();
    let removed = universe.compute.ledger().done.into_iter().filter_map(|done| match done.deed {
        Deed::OwnRemoved { address, vm } => Some((done.at, address, vm)),
        _ => None,
    });
    // What comes after D removes whichever address is there by then.
    let is_late = |vm: &str| vm.rsplit('/').next().is_some_and(|name| universe.came_too_late_to(name));
    let unjournalled = removed.filter(|(.., vm)| !journalled.contains(vm.as_str()) && !is_late(vm));
    unjournalled
        .map(|(at, address, vm)| {
            format!("at {at:?} {vm} lost its own address {address}, and no journal tells of it")
        })
        .collect()
}

/// The truth, as the controller would see it in good weather, and what it would do.
async fn truth(universe: &Arc<Universe>) -> (Index, Plan) {
    let mut index = Index::default();
    index.see(Seen::Nodes(Change::All(read(universe.api.all("nodes")))));
    index.see(Seen::Pods(Change::All(read(universe.api.all("pods")))));
    index.see(Seen::Allocations(Change::All(read(universe.api.all("netipallocations")))));
    index.see(Seen::Pools(Change::All(read(universe.api.all("floatingippools")))));
    index.see(Seen::RecordSets(Change::All(read(universe.api.all("nodednsrecordsets")))));
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
        index.see_listing(&scope, listing, tick);
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

fn marks(index: &Index, plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    for (name, node) in &index.nodes {
        let holder = |kind: &str| plan.marks.holders.get(kind).and_then(|holders| holders.get(name));
        let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(api::IP_READY_LABEL));
        let wanted = holder("NetIPAllocation").map(|_| "true".to_owned());
        if label != wanted.as_ref() {
            found.push(format!("{name} has the label {label:?} instead of {wanted:?}"));
        }
        let labels = node.metadata.labels.iter().flatten().map(|(key, _)| key);
        let named: Vec<_> = labels.filter_map(|key| key.strip_prefix(api::ALLOCATION_LABEL_PREFIX)).collect();
        let wanted: Vec<_> = holder("NetIPAllocation").iter().map(|mark| &*mark.object).collect();
        if named != wanted {
            found.push(format!("{name} names the allocations {named:?} instead of {wanted:?}"));
        }
        let annotations = node.metadata.annotations.as_ref();
        let annotation = annotations.and_then(|all| all.get(api::RESERVED_IP_ANNOTATION));
        let wanted = holder("FloatingIPPool").map(|mark| mark.address.to_string());
        if annotation != wanted.as_ref() {
            found.push(format!("{name} has the annotation {annotation:?} instead of {wanted:?}"));
        }
    }
    found
}
