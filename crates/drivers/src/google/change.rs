//! A change of a network interface by an operation, and whether the VM shows it.

use plan::{Address, VmId};
use tokio::time::Instant;

use super::bodies::{AccessConfig, NetworkInterface};

/// What an operation changes. Without the permission to read operations, the driver reads the VM to see whether the
/// operation has ended.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) vm: VmId,
    pub(super) interface: String,
    pub(super) what: What,
    pub(super) since: Instant,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// Adds this address to the interface, or an ephemeral one if `None`.
    Adds(Option<Address>),
    /// Removes this access config from the interface.
    Removes(AccessConfig),
}

impl Change {
    /// Whether the interfaces of the VM show the change.
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
