//! What was asked of a fake and what it did: the judge of every safety test.
//!
//! The ledger is written by the cloud's side only, so it can't repeat a caller's mistake. Times count from the fake's
//! first request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ::http::Request;
use bytes::Bytes;

/// Everything that happened, in order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Requests, answered or not.
    pub asked: Vec<Asked>,
    /// Changes.
    pub done: Vec<Done>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// When it came.
    pub at: Duration,
    /// Which of the API's calls it was.
    pub call: &'static str,
    /// Its method and path with query.
    pub line: String,
    /// The status of the answer, or 0 where none was sent.
    pub status: u16,
    /// Who asked, by the User-Agent header.
    pub caller: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// When it took effect.
    pub at: Duration,
    /// What changed.
    pub deed: Deed,
}

/// A change of the cloud's state, in words that are the same for every cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Deed {
    /// The cloud accepted an order to put an address on a machine; it may not be there yet.
    Told { address: String, vm: String },
    /// The order to put an address on a machine ended without effect.
    Failed { address: String, vm: String },
    /// The address is on the machine.
    Attached { address: String, vm: String },
    /// The address left the machine.
    Detached { address: String, vm: String },
    /// The address was created.
    Created { address: String },
    /// The address was given back. It carried these marks: the values of its tags or labels, or the name of its project.
    Released { address: String, marks: Vec<String> },
    /// A DNS record was set.
    RecordSet { name: String, value: String },
    /// A DNS record was removed.
    RecordRemoved { name: String, value: String },
    /// A caller took a machine's own, ephemeral address off it.
    OwnRemoved { address: String, vm: String },
    /// Anything else that changed, such as a label or an ephemeral address.
    Other(String),
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { address, vm } => write!(f, "{address} is ordered to {vm}"),
            Self::Failed { address, vm } => write!(f, "the order of {address} to {vm} failed"),
            Self::Attached { address, vm } => write!(f, "{address} is on {vm}"),
            Self::Detached { address, vm } => write!(f, "{address} has left {vm}"),
            Self::Created { address } => write!(f, "{address} was created"),
            Self::Released { address, .. } => write!(f, "{address} was given back"),
            Self::RecordSet { name, value } => write!(f, "{name} is {value}"),
            Self::RecordRemoved { name, value } => write!(f, "{name} is not {value} any more"),
            Self::OwnRemoved { address, vm } => write!(f, "ephemeral {address} was removed from {vm}"),
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

    /// Writes down a change.
    pub fn did(&mut self, at: Duration, deed: Deed) {
        self.done.push(Done { at, deed });
    }

    /// How often each call was made.
    pub fn calls(&self) -> BTreeMap<&'static str, usize> {
        let mut calls = BTreeMap::new();
        for asked in &self.asked {
            *calls.entry(asked.call).or_default() += 1;
        }
        calls
    }

    /// What a name in DNS held from when on, change by change.
    pub fn values_of(&self, name: &str) -> Vec<(Duration, BTreeSet<String>)> {
        let mut values: Vec<&str> = Vec::new();
        let mut states = Vec::new();
        for Done { at, deed } in &self.done {
            match deed {
                Deed::RecordSet { name: set, value } if set == name => values.push(value),
                Deed::RecordRemoved { name: removed, value } if removed == name => {
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

    /// Every moment at which two machines held one address, or were told to hold it at the same time. Empty is the only good
    /// answer. Being told counts: an order that the cloud has accepted may take effect at any time until it has ended.
    pub fn double_holders(&self) -> Vec<String> {
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        let mut orders: BTreeMap<&str, &str> = BTreeMap::new();
        let mut violations = Vec::new();
        for Done { at, deed } in &self.done {
            match deed {
                Deed::Told { address, vm } => {
                    if let Some(other) = orders.insert(address, vm).filter(|other| other != vm) {
                        violations.push(format!(
                            "at {at:?} {address} was told to {vm} while it was on its way to {other}"
                        ));
                    }
                }
                Deed::Failed { address, vm } if orders.get(address.as_str()) == Some(&vm.as_str()) => {
                    orders.remove(address.as_str());
                }
                Deed::Attached { address, vm } => {
                    orders.remove(address.as_str());
                    if let Some(other) = holders.insert(address, vm).filter(|other| other != vm) {
                        violations.push(format!("at {at:?} {address} went to {vm} while {other} held it"));
                    }
                }
                Deed::Detached { address, vm } if holders.get(address.as_str()) == Some(&vm.as_str()) => {
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

    fn violations(deeds: &[Deed]) -> usize {
        let mut ledger = Ledger::default();
        deeds.iter().for_each(|deed| ledger.did(Duration::ZERO, deed.clone()));
        ledger.double_holders().len()
    }

    #[test]
    fn the_judge_convicts_whoever_tells_or_gives_an_address_to_two_machines() {
        let (address, one, two) = ("203.0.113.7".to_owned(), "one".to_owned(), "two".to_owned());
        let told = |vm: &String| Deed::Told { address: address.clone(), vm: vm.clone() };
        let failed = |vm: &String| Deed::Failed { address: address.clone(), vm: vm.clone() };
        let attached = |vm: &String| Deed::Attached { address: address.clone(), vm: vm.clone() };
        let detached = |vm: &String| Deed::Detached { address: address.clone(), vm: vm.clone() };
        assert_eq!(violations(&[told(&one), attached(&one), detached(&one), told(&two), attached(&two)]), 0);
        assert_eq!(violations(&[told(&one), failed(&one), told(&two), attached(&two)]), 0);
        assert_eq!(violations(&[told(&one), told(&one), attached(&one)]), 0);
        assert_eq!(violations(&[told(&one), told(&two)]), 1, "told to two");
        assert_eq!(violations(&[attached(&one), attached(&two)]), 1, "held by two");
    }
}
