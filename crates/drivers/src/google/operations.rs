//! Operations of Compute Engine: what is in flight, and whether it has ended.
//!
//! In: the operations that changes have started. Out: whether each has ended. Without the permission to look at operations, the machine
//! tells.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use ::http::Method;
use futures::future::join_all;
use plan::{Address, Scope, VmId};
use tokio::time::Instant;

use super::addresses::Compute;
use super::bodies::{OperationBody, OperationPage};
use super::calls::{PAGE_SIZE, last_part, permission_of, polled};
use super::change::{Change, What};
use super::machine_id::parts_of;
use crate::http::Path;
use crate::{DriverError, Operation, Polled, Progress};

impl Compute {
    pub(super) fn change(&self, vm: &VmId, interface: &str, what: What) -> Change {
        Change { vm: vm.clone(), interface: interface.to_owned(), what, since: Instant::now() }
    }

    pub(super) fn underway(
        &self,
        operation: OperationBody,
        scope: &Scope,
        address: Address,
        change: Change,
        target: Option<&VmId>,
        completes: bool,
    ) -> Result<Progress, DriverError> {
        let (project, zone, _) = parts_of(&change.vm)?;
        let path = Path::new("projects/{}/zones/{}/operations/{}", &[&project, &zone, &operation.name]);
        let id = path.to_string();
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), change);
        let target = target.cloned();
        Ok(Progress::Underway(Operation { id, scope: scope.clone(), address, target, completes }))
    }

    /// Looks at operations, at those of one zone together.
    pub(super) async fn poll_all(&self, operations: &[Operation]) -> Vec<Result<Polled, DriverError>> {
        let mut by_zone = BTreeMap::<&str, Vec<&str>>::new();
        for id in operations.iter().map(|operation| operation.id.as_str()) {
            by_zone.entry(id.rsplit_once('/').map_or("", |(zone, _)| zone)).or_default().push(id);
        }
        let looks = by_zone
            .iter()
            .flat_map(|(zone, ids)| ids.chunks(OPERATIONS_AT_ONCE).map(|ids| self.poll_together(zone, ids)));
        let polled: BTreeMap<&str, _> = join_all(looks).await.into_iter().flatten().collect();
        let unasked = || Err(DriverError::Unavailable("it was not asked for".into()));
        let polled: Vec<_> = operations
            .iter()
            .map(|operation| polled.get(operation.id.as_str()).cloned().unwrap_or_else(unasked))
            .collect();
        for (operation, polled) in operations.iter().zip(&polled) {
            if matches!(polled, Ok(Polled::Ended | Polled::Failed(_))) {
                self.forget(&operation.id, matches!(polled, Ok(Polled::Ended)));
            }
        }
        polled
    }

    /// Forgets an operation that has ended. An address that has arrived has its PTR record's name again.
    pub(super) fn forget(&self, id: &str, is_well: bool) {
        let change = self.changes.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        if let (Some(Change { what: What::Adds(Some(address)), .. }), true) = (change, is_well) {
            self.ptrs.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        }
    }

    /// Looks at operations of one zone or region in one call, and by itself at each that this does not tell of: who may look at
    /// one may not always list them, a list may be refused for its length, and what it does not show has not ended for that.
    pub(super) async fn poll_together<'a>(
        &self,
        place: &str,
        ids: &[&'a str],
    ) -> Vec<(&'a str, Result<Polled, DriverError>)> {
        let is_alone = ids.len() == 1 || !place.contains("/zones/") || self.is_denied("zoneOperations.list");
        let listed = if is_alone { Ok(BTreeMap::new()) } else { self.list_operations(place, ids).await };
        let listed = match listed {
            Ok(listed) => listed,
            Err(error @ (DriverError::RateLimited { .. } | DriverError::NotSent(_))) => {
                return ids.iter().map(|id| (*id, Err(error.clone()))).collect();
            }
            Err(error) => {
                tracing::warn!(%error, "operations can't be listed, and are looked at one by one");
                if matches!(error, DriverError::Denied { .. }) {
                    self.deny("zoneOperations.list");
                }
                BTreeMap::new()
            }
        };
        let look = async |id: &'a str| match last_part(id).and_then(|name| listed.get(name)) {
            Some(polled) => (id, Ok(polled.clone())),
            None => (id, self.look_at(id).await),
        };
        join_all(ids.iter().map(|id| look(id))).await
    }

    /// Looks at one operation, or where that is not allowed at the machine that it changes.
    pub(super) async fn look_at(&self, id: &str) -> Result<Polled, DriverError> {
        let name = "zoneOperations.get";
        if !self.is_denied(name) {
            let polled = self.poll_path(&Path::encoded(id)).await;
            if !self.is_denied(name) {
                return polled;
            }
            tracing::warn!(
                permission = permission_of(name),
                "not allowed to read operations; reading each machine until it shows the change"
            );
        }
        let change = self.changes.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        match change {
            Some(change) => self.look_at_machine(&change).await,
            None => self.poll_path(&Path::encoded(id)).await,
        }
    }

    /// Judges an operation by the machine that it changes. One that has failed can't be told from one that takes long.
    pub(super) async fn look_at_machine(&self, change: &Change) -> Result<Polled, DriverError> {
        let is_shown = match self.interfaces(&change.vm).await {
            Err(DriverError::NotFound(_)) => matches!(change.what, What::Removes(_)),
            interfaces => change.is_shown(&interfaces?),
        };
        if is_shown {
            return Ok(Polled::Ended);
        }
        if change.since.elapsed() < UNSEEN_MAX {
            return Ok(Polled::StillUnderway);
        }
        let (permission, vm) = (permission_of("zoneOperations.get"), &change.vm);
        let message = format!(
            "permission {permission} is missing, and {vm} does not show the change after {} s",
            UNSEEN_MAX.as_secs()
        );
        Ok(Polled::Failed(DriverError::Unavailable(message)))
    }

    pub(super) fn deny(&self, name: &'static str) {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Instant::now());
    }

    pub(super) fn is_denied(&self, name: &str) -> bool {
        let denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied();
        denied.is_some_and(|at| at.elapsed() < DENIED_FOR)
    }

    pub(super) async fn list_operations(
        &self,
        zone: &str,
        ids: &[&str],
    ) -> Result<BTreeMap<String, Polled>, DriverError> {
        let names: Vec<_> = ids.iter().filter_map(|id| last_part(id)).collect();
        let filter = format!("name eq \"{}\"", names.join("|"));
        let path = Path::encoded(zone).and("?maxResults={}&filter={}", &[&PAGE_SIZE, &filter]);
        let page: OperationPage = self.api.call("zoneOperations.list", Method::GET, &path, None).await?;
        Ok(page.items.into_iter().map(|found| (found.name.clone(), polled(found))).collect())
    }

    pub(super) async fn poll_path(&self, path: &Path) -> Result<Polled, DriverError> {
        let name = if path.to_string().contains("/regions/") {
            "regionOperations.get"
        } else {
            "zoneOperations.get"
        };
        match self.api.call(name, Method::GET, path, None).await {
            // The cloud forgets operations long after they have ended, and this one was asked for all the time: what became of it
            // is not known.
            Err(DriverError::NotFound(message)) => Ok(Polled::Failed(DriverError::Unavailable(message))),
            // Nor will it be for who may not look at it, however often.
            Err(error @ (DriverError::Denied { .. } | DriverError::Invalid(_))) => {
                if matches!(error, DriverError::Denied { .. }) {
                    self.deny(name);
                }
                Ok(Polled::Failed(DriverError::Unavailable(error.to_string())))
            }
            found => found.map(polled),
        }
    }
}

/// How many operations one look asks for. Their names are in its URL, and no server takes one of any length.
const OPERATIONS_AT_ONCE: usize = 64;

/// How long a look at operations that was refused for want of permission is not tried again.
const DENIED_FOR: Duration = Duration::from_secs(600);

/// How long a change may take to show on its machine, where the operation itself can't be looked at. Most take seconds.
const UNSEEN_MAX: Duration = Duration::from_secs(120);
