//! A pool's status and metrics in the format that users of FLIPOP rely on.

use std::time::Duration;

use serde_json::json;
use testbed::cluster::eventually;

use crate::manifests::pool_of_workers;
use crate::rig::{Controller, Rig, SOON};

const POOL: &str = "floatingippool/pool";

/// The lines of the metrics that begin with `flipop_`.
async fn flipop_metrics(controller: &Controller) -> Vec<String> {
    let text = controller.metrics().await.unwrap();
    text.lines().filter(|line| line.starts_with("flipop_")).map(ToOwned::to_owned).collect()
}

/// Waits until the metrics have all of these lines.
async fn until_metrics(rig: &Rig, controller: &Controller, lines: &[&str]) {
    let lacking = async || {
        let found = flipop_metrics(controller).await;
        lines.iter().filter(|line| !found.iter().any(|found| found == *line)).copied().collect::<Vec<_>>()
    };
    let complete =
        eventually("the metrics have all lines", SOON, async || Ok(lacking().await.is_empty())).await;
    if let Err(error) = complete {
        panic!(
            "{error}: {:#?} lacks {:#?}\n{}",
            flipop_metrics(controller).await,
            lacking().await,
            rig.logs()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f11_f12_status_and_metrics_of_a_pool_match_those_of_flipop() {
    let (rig, controller) = Rig::start().await;
    rig.control_plane.apply(&pool_of_workers("pool").to_string()).unwrap();
    rig.settled(POOL).await;
    let status = rig.get(POOL)["status"].clone();
    let active = |node: &str, id: &str| json!({"state": "active", "nodeName": node, "providerID": id});
    let (one, two) = (active("worker-1", "digitalocean://1001"), active("worker-2", "digitalocean://1002"));
    let ips = json!({"203.0.113.10": one, "203.0.113.11": two});
    assert_eq!(status["ips"], ips);
    assert_eq!(status["assignableNodes"], json!(["worker-3"]));
    assert!(status["nodeErrors"].is_null() && status["error"].is_null(), "{status:#}");
    until_metrics(
        &rig,
        &controller,
        &[
            r#"flipop_floatingippoolcontroller_ip_assignments{dns="",ip="203.0.113.10",name="pool",namespace="default",provider="digitalocean"} 1"#,
            r#"flipop_floatingippoolcontroller_ip_assignment_errors{dns="",ip="203.0.113.10",name="pool",namespace="default",provider="digitalocean"} 0"#,
            r#"flipop_floatingippoolcontroller_ip_node{dns="",ip="203.0.113.10",name="pool",namespace="default",node="worker-1",provider="digitalocean",provider_id="digitalocean://1001"} 1"#,
            r#"flipop_floatingippoolcontroller_ip_state{dns="",ip="203.0.113.11",name="pool",namespace="default",provider="digitalocean",state="active"} 1"#,
            r#"flipop_floatingippoolcontroller_node_status{dns="",name="pool",namespace="default",provider="digitalocean",status="assigned"} 2"#,
            r#"flipop_floatingippoolcontroller_node_status{dns="",name="pool",namespace="default",provider="digitalocean",status="available"} 1"#,
            r#"flipop_floatingippoolcontroller_unfulfilled_ips{dns="",name="pool",namespace="default",provider="digitalocean"} 0"#,
            r#"flipop_providers_calls_total{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="default",outcome="success",provider="digitalocean"} 2"#,
            r#"flipop_providers_call_duration_seconds_count{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="default",provider="digitalocean"} 2"#,
        ],
    )
    .await;
    rig.without_finalizer(POOL).await;
    let version = || rig.get(POOL)["metadata"]["resourceVersion"].clone();
    let before = version();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(version(), before, "the controller wrote a settled pool");

    // The droplet of the only free node is gone, so the cloud refuses the assignment.
    rig.clouds.digitalocean.with(|digitalocean| digitalocean.remove_droplet(1003));
    rig.kubectl(&["delete", "node", "worker-1"]);
    eventually("the status reports the refusal", SOON, async || {
        Ok(rig.get(POOL)["status"]["nodeErrors"] == json!(["worker-3"]))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL)["status"], rig.logs()));
    let status = rig.get(POOL)["status"].clone();
    assert!(status["assignableNodes"].is_null(), "{status:#}");
    assert_eq!(status["ips"]["203.0.113.11"], two);
    let errors = |line: &String| {
        line.contains("ip_assignment_errors") && line.contains("203.0.113.10") && !line.ends_with(" 0")
    };
    eventually("the failure is counted", SOON, async || {
        Ok(flipop_metrics(&controller).await.iter().any(errors))
    })
    .await
    .unwrap();

    rig.kubectl(&["delete", POOL]);
    let of_pool = |line: &String| line.contains(r#"name="pool""#);
    eventually("the pool's metrics are gone", SOON, async || {
        Ok(!flipop_metrics(&controller).await.iter().any(of_pool))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
}
