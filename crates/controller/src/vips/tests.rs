//! Fixtures shared by the unit tests of VIPs.

use kube::core::{ApiResource, GroupVersionKind};

use super::watch::{Kind, Observed};

/// The event that the apiserver serves a kind.
pub(super) fn served(kind: Kind) -> Observed {
    Observed::Served(kind, ApiResource::from_gvk(&GroupVersionKind::gvk("any", "v1", kind.name())))
}
