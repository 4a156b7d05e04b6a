//! Both kinds of objects at Azure, with tokens from a managed identity.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::demo::{AZURE_MACHINES, azure_node};

use crate::rig::Rig;

const SOON: Duration = Duration::from_secs(60);
const ADDRESSES: [&str; 2] = ["203.0.113.30", "203.0.113.31"];

async fn rig() -> Rig {
    let rig = Rig::prepare().await;
    for name in AZURE_MACHINES {
        azure_node(name).create(&rig.client).await.unwrap();
    }
    rig
}

fn holder(rig: &Rig, address: &str) -> Option<String> {
    let holder = rig.clouds.azure.with(|azure| azure.holder(address))?;
    Some(holder.rsplit('/').next().unwrap().to_owned())
}

/// Waits until an address is on another node than this one.
async fn leaves(rig: &Rig, address: &str, node: &str, object: &str) {
    let has_left = async || Ok(holder(rig, address).is_some_and(|holder| holder != node));
    eventually("the address is on another node", SOON, has_left)
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(object)["status"], rig.logs()));
    rig.settled(object).await;
}

/// Nothing but addresses was changed in any interface, and none was with two at once.
fn is_clean(rig: &Rig) {
    let ledger = rig.clouds.azure.ledger();
    assert_eq!(ledger.double_holders(), Vec::<String>::new());
    assert!(ledger.done.iter().all(|done| !done.deed.to_string().contains("something else")), "{ledger:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_at_azure_follows_its_nodes() {
    let rig = rig().await;
    let _controller = rig.controller("ip-address-controller", &[]);
    let object: Value = json!({
        "apiVersion": "netinfra.darkbrains.com/v1alpha1", "kind": "NetIPAllocation", "metadata": {"name": "edge"},
        "spec": {"reservedIPs": ADDRESSES, "cloud": {"provider": "azure"}, "nodeSelector": {"role": "azure"}},
    });
    rig.control_plane.apply(&object.to_string()).unwrap();
    rig.settled("nia/edge").await;
    let node = holder(&rig, ADDRESSES[0]).unwrap();
    assert_eq!(rig.ready_nodes().len(), 2);
    rig.kubectl(&["cordon", &node]);
    leaves(&rig, ADDRESSES[0], &node, "nia/edge").await;
    assert!(!rig.ready_nodes().contains(&node));
    is_clean(&rig);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_at_azure_survives_a_node_and_creates_what_it_lacks() {
    let rig = rig().await;
    let _controller = rig.controller("ip-address-controller", &[]);
    let object: Value = json!({
        "apiVersion": "flipop.digitalocean.com/v1alpha1", "kind": "FloatingIPPool",
        "metadata": {"name": "pool", "namespace": "default"},
        "spec": {
            "provider": "azure", "region": "westeurope", "ips": [ADDRESSES[0]], "desiredIPs": 2,
            "match": {"nodeLabel": "role=azure"},
        },
    });
    rig.control_plane.apply(&object.to_string()).unwrap();
    let two_active = async || {
        let ips = rig.get("floatingippool/pool")["status"]["ips"].clone();
        let is_active = |ip: &Value| ip["state"] == "active";
        Ok(ips.as_object().is_some_and(|ips| ips.len() == 2 && ips.values().all(is_active)))
    };
    eventually("one more is there, and both are on nodes", SOON, two_active)
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get("floatingippool/pool"), rig.logs()));
    let node = holder(&rig, ADDRESSES[0]).unwrap();
    rig.kubectl(&["delete", "node", &node]);
    rig.clouds.azure.with(|azure| azure.remove_machine(&node));
    leaves(&rig, ADDRESSES[0], &node, "floatingippool/pool").await;
    is_clean(&rig);
}
