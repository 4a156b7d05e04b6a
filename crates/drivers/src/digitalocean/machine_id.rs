//! Ids of machines at DigitalOcean: the number of the droplet.

use plan::{Provider, Scope, VmId};

/// The machine that a providerID of the form `digitalocean://id` names.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let droplet: u64 = provider_id.strip_prefix("digitalocean://")?.parse().ok()?;
    let scope = Scope { provider: Provider::DigitalOcean, account: "".into() };
    Some((scope, droplet.to_string().into()))
}
