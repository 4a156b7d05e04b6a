//! Reads objects as `kubectl get` does, without a process for each request. Tests poll with it.
//!
//! In: a client, and names such as `nia/edge`. Out: objects as JSON. It never writes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kube::Client;
use kube::api::{GetParams, ListParams, Request};
use serde_json::Value;
use tokio::sync::Mutex;

/// Asks for all resources of all groups in one response.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The objects of an apiserver.
#[allow(missing_debug_implementations, reason = "a client has none")]
pub struct Objects {
    client: Client,
    /// The path of each resource, by its plural, singular and short names, and by its plural with the group.
    paths: Mutex<BTreeMap<String, String>>,
}

impl Objects {
    /// Reads with this client.
    pub fn new(client: Client) -> Self {
        Self { client, paths: Mutex::default() }
    }

    /// Returns an object of the namespace `default` or of the cluster, such as `nia/edge`. Blocks the thread, so that
    /// assertions can call it; the test must run on several threads.
    pub fn get(&self, what: &str) -> Result<Value> {
        let (resource, name) = what.split_once('/').context("expected RESOURCE/NAME")?;
        block_on(async {
            let request = Request::new(self.path(resource).await?);
            Ok(self.client.request(request.get(name, &GetParams::default())?).await?)
        })
    }

    /// Returns the names of all objects of a resource that have these labels, such as `ip.ready=true`.
    pub fn names(&self, resource: &str, labels: &str) -> Result<Vec<String>> {
        let list: Value = block_on(async {
            let request = Request::new(self.path(resource).await?);
            anyhow::Ok(self.client.request(request.list(&ListParams::default().labels(labels))?).await?)
        })?;
        let name = |item: &Value| item["metadata"]["name"].as_str().map(ToOwned::to_owned);
        Ok(items(&list["items"]).filter_map(name).collect())
    }

    async fn path(&self, resource: &str) -> Result<String> {
        let mut paths = self.paths.lock().await;
        if !paths.contains_key(resource) {
            // CRDs may have been installed since the last request. As in kubectl, the core group comes first.
            paths.clear();
            for root in ["/api", "/apis"] {
                let request = http::Request::get(root).header("Accept", DISCOVERY).body(Vec::new())?;
                add_paths(&mut paths, root, &self.client.request(request).await?);
            }
        }
        paths.get(resource).cloned().with_context(|| format!("the apiserver has no resource {resource}"))
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// Adds the paths of all resources in a response, unless a resource of that name is there already. In a response, each
/// group begins with its preferred version.
fn add_paths(paths: &mut BTreeMap<String, String>, root: &str, groups: &Value) {
    for group in items(&groups["items"]) {
        // The core group has no name.
        let parts = [root, text(&group["metadata"]["name"])];
        let prefix = parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/");
        for version in items(&group["versions"]) {
            for resource in items(&version["resources"]) {
                let namespace = if resource["scope"] == "Namespaced" { "namespaces/default/" } else { "" };
                let plural = text(&resource["resource"]);
                let path = format!("{prefix}/{}/{namespace}{plural}", text(&version["version"]));
                let full = format!("{plural}.{}", text(&group["metadata"]["name"]));
                let short = items(&resource["shortNames"]).map(text);
                for name in [plural, &full, text(&resource["singularResource"])].into_iter().chain(short) {
                    paths.entry(name.to_owned()).or_insert_with(|| path.clone());
                }
            }
        }
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
