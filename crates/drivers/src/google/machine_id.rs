//! VM IDs at Compute Engine: `project/zone/name`.

use plan::{Provider, Scope, VmId};

use crate::DriverError;

/// The VM of a providerID of the form `gce://project/zone/name`.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let vm = VmId::from(provider_id.strip_prefix("gce://")?);
    let (project, _, _) = parts_of(&vm).ok()?;
    Some((Scope { provider: Provider::Gcp, account: project.into() }, vm.clone()))
}

/// The project, zone and name of a VM.
pub(super) fn parts_of(vm: &VmId) -> Result<(&str, &str, &str), DriverError> {
    let parts: Vec<_> = vm.as_str().split('/').collect();
    match parts.as_slice() {
        [project, zone, name] if parts.iter().all(|part| !part.is_empty()) => Ok((project, zone, name)),
        _ => Err(DriverError::Invalid(format!("{vm} is not of the form project/zone/name"))),
    }
}
