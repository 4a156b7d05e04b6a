//! Paths and errors of Azure's resource manager, and what its operations say.

use std::time::Duration;

use plan::Scope;
use serde_json::Value;

use crate::http::{Path, Refused};
use crate::{DriverError, Polled};

/// Where all resources of a kind of a subscription's network are found.
pub(super) fn network_list(scope: &Scope, kind: &str) -> Path {
    let path = Path::new("subscriptions/{}/providers/Microsoft.Network/{}", &[&scope.account, &kind]);
    path.and("?api-version={}", &[&NETWORK_API])
}

/// Where a resource of the network is found.
pub(super) fn resource_path(id: &str) -> Path {
    Path::of_id(id).and("?api-version={}", &[&NETWORK_API])
}

/// The path of a link. Whatever server a link names, our token goes to the one that we know.
pub(super) fn path_of(link: &str) -> Option<Path> {
    let path = link.split_once("://")?.1.split_once('/')?.1;
    (!path.is_empty()).then(|| Path::encoded(path))
}

/// Whether an operation has ended, by what is told of it or of the resource that it changes.
pub(super) fn ended(body: &Value) -> Option<Polled> {
    let status = body["status"].as_str().or_else(|| body["properties"]["provisioningState"].as_str())?;
    Some(match status {
        "Succeeded" => Polled::Ended,
        "Failed" | "Canceled" => Polled::Failed(failure(status, &body["error"])),
        _ => Polled::StillUnderway,
    })
}

/// Why an operation had no effect. Most reasons are others' changes, which the next look will tell.
pub(super) fn failure(status: &str, error: &Value) -> DriverError {
    let code = error["code"].as_str().unwrap_or(status);
    DriverError::Conflict(format!("{code}: {}", error["message"].as_str().unwrap_or("no explanation")))
}

pub(super) fn explain(name: &str, refused: &Refused) -> DriverError {
    let error = &refused.body["error"];
    let said = error["message"].as_str().unwrap_or("no explanation");
    let code = error["code"].as_str().unwrap_or("no code");
    let message = format!("{name}: {code}: {said}");
    match (refused.status, code) {
        (429, _) => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        (
            _,
            "AnotherOperationInProgress"
            | "RetryableError"
            | "ReferencedResourceNotProvisioned"
            | "PublicIPAddressInUse"
            | "PublicIPAddressCannotBeDeleted"
            | "PreconditionFailed",
        )
        | (412, _) => DriverError::Conflict(message),
        (_, "ScopeLocked" | "ReadOnlyDisabledSubscription") => DriverError::Invalid(format!(
            "{message} Nothing can be changed there until the lock is removed or the subscription is enabled"
        )),
        (_, "DenyAssignmentAuthorizationFailed") => DriverError::Invalid(format!(
            "{message} The resource group is locked down, as that of an AKS cluster's nodes can be, and no role helps: \
             it has to be unrestricted, which AKS Standard can and AKS Automatic can't be"
        )),
        // The regions were compared before, so what is missing is the address.
        (404, _) | (400, "InvalidResourceReference") => DriverError::NotFound(message),
        (401, _) | (_, "AuthorizationFailed" | "LinkedAuthorizationFailed" | "LinkedAccessCheckFailed") => {
            let permission = action_in(said).unwrap_or(action_of(name)).to_owned();
            DriverError::Denied { permission, message }
        }
        (409, _) => DriverError::Conflict(message),
        (400..500, _) => DriverError::Invalid(message),
        (status, _) => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

/// The action that a refusal says is missing: the last one that it names, because those before it are allowed.
pub(super) fn action_in(said: &str) -> Option<&str> {
    let (_, rest) = said.rsplit_once("perform action")?;
    rest.split('\'').nth(1).filter(|action| action.contains('/'))
}

pub(super) fn action_of(name: &str) -> &'static str {
    match name {
        "PublicIPAddresses_ListAll" | "PublicIPAddresses_Get" => "Microsoft.Network/publicIPAddresses/read",
        "PublicIPAddresses_CreateOrUpdate" => "Microsoft.Network/publicIPAddresses/write",
        "PublicIPAddresses_Delete" => "Microsoft.Network/publicIPAddresses/delete",
        "NetworkInterfaces_ListAll" | "NetworkInterfaces_Get" => "Microsoft.Network/networkInterfaces/read",
        "NetworkInterfaces_CreateOrUpdate" => "Microsoft.Network/networkInterfaces/write",
        "VirtualMachines_ListAll" => "Microsoft.Compute/virtualMachines/read",
        _ => "Microsoft.Network/locations/operations/read",
    }
}

/// Versions of the two APIs.
pub(super) const NETWORK_API: &str = "2024-05-01";

/// Where a refusal does not say how long to wait: what is used up comes back within seconds.
pub(super) const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(10);
