//! Paths and errors of Azure Resource Manager, and the states of its operations.

use std::time::Duration;

use plan::Scope;
use serde_json::Value;

use crate::budget::BACKOFF_MIN;
use crate::http::{Path, Refused};
use crate::{DriverError, Polled};

/// The path that lists all network resources of one type in a subscription.
pub(super) fn network_list(scope: &Scope, kind: &str) -> Path {
    let path = Path::new("subscriptions/{}/providers/Microsoft.Network/{}", &[&scope.account, &kind]);
    path.and("?api-version={}", &[&NETWORK_API])
}

/// The path of a network resource.
pub(super) fn resource_path(id: &str) -> Path {
    Path::of_id(id).and("?api-version={}", &[&NETWORK_API])
}

/// The path of a link. The driver ignores the host of the link, so the token goes only to the configured host.
pub(super) fn path_of(link: &str) -> Option<Path> {
    let path = link.split_once("://")?.1.split_once('/')?.1;
    (!path.is_empty()).then(|| Path::encoded(path))
}

/// Whether an operation has ended, from the body of the operation or of the resource that it changes.
pub(super) fn ended(body: &Value) -> Option<Polled> {
    let status = body["status"].as_str().or_else(|| body["properties"]["provisioningState"].as_str())?;
    Some(match status {
        "Succeeded" => Polled::Ended,
        "Failed" | "Canceled" => Polled::Failed(failure(status, &body["error"])),
        _ => Polled::StillUnderway,
    })
}

/// The error of a failed operation. Most causes are changes by others, so it is a conflict: the caller reads again.
pub(super) fn failure(status: &str, error: &Value) -> DriverError {
    let code = error["code"].as_str().unwrap_or(status);
    DriverError::Conflict(format!("{code}: {}", error["message"].as_str().unwrap_or("no error message")))
}

/// The codes with which Azure refuses a change because another operation has locked the resource. Its status may be 429.
pub(super) const LOCKED: [&str; 4] = [
    "AnotherOperationInProgress",
    "RetryableError",
    "RetryableErrorDueToAnotherOperation",
    "ReferencedResourceNotProvisioned",
];

pub(super) fn explain(name: &str, refused: &Refused) -> DriverError {
    let error = &refused.body["error"];
    let answer = error["message"].as_str().unwrap_or("no error message");
    let code = error["code"].as_str().unwrap_or("no code");
    let message = format!("{name}: {code}: {answer}");
    match (refused.status, code) {
        (_, "PublicIPAddressInUse" | "PublicIPAddressCannotBeDeleted" | "PreconditionFailed") | (412, _) => {
            DriverError::Conflict(message)
        }
        (_, code) if LOCKED.contains(&code) => DriverError::Conflict(message),
        (429, _) => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        (_, "ScopeLocked") => DriverError::Invalid(format!("{message} Remove the lock")),
        (_, "ReadOnlyDisabledSubscription") => {
            DriverError::Invalid(format!("{message} Enable the subscription"))
        }
        (_, "DenyAssignmentAuthorizationFailed") => DriverError::Invalid(format!(
            "{message} The resource group is locked down, and no role can change that. On AKS Standard, set the \
             lockdown of the node resource group to Unrestricted. On AKS Automatic this is not possible"
        )),
        // The driver has already compared the regions, so the missing resource is the address.
        (404, _) | (400, "InvalidResourceReference") => DriverError::NotFound(message),
        (401, _) | (_, "AuthorizationFailed" | "LinkedAuthorizationFailed" | "LinkedAccessCheckFailed") => {
            let permission = action_in(answer).unwrap_or(action_of(name)).to_owned();
            DriverError::Denied { permission, message }
        }
        (409, _) => DriverError::Conflict(message),
        (400..500, _) => DriverError::Invalid(message),
        (status, _) => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

/// The missing action that an authorization error names. If it names several, the last one is missing and the others
/// are allowed.
pub(super) fn action_in(answer: &str) -> Option<&str> {
    let (_, rest) = answer.rsplit_once("perform action")?;
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

/// The version of the network API.
pub(super) const NETWORK_API: &str = "2024-05-01";

/// The wait of a caller if a response has no `Retry-After`. The rate limiter delays further requests for longer.
pub(super) const RETRY_AFTER_DEFAULT: Duration = BACKOFF_MIN;
