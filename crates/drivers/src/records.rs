//! What every driver of names shares: the trait, and the mark that says whose a set of records is.
//!
//! A driver reads and writes sets; it never chooses what is in one. It writes only where the set still is as it was read: by
//! a precondition where the provider has one, otherwise by reading again right before.

use std::sync::Arc;

use futures::future::BoxFuture;
use plan::{PoolKey, RecordKind, RecordName, RecordSet};

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

/// The name of the record that carries our mark, beside the set.
pub fn mark_name(name: &RecordName) -> String {
    let kind = match name.kind {
        RecordKind::A => "a",
        RecordKind::Aaaa => "aaaa",
    };
    format!("_owner-{kind}.{}", name.name)
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
