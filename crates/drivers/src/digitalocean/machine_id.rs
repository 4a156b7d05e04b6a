//! VM IDs at DigitalOcean: the droplet ID.

use plan::{Provider, Scope, VmId};

/// The VM of a providerID of the form `digitalocean://id`.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let droplet: u64 = provider_id.strip_prefix("digitalocean://")?.parse().ok()?;
    let scope = Scope { provider: Provider::DigitalOcean, account: "".into() };
    Some((scope, droplet.to_string().into()))
}
