//! The calls of the API: their paths, and the actions that a role must allow for them.
//!
//! In: a method and a path. Out: the name of the call and the variable parts of the path, in lower case, because Azure
//! compares paths case-insensitively. It never reads the state.

use ::http::Request;
use bytes::Bytes;

use super::super::{Route, matches};

/// One call of the API.
pub(super) struct Spec {
    pub(super) name: &'static str,
    method: &'static str,
    pattern: &'static str,
    /// The action that the caller's role must allow.
    pub(super) action: &'static str,
}

const fn spec(name: &'static str, method: &'static str, pattern: &'static str, action: &'static str) -> Spec {
    Spec { name, method, pattern, action }
}

/// All calls, with the vendor's names. The last name is ours, because clients reach operations only through links.
pub(super) const SPECS: &[Spec] = &[
    spec(
        "PublicIPAddresses_ListAll",
        "GET",
        "subscriptions/{}/providers/Microsoft.Network/publicIPAddresses",
        "Microsoft.Network/publicIPAddresses/read",
    ),
    spec(
        "PublicIPAddresses_Get",
        "GET",
        "subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/publicIPAddresses/{}",
        "Microsoft.Network/publicIPAddresses/read",
    ),
    spec(
        "PublicIPAddresses_CreateOrUpdate",
        "PUT",
        "subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/publicIPAddresses/{}",
        "Microsoft.Network/publicIPAddresses/write",
    ),
    spec(
        "PublicIPAddresses_Delete",
        "DELETE",
        "subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/publicIPAddresses/{}",
        "Microsoft.Network/publicIPAddresses/delete",
    ),
    spec(
        "NetworkInterfaces_ListAll",
        "GET",
        "subscriptions/{}/providers/Microsoft.Network/networkInterfaces",
        "Microsoft.Network/networkInterfaces/read",
    ),
    spec(
        "NetworkInterfaces_Get",
        "GET",
        "subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/networkInterfaces/{}",
        "Microsoft.Network/networkInterfaces/read",
    ),
    spec(
        "NetworkInterfaces_CreateOrUpdate",
        "PUT",
        "subscriptions/{}/resourceGroups/{}/providers/Microsoft.Network/networkInterfaces/{}",
        "Microsoft.Network/networkInterfaces/write",
    ),
    spec(
        "VirtualMachines_ListAll",
        "GET",
        "subscriptions/{}/providers/Microsoft.Compute/virtualMachines",
        "Microsoft.Compute/virtualMachines/read",
    ),
    spec(
        "Operations_Get",
        "GET",
        "subscriptions/{}/providers/Microsoft.Network/locations/{}/operations/{}",
        "Microsoft.Network/locations/operations/read",
    ),
];

/// References that a written interface may contain, as JSON pointers, and the action that each one needs.
pub(super) const LINKS: &[(&str, &str)] = &[
    ("/networkSecurityGroup", "Microsoft.Network/networkSecurityGroups/join/action"),
    ("/publicIPAddress", "Microsoft.Network/publicIPAddresses/join/action"),
    ("/subnet", "Microsoft.Network/virtualNetworks/subnets/join/action"),
    ("/loadBalancerBackendAddressPools/0", "Microsoft.Network/loadBalancers/backendAddressPools/join/action"),
];

/// Finds a call by its request.
pub(super) fn route(request: &Request<Bytes>) -> Option<Route> {
    let path = request.uri().path().to_lowercase();
    let of_method = SPECS.iter().filter(|spec| spec.method == request.method().as_str());
    of_method.into_iter().find_map(|spec| {
        let params = matches(&spec.pattern.to_lowercase(), &path)?;
        Some(Route { name: spec.name, params })
    })
}

/// Returns the action that a call needs.
pub(super) fn action_of(name: &str) -> &'static str {
    SPECS.iter().find(|spec| spec.name == name).map_or("", |spec| spec.action)
}

/// Whether a call only reads.
pub(super) fn is_read(name: &str) -> bool {
    SPECS.iter().any(|spec| spec.name == name && spec.method == "GET")
}
