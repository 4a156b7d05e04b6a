//! Changes that passed the checks of their calls, and their operations.
//!
//! Out: an operation in the API's format. This module never changes the state: `operations` carries changes out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::problem::Failure;
use super::resources::{Address, timestamp, url};
use super::routes::Place;

/// An accepted change.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) place: Place,
    pub(super) location: String,
    pub(super) kind: &'static str,
    pub(super) target: String,
    pub(super) target_id: u64,
    pub(super) order: Order,
    pub(super) begins: Duration,
    pub(super) ends: Duration,
    pub(super) fails_late: bool,
    pub(super) outcome: Option<Result<(), Failure>>,
}

/// The change that an operation makes.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Attach an external address to an interface: a reserved one, or an ephemeral one if `ip` is `None`.
    Attach {
        instance: (String, String),
        interface: usize,
        config: String,
        tier: String,
        ip: Option<String>,
        ptr: Option<String>,
    },
    /// Remove the external address of an interface.
    Detach { instance: (String, String), interface: usize, config: String },
    /// Reserve an address.
    Reserve(Box<Address>),
    /// Release an address.
    Release { address: (String, String) },
    /// Replace the labels of an address, if they still have this fingerprint.
    Label { address: (String, String), labels: BTreeMap<String, String>, fingerprint: String },
}

impl Order {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Attach { .. } => "addAccessConfig",
            Self::Detach { .. } => "deleteAccessConfig",
            Self::Reserve(_) => "insert",
            Self::Release { .. } => "delete",
            Self::Label { .. } => "setLabels",
        }
    }

    pub(super) fn place(&self) -> Place {
        match self {
            Self::Attach { .. } | Self::Detach { .. } => Place::Zone,
            Self::Reserve(_) | Self::Release { .. } | Self::Label { .. } => Place::Region,
        }
    }

    /// Returns the region or zone, the collection and the name of the resource that the change affects.
    pub(super) fn target(&self) -> (&str, &'static str, &str) {
        match self {
            Self::Attach { instance: (zone, name), .. } | Self::Detach { instance: (zone, name), .. } => {
                (zone, "instances", name)
            }
            Self::Release { address: (region, name) } | Self::Label { address: (region, name), .. } => {
                (region, "addresses", name)
            }
            Self::Reserve(address) => (&address.region, "addresses", &address.name),
        }
    }
}

impl Operation {
    fn name(&self) -> String {
        format!("operation-{}", self.id)
    }

    /// Whether the operation has this name or number.
    pub(super) fn is_called(&self, name: &str) -> bool {
        name.strip_prefix("operation-").unwrap_or(name) == self.id.to_string()
    }

    /// The scope of the operation in aggregated listings.
    pub(super) fn scope(&self) -> String {
        format!("{}/{}", self.place.plural(), self.location)
    }

    pub(super) fn to_json(&self, project: &str, now: Duration) -> Value {
        let half_time = self.begins + (self.ends - self.begins) / 2;
        let status = match &self.outcome {
            Some(_) => "DONE",
            None if now < half_time => "PENDING",
            None => "RUNNING",
        };
        let place = format!("projects/{project}/{}/{}", self.place.plural(), self.location);
        let mut json = json!({
            "kind": "compute#operation",
            "id": self.id.to_string(),
            "name": self.name(),
            "operationType": self.kind,
            "targetLink": url(&self.target),
            "targetId": self.target_id.to_string(),
            "status": status,
            "progress": if self.outcome.is_some() { 100 } else { 0 },
            "insertTime": timestamp(self.begins),
            "selfLink": url(&format!("{place}/operations/{}", self.name())),
        });
        json[if self.place == Place::Zone { "zone" } else { "region" }] = json!(url(&place));
        if status != "PENDING" {
            json["startTime"] = json!(timestamp(half_time));
        }
        if let Some(outcome) = &self.outcome {
            json["endTime"] = json!(timestamp(self.ends));
            if let Err(failure) = outcome {
                failure.write_into(&mut json);
            }
        }
        json
    }
}
