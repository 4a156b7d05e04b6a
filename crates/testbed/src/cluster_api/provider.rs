//! A minimal Cluster API provider for tests, with infrastructures and control planes but no machines.
//!
//! In: the objects that Cluster API creates from the templates of a ClusterClass. Out: the status fields that Cluster
//! API's contract requires. As with real providers, an infrastructure becomes provisioned when it has an endpoint. A
//! control plane never becomes initialized: Cluster API would then try to connect to the endpoint, where no server
//! listens.

use anyhow::Result;
use futures::StreamExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The API group of the provider's kinds. Their only version is `v1`.
pub const GROUP: &str = "provider.testbed.invalid";

const DEFINITIONS: &str = include_str!("provider.yaml");

/// A running provider. It stops when this value is dropped.
#[derive(Debug)]
pub struct Provider {
    _tasks: JoinSet<()>,
}

impl Provider {
    /// Starts the provider as a task of this runtime.
    pub fn start(client: Client) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(provision(client));
        Self { _tasks: tasks }
    }
}

/// The CRDs of the provider.
pub(super) fn definitions() -> Result<Vec<DynamicObject>> {
    let definitions: Vec<Value> = serde_saphyr::from_multiple(DEFINITIONS)?;
    Ok(serde_json::from_value(Value::Array(definitions))?)
}

/// The infrastructure object that Cluster API has created for a Cluster, found by its label because the name is random.
pub async fn infrastructure_of(
    client: &Client,
    namespace: &str,
    cluster: &str,
) -> Result<Option<DynamicObject>> {
    let clusters: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &test_cluster());
    let of_cluster = ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={cluster}"));
    Ok(clusters.list(&of_cluster).await?.items.into_iter().next())
}

/// The API resource of the infrastructure kind, `TestCluster`.
pub fn test_cluster() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", "TestCluster"))
}

async fn provision(client: Client) {
    let resource = test_cluster();
    let everywhere: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let touched = watcher(everywhere, watcher::Config::default()).default_backoff().touched_objects();
    let mut touched = std::pin::pin!(touched);
    let provisioned = Patch::Merge(json!({"status": {"initialization": {"provisioned": true}}}));
    while let Some(event) = touched.next().await {
        // After an error the watcher lists all objects again.
        let Ok(cluster) = event else { continue };
        let has_endpoint = !cluster.data["spec"]["controlPlaneEndpoint"].is_null();
        if has_endpoint && cluster.data["status"]["initialization"]["provisioned"] != true {
            let namespace = cluster.namespace().unwrap_or_default();
            let clusters: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
            let _ = clusters.patch_status(&cluster.name_any(), &PatchParams::default(), &provisioned).await;
        }
    }
}
