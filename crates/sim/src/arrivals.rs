//! What arrived at the clouds and at Kubernetes, as far as judges need to know.
//!
//! In: every request of every process. Out: what a request is about, and what is remembered of those before it. It never judges:
//! that is done in `call_checks` while a run goes on, and in `judge` at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use crate::clouds::{Cloud, azure_address, azure_name};
use crate::options::ADDRESSES;
use crate::violation::Violation;

/// Everything that arrived.
#[derive(Default)]
pub struct Arrivals {
    pub(crate) seen: Mutex<Seen>,
}

/// What is known of it.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) sent: u64,
    pub(crate) landed: Vec<Landed>,
    /// When the last listing of addresses arrived whose answer has reached its process.
    pub(crate) read: BTreeMap<(u64, Cloud), Timestamp>,
    /// Who was last told that it may not list, and so reads machine by machine.
    pub(crate) denied: BTreeSet<(u64, Cloud)>,
    /// When the last change about something arrived, where it failed or its answer was lost.
    pub(crate) failed: BTreeMap<(u64, String), Timestamp>,
    /// When people or fate last changed something.
    pub(crate) disturbed: BTreeMap<String, Duration>,
    /// Addresses that were taken from a machine outside of the cluster, and nobody could know that they were there.
    pub(crate) raced: BTreeSet<String>,
    /// Changes that came after D to clouds that take no conditions: when, what they were about, and their paths.
    pub(crate) late: Vec<(Duration, String, String)>,
    /// How many changes Kubernetes was asked for, of leases apart.
    pub(crate) asked: usize,
    /// When a change of Kubernetes, word for word, was last sent by a process.
    pub(crate) repeated: BTreeMap<(u64, String), Duration>,
    /// What was written into Kubernetes that is not so.
    pub(crate) untrue: Vec<Violation>,
    /// Whether anything was wrong so far.
    pub(crate) is_condemned: bool,
    /// The epoch that each process led in.
    pub(crate) epochs: BTreeMap<String, i64>,
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
    pub(crate) number: u64,
    /// When the last listing arrived whose answer the sender had.
    pub(crate) read: Option<Timestamp>,
}

/// A request that has arrived, and what was wrong with that.
pub struct Arrived {
    pub(crate) request: Request,
    pub(crate) at: Timestamp,
    pub(crate) wrong: Vec<Violation>,
}

/// A listing that was answered.
pub struct Reading {
    pub(crate) who: (u64, Cloud),
    pub(crate) at: Timestamp,
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
    pub(crate) path: String,
    pub(crate) is_done: bool,
    pub(crate) number: u64,
    pub(crate) subject: Option<String>,
}

impl Request {
    /// Whether it changes something.
    pub(crate) fn is_change(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether it puts an address on a machine or takes one off.
    pub fn moves_an_address(&self) -> bool {
        let parts = ["/actions", "AccessConfig", "/networkInterfaces/", "/ec2/addresses/", "/ec2/instances/"];
        self.is_change() && parts.iter().any(|part| self.path.contains(part))
    }

    pub(crate) fn is_listing(&self) -> bool {
        let listings = ["/reserved_ips", "/addresses", "/publicIPAddresses"];
        !self.is_change() && listings.iter().any(|end| self.path.ends_with(end))
    }

    /// What it is about: an address, or else what its path names. New addresses have no name yet, and several are asked
    /// for at the same time.
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

/// The address of Azure's that the body of an interface puts on it.
pub(crate) fn put_on(body: &Value) -> Option<String> {
    let configurations = body["properties"]["ipConfigurations"].as_array()?;
    let mut ids =
        configurations.iter().filter_map(|found| found["properties"]["publicIPAddress"]["id"].as_str());
    let id = ids.next()?;
    (0..ADDRESSES).find(|number| id.ends_with(&azure_name(*number))).map(azure_address)
}
