//! What every driver of names shares: the trait, and the mark that says whose a set of records is.
//!
//! A driver reads and writes sets; it never chooses what is in one. It writes only where the set still is as it was read: by
//! a precondition where the provider has one, otherwise by reading again right before.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use plan::{Address, PoolKey, RecordName, RecordSet};

use crate::DriverError;

/// Publishes names at one provider.
pub trait RecordDriver: Send + Sync {
    /// A set of records and whose mark is on it. One that does not exist is empty.
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        object: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>>;

    /// Lets a set that still is as it was read hold other values, under our mark. It is never empty in between where it is not
    /// before and after. A set that has become another is told as a conflict, and left as it is.
    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>>;
}

/// A change of a set of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// Which set.
    pub name: RecordName,
    /// For whom.
    pub object: PoolKey,
    /// What was read.
    pub old: RecordSet,
    /// What it shall be; without values and mark it goes.
    pub new: RecordSet,
}

impl RecordChange {
    /// The error for a set that is not as it was read.
    pub fn outdated(&self, found: &RecordSet) -> DriverError {
        let values: Vec<_> = found.values.iter().map(ToString::to_string).collect();
        DriverError::Conflict(format!("{} was changed by somebody else: it holds {values:?}", self.name))
    }

    /// Fails where a set is not as it was read.
    pub fn check(&self, found: &RecordSet) -> Result<(), DriverError> {
        let is_as_read = found.values == self.old.values && found.owner == self.old.owner;
        if is_as_read || plan::sabotaged!(RecordBlindlyWritten) { Ok(()) } else { Err(self.outdated(found)) }
    }
}

/// What tells a set of records, one for each value, from what it shall be.
pub(crate) struct Difference<'a, R> {
    /// Records whose value stays.
    pub(crate) stays: Vec<&'a R>,
    /// Records that get another value: at no moment is the name without one.
    pub(crate) exchanged: Vec<(&'a R, Address)>,
    /// Values that there is no record for.
    pub(crate) added: Vec<Address>,
    /// Records that are not needed any more.
    pub(crate) gone: Vec<&'a R>,
}

impl<'a, R> Difference<'a, R> {
    /// Between what was found and the values that are wanted.
    pub(crate) fn new(found: &'a [(Address, R)], wanted: &BTreeSet<Address>) -> Self {
        let is_found = |value: &Address| found.iter().any(|(known, _)| known == value);
        let mut added: Vec<Address> = wanted.iter().copied().filter(|value| !is_found(value)).collect();
        let (stays, gone): (Vec<_>, Vec<_>) = found.iter().partition(|(value, _)| wanted.contains(value));
        let [stays, mut gone] =
            [stays, gone].map(|records| records.into_iter().map(|(_, record)| record).collect::<Vec<_>>());
        let pairs = added.len().min(gone.len());
        let exchanged = gone.drain(..pairs).zip(added.drain(..pairs)).collect();
        Self { stays, exchanged, added, gone }
    }
}

/// The name of the record that carries our mark, beside the set.
pub fn mark_name(name: &RecordName) -> String {
    format!("_owner-{}.{}", name.kind.name().to_ascii_lowercase(), name.name)
}

const HERITAGE: &str = "heritage=ip-address-controller,owner=";

/// What the record beside a set says.
pub fn mark(owner: &str) -> String {
    format!("{HERITAGE}{owner}")
}

/// The owner that such a record names.
pub fn owner_in(mark: &str) -> Option<Arc<str>> {
    mark.trim_matches('"').strip_prefix(HERITAGE).map(Into::into)
}
