//! Measures the controller in the largest cluster that it has to carry: `just bench scale`, `annotations` and `soak`.
//!
//! `SCALE_PERCENT` makes the cluster smaller, and `SOAK_MINUTES` the soak shorter.

mod changes;
mod cluster;
mod measured;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use self::changes::{change_node, change_pod, change_replica_set, use_a_new_label, use_a_replica_set};
use self::cluster::{Size, create_all, pod};
use self::measured::{CHANGES, Latency, Measured, megabytes_max, open_files, peak_megabytes};
use crate::rig::resident_megabytes;

/// A number from the environment.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench scale"]
async fn memory_and_latency_in_the_largest_cluster() {
    let size = Size::of_percent(number("SCALE_PERCENT", 100));
    let measured = Measured::start(size).await;
    let settled_in = measured.until_settled().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let controller = &measured.controller.process;
    let (settled, peak_of_start) = (resident_megabytes(controller), peak_megabytes(controller));
    let client = &measured.client;
    let of_nodes = measured.latency(|number| change_node(client, size, number)).await;
    let of_pods = measured.latency(|number| change_pod(client, size, number)).await;
    use_a_replica_set(client).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let of_replica_sets = measured.latency(|number| change_replica_set(client, number)).await;
    use_a_new_label(client).await;
    // Other values than before: a patch that changes nothing causes no event.
    let during_a_list = measured.latency(|number| change_node(client, size, CHANGES + number)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let peak_of_new_label = peak_megabytes(controller);
    // So long that the watches can't resume, and all kinds are listed again.
    measured.control_plane.pause_apiserver(true).unwrap();
    tokio::time::sleep(Duration::from_secs(45)).await;
    measured.control_plane.pause_apiserver(false).unwrap();
    tokio::time::sleep(Duration::from_secs(90)).await;
    let (listed_again, peak_of_relist) = (resident_megabytes(controller), peak_megabytes(controller));
    let latencies = [of_nodes, of_pods, of_replica_sets, during_a_list];
    println!(
        "{}",
        json!({
            "nodes": size.nodes(), "pods": size.pods(), "pools": size.pools, "addresses": size.addresses(),
            "cluster_seconds": measured.created_in.as_secs(), "settled_seconds": settled_in.as_secs(),
            "settled_megabytes": settled, "settled_megabytes_max": megabytes_max(size),
            "peak_megabytes_of_start": peak_of_start, "after_relist_megabytes": listed_again,
            "peak_megabytes_of_new_label": peak_of_new_label, "peak_megabytes_of_relist": peak_of_relist,
            "p99_seconds_max_of_nodes_pods_replica_sets_and_nodes_during_a_list":
                latencies.map(|latency| latency.p99_seconds_max),
            "measured_changes": latencies.map(|latency| latency.count),
        })
    );
    assert!(latencies.iter().all(|latency| latency.count > 100.0), "too few were measured: {latencies:?}");
    assert!(settled <= megabytes_max(size), "{settled} MB");
    let peak = peak_of_start.max(peak_of_new_label).max(peak_of_relist);
    assert!(peak * 1e6 < 256.0 * 1_048_576.0, "{peak} MB");
    let slowest = latencies[..3].iter().map(|latency| latency.p99_seconds_max).fold(0.0, f64::max);
    assert!(slowest <= 0.05 && during_a_list.p99_seconds_max <= 0.2, "{latencies:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of minutes: just bench annotations"]
async fn large_annotations_of_pods_take_no_memory() {
    const PODS: usize = 1_000;
    const ANNOTATION_BYTES: usize = 250_000;
    let mut measured = Measured::start(Size::of_percent(1)).await;
    measured.until_settled().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let without = resident_megabytes(&measured.controller.process);
    let client = measured.client.clone();
    create_all(PODS, async |number| {
        let (object, _) = pod(number);
        let metadata = &object["metadata"];
        let pods: Api<Pod> = Api::namespaced(client.clone(), metadata["namespace"].as_str().unwrap());
        let large = json!({"metadata": {"annotations": {"large": "x".repeat(ANNOTATION_BYTES)}}});
        let name = metadata["name"].as_str().unwrap();
        pods.patch(name, &PatchParams::default(), &Patch::Merge(large)).await.map(drop)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let after_events = resident_megabytes(&measured.controller.process);
    measured.restart().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let after_restart = resident_megabytes(&measured.controller.process);
    let peak_of_start = peak_megabytes(&measured.controller.process);
    println!(
        "{}",
        json!({
            "pods": PODS, "annotation_bytes": ANNOTATION_BYTES, "megabytes_without": without,
            "megabytes_after_events": after_events, "megabytes_after_restart": after_restart,
            "peak_megabytes_of_start": peak_of_start,
        })
    );
    assert!(after_events.max(after_restart) <= 1.05 * without, "{without} {after_events} {after_restart}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of an hour: just bench soak"]
async fn memory_and_lag_stay_while_the_cluster_changes() {
    let size = Size::of_percent(number("SCALE_PERCENT", 10));
    let duration = Duration::from_secs(60 * number("SOAK_MINUTES", 60) as u64);
    let measured = Measured::start(size).await;
    measured.until_settled().await;
    let name = "ip_address_controller_loop_lag_seconds";
    let (before, began) = (measured.histogram(name).await, Instant::now());
    let changes = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        for number in 0..usize::MAX / 10 {
            second.tick().await;
            change_node(&measured.client, size, number).await.unwrap();
            for of_second in 0..10 {
                change_pod(&measured.client, size, 10 * number + of_second).await.unwrap();
            }
        }
    };
    let sample = async {
        let mut quarters: [Vec<(f64, usize)>; 4] = Default::default();
        while began.elapsed() < duration {
            let quarter = (4.0 * began.elapsed().as_secs_f64() / duration.as_secs_f64()) as usize;
            let controller = &measured.controller.process;
            quarters[quarter.min(3)].push((resident_megabytes(controller), open_files(controller)));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        quarters
    };
    let quarters = tokio::select! {
        () = changes => unreachable!("there is always another change"),
        quarters = sample => quarters,
    };
    let lag = Latency::between(&before, &measured.histogram(name).await);
    let megabytes = quarters.each_ref().map(|samples| {
        samples.iter().map(|(megabytes, _)| megabytes).sum::<f64>() / samples.len().max(1) as f64
    });
    let files = quarters.each_ref().map(|samples| samples.iter().map(|(_, files)| *files).max().unwrap_or(0));
    println!(
        "{}",
        json!({
            "nodes": size.nodes(), "pods": size.pods(), "minutes": duration.as_secs() / 60,
            "megabytes_of_quarters": megabytes, "open_files_of_quarters": files,
            "loop_turns": lag.count, "lag_p99_seconds_max": lag.p99_seconds_max,
        })
    );
    assert!(megabytes[3] <= 1.05 * megabytes[1], "memory grows: {megabytes:?}");
    // A connection that is replaced counts twice for a moment.
    assert!(files[3] <= files[1] + 3, "files or sockets leak: {files:?}");
    assert!(lag.p99_seconds_max <= 0.1, "{lag:?}");
}
