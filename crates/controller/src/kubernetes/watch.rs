//! Forwards one watch from the apiserver to a channel.
//!
//! ```text
//! list ──▶ watch from its resourceVersion ──▶ the apiserver ends it, or it breaks for a short time ──┐
//!  ▲                     ▲                                                                           │
//!  │                     └────────────── from the last resourceVersion ◀─────────────────────────────┤
//!  └──────── it breaks or is silent for longer, its version is too old, or the receiver asks ◀───────┘
//! ```
//!
//! In: the apiserver's lists and watches of a kind. Out: its changes. Objects are decoded one by one, so an undecodable
//! object is forwarded as such and never fails the watch. The receiver gets a list as a whole or in parts, and can tell
//! which objects are gone. Each object is reduced to what the receiver keeps as soon as it is decoded, and the pages of
//! a list are small if its objects are large. So a list usually takes little more memory than what is kept of it.
//!
//! Lists are consistent, so a list that is older than what the receiver knows means that etcd was restored from a copy.
//! A watch does not show that: the apiserver accepts a resourceVersion of the future, and sends nothing until etcd has
//! reached it. So the version is checked with a list of one object before a broken watch resumes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Request, WatchParams};
use kube::core::{ObjectList, WatchEvent as Received};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};

use super::decode::{Change, Decoded, names_of};
use crate::metrics::{Metrics, WatchMetrics};

/// The pause before a list that failed is requested again. It limits the requests for a kind that the apiserver does
/// not serve.
pub const LIST_RETRY: Duration = Duration::from_secs(2);

/// The pause before a watch that broke is resumed.
const RESUME_EVERY: Duration = Duration::from_secs(1);

/// The longest interruption after which a watch resumes. After a longer one the kind is listed again.
const GAP_MAX: Duration = Duration::from_secs(30);

/// The timeout after which the apiserver ends each watch.
const WATCH_SECONDS: u32 = 120;

/// A watch that is silent for longer than its timeout is dead, even if a proxy keeps its connection alive.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// How long it may take until the response to a watch request starts.
const RESPONSE_MAX: Duration = Duration::from_secs(10);

/// How long a page of a list may take.
const PAGE_MAX: Duration = Duration::from_secs(20);

/// A watch that lasted for this long worked, even if it brought nothing. A shorter one may not have worked: a proxy may
/// end each watch at once.
const WORKS_AFTER: Duration = Duration::from_secs(5);

/// A watch that the apiserver ends earlier than this was interrupted, for example because the apiserver shuts down.
const ENDS_AFTER: Duration = Duration::from_secs(WATCH_SECONDS as u64 - 2);

/// How many objects the first page of a list requests.
const PAGE_FIRST: u32 = 10;

/// The most objects that a page of a list requests.
const PAGE_MOST: u32 = 500;

/// About how many bytes a page of a list should have. An object can have more than a mebibyte.
const PAGE_BYTES: usize = 4 << 20;

/// The clients of a watch, and its metrics. Lists have a client of their own, so that a large list does not
/// delay the watches.
#[derive(Clone)]
pub struct Clients {
    /// For lists.
    pub lists: Client,
    /// For watches, which may be silent for long.
    pub watches: Client,
    /// Show how long each watch has been silent.
    pub metrics: Metrics,
}

/// Which annotations of the objects are kept. They can be large, and anybody who may create an object chooses them.
#[derive(Clone, Copy, Debug)]
pub enum Annotations {
    /// All of them.
    All,
    /// Those with these names.
    Only(&'static [&'static str]),
}

/// What the receiver of a watch's events needs.
pub struct Reading<F> {
    /// Which annotations of the objects are kept.
    pub annotations: Annotations,
    /// Reduces an object to what the receiver keeps.
    pub keep: F,
    /// Whether the receiver gets each list in parts. Otherwise it gets all objects at once.
    pub in_parts: bool,
    /// Whether the receiver ignores older versions of an object. If so, an older version in a list ends the watch,
    /// because etcd was restored.
    pub ignores_older: bool,
}

/// Lets the receiver of a watch's events request a relist. All clones share one pending request.
#[derive(Clone, Debug, Default)]
pub struct Relist(Arc<Notify>);

impl Relist {
    /// Requests a relist.
    pub fn ask(&self) {
        self.0.notify_one();
    }

    /// Drops the request, because a list is requested now.
    fn forget(&self) {
        _ = self.0.notified().now_or_never();
    }

    async fn asked(&self) {
        self.0.notified().await;
    }
}

/// Requests relists of kinds whose watch has been silent.
#[derive(Clone, Debug)]
pub struct Relists<T> {
    of: BTreeMap<T, Relist>,
    /// Kinds whose relist was requested and has not ended.
    asked: BTreeSet<T>,
}

impl<T: Copy + Ord> Relists<T> {
    /// Creates the relists of these kinds, none of them requested.
    pub fn new(kinds: impl IntoIterator<Item = T>) -> Self {
        let of = kinds.into_iter().map(|kind| (kind, Relist::default())).collect();
        Self { of, asked: BTreeSet::new() }
    }

    /// The requests for one kind.
    pub fn of(&self, kind: T) -> Relist {
        self.of.get(&kind).cloned().unwrap_or_default()
    }

    /// Requests relists, unless they were requested already.
    pub fn ask(&mut self, is_wanted: impl Fn(T) -> bool) {
        for (kind, relist) in &self.of {
            if is_wanted(*kind) && self.asked.insert(*kind) {
                relist.ask();
            }
        }
    }

    /// Notes that a kind was listed, or can't be listed now.
    pub fn answered(&mut self, kind: T) {
        self.asked.remove(&kind);
    }
}

/// An event of a watch.
pub enum WatchEvent<K> {
    /// A list begins. It may fail before it is complete.
    Listing,
    /// Some objects of the list.
    Part(Vec<Decoded<K>>),
    /// Objects changed.
    Changed(Change<K>),
    /// The list that was requested at this time is complete. Objects that were not in it are gone.
    Listed(Instant),
    /// The watch failed. The receiver's objects of this kind are incomplete until the next list.
    Lost(kube::Error),
}

/// Why a watch is not followed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The apiserver does not serve the kind.
    NotServed,
    /// etcd was restored from a copy, so it may have lost changes that the receiver knows.
    Restored,
    /// The receiver no longer exists.
    ReceiverGone,
}

/// The end of one watch request.
enum RequestEnd {
    /// The apiserver ended it.
    Closed,
    /// The apiserver no longer has the changes after this resourceVersion, or no longer has the kind.
    Expired(kube::Error),
    /// Its connection broke.
    Broken(kube::Error),
    /// It could not start, or the apiserver refused it.
    Failed(kube::Error),
    /// It was silent for too long, although its connection is alive.
    Silent(kube::Error),
    /// etcd was restored from a copy.
    Restored,
    /// The receiver requested a relist.
    Asked,
    /// The receiver no longer exists.
    ReceiverGone,
}

/// One watch, and what it has forwarded so far.
struct Watcher<'a, K, F, S> {
    client: Client,
    path: String,
    watches: Api<Decoded<K>>,
    reading: &'a mut Reading<F>,
    relist: &'a Relist,
    send: S,
    /// The version up to which all changes were forwarded.
    version: String,
    /// The highest version that the apiserver has sent.
    newest: &'a mut u64,
    /// How many objects the next page of a list should have.
    page: u32,
    /// The versions of the objects that were forwarded, if the receiver ignores older ones.
    forwarded: BTreeMap<(String, String), u64>,
    metrics: WatchMetrics,
}

/// Forwards the changes of a kind. `newest` is the highest version of the kind that the receiver knows. Events that
/// `convert` drops are not forwarded.
pub async fn follow<K, L, E>(
    clients: &Clients,
    resource: &K::DynamicType,
    reading: &mut Reading<impl FnMut(K) -> L>,
    relist: &Relist,
    newest: &mut u64,
    to: &mpsc::UnboundedSender<E>,
    convert: impl Fn(WatchEvent<L>) -> Option<E>,
) -> Ended
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    // Returns whether the receiver still exists.
    let send = |event| convert(event).is_none_or(|event| to.send(event).is_ok());
    let watches: Api<Decoded<K>> = Api::all_with(clients.watches.clone(), resource);
    let path = watches.resource_url().to_owned();
    let client = clients.lists.clone();
    let version = String::new();
    let (page, forwarded) = (PAGE_FIRST, BTreeMap::new());
    let metrics = clients.metrics.of_watch(&K::kind(resource));
    Watcher { client, path, watches, reading, relist, send, version, newest, page, forwarded, metrics }
        .follow()
        .await
}

impl<K, L, F, S> Watcher<'_, K, F, S>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    F: FnMut(K) -> L,
    S: Fn(WatchEvent<L>) -> bool,
{
    async fn follow(mut self) -> Ended {
        loop {
            let lost = match self.list().await {
                Ok(()) => match self.watch().await {
                    RequestEnd::ReceiverGone => return Ended::ReceiverGone,
                    RequestEnd::Restored => return Ended::Restored,
                    RequestEnd::Asked | RequestEnd::Closed => continue,
                    RequestEnd::Expired(error)
                    | RequestEnd::Broken(error)
                    | RequestEnd::Failed(error)
                    | RequestEnd::Silent(error) => error,
                },
                Err(NotListed::ReceiverGone) => return Ended::ReceiverGone,
                Err(NotListed::Restored) => return Ended::Restored,
                Err(NotListed::Failed(error)) => error,
            };
            let is_served = !is_not_found(&lost);
            if !(self.send)(WatchEvent::Lost(lost)) {
                return Ended::ReceiverGone;
            }
            if !is_served {
                return Ended::NotServed;
            }
            tokio::time::sleep(LIST_RETRY).await;
        }
    }

    /// Lists all objects, page by page, and forwards them. Without a resourceVersion the apiserver reads them from
    /// etcd.
    async fn list(&mut self) -> Result<(), NotListed> {
        let (began, in_parts) = (Instant::now(), self.reading.in_parts);
        self.relist.forget();
        self.send(WatchEvent::Listing)?;
        let (mut objects, mut versions) = (Vec::new(), BTreeMap::new());
        let mut next = String::new();
        loop {
            let mut params = ListParams::default().limit(self.page);
            if !next.is_empty() {
                params = params.continue_token(&next);
            }
            let page = self.read_page(&params).await?;
            let list_version = page.metadata.resource_version.unwrap_or_default();
            // The list is older than what the apiserver has sent before.
            if number(&list_version) < *self.newest && !plan::sabotaged!(StaleListBelieved) {
                return Err(NotListed::Restored);
            }
            if !page.items.iter().all(|object| self.is_as_new_as_forwarded(object)) {
                return Err(NotListed::Restored);
            }
            if self.reading.ignores_older {
                let metadata = page.items.iter().map(Decoded::meta);
                versions.extend(metadata.map(|metadata| (key_of(metadata), version(metadata))));
            }
            let kept = page.items.into_iter().filter(|object| !is_ignored(object));
            let kept = kept.map(|object| kept_of(object, self.reading));
            objects.extend(kept);
            if in_parts {
                self.send(WatchEvent::Part(std::mem::take(&mut objects)))?;
            }
            next = page.metadata.continue_.unwrap_or_default();
            if next.is_empty() {
                self.reached(list_version);
                break;
            }
        }
        self.forwarded = versions;
        if !in_parts {
            self.send(WatchEvent::Changed(Change::All(objects)))?;
        }
        self.send(WatchEvent::Listed(began))
    }

    /// Requests a page of a list, and adapts the size of the next one.
    async fn read_page(&mut self, params: &ListParams) -> Result<ObjectList<Decoded<K>>, kube::Error> {
        let text = timeout(PAGE_MAX, request_page::<K>(&self.client, &self.path, params));
        let text = text.await.unwrap_or_else(|_| Err(no_response(PAGE_MAX)))?;
        self.metrics.listed();
        let page: ObjectList<Decoded<K>> = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let bytes_of_one = text.len() / page.items.len().max(1) + 1;
        let fitting = u32::try_from(PAGE_BYTES / bytes_of_one).unwrap_or(u32::MAX);
        self.page = fitting.clamp(1, PAGE_MOST).min(self.page.saturating_mul(8));
        Ok(page)
    }

    fn send(&self, event: WatchEvent<L>) -> Result<(), NotListed> {
        match (self.send)(event) {
            true => Ok(()),
            false => Err(NotListed::ReceiverGone),
        }
    }

    /// Watches from the version of the list, and resumes after short interruptions, until the kind has to be listed
    /// again.
    async fn watch(&mut self) -> RequestEnd {
        // When the current interruption began. None while the watch works.
        let mut broken_since = None;
        let mut was_interrupted = false;
        loop {
            let (started, from) = (Instant::now(), self.version.clone());
            let end = match was_interrupted {
                true => self.check_version().await.err(),
                false => None,
            };
            let end = match end {
                Some(end) => end,
                None => self.watch_once().await,
            };
            let lasted =
                started.elapsed() >= WORKS_AFTER && matches!(end, RequestEnd::Closed | RequestEnd::Broken(_));
            if lasted || self.version != from {
                broken_since = None;
            }
            was_interrupted = !matches!(end, RequestEnd::Closed if started.elapsed() >= ENDS_AFTER);
            let error = match end {
                RequestEnd::Closed | RequestEnd::Broken(_) if lasted => continue,
                RequestEnd::Closed => kube::Error::Service("the watch ended early".into()),
                RequestEnd::Broken(error) | RequestEnd::Failed(error) => error,
                RequestEnd::Expired(_)
                | RequestEnd::Silent(_)
                | RequestEnd::Restored
                | RequestEnd::Asked
                | RequestEnd::ReceiverGone => return end,
            };
            let since = *broken_since.get_or_insert_with(Instant::now);
            if since.elapsed() + RESUME_EVERY > GAP_MAX {
                return RequestEnd::Failed(error);
            }
            tracing::debug!(path = self.path, %error, "a watch broke; resuming it");
            tokio::select! {
                biased;
                () = self.relist.asked() => return RequestEnd::Asked,
                () = tokio::time::sleep(RESUME_EVERY) => {}
            }
        }
    }

    /// Checks that etcd was not restored from a copy: its version must not be lower than the highest one seen.
    async fn check_version(&mut self) -> Result<(), RequestEnd> {
        let params = ListParams::default().limit(1);
        let text = timeout(PAGE_MAX, request_page::<K>(&self.client, &self.path, &params));
        let text = text.await.unwrap_or_else(|_| Err(no_response(PAGE_MAX))).map_err(end_of)?;
        let page: Result<ObjectList<Decoded<K>>, _> = serde_json::from_str(&text);
        let page = page.map_err(|error| RequestEnd::Failed(kube::Error::SerdeError(error)))?;
        let present = page.metadata.resource_version.as_deref().map_or(0, number);
        match present < *self.newest && !plan::sabotaged!(StaleListBelieved) {
            true => Err(RequestEnd::Restored),
            false => Ok(()),
        }
    }

    /// Forwards the changes after `self.version` until the watch ends.
    async fn watch_once(&mut self) -> RequestEnd {
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let started = tokio::select! {
            biased;
            () = self.relist.asked() => return RequestEnd::Asked,
            started = timeout(RESPONSE_MAX, self.watches.watch(&params, &self.version)) => started,
        };
        let mut events = match started {
            Ok(Ok(events)) => events.boxed(),
            Ok(Err(error)) => return end_of(error),
            Err(_) => return RequestEnd::Failed(no_response(RESPONSE_MAX)),
        };
        loop {
            let event = tokio::select! {
                biased;
                // A requested list comes first, because events that are ready may be old.
                () = self.relist.asked() => return RequestEnd::Asked,
                event = timeout(SILENCE_MAX, events.next()) => match event {
                    Ok(event) => event,
                    Err(_) => return RequestEnd::Silent(no_event()),
                },
            };
            // The response to the request does not count: a proxy may send it and then keep all events back. A regular end
            // counts, because a kind may have no events.
            if matches!(event, None | Some(Ok(_))) {
                self.metrics.heard();
            }
            let change = match event {
                None => return RequestEnd::Closed,
                Some(Err(error @ (kube::Error::Api(_) | kube::Error::Service(_)))) => return end_of(error),
                Some(Err(error)) => return RequestEnd::Broken(error),
                Some(Ok(Received::Error(status))) => return end_of(kube::Error::Api(status)),
                Some(Ok(Received::Bookmark(bookmark))) => {
                    self.reached(bookmark.metadata.resource_version);
                    continue;
                }
                Some(Ok(Received::Added(object) | Received::Modified(object))) => {
                    self.reached(version_of(object.meta()));
                    self.note_forwarded(&object);
                    match is_ignored(&object) {
                        true => Change::Deleted(Box::new(object.meta().clone())),
                        false => Change::Applied(Box::new(kept_of(object, self.reading))),
                    }
                }
                Some(Ok(Received::Deleted(object))) => {
                    self.reached(version_of(object.meta()));
                    self.forwarded.remove(&key_of(object.meta()));
                    Change::Deleted(Box::new(object.meta().clone()))
                }
            };
            if !(self.send)(WatchEvent::Changed(change)) {
                return RequestEnd::ReceiverGone;
            }
        }
    }

    /// Whether an object in a list is at least as new as the version that was forwarded. An older one shows that etcd
    /// was restored from a copy with a raised revision, as `etcdutl snapshot restore --bump-revision` does.
    fn is_as_new_as_forwarded(&self, object: &Decoded<K>) -> bool {
        let forwarded = self.forwarded.get(&key_of(object.meta()));
        let is_as_new = |forwarded: &u64| version(object.meta()) >= *forwarded;
        forwarded.is_none_or(is_as_new) || plan::sabotaged!(StaleListBelieved)
    }

    fn note_forwarded(&mut self, object: &Decoded<K>) {
        if self.reading.ignores_older {
            self.forwarded.insert(key_of(object.meta()), version(object.meta()));
        }
    }

    /// Notes that all changes up to a version were forwarded.
    fn reached(&mut self, version: String) {
        if !version.is_empty() {
            *self.newest = number(&version).max(*self.newest);
            self.version = version;
        }
    }
}

/// Why a list is not complete.
enum NotListed {
    /// A request failed.
    Failed(kube::Error),
    /// etcd was restored from a copy.
    Restored,
    /// The receiver no longer exists.
    ReceiverGone,
}

impl From<kube::Error> for NotListed {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error)
    }
}

/// Requests a page of a list.
async fn request_page<K: Resource>(
    client: &Client,
    path: &str,
    params: &ListParams,
) -> Result<String, kube::Error> {
    let request = Request::new(path);
    let request = if K::metadata_api() { request.list_metadata(params) } else { request.list(params) };
    client.request_text(request.map_err(kube::Error::BuildRequest)?).await
}

/// What the receiver keeps of an object. Most objects consist mainly of metadata that nobody needs.
fn kept_of<K: Resource, L>(mut object: Decoded<K>, reading: &mut Reading<impl FnMut(K) -> L>) -> Decoded<L> {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    if let (Annotations::Only(names), Some(annotations)) = (reading.annotations, &mut metadata.annotations) {
        annotations.retain(|name, _| names.contains(&name.as_str()));
    }
    object.map(&mut reading.keep)
}

/// Why a request failed: `Expired` if the version or the kind is gone, otherwise `Failed`.
fn end_of(error: kube::Error) -> RequestEnd {
    match &error {
        kube::Error::Api(status) if matches!(status.code, 404 | 410) => RequestEnd::Expired(error),
        _ => RequestEnd::Failed(error),
    }
}

/// The error of a request without a response.
pub fn no_response(within: Duration) -> kube::Error {
    kube::Error::Service(format!("the apiserver did not respond within {within:?}").into())
}

/// The error of a watch that was silent for too long.
fn no_event() -> kube::Error {
    kube::Error::Service(format!("the watch was silent for {SILENCE_MAX:?}").into())
}

/// A deliberate defect for the simulator: an undecodable object counts as absent.
fn is_ignored<K>(object: &Decoded<K>) -> bool {
    matches!(object, Decoded::Undecodable(_)) && plan::sabotaged!(UndecodableReadAsAbsent)
}

/// Whether the apiserver does not serve the watched kind.
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn key_of(metadata: &ObjectMeta) -> (String, String) {
    let (namespace, name) = names_of(metadata);
    (namespace.to_owned(), name.to_owned())
}

fn version_of(metadata: &ObjectMeta) -> String {
    metadata.resource_version.clone().unwrap_or_default()
}

/// The `resourceVersion` of an object as a number, to compare versions. 0 if it is not a number.
pub fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().map_or(0, number)
}

fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests;
