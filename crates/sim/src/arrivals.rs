//! A record of the requests that arrived at the clouds and at Kubernetes, for the checks.
//!
//! In: every request of every process. Out: the subject of a request, and facts about earlier requests. It never checks
//! an invariant: `call_checks` does this during a run, and `judge` at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use crate::clouds::{Cloud, azure_address, azure_name};
use crate::options::ADDRESSES;
use crate::violation::Violation;

/// The record of a run.
#[derive(Default)]
pub struct Arrivals {
    pub(crate) seen: Mutex<Recorded>,
}

/// The recorded facts.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) sent: u64,
    pub(crate) landed: Vec<Landed>,
    /// When each process's last listing of addresses arrived at a cloud. Only listings whose response has reached the
    /// process count.
    pub(crate) read: BTreeMap<(u64, Cloud), Timestamp>,
    /// Processes whose last listing was forbidden (403), so that they read each VM separately.
    pub(crate) denied: BTreeSet<(u64, Cloud)>,
    /// When a process's last change of a subject failed, or its response was lost.
    pub(crate) failed: BTreeMap<(u64, String), Timestamp>,
    /// When an event last changed a node, an address, the objects or the pool's DNS name.
    pub(crate) changed_at: BTreeMap<String, Duration>,
    /// Addresses whose loss is not a violation. Either a VM outside the cluster got the address after the
    /// controller had last read the cloud. Or a change arrived later than `TAKEOVER` (D) at a cloud without
    /// preconditions.
    pub(crate) raced: BTreeSet<String>,
    /// Changes that arrived after D at clouds without preconditions: time, subject and path.
    pub(crate) late: Vec<(Duration, String, String)>,
    /// Number of write requests to Kubernetes, except those for leases.
    pub(crate) asked: usize,
    /// When a process last sent exactly this write to Kubernetes.
    pub(crate) repeated: BTreeMap<(u64, String), Duration>,
    /// The rules that writes to Kubernetes have violated.
    pub(crate) untrue: Vec<Violation>,
    /// Whether a check has failed so far.
    pub(crate) has_violation: bool,
    /// The epoch of each process that has led.
    pub(crate) epochs: BTreeMap<String, i64>,
}

/// A request to a cloud.
pub struct Request {
    /// The process that sent it.
    pub process: u64,
    /// The cloud that it is sent to.
    pub cloud: Cloud,
    /// The method; `GET` for every read, whatever the API's method is.
    pub method: Method,
    /// The path. For EC2, a path made from the form.
    pub path: String,
    /// The body.
    pub body: String,
    /// Whether it arrives after D.
    pub is_overdue: bool,
    pub(crate) number: u64,
    /// Arrival time of the latest listing whose response the sender had received.
    pub(crate) read: Option<Timestamp>,
}

/// A request that has arrived at a cloud, and the invariants that it violates.
pub struct Arrived {
    pub(crate) request: Request,
    pub(crate) at: Timestamp,
    pub(crate) wrong: Vec<Violation>,
}

/// A listing that the cloud has responded to.
pub struct Reading {
    pub(crate) who: (u64, Cloud),
    pub(crate) at: Timestamp,
}

/// A change that a cloud has executed or rejected.
#[derive(Clone, Debug)]
pub struct Landed {
    /// The process that sent it.
    pub process: u64,
    /// Method, path, body and status code.
    pub line: String,
    /// The invariants that it violated.
    pub wrong: Vec<Violation>,
    /// Whether it arrived after D.
    pub is_overdue: bool,
    /// Whether it attached or detached an address, and its sender received the response.
    pub is_known_move: bool,
    pub(crate) path: String,
    pub(crate) is_done: bool,
    pub(crate) number: u64,
    pub(crate) subject: Option<String>,
}

impl Request {
    pub(crate) fn is_change(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether it attaches or detaches an address.
    pub fn moves_an_address(&self) -> bool {
        let parts = ["/actions", "AccessConfig", "/networkInterfaces/", "/ec2/addresses/", "/ec2/instances/"];
        self.is_change() && parts.iter().any(|part| self.path.contains(part))
    }

    pub(crate) fn is_listing(&self) -> bool {
        let listings = ["/reserved_ips", "/addresses", "/publicIPAddresses"];
        !self.is_change() && listings.iter().any(|end| self.path.ends_with(end))
    }

    /// What the request changes: an address if it names one, otherwise its path. None for the creation of an address:
    /// the address has no name yet, and several creations may be in flight.
    pub(crate) fn subject(&self) -> Option<String> {
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

    /// The VM that the request attaches an address to, by its name at the cloud.
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

    /// Whether a journal entry covers the request. An attach must match the entry's address and target VM. Any other
    /// change must match the entry's address or one of its VMs, and a creation the kind `Create`.
    pub(crate) fn is_told_by(&self, entry: &Value) -> bool {
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

/// The address that the body of a request to Azure attaches to an interface.
pub(crate) fn put_on(body: &Value) -> Option<String> {
    let configurations = body["properties"]["ipConfigurations"].as_array()?;
    let mut ids =
        configurations.iter().filter_map(|found| found["properties"]["publicIPAddress"]["id"].as_str());
    let id = ids.next()?;
    (0..ADDRESSES).find(|number| id.ends_with(&azure_name(*number))).map(azure_address)
}
