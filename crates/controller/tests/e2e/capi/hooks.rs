//! The race with Cluster API's topology controller, which may create the infrastructure before the Cluster has its VIP.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use testbed::cluster::eventually;
use testbed::cluster_api::fixtures::{self, Version};
use testbed::cluster_api::{Certificate, provider};
use testbed::control_plane::free_ports;

use super::rig::{Capi, count, create, from_class};
use crate::rig::Controller;

const LONGEST: Duration = Duration::from_secs(600);

/// The time from the creation of the Clusters until the controller that allocates VIPs starts.
const DELAY: Duration = Duration::from_secs(10);

/// Waits until all infrastructures have an endpoint. Returns how many of them were created without one.
async fn created_without_endpoint(capi: &Capi) -> usize {
    let infrastructures: Api<DynamicObject> =
        Api::namespaced_with(capi.client.clone(), "default", &provider::test_cluster());
    let touched = watcher(infrastructures, watcher::Config::default()).default_backoff().touched_objects();
    let mut touched = std::pin::pin!(touched);
    let (mut created, mut have) = (BTreeMap::new(), BTreeMap::new());
    while have.len() < count() {
        let Ok(infrastructure) = touched.next().await.unwrap() else { continue };
        let has_endpoint = !infrastructure.data["spec"]["controlPlaneEndpoint"]["host"].is_null();
        // The watch may see the object late, and only generation 1 shows how it was created.
        let is_first_generation = infrastructure.metadata.generation == Some(1);
        created.entry(infrastructure.name_any()).or_insert(has_endpoint && is_first_generation);
        if has_endpoint {
            have.insert(infrastructure.name_any(), ());
        }
    }
    created.values().filter(|with| !**with).count()
}

async fn prepared() -> Capi {
    let capi = Capi::start().await;
    capi.apply_all(&fixtures::class(Version::V1Beta2, "default"));
    capi.apply(&capi.pool("pool", "control-plane", &["10.0.1.0-10.0.2.0"]));
    capi
}

/// Starts a replica that only serves the hooks of Cluster API, and waits until Cluster API has discovered them.
async fn extension(capi: &Capi) -> Controller {
    let folder = capi.control_plane().folder().join("certificates-hooks");
    let certificate = Certificate::generate().unwrap();
    certificate.write(&folder).unwrap();
    let port = free_ports(1).unwrap()[0].to_string();
    let folder = folder.display().to_string();
    let arguments = [
        "--enable-reconciler=false",
        "--enable-runtime-extension=true",
        "--runtime-extension-port",
        &port,
        "--runtime-extension-cert-dir",
        &folder,
    ];
    let hooks = capi.controller("hooks", &arguments, &[]);
    let authority = ByteString(certificate.public.clone().into_bytes());
    capi.apply(&json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
        "kind": "ExtensionConfig",
        "metadata": {"name": "vip-allocator"},
        "spec": {
            "clientConfig": {"url": format!("https://127.0.0.1:{port}"), "caBundle": authority},
            "namespaceSelector": {},
        },
    }));
    eventually("Cluster API has found the hooks", LONGEST, async || {
        let found = capi.get("extensionconfig/vip-allocator")["status"]["handlers"].clone();
        Ok(found.as_array().is_some_and(|handlers| handlers.len() == 2))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", capi.logs()));
    hooks
}

#[tokio::test(flavor = "multi_thread")]
async fn v5_with_runtime_extension_infrastructure_starts_with_its_vip() {
    let capi = prepared().await;
    let _hooks = extension(&capi).await;
    let allocate = async {
        tokio::time::sleep(DELAY).await;
        capi.controller("vips", &[], &[])
    };
    let all =
        async { tokio::join!(created_without_endpoint(&capi), create(&capi, count(), from_class), allocate) };
    let (without, _, _controller) = tokio::time::timeout(LONGEST, all)
        .await
        .unwrap_or_else(|_| panic!("not all infrastructures have a VIP\n{}", capi.logs()));
    println!("with the extension, VIPs {DELAY:?} late: {without} of {} created without an endpoint", count());
    assert_eq!(without, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn v5_without_runtime_extension_infrastructure_gets_its_vip_later() {
    let capi = prepared().await;
    let _controller = capi.controller("vips", &[], &[]);
    let all = async { tokio::join!(created_without_endpoint(&capi), create(&capi, count(), from_class)) };
    let (without, _) = tokio::time::timeout(LONGEST, all)
        .await
        .unwrap_or_else(|_| panic!("not all infrastructures have a VIP\n{}", capi.logs()));
    println!("without the extension: {without} of {} created without an endpoint, all have one now", count());
}
