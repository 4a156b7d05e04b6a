//! What arrives at the clouds, and what can be judged only in that moment.
//!
//! In: every request of every process, as it arrives, and whether its answer came back. Out: the changes, each with what was
//! wrong about it. A change is wrong
//!
//! ```text
//! I1  if it takes an address from a machine outside of the cluster that had it when the cloud was last read
//! I2  if a later one of the same process about the same thing has arrived before it
//!     if it comes after D to a cloud that takes conditions, is carried out, and a later one about the same thing was before it
//! I5  if it takes the label from a node that has held an address of ours for a while
//! I6  if no journal entry of its leader's own epoch tells of it, and of the machine that it gives an address to
//!     if the cloud was not read since that entry was written, or since the one before it failed or had no answer
//! I7  if it repeats one that failed sooner than the shortest pause
//! I8  if it takes an address from where it is well, and nobody has changed anything lately that could be a reason
//!     if it drops another address from the machine it gives one to, and nobody has moved that lately
//! ```
//!
//! Nothing else is held against a change that comes after D: nobody who sends one can know. What it did has to be mended, which is
//! what the end of the run is judged for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use drivers::http::is_read;
use http::Method;
use jiff::Timestamp;
use serde_json::Value;
use testbed::fake::pairs_of;

use crate::cluster::{
    AWS_ZONE, STRANGER, STRANGER_DROPLET, STRANGER_INSTANCE, azure_address, azure_name, entries,
};
use crate::judge::Violation;
use crate::names;
use crate::run::RETRY_SHORTEST;
use crate::script::{ADDRESSES, Cloud};
use crate::universe::{PROJECT, Universe, lock};

/// How long after a change of something nobody wonders at what is done with it.
const QUIET: Duration = Duration::from_secs(60);

/// How long what a change after D has done may go on. Clouds count time from their first request on, which is a little later.
const MENDED_WITHIN: Duration = Duration::from_secs(120);

/// Timers of a process are not exact.
const INEXACTNESS: Duration = Duration::from_millis(100);

/// Everything that arrived.
#[derive(Default)]
pub struct Arrivals {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    sent: u64,
    landed: Vec<Landed>,
    /// When the last listing of addresses arrived whose answer has reached its process.
    read: BTreeMap<(u64, Cloud), Timestamp>,
    /// Who was last told that it may not list, and so reads machine by machine.
    denied: BTreeSet<(u64, Cloud)>,
    /// When the last change about something arrived, where it failed or its answer was lost.
    failed: BTreeMap<(u64, String), Timestamp>,
    /// When people or fate last changed something.
    disturbed: BTreeMap<String, Duration>,
    /// Addresses that were taken from a machine outside of the cluster, and nobody could know that they were there.
    raced: BTreeSet<String>,
    /// Changes that came after D to clouds that take no conditions: when, what they were about, and their paths.
    late: Vec<(Duration, String, String)>,
    /// How many changes Kubernetes was asked for, of leases apart.
    asked: usize,
    /// When a change of Kubernetes, word for word, was last sent by a process.
    repeated: BTreeMap<(u64, String), Duration>,
    /// What was written into Kubernetes that is not so.
    untrue: Vec<Violation>,
    /// Whether anything was wrong so far.
    is_condemned: bool,
    /// The epoch that each process led in.
    epochs: BTreeMap<String, i64>,
}

/// A request on its way to a cloud.
pub struct Request {
    /// Who sent it.
    pub process: u64,
    /// To which cloud.
    pub cloud: Cloud,
    /// What it is.
    pub method: Method,
    /// Where to.
    pub path: String,
    /// What it says.
    pub body: String,
    /// Whether it arrives after D.
    pub is_overdue: bool,
    number: u64,
    /// When the last listing arrived whose answer the sender had.
    read: Option<Timestamp>,
}

/// A request that has arrived, and what was wrong with that.
pub struct Arrived {
    request: Request,
    at: Timestamp,
    wrong: Vec<Violation>,
}

/// A listing that was answered.
pub struct Reading {
    who: (u64, Cloud),
    at: Timestamp,
}

/// A change that a cloud has carried out or refused.
#[derive(Clone, Debug)]
pub struct Landed {
    /// Which process sent it.
    pub process: u64,
    /// What it was.
    pub line: String,
    /// What was wrong with it.
    pub wrong: Vec<Violation>,
    /// Whether it arrived after D.
    pub is_overdue: bool,
    /// Whether it put an address on a machine or took one off, and its sender heard of it.
    pub is_known_move: bool,
    path: String,
    is_done: bool,
    number: u64,
    subject: Option<String>,
}

impl Request {
    /// Whether it changes something.
    fn is_change(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether it puts an address on a machine or takes one off.
    pub fn moves_an_address(&self) -> bool {
        let parts = ["/actions", "AccessConfig", "/networkInterfaces/", "/ec2/addresses/", "/ec2/instances/"];
        self.is_change() && parts.iter().any(|part| self.path.contains(part))
    }

    fn is_listing(&self) -> bool {
        let listings = ["/reserved_ips", "/addresses", "/publicIPAddresses"];
        !self.is_change() && listings.iter().any(|end| self.path.ends_with(end))
    }

    /// What it is about: an address, or else what its path names. New addresses have no name yet, and several are asked
    /// for at the same time.
    fn subject(&self) -> Option<String> {
        if self.path.ends_with("/reserved_ips") {
            return None;
        }
        let of_body = serde_json::from_str::<Value>(&self.body).ok();
        let of_body =
            of_body.and_then(|body| body["natIP"].as_str().map(ToOwned::to_owned).or_else(|| put_on(&body)));
        let parts = ["/reserved_ips/", "/ec2/addresses/"];
        let of_path = parts.iter().find_map(|part| self.path.split_once(part)?.1.split('/').next());
        of_body.or_else(|| of_path.map(ToOwned::to_owned)).or_else(|| Some(self.path.clone()))
    }

    /// The machine that it puts an address of ours on, as its cloud calls it.
    fn target(&self) -> Option<String> {
        let body = serde_json::from_str::<Value>(&self.body).unwrap_or_default();
        match self.path.split('/').collect::<Vec<_>>().as_slice() {
            [.., "reserved_ips", _, "actions"] => Some(body["droplet_id"].as_u64()?.to_string()),
            [.., "instances", name, "addAccessConfig"] if body["natIP"].is_string() => {
                Some((*name).to_owned())
            }
            [.., "networkInterfaces", interface] if put_on(&body).is_some() => {
                Some(interface.trim_end_matches("-nic").to_owned())
            }
            [.., "ec2", "addresses", _, "associate", instance] => Some((*instance).to_owned()),
            _ => None,
        }
    }

    /// Whether a journal entry tells of it: of the address and of where it goes, or else of either.
    fn is_told_by(&self, entry: &Value) -> bool {
        if let Some(target) = self.target() {
            let is_there =
                entry["to"]["vm"].as_str().is_some_and(|vm| vm.rsplit('/').next() == Some(&target));
            return is_there && self.subject().is_some_and(|subject| entry["address"] == subject.as_str());
        }
        let is_creation = entry["kind"] == "Create" && self.path.ends_with("/v2/reserved_ips");
        let machine = |end: &str| {
            let vm = entry[end]["vm"].as_str().and_then(|vm| vm.rsplit_once('/'));
            vm.is_some_and(|(_, name)| {
                let is_instance = self.path.contains(&format!("/instances/{name}/"));
                is_instance || self.path.ends_with(&format!("/networkInterfaces/{name}-nic"))
            })
        };
        let is_named = self.subject().is_some_and(|subject| entry["address"] == subject.as_str());
        is_creation || is_named || machine("from") || machine("to")
    }
}

/// The address of Azure's that the body of an interface puts on it.
fn put_on(body: &Value) -> Option<String> {
    let configurations = body["properties"]["ipConfigurations"].as_array()?;
    let mut ids =
        configurations.iter().filter_map(|found| found["properties"]["publicIPAddress"]["id"].as_str());
    let id = ids.next()?;
    (0..ADDRESSES).find(|number| id.ends_with(&azure_name(*number))).map(azure_address)
}

impl Universe {
    /// A request is about to be sent.
    pub fn sends(&self, process: u64, cloud: Cloud, request: &http::Request<bytes::Bytes>) -> Request {
        let path = match cloud {
            Cloud::Aws => self.path_at_ec2(request),
            _ => request.uri().path().to_owned(),
        };
        let mut seen = lock(&self.arrivals.seen);
        seen.sent += 1;
        Request {
            read: seen.read.get(&(process, cloud)).copied(),
            process,
            cloud,
            method: if is_read(request) { Method::GET } else { request.method().clone() },
            path,
            body: String::from_utf8_lossy(request.body()).into_owned(),
            is_overdue: false,
            number: seen.sent,
        }
    }

    /// What a request to EC2 is about, as a path: there it is in a form, under names that Amazon has given.
    fn path_at_ec2(&self, request: &http::Request<bytes::Bytes>) -> String {
        let form = pairs_of(&String::from_utf8_lossy(request.body()));
        let get = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let address = |id: &str| self.ec2.with(|ec2| ec2.address_of(id)).unwrap_or_default();
        let instance = self.ec2.with(|ec2| ec2.instance_of(get("NetworkInterfaceId"))).unwrap_or_default();
        match get("Action") {
            "DescribeAddresses" if form.keys().all(|name| !name.starts_with("Filter")) => {
                "/ec2/addresses".into()
            }
            "AssociateAddress" => {
                format!("/ec2/addresses/{}/associate/{instance}", address(get("AllocationId")))
            }
            "DisassociateAddress" => {
                let ip = address(get("AssociationId"));
                // One that is over takes the address from nobody, whoever has it now.
                let holder = self.ec2.with(|ec2| ec2.holder_by(get("AssociationId"))).unwrap_or_default();
                format!("/ec2/addresses/{ip}/disassociate/{}", holder.rsplit('/').next().unwrap_or_default())
            }
            "ModifyNetworkInterfaceAttribute" => format!("/ec2/instances/{instance}/assign"),
            action => format!("/ec2/{action}"),
        }
    }

    /// A request has arrived, and has not been looked at by the cloud.
    pub fn arrives(&self, request: Request) -> Arrived {
        let mut wrong = Vec::new();
        let at = self.now();
        if request.is_overdue {
            wrong.extend(self.comes_too_late(&request).filter(|_| request.cloud == Cloud::Azure));
        } else if request.is_change() && names::is_about(&request.path) {
            wrong.extend(names::wrong(self, &request.path, &request.body));
        // A project is no address, and making one twice makes one.
        } else if request.is_change() && !request.path.ends_with("/v2/projects") {
            let mut add = |invariant, what: String| wrong.push(Violation { invariant, what });
            let (subject, process) = (request.subject(), request.process);
            let written = self.journalled_since(&request);
            if written.is_none() {
                add("I6", "in no journal".into());
            }
            let seen = lock(&self.arrivals.seen);
            let failed =
                subject.as_ref().and_then(|subject| seen.failed.get(&(process, subject.clone())).copied());
            let read = request.read;
            if written.is_some() && written > read {
                add("I6", "the cloud was not read since that was journalled".into());
            }
            if failed.is_some() && failed > read {
                add("I6", "the cloud was not read since the last try".into());
            }
            if failed.is_some_and(|failed| at < failed + (RETRY_SHORTEST - INEXACTNESS)) {
                add("I7", "tried again too soon".into());
            }
            let is_later = |landed: &&Landed| {
                let is_same = landed.process == process && landed.subject == subject;
                is_same && subject.is_some() && landed.number > request.number
            };
            if let Some(later) = seen.landed.iter().find(is_later) {
                add("I2", format!("overtaken by {}", later.line));
            }
            drop(seen);
            if let Some(harm) = self.harm(&request) {
                add("I8", harm);
            }
            if let Some(given) = self.takes_from_a_stranger(&request) {
                match read.is_some_and(|read| read > given) {
                    true => add("I1", "taken from a machine outside of the cluster".into()),
                    false => lock(&self.arrivals.seen).raced.extend(request.subject()),
                }
            }
        }
        Arrived { request, at, wrong }
    }

    /// The sender of a change hears that its connection has broken off.
    pub fn gives_up(&self, request: &Request) {
        let key = (request.process, request.subject().unwrap_or_default());
        lock(&self.arrivals.seen).failed.insert(key, self.now());
    }

    /// What is wrong with a change that comes after D to a cloud that takes conditions, if it is carried out.
    fn comes_too_late(&self, request: &Request) -> Option<Violation> {
        let subject = request.subject();
        // The condition is on the interface. An address that is on no other may come to one that nobody has changed since.
        let is_held = subject.as_ref().is_some_and(|ip| self.holder(ip).is_some());
        let seen = lock(&self.arrivals.seen);
        let is_newer = |landed: &&Landed| {
            let is_about_it = landed.path == request.path || (is_held && landed.subject == subject);
            is_about_it && landed.is_done && landed.number > request.number
        };
        let newer = seen.landed.iter().find(is_newer)?;
        Some(Violation { invariant: "I2", what: format!("after D, and after {}", newer.line) })
    }

    /// A cloud has answered a request; its process will hear the whole of it or not. Gives what it will then have read.
    pub fn answered(&self, arrived: Arrived, status: u16, is_heard: bool) -> Option<Reading> {
        let Arrived { request, at, mut wrong } = arrived;
        let is_done = (200..300).contains(&status);
        if !request.is_change() {
            let who = (request.process, request.cloud);
            let mut seen = lock(&self.arrivals.seen);
            if request.is_listing() && status == 403 {
                seen.denied.insert(who);
            } else if request.is_listing() && is_done {
                seen.denied.remove(&who);
            }
            let is_machine = request.path.contains("/instances/") && seen.denied.contains(&who);
            let is_read = (request.is_listing() || is_machine) && is_done && is_heard;
            return is_read.then_some(Reading { who, at });
        }
        let Request { process, method, path, body, number, .. } = &request;
        let line = format!("{method} {path} {body} -> {status}");
        let is_overdue = request.is_overdue;
        if is_overdue && is_done {
            self.disturb("objects");
            if request.cloud != Cloud::Azure {
                let mut seen = lock(&self.arrivals.seen);
                seen.raced.extend(request.subject());
                let now = self.elapsed();
                seen.late.extend(request.subject().map(|subject| (now, subject, request.path.clone())));
            }
        }
        // What the cloud refused has taken nothing from anybody.
        let is_harmless = |invariant| is_overdue || matches!(invariant, "I1" | "I8" | "I10");
        wrong.retain(|violation| is_done || !is_harmless(violation.invariant));
        let says: String = wrong.iter().map(|violation| format!(" ({violation})")).collect();
        let late = if is_overdue { " after D" } else { "" };
        self.tell(&format!("p{process} {line}{late}{says}"));
        let (subject, is_known_move) = (request.subject(), request.moves_an_address() && is_done && is_heard);
        let mut seen = lock(&self.arrivals.seen);
        let key = (*process, subject.clone().unwrap_or_default());
        if is_done && is_heard {
            seen.failed.remove(&key);
        } else if !is_overdue {
            seen.failed.insert(key, self.now());
        }
        let (process, path, number) = (*process, path.clone(), *number);
        seen.is_condemned |= !wrong.is_empty();
        seen.landed.push(Landed {
            process,
            line,
            wrong,
            is_overdue,
            is_known_move,
            path,
            is_done,
            number,
            subject,
        });
        None
    }

    /// The answer to a listing has reached its process.
    pub fn heard(&self, reading: &Reading) {
        let mut seen = lock(&self.arrivals.seen);
        let read = seen.read.entry(reading.who).or_insert(reading.at);
        // Answers may overtake each other.
        *read = reading.at.max(*read);
    }

    /// The lease was written: takes note of the epoch in which its holder leads.
    pub fn leased(&self) {
        for lease in self.api.all("leases") {
            let annotations = &lease["metadata"]["annotations"];
            let epoch =
                annotations[controller::lease::EPOCH_ANNOTATION].as_str().and_then(|text| text.parse().ok());
            if let (Some(holder), Some(epoch)) = (lease["spec"]["holderIdentity"].as_str(), epoch) {
                lock(&self.arrivals.seen).epochs.insert(holder.to_owned(), epoch);
            }
        }
    }

    /// A node was changed, and was like this before.
    pub fn marked(&self, before: &Value, after: &Value) {
        let label = |node: &Value| node["metadata"]["labels"][api::IP_READY_LABEL].clone();
        let (Some(name), Some(vm)) =
            (after["metadata"]["name"].as_str(), after["spec"]["providerID"].as_str())
        else {
            return;
        };
        if label(before) == label(after) || !label(after).is_null() {
            return;
        }
        let objects = self.api.all("netipallocations");
        let listed = objects.iter().filter_map(|object| object["spec"]["reservedIPs"].as_array()).flatten();
        let machine = drivers::machine_of(vm).map(|(_, machine)| machine);
        let holds = |ip: &&str| machine.is_some() && self.holder(ip).map(Into::into) == machine;
        let held = listed.filter_map(Value::as_str).find(holds);
        if let Some(ip) = held.filter(|ip| self.is_quiet(&[name, ip, "objects"])) {
            self.condemn("I5", format!("{name} lost its label though it holds {ip}"));
        }
    }

    /// Somebody asks Kubernetes for a change, whatever comes of it.
    pub fn asks_for_a_change(&self) {
        lock(&self.arrivals.seen).asked += 1;
    }

    /// How many changes Kubernetes was asked for so far, of leases apart.
    pub fn asked(&self) -> usize {
        lock(&self.arrivals.seen).asked
    }

    /// Whether what this tells of happened soon after a change of its address came after D to a cloud that takes no conditions.
    pub fn is_soon_after_d(&self, what: &str) -> bool {
        let at = what.split(' ').find_map(|word| word.strip_suffix('s')?.parse::<f64>().ok());
        let is_cause = |(late, subject, _): &(Duration, String, String)| {
            let is_soon = at.is_none_or(|at| (at - late.as_secs_f64()).abs() < MENDED_WITHIN.as_secs_f64());
            is_soon && what.contains(&format!(" {subject} "))
        };
        lock(&self.arrivals.seen).late.iter().any(is_cause)
    }

    /// Whether a change of a machine came so late.
    pub fn came_too_late_to(&self, machine: &str) -> bool {
        lock(&self.arrivals.seen).late.iter().any(|(.., path)| path.split('/').any(|part| part == machine))
    }

    /// Whether a change of Kubernetes that was sent then has, word for word, been sent by this process before, and less than the
    /// shortest pause apart. They may have arrived in any order.
    pub fn is_repeated(&self, process: u64, change: String, sent: Duration) -> bool {
        let before = lock(&self.arrivals.seen).repeated.insert((process, change), sent);
        before.is_some_and(|before| sent.abs_diff(before) + INEXACTNESS < RETRY_SHORTEST)
    }

    /// Something was written into Kubernetes just now that must not be.
    pub fn condemn(&self, invariant: &'static str, what: String) {
        self.tell(&what);
        let mut seen = lock(&self.arrivals.seen);
        seen.is_condemned = true;
        seen.untrue.push(Violation { invariant, what });
    }

    /// Whether anything was wrong so far that can be told before the end.
    pub fn is_condemned(&self) -> bool {
        lock(&self.arrivals.seen).is_condemned
    }

    /// What was written into Kubernetes in the course of the run that must not be.
    pub fn untrue(&self) -> Vec<Violation> {
        lock(&self.arrivals.seen).untrue.clone()
    }

    /// The changes that arrived.
    pub fn landed(&self) -> Vec<Landed> {
        lock(&self.arrivals.seen).landed.clone()
    }

    /// Since when some object's journal tells of a change, in the epoch of the leader that sent it.
    fn journalled_since(&self, request: &Request) -> Option<Timestamp> {
        let epoch = lock(&self.arrivals.seen).epochs.get(&format!("p{}", request.process)).copied();
        let tells = |object: &Value| {
            let is_own = |entry: &&Value| epoch.is_none() || entry["epoch"].as_i64() == epoch;
            entries(object).filter(is_own).any(|entry| request.is_told_by(entry))
        };
        let since = |plural| self.api.holds_since(plural, tells);
        ["netipallocations", "floatingippools"].into_iter().filter_map(since).min()
    }

    /// Somebody changed something just now.
    pub fn disturb(&self, what: &str) {
        lock(&self.arrivals.seen).disturbed.insert(what.to_owned(), self.elapsed());
        self.grace.is_over(what);
    }

    /// When somebody gave the address that a request takes to a machine outside of the cluster, if so.
    fn takes_from_a_stranger(&self, request: &Request) -> Option<Timestamp> {
        let of_stranger = [
            format!("/instances/{STRANGER}/"),
            format!("/networkInterfaces/{STRANGER}-nic"),
            format!("/disassociate/{STRANGER_INSTANCE}"),
        ];
        let is_of_stranger = |ip: &String| {
            let holder = self.ec2.with(|ec2| ec2.holder(ip)).unwrap_or_default();
            request.path.contains("/associate/") && holder.ends_with(&format!("/{STRANGER_INSTANCE}"))
        };
        if of_stranger.iter().any(|part| request.path.contains(part))
            || request.subject().as_ref().is_some_and(is_of_stranger)
        {
            return Some(Timestamp::MIN);
        }
        let ip = request.subject().filter(|_| request.cloud == Cloud::Ocean)?;
        let is_held = self.ocean.with(|ocean| ocean.holder(&ip)) == Some(STRANGER_DROPLET);
        let given = lock(&self.arrivals.seen).disturbed.get(&ip).copied().unwrap_or_default();
        is_held.then(|| self.now() - self.elapsed().saturating_sub(given))
    }

    /// A person has put an address where it is: what became of it before is over.
    pub fn begins_anew(&self, ip: &str) {
        lock(&self.arrivals.seen).raced.remove(ip);
    }

    /// Whether an address was taken from a machine outside of the cluster, and nobody could know that it was there.
    pub fn is_raced(&self, ip: &str) -> bool {
        lock(&self.arrivals.seen).raced.contains(ip)
    }

    /// How long ago somebody changed something.
    pub fn disturbed_for(&self, what: &str) -> Option<Duration> {
        let at = lock(&self.arrivals.seen).disturbed.get(what).copied()?;
        Some(self.elapsed().saturating_sub(at))
    }

    /// Whether nobody has changed any of these lately.
    pub fn is_quiet(&self, what: &[&str]) -> bool {
        let (seen, now) = (lock(&self.arrivals.seen), self.elapsed());
        what.iter().all(|what| seen.disturbed.get(*what).is_none_or(|at| *at + QUIET < now))
    }

    /// What a change takes away that is well: an address on a node that is Ready and has what it takes, where nobody has
    /// changed anything lately that could be a reason.
    fn harm(&self, request: &Request) -> Option<String> {
        let parts: Vec<&str> = request.path.split('/').collect();
        let (ip, provider_id) = match parts.as_slice() {
            [.., "reserved_ips", ip, "actions"] => {
                let droplet = self.ocean.with(|ocean| ocean.holder(ip))?;
                ((*ip).to_owned(), format!("digitalocean://{droplet}"))
            }
            [.., zone, "instances", name, "deleteAccessConfig"] => {
                let vm = format!("{PROJECT}/{zone}/{name}");
                let ips = (0..ADDRESSES).map(crate::cluster::compute_address);
                let ip = self.compute.with(|compute| {
                    ips.into_iter().find(|ip| compute.holder(ip).as_deref() == Some(vm.as_str()))
                })?;
                (ip, format!("gce://{vm}"))
            }
            [.., "networkInterfaces", interface] => {
                let machine = interface.trim_end_matches("-nic");
                let (vm, id) = self.azure.with(|azure| {
                    (azure.vm(machine), azure.id(&format!("Microsoft.Compute/virtualMachines/{machine}")))
                });
                let mut ips = (0..ADDRESSES).map(azure_address);
                let ip = ips.find(|ip| self.holder(ip).as_deref() == Some(vm.as_str()))?;
                // What stays where it is loses nothing.
                let stays = serde_json::from_str(&request.body).ok().and_then(|body| put_on(&body));
                if stays.as_ref() == Some(&ip) {
                    return None;
                }
                (ip, format!("azure://{id}"))
            }
            [.., "ec2", "addresses", ip, "disassociate", instance] => {
                ((*ip).to_owned(), format!("aws:///{AWS_ZONE}/{instance}"))
            }
            [.., "ec2", "addresses", ip, "associate", instance] => {
                // What the machine has is dropped without a word, which nothing but its own way there could be a reason for.
                let held = self.ec2.with(|ec2| ec2.held_by(instance));
                if let Some(dropped) = held.into_iter().find(|held| held != ip) {
                    let is_quiet = self.is_quiet(&[dropped.as_str()]) && !self.is_raced(&dropped);
                    return is_quiet.then(|| format!("{dropped} was dropped from {instance}"));
                }
                let holder = self.ec2.with(|ec2| ec2.holder(ip))?;
                let holder = holder.rsplit('/').next().filter(|holder| holder != instance)?;
                ((*ip).to_owned(), format!("aws:///{AWS_ZONE}/{holder}"))
            }
            _ => return None,
        };
        let nodes = self.api.all("nodes");
        let node = nodes.iter().find(|node| node["spec"]["providerID"] == provider_id.as_str())?;
        let name = node["metadata"]["name"].as_str()?;
        let is_well =
            node["status"]["conditions"][0]["status"] == "True" && node["spec"]["unschedulable"] != true;
        let has_pod = request.cloud != Cloud::Ocean
            || self.api.all("pods").iter().any(|pod| pod["spec"]["nodeName"] == name);
        let is_quiet = self.is_quiet(&[name, ip.as_str(), "objects"]);
        let machine = provider_id.rsplit('/').next().unwrap_or_default();
        let is_its_own = request.body.contains(&format!(":{machine}"));
        (is_well && has_pod && is_quiet && !is_its_own).then(|| format!("{ip} was well on {name}"))
    }
}
