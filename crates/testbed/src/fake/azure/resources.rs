//! Public addresses, network interfaces and virtual machines, and their JSON.
//!
//! Out: a resource in the API's format, and which addresses an interface holds or is losing. This module never reads a
//! request, and never looks at other resources of the subscription.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

#[derive(Clone, Debug)]
pub(super) struct PublicIp {
    pub(super) id: String,
    pub(super) location: String,
    /// `None` until the creation has finished.
    pub(super) ip: Option<String>,
    pub(super) sku: String,
    pub(super) tags: Value,
    pub(super) etag: u64,
    pub(super) state: &'static str,
    /// A holder other than an interface, such as the frontend of a load balancer.
    pub(super) other_holder: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) id: String,
    /// The ID of the VM that it belongs to.
    pub(super) machine: Option<String>,
    pub(super) is_primary: bool,
    pub(super) etag: u64,
    pub(super) state: &'static str,
    /// All properties that a client can set.
    pub(super) body: Value,
    /// The addresses that the operation in flight detaches, by ID, and the names of the configurations that had them.
    pub(super) leaving: BTreeMap<String, String>,
    /// The addresses that the interface shows but does not hold, by ID, because the operation that attached them
    /// failed.
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

    /// Returns the configuration that holds an address or is losing it.
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

    /// Returns the IDs of all addresses that it holds or is losing.
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
