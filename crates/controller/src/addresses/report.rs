//! Writes status, finalizers, labels and annotations of nodes, and Events.
//!
//! In: the plan and the index. Out: status writes with the `resourceVersion` that the plan is based on, patches of
//! objects and nodes, and Events. An object gets the finalizer before its first journal entry, so it can't disappear
//! during a move. The reporter adds created addresses to the spec. It compares before it writes, so a settled
//! cluster costs no write. At most one write per object is in flight; journal and status are in the same write. The
//! reporter never reports what did not happen.
//!
//! If there are more writes than may be in flight, they start in this order: journals, removals of marks, statuses and
//! specs, additions of marks. Events have a limit of their own.

mod events;
mod finalizers;
mod nodes;
mod state;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use plan::{EventReason, Marks, NodeName, Plan, Pool, PoolKey, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use self::events::{of_deprecation, of_status};
use self::nodes::{Difference, MarkId};
use super::index::Index;
use super::index::tracked::Tracked;
use super::object::Object;
use crate::backoff::{ANY_VERSION, Backoff};
use crate::kubernetes::events::{NewEvent, Publisher};
use crate::kubernetes::write::{REFUSALS_REPORTED, REFUSED_RETRY, UNANSWERED_RETRY, is_conflict, is_refused};
use crate::leadership::fence::Fence;
use crate::tasks::Tasks;

/// The maximum number of writes in flight, without Events.
const WRITES_MAX: usize = 28;

/// How many of [`WRITES_MAX`] only journals may use: a move waits for its journal entry.
const KEPT_FOR_JOURNALS: usize = 4;

/// The maximum number of retries in flight of each kind of write. A retry is a write whose last attempt got no response. A
/// slow admission webhook delays only the objects that it validates.
const RETRIES_MAX: usize = 4;

/// The kinds of writes, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Urgency {
    /// Statuses with a new journal entry.
    Journal,
    /// Patches that remove marks from nodes.
    Removal,
    /// Other statuses, finalizers and specs.
    Status,
    /// Patches that only add marks to nodes.
    Addition,
}

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
    /// The last patch of each node, until the watch shows a newer version. The reporter does not patch the same version
    /// again, unless the patch failed for another reason than a conflict.
    patched: BTreeMap<NodeName, Patched>,
    /// The retries in flight, with their kind.
    retries: BTreeMap<Target, Urgency>,
    /// Whether the process is about to end, see [`Self::write_last`].
    is_last: bool,
    /// Writes without a response, or with a server error.
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

/// The last patch of a node.
struct Patched {
    /// The version of the node that the patch is based on.
    version: String,
    removed: Vec<MarkId>,
    added: Vec<MarkId>,
    /// None without a response.
    result: Option<PatchResult>,
}

/// The response to a patch of a node. After any other error, the patch is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PatchResult {
    Accepted,
    Conflict,
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
            retries: BTreeMap::new(),
            is_last: false,
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
        self.patched.retain(|name, patched| {
            let node = index.nodes.get(name);
            node.is_some_and(|node| !node.is_stand_in && node.version.as_deref() == Some(&*patched.version))
        });
        // The next leader patches the nodes, so they don't delay the release of the lease.
        let differences = if self.is_last { Vec::new() } else { nodes::differences(index, &plan.marks) };
        self.forget_nodes_without(&differences);
        let (removing, adding): (Vec<_>, Vec<_>) = differences.into_iter().partition(Difference::removes);
        let elsewhere = self.marks_still_there(&removing);
        // Only the writes that there is room for. Each response leads to another plan, which starts the next ones.
        self.write_objects(index, plan, now, Urgency::Journal);
        self.patch_nodes(removing, &elsewhere, Urgency::Removal);
        self.write_objects(index, plan, now, Urgency::Status);
        self.patch_nodes(adding, &elsewhere, Urgency::Addition);
    }

    /// The marks that nodes have and should not have, and those that were added a moment ago, each with its nodes. A mark
    /// that could not be removed does not count: a node that refuses patches must not block others.
    fn marks_still_there(&self, removing: &[Difference]) -> BTreeMap<MarkId, BTreeSet<NodeName>> {
        let mut there: BTreeMap<MarkId, BTreeSet<NodeName>> = BTreeMap::new();
        for difference in removing {
            let node = &difference.node;
            let target = Target::Marks(node.clone());
            let has_failed =
                self.refused.failure(&target).is_some() || self.unanswered.failure(&target).is_some();
            let is_over = |mark: &MarkId| {
                let patched = self.patched.get(node);
                let result = patched.and_then(|patched| patched.result);
                has_failed
                    || match mark {
                        // Many nodes share a label, so a silent watch of one must not block the others.
                        MarkId::Label(_) => result.is_some(),
                        MarkId::Address(_) => {
                            let is_removed = patched.is_some_and(|patched| patched.removed.contains(mark));
                            result == Some(PatchResult::Accepted) && is_removed
                        }
                    }
            };
            for mark in difference.removed().into_iter().filter(|mark| !is_over(mark)) {
                there.entry(mark).or_default().insert(node.clone());
            }
        }
        for (node, patched) in &self.patched {
            let is_new = |mark: &&MarkId| matches!(mark, MarkId::Address(_));
            let may_have = patched.result != Some(PatchResult::Conflict);
            for mark in patched.added.iter().filter(is_new).filter(|_| may_have) {
                there.entry(mark.clone()).or_default().insert(node.clone());
            }
        }
        there
    }

    /// Starts patches of nodes. A patch adds no mark that is still on another node.
    fn patch_nodes(
        &mut self,
        mut differences: Vec<Difference>,
        elsewhere: &BTreeMap<MarkId, BTreeSet<NodeName>>,
        urgency: Urgency,
    ) {
        differences.sort_by_key(|difference| self.failed_at(&Target::Marks(difference.node.clone())));
        for difference in differences {
            if !self.has_room(urgency) {
                return;
            }
            let node = &difference.node;
            if self.patched.contains_key(node) || self.nodes.contains(node) {
                continue;
            }
            let is_elsewhere = |mark: &MarkId| {
                elsewhere.get(mark).is_some_and(|nodes| nodes.iter().any(|other| other != node))
            };
            let mut added = difference.added();
            // The apiserver may have refused the addition.
            let was_refused = self.refused.failure(&Target::Marks(node.clone())).is_some();
            let only_removes = added.iter().any(is_elsewhere) || (was_refused && difference.removes());
            if only_removes {
                added.clear();
            }
            let is_empty = only_removes && !difference.removes();
            if is_empty || !self.start(Target::Marks(node.clone()), difference.number(), urgency) {
                continue;
            }
            self.nodes.insert(node.clone());
            let version = difference.version().to_owned();
            let patched = Patched { version, removed: difference.removed(), added, result: None };
            self.patched.insert(node.clone(), patched);
            let (client, node, number) = (self.client.clone(), node.clone(), difference.number());
            let patch = difference.patch(only_removes);
            self.writing.spawn(async move {
                let written = nodes::patch(client, &node, patch).await;
                Written::Marks(node, number, written)
            });
        }
    }

    /// Starts writes of objects: those that store new journal entries, or the others.
    fn write_objects(&mut self, index: &Index, plan: &Plan, now: Timestamp, urgency: Urgency) {
        let mut objects: Vec<_> = index.objects.iter().collect();
        objects.sort_by_cached_key(|(key, _)| {
            let of_status = self.failed_at(&Target::Status((*key).clone()));
            of_status.max(self.failed_at(&Target::Object((*key).clone())))
        });
        for (key, tracked) in objects {
            if !self.has_room(urgency) {
                return;
            }
            if self.is_writing(key) || tracked.refused_until.is_some() || tracked.undecodable.is_some() {
                continue;
            }
            let has_pending = index.world.pool(key).is_some_and(Pool::has_pending);
            // An object that waits for a list writes its status later, unless it has to write a journal entry.
            if has_pending != (urgency == Urgency::Journal)
                || (plan.awaits_list.contains(key) && !has_pending)
            {
                continue;
            }
            let version = tracked.object.version();
            let patch = finalizers::patch(index, plan, key).filter(|_| !plan::sabotaged!(FinalizerForgotten));
            let is_first = patch.as_ref().is_some_and(|patch| !patch.is_last);
            let changed = (!is_first).then(|| status::changed(index, plan, key, now)).flatten();
            if let Some(changed) = changed {
                if !self.start(Target::Status(key.clone()), version, urgency) {
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
                if !self.start(Target::Object(key.clone()), version, urgency) {
                    continue;
                }
                self.objects.insert(key.clone());
                tracing::info!(object = %key, %patch, "updating finalizers or spec");
                let (client, key, present) = (self.client.clone(), key.clone(), tracked.object.clone());
                self.writing.spawn(async move {
                    let written = amend(client, present, patch).await;
                    Written::Object(key, version, written)
                });
            } else {
                // The last write took effect, although its response was lost.
                self.unanswered.succeeded(&Target::Status(key.clone()));
                self.unanswered.succeeded(&Target::Object(key.clone()));
            }
        }
    }

    /// When the backoff of a target ends whose last write got no response. Targets with an earlier end have waited for
    /// longer, and those without such a failure come first.
    fn failed_at(&self, target: &Target) -> Option<Instant> {
        self.unanswered.failure(target).map(|failure| failure.until)
    }

    /// Forgets writes without a response to nodes that need no patch any more. Refused patches stay: the node may need the
    /// same patch again in a moment.
    fn forget_nodes_without(&mut self, differences: &[Difference]) {
        let different: BTreeSet<_> = differences.iter().map(|difference| &difference.node).collect();
        self.unanswered.retain(|target| match target {
            Target::Marks(node) => different.contains(node),
            Target::Status(_) | Target::Object(_) => true,
        });
    }

    /// Whether another write may start.
    fn has_room(&self, urgency: Urgency) -> bool {
        let kept = if urgency == Urgency::Journal { 0 } else { KEPT_FOR_JOURNALS };
        self.writing.len() < WRITES_MAX - kept
    }

    /// Whether a write may start now. If so, the caller starts it.
    fn start(&mut self, target: Target, version: u64, urgency: Urgency) -> bool {
        let is_refused = self.refused.waits_until(&target, version).is_some();
        let waits = (is_refused && !plan::sabotaged!(RefusedWriteRetriedAtOnce))
            || self.unanswered.waits_until(&target, ANY_VERSION).is_some();
        if waits {
            return false;
        }
        let is_retry = self.unanswered.failure(&target).is_some();
        let of_kind = self.retries.values().filter(|retried| **retried == urgency).count();
        let has_room = !is_retry || (of_kind < RETRIES_MAX && !self.is_last);
        if is_retry && has_room {
            self.retries.insert(target, urgency);
        }
        has_room
    }

    /// Writes only what the next leader needs: the process is about to end. Writes that got no response are not retried,
    /// and nodes are not patched.
    pub fn write_last(&mut self) {
        self.is_last = true;
    }

    /// Processes the result of a write that was based on this version.
    fn note(&mut self, target: Target, version: u64, error: Option<&kube::Error>) {
        self.retries.remove(&target);
        match error {
            None => {
                self.refused.succeeded(&target);
                self.unanswered.succeeded(&target);
            }
            // No backoff: the watch will show the current version.
            Some(error) if is_conflict(error) && !matches!(target, Target::Object(_)) => {
                self.unanswered.succeeded(&target);
            }
            Some(error) if is_refused(error) => {
                self.unanswered.succeeded(&target);
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
                            let answer = match result {
                                Ok(()) => Some(PatchResult::Accepted),
                                Err(error) => is_conflict(error).then_some(PatchResult::Conflict),
                            };
                            match self.patched.get_mut(name) {
                                Some(patched) if answer.is_some() => patched.result = answer,
                                _ => _ = self.patched.remove(name),
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
