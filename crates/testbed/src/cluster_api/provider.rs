//! A provider for Cluster API without machines: what a Cluster is made of, as far as a test needs it.
//!
//! In: the objects that Cluster API makes of a ClusterClass's templates. Out: what the contract wants to see in their
//! status. An infrastructure is provisioned as soon as it has an endpoint, as those of real providers are. A control plane
//! is never initialized: nothing answers at the endpoint, and Cluster API would try to connect.

use anyhow::Result;
use futures::StreamExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The group of the provider's kinds, which have one version: `v1`.
pub const GROUP: &str = "provider.testbed.invalid";

const DEFINITIONS: &str = include_str!("provider.yaml");

/// A running provider. It ends with this value.
#[derive(Debug)]
pub(super) struct Provider {
    _tasks: JoinSet<()>,
}

impl Provider {
    pub(super) fn start(client: Client) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(provision(client));
        Self { _tasks: tasks }
    }
}

/// The definitions of the provider's kinds.
pub(super) fn definitions() -> Result<Vec<DynamicObject>> {
    let definitions: Vec<Value> = serde_saphyr::from_multiple(DEFINITIONS)?;
    Ok(serde_json::from_value(Value::Array(definitions))?)
}

/// The infrastructure that Cluster API has made for a Cluster, under a name of its own choice.
pub async fn infrastructure_of(
    client: &Client,
    namespace: &str,
    cluster: &str,
) -> Result<Option<DynamicObject>> {
    let clusters: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &test_cluster());
    let of_cluster = ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={cluster}"));
    Ok(clusters.list(&of_cluster).await?.items.into_iter().next())
}

/// The kind of infrastructures.
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
        // Where the apiserver did not answer, the watcher begins anew, with every object that is there.
        let Ok(cluster) = event else { continue };
        let has_endpoint = !cluster.data["spec"]["controlPlaneEndpoint"].is_null();
        if has_endpoint && cluster.data["status"]["initialization"]["provisioned"] != true {
            let namespace = cluster.namespace().unwrap_or_default();
            let clusters: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
            let _ = clusters.patch_status(&cluster.name_any(), &PatchParams::default(), &provisioned).await;
        }
    }
}
