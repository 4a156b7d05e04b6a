//! Operations: accepted changes that take time.
//!
//! In: a change that passed the checks of its call. Out: its effect on the state and the ledger when it is due. Changes
//! take effect in the order of their due times. This module never checks whether a change is allowed.

use std::time::Duration;

use ::http::header;
use serde_json::Value;

use super::super::ledger::{CloudChange, Ledger};
use super::super::{Answer, Call};
use super::orders::{Operation, Order};
use super::problem::Problem;
use super::resources::Interface;
use super::subscription::Azure;

/// The host of the real API, for links in answers to requests without a `Host` header.
const HOST: &str = "management.azure.com";

impl Azure {
    /// Accepts a change and returns an answer with a link to its operation.
    pub(super) fn begin(&mut self, order: Order, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        let index = self.operations.len();
        let id = format!("00000000-0000-0000-0001-{index:012}");
        let ends = if call.overtakes { now } else { now + self.operation_time };
        let link = self.operation_link(call, &id);
        self.operations.push(Operation { id, order, fails_late: call.fails_late, outcome: None });
        self.pending.insert((ends, index));
        self.settle(now, ledger);
        let mut answer = Answer::json(200, Value::Null);
        answer.headers.push(("azure-asyncoperation", link));
        answer.headers.push(("retry-after", self.poll_seconds.to_string()));
        answer
    }

    /// Returns the URL of an operation.
    fn operation_link(&self, call: &Call, id: &str) -> String {
        let version = call.query.get("api-version").map_or("", String::as_str);
        format!(
            "https://{}/subscriptions/{}/providers/Microsoft.Network/locations/westeurope/operations/{id}?api-version={version}",
            host_of(call),
            self.subscription
        )
    }

    /// Carries out all operations that are due, the earliest first.
    pub(super) fn settle(&mut self, now: Duration, ledger: &mut Ledger) {
        for change in std::mem::take(&mut self.unwritten) {
            ledger.did(now, change);
        }
        while let Some((at, index)) = self.pending.first().copied().filter(|(at, _)| *at <= now) {
            self.pending.remove(&(at, index));
            let Operation { order, fails_late, .. } = self.operations[index].clone();
            let (changes, outcome) = match order {
                Order::Write { interface, before, vm, coming } => {
                    self.end_write(&interface, *before, &vm, coming, fails_late)
                }
                Order::Create { address } => self.end_creation(&address, fails_late),
                Order::Delete { address } => self.end_deletion(&address, fails_late),
            };
            changes.into_iter().for_each(|change| ledger.did(at, change));
            self.operations[index].outcome = Some(outcome);
        }
    }

    fn end_write(
        &mut self,
        key: &str,
        before: Interface,
        vm: &str,
        coming: Vec<String>,
        fails: bool,
    ) -> (Vec<CloudChange>, Result<(), Problem>) {
        let failed = |address: String| CloudChange::Failed { address, vm: vm.to_owned() };
        let etag = self.next_etag();
        let Some(interface) = self.interfaces.get_mut(key) else {
            // The interface was deleted meanwhile. The deletion already recorded its addresses as detached.
            return (coming.into_iter().map(failed).collect(), Err(Problem::internal()));
        };
        interface.etag = etag;
        if fails {
            interface.state = "Failed";
            if interface.leaving.is_empty() {
                // The interface still shows the requested configuration.
                let is_new = |public: &String| !before.has(public);
                interface
                    .missing
                    .extend(interface.publics().into_iter().filter(is_new).map(|id| id.to_lowercase()));
            } else {
                interface.body = before.body;
                interface.leaving.clear();
            }
            return (coming.into_iter().map(failed).collect(), Err(Problem::internal()));
        }
        interface.state = "Succeeded";
        let missing = std::mem::take(&mut interface.missing);
        let left =
            std::mem::take(&mut interface.leaving).into_keys().filter(|public| !missing.contains(public));
        let left: Vec<String> =
            left.collect::<Vec<_>>().iter().filter_map(|public| self.ip_of(public)).collect();
        let detached = left.into_iter().map(|address| CloudChange::Detached { address, vm: vm.to_owned() });
        let attached = coming.into_iter().map(|address| CloudChange::Attached { address, vm: vm.to_owned() });
        (detached.chain(attached).collect(), Ok(()))
    }

    fn end_creation(&mut self, key: &str, fails: bool) -> (Vec<CloudChange>, Result<(), Problem>) {
        let ip = self.next_ip();
        let Some(public) = self.addresses.get_mut(key) else {
            return (Vec::new(), Err(Problem::internal()));
        };
        if fails {
            public.state = "Failed";
            return (Vec::new(), Err(Problem::internal()));
        }
        public.state = "Succeeded";
        let is_new = public.ip.is_none();
        let address = public.ip.get_or_insert(ip).clone();
        (is_new.then_some(CloudChange::Created { address }).into_iter().collect(), Ok(()))
    }

    fn end_deletion(&mut self, key: &str, fails: bool) -> (Vec<CloudChange>, Result<(), Problem>) {
        if fails {
            if let Some(public) = self.addresses.get_mut(key) {
                public.state = "Succeeded";
            }
            return (Vec::new(), Err(Problem::internal()));
        }
        let released = self.addresses.remove(key).and_then(|public| {
            let tags = public.tags.as_object().into_iter().flatten();
            let marks = tags.filter_map(|(_, value)| value.as_str().map(ToOwned::to_owned)).collect();
            Some(CloudChange::Released { address: public.ip?, marks })
        });
        (released.into_iter().collect(), Ok(()))
    }
}

/// Returns the host that a request was sent to.
pub(super) fn host_of(call: &Call) -> &str {
    call.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or(HOST)
}
