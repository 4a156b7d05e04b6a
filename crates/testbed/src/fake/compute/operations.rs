//! Operations: accepted changes that take time.
//!
//! In: a change that passed the checks of its call. Out: its effect on the state and the ledger when it is due, or an
//! error in the operation if the state no longer allows the change. Changes take effect in the order of their due
//! times, which can differ from the order in which they were requested. This module never answers a request that failed
//! its checks.

use std::time::Duration;

use serde_json::Value;

use super::super::Call;
use super::super::ledger::{CloudChange, Ledger};
use super::orders::{Operation, Order};
use super::problem::Failure;
use super::project::Compute;
use super::resources::{Access, Address, path};

impl Compute {
    /// Accepts a change and returns its operation.
    pub(super) fn begin(
        &mut self,
        order: Order,
        target_id: u64,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Value {
        let id = self.next_id();
        let (location, collection, name) = order.target();
        let place = order.place();
        let factor = 1 + self.operations.len() as u32 % self.operation_times;
        let ends = if call.overtakes { now } else { now + self.operation_time * factor };
        let operation = Operation {
            id,
            place,
            location: location.to_owned(),
            kind: order.kind(),
            target: path(&self.project, place.plural(), location, collection, name),
            target_id,
            order,
            begins: now,
            ends,
            fails_late: call.fails_late,
            outcome: None,
        };
        let index = self.operations.len();
        self.operations.push(operation);
        self.pending.insert((ends, index));
        if let Some(request) = call.query.get("requestId") {
            self.requests.insert(request.clone(), index);
        }
        self.settle(now, ledger);
        self.operations[index].to_json(&self.project, now)
    }

    /// Makes all accepted operations due now, and later ones as soon as they are accepted.
    pub fn stop_delaying(&mut self) {
        self.operation_time = Duration::ZERO;
        for (_, index) in std::mem::take(&mut self.pending) {
            let operation = &mut self.operations[index];
            operation.ends = operation.begins;
            self.pending.insert((operation.ends, index));
        }
    }

    /// Carries out all operations that are due, the earliest first.
    pub(super) fn settle(&mut self, now: Duration, ledger: &mut Ledger) {
        for change in std::mem::take(&mut self.unwritten) {
            ledger.did(now, change);
        }
        while let Some((at, index)) = self.pending.first().copied().filter(|(at, _)| *at <= now) {
            self.pending.remove(&(at, index));
            let Operation { order, target_id, fails_late, .. } = self.operations[index].clone();
            let if_failed = match &order {
                Order::Attach { instance: (zone, name), ip: Some(ip), .. } => Some(CloudChange::Failed {
                    address: ip.clone(),
                    vm: format!("{}/{zone}/{name}", self.project),
                }),
                _ => None,
            };
            let outcome =
                if fails_late { Err(Failure::internal()) } else { self.carry_out(order, target_id) };
            match &outcome {
                Ok(changes) => changes.iter().for_each(|change| ledger.did(at, change.clone())),
                Err(_) => if_failed.into_iter().for_each(|failed| ledger.did(at, failed)),
            }
            let outcome = outcome.map(drop);
            self.operations[index].outcome = Some(outcome);
        }
    }

    fn carry_out(&mut self, order: Order, target_id: u64) -> Result<Vec<CloudChange>, Failure> {
        match order {
            Order::Attach { instance, interface, config, tier, ip, ptr } => {
                let access = Access { name: config, tier, ip, ptr };
                self.carry_out_attach(&instance, target_id, interface, access)
            }
            Order::Detach { instance, interface, config } => {
                self.carry_out_detach(&instance, target_id, interface, &config)
            }
            Order::Reserve(address) => {
                let key = (address.region.clone(), address.name.clone());
                if self.addresses.contains_key(&key) {
                    return Err(Failure::already_exists(&address.path(&self.project)));
                }
                let change = CloudChange::Created { address: address.ip.clone() };
                self.addresses.insert(key, *address);
                Ok(vec![change])
            }
            Order::Release { address: key } => {
                let address = self.same_address(&key, target_id)?;
                if let Some(holder) = self.holders().get(address.ip.as_str()) {
                    let (path, user) = (address.path(&self.project), holder.path(&self.project));
                    return Err(Failure::resource_in_use(&path, &user));
                }
                let marks = address.labels.values().cloned().collect();
                let change = CloudChange::Released { address: address.ip.clone(), marks };
                self.addresses.remove(&key);
                Ok(vec![change])
            }
            Order::Label { address: key, labels, fingerprint } => {
                let address = self.same_address(&key, target_id)?;
                if address.label_fingerprint() != fingerprint {
                    return Err(Failure::stale_labels());
                }
                let change = CloudChange::Other(format!("set labels of {} to {labels:?}", address.ip));
                if let Some(address) = self.addresses.get_mut(&key) {
                    address.labels = labels;
                }
                Ok(vec![change])
            }
        }
    }

    fn carry_out_attach(
        &mut self,
        key: &(String, String),
        id: u64,
        interface: usize,
        access: Access,
    ) -> Result<Vec<CloudChange>, Failure> {
        self.check_same_instance(key, id)?;
        if self.access(key, interface).is_some() {
            return Err(Failure::second_access_config());
        }
        if let Some(ip) = &access.ip {
            if !self.is_reserved(ip) {
                return Err(Failure::not_found(ip));
            }
            if self.holders().contains_key(ip.as_str()) {
                return Err(Failure::address_in_use(ip));
            }
        }
        let ip = access.ip.clone().unwrap_or_else(|| self.next_ephemeral());
        Ok(self.put_on(key, interface, Access { ip: Some(ip), ..access }).into_iter().collect())
    }

    /// Deletes an access config. If there is none with that name the operation succeeds without effect, as observed
    /// with the real API.
    fn carry_out_detach(
        &mut self,
        key: &(String, String),
        id: u64,
        interface: usize,
        config: &str,
    ) -> Result<Vec<CloudChange>, Failure> {
        self.check_same_instance(key, id)?;
        let Some(access) = self.access(key, interface).filter(|access| access.name == config) else {
            return Ok(Vec::new());
        };
        let own = access.ip.clone().filter(|ip| !self.is_reserved(ip));
        let left = self.take_off(key, interface);
        // The ledger distinguishes this from a removal by a person or by the deletion of the VM.
        let asked = own.map(|ip| CloudChange::EphemeralRemoved {
            address: ip,
            vm: format!("{}/{}/{}", self.project, key.0, key.1),
        });
        Ok(asked.or(left).into_iter().collect())
    }

    pub(super) fn access(&self, key: &(String, String), interface: usize) -> Option<&Access> {
        self.instances.get(key)?.interfaces.get(interface)?.as_ref()
    }

    /// Checks that the instance still has the same ID. A VM that was recreated with the same name is a different VM.
    fn check_same_instance(&self, key: &(String, String), id: u64) -> Result<(), Failure> {
        let instance = self.instances.get(key).filter(|instance| instance.id == id);
        let path = path(&self.project, "zones", &key.0, "instances", &key.1);
        instance.map(|_| ()).ok_or_else(|| Failure::not_found(&path))
    }

    fn same_address(&self, key: &(String, String), id: u64) -> Result<&Address, Failure> {
        let address = self.addresses.get(key).filter(|address| address.id == id);
        let path = path(&self.project, "regions", &key.0, "addresses", &key.1);
        address.ok_or_else(|| Failure::not_found(&path))
    }
}
