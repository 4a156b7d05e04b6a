//! Objects that the controller can't decode, because a newer version wrote them or the CRD has another schema. The
//! controller does not change them, and they do not affect other objects.

use serde_json::{Value, json};
use testbed::cluster::eventually;

use crate::capi::rig::Capi;
use crate::manifests::pool;
use crate::rig::{Controller, Rig, SOON, read};

/// Changes a CRD so that it accepts any status.
fn accept_any_status(rig: &Rig, definition: &str) {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
    let patch = json!([{"op": "replace", "path": path, "value": any}]).to_string();
    rig.kubectl(&["patch", "crd", definition, "--type=json", "-p", &patch]);
}

/// How many NetIPAllocations the controller can't decode, according to its metrics.
async fn undecodable(controller: &Controller) -> Option<String> {
    let text = controller.metrics().await.ok()?;
    let is_it = |line: &&str| line.contains("undecodable_objects") && line.contains("\"NetIPAllocation\"");
    text.lines().find(is_it)?.rsplit(' ').next().map(ToOwned::to_owned)
}

async fn until_droplet_holds(rig: &Rig, droplet: u64) {
    eventually("the pool's address is on the other droplet", SOON, async || {
        Ok(rig.clouds.digitalocean.with(|account| account.holder("203.0.113.10")) == Some(droplet))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_object_does_not_block_other_failovers() {
    let rig = Rig::prepare().await;
    let controller = rig.controller("ip-address-controller", &[]);
    rig.control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    let everywhere = pool("everywhere", json!({"provider": "digitalocean", "ips": ["203.0.113.10"]}));
    rig.control_plane.apply(&everywhere.to_string()).unwrap();
    rig.settled("nia/edge").await;
    rig.settled("floatingippool/everywhere").await;
    until_droplet_holds(&rig, 1001).await;

    accept_any_status(&rig, "netipallocations.netinfra.darkbrains.com");
    let newer = r#"{"status": {"observedGeneration": "newer"}}"#;
    rig.kubectl(&["patch", "nia", "edge", "--subresource=status", "--type=merge", "-p", newer]);
    let broken = rig.get("nia/edge")["metadata"]["resourceVersion"].clone();
    eventually("an Event and a metric report the object", SOON, async || {
        let events = rig.kubectl(&["get", "events", "--field-selector", "reason=Undecodable"]);
        Ok(events.contains("edge") && undecodable(&controller).await.as_deref() == Some("1"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));

    let moved = rig.clouds.compute.ledger().done.len();
    let second = read("examples/netipallocation.yaml").replace("name: edge", "name: second");
    rig.control_plane.apply(&second).unwrap();
    rig.kubectl(&["delete", "node", "edge-1", "worker-1"]);
    until_droplet_holds(&rig, 1002).await;

    // The next leader has never seen this object in a form that it can decode.
    controller.stop();
    let controller = rig.controller("ip-address-controller-2", &[]);
    eventually("the younger object reports Conflict", SOON, async || {
        Ok(rig.get("nia/second")["status"]["conditions"][2]["reason"] == "Conflict")
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", rig.logs()));
    testbed::demo::worker_node("worker-1", 1001).create(&rig.client).await.unwrap();
    rig.kubectl(&["delete", "node", "worker-2"]);
    until_droplet_holds(&rig, 1001).await;
    assert_eq!(undecodable(&controller).await.as_deref(), Some("1"));
    assert_eq!(rig.clouds.compute.ledger().done.len(), moved, "something moved\n{}", rig.logs());
    assert_eq!(
        rig.get("nia/edge")["metadata"]["resourceVersion"],
        broken,
        "the controller wrote the undecodable object"
    );

    let known = r#"{"status": {"observedGeneration": null}}"#;
    rig.kubectl(&["patch", "nia", "edge", "--subresource=status", "--type=merge", "-p", known]);
    rig.settled("nia/edge").await;
    assert!(rig.clouds.compute.ledger().done.len() > moved, "the address of the deleted node must move now");
    assert_eq!(rig.clouds.compute.ledger().double_holders(), Vec::<String>::new());
}

/// A CRD that accepts any object.
fn definition(group: &str, version: &str, kind: &str, plural: &str, scope: &str) -> Value {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": any},
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group, "scope": scope, "versions": [version],
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_cluster_keeps_its_endpoint_and_blocks_no_other() {
    let (core, ipam) = ("cluster.x-k8s.io", "ipam.cluster.x-k8s.io");
    let capi = Capi::without_cluster_api().await;
    let definitions = [
        definition(core, "v1beta2", "Cluster", "clusters", "Namespaced"),
        definition(core, "v1beta2", "ClusterClass", "clusterclasses", "Namespaced"),
        definition(ipam, "v1beta2", "IPAddressClaim", "ipaddressclaims", "Namespaced"),
        definition(ipam, "v1beta2", "IPAddress", "ipaddresses", "Namespaced"),
        definition(ipam, "v1alpha2", "InClusterIPPool", "inclusterippools", "Namespaced"),
        definition(ipam, "v1alpha2", "GlobalInClusterIPPool", "globalinclusterippools", "Cluster"),
    ];
    capi.apply_all(&definitions);
    let names =
        definitions.iter().map(|found| format!("crd/{}", found["metadata"]["name"].as_str().unwrap()));
    let names: Vec<_> = names.collect();
    let mut wait = vec!["wait", "--for=condition=Established", "--timeout=180s"];
    wait.extend(names.iter().map(String::as_str));
    capi.kubectl(&wait);

    let class = json!({"vip.capi.gorizond.io/cluster-class": "k"});
    let deep = (0..150).fold(json!(1), |value, _| json!({"a": value}));
    let object = |kind: &str, name: &str, rest: Value| {
        let mut object = json!({"apiVersion": format!("{core}/v1beta2"), "kind": kind, "metadata": {
            "name": name, "namespace": "default", "annotations": class}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let variables = json!([{"name": "deep", "value": deep}]);
    let endpoint = json!({"host": "10.0.1.10", "port": 6443});
    let spec = json!({"controlPlaneEndpoint": endpoint, "topology": {"class": "k", "variables": variables}});
    capi.apply(&object("Cluster", "deep", json!({"spec": spec})));
    let labels =
        json!({"vip.capi.gorizond.io/cluster-class": "k", "vip.capi.gorizond.io/role": "control-plane"});
    capi.apply(&json!({
        "apiVersion": format!("{ipam}/v1alpha2"), "kind": "GlobalInClusterIPPool",
        "metadata": {"name": "pool", "labels": labels}, "spec": {},
    }));
    capi.apply(&object("Cluster", "a", json!({"spec": {}})));
    let _controller = capi.controller("vips", &[], &[]);

    let assign = |address: &str| {
        let claim = capi.get("ipaddressclaim/vip-cp-a");
        let owner = json!({
            "apiVersion": format!("{ipam}/v1beta2"), "kind": "IPAddressClaim", "name": "vip-cp-a",
            "uid": claim["metadata"]["uid"], "controller": true,
        });
        capi.apply(&json!({
            "apiVersion": format!("{ipam}/v1beta2"), "kind": "IPAddress",
            "metadata": {"name": "vip-cp-a", "namespace": "default", "ownerReferences": [owner]},
            "spec": {"address": address},
        }));
        let status = r#"{"status": {"addressRef": {"name": "vip-cp-a"}}}"#;
        capi.kubectl(&["patch", "ipaddressclaim", "vip-cp-a", "--type=merge", "-p", status]);
    };
    eventually("the other Cluster has a claim", SOON, async || {
        Ok(!capi.kubectl(&["get", "ipaddressclaims", "-o", "name"]).is_empty())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    assign("10.0.1.10");
    capi.until_vip_reason("a", "control-plane", "InUse").await;
    assign("10.0.1.11");
    assert_eq!(capi.endpoint("a").await, "10.0.1.11");
    let events = capi.kubectl(&["get", "events", "--field-selector", "reason=Undecodable"]);
    assert!(events.contains("cluster/deep"), "{events}");
    let annotations = capi.kubectl(&["get", "cluster", "deep", "-o", "jsonpath={.metadata.annotations}"]);
    assert!(
        !annotations.contains("vip.capi.gorizond.io/status"),
        "the controller wrote the undecodable Cluster: {annotations}"
    );
}
