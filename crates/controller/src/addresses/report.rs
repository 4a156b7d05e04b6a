//! Writes status, finalizers, labels and annotations of nodes, and Events.
//!
//! In: the plan and the index. Out: status writes with the `resourceVersion` that the plan is based on, patches of
//! objects and nodes, and Events. An object gets the finalizer before its first journal entry, so it can't disappear
//! during a move. The reporter adds created addresses to the spec. It compares before it writes, so a settled
//! cluster costs no write. At most one write per object is in flight; journal and status are in the same write. The
//! reporter never reports what did not happen.

mod events;
mod finalizers;
mod nodes;
mod state;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use plan::{EventReason, Marks, NodeName, Plan, Pool, PoolKey, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use self::events::{of_deprecation, of_status};
use super::index::Index;
use super::index::tracked::Tracked;
use super::object::Object;
use crate::backoff::{ANY_VERSION, Backoff};
use crate::kubernetes::events::{NewEvent, Publisher};
use crate::kubernetes::write::{REFUSALS_REPORTED, REFUSED_RETRY, UNANSWERED_RETRY, is_conflict, is_refused};
use crate::leadership::fence::Fence;
use crate::tasks::Tasks;

/// The result of a write.
pub enum Written {
    /// A write of a status: the object that was sent, and the object that the apiserver stored.
    Status(PoolKey, Object, Result<Object, kube::Error>),
    /// A patch of finalizers or spec, based on this version, and the object that the apiserver stored.
    Object(PoolKey, u64, Result<Object, kube::Error>),
    /// A patch of a node's labels and annotations, based on this version.
    Marks(NodeName, u64, Result<(), kube::Error>),
}

/// The reporter, and its writes in flight.
pub struct Reporter {
    client: Client,
    fence: Arc<Fence>,
    writing: Tasks<Written>,
    objects: BTreeSet<PoolKey>,
    /// Objects of which the apiserver has a newer version than this one. The controller does nothing for them until the
    /// watch shows the newer version.
    outdated: BTreeMap<PoolKey, u64>,
    nodes: BTreeSet<NodeName>,
    /// The version of each node on which its last patch was based. The reporter does not patch this version again,
    /// unless the patch failed for another reason than a conflict.
    patched: BTreeMap<NodeName, String>,
    /// Writes without a response, or with a server error. A slow admission webhook delays only the objects that it
    /// validates.
    unanswered: Backoff<Target>,
    /// Writes that the apiserver refused.
    refused: Backoff<Target>,
    /// Publishes Events.
    pub events: Publisher,
    /// Writes that were refused several times and are not reported yet.
    refusals: Vec<(Target, String)>,
    /// For each object, the Event that the reporter publishes when the status is written.
    after_write: BTreeMap<PoolKey, NewEvent>,
    /// The UIDs of objects whose deprecated fields were reported.
    deprecations: BTreeSet<String>,
}

/// The target of a write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// The status of an object.
    Status(PoolKey),
    /// Finalizers or spec of an object.
    Object(PoolKey),
    /// Labels and annotations of a node.
    Marks(NodeName),
}

impl Reporter {
    /// Whether a node needs other labels or annotations.
    pub fn has_marks_to_change(&self, index: &Index, marks: &Marks) -> bool {
        !nodes::differences(index, marks).is_empty()
    }

    /// A reporter without writes in flight.
    pub fn new(client: Client, fence: Arc<Fence>, identity: &str) -> Self {
        let events = Publisher::new(client.clone(), identity);
        Self {
            client,
            fence,
            writing: Tasks::default(),
            objects: BTreeSet::new(),
            outdated: BTreeMap::new(),
            nodes: BTreeSet::new(),
            patched: BTreeMap::new(),
            unanswered: Backoff::new(UNANSWERED_RETRY),
            refused: Backoff::new(REFUSED_RETRY),
            events,
            refusals: Vec::new(),
            after_write: BTreeMap::new(),
            deprecations: BTreeSet::new(),
        }
    }

    /// Whether a write of this object is in flight, or the watch has to show a newer version first. In both cases
    /// the stored journal may differ from the one in memory, so the controller starts nothing for the object.
    pub fn is_writing(&self, key: &PoolKey) -> bool {
        self.objects.contains(key) || self.outdated.contains_key(key)
    }

    /// The objects whose journal the apiserver refuses, each with the time of the next attempt.
    pub fn unwritable(&self, index: &Index) -> BTreeMap<PoolKey, Instant> {
        let until = |(key, tracked): (&PoolKey, &Tracked)| {
            let version = tracked.object.version();
            let of = |target| self.refused.waits_until(&target, version);
            let until = of(Target::Status(key.clone())).max(of(Target::Object(key.clone())))?;
            Some((key.clone(), until))
        };
        match self.refused.next_due() {
            Some(_) => index.objects.iter().filter_map(until).collect(),
            None => BTreeMap::new(),
        }
    }

    /// Forgets outdated versions that the watch has replaced, and failures of objects that are gone.
    pub fn catch_up(&mut self, index: &Index) {
        let is_there = |target: &Target| match target {
            Target::Status(key) | Target::Object(key) => index.objects.contains_key(key),
            Target::Marks(name) => index.nodes.contains_key(name),
        };
        self.refused.retain(is_there);
        self.unanswered.retain(is_there);
        self.outdated.retain(|key, version| {
            index.objects.get(key).is_some_and(|tracked| tracked.object.version() <= *version)
        });
    }

    /// Starts a write for each object and node that differs from the plan.
    pub fn publish(&mut self, index: &Index, plan: &Plan, now: Timestamp) {
        if self.fence.remaining().is_none() {
            return;
        }
        self.publish_deprecations(index, now);
        self.report_refused_writes(index, now);
        self.patched.retain(|name, version| {
            let node = index.nodes.get(name);
            node.is_some_and(|node| node.version.as_deref() == Some(version.as_str()))
        });
        for (name, version, patch) in nodes::differences(index, &plan.marks) {
            let number = version.parse().unwrap_or(0);
            let waits = self.waits(Target::Marks(name.clone()), number);
            if !waits && !self.patched.contains_key(&name) && self.nodes.insert(name.clone()) {
                self.patched.insert(name.clone(), version);
                let client = self.client.clone();
                self.writing.spawn(async move {
                    let written = nodes::patch(client, &name, patch).await;
                    Written::Marks(name, number, written)
                });
            }
        }
        for (key, tracked) in &index.objects {
            if self.is_writing(key) || tracked.refused_until.is_some() || tracked.undecodable.is_some() {
                continue;
            }
            // This object waits for a list, so its status waits too, unless it has to write a journal entry.
            let is_journalled = |pool: &Pool| !pool.has_pending();
            if plan.awaits_list.contains(key) && index.world.pool(key).is_some_and(is_journalled) {
                continue;
            }
            let version = tracked.object.version();
            let patch = finalizers::patch(index, plan, key).filter(|_| !plan::sabotaged!(FinalizerForgotten));
            let is_first = patch.as_ref().is_some_and(|patch| !patch.is_last);
            let changed = (!is_first).then(|| status::changed(index, plan, key, now)).flatten();
            if let Some(changed) = changed {
                if self.waits(Target::Status(key.clone()), version) {
                    continue;
                }
                self.objects.insert(key.clone());
                self.after_write.remove(key);
                let event = of_status(&tracked.object, &changed).map(|event| (key.clone(), event));
                self.after_write.extend(event);
                let (client, key) = (self.client.clone(), key.clone());
                self.writing.spawn(async move {
                    let written = write(client, changed.clone()).await;
                    Written::Status(key, changed, written)
                });
            } else if let Some(finalizers::ObjectPatch { patch, .. }) = patch {
                if self.waits(Target::Object(key.clone()), version) {
                    continue;
                }
                self.objects.insert(key.clone());
                tracing::info!(object = %key, %patch, "updating finalizers or spec");
                let (client, key, present) = (self.client.clone(), key.clone(), tracked.object.clone());
                self.writing.spawn(async move {
                    let written = amend(client, present, patch).await;
                    Written::Object(key, version, written)
                });
            }
        }
    }

    /// Whether a failed write is in its backoff.
    fn waits(&self, target: Target, version: u64) -> bool {
        let is_refused = self.refused.waits_until(&target, version).is_some();
        (is_refused && !plan::sabotaged!(RefusedWriteRetriedAtOnce))
            || self.unanswered.waits_until(&target, ANY_VERSION).is_some()
    }

    /// Processes the result of a write that was based on this version.
    fn note(&mut self, target: Target, version: u64, error: Option<&kube::Error>) {
        match error {
            None => {
                self.refused.succeeded(&target);
                self.unanswered.succeeded(&target);
            }
            // No backoff: the watch will show the current version.
            Some(error) if is_conflict(error) && !matches!(target, Target::Object(_)) => {}
            Some(error) if is_refused(error) => {
                if self.refused.failed(target.clone(), version, error) == REFUSALS_REPORTED {
                    self.refusals.push((target, error.to_string()));
                }
            }
            Some(error) => _ = self.unanswered.failed(target, ANY_VERSION, error),
        }
    }

    /// Publishes an Event for each write that the apiserver refused several times. The object's status can't report it.
    fn report_refused_writes(&mut self, index: &Index, now: Timestamp) {
        for (target, error) in std::mem::take(&mut self.refusals) {
            let note = format!(
                "the apiserver refused an update by the controller, which retries with backoff: {error}"
            );
            let event = match &target {
                Target::Status(key) | Target::Object(key) => {
                    let Some(tracked) = index.objects.get(key) else { continue };
                    NewEvent::of_object(&tracked.object, EventReason::WriteRefused, "Write", note)
                }
                Target::Marks(name) => {
                    NewEvent::of_node(name, index.nodes.get(name), EventReason::WriteRefused, note)
                }
            };
            self.events.publish(event, now);
        }
    }

    /// Publishes the Event of a status that was written.
    pub fn publish_after_write(&mut self, key: &PoolKey, now: Timestamp) {
        if let Some(event) = self.after_write.remove(key) {
            self.events.publish(event, now);
        }
    }

    /// Publishes one Event for each object that uses a deprecated field.
    fn publish_deprecations(&mut self, index: &Index, now: Timestamp) {
        for tracked in index.objects.values() {
            let uid = tracked.object.metadata().uid.as_deref().unwrap_or_default();
            if self.deprecations.contains(uid) {
                continue;
            }
            if let Some(event) = of_deprecation(&tracked.object) {
                self.deprecations.insert(uid.to_owned());
                self.events.publish(event, now);
            }
        }
    }

    /// The result of the next write. Waits forever if no write is in flight.
    pub async fn written(&mut self) -> Written {
        loop {
            match self.writing.next().await {
                Some(Ok(written)) => {
                    match &written {
                        Written::Status(key, sent, result) => {
                            if result.as_ref().is_err_and(is_conflict) {
                                self.outdated.insert(key.clone(), sent.version());
                            }
                            self.objects.remove(key);
                            self.note(Target::Status(key.clone()), sent.version(), result.as_ref().err());
                        }
                        Written::Object(key, version, result) => {
                            self.objects.remove(key);
                            self.note(Target::Object(key.clone()), *version, result.as_ref().err());
                        }
                        Written::Marks(name, version, result) => {
                            self.nodes.remove(name);
                            if result.as_ref().is_err_and(|error| !is_conflict(error)) {
                                self.patched.remove(name);
                            }
                            self.note(Target::Marks(name.clone()), *version, result.as_ref().err());
                        }
                    }
                    return written;
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a task that writes to the apiserver was cancelled")
                }
                None => std::future::pending().await,
            }
        }
    }

    /// The end of the backoff that ends first.
    pub fn next_due(&self) -> Option<Instant> {
        [self.unanswered.next_due(), self.refused.next_due()].into_iter().flatten().min()
    }

    /// Whether no write is in flight.
    pub fn is_idle(&self) -> bool {
        self.writing.is_empty()
    }
}

/// Patches finalizers or spec of an object. `present` is the object in the cache.
async fn amend(client: Client, present: Object, patch: Value) -> Result<Object, kube::Error> {
    let name = present.metadata().name.clone().unwrap_or_default();
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match present {
        Object::Allocation(_) => Api::all(client)
            .patch(&name, &params, &patch)
            .await
            .map(|written| Object::Allocation(slim(written))),
        Object::Pool(pool) => {
            let api = Api::namespaced(client, &pool.namespace().unwrap_or_default());
            api.patch(&name, &params, &patch).await.map(|written| Object::Pool(slim(written)))
        }
        Object::Records(records) => {
            let api = Api::namespaced(client, &records.namespace().unwrap_or_default());
            api.patch(&name, &params, &patch).await.map(|written| Object::Records(slim(written)))
        }
    }
}

/// Writes an object's status.
async fn write(client: Client, changed: Object) -> Result<Object, kube::Error> {
    let params = PostParams::default();
    match changed {
        Object::Allocation(object) => {
            let written = Api::all(client).replace_status(&object.name_any(), &params, &*object).await?;
            Ok(Object::Allocation(slim(written)))
        }
        Object::Pool(object) => {
            let api = Api::namespaced(client, &object.namespace().unwrap_or_default());
            let written = api.replace_status(&object.name_any(), &params, &*object).await?;
            Ok(Object::Pool(slim(written)))
        }
        Object::Records(object) => {
            let api = Api::namespaced(client, &object.namespace().unwrap_or_default());
            let written = api.replace_status(&object.name_any(), &params, &*object).await?;
            Ok(Object::Records(slim(written)))
        }
    }
}

/// Removes the managed fields, which the controller does not read.
fn slim<K: ResourceExt>(mut written: K) -> Arc<K> {
    written.meta_mut().managed_fields = None;
    Arc::new(written)
}
