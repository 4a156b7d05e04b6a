//! Manifests of Cluster API objects, as a user of either API version would write them.
//!
//! In: a version and names. Out: manifests as plain JSON, which a test can change before it applies them.

use serde_json::{Value, json};

use super::provider::GROUP;

/// The Kubernetes version of all Clusters. Cluster API requires a version.
const KUBERNETES_VERSION: &str = "v1.36.3";

/// The name of the ClusterClass that [`class`] returns.
pub const CLASS: &str = "edge";

/// An API version of Cluster API's own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The old version, which Cluster API serves until release 1.16.
    V1Beta1,
    /// The storage version.
    V1Beta2,
}

impl Version {
    /// The `apiVersion` of a manifest, such as `cluster.x-k8s.io/v1beta2`.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "cluster.x-k8s.io/v1beta1",
            Self::V1Beta2 => "cluster.x-k8s.io/v1beta2",
        }
    }
}

/// The two templates of the ClusterClass [`CLASS`], followed by the class. The class has a variable `clusterVip`. As
/// soon as the variable is not empty, a patch of the class writes it into the infrastructure as its endpoint.
pub fn class(version: Version, namespace: &str) -> [Value; 3] {
    let reference = |kind: &str| json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "name": CLASS});
    let word = match version {
        Version::V1Beta1 => "ref",
        Version::V1Beta2 => "templateRef",
    };
    let variable = json!({
        "name": "clusterVip",
        "required": false,
        "schema": {"openAPIV3Schema": {"type": "string", "default": ""}},
    });
    let patch = json!({
        "name": "endpoint",
        "enabledIf": "{{ if .clusterVip }}true{{ end }}",
        "definitions": [{
            "selector": {
                "apiVersion": format!("{GROUP}/v1"),
                "kind": "TestClusterTemplate",
                "matchResources": {"infrastructureCluster": true},
            },
            "jsonPatches": [{
                "op": "add",
                "path": "/spec/template/spec/controlPlaneEndpoint",
                "valueFrom": {"template": "{host: '{{ .clusterVip }}', port: 6443}"},
            }],
        }],
    });
    let template = |kind: &str| {
        json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": kind,
            "metadata": {"name": CLASS, "namespace": namespace},
            "spec": {"template": {"spec": {}}},
        })
    };
    let class = json!({
        "apiVersion": version.api_version(),
        "kind": "ClusterClass",
        "metadata": {"name": CLASS, "namespace": namespace},
        "spec": {
            "infrastructure": {word: reference("TestClusterTemplate")},
            "controlPlane": {word: reference("TestControlPlaneTemplate")},
            "variables": [variable],
            "patches": [patch],
        },
    });
    [template("TestClusterTemplate"), template("TestControlPlaneTemplate"), class]
}

/// A Cluster of the class [`CLASS`], without an endpoint.
pub fn cluster(version: Version, namespace: &str, name: &str) -> Value {
    let mut topology = json!({"version": KUBERNETES_VERSION});
    match version {
        Version::V1Beta1 => topology["class"] = json!(CLASS),
        Version::V1Beta2 => topology["classRef"] = json!({"name": CLASS}),
    }
    json!({
        "apiVersion": version.api_version(),
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"topology": topology},
    })
}

/// A cluster-wide pool of addresses, such as `10.0.0.10-10.0.0.20`.
pub fn global_pool(name: &str, addresses: &[&str]) -> Value {
    json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1alpha2",
        "kind": "GlobalInClusterIPPool",
        "metadata": {"name": name},
        "spec": pool_spec(addresses),
    })
}

/// A pool of addresses for one namespace.
pub fn namespaced_pool(namespace: &str, name: &str, addresses: &[&str]) -> Value {
    json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1alpha2",
        "kind": "InClusterIPPool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": pool_spec(addresses),
    })
}

fn pool_spec(addresses: &[&str]) -> Value {
    json!({"addresses": addresses, "prefix": 16, "gateway": "10.0.0.1"})
}

/// A claim for one address of a pool. `pool` is the pool's manifest.
pub fn claim(namespace: &str, name: &str, pool: &Value) -> Value {
    let (kind, pool) = (&pool["kind"], &pool["metadata"]["name"]);
    json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2",
        "kind": "IPAddressClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": kind, "name": pool}},
    })
}
