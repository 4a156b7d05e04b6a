//! Public addresses, network interfaces and virtual machines, each with what Azure tells of it.
//!
//! Out: a resource in the API's own form, and which addresses an interface has or is losing. It never knows who asks, nor what else
//! there is in the subscription.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(super) struct PublicIp {
    pub(super) id: String,
    pub(super) location: String,
    /// None until it has been created.
    pub(super) ip: Option<String>,
    pub(super) sku: String,
    pub(super) tags: Value,
    pub(super) etag: u64,
    pub(super) state: &'static str,
    /// What holds it that is no interface, such as a load balancer's frontend.
    pub(super) other_holder: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) id: String,
    /// The machine it belongs to, by id.
    pub(super) machine: Option<String>,
    pub(super) is_primary: bool,
    pub(super) etag: u64,
    pub(super) state: &'static str,
    /// Everything that a client can set.
    pub(super) body: Value,
    /// The addresses that it loses when the operation under way has ended, by id, and the configurations that had them.
    pub(super) leaving: BTreeMap<String, String>,
    /// The addresses that it says it has and has not, by id, because the operation that was to bring them has failed.
    pub(super) missing: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub(super) struct VirtualMachine {
    pub(super) id: String,
    pub(super) location: String,
    pub(super) is_running: bool,
}

pub(super) fn is_link_to(link: &Value, id: &str) -> bool {
    link["id"].as_str().is_some_and(|found| found.eq_ignore_ascii_case(id))
}

impl Interface {
    pub(super) fn configurations(&self) -> &[Value] {
        self.body["properties"]["ipConfigurations"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn configurations_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.body["properties"]["ipConfigurations"].as_array_mut().into_iter().flatten()
    }

    /// The configuration that has an address, or that is losing it.
    pub(super) fn configuration_of(&self, public: &str) -> Option<String> {
        let link =
            |configuration: &&Value| is_link_to(&configuration["properties"]["publicIPAddress"], public);
        let present = self.configurations().iter().find(link).and_then(|found| found["name"].as_str());
        let is_leaving = |(id, _): &(&String, &String)| id.eq_ignore_ascii_case(public);
        let leaving = || self.leaving.iter().find(is_leaving).map(|(_, name)| name.as_str());
        let name = present.or_else(leaving)?;
        Some(format!("{}/ipConfigurations/{name}", self.id))
    }

    pub(super) fn has(&self, public: &str) -> bool {
        self.configuration_of(public).is_some()
    }

    /// The ids of all addresses that it has or is losing.
    pub(super) fn publics(&self) -> Vec<String> {
        let links = self.configurations().iter();
        let present = links.filter_map(|found| found["properties"]["publicIPAddress"]["id"].as_str());
        present.map(ToOwned::to_owned).chain(self.leaving.keys().cloned()).collect()
    }
}

impl PublicIp {
    pub(super) fn to_json(&self, holder: Option<&String>) -> Value {
        let mut body = json!({
            "id": self.id,
            "name": self.id.rsplit('/').next(),
            "type": "Microsoft.Network/publicIPAddresses",
            "location": self.location,
            "etag": etag_of(self.etag),
            "sku": { "name": self.sku, "tier": "Regional" },
            "properties": {
                "provisioningState": self.state,
                "resourceGuid": "00000000-0000-0000-0000-000000000002",
                "publicIPAddressVersion": "IPv4",
                "publicIPAllocationMethod": "Static",
                "idleTimeoutInMinutes": 4,
                "ipTags": [],
            },
        });
        if let Some(ip) = &self.ip {
            body["properties"]["ipAddress"] = json!(ip);
        }
        if let Some(holder) = holder {
            body["properties"]["ipConfiguration"] = json!({ "id": holder });
        }
        if !self.tags.is_null() {
            body["tags"] = self.tags.clone();
        }
        body
    }
}

impl Interface {
    pub(super) fn to_json(&self) -> Value {
        let mut body = self.body.clone();
        body["id"] = json!(self.id);
        body["name"] = json!(self.id.rsplit('/').next());
        body["type"] = json!("Microsoft.Network/networkInterfaces");
        body["etag"] = json!(etag_of(self.etag));
        let properties = &mut body["properties"];
        properties["provisioningState"] = json!(self.state);
        properties["resourceGuid"] = json!("00000000-0000-0000-0000-000000000003");
        properties["macAddress"] = json!("00-0D-3A-00-00-01");
        if let Some(machine) = &self.machine {
            properties["virtualMachine"] = json!({ "id": machine });
            properties["primary"] = json!(self.is_primary);
        }
        for configuration in properties["ipConfigurations"].as_array_mut().into_iter().flatten() {
            let name = configuration["name"].as_str().unwrap_or_default();
            configuration["id"] = json!(format!("{}/ipConfigurations/{name}", self.id));
            configuration["type"] = json!("Microsoft.Network/networkInterfaces/ipConfigurations");
            configuration["etag"] = json!(etag_of(self.etag));
            configuration["properties"]["provisioningState"] = json!("Succeeded");
        }
        body
    }
}

pub(super) fn etag_of(number: u64) -> String {
    format!("W/\"00000000-0000-0000-0000-{number:012}\"")
}
