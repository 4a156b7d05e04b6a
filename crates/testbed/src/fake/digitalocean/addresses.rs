//! Reserved addresses, and the actions that move them.
//!
//! In: requests to create, assign, unassign or release an address. Out: actions, which take effect or fail later. The
//! holder of an address changes only in [`DigitalOcean::finish_actions`], when an address is released, and by manual
//! changes. This module does not repeat the checks when an action is due. Without an injected fault, the action fails
//! only if its address or droplet no longer exists, or if the droplet holds another address.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::{CloudChange, Ledger};
use super::super::{Answer, Call};
use super::account::{Action, Address, DEFAULT_PROJECT_ID, DigitalOcean, Order, Status};
use super::answers::{Handled, moment, no_content, not_found, unprocessable};
use super::droplets::region_json;

/// The number of addresses in each documentation range.
const RANGE_SIZE: u32 = 254;
/// The documentation ranges, in the order in which the fake uses them.
const RANGES: [[u8; 3]; 3] = [[203, 0, 113], [198, 51, 100], [192, 0, 2]];
/// The benchmarking range, which the fake uses after the documentation ranges. It is not routed either.
const RANGE_OVERFLOW: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

impl Order {
    fn kind(self) -> &'static str {
        match self {
            Self::Assign(_) => "assign_ip",
            Self::Unassign(_) => "unassign_ip",
        }
    }
}

impl Status {
    fn text(self) -> &'static str {
        match self {
            Self::InProgress => "in-progress",
            Self::Completed => "completed",
            Self::Errored => "errored",
        }
    }
}

impl Action {
    fn is_pending(&self) -> bool {
        self.status == Status::InProgress
    }

    fn json(&self, names: Names) -> Value {
        // The vendor's resource ID of an address is the address as a number.
        let resource_id = self.ip.parse::<Ipv4Addr>().map_or(0, u32::from);
        json!({
            "id": self.id,
            "status": self.status.text(),
            "type": self.order.kind(),
            "started_at": moment(self.started_at),
            "completed_at": (!self.is_pending()).then(|| moment(self.ends_at)),
            "resource_id": resource_id,
            "resource_type": names.one,
            "region": region_json(&self.region),
            "region_slug": self.region,
        })
    }

    /// Answers about a single action of an address include its project, listings don't.
    fn json_with_project(&self, names: Names) -> Value {
        let mut action = self.json(names);
        action["project_id"] = self.project.as_str().into();
        action
    }
}

/// The names of reserved addresses in answers. They depend on the call: `reserved_ips` or `floating_ips`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    one: &'static str,
    many: &'static str,
}

impl Names {
    /// Returns the names for a group of calls.
    pub(super) fn of(group: &str) -> Self {
        if group.starts_with("floating") {
            Self { one: "floating_ip", many: "floating_ips" }
        } else {
            Self { one: "reserved_ip", many: "reserved_ips" }
        }
    }
}

/// What a person can do with the console.
impl DigitalOcean {
    /// Adds an address to the default project.
    pub fn add_reserved_ip(&mut self, ip: impl Into<String>, region: impl Into<String>) {
        let address = Address {
            region: region.into(),
            project: DEFAULT_PROJECT_ID.to_owned(),
            holder: None,
            created_at: Duration::ZERO,
            byo: false,
        };
        let ip: String = ip.into();
        self.set_holder(&ip, None);
        self.addresses.insert(ip, address);
    }

    /// Releases an address at once. The droplet that holds the address loses it.
    pub fn remove_reserved_ip(&mut self, ip: &str) {
        let holder = self.set_holder(ip, None);
        self.addresses.remove(ip);
        if let Some(droplet) = holder {
            self.unwritten
                .push_back(CloudChange::Detached { address: ip.to_owned(), vm: droplet.to_string() });
        }
    }

    /// Makes an address a bring-your-own IP. From now on, listings of addresses don't contain it, and a request for one
    /// of its actions returns 404.
    pub fn bring_your_own(&mut self, ip: &str) {
        if let Some(address) = self.addresses.get_mut(ip) {
            address.byo = true;
        }
    }

    /// Assigns an address to a droplet at once, without an action. Does nothing if one of them does not exist.
    pub fn assign_now(&mut self, ip: &str, droplet: u64) {
        if !self.addresses.contains_key(ip) || !self.droplets.contains_key(&droplet) {
            return;
        }
        if let Some(old) = self.set_holder(ip, Some(droplet)) {
            self.unwritten.push_back(CloudChange::Detached { address: ip.to_owned(), vm: old.to_string() });
        }
        self.unwritten.push_back(CloudChange::Attached { address: ip.to_owned(), vm: droplet.to_string() });
    }

    /// Returns all addresses.
    pub fn reserved_ips(&self) -> Vec<String> {
        self.addresses.keys().cloned().collect()
    }

    /// Returns the droplet that holds an address.
    pub fn holder(&self, ip: &str) -> Option<u64> {
        self.addresses.get(ip)?.holder
    }
}

/// The calls for addresses.
impl DigitalOcean {
    pub(super) fn list_addresses(&self, names: Names, call: &Call) -> Answer {
        let addresses: Vec<(&String, &Address)> =
            self.addresses.iter().filter(|(_, address)| !address.byo).collect();
        self.page(call, names.many, addresses, |(ip, address)| self.address_json(ip, address))
    }

    pub(super) fn get_address(&self, names: Names, ip: &str) -> Handled {
        let address = self.addresses.get(ip).ok_or_else(not_found)?;
        Ok(Answer::json(200, json!({ names.one: self.address_json(ip, address) })))
    }

    pub(super) fn create_address(
        &mut self,
        names: Names,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Handled {
        let droplet = call.body["droplet_id"].as_u64();
        let region = match (droplet, call.body["region"].as_str()) {
            (Some(id), _) => self.droplets.get(&id).ok_or_else(not_found)?.region.clone(),
            (None, Some(region)) if self.is_region(region) => region.to_owned(),
            (None, Some(_)) => return Err(unprocessable("Region is not available")),
            (None, None) => return Err(unprocessable("Either a region or a droplet_id is required.")),
        };
        if let Some(droplet) = droplet {
            self.check_is_free(droplet)?;
        }
        let project = call.body["project_id"].as_str().unwrap_or(DEFAULT_PROJECT_ID).to_owned();
        if !self.projects.contains_key(&project) {
            return Err(not_found());
        }
        let ip = self.next_address();
        let address = Address { region, project, holder: None, created_at: now, byo: false };
        self.addresses.insert(ip.clone(), address);
        ledger.did(now, CloudChange::Created { address: ip.clone() });
        let links = match droplet {
            Some(droplet) => {
                let id = self.begin(&ip, Order::Assign(droplet), call, now, ledger)?;
                json!({
                    "droplets": [self.link("droplet", "droplets", droplet)],
                    "actions": [self.link("assign_ip", "actions", id)],
                })
            }
            None => json!({}),
        };
        let address = self.addresses.get(&ip).ok_or_else(not_found)?;
        Ok(Answer::json(202, json!({ names.one: self.address_json(&ip, address), "links": links })))
    }

    /// Releases an address. If a droplet holds it, the droplet loses it: the API does not prevent that.
    pub(super) fn delete_address(&mut self, ip: &str, now: Duration, ledger: &mut Ledger) -> Handled {
        let address = self.addresses.get(ip).ok_or_else(not_found)?;
        if self.is_locked(ip) {
            return Err(address_is_busy());
        }
        if let Some(holder) = address.holder {
            ledger.did(now, CloudChange::Detached { address: ip.to_owned(), vm: holder.to_string() });
        }
        let marks = self.projects.get(&address.project).map(|project| project.name.clone());
        ledger.did(now, CloudChange::Released { address: ip.to_owned(), marks: marks.into_iter().collect() });
        self.set_holder(ip, None);
        self.addresses.remove(ip);
        Ok(no_content())
    }

    /// Returns the next address that was never used. It skips addresses that a test added.
    fn next_address(&mut self) -> String {
        loop {
            let ip = nth_address(self.created_count).to_string();
            self.created_count += 1;
            if !self.addresses.contains_key(&ip) {
                return ip;
            }
        }
    }

    fn address_json(&self, ip: &str, address: &Address) -> Value {
        let droplet = address.holder.and_then(|id| self.droplets.get(&id));
        json!({
            "ip": ip,
            "region": region_json(&address.region),
            "droplet": droplet.filter(|_| !self.hides_droplets).map(|droplet| self.droplet_json(droplet)),
            "locked": self.is_locked(ip) && !self.hides_locks,
            "project_id": address.project,
        })
    }

    fn link(&self, rel: &str, collection: &str, id: u64) -> Value {
        json!({ "id": id, "rel": rel, "href": format!("{}/v2/{collection}/{id}", self.api_url) })
    }

    fn is_locked(&self, ip: &str) -> bool {
        self.pending().any(|action| action.ip == ip)
    }

    fn check_is_free(&self, droplet: u64) -> Result<(), Answer> {
        if self.has_pending_event(droplet) {
            return Err(unprocessable("Droplet already has a pending event."));
        }
        if self.held_by(droplet).next().is_some() {
            return Err(unprocessable("The droplet already has a reserved IP."));
        }
        Ok(())
    }
}

/// The calls for actions.
impl DigitalOcean {
    pub(super) fn list_actions(&self, names: Names, ip: &str, call: &Call) -> Handled {
        if !self.addresses.contains_key(ip) {
            return Err(not_found());
        }
        // Newest first.
        let of_address = self.actions.values().rev().filter(|action| action.ip == ip);
        Ok(self.page(call, "actions", of_address.collect(), |action: &Action| action.json(names)))
    }

    pub(super) fn get_action_of(&self, names: Names, ip: &str, id: &str) -> Handled {
        let action = self.visible_action(id).filter(|action| action.ip == ip).ok_or_else(not_found)?;
        Ok(Answer::json(200, json!({ "action": action.json_with_project(names) })))
    }

    pub(super) fn get_action(&self, id: &str) -> Handled {
        let action = self.visible_action(id).ok_or_else(not_found)?;
        Ok(Answer::json(200, json!({ "action": action.json(Names::of("reserved_ips")) })))
    }

    fn visible_action(&self, id: &str) -> Option<&Action> {
        let action = id.parse().ok().and_then(|id: u64| self.actions.get(&id))?;
        let is_byo = self.addresses.get(&action.ip).is_some_and(|address| address.byo);
        (!is_byo).then_some(action)
    }

    pub(super) fn start_action(
        &mut self,
        names: Names,
        ip: &str,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Handled {
        let address = self.addresses.get(ip).ok_or_else(not_found)?;
        let order = match call.body["type"].as_str() {
            Some("assign") => self.order_to_assign(ip, address, &call.body["droplet_id"])?,
            Some("unassign") if self.is_locked(ip) => return Err(address_is_busy()),
            Some("unassign") => {
                let unassigned = || unprocessable("The floating IP is not assigned to a droplet.");
                Order::Unassign(address.holder.ok_or_else(unassigned)?)
            }
            _ => return Err(unprocessable("Type is not included in the list")),
        };
        let id = self.begin(ip, order, call, now, ledger)?;
        let action = self.actions.get(&id).ok_or_else(not_found)?;
        Ok(Answer::json(201, json!({ "action": action.json_with_project(names) })))
    }

    fn order_to_assign(&self, ip: &str, address: &Address, droplet: &Value) -> Result<Order, Answer> {
        let blank = || unprocessable("Droplet can't be blank");
        let droplet = self.droplets.get(&droplet.as_u64().ok_or_else(blank)?).ok_or_else(not_found)?;
        if self.is_locked(ip) {
            return Err(address_is_busy());
        }
        if droplet.region != address.region {
            return Err(unprocessable("The floating IP and the droplet must be in the same region."));
        }
        self.check_is_free(droplet.id)?;
        Ok(Order::Assign(droplet.id))
    }

    /// Starts an action and returns its ID. An action without a duration ends before the answer.
    fn begin(
        &mut self,
        ip: &str,
        order: Order,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<u64, Answer> {
        let address = self.addresses.get(ip).ok_or_else(not_found)?;
        let id = self.actions.last_key_value().map_or(1_000_001, |(last, _)| last + 1);
        let factor = 1 + self.actions.len() as u32 % self.action_times;
        let action = Action {
            id,
            ip: ip.to_owned(),
            region: address.region.clone(),
            project: address.project.clone(),
            order,
            started_at: now,
            ends_at: if call.overtakes { now } else { now + self.action_time * factor },
            fails: call.fails_late,
            status: Status::InProgress,
        };
        self.pending.insert(id);
        self.actions.insert(id, action);
        if let Order::Assign(droplet) = order {
            ledger.did(now, CloudChange::Accepted { address: ip.to_owned(), vm: droplet.to_string() });
        }
        self.finish_actions(now, ledger);
        Ok(id)
    }

    /// Finishes every action that is due, in the order of their end times.
    pub(super) fn finish_actions(&mut self, now: Duration, ledger: &mut Ledger) {
        let ended = self.pending().filter(|action| action.ends_at <= now);
        let mut ended: Vec<(Duration, u64)> = ended.map(|action| (action.ends_at, action.id)).collect();
        ended.sort_unstable();
        for (ended_at, id) in ended {
            self.pending.remove(&id);
            let Some(action) = self.actions.get(&id) else { continue };
            let (ip, order, fails) = (action.ip.clone(), action.order, action.fails);
            let is_done = !fails && self.carry_out(&ip, order, ended_at, ledger);
            if let (false, Order::Assign(droplet)) = (is_done, order) {
                ledger.did(ended_at, CloudChange::Failed { address: ip.clone(), vm: droplet.to_string() });
            }
            if let Some(action) = self.actions.get_mut(&id) {
                action.status = if is_done { Status::Completed } else { Status::Errored };
            }
        }
    }

    /// Changes the holder of an address. Returns whether that was possible.
    fn carry_out(&mut self, ip: &str, order: Order, at: Duration, ledger: &mut Ledger) -> bool {
        let next = match order {
            Order::Unassign(_) => None,
            Order::Assign(droplet) => {
                let has_another = self.held_by(droplet).any(|held| held != ip);
                if !self.droplets.contains_key(&droplet) || has_another {
                    return false;
                }
                Some(droplet)
            }
        };
        if !self.addresses.contains_key(ip) {
            return false;
        }
        let before = self.set_holder(ip, next);
        if before == next {
            return true;
        }
        if let Some(old) = before {
            ledger.did(at, CloudChange::Detached { address: ip.to_owned(), vm: old.to_string() });
        }
        if let Some(new) = next {
            ledger.did(at, CloudChange::Attached { address: ip.to_owned(), vm: new.to_string() });
        }
        true
    }
}

fn address_is_busy() -> Answer {
    unprocessable("The floating IP already has a pending event.")
}

/// Returns the n-th address that the API creates, counted from zero.
fn nth_address(n: u32) -> Ipv4Addr {
    let range = usize::try_from(n / RANGE_SIZE).ok().and_then(|index| RANGES.get(index));
    let host = u8::try_from(n % RANGE_SIZE + 1).unwrap_or_default();
    match range {
        Some([a, b, c]) => Ipv4Addr::new(*a, *b, *c, host),
        None => Ipv4Addr::from_bits(RANGE_OVERFLOW.to_bits().wrapping_add(n - 3 * RANGE_SIZE)),
    }
}
