//! Writes what happened, and nothing that did not.
//!
//! In: the plan, and what is known. Out: status writes, each with the version of the object that was planned for, and
//! marks on nodes. Before something is journalled the object gets a finalizer, so that it can't go while something of it is
//! under way, and created addresses are written into the spec. It compares before it writes, so a settled world costs no write. Each object has one write under way
//! at the most, and the journal and all that is to be said of its addresses go out in that one.

mod events;
mod finalizers;
mod nodes;
mod state;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use plan::{EventReason, NodeName, Plan, PoolKey, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use self::events::{of_deprecation, of_status};
use super::index::Index;
use super::index::tracked::Tracked;
use super::object::Object;
use crate::backoff::{ANY_VERSION, Backoff};
use crate::kubernetes::events::{NewEvent, tell};
use crate::kubernetes::write::{REFUSALS_REPORTED, REFUSED_RETRY, UNANSWERED_RETRY, is_conflict, is_refused};
use crate::leadership::fence::Fence;
use crate::tasks::Tasks;

/// What became of a write.
pub enum Written {
    /// An object's status: what was sent, and what the apiserver has now.
    Status(PoolKey, Object, Result<Object, kube::Error>),
    /// An object's finalizers or spec in this version, and what the apiserver has now.
    Object(PoolKey, u64, Result<Object, kube::Error>),
    /// A node's marks, in this version.
    Marks(NodeName, u64, Result<(), kube::Error>),
    /// An Event.
    Event(Result<(), kube::Error>),
}

/// Writes, and what is being written.
pub struct Reporter {
    client: Client,
    fence: Arc<Fence>,
    writing: Tasks<Written>,
    objects: BTreeSet<PoolKey>,
    /// Objects of which the apiserver has a newer version than this: nothing is decided for them before that is seen.
    outdated: BTreeMap<PoolKey, u64>,
    nodes: BTreeSet<NodeName>,
    /// The version of a node that was last patched or found outdated: until the watch shows another, it is not patched
    /// again.
    patched: BTreeMap<NodeName, String>,
    /// Writes that the apiserver did not answer, or was not able to. One slow admission webhook delays only what it is asked about.
    unanswered: Backoff<Target>,
    /// Writes that the apiserver refused.
    refused: Backoff<Target>,
    /// Who tells Events.
    identity: String,
    /// How many Events were told, and how many of them are under way.
    told: u64,
    telling: usize,
    /// Writes that were refused several times and are to be reported.
    refusals: Vec<(Target, String)>,
    /// What is to be told of an object once its status is written.
    news: BTreeMap<PoolKey, NewEvent>,
    /// The objects whose use of something deprecated was told.
    deprecations: BTreeSet<String>,
}

/// The most Events under way. When everything happens at once, the log has it all, and the apiserver has better to do.
const TELLING_MAX: usize = 100;

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// An object's status.
    Status(PoolKey),
    /// An object's finalizers or spec.
    Object(PoolKey),
    /// A node's marks.
    Marks(NodeName),
}

impl Reporter {
    /// Nothing is being written.
    pub fn new(client: Client, fence: Arc<Fence>, identity: &str) -> Self {
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
            identity: identity.to_owned(),
            told: 0,
            telling: 0,
            refusals: Vec::new(),
            news: BTreeMap::new(),
            deprecations: BTreeSet::new(),
        }
    }

    /// Whether a write of this object is under way, or a newer version of it has to be seen first, so that nothing else may be
    /// decided for it: its journal may not hold any more what it held.
    pub fn is_writing(&self, key: &PoolKey) -> bool {
        self.objects.contains(key) || self.outdated.contains_key(key)
    }

    /// The objects whose journal can't be written for now because the apiserver refuses it, each with when it is tried again.
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

    /// Forgets which objects had to be seen anew and have been, and what was refused of those that are gone.
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

    /// Begins to write everything that differs from what is to be said.
    pub fn publish(&mut self, index: &Index, plan: &Plan, now: Timestamp) {
        if self.fence.remaining().is_none() {
            return;
        }
        self.tell_of_deprecations(index, now);
        self.report_refused_writes(index, now);
        self.patched.retain(|name, version| {
            let node = index.nodes.get(name);
            node.is_some_and(|node| node.metadata.resource_version.as_ref() == Some(version))
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
            let version = tracked.object.version();
            let owed = finalizers::owed(index, plan, key).filter(|_| !plan::sabotaged!(FinalizerForgotten));
            let is_first = owed.as_ref().is_some_and(|owed| !owed.is_last);
            let changed = (!is_first).then(|| status::changed(index, plan, key, now)).flatten();
            if let Some(changed) = changed {
                if self.waits(Target::Status(key.clone()), version) {
                    continue;
                }
                self.objects.insert(key.clone());
                self.news.remove(key);
                self.news.extend(of_status(&tracked.object, &changed).map(|news| (key.clone(), news)));
                let (client, key) = (self.client.clone(), key.clone());
                self.writing.spawn(async move {
                    let written = write(client, changed.clone()).await;
                    Written::Status(key, changed, written)
                });
            } else if let Some(finalizers::Owed { patch, .. }) = owed {
                if self.waits(Target::Object(key.clone()), version) {
                    continue;
                }
                self.objects.insert(key.clone());
                tracing::info!(object = %key, %patch, "amending");
                let (client, key, present) = (self.client.clone(), key.clone(), tracked.object.clone());
                self.writing.spawn(async move {
                    let written = amend(client, present, patch).await;
                    Written::Object(key, version, written)
                });
            }
        }
    }

    /// Whether a write is not tried again yet because it failed.
    fn waits(&self, target: Target, version: u64) -> bool {
        let is_refused = self.refused.waits_until(&target, version).is_some();
        (is_refused && !plan::sabotaged!(RefusedWriteRetriedAtOnce))
            || self.unanswered.waits_until(&target, ANY_VERSION).is_some()
    }

    /// Takes note of what became of a write of an object or a node in a version.
    fn note(&mut self, target: Target, version: u64, error: Option<&kube::Error>) {
        match error {
            None => {
                self.refused.succeeded(&target);
                self.unanswered.succeeded(&target);
            }
            // The watch tells of the version that is there now.
            Some(error) if is_conflict(error) && !matches!(target, Target::Object(_)) => {}
            Some(error) if is_refused(error) => {
                if self.refused.failed(target.clone(), version) == REFUSALS_REPORTED {
                    self.refusals.push((target, error.to_string()));
                }
            }
            Some(_) => _ = self.unanswered.failed(target, ANY_VERSION),
        }
    }

    /// Reports writes that the apiserver has refused several times: their objects can't say so themselves.
    fn report_refused_writes(&mut self, index: &Index, now: Timestamp) {
        for (target, error) in std::mem::take(&mut self.refusals) {
            let note = format!(
                "the apiserver refused an update by the controller, which retries with backoff: {error}"
            );
            let news = match &target {
                Target::Status(key) | Target::Object(key) => {
                    let Some(tracked) = index.objects.get(key) else { continue };
                    NewEvent::of_object(&tracked.object, EventReason::WriteRefused, "Write", note)
                }
                Target::Marks(name) => {
                    NewEvent::of_node(name, index.nodes.get(name), EventReason::WriteRefused, note)
                }
            };
            self.tell(news, now);
        }
    }

    /// Tells of something that happened. Nobody waits for it.
    pub fn tell(&mut self, news: NewEvent, now: Timestamp) {
        if self.telling >= TELLING_MAX {
            return tracing::debug!(note = news.note, "dropped an Event: too many are being sent");
        }
        self.telling += 1;
        self.told += 1;
        let (client, number, identity) = (self.client.clone(), self.told, self.identity.clone());
        self.writing.spawn(async move { Written::Event(tell(client, news, number, &identity, now).await) });
    }

    /// Tells of what a written status said for the first time.
    pub fn tell_of_written(&mut self, key: &PoolKey, now: Timestamp) {
        if let Some(news) = self.news.remove(key) {
            self.tell(news, now);
        }
    }

    /// Tells once of each object that uses what is deprecated.
    fn tell_of_deprecations(&mut self, index: &Index, now: Timestamp) {
        for tracked in index.objects.values() {
            let uid = tracked.object.metadata().uid.as_deref().unwrap_or_default();
            if self.deprecations.contains(uid) {
                continue;
            }
            if let Some(news) = of_deprecation(&tracked.object) {
                self.deprecations.insert(uid.to_owned());
                self.tell(news, now);
            }
        }
    }

    /// The next write that has ended. Waits for ever while none is under way.
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
                        Written::Event(_) => self.telling -= 1,
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
                Some(Err(error)) => tracing::error!(%error, "a write was cut off"),
                None => std::future::pending().await,
            }
        }
    }

    /// When writing may go on after a failure.
    pub fn next_due(&self) -> Option<Instant> {
        [self.unanswered.next_due(), self.refused.next_due()].into_iter().flatten().min()
    }

    /// Whether nothing is being written.
    pub fn is_idle(&self) -> bool {
        self.writing.is_empty()
    }
}

/// Changes an object's finalizers or spec. `present` is the object as it is known.
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

/// An answer without what nobody reads.
fn slim<K: ResourceExt>(mut written: K) -> Arc<K> {
    written.meta_mut().managed_fields = None;
    Arc::new(written)
}
