//! A control plane with the real Cluster API, the controller's binary with only VIPs enabled, and Clusters for both.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use futures::future::try_join_all;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::cluster_api::fixtures::{self, Version};
use testbed::cluster_api::provider::{self, Provider};
use testbed::cluster_api::{ClusterApi, ManagementCluster};
use testbed::control_plane::{ControlPlane, Options, free_ports};
use testbed::objects::Objects;
use testbed::process::Process;
use testbed::spares::{Reusable, Spares};

use crate::rig::{Controller, SOON, read};

/// A control plane with Cluster API.
pub struct Capi {
    pub client: Client,
    objects: Objects,
    pub kubeconfig: PathBuf,
    _provider: Option<Provider>,
    servers: Reusable<ManagementCluster>,
}

/// Control planes with the RBAC of the manifest, and a released lease.
static WITHOUT_CLUSTER_API: Spares<ManagementCluster> = Spares::new();

const OPTIONS: Options = Options { controller_manager: true, ..Options::api_only() };

async fn without_cluster_api() -> anyhow::Result<ManagementCluster> {
    let control_plane = ControlPlane::start(OPTIONS).await?;
    control_plane.kubectl().args(["create", "namespace", "capi-system"]).output()?;
    control_plane.apply(&read("k8s/cluster-api/capi-vip-allocator.yaml"))?;
    control_plane.install_released_lease("capi-system", "capi-vip-allocator.gorizond.io")?;
    Ok(ManagementCluster { cluster_api: None, control_plane })
}

impl Capi {
    /// Returns a control plane with Cluster API and the RBAC of the manifest. No later test gets it: a manager may still
    /// write an object of this test after the control plane was reset.
    pub async fn start() -> Self {
        let mut capi = Self::without_cluster_api().await;
        capi.install_cluster_api().await;
        capi
    }

    /// Like [`Self::start`], without Cluster API.
    pub async fn without_cluster_api() -> Self {
        let servers = WITHOUT_CLUSTER_API.acquire(OPTIONS, without_cluster_api).await.unwrap();
        let client = servers.control_plane.client().await.unwrap();
        let account = "capi-vip-allocator-controller-manager";
        let kubeconfig = servers.control_plane.kubeconfig_for("capi-system", account).unwrap();
        Self { objects: Objects::new(client.clone()), client, kubeconfig, _provider: None, servers }
    }

    pub async fn install_cluster_api(&mut self) {
        self.servers.install_cluster_api().await.unwrap();
        self._provider = Some(Provider::start(self.client.clone()));
    }

    pub fn control_plane(&self) -> &ControlPlane {
        &self.servers.control_plane
    }

    /// Starts a controller with only VIPs enabled.
    pub fn controller(&self, name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Controller {
        let ports = free_ports(2).unwrap();
        let configure = |command: &mut Command| {
            command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--enable-addresses=false").args(arguments);
            command.env("HEALTH_PORT", ports[0].to_string()).env("METRICS_PORT", ports[1].to_string());
            command.env("POD_NAME", name).env("POD_NAMESPACE", "capi-system");
            command
                .env("LEASE_DURATION", "15")
                .env("TAKEOVER_SECONDS", "1")
                .envs(environment.iter().copied());
        };
        let program = PathBuf::from(env!("CARGO_BIN_EXE_ip-address-controller"));
        let name = format!("ip-address-controller-{name}");
        let process = Process::start(&name, &program, configure, self.control_plane().folder()).unwrap();
        Controller { process, health_port: ports[0], metrics_port: ports[1] }
    }

    pub fn apply(&self, manifest: &Value) {
        self.control_plane().apply(&manifest.to_string()).unwrap();
    }

    pub fn apply_all(&self, manifests: &[Value]) {
        self.apply(&json!({"apiVersion": "v1", "kind": "List", "items": manifests}));
    }

    /// A pool for the class of the fixtures.
    pub fn pool(&self, name: &str, role: &str, addresses: &[&str]) -> Value {
        for_class(fixtures::global_pool(name, addresses), role)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.control_plane().kubectl().args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {error}\n{}", self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn get(&self, what: &str) -> Value {
        self.objects.get(what).unwrap_or_else(|error| panic!("{what}: {error:#}\n{}", self.logs()))
    }

    pub fn clusters(&self) -> Api<DynamicObject> {
        let resource =
            ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
        Api::namespaced_with(self.client.clone(), "default", &resource)
    }

    pub async fn cluster(&self, name: &str) -> Value {
        serde_json::to_value(self.clusters().get(name).await.unwrap()).unwrap()
    }

    /// The infrastructure of a Cluster, or null if there is none.
    pub async fn infrastructure(&self, name: &str) -> Value {
        let found = provider::infrastructure_of(&self.client, "default", name).await.unwrap();
        found.map(|found| found.data).unwrap_or_default()
    }

    /// Waits until a Cluster has an endpoint, and returns its host.
    pub async fn endpoint(&self, name: &str) -> String {
        let host = async || {
            let cluster = self.clusters().get(name).await?;
            anyhow::Ok(cluster.data["spec"]["controlPlaneEndpoint"]["host"].as_str().map(ToOwned::to_owned))
        };
        eventually(&format!("{name} has an endpoint"), SOON, async || Ok(host().await?.is_some()))
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        host().await.unwrap().unwrap()
    }

    /// The reason and message for a Cluster's VIP, from its status annotation.
    pub async fn vip_status(&self, name: &str, role: &str) -> Value {
        let cluster = self.cluster(name).await;
        let text = cluster["metadata"]["annotations"]["vip.capi.gorizond.io/status"].as_str();
        let status: Value = text.map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default();
        status[role].clone()
    }

    /// Waits until a Cluster's VIP has this reason.
    pub async fn until_vip_reason(&self, name: &str, role: &str, reason: &str) -> Value {
        let mut status = Value::Null;
        eventually(&format!("{name} reports {reason}"), SOON, async || {
            status = self.vip_status(name, role).await;
            Ok(status["reason"] == reason)
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        status
    }

    /// The last lines of all logs.
    pub fn logs(&self) -> String {
        let managers = self.servers.cluster_api.as_ref().map(ClusterApi::log_tails).unwrap_or_default();
        let files = std::fs::read_dir(self.control_plane().folder()).unwrap();
        let ours = files
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("ip-address"));
        let tail = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!("{managers}\n{}", ours.map(tail).collect::<Vec<_>>().join("\n"))
    }
}

/// Adds the labels that make a pool a VIP pool for the class of the fixtures.
pub fn for_class(mut pool: Value, role: &str) -> Value {
    pool["metadata"]["labels"] =
        json!({"vip.capi.gorizond.io/cluster-class": fixtures::CLASS, "vip.capi.gorizond.io/role": role});
    pool
}

/// Starts a control plane with the class of the fixtures, and a controller.
pub async fn with_class() -> (Capi, Controller) {
    let capi = Capi::start().await;
    let controller = capi.controller("vips", &[], &[]);
    capi.apply_all(&fixtures::class(Version::V1Beta2, "default"));
    (capi, controller)
}

/// A Cluster with a topology: Cluster API creates its infrastructure from a class.
pub fn from_class(name: &str) -> Value {
    fixtures::cluster(Version::V1Beta2, "default", name)
}

/// A Cluster without a topology. An annotation names the class for its VIP.
pub fn plain(name: &str) -> Value {
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"vip.capi.gorizond.io/cluster-class": fixtures::CLASS},
        },
        "spec": {"infrastructureRef": {"apiGroup": provider::GROUP, "kind": "TestCluster", "name": name}},
    })
}

/// The number of Clusters in the tests of many Clusters: `CLUSTERS`, or 20.
pub fn count() -> usize {
    std::env::var("CLUSTERS").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// Creates this many Clusters at once. Returns when each was created.
pub async fn create(capi: &Capi, count: usize, cluster: fn(&str) -> Value) -> BTreeMap<String, Instant> {
    let clusters = capi.clusters();
    let create = async |number: usize| {
        let name = format!("c{number}");
        let cluster = serde_json::from_value(cluster(&name))?;
        let created = Instant::now();
        clusters.create(&PostParams::default(), &cluster).await?;
        anyhow::Ok((name, created))
    };
    try_join_all((0..count).map(create)).await.unwrap().into_iter().collect()
}
