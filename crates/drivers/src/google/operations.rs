//! Polls operations of Compute Engine.
//!
//! In: the operations that changes have started. Out: whether each has ended. Without the permission to read
//! operations, the driver reads the changed VM instead. It never waits for an operation.

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

    /// Polls operations, with one call for those of the same zone.
    pub(super) async fn poll_all(&self, operations: &[Operation]) -> Vec<Result<Polled, DriverError>> {
        let mut by_zone = BTreeMap::<&str, Vec<&str>>::new();
        for id in operations.iter().map(|operation| operation.id.as_str()) {
            by_zone.entry(id.rsplit_once('/').map_or("", |(zone, _)| zone)).or_default().push(id);
        }
        let looks = by_zone
            .iter()
            .flat_map(|(zone, ids)| ids.chunks(OPERATIONS_AT_ONCE).map(|ids| self.poll_together(zone, ids)));
        let polled: BTreeMap<&str, _> = join_all(looks).await.into_iter().flatten().collect();
        let unasked = || Err(DriverError::Unavailable("the operation was not polled".into()));
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

    /// Forgets an operation that has ended. If it attached an address, the driver no longer needs the PTR name of the
    /// address, so it forgets the name too.
    pub(super) fn forget(&self, id: &str, is_well: bool) {
        let change = self.changes.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        if let (Some(Change { what: What::Adds(Some(address)), .. }), true) = (change, is_well) {
            self.ptrs.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        }
    }

    /// Polls several operations of one zone with one list call. Gets each operation that is not in the list, because it
    /// may still be running: the list may be too long, or the permission to list may be missing. Gets each operation of
    /// a region.
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
                tracing::warn!(%error, "failed to list operations; getting each pending operation separately");
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

    /// Gets one operation. Without the permission for that, reads the VM that the operation changes.
    pub(super) async fn look_at(&self, id: &str) -> Result<Polled, DriverError> {
        let name = "zoneOperations.get";
        if !self.is_denied(name) {
            let polled = self.poll_path(&Path::encoded(id)).await;
            if !self.is_denied(name) {
                return polled;
            }
            tracing::warn!(
                permission = permission_of(name),
                "no permission to get operations; reading the VM of each operation instead"
            );
        }
        let change = self.changes.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        match change {
            Some(change) => self.look_at_machine(&change).await,
            None => self.poll_path(&Path::encoded(id)).await,
        }
    }

    /// Judges an operation by the VM that it changes. There, a failed operation looks like a slow one. So an operation
    /// counts as failed after a timeout.
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
            // Google keeps operations long after they have ended, so this operation should exist. Its outcome is
            // unknown.
            Err(DriverError::NotFound(message)) => Ok(Polled::Failed(DriverError::Unavailable(message))),
            // Polling again would return the same error.
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

/// The maximum number of operations in one list call. Their names are in the URL, whose length is limited.
const OPERATIONS_AT_ONCE: usize = 64;

/// How long the driver does not repeat a call that was denied.
const DENIED_FOR: Duration = Duration::from_secs(600);

/// How long the driver waits for a VM to show a change if it can't read the operation. Most changes take seconds.
const UNSEEN_MAX: Duration = Duration::from_secs(120);
