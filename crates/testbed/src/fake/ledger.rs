//! What was asked of a fake and what it did: the judge of every safety test.
//!
//! The ledger is written by the cloud's side only, so it can't repeat a caller's mistake. Times count from the fake's
//! first request.

use std::collections::BTreeMap;
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
    /// The address is on the machine.
    Attached { address: String, vm: String },
    /// The address left the machine.
    Detached { address: String, vm: String },
    /// The address was created.
    Created { address: String },
    /// The address was given back.
    Released { address: String },
    /// A DNS record was set.
    RecordSet { name: String, value: String },
    /// A DNS record was removed.
    RecordRemoved { name: String, value: String },
    /// Anything else that changed, such as a label or an ephemeral address.
    Other(String),
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

    /// Every moment at which two machines held one address, or an address was attached to a machine while another still
    /// held it. Empty is the only good answer.
    pub fn double_holders(&self) -> Vec<String> {
        let mut holders: BTreeMap<&str, &str> = BTreeMap::new();
        let mut violations = Vec::new();
        for done in &self.done {
            match &done.deed {
                Deed::Attached { address, vm } => {
                    if let Some(other) = holders.insert(address, vm).filter(|other| other != vm) {
                        violations
                            .push(format!("at {:?} {address} went to {vm} while {other} held it", done.at));
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
