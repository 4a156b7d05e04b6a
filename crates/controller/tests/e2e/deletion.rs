//! Deletion of objects: what the controller finishes, detaches and removes before they are gone.

use std::time::Duration;

use testbed::cluster::eventually;
use testbed::fake::compute::Compute;

use crate::manifests::pool_of_workers;
use crate::rig::{Rig, SOON, read};

fn is_gone(rig: &Rig) -> bool {
    rig.kubectl(&["get", "nia", "-o", "name"]).is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_deleted_during_a_move_stays_until_it_finishes() {
    let (rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    rig.without_finalizer("nia/edge").await;
    // The move can't end before the object is deleted.
    rig.clouds.compute.with(|compute| compute.operation_time = Duration::from_secs(600));
    let holder = rig.holder("34.123.45.67").unwrap();
    rig.kubectl(&["delete", "node", holder.rsplit('/').next().unwrap()]);
    let state = || format!("{:#}\n{}", rig.get("nia/edge"), rig.logs());
    eventually("a move is journalled", SOON, async || Ok(!rig.get("nia/edge")["status"]["moves"].is_null()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", state()));
    rig.kubectl(&["delete", "nia/edge", "--wait=false"]);
    assert!(!is_gone(&rig), "the object was deleted during the move");
    rig.clouds.compute.with(Compute::stop_delaying);
    eventually("the object is gone", SOON, async || Ok(is_gone(&rig)))
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", state()));
    let now = rig.holder("34.123.45.67");
    assert!(now.is_some() && now.as_ref() != Some(&holder), "the move was not finished: {now:?}");
    eventually("no node is labelled any more", SOON, async || Ok(rig.ready_nodes().is_empty()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", rig.ready_nodes(), rig.logs()));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_delete_detach_detaches_before_the_object_is_deleted() {
    let (rig, _controller) = Rig::start().await;
    let object = read("examples/netipallocation.yaml");
    rig.control_plane.apply(&object).unwrap();
    rig.settled("nia/edge").await;
    rig.kubectl(&["patch", "nia/edge", "--type=merge", "-p", r#"{"spec":{"policy":{"onDelete":"Detach"}}}"#]);
    eventually("the object has a finalizer", SOON, async || {
        Ok(!rig.get("nia/edge")["metadata"]["finalizers"].is_null())
    })
    .await
    .unwrap();
    rig.kubectl(&["delete", "nia/edge", "--wait=false"]);
    eventually("the object is gone", SOON, async || Ok(is_gone(&rig)))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get("nia/edge"), rig.logs()));
    for address in ["34.123.45.67", "34.123.45.68"] {
        assert_eq!(rig.holder(address), None, "{address} is still on a node");
    }
    assert_eq!(rig.clouds.compute.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn f16_deleting_a_pool_removes_annotations_and_keeps_addresses() {
    let (rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&pool_of_workers("pool").to_string()).unwrap();
    rig.settled("floatingippool/pool").await;
    let held = || {
        let holder = |address: &str| rig.clouds.digitalocean.with(|account| account.holder(address));
        ["203.0.113.10", "203.0.113.11"].map(holder)
    };
    let annotated = || ["worker-1", "worker-2", "worker-3"].map(|node| rig.annotation(node));
    eventually("both nodes are annotated", SOON, async || Ok(annotated().iter().flatten().count() == 2))
        .await
        .unwrap();
    assert_eq!(held(), [Some(1001), Some(1002)]);
    let changes = rig.clouds.digitalocean.ledger().done.len();
    rig.kubectl(&["delete", "floatingippool/pool"]);
    eventually("no node is annotated any more", SOON, async || Ok(annotated() == [None, None, None]))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", annotated(), rig.logs()));
    assert_eq!(held(), [Some(1001), Some(1002)]);
    assert_eq!(
        rig.clouds.digitalocean.ledger().done.len(),
        changes,
        "the controller changed something in the cloud"
    );
}
