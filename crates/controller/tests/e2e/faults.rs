//! Failures of clouds and of the control plane, and conflicts between objects.

use std::time::Duration;

use serde_json::{Value, json};
use testbed::api_proxy::ApiProxy;
use testbed::checkpoint;
use testbed::cluster::{eventually, pod};
use testbed::fake::Refusal;
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::CloudChange;
use testbed::proxy::Proxy;

use crate::manifests::pool;
use crate::rig::{Rig, SOON, SUCCESSOR, read};

#[tokio::test(flavor = "multi_thread")]
async fn node_marks_stay_while_the_cloud_is_unavailable() {
    let rig = Rig::prepare().await;
    rig.kubectl(&["label", "node", "edge-1", "ip.ready=true"]);
    rig.kubectl(&["annotate", "node", "worker-1", "flipop.digitalocean.com/ipv4-reserved-ip=203.0.113.10"]);
    rig.clouds.compute.inject(Rule::always(Fault::Refuse(Refusal::Unavailable(503))));
    rig.clouds.digitalocean.inject(Rule::always(Fault::LoseReply));
    for example in ["examples/netipallocation.yaml", "examples/floatingippool.yaml"] {
        rig.control_plane.apply(&read(example)).unwrap();
    }
    let _controller = rig.controller("ip-address-controller", &[]);
    eventually("the object reports why nothing happens", SOON, async || {
        let conditions = rig.get("nia/edge")["status"]["conditions"].clone();
        Ok(conditions[0]["reason"] == "Unknown"
            && conditions[0]["message"].as_str().unwrap_or_default().contains("503"))
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(rig.ready_nodes(), ["edge-1"]);
    assert_eq!(rig.annotation("worker-1").as_deref(), Some("203.0.113.10"));

    rig.clouds.compute.heal();
    rig.clouds.digitalocean.heal();
    rig.settled("nia/edge").await;
    eventually("worker-1 holds no address and loses its annotation", SOON, async || {
        Ok(rig.annotation("worker-1").is_none())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_one_cloud_do_not_delay_another() {
    let (rig, _controller) = Rig::start().await;
    rig.clouds.compute.inject(Rule::always(Fault::Refuse(Refusal::Unavailable(500))));
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    let everywhere = pool("everywhere", json!({"provider": "digitalocean", "ips": ["203.0.113.10"]}));
    rig.control_plane.apply(&everywhere.to_string()).unwrap();
    rig.settled("floatingippool/everywhere").await;
    assert_eq!(rig.clouds.digitalocean.with(|account| account.holder("203.0.113.10")), Some(1001));
    eventually("the other object reports that its cloud does not answer", SOON, async || {
        Ok(rig.get("nia/edge")["status"]["conditions"][0]["reason"] == "Unknown")
    })
    .await
    .unwrap();
    assert!(rig.clouds.compute.ledger().done.is_empty());
}

/// Makes the apiserver refuse every status update of the allocation `refused`.
async fn refuse_status(rig: &Rig) {
    let rule = json!({
        "apiGroups": ["netinfra.darkbrains.com"], "apiVersions": ["*"], "operations": ["UPDATE"],
        "resources": ["netipallocations/status"],
    });
    let metadata = json!({"name": "refuse-status"});
    for manifest in [
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": metadata,
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "object.metadata.name != 'refused'", "message": "not this one"}],
            },
        }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": "refuse-status", "validationActions": ["Deny"]},
        }),
    ] {
        rig.control_plane.apply(&manifest.to_string()).unwrap();
    }
    eventually("the policy is in force", SOON, async || {
        let patch = r#"{"status": {"summary": {"desired": 0, "attached": 0}}}"#;
        let arguments = ["patch", "nia", "refused", "--subresource=status", "--type=merge", "-p", patch];
        Ok(!rig.control_plane.kubectl().args(arguments).output()?.status.success())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_retried_with_backoff_for_its_object_alone() {
    let rig = Rig::prepare().await;
    let example = read("examples/netipallocation.yaml");
    let refused = example.replace("name: edge", "name: refused").replace("34.123.45.67", "34.123.45.68");
    let refused = refused.replacen("    - 34.123.45.68\n", "", 1);
    rig.control_plane.apply(&refused).unwrap();
    refuse_status(&rig).await;
    let controller = rig.controller("ip-address-controller", &[]);
    rig.control_plane.apply(&example.replace("    - 34.123.45.68\n", "")).unwrap();
    rig.settled("nia/edge").await;
    eventually("an Event reports the refused write", SOON, async || {
        Ok(rig.kubectl(&["get", "events", "--field-selector", "reason=WriteRefused"]).contains("refused"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    tokio::time::sleep(Duration::from_secs(15)).await;
    let log = controller.log();
    let refusals = log.lines().filter(|line| line.contains("failed to update status")).count();
    assert!((3..=8).contains(&refusals), "{refusals} writes were refused\n{log}");
    assert_eq!(rig.holder("34.123.45.68"), None, "no move may start without a journal entry");

    rig.kubectl(&["delete", "validatingadmissionpolicybinding", "refuse-status"]);
    rig.kubectl(&["annotate", "nia", "refused", "example.com/try=again"]);
    rig.settled("nia/refused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_object_with_the_same_address_gets_conflict() {
    let (rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    // Creation timestamps have a resolution of one second, and the older object wins.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let moved = rig.clouds.compute.ledger().done.len();
    let second = read("examples/netipallocation.yaml").replace("name: edge", "name: second");
    rig.control_plane.apply(&second).unwrap();
    eventually("the second object reports Conflict", SOON, async || {
        Ok(rig.get("nia/second")["status"]["conditions"][2]["reason"] == "Conflict")
    })
    .await
    .unwrap();
    // The older object keeps its addresses even if no node matches it any more.
    rig.kubectl(&[
        "patch",
        "nia",
        "edge",
        "--type=merge",
        "-p",
        r#"{"spec": {"nodeSelector": {"role": "nobody"}}}"#,
    ]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(rig.get("nia/second")["status"]["conditions"][2]["reason"], "Conflict");
    assert_eq!(rig.clouds.compute.ledger().done.len(), moved, "something moved\n{}", rig.logs());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_survives_a_restart_of_apiserver_and_etcd() {
    let (mut rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    rig.clouds.compute.with(|compute| compute.operation_time = Duration::from_secs(3));
    rig.kubectl(&["delete", "node", "edge-1"]);
    let changes = rig.clouds.compute.ledger().done.len();
    eventually("the address is detached from its node", SOON, async || {
        Ok(rig.clouds.compute.ledger().done.len() > changes)
    })
    .await
    .unwrap();
    rig.control_plane.restart_apiserver().await.unwrap();
    rig.control_plane.restart_etcd().await.unwrap();
    eventually("the address is on edge-3", SOON, async || {
        Ok(rig.holder("34.123.45.67").as_deref() == Some("demo/us-west1-a/edge-3"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    rig.settled("nia/edge").await;
    assert_eq!(rig.clouds.compute.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silently_dead_watch_is_noticed_within_ten_seconds() {
    let mut rig = Rig::prepare().await;
    let proxy = Proxy::start(rig.control_plane.port()).await.unwrap();
    let through = std::fs::read_to_string(&rig.kubeconfig).unwrap();
    let through = through.replace(&format!(":{}", rig.control_plane.port()), &format!(":{}", proxy.port));
    rig.kubeconfig = rig.control_plane.folder().join("through-proxy.kubeconfig");
    std::fs::write(&rig.kubeconfig, through).unwrap();
    let controller = rig.controller("ip-address-controller", &[("LEASE_DURATION", "30")]);
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;

    let usual = rig.fail_over(|| ()).await;
    let (node, zone) = rig.node_of("34.123.45.67");
    // The connections stay open but carry no data, as if a firewall had dropped its connection table.
    proxy.freeze();
    let changes = rig.clouds.compute.ledger().done.len();
    rig.kubectl(&["delete", "node", &node]);
    let noticed = controller.until_log(&format!("begin to move 34.123.45.67 from demo/{zone}/{node}")).await;
    let left = eventually("the address is detached from the deleted node", SOON, async || {
        Ok(rig.clouds.compute.ledger().done.len() > changes)
    });
    let left = left.await.unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    println!("all connections to the apiserver dead -> noticed after {noticed:?}, detached {left:?} later");
    // On a busy machine everything takes longer, also a failover with working connections.
    let bound = Duration::from_secs(10).max(Duration::from_secs(7) + 10 * usual);
    assert!(noticed < bound, "at most {bound:?}\n{}", rig.logs());
}

/// A pool of two addresses with this cool-off, for all nodes.
fn slow_pool(cool_off: Duration) -> Value {
    let spec = json!({
        "provider": "digitalocean",
        "ips": ["203.0.113.10", "203.0.113.11"],
        "assignmentCoolOffSeconds": cool_off.as_secs(),
    });
    pool("slow", spec)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_causes_no_move_to_a_deleted_node() {
    const COOL_OFF: Duration = Duration::from_secs(15);
    let mut rig = Rig::prepare().await;
    let proxy = ApiProxy::start(&rig.kubeconfig).await.unwrap();
    rig.kubeconfig = proxy.kubeconfig(rig.control_plane.folder()).unwrap();
    let _controller = rig.controller("ip-address-controller", &[]);
    rig.control_plane.apply(&slow_pool(COOL_OFF).to_string()).unwrap();
    let holder = |address: &str| rig.clouds.digitalocean.with(|account| account.holder(address));
    eventually("the first address is assigned", SOON, async || Ok(holder("203.0.113.10") == Some(1001)))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    // The VM of the node still exists. A controller that trusts a silent watch would assign the next address to it.
    proxy.silence_watches(true);
    rig.kubectl(&["delete", "node", "worker-2"]);
    eventually("the second address is assigned", SOON, async || Ok(holder("203.0.113.11").is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    assert_eq!(holder("203.0.113.11"), Some(1003), "{}", rig.logs());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_works_after_etcd_was_compacted() {
    let (mut rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    rig.control_plane.kill_apiserver().unwrap();
    checkpoint::delete_and_forget(&rig.control_plane, "/registry/minions/edge-1").await.unwrap();
    rig.control_plane.start_apiserver().await.unwrap();
    eventually("the address is on edge-3", SOON, async || {
        Ok(rig.holder("34.123.45.67").as_deref() == Some("demo/us-west1-a/edge-3"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_exits_after_etcd_was_restored() {
    let mut rig = Rig::prepare().await;
    // With this duration, the controller keeps its lease while the apiserver restarts.
    let environment = [("LEASE_DURATION", "30"), ("TAKEOVER_SECONDS", "1")];
    let mut controller = rig.controller("ip-address-controller", &environment);
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    let backup = rig.control_plane.back_up_etcd().await.unwrap();
    rig.kubectl(&["delete", "node", "edge-1"]);
    rig.labelled(|nodes| nodes == ["edge-2", "edge-3"]).await;

    // In the copy the address is on edge-1, which exists again.
    rig.control_plane.restore_etcd(&backup.path().join("etcd")).await.unwrap();
    let ended = controller.process.wait(SOON).unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    let log = controller.log();
    assert!(!ended.success() && log.contains("etcd was restored from an older copy"), "{log}");
    let _next = rig.controller("ip-address-controller-2", &SUCCESSOR);
    // The copy has the lease of the first controller, which has to expire.
    eventually("the label is on edge-2 and edge-3", 2 * SOON, async || {
        Ok(rig.ready_nodes() == ["edge-2", "edge-3"])
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    rig.settled("nia/edge").await;
    assert_eq!(rig.holder("34.123.45.67").as_deref(), Some("demo/us-west1-a/edge-3"));
    assert_eq!(rig.clouds.compute.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_works_again_after_the_apiserver_was_paused() {
    let (rig, _controller) = Rig::start().await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    rig.settled("nia/edge").await;
    rig.control_plane.pause_apiserver(true).unwrap();
    tokio::time::sleep(Duration::from_secs(15)).await;
    rig.control_plane.pause_apiserver(false).unwrap();
    rig.kubectl(&["delete", "node", "edge-1"]);
    eventually("the address is on edge-3", SOON, async || {
        Ok(rig.holder("34.123.45.67").as_deref() == Some("demo/us-west1-a/edge-3"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_the_cool_off_survives_a_change_of_leader() {
    const COOL_OFF: Duration = Duration::from_secs(10);
    let rig = Rig::prepare().await;
    let first = rig.controller("ip-address-controller-1", &[]);
    rig.control_plane.apply(&slow_pool(COOL_OFF).to_string()).unwrap();
    let assigned = || {
        let done = rig.clouds.digitalocean.ledger().done;
        let accepted = done.iter().filter(|done| matches!(done.change, CloudChange::Accepted { .. }));
        accepted.map(|done| done.at).collect::<Vec<_>>()
    };
    eventually("the first address is assigned", SOON, async || Ok(assigned().len() == 1)).await.unwrap();
    assert!(first.stop().success(), "the first leader must exit without an error");
    let second = rig.controller("ip-address-controller-2", &[]);
    second.until_log("leading epoch").await;
    rig.settled("floatingippool/slow").await;
    let apart = assigned()[1] - assigned()[0];
    println!("assigned {apart:?} apart, by two leaders, with a cool-off of {COOL_OFF:?}");
    assert!(apart >= COOL_OFF, "{apart:?}\n{}", rig.logs());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_move_starts_when_the_crd_drops_the_journal() {
    let rig = Rig::prepare().await;
    let mut crd: Value =
        serde_json::to_value(<api::NetIPAllocation as kube::CustomResourceExt>::crd()).unwrap();
    let schema =
        &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    schema.as_object_mut().unwrap().remove("moves");
    rig.control_plane.apply(&crd.to_string()).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    let controller = rig.controller("ip-address-controller", &[]);
    controller.until_log("apply the CRDs of this version").await;
    let version = || rig.get("nia/edge")["metadata"]["resourceVersion"].clone();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = version();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(version(), before, "the controller keeps writing the object");
    assert!(rig.clouds.compute.ledger().done.is_empty(), "a move started without a journal");
}

/// How many requests to replace the status of an allocation the apiserver has received.
fn status_writes(rig: &Rig) -> u64 {
    let metrics = rig.kubectl(&["get", "--raw", "/metrics"]);
    let is_write = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && ["resource=\"netipallocations\"", "subresource=\"status\"", "verb=\"PUT\""]
                .iter()
                .all(|label| line.contains(label))
    };
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    metrics.lines().filter(is_write).map(count).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crd_that_drops_optional_status_fields_stops_nothing() {
    let rig = Rig::prepare().await;
    let mut crd: Value =
        serde_json::to_value(<api::NetIPAllocation as kube::CustomResourceExt>::crd()).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let status = &mut schema["properties"]["status"]["properties"];
    status.as_object_mut().unwrap().remove("summary").unwrap();
    let address = &mut status["addresses"]["items"]["properties"];
    address.as_object_mut().unwrap().remove("since").unwrap();
    rig.control_plane.apply(&crd.to_string()).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    let _controller = rig.controller("ip-address-controller", &[]);
    rig.settled("nia/edge").await;
    rig.kubectl(&["delete", "node", "edge-1"]);
    eventually("the address has moved", SOON, async || {
        Ok(rig.ready_nodes() == ["edge-2", "edge-3"] && rig.get("nia/edge")["status"]["moves"].is_null())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    let events = rig.kubectl(&["get", "events", "-o", "json"]);
    assert!(
        events.contains("the installed CRD is outdated and drops status.addresses.since, status.summary"),
        "{events}"
    );
    let before = status_writes(&rig);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let written = status_writes(&rig) - before;
    assert!(before > 0 && written <= 1, "{written} further writes of the status\n{}", rig.logs());
}

#[tokio::test(flavor = "multi_thread")]
async fn observe_mode_changes_nothing() {
    let rig = Rig::prepare().await;
    rig.kubectl(&["label", "node", "edge-3", "ip.ready=true"]);
    let observed =
        read("examples/netipallocation.yaml").replace("spec:\n", "spec:\n  policy:\n    mode: Observe\n");
    rig.control_plane.apply(&observed).unwrap();
    let _controller = rig.controller("ip-address-controller", &[]);
    eventually("the status proposes the move", SOON, async || {
        Ok(rig.get("nia/edge")["status"]["proposed"][0] == "begin to attach 34.123.45.67 to edge-1")
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:#}", rig.get("nia/edge")["status"]));
    assert_eq!(rig.ready_nodes(), ["edge-3"], "the controller changed node labels");
    assert!(rig.clouds.compute.ledger().done.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_pod_ends_the_address_moves_to_the_next_pods_node() {
    let (rig, _controller) = Rig::start().await;
    let nginx = |name: &str| pod("default", name).label("app", "nginx").label("component", "controller");
    nginx("one").on("worker-1").create(&rig.client).await.unwrap();
    let pool = read("examples/floatingippool.yaml").replace("podNamespace: ingress", "podNamespace: default");
    rig.control_plane.apply(&pool.replace("    - 203.0.113.11\n", "")).unwrap();
    rig.settled("floatingippool/ingress-pool").await;
    nginx("two").on("worker-2").create(&rig.client).await.unwrap();
    rig.kubectl(&["delete", "pod", "one", "--grace-period=0", "--force"]);
    eventually("the address followed the pod", SOON, async || {
        let holder = rig.clouds.digitalocean.with(|account| account.holder("203.0.113.10"));
        Ok(holder == Some(1002)
            && rig.annotation("worker-1").is_none()
            && rig.annotation("worker-2").is_some())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
}
