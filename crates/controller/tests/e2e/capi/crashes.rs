//! Kills the controller at every request: no Cluster gets two claims for a VIP, and no claim is left over.

use std::time::Duration;

use testbed::cluster_api::fixtures::{self, Version};

use super::rig::{Capi, for_class};
use crate::rig::{Requests, SUCCESSOR, in_parts, kill_every};

/// More requests than the controller needs to become leader and to allocate both VIPs of a Cluster.
const REQUESTS_MAX: usize = 40;

/// Creates a Cluster while a controller runs that dies at the given request, and waits until the next controller has
/// allocated its VIPs. Returns whether the first one died.
async fn allocates_when_killed_at(capi: &Capi, cluster: &str, failpoint: &str) -> bool {
    let environment = [SUCCESSOR.as_slice(), &[("FAILPOINT", failpoint)]].concat();
    let doomed = capi.controller("doomed", &[], &environment);
    capi.apply(&fixtures::cluster(Version::V1Beta2, "default", cluster));
    let has_both = async || {
        let found = capi.cluster(cluster).await;
        !found["spec"]["controlPlaneEndpoint"].is_null()
            && !found["metadata"]["annotations"]["vip.capi.gorizond.io/ingress-vip"].is_null()
    };
    let died = doomed.dies(Duration::from_secs(60), has_both).await;
    let healthy = capi.controller("healthy", &[], &SUCCESSOR);
    let vip = capi.endpoint(cluster).await;
    capi.until_vip_reason(cluster, "ingress", "Assigned").await;
    capi.until_vip_reason(cluster, "control-plane", "Assigned").await;
    let found = capi.cluster(cluster).await;
    let ingress = &found["metadata"]["annotations"]["vip.capi.gorizond.io/ingress-vip"];
    for (claim, vip) in [("cp", &serde_json::json!(vip)), ("ingress", ingress)] {
        let address = capi.get(&format!("ipaddresses.ipam.cluster.x-k8s.io/vip-{claim}-{cluster}"));
        assert_eq!(address["spec"]["address"], *vip, "{failpoint}");
    }
    healthy.stop();
    died
}

/// Kills the controller before and after each of these requests, and creates a Cluster each time. Returns the number of
/// kills.
async fn kills_at(requests: Requests) -> usize {
    let capi = Capi::start().await;
    capi.apply_all(&fixtures::class(Version::V1Beta2, "default"));
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.10-10.0.1.200"]));
    capi.apply(&for_class(fixtures::global_pool("ingress", &["10.0.2.10-10.0.2.200"]), "ingress"));
    let (mut deaths, mut clusters) = (0, 0);
    for when in ["before", "after"] {
        for request in requests.clone().take_while(|request| *request <= REQUESTS_MAX) {
            let cluster = format!("{when}-{request}");
            clusters += 1;
            if !allocates_when_killed_at(&capi, &cluster, &format!("kill-{when}:{request}")).await {
                break;
            }
            deaths += 1;
        }
    }
    let claims = capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]);
    let addresses = capi.kubectl(&["get", "ipaddresses.ipam.cluster.x-k8s.io", "-o", "name"]);
    println!("{deaths} kills, {clusters} Clusters, {} claims", claims.lines().count());
    assert_eq!(claims.lines().count(), 2 * clusters);
    assert_eq!(addresses.lines().count(), 2 * clusters);
    deaths
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_request_leaves_one_claim_for_each_vip() {
    let deaths = in_parts(2, kills_at).await;
    assert!(deaths * kill_every() >= 8, "only {deaths} kills: the work has more requests than that");
}
