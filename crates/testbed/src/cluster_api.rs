//! Runs the real Cluster API and its in-cluster IPAM provider on a control plane of the testbed.
//!
//! In: a control plane, and the managers and manifests that `just tools` built. Out: all kinds of Cluster API in all
//! their versions; the core manager, with ClusterClasses and runtime extensions; and the IPAM provider. A test also starts
//! [`provider::Provider`], which provides infrastructures and control planes. Only the machines are missing. The managers
//! stop when this value is dropped or this process ends. The CRDs stay in the control plane.
//!
//! A release runs the managers in pods, behind a Service with a certificate. Here they are processes, and the apiserver
//! calls their webhooks on loopback. The webhooks listen on all interfaces, because neither manager has a flag for
//! that.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::eventually;
use crate::control_plane::{ControlPlane, free_ports, is_listening, wait_until};
use crate::process::Process;
use crate::tools;

pub mod claims;
pub mod clusterctl;
pub mod fixtures;
pub mod provider;

/// The kinds of a release's objects that the testbed installs. The other objects only run the manager in a pod.
const KINDS_INSTALLED: [&str; 3] =
    ["CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// How long to wait until the apiserver serves a kind, and until Cluster API has processed a ClusterClass.
const SERVED_WITHIN: Duration = Duration::from_secs(180);

const CORE: Manager = Manager {
    module: "cluster-api",
    program: "cluster-api-core-manager",
    arguments: &[
        "--health-addr=0",
        "--diagnostics-address=0",
        "--insecure-diagnostics",
        "--feature-gates=ClusterTopology=true,RuntimeSDK=true",
        // A new control plane has no objects to migrate.
        "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
    ],
};

const IPAM: Manager = Manager {
    module: "ipam-in-cluster",
    program: "cluster-api-ipam-provider-in-cluster",
    arguments: &["--health-probe-bind-address=0", "--diagnostics-address=0", "--insecure-diagnostics"],
};

/// A running Cluster API.
#[derive(Debug)]
pub struct ClusterApi {
    ipam: Process,
    core: Process,
}

/// A control plane, and the managers of Cluster API if it is installed.
#[derive(Debug)]
pub struct ManagementCluster {
    // Fields are dropped in this order.
    /// The managers.
    pub cluster_api: Option<ClusterApi>,
    /// The control plane.
    pub control_plane: ControlPlane,
}

impl ManagementCluster {
    /// Installs and starts Cluster API.
    pub async fn install_cluster_api(&mut self) -> Result<()> {
        self.cluster_api = Some(ClusterApi::start(&self.control_plane).await?);
        Ok(())
    }
}

impl AsRef<ControlPlane> for ManagementCluster {
    fn as_ref(&self) -> &ControlPlane {
        &self.control_plane
    }
}

impl AsMut<ControlPlane> for ManagementCluster {
    fn as_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }
}

impl ClusterApi {
    /// Installs all kinds, starts the managers, and waits until they are ready.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let client = control_plane.client().await?;
        let certificate = Certificate::generate()?;
        let ports = free_ports(2)?;
        let (core_port, ipam_port) = (ports[0], ports[1]);
        let mut objects = CORE.objects(core_port, &certificate)?;
        objects.extend(IPAM.objects(ipam_port, &certificate)?);
        objects.extend(provider::definitions()?);
        try_join_all(objects.into_iter().map(|object| install(&client, object))).await?;

        let mut core = CORE.start(control_plane, core_port, &certificate)?;
        let mut ipam = IPAM.start(control_plane, ipam_port, &certificate)?;
        wait_until(CORE.program, &mut core, async || is_listening(core_port)).await?;
        wait_until(IPAM.program, &mut ipam, async || is_listening(ipam_port)).await?;
        Ok(Self { ipam, core })
    }

    /// Installs the CRDs of Cluster API without the version v1beta2, as before Cluster API 1.11. Starts no manager,
    /// because the managers that the testbed builds need v1beta2.
    pub async fn install_v1beta1(control_plane: &ControlPlane) -> Result<()> {
        let client = control_plane.client().await?;
        let unused = Certificate::generate()?;
        let objects = [CORE.objects(0, &unused)?, IPAM.objects(0, &unused)?].concat();
        let old = objects.into_iter().filter_map(only_served_in_old_versions);
        try_join_all(old.map(|object| install(&client, object))).await?;
        Ok(())
    }

    /// Creates the ClusterClass of [`fixtures::class`], and waits until Cluster API has processed it: until a dry run
    /// shows that a new Cluster gets the default of the class's variable.
    ///
    /// For a Cluster that is created earlier, Cluster API sets the default later and overwrites any value that was
    /// written into the variable in the meantime.
    pub async fn install_class(
        &self,
        client: &Client,
        version: fixtures::Version,
        namespace: &str,
    ) -> Result<()> {
        for object in fixtures::class(version, namespace) {
            install(client, serde_json::from_value(object)?).await?;
        }
        let cluster: DynamicObject =
            serde_json::from_value(fixtures::cluster(version, namespace, "dry-run"))?;
        let clusters = api_of(client, &cluster)?;
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually("Cluster API has processed the ClusterClass", SERVED_WITHIN, async || {
            let defaulted = clusters.create(&dry_run, &cluster).await?;
            Ok(defaulted.data["spec"]["topology"]["variables"][0]["name"] == "clusterVip")
        })
        .await
        .with_context(|| self.log_tails())?;
        Ok(())
    }

    /// The ends of both managers' logs, for error messages.
    pub fn log_tails(&self) -> String {
        format!("{}\n{}\n{}\n{}", CORE.program, self.core.log_tail(), IPAM.program, self.ipam.log_tail())
    }
}

/// A self-signed certificate for loopback, which is also its own CA.
pub struct Certificate {
    /// The certificate, in PEM.
    pub public: String,
    private: String,
}

impl Certificate {
    /// Generates a new key and certificate.
    pub fn generate() -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        Ok(Self { public: made.cert.pem(), private: made.signing_key.serialize_pem() })
    }

    /// Writes certificate and key under the file names that a manager expects.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("tls.crt"), &self.public)?;
        std::fs::write(folder.join("tls.key"), &self.private)?;
        Ok(())
    }
}

/// A manager with webhooks: that of Cluster API, or that of the IPAM provider.
struct Manager {
    module: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
}

impl Manager {
    /// The release's objects to install. Their webhooks point to loopback instead of a Service.
    fn objects(&self, port: u16, certificate: &Certificate) -> Result<Vec<DynamicObject>> {
        let path = tools::shared_file(self.module, "components.yaml")?;
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path)?)?;
        objects.retain(|object| object["kind"].as_str().is_some_and(|kind| KINDS_INSTALLED.contains(&kind)));
        for client_config in objects.iter_mut().flat_map(client_configs) {
            let path = client_config["service"]["path"].as_str().context("a webhook has no path")?;
            let url = format!("https://127.0.0.1:{port}{path}");
            *client_config =
                json!({"url": url, "caBundle": ByteString(certificate.public.clone().into_bytes())});
        }
        Ok(serde_json::from_value(Value::Array(objects))?)
    }

    fn start(&self, control_plane: &ControlPlane, port: u16, certificate: &Certificate) -> Result<Process> {
        let certificates = control_plane.server_folder().join(format!("certificates-{}", self.module));
        certificate.write(&certificates)?;
        let configure = |command: &mut Command| {
            command
                .arg(format!("--kubeconfig={}", control_plane.kubeconfig().display()))
                .arg(format!("--webhook-port={port}"))
                .arg(format!("--webhook-cert-dir={}", certificates.display()))
                .args(self.arguments)
                .env("HOME", control_plane.server_folder());
        };
        Process::start(self.program, &tools::binary(self.program)?, configure, control_plane.server_folder())
    }
}

/// Removes the version v1beta2 from a CRD and keeps only the newest of the other served versions, so that the apiserver
/// calls no conversion webhook. None if no version is left, or if the object is not a CRD.
fn only_served_in_old_versions(mut object: DynamicObject) -> Option<DynamicObject> {
    let spec = object.data.get_mut("spec")?.as_object_mut()?;
    let versions = spec.get_mut("versions")?.as_array_mut()?;
    versions.retain(|version| version["name"] != "v1beta2" && version["served"] == true);
    versions.drain(..versions.len().saturating_sub(1));
    versions.last_mut()?["storage"] = true.into();
    spec.remove("conversion");
    Some(object)
}

/// Applies an object. If it is a CRD, waits until the apiserver serves its kind.
async fn install(client: &Client, object: DynamicObject) -> Result<()> {
    let name = object.name_any();
    let ours = PatchParams::apply("testbed").force();
    let applied = api_of(client, &object)?.patch(&name, &ours, &Patch::Apply(&object)).await;
    applied.with_context(|| format!("installing {name}"))?;
    if object.types.is_some_and(|types| types.kind == "CustomResourceDefinition") {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let established = await_condition(definitions, &name, conditions::is_crd_established());
        tokio::time::timeout(SERVED_WITHIN, established)
            .await
            .with_context(|| format!("the apiserver does not serve {name} after {SERVED_WITHIN:?}"))??;
    }
    Ok(())
}

/// The API of an object's kind and namespace.
fn api_of(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types =
        object.types.as_ref().with_context(|| format!("{} has no apiVersion and kind", object.name_any()))?;
    let resource = ApiResource::from_gvk(&types.try_into()?);
    Ok(match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// The `clientConfig` of each webhook in an object: conversion, mutating or validating.
fn client_configs(object: &mut Value) -> Vec<&mut Value> {
    if object["kind"] == "CustomResourceDefinition" {
        return object.pointer_mut("/spec/conversion/webhook/clientConfig").into_iter().collect();
    }
    let webhooks = object["webhooks"].as_array_mut().into_iter().flatten();
    webhooks.map(|webhook| &mut webhook["clientConfig"]).collect()
}
