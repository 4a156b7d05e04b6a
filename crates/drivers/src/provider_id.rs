//! Finds the VM of a node by its `spec.providerID`.

use plan::{Scope, VmId};

#[cfg(feature = "aws")]
use crate::aws;
use crate::{azure, digitalocean, google};

/// The scope and the VM of a node's `spec.providerID`. `None` if the provider is not supported.
pub fn machine_of(provider_id: &str) -> Option<(Scope, VmId)> {
    let known = google::machine_of(provider_id)
        .or_else(|| azure::machine_of(provider_id))
        .or_else(|| digitalocean::machine_of(provider_id));
    #[cfg(feature = "aws")]
    let known = known.or_else(|| aws::machine_of(provider_id));
    known
}

/// Why the VM of a node's `spec.providerID` can't get an address. `None` if there is no known reason.
pub fn unsupported(provider_id: &str) -> Option<&'static str> {
    azure::unsupported(provider_id)
}

#[cfg(test)]
mod tests {
    use plan::Provider;

    use super::*;

    #[test]
    fn a_provider_id_has_a_scope_and_a_vm() {
        let scope = |provider, account: &str| Scope { provider, account: account.into() };
        assert_eq!(
            machine_of("gce://demo/us-west1-a/edge-1"),
            Some((scope(Provider::Gcp, "demo"), "demo/us-west1-a/edge-1".into()))
        );
        assert_eq!(
            machine_of("digitalocean://1001"),
            Some((scope(Provider::DigitalOcean, ""), "1001".into()))
        );
        let group = "azure:///subscriptions/S-1/resourceGroups/MC_Group";
        assert_eq!(
            machine_of(&format!("{group}/providers/Microsoft.Compute/virtualMachines/Node-1")),
            Some((scope(Provider::Azure, "s-1"), "s-1/mc_group/node-1".into()))
        );
        let uniform =
            format!("{group}/providers/Microsoft.Compute/virtualMachineScaleSets/set/virtualMachines/0");
        assert_eq!(machine_of(&uniform), None);
        assert!(unsupported(&uniform).is_some_and(|why| why.contains("Flexible")));
        #[cfg(feature = "aws")]
        for (zone, region) in [
            ("us-east-1a", "us-east-1"),
            ("us-gov-west-1b", "us-gov-west-1"),
            ("us-west-2-lax-1a", "us-west-2"),
        ] {
            assert_eq!(
                machine_of(&format!("aws:///{zone}/i-0a1b")),
                Some((scope(Provider::Aws, region), format!("{region}/i-0a1b").as_str().into()))
            );
        }
        assert_eq!(machine_of("aws:///us-east-1a/0f9d-2a/fargate-ip-10-0-0-1.ec2.internal"), None);
        assert_eq!(machine_of("kind://docker/kind/worker"), None);
        assert_eq!(machine_of("digitalocean://not-a-number"), None);
        assert_eq!(machine_of(""), None);
    }
}
