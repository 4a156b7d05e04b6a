//! One of two controllers, FLIPOP's binary or ours, on its own control plane and fake clouds.
//!
//! In: changes to a cluster and to a DigitalOcean account, as method calls. Out: the same changes for either
//! controller, so that a test can compare the results. There is no kubelet: nodes and pods keep the conditions that the
//! test sets.

use std::time::Duration;

use api::{FloatingIPPool, RESERVED_IP_ANNOTATION};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::cluster::{eventually, node, pod};
use testbed::control_plane::Options;
use testbed::demo;
use testbed::fake::Fake;
use testbed::fake::digitalocean::DigitalOcean;
use testbed::process::Process;

use crate::rig::{Rig, SOON};

/// A namespace besides `default`.
pub const INGRESS: &str = "ingress";

/// The DNS zone of all records.
pub const ZONE: &str = "example.com";

const REGION: &str = "nyc3";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    Flipop,
    Ours,
}

/// A running controller with its control plane and clouds.
pub struct Side {
    pub process: Process,
    pub rig: Rig,
}

impl Side {
    /// Starts a controller on an empty control plane and an empty account.
    pub async fn start(who: Implementation, environment: &[(&str, &str)]) -> Self {
        let options =
            Options { controller_manager: true, node_lifecycle: false, scheduler: false, kwok: false };
        let rig = Rig::with(options).await;
        let namespaces: Api<Namespace> = Api::all(rig.client.clone());
        let ingress = Namespace {
            metadata: kube::api::ObjectMeta { name: Some(INGRESS.into()), ..Default::default() },
            ..Default::default()
        };
        namespaces.create(&PostParams::default(), &ingress).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(rig.client.clone(), INGRESS);
        eventually("the namespace accepts pods", SOON, async || {
            Ok(accounts.get_opt("default").await?.is_some())
        })
        .await
        .unwrap();
        let process = match who {
            Implementation::Flipop => rig.flipop(),
            Implementation::Ours => rig.controller("ip-address-controller", environment).process,
        };
        let side = Self { process, rig };
        side.fresh_account(Duration::from_secs(1));
        side
    }

    /// The account that the controller uses.
    pub fn cloud(&self) -> &Fake<DigitalOcean> {
        &self.rig.clouds.digitalocean
    }

    /// Replaces the account by a new one that has only a DNS zone.
    pub fn fresh_account(&self, action_time: Duration) {
        let mut account = DigitalOcean::new(demo::TOKEN);
        account.action_time = action_time;
        account.add_domain(ZONE);
        self.cloud().with(|old| *old = account);
    }

    /// Creates a Ready node and its droplet. Removes the taints of a new node, as a cloud controller manager would.
    pub async fn node(&self, name: &str, droplet: u64, labels: &[(&str, &str)]) {
        self.cloud().with(|account| account.add_droplet(droplet, name, REGION));
        let fixture = node(name).provider_id(&format!("digitalocean://{droplet}"));
        let fixture = labels.iter().fold(fixture, |fixture, (key, value)| fixture.label(key, value));
        fixture.create(&self.rig.client).await.unwrap();
        self.node_is_ready(name, true).await;
        self.edit_node(name, &json!({"spec": {"taints": null}})).await;
    }

    /// Sets the Ready condition of a node.
    pub async fn node_is_ready(&self, name: &str, is_ready: bool) {
        let status = json!({"status": {"conditions": [ready(is_ready)]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    pub async fn edit_node(&self, name: &str, patch: &Value) {
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Deletes a node. Its droplet stays.
    pub async fn delete_node(&self, name: &str) {
        self.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Creates a pod that runs on a node.
    pub async fn pod(&self, namespace: &str, name: &str, app: &str, node: &str, is_ready: bool) {
        pod(namespace, name).label("app", app).on(node).create(&self.rig.client).await.unwrap();
        self.pod_is_ready(namespace, name, is_ready).await;
    }

    /// Sets the Ready condition of a pod.
    pub async fn pod_is_ready(&self, namespace: &str, name: &str, is_ready: bool) {
        let status = json!({"status": {"phase": "Running", "conditions": [ready(is_ready)]}});
        let pods: Api<Pod> = Api::namespaced(self.rig.client.clone(), namespace);
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// Deletes a pod without a grace period.
    pub async fn delete_pod(&self, namespace: &str, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.rig.client.clone(), namespace);
        pods.delete(name, &at_once()).await.unwrap();
    }

    pub async fn pool(&self, name: &str, spec: Value) {
        let pool = FloatingIPPool::new(name, serde_json::from_value(spec).unwrap());
        self.pools().create(&PostParams::default(), &pool).await.unwrap();
    }

    pub async fn edit_pool(&self, name: &str, spec: &Value) {
        let patch = json!({"spec": spec});
        self.pools().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub async fn delete_pool(&self, name: &str) {
        self.pools().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Deletes all pools, pods and nodes, pools first, and waits until they are gone.
    pub async fn clear(&self) {
        let everything = ListParams::default();
        self.pools().delete_collection(&DeleteParams::default(), &everything).await.unwrap();
        eventually("no pool is left", SOON, async || {
            Ok(self.pools().list(&everything).await?.items.is_empty())
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", self.process.log_tail()));
        for namespace in ["default", INGRESS] {
            let pods: Api<Pod> = Api::namespaced(self.rig.client.clone(), namespace);
            pods.delete_collection(&at_once(), &everything).await.unwrap();
        }
        self.nodes().delete_collection(&DeleteParams::default(), &everything).await.unwrap();
        eventually("no node is left", SOON, async || {
            Ok(self.nodes().list(&everything).await?.items.is_empty())
        })
        .await
        .unwrap();
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client())
    }

    pub fn pools(&self) -> Api<FloatingIPPool> {
        Api::namespaced(self.client(), "default")
    }

    fn client(&self) -> Client {
        self.rig.client.clone()
    }
}

/// The address in a node's annotation.
pub fn annotation(node: &Node) -> Option<&String> {
    node.annotations().get(RESERVED_IP_ANNOTATION)
}

fn ready(is_ready: bool) -> Value {
    json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }})
}

fn at_once() -> DeleteParams {
    DeleteParams::default().grace_period(0)
}
