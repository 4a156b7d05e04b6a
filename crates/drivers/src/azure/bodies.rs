//! JSON bodies of Azure Resource Manager, with the fields that the driver reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plan::{Address, Doubt, Holding, MachineState, MayBeOn, VmId};
use serde::Deserialize;

use super::ids::ResourceId;
use super::interface::{Interface, State};
use crate::address::CHANGING;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<T> {
    pub(super) value: Vec<T>,
    pub(super) next_link: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct PublicIp {
    pub(super) id: String,
    pub(super) location: Option<String>,
    pub(super) tags: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) properties: PublicIpProperties,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PublicIpProperties {
    pub(super) ip_address: Option<String>,
    pub(super) provisioning_state: Option<String>,
    pub(super) ip_configuration: Option<Link>,
    pub(super) nat_gateway: Option<Link>,
}

#[derive(Deserialize)]
pub(super) struct Link {
    pub(super) id: String,
}

impl PublicIp {
    pub(super) fn address(&self) -> Option<Address> {
        self.properties.ip_address.as_deref()?.parse().ok()
    }

    pub(super) fn tag(&self) -> Option<&str> {
        self.tags.as_ref()?.get(TAG).map(String::as_str)
    }

    pub(super) fn state(&self) -> State {
        State::of(self.properties.provisioning_state.as_deref())
    }

    pub(super) fn holder(&self) -> Option<HolderId> {
        let PublicIpProperties { ip_configuration, nat_gateway, .. } = &self.properties;
        let Link { id } = ip_configuration.as_ref().or(nat_gateway.as_ref())?;
        Some(match ResourceId::parse(id) {
            Some(parsed) if parsed.is_interface() => {
                let interface = id.to_lowercase().find("/ipconfigurations/").and_then(|end| id.get(..end));
                HolderId::Interface(interface.unwrap_or(id).to_owned())
            }
            Some(parsed) => HolderId::Other(parsed.as_holder()),
            // An ID in an unknown format is a holder too.
            None => HolderId::Other(id.to_lowercase().into()),
        })
    }

    /// The holder of the address. `interface` looks up a listed interface by its ID, and `shown` are the VMs of all
    /// listed interfaces.
    pub(super) fn holding<'a>(
        &self,
        interface: impl Fn(&str) -> Option<&'a Interface>,
        shown: &Arc<BTreeSet<VmId>>,
    ) -> Holding {
        if self.state() == State::Changing {
            return Holding::Unknown(CHANGING.into());
        }
        match self.holder() {
            None => Holding::Free,
            Some(HolderId::Other(holder)) => Holding::By(holder),
            Some(HolderId::Interface(id)) => match interface(&id) {
                Some(found) if found.state() == State::Changing => unknown_on([found]),
                Some(found) => Holding::By(found.holder().unwrap_or_else(|| id.as_str().into())),
                // The interface was created or deleted between the two listings, or the role does not cover it. It may
                // be on any VM, even on that of a node. But it is not one of the interfaces that Azure shows.
                None => {
                    let why = format!(
                        "it is attached to {id}, which Azure does not show: check that the controller's role can read it"
                    );
                    let may_be_on = MayBeOn::AllBut(Arc::clone(shown));
                    Holding::Unknown(Doubt { may_be_on, ..why.into() })
                }
            },
        }
    }
}

/// The state of an address while a change of at least one of these interfaces is in flight. Any of them may hold it.
pub(super) fn unknown_on<'a>(interfaces: impl IntoIterator<Item = &'a Interface>) -> Holding {
    // The change of an interface without a VM may be the one that attaches it to a VM.
    let machines = interfaces.into_iter().map(Interface::machine).collect::<Option<_>>();
    let may_be_on = machines.map_or(MayBeOn::Any, MayBeOn::Only);
    Holding::Unknown(Doubt { may_be_on, ..CHANGING.into() })
}

#[derive(Deserialize)]
pub(super) struct Machine {
    pub(super) id: String,
    #[serde(default)]
    pub(super) properties: MachineProperties,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MachineProperties {
    pub(super) instance_view: InstanceView,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct InstanceView {
    pub(super) statuses: Vec<Status>,
}

#[derive(Deserialize)]
pub(super) struct Status {
    pub(super) code: String,
}

impl Machine {
    /// A VM counts as stopped only if its status says so.
    pub(super) fn state(&self) -> MachineState {
        let is_off = |status: &Status| {
            matches!(status.code.to_lowercase().as_str(), "powerstate/deallocated" | "powerstate/stopped")
        };
        match self.properties.instance_view.statuses.iter().any(is_off) {
            true => MachineState::Stopped,
            false => MachineState::Running,
        }
    }
}

/// What holds an address.
pub(super) enum HolderId {
    /// A network interface, by its resource ID.
    Interface(String),
    /// Anything else, such as a load balancer.
    Other(VmId),
}

impl std::fmt::Display for HolderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interface(id) => f.write_str(id),
            Self::Other(holder) => holder.fmt(f),
        }
    }
}

/// The key of the tag on addresses that the controller creates.
pub(super) const TAG: &str = "ip-address-controller";
