//! The interface of all DNS drivers, and the mark that says who owns a record set.
//!
//! A driver reads and writes record sets. It never decides what is in them. It writes a set only if the set has not
//! changed since the read: it sends a precondition if the provider has one, and otherwise reads the set again right
//! before the write.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use plan::{Address, PoolKey, RecordName, RecordSet};

use crate::DriverError;

/// Publishes DNS records at one provider.
pub trait RecordDriver: Send + Sync {
    /// Reads a record set and its owner. A set that does not exist is empty.
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        object: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>>;

    /// Changes a record set to new values with the controller's mark. A set that has values before and after is never
    /// empty in between. If the set has changed since it was read, the driver leaves it and returns a conflict.
    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>>;
}

/// A change of a record set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// The record set.
    pub name: RecordName,
    /// The object that publishes the name.
    pub object: PoolKey,
    /// The set as it was read.
    pub old: RecordSet,
    /// The new set. If it has no values and no owner, the driver deletes the set and its mark.
    pub new: RecordSet,
}

impl RecordChange {
    /// The error for a set that has changed since it was read.
    pub fn outdated(&self, found: &RecordSet) -> DriverError {
        let values: Vec<_> = found.values.iter().map(ToString::to_string).collect();
        DriverError::Conflict(format!(
            "{} changed after the controller read it: it now has {values:?}",
            self.name
        ))
    }

    /// Fails if a set has changed since it was read.
    pub fn check(&self, found: &RecordSet) -> Result<(), DriverError> {
        let is_as_read = found.values == self.old.values && found.owner == self.old.owner;
        if is_as_read || plan::sabotaged!(RecordBlindlyWritten) { Ok(()) } else { Err(self.outdated(found)) }
    }
}

/// The difference between the records of a set, one for each value, and the new values.
pub(crate) struct Difference<'a, R> {
    /// Records that keep their value.
    pub(crate) stays: Vec<&'a R>,
    /// Records that get another value in place, so that the name always has one.
    pub(crate) exchanged: Vec<(&'a R, Address)>,
    /// Values that need a new record.
    pub(crate) added: Vec<Address>,
    /// Records to delete.
    pub(crate) gone: Vec<&'a R>,
}

impl<'a, R> Difference<'a, R> {
    /// Compares the records that were found with the wanted values.
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

/// The name of the TXT record with the mark of a set.
pub fn mark_name(name: &RecordName) -> String {
    format!("_owner-{}.{}", name.kind.name().to_ascii_lowercase(), name.name)
}

const HERITAGE: &str = "heritage=ip-address-controller,owner=";

/// The text of a mark.
pub fn mark(owner: &str) -> String {
    format!("{HERITAGE}{owner}")
}

/// The owner in the text of a mark. `None` if it is not a mark of the controller.
pub fn owner_in(mark: &str) -> Option<Arc<str>> {
    mark.trim_matches('"').strip_prefix(HERITAGE).map(Into::into)
}
