//! Paths and errors of Compute Engine, and helpers that interpret its responses.

use std::time::Duration;

use plan::{Address, Holding, Scope, VmId};

use super::bodies::{AccessConfig, NetworkInterface, OperationBody, Warning};
use super::machine_id::parts_of;
use crate::budget::BACKOFF_MIN;
use crate::http::{Path, Refused};
use crate::{DriverError, Polled};

/// The interface and the access config that hold this address.
pub(super) fn config_of(
    interfaces: &[NetworkInterface],
    address: Address,
) -> Option<(&NetworkInterface, &AccessConfig)> {
    interfaces.iter().find_map(|interface| {
        let config = interface.access_configs.iter().find(|config| config.address() == Some(address))?;
        Some((interface, config))
    })
}

/// The interface to which the driver attaches addresses.
pub(super) fn first_of<'a>(
    interfaces: &'a [NetworkInterface],
    vm: &VmId,
) -> Result<&'a NetworkInterface, DriverError> {
    interfaces.first().ok_or_else(|| DriverError::Invalid(format!("{vm} has no network interface")))
}

pub(super) fn polled(found: OperationBody) -> Polled {
    if found.status != "DONE" {
        return Polled::StillUnderway;
    }
    let errors = found.error.map(|error| error.errors).unwrap_or_default();
    match errors.first() {
        None => Polled::Ended,
        Some(error) => Polled::Failed(DriverError::Conflict(format!("{}: {}", error.code, error.message))),
    }
}

/// The path of a regional operation.
pub(super) fn region_operation(scope: &Scope, region: &str, operation: &OperationBody) -> Path {
    Path::new("projects/{}/regions/{}/operations/{}", &[&scope.account, &region, &operation.name])
}

/// A filter that limits a listing to some addresses.
pub(super) fn filter_for(addresses: &[Address]) -> String {
    let terms: Vec<_> = addresses.iter().map(|address| format!("(address={address})")).collect();
    terms.join(" OR ")
}

pub(super) fn instance_path(vm: &VmId) -> Result<Path, DriverError> {
    let (project, zone, name) = parts_of(vm)?;
    Ok(Path::new("projects/{}/zones/{}/instances/{}", &[&project, &zone, &name]))
}

pub(super) fn did_not_answer(warning: Option<&Warning>) -> bool {
    warning.is_some_and(|warning| warning.code != "NO_RESULTS_ON_PAGE")
}

/// The last part of a URL.
pub(super) fn last_part(url: &str) -> Option<&str> {
    url.rsplit('/').next().filter(|name| !name.is_empty())
}

/// The holder of an address, from the URLs of its users. Other users than instances, such as forwarding rules, are
/// holders too.
pub(super) fn holding(users: &[String]) -> Holding {
    let Some(user) = users.first() else { return Holding::Free };
    let path = user.split_once("/projects/").map_or(user.as_str(), |(_, path)| path);
    let parts: Vec<_> = path.split('/').collect();
    match parts.as_slice() {
        [project, "zones", zone, "instances", name] => Holding::By(format!("{project}/{zone}/{name}").into()),
        _ => Holding::By(path.into()),
    }
}

/// The reasons with which Google reports an exceeded rate limit.
pub(super) const RATE_LIMITED: [&str; 2] = ["rateLimitExceeded", "userRateLimitExceeded"];

pub(super) fn explain(name: &str, refused: &Refused) -> DriverError {
    let error = &refused.body["error"];
    let answer = error["message"].as_str().unwrap_or("no error message");
    let reason = error["errors"][0]["reason"].as_str().unwrap_or_default();
    let message = format!("{name}: {answer}");
    match (refused.status, reason) {
        (status, reason) if status == 429 || (status == 403 && RATE_LIMITED.contains(&reason)) => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        // The project has as many resources of this kind as its quota allows. Only a person can change that.
        (403, "quotaExceeded") => DriverError::Invalid(message),
        (401 | 403, _) => {
            let quoted = answer.split('\'').nth(1).filter(|text| text.starts_with("compute."));
            DriverError::Denied { permission: quoted.unwrap_or(permission_of(name)).into(), message }
        }
        (404, _) => DriverError::NotFound(message),
        (409 | 412, _) | (400, "resourceInUseByAnotherResource" | "resourceNotReady") => {
            DriverError::Conflict(message)
        }
        (400..500, _) => DriverError::Invalid(message),
        (status, _) => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

pub(super) fn permission_of(name: &str) -> &'static str {
    match name {
        "addresses.aggregatedList" => "compute.addresses.list",
        "instances.get" => "compute.instances.get",
        "instances.deleteAccessConfig" => "compute.instances.deleteAccessConfig",
        "instances.addAccessConfig" => "compute.instances.addAccessConfig",
        "instances.aggregatedList" => "compute.instances.list",
        "addresses.insert" => "compute.addresses.create",
        "addresses.get" => "compute.addresses.get",
        "addresses.delete" => "compute.addresses.delete",
        "regionOperations.get" => "compute.regionOperations.get",
        "zoneOperations.list" => "compute.zoneOperations.list",
        _ => "compute.zoneOperations.get",
    }
}

/// The wait of a caller if a response has no `Retry-After`. The rate limiter delays further requests for longer.
pub(super) const RETRY_AFTER_DEFAULT: Duration = BACKOFF_MIN;

pub(super) const PAGE_SIZE: usize = 500;
