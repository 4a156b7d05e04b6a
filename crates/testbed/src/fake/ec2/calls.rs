//! The calls of the API.
//!
//! In: a parsed request. Out: its answer, or an error. Every accepted change takes effect at once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::ledger::CloudChange;
use super::super::signature::Signature;
use super::super::{Answer, Call, pairs_of, xml};
use super::{Address, Ec2, Instance, Interface, State, error};

/// The answer of a handler, or its error.
type Handled = Result<Answer, Answer>;

const ACCOUNT: &str = "123456789012";

/// The parameters of a request, and the region that it is signed for.
struct Asked {
    params: BTreeMap<String, String>,
    region: String,
}

impl Asked {
    fn get(&self, name: &str) -> Option<&str> {
        self.params.get(name).map(String::as_str)
    }

    fn required(&self, name: &str) -> Result<&str, Answer> {
        let text = format!("The request must contain the parameter {name}");
        self.get(name).ok_or_else(|| error(400, "MissingParameter", &text))
    }

    fn is_true(&self, name: &str) -> Option<bool> {
        self.get(name).map(|text| text == "true")
    }

    /// Returns a list parameter. Its elements are numbered from one.
    fn list(&self, name: &str) -> Vec<&str> {
        (1..).map_while(|number| self.get(&format!("{name}.{number}"))).collect()
    }

    /// Returns the values of a filter, or `None` if the request has no such filter.
    fn filter(&self, name: &str) -> Option<Vec<&str>> {
        let number = (1..).map_while(|number| Some((number, self.get(&format!("Filter.{number}.Name"))?)));
        let (number, _) = number.into_iter().find(|(_, found)| *found == name)?;
        Some(self.list(&format!("Filter.{number}.Value")))
    }
}

impl Ec2 {
    pub(super) fn dispatch(&mut self, call: &Call, now: Duration) -> Handled {
        let name = call.route.name;
        let region = Signature::of(&call.headers).map(|signature| signature.region).unwrap_or_default();
        let asked = Asked { params: pairs_of(&String::from_utf8_lossy(&call.raw)), region };
        let mut permissions = vec![format!("ec2:{name}")];
        if asked.get("TagSpecification.1.ResourceType").is_some() {
            permissions.push("ec2:CreateTags".into());
        }
        if let Some(permission) = permissions.iter().find(|permission| self.denied.contains(*permission)) {
            let text = format!(
                "You are not authorized to perform this operation. User: arn:aws:iam::{ACCOUNT}:user/controller is not \
                 authorized to perform: {permission} on resource: * because no identity-based policy allows the \
                 {permission} action. Encoded authorization failure message: c2VjcmV0"
            );
            return Err(error(403, "UnauthorizedOperation", &text));
        }
        if asked.is_true("DryRun") == Some(true) {
            let text = "Request would have succeeded, but DryRun flag is set.";
            return Err(error(412, "DryRunOperation", text));
        }
        match name {
            "DescribeAddresses" => self.describe_addresses(&asked, now),
            "DescribeInstances" => self.describe_instances(&asked, now),
            "AssociateAddress" => self.associate(&asked),
            "DisassociateAddress" => self.disassociate(&asked),
            "AllocateAddress" => self.allocate(&asked),
            "ReleaseAddress" => self.release(&asked),
            _ => self.modify_interface(&asked),
        }
    }

    /// Returns the state that reads see, which is stale by [`Ec2::lag`].
    fn shown(&self, now: Duration) -> &State {
        let seen = self.history.iter().rev().find(|(at, _)| *at + self.lag <= now);
        seen.or(self.history.front()).map_or(&self.state, |(_, state)| state)
    }

    /// Keeps the present state for later reads, if reads lag.
    pub(super) fn remember(&mut self, now: Duration) {
        if self.lag.is_zero() {
            self.history.clear();
            return;
        }
        self.history.push_back((now, self.state.clone()));
        while self.history.get(1).is_some_and(|(at, _)| *at + self.lag <= now) {
            self.history.pop_front();
        }
    }

    fn describe_addresses(&self, asked: &Asked, now: Duration) -> Handled {
        let state = self.shown(now);
        let here = || state.addresses.iter().filter(|(_, address)| address.region == asked.region);
        let allocations = asked.list("AllocationId");
        for wanted in &allocations {
            if !here().any(|(_, address)| address.allocation == *wanted) {
                return Err(no_allocation(wanted));
            }
        }
        let public = asked.filter("public-ip");
        let is_meant = |(ip, address): &(&String, &Address)| {
            let is_named = allocations.is_empty() || allocations.contains(&address.allocation.as_str());
            is_named && public.as_ref().is_none_or(|wanted| wanted.contains(&ip.as_str()))
        };
        let items = here()
            .filter(is_meant)
            .map(|(ip, address)| xml::element("item", &state.address_xml(ip, address)));
        Ok(answer("DescribeAddresses", &xml::element("addressesSet", &items.collect::<String>())))
    }

    fn describe_instances(&self, asked: &Asked, now: Duration) -> Handled {
        let state = self.shown(now);
        let here: Vec<_> =
            state.instances.iter().filter(|(_, instance)| instance.region == asked.region).collect();
        let wanted = asked.list("InstanceId");
        if let Some(missing) = wanted.iter().find(|id| !here.iter().any(|(found, _)| found == *id)) {
            let text = format!("The instance ID '{missing}' does not exist");
            return Err(error(400, "InvalidInstanceID.NotFound", &text));
        }
        if !wanted.is_empty() && asked.get("MaxResults").is_some() {
            let text = "The parameter instancesSet cannot be used with the parameter maxResults";
            return Err(error(400, "InvalidParameterCombination", text));
        }
        let found: Vec<_> =
            here.into_iter().filter(|(id, _)| wanted.is_empty() || wanted.contains(&id.as_str())).collect();
        let size = asked.get("MaxResults").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
        let from = asked.get("NextToken").and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
        let page = found.iter().skip(from).take(size);
        let items: String = page.map(|(id, instance)| state.reservation_xml(id, instance)).collect();
        let next = from.saturating_add(size);
        let next = (next < found.len()).then(|| next.to_string());
        let body = xml::element("reservationSet", &items) + &xml::optional("nextToken", next.as_deref());
        Ok(answer("DescribeInstances", &body))
    }

    fn associate(&mut self, asked: &Asked) -> Handled {
        let ip = self.allocated(asked, asked.required("AllocationId")?)?;
        let interface = match (asked.get("NetworkInterfaceId"), asked.get("InstanceId")) {
            (Some(interface), None) => {
                let here = |found: &&Interface| found.region == asked.region;
                if self.state.interfaces.get(interface).filter(here).is_none() {
                    let text = format!("The networkInterface ID '{interface}' does not exist");
                    return Err(error(400, "InvalidNetworkInterfaceID.NotFound", &text));
                }
                interface.to_owned()
            }
            (None, Some(instance)) => self.only_interface(instance)?,
            _ => {
                return Err(error(
                    400,
                    "MissingParameter",
                    "Either 'NetworkInterfaceId' or 'InstanceId' must be specified",
                ));
            }
        };
        let present = self.state.addresses.get(&ip).and_then(|address| address.association.clone());
        if let Some((association, holder)) = present {
            if holder == interface {
                return Ok(answer("AssociateAddress", &associated(&association)));
            }
            if asked.is_true("AllowReassociation") == Some(false) {
                let text = format!(
                    "resource {} is already associated with associate-id {association}",
                    asked.required("AllocationId")?
                );
                return Err(error(400, "Resource.AlreadyAssociated", &text));
            }
        }
        self.attach_to(&ip, &interface);
        let association = self.state.addresses.get(&ip).and_then(|address| address.association.clone());
        Ok(answer("AssociateAddress", &associated(&association.unwrap_or_default().0)))
    }

    fn only_interface(&self, instance: &str) -> Result<String, Answer> {
        let mut its = self.interfaces_where(|interface| interface.instance.as_deref() == Some(instance));
        match (its.pop(), its.is_empty()) {
            (Some(interface), true) => Ok(interface),
            (Some(_), false) => {
                let text = format!(
                    "There are multiple interfaces attached to instance '{instance}'. Please specify an interface ID for the operation instead."
                );
                Err(error(400, "InvalidInstanceID", &text))
            }
            (None, _) => Err(error(
                400,
                "InvalidInstanceID.NotFound",
                &format!("The instance ID '{instance}' does not exist"),
            )),
        }
    }

    fn disassociate(&mut self, asked: &Asked) -> Handled {
        let association = asked.required("AssociationId")?;
        let is_it = |address: &Address| {
            address.region == asked.region
                && address.association.as_ref().is_some_and(|(id, _)| id == association)
        };
        let ip = self.state.addresses.iter().find(|(_, address)| is_it(address)).map(|(ip, _)| ip.clone());
        match ip {
            Some(ip) => self.detach_now(&ip),
            None if self.ended.contains_key(association) => {}
            None => {
                let text = format!("The association ID '{association}' does not exist");
                return Err(error(400, "InvalidAssociationID.NotFound", &text));
            }
        }
        Ok(answer("DisassociateAddress", &xml::text("return", "true")))
    }

    fn allocate(&mut self, asked: &Asked) -> Handled {
        if self.addresses(&asked.region).len() >= self.quota {
            let text = "The maximum number of addresses has been reached.";
            return Err(error(400, "AddressLimitExceeded", text));
        }
        let keys = asked.list_of_tags();
        let number = self.next();
        let [_, high, middle, low] = number.to_be_bytes();
        let ip = format!("44.{high}.{middle}.{low}");
        let allocation = self.add_tagged_address(&asked.region, &ip, keys);
        self.unwritten.push_back(CloudChange::Created { address: ip.clone() });
        let body = xml::text("publicIp", &ip)
            + &xml::text("domain", "vpc")
            + &xml::text("allocationId", &allocation);
        Ok(answer("AllocateAddress", &body))
    }

    fn release(&mut self, asked: &Asked) -> Handled {
        let ip = self.allocated(asked, asked.required("AllocationId")?)?;
        if self.holder(&ip).is_some() {
            return Err(error(400, "InvalidIPAddress.InUse", &format!("Address {ip} is in use.")));
        }
        let released = self.state.addresses.remove(&ip);
        let marks = released.into_iter().flat_map(|address| address.tags.into_values()).collect();
        self.unwritten.push_back(CloudChange::Released { address: ip, marks });
        Ok(answer("ReleaseAddress", &xml::text("return", "true")))
    }

    fn modify_interface(&mut self, asked: &Asked) -> Handled {
        let id = asked.required("NetworkInterfaceId")?;
        let Some(interface) = self.state.interfaces.get(id).filter(|found| found.region == asked.region)
        else {
            let text = format!("The networkInterface ID '{id}' does not exist");
            return Err(error(400, "InvalidNetworkInterfaceID.NotFound", &text));
        };
        let instance =
            interface.instance.clone().filter(|_| interface.own.is_none() && self.on(id).is_none());
        if let (Some(instance), Some(true)) = (instance, asked.is_true("AssociatePublicIpAddress")) {
            if let Some(found) = self.state.instances.get_mut(&instance) {
                found.assigns_own = true;
            }
            self.assign_own(&instance);
            self.unwritten
                .push_back(CloudChange::Other(format!("assigned an ephemeral address to {instance}")));
        }
        Ok(answer("ModifyNetworkInterfaceAttribute", &xml::text("return", "true")))
    }

    fn allocated(&self, asked: &Asked, allocation: &str) -> Result<String, Answer> {
        let is_it = |address: &Address| address.region == asked.region && address.allocation == allocation;
        let found = self.state.addresses.iter().find(|(_, address)| is_it(address));
        found.map(|(ip, _)| ip.clone()).ok_or_else(|| no_allocation(allocation))
    }
}

impl Asked {
    fn list_of_tags(&self) -> BTreeMap<String, String> {
        let tag = |number: u32| {
            let part = |part| self.get(&format!("TagSpecification.1.Tag.{number}.{part}"));
            Some((part("Key")?.to_owned(), part("Value").unwrap_or_default().to_owned()))
        };
        (1..).map_while(tag).collect()
    }
}

impl State {
    fn address_xml(&self, ip: &str, address: &Address) -> String {
        let tag = |(key, value): (&String, &String)| {
            xml::element("item", &(xml::text("key", key) + &xml::text("value", value)))
        };
        let tags: String = address.tags.iter().map(tag).collect();
        let mut body = xml::text("publicIp", ip)
            + &xml::text("allocationId", &address.allocation)
            + &xml::text("domain", "vpc")
            + &xml::text("networkBorderGroup", &address.region)
            + &xml::element("tagSet", &tags);
        if let Some((association, interface)) = &address.association {
            let found = self.interfaces.get(interface);
            body += &xml::text("associationId", association);
            body += &xml::text("networkInterfaceId", interface);
            body += &xml::text("networkInterfaceOwnerId", ACCOUNT);
            body += &xml::optional("instanceId", found.and_then(|found| found.instance.as_deref()));
            body += &xml::optional("privateIpAddress", found.map(|found| found.private.as_str()));
        }
        body
    }

    fn reservation_xml(&self, id: &str, instance: &Instance) -> String {
        let its = self.interfaces.iter().filter(|(_, interface)| interface.instance.as_deref() == Some(id));
        let interfaces: String = its.map(|(id, interface)| self.interface_xml(id, interface)).collect();
        let code = match instance.state {
            "running" => "16",
            "stopped" => "80",
            _ => "48",
        };
        let body = xml::text("instanceId", id)
            + &xml::element("instanceState", &(xml::text("code", code) + &xml::text("name", instance.state)))
            + &xml::element("networkInterfaceSet", &interfaces);
        let instances = xml::element("instancesSet", &xml::element("item", &body));
        let reservation = id.replacen("i-", "r-", 1);
        xml::element(
            "item",
            &(xml::text("reservationId", &reservation) + &xml::text("ownerId", ACCOUNT) + &instances),
        )
    }

    fn interface_xml(&self, id: &str, interface: &Interface) -> String {
        let holds = |address: &Address| address.association.as_ref().is_some_and(|(_, holder)| holder == id);
        let elastic = self.addresses.iter().find(|(_, address)| holds(address)).map(|(ip, _)| (ip, ACCOUNT));
        let association = elastic.or(interface.own.as_ref().map(|own| (own, "amazon")));
        let association = association.map(|(ip, owner)| {
            xml::element("association", &(xml::text("publicIp", ip) + &xml::text("ipOwnerId", owner)))
        });
        let attachment =
            xml::text("deviceIndex", &interface.device.to_string()) + &xml::text("status", "attached");
        let body = xml::text("networkInterfaceId", id)
            + &xml::text("privateIpAddress", &interface.private)
            + &xml::element("attachment", &attachment)
            + &association.unwrap_or_default();
        xml::element("item", &body)
    }
}

fn associated(association: &str) -> String {
    xml::text("return", "true") + &xml::text("associationId", association)
}

fn no_allocation(allocation: &str) -> Answer {
    error(400, "InvalidAllocationID.NotFound", &format!("The allocation ID '{allocation}' does not exist"))
}

fn answer(call: &str, body: &str) -> Answer {
    let inner = xml::text("requestId", "00000000-0000-4000-8000-000000000000") + body;
    let body = xml::element(&format!("{call}Response"), &inner);
    Answer::text(200, "text/xml;charset=UTF-8", &body)
}
