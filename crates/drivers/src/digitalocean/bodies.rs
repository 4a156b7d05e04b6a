//! JSON bodies of the DigitalOcean API, with the fields that the driver reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use plan::{Address, Holding};
use serde::Deserialize;

use crate::DriverError;
use crate::address::CHANGING;
use crate::http::unreadable;

#[derive(Deserialize)]
pub(super) struct One {
    pub(super) reserved_ip: ReservedIp,
}

#[derive(Deserialize)]
pub(super) struct ReservedIp {
    pub(super) ip: String,
    pub(super) droplet: Option<Droplet>,
    pub(super) region: Option<Region>,
    #[serde(default)]
    pub(super) locked: bool,
    pub(super) project_id: Option<String>,
}

impl ReservedIp {
    pub(super) fn address(&self, name: &str) -> Result<Address, DriverError> {
        self.ip.parse().map_err(|_| unreadable(name, &self.ip))
    }

    /// The tag of the address: the name of its project.
    pub(super) fn tag(&self, projects: Option<&BTreeMap<String, Arc<str>>>) -> Option<Arc<str>> {
        projects?.get(self.project_id.as_ref()?).cloned()
    }

    pub(super) fn holding(&self) -> Holding {
        match &self.droplet {
            _ if self.locked => Holding::Unknown(CHANGING.into()),
            Some(droplet) => Holding::By(droplet.id.to_string().into()),
            None => Holding::Free,
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Made {
    pub(super) project: Project,
}

#[derive(Deserialize)]
pub(super) struct Project {
    pub(super) id: String,
    pub(super) name: String,
}

#[derive(Deserialize)]
pub(super) struct Region {
    pub(super) slug: String,
}

#[derive(Deserialize)]
pub(super) struct Droplet {
    pub(super) id: u64,
    pub(super) status: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Started {
    pub(super) action: Action,
}

#[derive(Deserialize)]
pub(super) struct Action {
    pub(super) id: u64,
    pub(super) status: Option<String>,
}
