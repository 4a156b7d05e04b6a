//! The calls of the API: their paths, the resources that they affect and the permissions that they need.
//!
//! In: a method and a path. Out: the name of the call and the variable parts of the path. It never reads the state.

use ::http::Method;

use super::super::{Route, matches};

/// Besides its own permission, `addAccessConfig` needs these for the address and for the subnetwork.
pub(super) const USE_ADDRESS: &str = "compute.addresses.use";
pub(super) const USE_EXTERNAL_IP: &str = "compute.subnetworks.useExternalIp";

/// Besides its own permission, `insert` needs this one for an address with labels.
pub(super) const SET_LABELS: &str = "compute.addresses.setLabels";

/// The kind of location that a call's resources are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The whole project.
    Project,
    /// One region, the second variable of the path.
    Region,
    /// One zone, the second variable of the path.
    Zone,
}

impl Place {
    /// The collection of such locations in paths.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Project => "projects",
            Self::Region => "regions",
            Self::Zone => "zones",
        }
    }
}

/// One call of the API.
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) method: &'static str,
    pub(super) pattern: &'static str,
    pub(super) place: Place,
    /// The collection of the affected resources in paths.
    pub(super) collection: &'static str,
    /// The permission that every request of this call needs.
    pub(super) permission: &'static str,
}

/// Finds a call by its request.
pub(super) fn route(method: &Method, path: &str) -> Option<Route> {
    let of_method = SPECS.iter().filter(|spec| spec.method == method.as_str());
    of_method
        .into_iter()
        .find_map(|spec| matches(spec.pattern, path).map(|params| Route { name: spec.name, params }))
}

/// Finds a call by its name.
pub(super) fn spec(name: &str) -> Option<&'static Spec> {
    SPECS.iter().find(|spec| spec.name == name)
}

/// Returns all permissions that a call may need.
pub fn permissions_of(call: &str) -> Vec<&'static str> {
    let besides: &[&str] = match call {
        "instances.addAccessConfig" => &[USE_ADDRESS, USE_EXTERNAL_IP],
        "addresses.insert" => &[SET_LABELS],
        _ => &[],
    };
    spec(call).map(|spec| spec.permission).into_iter().chain(besides.iter().copied()).collect()
}

/// Returns all permissions that any call needs. Tests deny all of them, or all but a few, with
/// [`Compute::denied`](super::Compute::denied).
pub fn permissions() -> impl Iterator<Item = &'static str> {
    SPECS.iter().flat_map(|spec| permissions_of(spec.name))
}

/// All calls, with the permissions that the vendor documents.
pub(super) const SPECS: &[Spec] = &[
    Spec {
        name: "addresses.aggregatedList",
        method: "GET",
        pattern: "compute/v1/projects/{}/aggregated/addresses",
        place: Place::Project,
        collection: "addresses",
        permission: "compute.addresses.list",
    },
    Spec {
        name: "addresses.list",
        method: "GET",
        pattern: "compute/v1/projects/{}/regions/{}/addresses",
        place: Place::Region,
        collection: "addresses",
        permission: "compute.addresses.list",
    },
    Spec {
        name: "addresses.get",
        method: "GET",
        pattern: "compute/v1/projects/{}/regions/{}/addresses/{}",
        place: Place::Region,
        collection: "addresses",
        permission: "compute.addresses.get",
    },
    Spec {
        name: "addresses.insert",
        method: "POST",
        pattern: "compute/v1/projects/{}/regions/{}/addresses",
        place: Place::Region,
        collection: "addresses",
        permission: "compute.addresses.create",
    },
    Spec {
        name: "addresses.delete",
        method: "DELETE",
        pattern: "compute/v1/projects/{}/regions/{}/addresses/{}",
        place: Place::Region,
        collection: "addresses",
        permission: "compute.addresses.delete",
    },
    Spec {
        name: "addresses.setLabels",
        method: "POST",
        pattern: "compute/v1/projects/{}/regions/{}/addresses/{}/setLabels",
        place: Place::Region,
        collection: "addresses",
        permission: "compute.addresses.setLabels",
    },
    Spec {
        name: "instances.get",
        method: "GET",
        pattern: "compute/v1/projects/{}/zones/{}/instances/{}",
        place: Place::Zone,
        collection: "instances",
        permission: "compute.instances.get",
    },
    Spec {
        name: "instances.list",
        method: "GET",
        pattern: "compute/v1/projects/{}/zones/{}/instances",
        place: Place::Zone,
        collection: "instances",
        permission: "compute.instances.list",
    },
    Spec {
        name: "instances.aggregatedList",
        method: "GET",
        pattern: "compute/v1/projects/{}/aggregated/instances",
        place: Place::Project,
        collection: "instances",
        permission: "compute.instances.list",
    },
    Spec {
        name: "instances.addAccessConfig",
        method: "POST",
        pattern: "compute/v1/projects/{}/zones/{}/instances/{}/addAccessConfig",
        place: Place::Zone,
        collection: "instances",
        permission: "compute.instances.addAccessConfig",
    },
    Spec {
        name: "instances.deleteAccessConfig",
        method: "POST",
        pattern: "compute/v1/projects/{}/zones/{}/instances/{}/deleteAccessConfig",
        place: Place::Zone,
        collection: "instances",
        permission: "compute.instances.deleteAccessConfig",
    },
    Spec {
        name: "zoneOperations.get",
        method: "GET",
        pattern: "compute/v1/projects/{}/zones/{}/operations/{}",
        place: Place::Zone,
        collection: "operations",
        permission: "compute.zoneOperations.get",
    },
    Spec {
        name: "zoneOperations.wait",
        method: "POST",
        pattern: "compute/v1/projects/{}/zones/{}/operations/{}/wait",
        place: Place::Zone,
        collection: "operations",
        permission: "compute.zoneOperations.get",
    },
    Spec {
        name: "zoneOperations.list",
        method: "GET",
        pattern: "compute/v1/projects/{}/zones/{}/operations",
        place: Place::Zone,
        collection: "operations",
        permission: "compute.zoneOperations.list",
    },
    Spec {
        name: "regionOperations.get",
        method: "GET",
        pattern: "compute/v1/projects/{}/regions/{}/operations/{}",
        place: Place::Region,
        collection: "operations",
        permission: "compute.regionOperations.get",
    },
    Spec {
        name: "regionOperations.wait",
        method: "POST",
        pattern: "compute/v1/projects/{}/regions/{}/operations/{}/wait",
        place: Place::Region,
        collection: "operations",
        permission: "compute.regionOperations.get",
    },
    Spec {
        name: "globalOperations.aggregatedList",
        method: "GET",
        pattern: "compute/v1/projects/{}/aggregated/operations",
        place: Place::Project,
        collection: "operations",
        permission: "compute.globalOperations.list",
    },
];
