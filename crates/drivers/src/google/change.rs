//! A change of a machine's interface that Compute Engine carries out, and whether the machine shows it.

use plan::{Address, VmId};
use tokio::time::Instant;

use super::bodies::{AccessConfig, NetworkInterface};

/// What an operation changes, so that the machine tells whether it has ended where the operation can't be looked at.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) vm: VmId,
    pub(super) interface: String,
    pub(super) what: What,
    pub(super) since: Instant,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// It gives the interface this address, or an ephemeral one.
    Adds(Option<Address>),
    /// It removes this config from the interface.
    Removes(AccessConfig),
}

impl Change {
    /// Whether the machine shows it.
    pub(super) fn is_shown(&self, interfaces: &[NetworkInterface]) -> bool {
        let found = interfaces.iter().filter(|interface| interface.name == self.interface);
        let mut configs = found.flat_map(|interface| &interface.access_configs);
        match &self.what {
            What::Adds(Some(address)) => configs.any(|config| config.address() == Some(*address)),
            What::Adds(None) => configs.any(|config| config.address().is_some()),
            What::Removes(removed) => configs.all(|config| config != removed),
        }
    }
}
