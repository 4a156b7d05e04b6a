//! Builders for nodes and pods, and helpers to apply manifests and to wait for conditions in tests.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Container, Node, NodeAddress, NodeSpec, Pod, PodSpec, Taint};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::control_plane::ControlPlane;

/// The shortest and the longest pause between two polls. Each poll takes CPU time of the apiserver, which other tests
/// need.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A node that kwok keeps Ready, such as `node("edge-1").label("role", "edge")`.
pub fn node(name: &str) -> NodeFixture {
    let annotations = BTreeMap::from([("kwok.x-k8s.io/node".to_owned(), "fake".to_owned())]);
    let metadata =
        ObjectMeta { name: Some(name.to_owned()), annotations: Some(annotations), ..ObjectMeta::default() };
    // The kubelet sets this label on its node.
    NodeFixture { node: Node { metadata, ..Node::default() } }.label("kubernetes.io/hostname", name)
}

/// A node to be created.
#[derive(Clone, Debug)]
pub struct NodeFixture {
    node: Node,
}

impl NodeFixture {
    /// Adds a label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        let labels = self.node.metadata.labels.get_or_insert_default();
        labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets `spec.providerID`, which identifies the node's VM.
    pub fn provider_id(mut self, id: &str) -> Self {
        self.spec().provider_id = Some(id.to_owned());
        self
    }

    /// Adds a taint with the effect NoSchedule.
    pub fn taint(mut self, key: &str) -> Self {
        let taint = Taint { key: key.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
        self.spec().taints.get_or_insert_default().push(taint);
        self
    }

    /// Adds an address of a type such as `ExternalIP` to the node's status.
    pub fn address(mut self, kind: &str, address: &str) -> Self {
        let address = NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
        self.node.status.get_or_insert_default().addresses.get_or_insert_default().push(address);
        self
    }

    fn spec(&mut self) -> &mut NodeSpec {
        self.node.spec.get_or_insert_default()
    }

    /// Creates the node.
    pub async fn create(self, client: &Client) -> Result<Node> {
        Ok(Api::all(client.clone()).create(&PostParams::default(), &self.node).await?)
    }
}

/// A pod that runs on a given node, such as `pod("ingress", "nginx-1").on("worker-1")`.
pub fn pod(namespace: &str, name: &str) -> PodFixture {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    };
    let container = Container {
        name: "main".to_owned(),
        image: Some("registry.invalid/none".to_owned()),
        ..Container::default()
    };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    PodFixture { pod: Pod { metadata, spec: Some(spec), ..Pod::default() } }
}

/// A pod to be created.
#[derive(Clone, Debug)]
pub struct PodFixture {
    pod: Pod,
}

impl PodFixture {
    /// Adds a label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        let labels = self.pod.metadata.labels.get_or_insert_default();
        labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets `spec.nodeName`, which bypasses the scheduler.
    pub fn on(mut self, node: &str) -> Self {
        self.pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        self
    }

    /// Creates the pod.
    pub async fn create(self, client: &Client) -> Result<Pod> {
        let namespace = self.pod.metadata.namespace.clone().unwrap_or_default();
        Ok(Api::namespaced(client.clone(), &namespace).create(&PostParams::default(), &self.pod).await?)
    }
}

impl ControlPlane {
    /// Installs the controller's CRDs and waits until the apiserver serves them.
    pub async fn install_crds(&self) -> Result<()> {
        let crds = api::crds::all().into_iter().map(|(_, crd)| serde_json::to_string(&crd));
        let documents = crds.collect::<Result<Vec<_>, _>>()?.join("\n---\n");
        self.apply(&documents).context("installing the CRDs")?;
        let waited = self.kubectl().args(["wait", "--for=condition=Established", "crd", "--all"]).output()?;
        ensure!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
        Ok(())
    }

    /// Creates a Lease that a leader has released. The first controller then leads at once and does not wait for
    /// expiry.
    pub fn install_released_lease(&self, namespace: &str, name: &str) -> Result<()> {
        self.apply(&format!(
            "apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: {name}
  namespace: {namespace}
  annotations: {{netinfra.darkbrains.com/epoch: '1', netinfra.darkbrains.com/released: '0'}}
",
        ))
    }

    /// Runs `kubectl apply -f -` with this text. The error is kubectl's output.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let mut command = self.kubectl();
        command.args(["apply", "--server-side", "-f", "-"]);
        let mut kubectl =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        kubectl.stdin.take().context("kubectl has no input")?.write_all(manifest.as_bytes())?;
        let output = kubectl.wait_with_output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

/// Polls until `is_so` returns true, and returns how long that took. The pauses between polls grow with the time
/// waited, so the result is too long by at most a tenth, or 20 ms. After `longest` it fails with an error that contains
/// `what`.
pub async fn eventually(
    what: &str,
    longest: Duration,
    is_so: impl AsyncFnMut() -> Result<bool>,
) -> Result<Duration> {
    poll(what, longest, pause_after, is_so).await
}

/// Like [`eventually`], for a state that may last only a moment: the pauses stay short.
pub async fn at_some_moment(
    what: &str,
    longest: Duration,
    is_so: impl AsyncFnMut() -> Result<bool>,
) -> Result<Duration> {
    poll(what, longest, |_| PAUSES.0, is_so).await
}

async fn poll(
    what: &str,
    longest: Duration,
    pause: impl Fn(Duration) -> Duration,
    mut is_so: impl AsyncFnMut() -> Result<bool>,
) -> Result<Duration> {
    let started = Instant::now();
    loop {
        let last = is_so().await;
        if matches!(last, Ok(true)) {
            return Ok(started.elapsed());
        }
        if started.elapsed() > longest {
            match last {
                Err(error) => {
                    return Err(error.context(format!("timed out after {longest:?} waiting for: {what}")));
                }
                Ok(_) => bail!("timed out after {longest:?} waiting for: {what}"),
            }
        }
        tokio::time::sleep(pause(started.elapsed())).await;
    }
}

/// The pause before the next poll, after this time of waiting.
pub fn pause_after(waited: Duration) -> Duration {
    (waited / 10).clamp(PAUSES.0, PAUSES.1)
}
