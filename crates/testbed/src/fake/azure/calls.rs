//! Handles the calls of the fake Azure API.
//!
//! In: a parsed request. Out: its answer, or an error (`Problem`). A change that passes the checks becomes an operation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::http::header;
use serde_json::{Value, json};

use super::super::ledger::{CloudChange, Ledger};
use super::super::{Answer, Call};
use super::operations::host_of;
use super::orders::Order;
use super::problem::Problem;
use super::resources::{Interface, PublicIp, VirtualMachine, etag_of};
use super::routes::{self, LINKS};
use super::subscription::Azure;

/// The read-only fields of a network interface. Azure sets them, and the fake ignores them in requests.
const READ_ONLY: &[&str] = &["id", "name", "type", "etag"];
const READ_ONLY_PROPERTIES: &[&str] =
    &["provisioningState", "resourceGuid", "macAddress", "virtualMachine", "primary"];

impl Azure {
    pub(super) fn answer(
        &mut self,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<Answer, Problem> {
        self.check(call)?;
        match call.route.name {
            "PublicIPAddresses_ListAll" => {
                let holders = self.holders();
                self.page(call, self.addresses.values(), |public| public.to_json(holders.get(&public.id)))
            }
            "PublicIPAddresses_Get" => {
                let public = self.address(call)?;
                Ok(Answer::json(200, public.to_json(self.holder_of(public).as_ref())))
            }
            "PublicIPAddresses_CreateOrUpdate" => self.write_address(call, now, ledger),
            "PublicIPAddresses_Delete" => self.delete_address(call, now, ledger),
            "NetworkInterfaces_ListAll" => {
                let shown = self.interfaces.values().filter(|_| !self.hides_interfaces);
                self.page(call, shown, Interface::to_json)
            }
            "NetworkInterfaces_Get" => Ok(Answer::json(200, self.found_interface(call)?.to_json())),
            "NetworkInterfaces_CreateOrUpdate" => self.write_interface(call, now, ledger),
            "VirtualMachines_ListAll" => {
                let with_status = call.query.get("statusOnly").is_some_and(|only| only == "true");
                let shown = self.machines.values().filter(|_| !self.hides_machines);
                self.page(call, shown, |machine| self.machine_json(machine, with_status))
            }
            _ => self.operation(call),
        }
    }

    /// Runs the checks that come first: the API version, the subscription, the caller's permissions, and locks.
    fn check(&self, call: &Call) -> Result<(), Problem> {
        if !call.query.contains_key("api-version") {
            return Err(Problem::api_version_missing());
        }
        let subscription = call.route.params.first().map_or("", String::as_str);
        if !subscription.eq_ignore_ascii_case(&self.subscription) {
            return Err(Problem::subscription_not_found(subscription));
        }
        let action = routes::action_of(call.route.name);
        if self.denied.contains(action) {
            return Err(Problem::forbidden(action, &format!("/subscriptions/{subscription}")));
        }
        if self.is_locked && !routes::is_read(call.route.name) {
            let group = format!("/subscriptions/{subscription}/resourceGroups/{}", self.group);
            return Err(Problem::locked(&id_of(call), &group));
        }
        Ok(())
    }

    /// Returns one page of a listing.
    fn page<T>(
        &self,
        call: &Call,
        items: impl Iterator<Item = T> + Clone,
        to_json: impl Fn(T) -> Value,
    ) -> Result<Answer, Problem> {
        let skipped = call.query.get("$skiptoken").map_or(Ok(0), |token| token.parse::<usize>());
        let skipped = skipped.map_err(|_| Problem::malformed("$skiptoken"))?;
        let page: Vec<_> = items.clone().skip(skipped).take(self.page_size).map(to_json).collect();
        let mut body = json!({ "value": page });
        let next = skipped + self.page_size;
        if next < items.count() {
            let kind = match call.route.name {
                "PublicIPAddresses_ListAll" => "Microsoft.Network/publicIPAddresses",
                "NetworkInterfaces_ListAll" => "Microsoft.Network/networkInterfaces",
                _ => "Microsoft.Compute/virtualMachines",
            };
            let others = call.query.iter().filter(|(name, _)| *name != "$skiptoken");
            let query: String = others.map(|(name, value)| format!("{name}={value}&")).collect();
            let path = format!("/subscriptions/{}/providers/{kind}", self.subscription);
            body["nextLink"] = json!(format!("https://{}{path}?{query}$skiptoken={next}", host_of(call)));
        }
        Ok(Answer::json(200, body))
    }

    /// Returns the holder of each address, such as an IP configuration, by the ID of the address.
    fn holders(&self) -> BTreeMap<String, String> {
        let mut holders = BTreeMap::new();
        for interface in self.interfaces.values() {
            for public in interface.publics() {
                let known = self.addresses.get(&public.to_lowercase());
                if let (Some(known), Some(configuration)) = (known, interface.configuration_of(&public)) {
                    holders.insert(known.id.clone(), configuration);
                }
            }
        }
        for public in self.addresses.values() {
            holders.extend(public.other_holder.clone().map(|other| (public.id.clone(), other)));
        }
        holders
    }

    /// Returns the holder of an address, such as an IP configuration.
    fn holder_of(&self, public: &PublicIp) -> Option<String> {
        let mut of_interfaces =
            self.interfaces.values().filter_map(|found| found.configuration_of(&public.id));
        of_interfaces.next().or_else(|| public.other_holder.clone())
    }

    fn address(&self, call: &Call) -> Result<&PublicIp, Problem> {
        let found = self.addresses.get(&id_of(call).to_lowercase());
        found.ok_or_else(|| not_found(call, "publicIPAddresses"))
    }

    fn found_interface(&self, call: &Call) -> Result<&Interface, Problem> {
        let found = self.interfaces.get(&id_of(call).to_lowercase());
        found.ok_or_else(|| not_found(call, "networkInterfaces"))
    }

    fn write_address(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Result<Answer, Problem> {
        let id = id_of(call);
        let key = id.to_lowercase();
        let location =
            call.body["location"].as_str().ok_or_else(|| Problem::malformed("location"))?.to_owned();
        let etag = self.next_etag();
        let known = self.addresses.get(&key).cloned();
        if known.as_ref().is_some_and(|public| public.state == "Updating") {
            return Err(Problem::another_operation());
        }
        let status = if known.is_some() { 200 } else { 201 };
        let sku = call.body["sku"]["name"].as_str().unwrap_or("Standard").to_owned();
        let mut public = known.unwrap_or(PublicIp {
            id: id.clone(),
            location,
            ip: None,
            sku,
            tags: Value::Null,
            etag,
            state: "Updating",
            other_holder: None,
        });
        (public.tags, public.etag, public.state) = (call.body["tags"].clone(), etag, "Updating");
        self.addresses.insert(key.clone(), public);
        let order = Order::Create { address: key.clone() };
        let mut answer = self.begin(order, call, now, ledger);
        let public = self.addresses.get(&key).ok_or_else(Problem::internal)?;
        (answer.status, answer.body) = (status, public.to_json(self.holder_of(public).as_ref()));
        Ok(answer)
    }

    fn delete_address(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Result<Answer, Problem> {
        let key = id_of(call).to_lowercase();
        let Some(public) = self.addresses.get(&key) else {
            return Ok(Answer::json(204, Value::Null));
        };
        if let Some(holder) = self.holder_of(public) {
            return Err(Problem::cannot_be_deleted(&public.id, &holder));
        }
        let Some(public) = self.addresses.get_mut(&key) else { return Err(Problem::internal()) };
        if public.state != "Succeeded" {
            return Err(Problem::another_operation());
        }
        public.state = "Deleting";
        let mut answer = self.begin(Order::Delete { address: key }, call, now, ledger);
        answer.status = 202;
        Ok(answer)
    }

    fn write_interface(
        &mut self,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<Answer, Problem> {
        let id = id_of(call);
        let key = id.to_lowercase();
        let known = self.interfaces.get(&key).cloned();
        check_unchanged(call, known.as_ref())?;
        if known.as_ref().is_some_and(|known| known.state == "Updating") {
            return Err(Problem::another_operation());
        }
        let status = if known.is_some() { 200 } else { 201 };
        let etag = self.next_etag();
        let before = known.unwrap_or(Interface {
            id: id.clone(),
            machine: None,
            is_primary: false,
            etag,
            state: "Succeeded",
            body: json!({}),
            leaving: BTreeMap::new(),
            missing: BTreeSet::new(),
        });
        let after = Interface { etag, state: "Updating", body: settable(&call.body), ..before.clone() };
        self.check_links(call, &after)?;
        let (mut after, vm) = (after, self.holder_name(&before));
        let had = before.publics();
        let has = after.publics();
        let is_in = |all: &[String], id: &String| all.iter().any(|other| other.eq_ignore_ascii_case(id));
        for public in had.iter().filter(|public| !is_in(&has, public)) {
            let path = before.configuration_of(public).unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            after.leaving.insert(public.to_lowercase(), name);
        }
        let mut coming = Vec::new();
        let is_new =
            |public: &&String| !is_in(&had, public) || before.missing.contains(&public.to_lowercase());
        for public in has.iter().filter(is_new) {
            if let Some(ip) = self.ip_of(public) {
                ledger.did(now, CloudChange::Accepted { address: ip.clone(), vm: vm.clone() });
                coming.push(ip);
            }
        }
        if before.body != json!({}) && without_publics(&before.body) != without_publics(&after.body) {
            ledger.did(now, CloudChange::Other(format!("changed something else than the addresses of {id}")));
        }
        self.interfaces.insert(key.clone(), after);
        let order = Order::Write { interface: key.clone(), before: Box::new(before), vm, coming };
        let mut answer = self.begin(order, call, now, ledger);
        let after = self.interfaces.get(&key).ok_or_else(Problem::internal)?;
        (answer.status, answer.body) = (status, after.to_json());
        Ok(answer)
    }

    /// Checks the resources that an interface refers to: the caller may use all of them, and each address exists, is in
    /// the same region and has no other holder.
    fn check_links(&self, call: &Call, interface: &Interface) -> Result<(), Problem> {
        let properties = &interface.body["properties"];
        let inner = interface.configurations().iter().map(|configuration| &configuration["properties"]);
        for (holder, (place, linked_action)) in
            inner.chain([properties]).flat_map(|holder| LINKS.iter().map(move |link| (holder, link)))
        {
            let linked = holder.pointer(place).and_then(|link| link["id"].as_str());
            if let Some(linked) = linked.filter(|_| self.denied.contains(*linked_action)) {
                let action = routes::action_of(call.route.name);
                return Err(Problem::forbidden_link(action, &interface.id, linked_action, linked));
            }
        }
        let mut seen = Vec::new();
        for public in interface.publics() {
            let known = self.addresses.get(&public.to_lowercase());
            let is_near = |known: &&PublicIp| {
                let location = interface.body["location"].as_str().unwrap_or_default();
                known.location.eq_ignore_ascii_case(location) && known.ip.is_some()
            };
            let Some(known) = known.filter(is_near) else {
                return Err(Problem::invalid_reference(&public, &interface.id));
            };
            let holder = self.holder_of(known).filter(|holder| {
                let own = format!("{}/", interface.id).to_lowercase();
                !holder.to_lowercase().starts_with(&own)
            });
            if let Some(holder) = holder.or_else(|| seen.contains(&known.id).then(|| interface.id.clone())) {
                return Err(Problem::in_use(&interface.id, &known.id, &holder));
            }
            if known.state == "Deleting" {
                return Err(Problem::another_operation());
            }
            seen.push(known.id.clone());
        }
        Ok(())
    }

    fn machine_json(&self, machine: &VirtualMachine, with_status: bool) -> Value {
        let name = machine.id.rsplit('/').next().unwrap_or_default();
        let of_machine = |interface: &&Interface| {
            interface.machine.as_deref().is_some_and(|id| id.eq_ignore_ascii_case(&machine.id))
        };
        let interfaces = self.interfaces.values().filter(of_machine);
        let links =
            interfaces.map(|found| json!({"id": found.id, "properties": {"primary": found.is_primary}}));
        let mut body = json!({
            "id": machine.id,
            "name": name,
            "type": "Microsoft.Compute/virtualMachines",
            "location": machine.location,
            "properties": {
                "vmId": "00000000-0000-0000-0000-000000000001",
                "provisioningState": "Succeeded",
                "networkProfile": { "networkInterfaces": links.collect::<Vec<_>>() },
            },
        });
        if with_status {
            let power = if machine.is_running {
                ("running", "VM running")
            } else {
                ("deallocated", "VM deallocated")
            };
            body["properties"]["instanceView"] = json!({ "statuses": [
                { "code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded" },
                { "code": format!("PowerState/{}", power.0), "level": "Info", "displayStatus": power.1 },
            ]});
        }
        body
    }

    fn operation(&self, call: &Call) -> Result<Answer, Problem> {
        let id = call.route.params.last().map_or("", String::as_str);
        let found = self.operations.iter().find(|operation| operation.id == id);
        let found = found.ok_or_else(|| Problem::no_such_operation(id))?;
        let mut answer = Answer::json(200, found.to_json());
        if found.outcome.is_none() {
            answer.headers.push(("retry-after", self.poll_seconds.to_string()));
        }
        Ok(answer)
    }
}

/// Returns the body without read-only fields.
fn settable(sent: &Value) -> Value {
    let mut body = sent.clone();
    let forget = |object: &mut Value, fields: &[&str]| {
        if let Some(object) = object.as_object_mut() {
            fields.iter().for_each(|field| _ = object.remove(*field));
        }
    };
    forget(&mut body, READ_ONLY);
    forget(&mut body["properties"], READ_ONLY_PROPERTIES);
    for configuration in body["properties"]["ipConfigurations"].as_array_mut().into_iter().flatten() {
        forget(configuration, &["id", "type", "etag"]);
        forget(&mut configuration["properties"], &["provisioningState"]);
    }
    body
}

fn without_publics(body: &Value) -> Value {
    let mut body = body.clone();
    for configuration in body["properties"]["ipConfigurations"].as_array_mut().into_iter().flatten() {
        if let Some(properties) = configuration["properties"].as_object_mut() {
            properties.remove("publicIPAddress");
        }
    }
    body
}

/// If the request has an `If-Match` header, checks that the interface exists and has this ETag.
fn check_unchanged(call: &Call, known: Option<&Interface>) -> Result<(), Problem> {
    let Some(sent) = call.headers.get(header::IF_MATCH).and_then(|sent| sent.to_str().ok()) else {
        return Ok(());
    };
    let present = known.map(|known| etag_of(known.etag));
    let is_met = present.as_ref().is_some_and(|present| sent == "*" || sent == present);
    if is_met { Ok(()) } else { Err(Problem::changed_since(sent, present.as_deref().unwrap_or("none"))) }
}

/// Returns the ID of the resource that a call is about.
fn id_of(call: &Call) -> String {
    let kind = match call.route.name {
        name if name.starts_with("PublicIPAddresses") => "publicIPAddresses",
        _ => "networkInterfaces",
    };
    match call.route.params.as_slice() {
        [subscription, group, name] => format!(
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/{kind}/{name}"
        ),
        _ => String::new(),
    }
}

fn not_found(call: &Call, kind: &str) -> Problem {
    let part = |at: usize| call.route.params.get(at).map_or("", String::as_str);
    Problem::not_found(kind, part(2), part(1))
}
