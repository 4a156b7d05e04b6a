//! Defects of release 0.1.0 that harm addresses and that the current release has fixed: `just e2e upgrade_mends`.
//!
//! In: the same objects and the same clouds for both releases. Out: what each release did to foreign addresses,
//! according to the ledgers of the fake clouds.

use std::time::Duration;

use serde_json::json;
use testbed::cluster::eventually;
use testbed::demo::PROJECT;
use testbed::fake::ledger::{CloudChange, Done};

use crate::creation::support::{forge_created, in_account, is_release};
use crate::manifests::allocation;
use crate::rig::{Rig, SOON};
use crate::upgrade::release::Release;

/// How long the test waits for the harm. The wait ends when 0.1.0 has done it.
fn waits_for_harm(release: &Release) -> Duration {
    match release {
        Release::Baseline => SOON,
        Release::Current => Duration::from_secs(15),
    }
}

/// Forges a pool's status so that the pool seems to have created a foreign address. Returns each release of an address.
async fn released_after_a_forged_status(release: Release) -> Vec<CloudChange> {
    let victim = "198.51.100.200";
    let rig = Rig::prepare().await;
    rig.clouds.digitalocean.with(|account| account.add_reserved_ip(victim, "nyc3"));
    let _controller = rig.controller_of(&release.binary(), "ip-address-controller", &[]);
    forge_created(&rig, victim).await;
    let harm = async || Ok(!in_account(&rig).contains(victim));
    let _ = eventually("the address is released", waits_for_harm(&release), harm).await;
    let done = rig.clouds.digitalocean.ledger().done;
    done.into_iter().map(|done| done.change).filter(is_release).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_status_releases_an_address_only_in_0_1_0() {
    let before = released_after_a_forged_status(Release::Baseline).await;
    println!("0.1.0 released {before:?}");
    assert!(
        matches!(&before[..], [CloudChange::Released { address, .. }] if address == "198.51.100.200"),
        "{before:?}"
    );
    let now = released_after_a_forged_status(Release::Current).await;
    println!("the current release released {now:?}");
    assert_eq!(now, []);
}

/// Puts an address on the second interface of a node and cordons the node. Returns the VMs whose ephemeral address the
/// controller removed, once for each removal, and the VM that holds the address in the end, if it is another one.
async fn stripped_by_a_second_interface(release: Release) -> (Vec<String>, Option<String>) {
    let address = "34.123.45.67";
    let rig = Rig::prepare().await;
    rig.clouds.compute.with(|compute| {
        compute.add_interface("us-west1-a", "edge-1");
        compute.attach_to(address, "us-west1-a", "edge-1", 1);
    });
    let _controller = rig.controller_of(&release.binary(), "ip-address-controller", &[]);
    let spec = json!({
        "reservedIPs": [address], "cloud": {"provider": "gcp"}, "nodeSelector": {"role": "external-ip-node"},
    });
    rig.control_plane.apply(&allocation("edge", spec).to_string()).unwrap();
    rig.settled("nia/edge").await;
    rig.kubectl(&["cordon", "edge-1"]);
    let first = format!("{PROJECT}/us-west1-a/edge-1");
    let harm = async || Ok(stripped(rig.clouds.compute.ledger().done).len() > 2);
    if matches!(release, Release::Current) {
        let is_elsewhere = async || Ok(rig.holder(address).is_some_and(|holder| holder != first));
        eventually("the address is on another VM", SOON, is_elsewhere).await.unwrap();
    }
    let _ =
        eventually("more than two VMs lose their ephemeral address", waits_for_harm(&release), harm).await;
    let holder = rig.holder(address).filter(|holder| *holder != first);
    (stripped(rig.clouds.compute.ledger().done), holder)
}

fn stripped(done: Vec<Done>) -> Vec<String> {
    let machine = |done: Done| match done.change {
        CloudChange::EphemeralRemoved { vm, .. } => Some(vm),
        _ => None,
    };
    done.into_iter().filter_map(machine).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_interface_strips_other_nodes_only_in_0_1_0() {
    let (before, holder) = stripped_by_a_second_interface(Release::Baseline).await;
    println!("0.1.0 removed the ephemeral addresses of {before:?}; the address moved to {holder:?}");
    assert!(!before.is_empty() && holder.is_none(), "{before:?} {holder:?}");
    let (now, holder) = stripped_by_a_second_interface(Release::Current).await;
    println!("the current release removed the ephemeral address of {now:?}; the address moved to {holder:?}");
    assert_eq!(now, holder.into_iter().collect::<Vec<_>>());
    assert_eq!(now.len(), 1);
}
