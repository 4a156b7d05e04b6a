//! The calls of the API: each checks the request, then reads the state or starts an operation.
//!
//! In: a parsed request. Out: the body of its answer, or a problem. A call never changes the state by itself: an
//! accepted change becomes an operation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::super::Call;
use super::super::ledger::{CloudChange, Ledger};
use super::lists::{Entry, Listing};
use super::orders::{Operation, Order};
use super::problem::Problem;
use super::project::{Compute, DEFAULT_CONFIG, PREMIUM};
use super::resources::{Address, Instance, path, region_of};
use super::routes::{self, Place, SET_LABELS, Spec, USE_ADDRESS, USE_EXTERNAL_IP};

const NAME_RULE: &str = "Must be a match of regex '[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?'";

/// The region or zone and the name in a call's path. A part that the path does not have is empty.
struct Target<'a> {
    location: &'a str,
    name: &'a str,
}

impl<'a> Target<'a> {
    fn of(call: &'a Call) -> Self {
        let part = |at: usize| call.route.params.get(at).map_or("", String::as_str);
        Self { location: part(1), name: part(2) }
    }

    fn key(&self) -> (String, String) {
        (self.location.to_owned(), self.name.to_owned())
    }
}

impl Compute {
    pub(super) fn answer(
        &mut self,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<Value, Problem> {
        let spec = routes::spec(call.route.name).ok_or_else(Problem::no_such_call)?;
        self.check(call, spec)?;
        if let Some(first) = self.begun_before(call)? {
            return Ok(first.to_json(&self.project, now));
        }
        match call.route.name {
            "addresses.aggregatedList" => {
                self.aggregated_list(call, "compute#addressAggregatedList", spec, now)
            }
            "addresses.list" => self.list(call, "compute#addressList", spec, now),
            "addresses.get" => {
                let address = self.address(call)?;
                Ok(address.to_json(&self.project, self.holders().get(address.ip.as_str()).copied()))
            }
            "addresses.insert" => self.insert_address(call, now, ledger),
            "addresses.delete" => self.delete_address(call, now, ledger),
            "addresses.setLabels" => self.set_labels(call, now, ledger),
            "instances.aggregatedList" => {
                self.aggregated_list(call, "compute#instanceAggregatedList", spec, now)
            }
            "instances.list" => self.list(call, "compute#instanceList", spec, now),
            "instances.get" => Ok(self.instance(call)?.to_json(&self.project)),
            "instances.addAccessConfig" => self.add_access_config(call, now, ledger),
            "instances.deleteAccessConfig" => self.delete_access_config(call, now, ledger),
            "globalOperations.aggregatedList" => {
                self.aggregated_list(call, "compute#operationAggregatedList", spec, now)
            }
            "zoneOperations.list" => self.list(call, "compute#operationList", spec, now),
            _ => Ok(self.operation(call, spec)?.to_json(&self.project, now)),
        }
    }

    /// Runs the checks that come first: the project, the caller's permission, and that the region or zone exists and is
    /// reachable.
    fn check(&self, call: &Call, spec: &Spec) -> Result<(), Problem> {
        let project = call.route.params.first().map_or("", String::as_str);
        if project != self.project {
            return Err(Problem::not_found(&format!("projects/{project}")));
        }
        let target = Target::of(call);
        let resource = if target.name.is_empty() {
            format!("projects/{project}")
        } else {
            path(project, spec.place.plural(), target.location, spec.collection, target.name)
        };
        self.check_permission(spec.permission, &resource)?;
        let (region, exists) = match spec.place {
            Place::Project => return Ok(()),
            Place::Region => (target.location, self.regions().contains(target.location)),
            Place::Zone => (region_of(target.location), self.zones.contains(target.location)),
        };
        if !exists {
            let place = format!("projects/{project}/{}/{}", spec.place.plural(), target.location);
            return Err(Problem::not_found(&place));
        }
        if self.unreachable_regions.contains(region) {
            return Err(Problem::unavailable(503));
        }
        Ok(())
    }

    fn check_permission(&self, permission: &str, resource: &str) -> Result<(), Problem> {
        if self.denied.contains(permission) {
            return Err(Problem::forbidden(permission, resource));
        }
        Ok(())
    }

    /// Returns the operation that an earlier request with the same `requestId` started. The fake does not run a
    /// repeated request again.
    fn begun_before(&self, call: &Call) -> Result<Option<&Operation>, Problem> {
        let Some(id) = call.query.get("requestId") else { return Ok(None) };
        if !is_uuid(id) {
            return Err(Problem::invalid("requestId", id, "Must be a valid, non-zero UUID."));
        }
        Ok(self.requests.get(id).map(|index| &self.operations[*index]))
    }

    fn insert_address(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Result<Value, Problem> {
        let region = Target::of(call).location.to_owned();
        let text = |field: &str| call.body[field].as_str().unwrap_or_default().to_owned();
        let name = text("name");
        if !is_name(&name) {
            return Err(Problem::invalid("resource.name", &name, NAME_RULE));
        }
        let path = path(&self.project, "regions", &region, "addresses", &name);
        if self.addresses.contains_key(&(region.clone(), name.clone())) {
            return Err(Problem::already_exists(&path));
        }
        if !matches!(text("addressType").as_str(), "" | "EXTERNAL") {
            let why = "Only external addresses are served here.";
            return Err(Problem::invalid("resource.addressType", &text("addressType"), why));
        }
        if !text("address").is_empty() {
            let why = "Specified IP address is not available in the region.";
            return Err(Problem::invalid("resource.address", &text("address"), why));
        }
        let tier = tier_of(&call.body)?;
        let labels = labels_of(&call.body);
        if !labels.is_empty() {
            self.check_permission(SET_LABELS, &path)?;
        }
        let (id, ip, description) = (self.next_id(), self.next_reserved(), text("description"));
        let address = Address { id, region, name, ip, tier, description, labels, created: now };
        Ok(self.begin(Order::Reserve(Box::new(address)), id, call, now, ledger))
    }

    fn delete_address(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Result<Value, Problem> {
        let address = self.address(call)?;
        if let Some(holder) = self.holders().get(address.ip.as_str()) {
            return Err(Problem::in_use(&address.path(&self.project), &holder.path(&self.project)));
        }
        let id = address.id;
        Ok(self.begin(Order::Release { address: Target::of(call).key() }, id, call, now, ledger))
    }

    fn set_labels(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Result<Value, Problem> {
        let address = self.address(call)?;
        let (id, fingerprint) = (address.id, address.label_fingerprint());
        if call.body["labelFingerprint"].as_str() != Some(&fingerprint) {
            return Err(Problem::stale_labels());
        }
        let labels = labels_of(&call.body);
        let order = Order::Label { address: Target::of(call).key(), labels, fingerprint };
        Ok(self.begin(order, id, call, now, ledger))
    }

    fn add_access_config(
        &mut self,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<Value, Problem> {
        let instance = self.instance(call)?;
        let (id, vm, region) = (instance.id, instance.vm(&self.project), region_of(&instance.zone));
        let subnetwork = path(&self.project, "regions", region, "subnetworks", "default");
        self.check_permission(USE_EXTERNAL_IP, &subnetwork)?;
        let interface = interface_of(call, instance)?;
        let text = |field: &str| call.body[field].as_str().filter(|text| !text.is_empty());
        if let Some(kind) = text("type").filter(|kind| *kind != "ONE_TO_ONE_NAT") {
            return Err(Problem::invalid("resource.type", kind, "Must be ONE_TO_ONE_NAT."));
        }
        let tier = tier_of(&call.body)?;
        if instance.interfaces[interface].is_some() {
            return Err(Problem::second_access_config());
        }
        let ptr = self.ptr_of(&call.body)?;
        let ip = text("natIP").map(str::to_owned);
        if let Some(ip) = &ip {
            self.check_usable(ip, region, &tier)?;
            ledger.did(now, CloudChange::Accepted { address: ip.clone(), vm });
        }
        let config = text("name").unwrap_or(DEFAULT_CONFIG).to_owned();
        let order = Order::Attach { instance: Target::of(call).key(), interface, config, tier, ip, ptr };
        Ok(self.begin(order, id, call, now, ledger))
    }

    /// Checks that the address is reserved in this region, that the caller may use it, and that the tier matches.
    fn check_usable(&self, ip: &str, region: &str, tier: &str) -> Result<(), Problem> {
        let found = self.addresses.values().find(|address| address.ip == ip && address.region == region);
        let Some(address) = found else {
            let why = format!("The specified external IP address '{ip}' was not found in region '{region}'.");
            return Err(Problem::invalid("resource.natIP", ip, &why));
        };
        self.check_permission(USE_ADDRESS, &address.path(&self.project))?;
        if address.tier != tier {
            let why = format!(
                "The network tier of external IP address is {}, that of Access Config is {tier}.",
                address.tier
            );
            return Err(Problem::invalid("resource.networkTier", tier, &why));
        }
        Ok(())
    }

    /// Returns the PTR name that a body requests. The caller must own its domain.
    fn ptr_of(&self, body: &Value) -> Result<Option<String>, Problem> {
        let (field, name) = ("resource.publicPtrDomainName", body["publicPtrDomainName"].as_str());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
        if body["setPublicPtr"] != true {
            return Err(Problem::invalid(field, name, "Must not be set unless setPublicPtr is true."));
        }
        let is_of = |domain: &String| name.trim_end_matches('.').ends_with(domain.as_str());
        if self.unverified_domains.iter().any(is_of) {
            return Err(Problem::invalid(field, name, "Please verify ownership of the PTR domain."));
        }
        Ok(Some(name.to_owned()))
    }

    fn delete_access_config(
        &mut self,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<Value, Problem> {
        let instance = self.instance(call)?;
        let (id, interface) = (instance.id, interface_of(call, instance)?);
        let config = call.query.get("accessConfig").ok_or_else(|| Problem::required("accessConfig"))?.clone();
        let order = Order::Detach { instance: Target::of(call).key(), interface, config };
        Ok(self.begin(order, id, call, now, ledger))
    }

    fn address(&self, call: &Call) -> Result<&Address, Problem> {
        let Target { location, name } = Target::of(call);
        let path = || path(&self.project, "regions", location, "addresses", name);
        let key = Target::of(call).key();
        self.addresses.get(&key).ok_or_else(|| Problem::not_found(&path()))
    }

    fn instance(&self, call: &Call) -> Result<&Instance, Problem> {
        let Target { location, name } = Target::of(call);
        let path = || path(&self.project, "zones", location, "instances", name);
        let key = Target::of(call).key();
        self.instances.get(&key).ok_or_else(|| Problem::not_found(&path()))
    }

    /// Finds an operation by its name or its number.
    fn operation(&self, call: &Call, spec: &Spec) -> Result<&Operation, Problem> {
        let Target { location, name } = Target::of(call);
        let is_meant = |operation: &&Operation| {
            operation.place == spec.place && operation.location == location && operation.is_called(name)
        };
        let path = || path(&self.project, spec.place.plural(), location, "operations", name);
        self.operations.iter().find(is_meant).ok_or_else(|| Problem::not_found(&path()))
    }

    fn list(&self, call: &Call, kind: &'static str, spec: &Spec, now: Duration) -> Result<Value, Problem> {
        let scope = format!("{}/{}", spec.place.plural(), Target::of(call).location);
        let path = format!("projects/{}/{scope}/{}", self.project, spec.collection);
        let entries = self.entries(spec.collection, now).into_iter().filter(|entry| entry.scope == scope);
        Listing { kind, path, collection: spec.collection, entries: entries.collect() }.flat(&call.query)
    }

    fn aggregated_list(
        &self,
        call: &Call,
        kind: &'static str,
        spec: &Spec,
        now: Duration,
    ) -> Result<Value, Problem> {
        let path = format!("projects/{}/aggregated/{}", self.project, spec.collection);
        let regions = self.regions().into_iter().map(|region| format!("regions/{region}"));
        let zones = self.zones.iter().map(|zone| format!("zones/{zone}"));
        let global = ["global".to_owned()];
        let scopes: BTreeSet<String> = match spec.collection {
            "addresses" => regions.chain(global).collect(),
            "instances" => zones.collect(),
            _ => regions.chain(zones).chain(global).collect(),
        };
        let entries = self.entries(spec.collection, now);
        let listing = Listing { kind, path, collection: spec.collection, entries };
        listing.aggregated(&call.query, &scopes, &self.unreachable_regions)
    }

    /// Returns everything in one collection.
    fn entries(&self, collection: &str, now: Duration) -> Vec<Entry> {
        let project = &self.project;
        match collection {
            "addresses" => {
                let holders = self.holders();
                let entry = |address: &Address| Entry {
                    scope: format!("regions/{}", address.region),
                    item: address.to_json(project, holders.get(address.ip.as_str()).copied()),
                };
                self.addresses.values().map(entry).collect()
            }
            "instances" => {
                let entry = |instance: &Instance| Entry {
                    scope: format!("zones/{}", instance.zone),
                    item: instance.to_json(project),
                };
                self.instances.values().map(entry).collect()
            }
            _ => {
                let entry = |operation: &Operation| Entry {
                    scope: operation.scope(),
                    item: operation.to_json(project, now),
                };
                self.operations.iter().map(entry).collect()
            }
        }
    }

    fn regions(&self) -> BTreeSet<&str> {
        let of_zones = self.zones.iter().map(|zone| region_of(zone));
        of_zones.chain(self.addresses.values().map(|address| address.region.as_str())).collect()
    }
}

/// Returns the position of the interface that a call names.
fn interface_of(call: &Call, instance: &Instance) -> Result<usize, Problem> {
    let name = call.query.get("networkInterface").ok_or_else(|| Problem::required("networkInterface"))?;
    let at = (0..instance.interfaces.len()).find(|at| *name == format!("nic{at}"));
    let why = "Must be a valid network interface name (e.g. nic0, nic1)";
    at.ok_or_else(|| Problem::invalid("networkInterface", name, why))
}

/// Returns the tier that a body requests. The default is premium.
fn tier_of(body: &Value) -> Result<String, Problem> {
    match body["networkTier"].as_str().unwrap_or_default() {
        "" => Ok(PREMIUM.to_owned()),
        tier @ (PREMIUM | "STANDARD") => Ok(tier.to_owned()),
        other => Err(Problem::invalid("resource.networkTier", other, "Must be PREMIUM or STANDARD.")),
    }
}

fn labels_of(body: &Value) -> BTreeMap<String, String> {
    let labels = body["labels"].as_object().into_iter().flatten();
    labels.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn is_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(is_inner)
        && !text.ends_with('-')
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    let is_hex = text.chars().all(|c| c == '-' || c.is_ascii_hexdigit());
    lengths == [8, 4, 4, 4, 12] && is_hex && text.chars().any(|c| c != '-' && c != '0')
}
