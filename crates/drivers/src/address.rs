//! What every driver of a cloud can do: list a scope's addresses, and take one step of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use plan::{Address, Holding, MachineState, Scope, VmId};

use crate::DriverError;

/// Moves addresses between the machines of one cloud.
///
/// `attach` and `detach` each take one step towards their goal and are called again until they say [`Progress::Done`],
/// so a caller that died in between goes on where the cloud is, not where it remembers to be.
pub trait AddressDriver: Send + Sync {
    /// Every address of a scope with its holder, in as few calls as the cloud allows.
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>>;

    /// The same, and those of these addresses that exist and that a listing does not show, each of which is read by itself. Most
    /// clouds list every address.
    fn list_with<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        let _ = addresses;
        self.list(scope)
    }

    /// The same for those who may not list: these addresses, as far as they are on these machines, each of which is asked.
    /// One that is on none of them is told to be free, and it is left to the cloud to refuse it to another machine.
    fn list_one_by_one<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
        machines: &'a BTreeSet<VmId>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        let _ = (addresses, machines);
        self.list(scope)
    }

    /// Puts an address that nobody holds on a machine; where [`Traits::moves_in_one_call`], one that another holds too. A
    /// machine whose own address is in the way is told as [`Progress::Occupied`], and nothing is done.
    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>>;

    /// Does the same, and takes a machine's own address off where it is in the way.
    fn replace<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.attach(scope, address, vm)
    }

    /// Gives a machine that has no address at all one of its own, once the given one has left it. A machine that has any, or
    /// is gone, is already done.
    fn restore<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        let _ = (scope, address, vm);
        Box::pin(async { Ok(Progress::Done) })
    }

    /// Takes an address off the machine that holds it. One that is on none is already done; one that is seen to be on another machine is
    /// a conflict, because who has it is not what whoever asks believes.
    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>>;

    /// Takes note of the name that an address had in its PTR record, before it is attached: the machine's access config gets it
    /// again, where the cloud keeps it there.
    fn keep_ptr(&self, address: Address, name: &str) {
        let _ = (address, name);
    }

    /// Asks for one new address. It carries the tag from its first moment on, where one is given.
    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        let _ = (region, tag);
        let message = format!("{} creates no addresses here: list existing ones", scope.provider);
        Box::pin(async { Err(DriverError::Invalid(message)) })
    }

    /// Gives an address that nobody holds back to the cloud for good. One that does not exist is already done. The driver reads
    /// the address right before; one that does not carry `tag` then is a conflict and stays.
    fn release<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        let _ = tag;
        let message = format!("{} releases no addresses here: {address} stays", scope.provider);
        Box::pin(async { Err(DriverError::Invalid(message)) })
    }

    /// Whether operations have ended, in the order given. An error says that this is not known.
    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>>;

    /// What the cloud says of its machines: proof that a holder is dead. One that it does not name is gone.
    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>>;

    /// What the cloud can do.
    fn traits(&self) -> Traits;
}

/// What a cloud says of a scope's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The addresses that were told, and who holds them.
    pub addresses: BTreeMap<Address, Listed>,
    /// The parts that were not told, such as a region that did not answer. While there are any, an address that is not
    /// in `addresses` is unknown; otherwise it does not exist.
    pub untold: Vec<String>,
    /// Those of which the cloud may tell what was wanted, and not what is, because a change of their holder has failed.
    pub doubtful: BTreeSet<Address>,
    /// Whether addresses can carry tags, and whether those that they carry were told.
    pub tags: Tags,
    /// The permission that is missing, where this is all that can be told without it.
    pub without: Option<String>,
}

/// Whether addresses carry tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tags {
    /// They can't, or the credentials don't allow it.
    #[default]
    Unsupported,
    /// They can, and every tag was told.
    Told,
    /// They may, but this time it was not told.
    Untold,
}

/// What a cloud says of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Who holds it. While the cloud is carrying out a change of it, that is not known.
    pub holding: Holding,
    /// The region in which it can be used.
    pub region: Option<Arc<str>>,
    /// The tag that it was created with.
    pub tag: Option<Arc<str>>,
}

impl Listing {
    /// What is known of one address.
    pub fn told(&self, address: Address) -> Listed {
        let unlisted = |holding| Listed { holding, region: None, tag: None };
        match self.addresses.get(&address) {
            Some(listed) => listed.clone(),
            None if self.untold.is_empty() => unlisted(Holding::Missing),
            None => {
                let reason = format!("the cloud did not tell of {}", self.untold.join(", "));
                unlisted(Holding::Unknown(reason.into()))
            }
        }
    }
}

/// Why the holder of an address that is being changed is not known.
pub(crate) const CHANGING: &str = "the cloud is still carrying out a change of this address";

/// How far a change has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Done,
    /// The cloud is carrying out an operation; ask again when it has ended.
    Underway(Operation),
    /// The machine has an address of its own, which would have to go first.
    Occupied,
    /// The address has this name in its PTR record, and would lose it. Nothing was done: the caller writes the name down, and calls
    /// again.
    Named(Arc<str>),
}

/// An operation that the cloud carries out on its own time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The cloud's id of it, with whatever else the driver needs to find it again.
    pub id: String,
    /// The scope it belongs to.
    pub scope: Scope,
    /// The address it is about.
    pub address: Address,
    /// The machine that shall hold the address in the end; none where the address is taken off.
    pub target: Option<VmId>,
    /// Whether the change is done when this operation has ended well, or has further steps.
    pub completes: bool,
}

/// Whether an operation has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// It has, well.
    Ended,
    /// It has, without effect.
    Failed(DriverError),
    /// Not yet.
    StillUnderway,
}

/// What a cloud can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Attaching an address takes it off its present holder in the same operation.
    pub moves_in_one_call: bool,
    /// For how long what is read may be what was before a change that somebody else was answered.
    pub late_max: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_listing_did_not_tell_is_unknown_and_never_missing() {
        let address: Address = "203.0.113.7".parse().unwrap();
        let mut listing = Listing::default();
        assert_eq!(listing.told(address).holding, Holding::Missing);
        listing.untold.push("regions/us-west1".into());
        assert!(matches!(listing.told(address).holding, Holding::Unknown(_)));
        listing.addresses.insert(address, Listed { holding: Holding::Free, region: None, tag: None });
        assert_eq!(listing.told(address).holding, Holding::Free);
    }
}
