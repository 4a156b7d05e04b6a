//! The interface of all address drivers: list the addresses of a scope, and take one step of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use plan::{Address, Doubt, Holding, MachineState, MayBeOn, Scope, VmId};

use crate::DriverError;

/// Moves addresses between the VMs of one provider.
///
/// `attach` and `detach` each take one step towards their goal. The caller repeats the call until it returns
/// [`Progress::Done`]. Each step depends only on the state at the provider, so a new leader can resume where the
/// previous one crashed.
pub trait AddressDriver: Send + Sync {
    /// Lists every address of a scope with its holder, in as few calls as the provider allows.
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>>;

    /// Like [`list`](Self::list), and also reads each of the given `addresses` that exists but that the provider does
    /// not list. Most providers list every address.
    fn list_with<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        let _ = addresses;
        self.list(scope)
    }

    /// Finds the holders of `addresses` without the permission to list them: it reads each of the given `machines`. An
    /// address that is on none of them is reported as free. If another VM holds it, the provider refuses to attach it.
    fn list_one_by_one<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
        machines: &'a BTreeSet<VmId>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        let _ = (addresses, machines);
        self.list(scope)
    }

    /// Attaches a free address to a VM. If [`Properties::moves_in_one_call`] is set, another VM may hold the address. If an
    /// ephemeral address of the VM is in the way, it changes nothing and returns [`Progress::Occupied`].
    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>>;

    /// Like [`attach`](Self::attach), but first removes an ephemeral address that is in the way.
    fn replace<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.attach(scope, address, vm)
    }

    /// Gives a VM an ephemeral address after `address` has been detached from it. Does nothing if the VM has any
    /// address or no longer exists.
    fn restore<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        let _ = (scope, address, vm);
        Box::pin(async { Ok(Progress::Done) })
    }

    /// Detaches an address from a VM. Returns [`Progress::Done`] if no VM holds the address. If the driver sees it on
    /// another VM, it returns a conflict, because the caller's view is outdated.
    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>>;

    /// Remembers the name that the PTR record of an address has, before the address is attached. A driver whose
    /// provider keeps this name in the VM's access config sets it again.
    fn keep_ptr(&self, address: Address, name: &str) {
        let _ = (address, name);
    }

    /// Creates an address. If a tag is given, the address has it from the moment it exists.
    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        let _ = (region, tag);
        let message =
            format!("the controller can't create addresses at {}: list existing ones", scope.provider);
        Box::pin(async { Err(DriverError::Invalid(message)) })
    }

    /// Releases a free address, which deletes it at the provider. Returns [`Progress::Done`] if the address does not
    /// exist. The driver reads the address right before it releases it. If the address does not have the tag `tag`, the
    /// driver keeps it and returns a conflict.
    fn release<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        let _ = tag;
        let message =
            format!("the controller can't release addresses at {}: {address} is kept", scope.provider);
        Box::pin(async { Err(DriverError::Invalid(message)) })
    }

    /// Polls operations. The results are in the order of `operations`. An error means that the state of that operation
    /// is unknown.
    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>>;

    /// Lists the VMs of a scope and their states. The planner uses this as proof that a holder is dead: a VM that is
    /// not in the result does not exist.
    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>>;

    /// Properties of the provider.
    fn properties(&self) -> Properties;
}

/// The addresses of a scope, as the provider lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The listed addresses and their holders.
    pub addresses: BTreeMap<Address, Listed>,
    /// The parts that the provider did not return, for example a region that did not answer. If there are any, an
    /// address that is not in `addresses` is unknown. If there are none, such an address does not exist.
    pub unreachable: Vec<String>,
    /// Which VMs may hold an address that is unknown because of `unreachable`.
    pub unlisted_may_be_on: MayBeOn,
    /// Addresses whose holder may be wrong: a change of the holder failed, and the provider may show the requested
    /// state instead of the actual one.
    pub unconfirmed: BTreeSet<Address>,
    /// Whether addresses can have tags, and whether this listing contains them.
    pub tags: Tags,
    /// The missing permission, if this listing is limited to what the driver can read without it.
    pub without: Option<String>,
}

/// Whether a listing contains the tags of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tags {
    /// Addresses can't have tags, or the credentials do not allow reading them.
    #[default]
    Unsupported,
    /// The listing contains every tag.
    Complete,
    /// Addresses may have tags that this listing does not contain.
    Incomplete,
}

/// One address, as the provider lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The holder. It is unknown while the provider changes the address.
    pub holding: Holding,
    /// The region in which the address can be used.
    pub region: Option<Arc<str>>,
    /// The tag that the address was created with.
    pub tag: Option<Arc<str>>,
}

impl Listing {
    /// What this listing contains about one address.
    pub fn get(&self, address: Address) -> Listed {
        let unlisted = |holding| Listed { holding, region: None, tag: None };
        match self.addresses.get(&address) {
            Some(listed) => listed.clone(),
            None if self.unreachable.is_empty() => unlisted(Holding::Missing),
            None => {
                let why =
                    format!("the listing is incomplete: {} did not answer", self.unreachable.join(", "));
                let may_be_on = self.unlisted_may_be_on.clone();
                unlisted(Holding::Unknown(Doubt { may_be_on, ..why.into() }))
            }
        }
    }
}

/// Why the holder of an address is unknown while the provider changes it.
pub(crate) const CHANGING: &str = "a change is still in flight at the provider";

/// The progress of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The change is done.
    Done,
    /// The provider runs an operation. Call again when it has ended.
    Underway(Operation),
    /// Nothing was changed: the VM has an ephemeral address, which would have to be removed first.
    Occupied,
    /// Nothing was changed: the address would lose this name in its PTR record. The caller stores the name and calls
    /// again.
    Named(Arc<str>),
}

/// An operation that the provider runs asynchronously.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The provider's ID of the operation, and everything else that the driver needs to find the operation again.
    pub id: String,
    /// The scope of the operation.
    pub scope: Scope,
    /// The address that the operation changes.
    pub address: Address,
    /// The VM that gets the address. `None` if no VM gets it, for example if the operation detaches the address.
    pub target: Option<VmId>,
    /// Whether the change is done when this operation succeeds. If not, more steps follow.
    pub completes: bool,
}

/// The state of a polled operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The operation succeeded.
    Ended,
    /// The operation failed, or the driver can't read its result.
    Failed(DriverError),
    /// The operation is still running.
    StillUnderway,
}

/// Properties of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Attaching an address also detaches it from its current holder, in the same operation.
    pub moves_in_one_call: bool,
    /// The provider refuses to attach an address to a VM that holds one, before it changes anything. A driver that reads
    /// the VM first does not replace this: what it reads can change or be stale. EC2 replaces the address without an
    /// error.
    pub refuses_occupied: bool,
    /// How long a read can still return the old state after the provider has confirmed a change.
    pub staleness_max: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_absent_from_an_incomplete_listing_is_unknown() {
        let address: Address = "203.0.113.7".parse().unwrap();
        let mut listing = Listing::default();
        assert_eq!(listing.get(address).holding, Holding::Missing);
        listing.unreachable.push("regions/us-west1".into());
        assert!(matches!(listing.get(address).holding, Holding::Unknown(_)));
        listing.addresses.insert(address, Listed { holding: Holding::Free, region: None, tag: None });
        assert_eq!(listing.get(address).holding, Holding::Free);
    }
}
