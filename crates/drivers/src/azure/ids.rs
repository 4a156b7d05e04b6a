//! What Azure calls its resources, and what we call machines.
//!
//! In: ids such as `/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/N`. Out: a [`VmId`], which
//! is `s/g/n` for a virtual machine and `s/g/type/n` for anything else that may hold an address. Azure compares ids without
//! regard to case and writes the same one in different ways, so ours are in lower case.

use plan::VmId;

/// A resource's id in parts, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceId {
    pub(super) subscription: String,
    pub(super) group: String,
    /// The type, as in `networkinterfaces`; of a resource inside of another, that of the outer one.
    pub(super) kind: String,
    /// The name; of a resource inside of another, that of the outer one.
    pub(super) name: String,
    /// Types and names of what is inside of it.
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

    /// Whether this is a virtual machine of its own. An instance of a Uniform scale set is not: it has no interface that could
    /// be changed. One of a Flexible set is.
    pub(super) fn is_machine(&self) -> bool {
        self.kind == "virtualmachines" && self.inner.is_empty()
    }

    /// Whether this is a network interface that can be changed on its own, or a part of one.
    pub(super) fn is_interface(&self) -> bool {
        self.kind == "networkinterfaces"
    }

    /// What we call it as a holder of addresses.
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

/// Whether two ids mean the same resource.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.trim_start_matches('/').eq_ignore_ascii_case(other.trim_start_matches('/'))
}
