//! One of two controllers, FLIPOP's own binary or ours, on a control plane and clouds of its own.
//!
//! In: what a cluster and an account go through, in words. Out: both ask the same of either controller, so that what comes
//! of it can be compared. Nodes and pods have no kubelet: their conditions are what the test says, and stay so.

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

use crate::rig::Rig;

/// The second namespace beside `default`.
pub const INGRESS: &str = "ingress";

/// The zone of all records.
pub const ZONE: &str = "example.com";

const REGION: &str = "nyc3";
const SOON: Duration = Duration::from_secs(30);

/// Which controller it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Flipop,
    Ours,
}

/// A controller that runs, and all that it runs on.
pub struct Side {
    pub process: Process,
    pub rig: Rig,
}

impl Side {
    /// Starts a controller where there is nothing yet.
    pub async fn start(who: Who, environment: &[(&str, &str)]) -> Self {
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
        eventually("the namespace takes pods", SOON, async || {
            Ok(accounts.get_opt("default").await?.is_some())
        })
        .await
        .unwrap();
        let process = match who {
            Who::Flipop => rig.flipop(),
            Who::Ours => rig.controller("ip-address-controller", environment).process,
        };
        let side = Self { process, rig };
        side.fresh_account(Duration::from_secs(1));
        side
    }

    /// The account that the controller works on.
    pub fn cloud(&self) -> &Fake<DigitalOcean> {
        &self.rig.clouds.digitalocean
    }

    /// Puts an account with nothing but a zone in the old one's place.
    pub fn fresh_account(&self, action_time: Duration) {
        let mut account = DigitalOcean::new(demo::TOKEN);
        account.action_time = action_time;
        account.add_domain(ZONE);
        self.cloud().with(|old| *old = account);
    }

    /// A node that is Ready, on a droplet of its own. A cloud provider's controller would have taken the first taint away.
    pub async fn node(&self, name: &str, droplet: u64, labels: &[(&str, &str)]) {
        self.cloud().with(|account| account.add_droplet(droplet, name, REGION));
        let fixture = node(name).provider_id(&format!("digitalocean://{droplet}"));
        let fixture = labels.iter().fold(fixture, |fixture, (key, value)| fixture.label(key, value));
        fixture.create(&self.rig.client).await.unwrap();
        self.node_is_ready(name, true).await;
        self.edit_node(name, &json!({"spec": {"taints": null}})).await;
    }

    /// Sets a node's condition.
    pub async fn node_is_ready(&self, name: &str, is_ready: bool) {
        let status = json!({"status": {"conditions": [ready(is_ready)]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// Changes a node.
    pub async fn edit_node(&self, name: &str, patch: &Value) {
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Deletes a node; its droplet stays.
    pub async fn delete_node(&self, name: &str) {
        self.nodes().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A pod that runs on a node.
    pub async fn pod(&self, namespace: &str, name: &str, app: &str, node: &str, is_ready: bool) {
        pod(namespace, name).label("app", app).on(node).create(&self.rig.client).await.unwrap();
        self.pod_is_ready(namespace, name, is_ready).await;
    }

    /// Sets a pod's condition.
    pub async fn pod_is_ready(&self, namespace: &str, name: &str, is_ready: bool) {
        let status = json!({"status": {"phase": "Running", "conditions": [ready(is_ready)]}});
        let pods: Api<Pod> = Api::namespaced(self.rig.client.clone(), namespace);
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// Deletes a pod at once.
    pub async fn delete_pod(&self, namespace: &str, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.rig.client.clone(), namespace);
        pods.delete(name, &at_once()).await.unwrap();
    }

    /// Creates a pool.
    pub async fn pool(&self, name: &str, spec: Value) {
        let pool = FloatingIPPool::new(name, serde_json::from_value(spec).unwrap());
        self.pools().create(&PostParams::default(), &pool).await.unwrap();
    }

    /// Changes a pool.
    pub async fn edit_pool(&self, name: &str, spec: &Value) {
        let patch = json!({"spec": spec});
        self.pools().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Deletes a pool.
    pub async fn delete_pool(&self, name: &str) {
        self.pools().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Deletes everything that the controller could see, pools first, and waits until it is gone.
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

/// The address that a node's annotation tells.
pub fn annotation(node: &Node) -> Option<&String> {
    node.annotations().get(RESERVED_IP_ANNOTATION)
}

fn ready(is_ready: bool) -> Value {
    json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }})
}

fn at_once() -> DeleteParams {
    DeleteParams::default().grace_period(0)
}
