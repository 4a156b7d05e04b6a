//! VM IDs at Azure: `subscription/group/name`.

use plan::{Provider, Scope, VmId};

use super::ids::ResourceId;

/// The VM of a providerID of the form `azure:///subscriptions/…/virtualMachines/name`.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let id = ResourceId::parse(provider_id.strip_prefix("azure://")?)?;
    let scope = Scope { provider: Provider::Azure, account: id.subscription.as_str().into() };
    id.is_machine().then(|| (scope, id.as_holder()))
}

/// Why the VM of a providerID can't get an address. `None` if there is no known reason.
pub fn unsupported(provider_id: &str) -> Option<&'static str> {
    let id = ResourceId::parse(provider_id.strip_prefix("azure://")?)?;
    (id.kind == "virtualmachinescalesets").then_some(
        "it is an instance of a Uniform scale set, whose addresses can't be moved: use single virtual machines, or a scale set with Flexible orchestration",
    )
}
