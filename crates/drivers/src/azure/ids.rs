//! Azure resource IDs, and the VM IDs made from them.
//!
//! In: IDs such as `/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/N`. Out: a [`VmId`]:
//! `s/g/n` for a VM, and `s/g/type/n` for other resources that can hold an address. Azure ignores case in IDs and
//! writes the same ID in different ways, so VM IDs are in lower case.

use plan::VmId;

/// The parts of a resource ID, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceId {
    pub(super) subscription: String,
    pub(super) group: String,
    /// The resource type, for example `networkinterfaces`. For a nested resource, the type of the outer resource.
    pub(super) kind: String,
    /// The name. For a nested resource, the name of the outer resource.
    pub(super) name: String,
    /// The types and names of nested resources.
    inner: Vec<String>,
}

impl ResourceId {
    pub(super) fn parse(id: &str) -> Option<Self> {
        let id = id.to_lowercase();
        let parts: Vec<&str> = id.trim_start_matches('/').split('/').collect();
        let ["subscriptions", subscription, "resourcegroups", group, "providers", _, kind, name, inner @ ..] =
            parts.as_slice()
        else {
            return None;
        };
        let owned = |part: &&str| (*part).to_owned();
        let is_whole = parts.iter().all(|part| !part.is_empty());
        is_whole.then(|| Self {
            subscription: owned(subscription),
            group: owned(group),
            kind: owned(kind),
            name: owned(name),
            inner: inner.iter().map(owned).collect(),
        })
    }

    /// Whether this is a standalone VM or an instance of a Flexible scale set. Instances of Uniform scale sets are not:
    /// their interfaces can't be changed separately.
    pub(super) fn is_machine(&self) -> bool {
        self.kind == "virtualmachines" && self.inner.is_empty()
    }

    /// Whether this is a network interface that can be changed separately, or a part of one.
    pub(super) fn is_interface(&self) -> bool {
        self.kind == "networkinterfaces"
    }

    /// The ID of this resource as a holder of addresses.
    pub(super) fn as_holder(&self) -> VmId {
        let Self { subscription, group, kind, name, .. } = self;
        let name = if self.is_machine() {
            format!("{subscription}/{group}/{name}")
        } else {
            format!("{subscription}/{group}/{kind}/{name}")
        };
        name.into()
    }
}

/// Whether two IDs refer to the same resource.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.trim_start_matches('/').eq_ignore_ascii_case(other.trim_start_matches('/'))
}
