//! Ids of machines at Azure: `subscription/group/name`.

use plan::{Provider, Scope, VmId};

use super::ids::ResourceId;

/// The machine that a providerID of the form `azure:///subscriptions/…/virtualMachines/name` names.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let id = ResourceId::parse(provider_id.strip_prefix("azure://")?)?;
    let scope = Scope { provider: Provider::Azure, account: id.subscription.as_str().into() };
    id.is_machine().then(|| (scope, id.as_holder()))
}

/// Why the machine that a providerID names can't get an address, where that is known.
pub fn unsupported(provider_id: &str) -> Option<&'static str> {
    let id = ResourceId::parse(provider_id.strip_prefix("azure://")?)?;
    (id.kind == "virtualmachinescalesets").then_some(
        "it is an instance of a Uniform scale set, whose addresses can't be moved: use single virtual machines, or a scale set with Flexible orchestration",
    )
}
