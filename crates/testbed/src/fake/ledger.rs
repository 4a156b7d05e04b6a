//! The ledger records all requests to a fake and all changes in it, for safety tests.
//!
//! In: requests and changes. Only fakes write to the ledger, so a bug in the controller can't falsify it. Out: the
//! records, and the moments at which two VMs held the same address. The ledger never refuses or changes a request.
//! Times are relative to the fake's first request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ::http::Request;
use bytes::Bytes;

/// All requests and all changes, in order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// The requests, answered or not.
    pub asked: Vec<Asked>,
    /// The changes.
    pub done: Vec<Done>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// When the request arrived.
    pub at: Duration,
    /// The name of the API call.
    pub call: &'static str,
    /// The method and the path with the query.
    pub line: String,
    /// The status of the answer, or 0 if the fake sent none.
    pub status: u16,
    /// The caller's User-Agent header.
    pub caller: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// When it took effect.
    pub at: Duration,
    /// What changed.
    pub change: CloudChange,
}

/// A change in a fake cloud, in the same terms for every cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum CloudChange {
    /// The cloud accepted a request to attach the address to the VM. The address may not be attached yet.
    Accepted { address: String, vm: String },
    /// The accepted request to attach the address to the VM ended without effect.
    Failed { address: String, vm: String },
    /// The cloud attached the address to the VM.
    Attached { address: String, vm: String },
    /// The cloud detached the address from the VM.
    Detached { address: String, vm: String },
    /// The cloud created the address.
    Created { address: String },
    /// The cloud released the address. `marks` are the values of its tags or labels, or the name of its project.
    Released { address: String, marks: Vec<String> },
    /// The cloud set a DNS record.
    RecordSet { name: String, value: String },
    /// The cloud removed a DNS record.
    RecordRemoved { name: String, value: String },
    /// A caller removed the VM's ephemeral address.
    EphemeralRemoved { address: String, vm: String },
    /// Any other change, for example of a label or an ephemeral address.
    Other(String),
}

impl fmt::Display for CloudChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted { address, vm } => write!(f, "accepted: attach {address} to {vm}"),
            Self::Failed { address, vm } => write!(f, "failed: attach {address} to {vm}"),
            Self::Attached { address, vm } => write!(f, "attached {address} to {vm}"),
            Self::Detached { address, vm } => write!(f, "detached {address} from {vm}"),
            Self::Created { address } => write!(f, "created {address}"),
            Self::Released { address, .. } => write!(f, "released {address}"),
            Self::RecordSet { name, value } => write!(f, "set record {name} = {value}"),
            Self::RecordRemoved { name, value } => write!(f, "removed record {name} = {value}"),
            Self::EphemeralRemoved { address, vm } => write!(f, "removed ephemeral {address} from {vm}"),
            Self::Other(what) => write!(f, "{what}"),
        }
    }
}

impl Ledger {
    pub(crate) fn asked(&mut self, at: Duration, call: &'static str, request: &Request<Bytes>, status: u16) {
        let line = format!("{} {}", request.method(), request.uri());
        let header = request.headers().get(::http::header::USER_AGENT);
        let caller = header.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        self.asked.push(Asked { at, call, line, status, caller });
    }

    /// Records a change.
    pub fn did(&mut self, at: Duration, change: CloudChange) {
        self.done.push(Done { at, change });
    }

    /// Returns the number of requests per call.
    pub fn calls(&self) -> BTreeMap<&'static str, usize> {
        let mut calls = BTreeMap::new();
        for asked in &self.asked {
            *calls.entry(asked.call).or_default() += 1;
        }
        calls
    }

    /// Returns the values of a DNS name after each change, with the time of the change.
    pub fn values_of(&self, name: &str) -> Vec<(Duration, BTreeSet<String>)> {
        let mut values: Vec<&str> = Vec::new();
        let mut states = Vec::new();
        for Done { at, change } in &self.done {
            match change {
                CloudChange::RecordSet { name: set, value } if set == name => values.push(value),
                CloudChange::RecordRemoved { name: removed, value } if removed == name => {
                    if let Some(at) = values.iter().position(|known| known == value) {
                        values.remove(at);
                    }
                }
                _ => continue,
            }
            states.push((*at, values.iter().map(|value| (*value).to_owned()).collect()));
        }
        states
    }

    /// Returns a message for every moment at which two VMs held one address, or at which the cloud had accepted
    /// requests to attach one address to two VMs. A safety test requires an empty result. Accepted requests count
    /// because the cloud may carry one out at any time until it has ended.
    pub fn double_holders(&self) -> Vec<String> {
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        let mut orders: BTreeMap<&str, &str> = BTreeMap::new();
        let mut violations = Vec::new();
        for Done { at, change } in &self.done {
            match change {
                CloudChange::Accepted { address, vm } => {
                    if let Some(other) = orders.insert(address, vm).filter(|other| other != vm) {
                        violations.push(format!(
                            "at {at:?} attach {address} to {vm} overlaps with its attach to {other}"
                        ));
                    }
                }
                CloudChange::Failed { address, vm } if orders.get(address.as_str()) == Some(&vm.as_str()) => {
                    orders.remove(address.as_str());
                }
                CloudChange::Attached { address, vm } => {
                    orders.remove(address.as_str());
                    if let Some(other) = holders.insert(address, vm).filter(|other| other != vm) {
                        violations.push(format!("at {at:?} {vm} got {address} while {other} held it"));
                    }
                }
                CloudChange::Detached { address, vm }
                    if holders.get(address.as_str()) == Some(&vm.as_str()) =>
                {
                    holders.remove(address.as_str());
                }
                _ => {}
            }
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(changes: &[CloudChange]) -> usize {
        let mut ledger = Ledger::default();
        changes.iter().for_each(|change| ledger.did(Duration::ZERO, change.clone()));
        ledger.double_holders().len()
    }

    #[test]
    fn double_holders_reports_two_requests_and_two_holders() {
        let (address, one, two) = ("203.0.113.7".to_owned(), "one".to_owned(), "two".to_owned());
        let accepted = |vm: &String| CloudChange::Accepted { address: address.clone(), vm: vm.clone() };
        let failed = |vm: &String| CloudChange::Failed { address: address.clone(), vm: vm.clone() };
        let attached = |vm: &String| CloudChange::Attached { address: address.clone(), vm: vm.clone() };
        let detached = |vm: &String| CloudChange::Detached { address: address.clone(), vm: vm.clone() };
        assert_eq!(
            violations(&[accepted(&one), attached(&one), detached(&one), accepted(&two), attached(&two)]),
            0
        );
        assert_eq!(violations(&[accepted(&one), failed(&one), accepted(&two), attached(&two)]), 0);
        assert_eq!(violations(&[accepted(&one), accepted(&one), attached(&one)]), 0);
        assert_eq!(violations(&[accepted(&one), accepted(&two)]), 1, "two VMs with accepted requests");
        assert_eq!(violations(&[attached(&one), attached(&two)]), 1, "two holders");
    }
}
