//! Tests of the testbed itself.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::checkpoint::Checkpoint;
use testbed::cluster::{eventually, node, pod};
use testbed::control_plane::{ControlPlane, Options};

use crate::rig::SOON;

fn is_alive(id: &i32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}

#[tokio::test]
async fn nodes_become_ready_pods_run_and_a_deployment_is_scheduled() {
    let control_plane = ControlPlane::start(Options::everything()).await.unwrap();
    let client = control_plane.client().await.unwrap();
    node("n1").create(&client).await.unwrap();
    pod("default", "placed").on("n1").create(&client).await.unwrap();
    pod("default", "scheduled").create(&client).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client, "default");
    eventually("both pods are Ready on n1", SOON, async || {
        let is_ready = |pod: &Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let ready =
                conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            ready.count() == 1 && node == Some("n1")
        };
        Ok(pods.list(&Default::default()).await?.items.iter().filter(|pod| is_ready(pod)).count() == 2)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn killed_servers_restart_with_their_data() {
    let mut control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    let client = control_plane.client().await.unwrap();
    node("n1").create(&client).await.unwrap();
    control_plane.restart_apiserver().await.unwrap();
    control_plane.restart_etcd().await.unwrap();
    let nodes: Api<Node> = Api::all(client);
    eventually("n1 is still there", SOON, async || Ok(nodes.get_opt("n1").await?.is_some())).await.unwrap();
}

#[tokio::test]
async fn a_control_plane_is_reset_to_its_checkpoint() {
    let control_plane = ControlPlane::start(Options::everything()).await.unwrap();
    let client = control_plane.client().await.unwrap();
    node("n1").create(&client).await.unwrap();
    let config = |name: &str, value: &str| {
        let metadata = json!({"name": name, "finalizers": ["testbed.invalid/forever"]});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": value}})
            .to_string()
    };
    control_plane.apply(&config("changed", "before")).unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    // kwok still writes the status of a node that is not Ready yet.
    eventually("n1 is Ready", SOON, async || {
        let status = nodes.get("n1").await?.status.unwrap_or_default();
        Ok(status.conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True"))
    })
    .await
    .unwrap();
    let uid = nodes.get("n1").await.unwrap().uid();
    let mut checkpoint = Checkpoint::take(&control_plane).await.unwrap();

    for round in ["first", "second"] {
        control_plane.apply(&config("changed", round)).unwrap();
        control_plane.apply(&config("new", round)).unwrap();
        nodes.delete("n1", &Default::default()).await.unwrap();
        node("n2").create(&client).await.unwrap();
        pod("default", "placed").on("n2").create(&client).await.unwrap();
        checkpoint.restore(&control_plane).await.unwrap();
        let configs: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let changed = configs.get("changed").await.unwrap().data.unwrap_or_default();
        assert_eq!(changed["key"], "before", "{round}");
        assert!(configs.get_opt("new").await.unwrap().is_none(), "{round}");
        let found = nodes.list(&Default::default()).await.unwrap();
        assert!(found.iter().map(ResourceExt::uid).eq([uid.clone()]), "{round}: {found:?}");
        let pods: Api<Pod> = Api::all(client.clone());
        assert!(pods.list(&Default::default()).await.unwrap().items.is_empty(), "{round}");
    }

    control_plane.install_crds().await.unwrap();
    let error = checkpoint.restore(&control_plane).await.unwrap_err().to_string();
    assert!(error.contains("customresourcedefinitions"), "{error}");
}

#[tokio::test]
async fn every_process_ends_when_a_test_panics() {
    let panicking = async {
        let control_plane = ControlPlane::start(Options::everything()).await.unwrap();
        let ids = control_plane.process_ids();
        assert!(ids.iter().all(is_alive));
        std::panic::panic_any(ids);
    };
    let local = tokio::task::LocalSet::new();
    let panicked = local.spawn_local(panicking);
    local.await;
    let ids = panicked.await.unwrap_err().into_panic().downcast::<Vec<i32>>().unwrap();
    assert_eq!(ids.len(), 5);
    assert!(!ids.iter().any(is_alive), "a server outlived its test");
}

/// Not a test: [`every_process_ends_when_a_test_is_killed`] runs it in another process and kills that process.
#[tokio::test]
async fn helper_that_waits_to_be_killed() {
    if std::env::var_os("TESTBED_WAIT_TO_BE_KILLED").is_none() {
        return;
    }
    let control_plane = ControlPlane::start(Options::everything()).await.unwrap();
    println!("ids: {}", serde_json::to_string(&control_plane.process_ids()).unwrap());
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn every_process_ends_when_a_test_is_killed() {
    use std::io::{BufRead, BufReader};
    let mut killed = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "testbed_itself::helper_that_waits_to_be_killed", "--nocapture"])
        .env("TESTBED_WAIT_TO_BE_KILLED", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let line =
        lines.map_while(Result::ok).find_map(|line| Some(line.split_once("ids: ")?.1.to_owned())).unwrap();
    let ids: Vec<i32> = serde_json::from_str(&line).unwrap();
    assert_eq!(ids.len(), 5);
    assert!(ids.iter().all(is_alive));
    killed.kill().unwrap();
    killed.wait().unwrap();
    eventually("all servers have ended", SOON, async || Ok(!ids.iter().any(is_alive))).await.unwrap();
}
