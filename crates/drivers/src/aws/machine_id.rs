//! VM IDs at AWS: `region/instance`.

use plan::{Provider, Scope, VmId};

use crate::DriverError;

/// The VM of a providerID of the form `aws:///zone/instance`. `None` for nodes without an instance, such as Fargate
/// nodes, which have no network interface of their own.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let (zone, instance) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    let region = region_of(zone).filter(|region| is_region(region))?;
    if !instance.starts_with("i-") || instance.contains('/') {
        return None;
    }
    Some((Scope { provider: Provider::Aws, account: region.as_str().into() }, vm_of(&region, instance)))
}

/// The region of a zone, for example `us-west-2` for `us-west-2a` and for the local zone `us-west-2-lax-1a`.
pub(super) fn region_of(zone: &str) -> Option<String> {
    let mut region = Vec::new();
    for part in zone.split('-') {
        let number = part.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        if !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()) {
            region.push(number);
            return (region.len() > 2).then(|| region.join("-"));
        }
        region.push(part);
    }
    None
}

/// Whether a text can be the name of a region. The region becomes part of a host name, so no other characters are
/// allowed.
pub(super) fn is_region(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=REGION_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// The VM ID of an instance or another holder. It includes the region, because an instance ID alone does not say where
/// to look for it.
pub(super) fn vm_of(region: &str, id: &str) -> VmId {
    format!("{region}/{id}").into()
}

pub(super) fn instance_of(vm: &VmId) -> Result<&str, DriverError> {
    let instance = vm.as_str().split_once('/').map(|(_, id)| id).filter(|id| id.starts_with("i-"));
    instance.ok_or_else(|| DriverError::Invalid(format!("{vm} is not of the form region/i-…")))
}

/// The maximum length of a label in a host name.
pub(super) const REGION_BYTES_MAX: usize = 63;
