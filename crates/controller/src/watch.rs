//! Slim copies of what Kubernetes says, and whether each is complete.
//!
//! In: the apiserver's watches. Out: stores to read from and one signal that something changed. Types here hold only the
//! fields that decisions need, because what grows with the cluster is what is watched. Nothing here judges.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{FloatingIPPool, NetIPAllocation};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The pause after a watch failed, so that an absent resource costs a request now and then and is found when it comes.
const WATCH_RETRY: Duration = Duration::from_secs(2);

/// A node, as far as decisions need it.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "Node")]
pub struct SlimNode {
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
    /// Machine, taints, cordon.
    #[serde(default)]
    pub spec: SlimNodeSpec,
    /// Conditions.
    #[serde(default)]
    pub status: SlimStatus,
}

/// What a node's spec says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimNodeSpec {
    /// The machine.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    /// The taints.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    #[serde(default)]
    pub unschedulable: bool,
}

/// A pod, as far as decisions need it.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "Pod")]
pub struct SlimPod {
    /// Name, labels, owner.
    pub metadata: ObjectMeta,
    /// Where it runs.
    #[serde(default)]
    pub spec: SlimPodSpec,
    /// Phase and conditions.
    #[serde(default)]
    pub status: SlimStatus,
}

/// What a pod's spec says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimPodSpec {
    /// The node it runs on.
    pub node_name: Option<String>,
}

/// What a node's or pod's status says.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SlimStatus {
    /// A pod's phase.
    pub phase: Option<String>,
    /// The conditions.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
}

/// A condition.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Since when.
    pub last_transition_time: Option<Time>,
}

impl SlimStatus {
    /// The Ready condition.
    pub fn ready(&self) -> Option<&SlimCondition> {
        self.conditions.iter().find(|condition| condition.kind == "Ready")
    }
}

/// Whether a store can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// It was never complete, or has stopped following: what it lacks is unknown.
    Incomplete,
    /// It is complete.
    Complete,
    /// The cluster does not have this kind, and had not since we started: it is complete and empty.
    Absent,
}

/// Everything that is watched. The watches end when this is dropped.
pub struct Watched {
    /// Nodes.
    pub nodes: Store<SlimNode>,
    /// Pods.
    pub pods: Store<SlimPod>,
    /// Allocations.
    pub allocations: Store<NetIPAllocation>,
    /// Pools.
    pub pools: Store<FloatingIPPool>,
    syncs: Syncs,
    changed: Arc<Notify>,
    _tasks: JoinSet<()>,
}

type Syncs = Arc<Mutex<BTreeMap<&'static str, Sync>>>;

impl Watched {
    /// Starts watching.
    pub fn start(client: &Client) -> Self {
        let mut starter = Starter {
            client: client.clone(),
            syncs: Syncs::default(),
            changed: Arc::default(),
            tasks: JoinSet::new(),
        };
        let nodes = starter.watch("nodes");
        let pods = starter.watch("pods");
        let allocations = starter.watch("netipallocations");
        let pools = starter.watch("floatingippools");
        let Starter { client: _, syncs, changed, tasks } = starter;
        Self { nodes, pods, allocations, pools, syncs, changed, _tasks: tasks }
    }

    /// Waits until something has changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether every store can be believed.
    pub fn is_complete(&self) -> bool {
        let syncs = self.syncs.lock().unwrap_or_else(PoisonError::into_inner);
        syncs.values().all(|sync| *sync != Sync::Incomplete)
    }
}

struct Starter {
    client: Client,
    syncs: Syncs,
    changed: Arc<Notify>,
    tasks: JoinSet<()>,
}

impl Starter {
    fn watch<K>(&mut self, plural: &'static str) -> Store<K>
    where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + std::marker::Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Send + std::marker::Sync,
    {
        let (reader, writer) = reflector::store::<K>();
        let (syncs, changed) = (Arc::clone(&self.syncs), Arc::clone(&self.changed));
        set_sync(&syncs, plural, Sync::Incomplete);
        let events = watcher(Api::all(self.client.clone()), watcher::Config::default()).reflect(writer);
        self.tasks.spawn(async move {
            futures::pin_mut!(events);
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::InitDone) => set_sync(&syncs, plural, Sync::Complete),
                    Ok(_) => {}
                    Err(error) => {
                        note_failure(&syncs, plural, &error);
                        changed.notify_one();
                        tokio::time::sleep(WATCH_RETRY).await;
                    }
                }
                changed.notify_one();
            }
        });
        reader
    }
}

fn set_sync(syncs: &Syncs, plural: &'static str, sync: Sync) {
    syncs.lock().unwrap_or_else(PoisonError::into_inner).insert(plural, sync);
}

/// A kind that the cluster has never had is absent. One that it had, and that can't be listed now, is not known: its
/// objects may all still be meant to exist.
fn note_failure(syncs: &Syncs, plural: &'static str, error: &watcher::Error) {
    let mut syncs = syncs.lock().unwrap_or_else(PoisonError::into_inner);
    let sync = syncs.entry(plural).or_insert(Sync::Incomplete);
    let is_missing =
        matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404);
    match (*sync, is_missing) {
        (Sync::Incomplete | Sync::Absent, true) => *sync = Sync::Absent,
        (Sync::Complete, true) => *sync = Sync::Incomplete,
        _ => {}
    }
    tracing::warn!(plural, %error, state = ?*sync, "a watch failed");
}
