//! Checks of calls to the clouds that are possible only when a call arrives.
//!
//! In: every request of every process when it arrives, and whether its response reached the process. Out: the changes,
//! each with the invariants that it violated. A change violates
//!
//! ```text
//! I1  if it takes an address from a VM outside the cluster that had it when the process last read the cloud
//! I2  if a later change of the same subject by the same process has arrived before it
//!     if a cloud with preconditions executes it after D and after a later change of the same subject
//! I5  if it removes the label of a node that has held one of our addresses for a while
//! I6  if no journal entry with its leader's epoch covers it and the VM that it attaches an address to
//!     if the process has not read the cloud since that entry was written, or since the last failed try
//! I7  if it retries a failed change earlier than the shortest backoff
//! I8  if it takes an address from a healthy node, and no recent event is a reason for that
//!     if it displaces another address from its target VM, and no event has moved that one recently
//! ```
//!
//! Only the second rule of I2 applies to a change that arrives after D (`options::TAKEOVER`), because the sender can't
//! prevent the delay. The controller has to repair the effect. The checks at the end of the run verify that.

use drivers::http::is_read;
use http::Method;
use jiff::Timestamp;
use serde_json::Value;
use testbed::fake::pairs_of;

use crate::arrivals::{Arrived, Landed, Reading, Request, put_on};
use crate::clouds::{
    AWS_ZONE, Cloud, PROJECT, STRANGER, STRANGER_DROPLET, STRANGER_INSTANCE, azure_address, compute_address,
};
use crate::lock::lock;
use crate::names;
use crate::objects::entries;
use crate::options::{ADDRESSES, RETRY_SHORTEST, TIMER_INEXACTNESS};
use crate::universe::Universe;
use crate::violation::Violation;

impl Universe {
    /// Records a request that a process is about to send.
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

    /// Builds a path from the form parameters of an EC2 request, so that the checks can treat it like a REST call. The
    /// path contains addresses and instances instead of AWS's other IDs.
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
                // A call with an ended association detaches nothing, even if the address now has another holder.
                let holder = self.ec2.with(|ec2| ec2.holder_by(get("AssociationId"))).unwrap_or_default();
                format!("/ec2/addresses/{ip}/disassociate/{}", holder.rsplit('/').next().unwrap_or_default())
            }
            "ModifyNetworkInterfaceAttribute" => format!("/ec2/instances/{instance}/assign"),
            action => format!("/ec2/{action}"),
        }
    }

    /// Checks a request that has arrived at a cloud, before the cloud executes it.
    pub fn arrives(&self, request: Request) -> Arrived {
        let mut wrong = Vec::new();
        let at = self.now();
        if request.is_overdue {
            wrong.extend(self.comes_too_late(&request).filter(|_| request.cloud == Cloud::Azure));
        } else if request.is_change() && names::is_about(&request.path) {
            wrong.extend(names::wrong(self, &request.path, &request.body));
        // A project is not an address, and creating it twice has no effect.
        } else if request.is_change() && !request.path.ends_with("/v2/projects") {
            let mut add = |invariant, what: String| wrong.push(Violation { invariant, what });
            let (subject, process) = (request.subject(), request.process);
            let written = self.journalled_since(&request);
            if written.is_none() {
                add("I6", "no journal entry covers this change".into());
            }
            let seen = lock(&self.arrivals.seen);
            let failed =
                subject.as_ref().and_then(|subject| seen.failed.get(&(process, subject.clone())).copied());
            let read = request.read;
            if written.is_some() && written > read {
                add("I6", "the process has not read the cloud since the journal entry was written".into());
            }
            if failed.is_some() && failed > read {
                add("I6", "the process has not read the cloud since the last try".into());
            }
            if failed.is_some_and(|failed| at < failed + (RETRY_SHORTEST - TIMER_INEXACTNESS)) {
                add("I7", "retried before the shortest backoff".into());
            }
            let is_later = |landed: &&Landed| {
                let is_same = landed.process == process && landed.subject == subject;
                is_same && subject.is_some() && landed.number > request.number
            };
            if let Some(later) = seen.landed.iter().find(is_later) {
                add("I2", format!("arrived after a later change: {}", later.line));
            }
            drop(seen);
            if let Some(harm) = self.harm(&request) {
                add("I8", harm);
            }
            if let Some(given) = self.takes_from_a_stranger(&request) {
                match read.is_some_and(|read| read > given) {
                    true => add("I1", "took the address from a VM outside the cluster".into()),
                    false => lock(&self.arrivals.seen).raced.extend(request.subject()),
                }
            }
        }
        Arrived { request, at, wrong }
    }

    /// The violation by a change that arrives after D at a cloud with preconditions, if the cloud executes it.
    fn comes_too_late(&self, request: &Request) -> Option<Violation> {
        let subject = request.subject();
        // The precondition covers the interface only. A late attach is allowed if the interface is unchanged and no
        // other interface has the address.
        let is_held = subject.as_ref().is_some_and(|ip| self.holder(ip).is_some());
        let seen = lock(&self.arrivals.seen);
        let is_newer = |landed: &&Landed| {
            let is_about_it = landed.path == request.path || (is_held && landed.subject == subject);
            is_about_it && landed.is_done && landed.number > request.number
        };
        let newer = seen.landed.iter().find(is_newer)?;
        Some(Violation { invariant: "I2", what: format!("executed after D, and after {}", newer.line) })
    }

    /// Records the response of a cloud. `is_heard`: the process receives all of it. Returns a `Reading` if the response is
    /// a complete, successful listing.
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
            self.record_change("objects");
            if request.cloud != Cloud::Azure {
                let mut seen = lock(&self.arrivals.seen);
                seen.raced.extend(request.subject());
                let now = self.elapsed();
                seen.late.extend(request.subject().map(|subject| (now, subject, request.path.clone())));
            }
        }
        // A change that the cloud rejected has detached nothing.
        let is_harmless = |invariant| is_overdue || matches!(invariant, "I1" | "I8" | "I10");
        wrong.retain(|violation| is_done || !is_harmless(violation.invariant));
        let violations: String = wrong.iter().map(|violation| format!(" ({violation})")).collect();
        let late = if is_overdue { " after D" } else { "" };
        self.log(&format!("p{process} {line}{late}{violations}"));
        let (subject, is_known_move) = (request.subject(), request.moves_an_address() && is_done && is_heard);
        let mut seen = lock(&self.arrivals.seen);
        let key = (*process, subject.clone().unwrap_or_default());
        if is_done && is_heard {
            seen.failed.remove(&key);
        } else if !is_overdue {
            seen.failed.insert(key, self.now());
        }
        let (process, path, number) = (*process, path.clone(), *number);
        seen.has_violation |= !wrong.is_empty();
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

    /// Checks a change of a node.
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
            self.report_violation("I5", format!("node {name} lost its label although it holds {ip}"));
        }
    }

    /// When a journal entry began to cover a request; None if no entry covers it now. If the epoch of the request's
    /// sender is known, only entries with this epoch count.
    fn journalled_since(&self, request: &Request) -> Option<Timestamp> {
        let epoch = lock(&self.arrivals.seen).epochs.get(&format!("p{}", request.process)).copied();
        let covers = |object: &Value| {
            let is_own = |entry: &&Value| epoch.is_none() || entry["epoch"].as_i64() == epoch;
            entries(object).filter(is_own).any(|entry| request.is_told_by(entry))
        };
        let since = |plural| self.api.holds_since(plural, covers);
        ["netipallocations", "floatingippools"].into_iter().filter_map(since).min()
    }

    /// If a request takes an address from a VM outside the cluster, returns when a person moved the address there. At
    /// clouds other than DigitalOcean, returns `Timestamp::MIN`.
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
        let given = lock(&self.arrivals.seen).changed_at.get(&ip).copied().unwrap_or_default();
        is_held.then(|| self.now() - self.elapsed().saturating_sub(given))
    }

    /// Describes the harm if a change takes an address from a healthy node: one that is Ready, not cordoned, and has
    /// the pod that it needs. None if a recent event is a reason for the change.
    fn harm(&self, request: &Request) -> Option<String> {
        let parts: Vec<&str> = request.path.split('/').collect();
        let (ip, provider_id) = match parts.as_slice() {
            [.., "reserved_ips", ip, "actions"] => {
                let droplet = self.ocean.with(|ocean| ocean.holder(ip))?;
                ((*ip).to_owned(), format!("digitalocean://{droplet}"))
            }
            [.., zone, "instances", name, "deleteAccessConfig"] => {
                let vm = format!("{PROJECT}/{zone}/{name}");
                let ips = (0..ADDRESSES).map(compute_address);
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
                // The address stays on this interface.
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
                // AWS silently displaces an address that the VM has. The only valid reason is a move of that address.
                let held = self.ec2.with(|ec2| ec2.held_by(instance));
                if let Some(dropped) = held.into_iter().find(|held| held != ip) {
                    let is_quiet = self.is_quiet(&[dropped.as_str()]) && !self.is_raced(&dropped);
                    return is_quiet.then(|| format!("{dropped} was displaced from {instance}"));
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
        (is_well && has_pod && is_quiet && !is_its_own).then(|| format!("{ip} was on healthy node {name}"))
    }
}
