//! JSON bodies of Compute Engine, with the fields that the driver reads.

use std::collections::BTreeMap;

use plan::Address;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddressPage {
    #[serde(default)]
    pub(super) items: BTreeMap<String, AddressList>,
    #[serde(default)]
    pub(super) unreachables: Vec<String>,
    pub(super) next_page_token: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct AddressList {
    #[serde(default)]
    pub(super) addresses: Vec<AddressBody>,
    pub(super) warning: Option<Warning>,
}

#[derive(Deserialize)]
pub(super) struct Warning {
    pub(super) code: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddressBody {
    #[serde(default)]
    pub(super) name: String,
    pub(super) address: Option<String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) address_type: String,
    pub(super) network_tier: Option<String>,
    pub(super) region: Option<String>,
    #[serde(default)]
    pub(super) users: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstancePage {
    #[serde(default)]
    pub(super) items: BTreeMap<String, InstanceList>,
    #[serde(default)]
    pub(super) unreachables: Vec<String>,
    pub(super) next_page_token: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct InstanceList {
    #[serde(default)]
    pub(super) instances: Vec<InstanceState>,
    pub(super) warning: Option<Warning>,
}

#[derive(Deserialize)]
pub(super) struct InstanceState {
    pub(super) name: String,
    pub(super) zone: String,
    pub(super) status: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instance {
    #[serde(default)]
    pub(super) network_interfaces: Vec<NetworkInterface>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NetworkInterface {
    pub(super) name: String,
    #[serde(default)]
    pub(super) access_configs: Vec<AccessConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccessConfig {
    pub(super) name: String,
    #[serde(rename = "natIP")]
    pub(super) nat_ip: Option<String>,
    pub(super) public_ptr_domain_name: Option<String>,
}

impl AccessConfig {
    /// The external address. `None` if Google has not assigned an ephemeral address yet.
    pub(super) fn address(&self) -> Option<Address> {
        self.nat_ip.as_deref()?.parse().ok()
    }

    /// The name of the public PTR record.
    pub(super) fn ptr(&self) -> Option<&str> {
        self.public_ptr_domain_name.as_deref().filter(|name| !name.is_empty())
    }
}

#[derive(Deserialize)]
pub(super) struct OperationPage {
    #[serde(default)]
    pub(super) items: Vec<OperationBody>,
}

#[derive(Deserialize)]
pub(super) struct OperationBody {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) error: Option<OperationErrors>,
}

#[derive(Deserialize)]
pub(super) struct OperationErrors {
    #[serde(default)]
    pub(super) errors: Vec<OperationError>,
}

#[derive(Deserialize)]
pub(super) struct OperationError {
    #[serde(default)]
    pub(super) code: String,
    #[serde(default)]
    pub(super) message: String,
}
