//! The simulated apiserver: a store with versions, watches, finalizers, status subresources and conflicts.
//!
//! In: the requests of a `kube::Client`. Out: the responses of a kube-apiserver, in every respect that this controller
//! can observe. It never discards an event during a run, except by a requested compaction.
//!
//! The file is long because the store, its watches and the rules of each verb share one lock, so no request sees a
//! partial change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The plural name, used in paths.
    pub plural: &'static str,
    /// The kind, as in objects.
    pub kind: &'static str,
    /// Group and version.
    pub api_version: &'static str,
    /// Whether it has a status subresource, and a generation that counts changes of the spec.
    pub has_status: bool,
}

impl Kind {
    fn named(plural: &str) -> Option<Self> {
        KINDS.iter().find(|kind| kind.plural == plural).copied()
    }

    /// Whether a PUT is accepted without a `resourceVersion`.
    fn is_replaced_blindly(&self) -> bool {
        matches!(self.plural, "nodes" | "pods")
    }

    /// Whether a PUT creates an object that does not exist.
    fn is_created_by_replacing(&self) -> bool {
        self.plural == "leases"
    }

    fn is_namespaced(&self) -> bool {
        !matches!(self.plural, "nodes" | "netipallocations" | "globalinclusterippools")
    }
}

/// All kinds that the apiserver serves.
pub const KINDS: [Kind; 17] = [
    Kind { plural: "nodes", kind: "Node", api_version: "v1", has_status: false },
    Kind { plural: "pods", kind: "Pod", api_version: "v1", has_status: false },
    Kind { plural: "deployments", kind: "Deployment", api_version: "apps/v1", has_status: false },
    Kind { plural: "statefulsets", kind: "StatefulSet", api_version: "apps/v1", has_status: false },
    Kind { plural: "daemonsets", kind: "DaemonSet", api_version: "apps/v1", has_status: false },
    Kind { plural: "replicasets", kind: "ReplicaSet", api_version: "apps/v1", has_status: false },
    Kind { plural: "events", kind: "Event", api_version: "events.k8s.io/v1", has_status: false },
    Kind { plural: "leases", kind: "Lease", api_version: "coordination.k8s.io/v1", has_status: false },
    Kind {
        plural: "netipallocations",
        kind: "NetIPAllocation",
        api_version: "netinfra.darkbrains.com/v1alpha1",
        has_status: true,
    },
    Kind {
        plural: "floatingippools",
        kind: "FloatingIPPool",
        api_version: "flipop.digitalocean.com/v1alpha1",
        has_status: true,
    },
    Kind {
        plural: "nodednsrecordsets",
        kind: "NodeDNSRecordSet",
        api_version: "flipop.digitalocean.com/v1alpha1",
        has_status: true,
    },
    Kind { plural: "clusters", kind: "Cluster", api_version: "cluster.x-k8s.io/v1beta2", has_status: true },
    Kind {
        plural: "clusterclasses",
        kind: "ClusterClass",
        api_version: "cluster.x-k8s.io/v1beta2",
        has_status: true,
    },
    Kind {
        plural: "ipaddressclaims",
        kind: "IPAddressClaim",
        api_version: "ipam.cluster.x-k8s.io/v1beta2",
        has_status: true,
    },
    Kind {
        plural: "ipaddresses",
        kind: "IPAddress",
        api_version: "ipam.cluster.x-k8s.io/v1beta2",
        has_status: false,
    },
    Kind {
        plural: "inclusterippools",
        kind: "InClusterIPPool",
        api_version: "ipam.cluster.x-k8s.io/v1alpha2",
        has_status: true,
    },
    Kind {
        plural: "globalinclusterippools",
        kind: "GlobalInClusterIPPool",
        api_version: "ipam.cluster.x-k8s.io/v1alpha2",
        has_status: true,
    },
];

/// A change of an object.
#[derive(Clone, Debug)]
pub struct Event {
    /// The `resourceVersion` of the change.
    pub version: u64,
    /// The time of the change.
    pub at: Timestamp,
    /// The plural name of the kind.
    pub plural: &'static str,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub what: &'static str,
    /// The object after the change, or before its deletion.
    pub object: Arc<Value>,
    /// The line that a watch sends.
    pub line: Bytes,
}

/// The events of a kind after a version.
#[derive(Clone, Debug)]
pub enum After {
    /// The events, and the version that they are complete up to.
    Events(Vec<Event>, u64),
    /// The version was compacted. The watch gets [`expired`] and has to list again.
    Forgotten,
    /// The kind no longer exists, and the watch has received all its events. The watch ends.
    Absent,
}

/// The parameters of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The kind to watch.
    pub kind: Kind,
    /// The watch sends the events after this version. None: first the present objects, then the events after that.
    pub version: Option<u64>,
    /// The name of the only object to watch; all objects of the kind if None.
    pub name: Option<String>,
    /// Whether the client requests bookmarks.
    pub wants_bookmarks: bool,
}

/// The simulated apiserver. Clones share one store.
#[derive(Clone, Default)]
pub struct ApiServer {
    store: Arc<Mutex<Store>>,
    /// Wakes all watches in the order in which they wait. A tokio watch channel would wake them in random order.
    changed: Arc<Notify>,
}

#[derive(Clone, Default)]
struct Store {
    objects: BTreeMap<(&'static str, String, String), Arc<Value>>,
    /// CRDs that people have deleted or installed. All other kinds exist from the beginning.
    definitions: BTreeMap<&'static str, Definition>,
    /// Objects whose changes are rejected.
    refused: BTreeSet<(&'static str, String, String)>,
    events: Vec<Event>,
    version: u64,
    compacted: u64,
    uids: u64,
    now: Timestamp,
}

/// A copy of everything that an apiserver stores.
pub struct Backup(Store);

/// The CRD of a kind.
#[derive(Clone, Copy, Default)]
struct Definition {
    presence: Presence,
    /// The version at which the CRD was installed. A watch can't start before it.
    since: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Installed,
    /// The CRD is being deleted. It is gone as soon as its last object is gone.
    Terminating,
    Absent,
}

/// The object or collection that a request addresses.
struct Target {
    kind: Kind,
    namespace: String,
    name: Option<String>,
    is_status: bool,
}

type Refused = (StatusCode, &'static str, String);

impl ApiServer {
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Responds to a request other than a watch.
    pub fn answer(&self, request: &Request<Bytes>, now: Timestamp) -> Response<Bytes> {
        let mut store = self.lock();
        store.now = now;
        let before = store.version;
        let (status, body) = store.handle(request);
        let version = store.version;
        drop(store);
        if version != before {
            self.changed.notify_waiters();
        }
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = status;
        response
    }

    /// Edits an object as a person does: without a precondition, status included.
    pub fn edit(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        now: Timestamp,
        change: impl FnOnce(&mut Value),
    ) {
        self.by_hand(plural, now, |store, kind| {
            let key = (kind.plural, namespace.to_owned(), name.to_owned());
            if let Some(present) = store.objects.get(&key).cloned() {
                let mut edited = Value::clone(&present);
                change(&mut edited);
                store.put(kind, key, &present, edited);
            }
        });
    }

    /// Creates an object, unless it exists or its CRD is being deleted.
    pub fn create(&self, plural: &str, object: &Value, now: Timestamp) {
        self.by_hand(plural, now, |store, kind| {
            let namespace = text(object, &["metadata", "namespace"]).to_owned();
            _ = store.create(&Target { kind, namespace, name: None, is_status: false }, object.clone());
        });
    }

    /// Deletes an object. If it has finalizers, it is only marked as deleted.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str, now: Timestamp) {
        self.by_hand(plural, now, |store, kind| {
            let (namespace, name) = (namespace.to_owned(), Some(name.to_owned()));
            _ = store.delete(&Target { kind, namespace, name, is_status: false }, &Value::Null);
        });
    }

    /// Deletes the CRD of a kind and all its objects, as `kubectl delete crd` does. The kind is served until the last
    /// object is gone, but no object can be created.
    pub fn remove_kind(&self, plural: &str, now: Timestamp) {
        self.by_hand(plural, now, |store, kind| {
            if store.definition(kind.plural).presence == Presence::Absent {
                return;
            }
            store.definitions.entry(kind.plural).or_default().presence = Presence::Terminating;
            let keys: Vec<_> = store.of_kind(kind).map(|(key, _)| key.clone()).collect();
            for (_, namespace, name) in keys {
                let target = Target { kind, namespace, name: Some(name), is_status: false };
                _ = store.delete(&target, &Value::Null);
            }
            store.end_without_objects(kind);
        });
    }

    /// Installs the CRD of a kind. Has no effect while a deleted CRD is still terminating.
    pub fn install_kind(&self, plural: &str, now: Timestamp) {
        self.by_hand(plural, now, |store, kind| {
            if store.definition(kind.plural).presence == Presence::Absent {
                // A new CRD gets a version too, so a watch of the old CRD's objects can't continue with the new ones.
                store.version += 1;
                let installed = Definition { presence: Presence::Installed, since: store.version };
                store.definitions.insert(kind.plural, installed);
            }
        });
    }

    /// Whether a kind is served. A deleted CRD is served until its last object is gone.
    pub fn has_kind(&self, plural: &str) -> bool {
        Kind::named(plural).is_some_and(|kind| self.lock().is_served(kind))
    }

    fn by_hand(&self, plural: &str, now: Timestamp, act: impl FnOnce(&mut Store, Kind)) {
        let Some(kind) = Kind::named(plural) else { return };
        let mut store = self.lock();
        store.now = now;
        act(&mut store, kind);
        drop(store);
        self.changed.notify_waiters();
    }

    /// Returns all objects of a kind.
    pub fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        let Some(kind) = Kind::named(plural) else { return Vec::new() };
        self.lock().of_kind(kind).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Returns all objects of a kind and the resourceVersion of that list.
    pub fn present(&self, kind: Kind) -> (Vec<Arc<Value>>, u64) {
        let store = self.lock();
        (store.of_kind(kind).map(|(_, object)| Arc::clone(object)).collect(), store.version)
    }

    /// A copy of everything, like a backup of etcd.
    pub fn backup(&self) -> Backup {
        Backup(self.lock().clone())
    }

    /// Replaces everything by an earlier copy. Versions go back, and watches from later versions get nothing.
    pub fn restore(&self, Backup(store): Backup) {
        *self.lock() = store;
        self.changed.notify_waiters();
    }

    /// The list of a kind as it was at a time.
    pub fn list_at(&self, kind: Kind, at: Timestamp) -> Value {
        let store = self.lock();
        let past = store.events.iter().take_while(|event| event.at <= at);
        let (mut objects, mut version) = (BTreeMap::new(), 0);
        for event in past {
            version = event.version;
            if event.plural == kind.plural {
                let metadata = &event.object["metadata"];
                let key = (text(metadata, &["namespace"]).to_owned(), text(metadata, &["name"]).to_owned());
                match event.what {
                    "DELETED" => _ = objects.remove(&key),
                    _ => _ = objects.insert(key, Value::clone(&event.object)),
                }
            }
        }
        list_of(kind, version, objects.into_values().collect())
    }

    /// Returns one object.
    pub fn one(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let kind = Kind::named(plural)?;
        self.lock().objects.get(&(kind.plural, namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Returns the object that a request addresses.
    pub fn meant(&self, request: &Request<Bytes>) -> Option<Arc<Value>> {
        let target = target(request.uri().path())?;
        self.lock().objects.get(&key(&target)).cloned()
    }

    /// Rejects all changes of an object, as an admission policy does, or accepts them again.
    pub fn refuse(&self, plural: &str, namespace: &str, name: &str, is_refused: bool) {
        let Some(kind) = Kind::named(plural) else { return };
        let key = (kind.plural, namespace.to_owned(), name.to_owned());
        let refused = &mut self.lock().refused;
        _ = if is_refused { refused.insert(key) } else { refused.remove(&key) };
    }

    /// When an object was last changed.
    pub fn changed_at(&self, object: &Value) -> Option<Timestamp> {
        let version: u64 = text(object, &["metadata", "resourceVersion"]).parse().ok()?;
        let store = self.lock();
        let at = store.events.binary_search_by_key(&version, |event| event.version).ok()?;
        Some(store.events[at].at)
    }

    /// Whether an object of these kinds has changed after a version, and the current version.
    pub fn has_changed(&self, plurals: &[&str], version: u64) -> (bool, u64) {
        let store = self.lock();
        let first = store.events.partition_point(|event| event.version <= version);
        (store.events[first..].iter().any(|event| plurals.contains(&event.plural)), store.version)
    }

    /// When an object of this kind began to meet the predicate that it still meets. The earliest time, if several
    /// objects meet it.
    pub fn holds_since(&self, plural: &str, holds: impl Fn(&Value) -> bool) -> Option<Timestamp> {
        let store = self.lock();
        let of_kind = |event: &&Event| event.plural == plural && event.what != "DELETED";
        let uid = |object: &Value| object["metadata"]["uid"].clone();
        let since = |object: &Value| {
            let uid = uid(object);
            let history = store.events.iter().rev().filter(of_kind);
            let history = history.filter(|event| event.object["metadata"]["uid"] == uid);
            history.take_while(|event| holds(&event.object)).last().map(|event| event.at)
        };
        let objects = store.objects.iter().filter(|((of, ..), object)| *of == plural && holds(object));
        objects.filter_map(|(_, object)| since(object)).min()
    }

    /// Compacts the events so far. A watch from an earlier version has to list again.
    pub fn compact(&self) {
        let mut store = self.lock();
        store.compacted = store.version;
    }

    /// Number of changes so far, except those of leases.
    pub fn changes(&self) -> usize {
        self.lock().events.iter().filter(|event| event.plural != "leases").count()
    }

    /// Returns every version of every object of a kind.
    pub fn history(&self, plural: &str) -> Vec<Arc<Value>> {
        let store = self.lock();
        let events = store.events.iter().filter(|event| event.plural == plural);
        events.map(|event| Arc::clone(&event.object)).collect()
    }

    /// Returns the events of a kind after a version.
    pub fn events_after(&self, plural: &str, version: u64) -> After {
        let store = self.lock();
        let Definition { presence, since } = store.definition(plural);
        let is_absent = presence == Presence::Absent;
        if version < since.max(store.compacted) {
            return if is_absent { After::Absent } else { After::Forgotten };
        }
        let first = store.events.partition_point(|event| event.version <= version);
        let events: Vec<_> =
            store.events[first..].iter().filter(|event| event.plural == plural).cloned().collect();
        if is_absent && events.is_empty() {
            return After::Absent;
        }
        After::Events(events, store.version)
    }

    /// Waits for the next change, but not longer than `longest`.
    pub async fn changed(&self, longest: Duration) {
        _ = tokio::time::timeout(longest, self.changed.notified()).await;
    }
}

/// Returns the parameters of a watch request; None for other requests.
pub fn watched(request: &Request<Bytes>) -> Option<Watch> {
    let query = query(request);
    let is_true = |key: &str| query.get(key).is_some_and(|value| value == "true");
    if !is_true("watch") {
        return None;
    }
    let kind = target(request.uri().path())?.kind;
    let version = query.get("resourceVersion").and_then(|text| text.parse().ok());
    Some(Watch { kind, version, name: named(&query), wants_bookmarks: is_true("allowWatchBookmarks") })
}

/// The kind that a request lists or watches.
pub fn read_kind(request: &Request<Bytes>) -> Option<Kind> {
    let target = target(request.uri().path()).filter(|target| target.name.is_none());
    target.filter(|_| request.method() == Method::GET).map(|target| target.kind)
}

fn named(query: &BTreeMap<String, String>) -> Option<String> {
    let selector = query.get("fieldSelector")?.replace("%3D", "=");
    selector.strip_prefix("metadata.name=").map(ToOwned::to_owned)
}

fn query(request: &Request<Bytes>) -> BTreeMap<String, String> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn target(path: &str) -> Option<Target> {
    let mut parts = path.trim_matches('/').split('/').peekable();
    match parts.next()? {
        "api" => _ = parts.next()?,
        "apis" => _ = (parts.next()?, parts.next()?),
        _ => return None,
    }
    let mut namespace = String::new();
    if parts.peek() == Some(&"namespaces") {
        parts.next();
        namespace = parts.next()?.to_owned();
    }
    let plural = parts.next()?;
    let kind = Kind::named(plural)?;
    let name = parts.next().map(ToOwned::to_owned);
    Some(Target { kind, namespace, name, is_status: parts.next() == Some("status") })
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    })
}

/// The event that ends a watch from a compacted version.
pub fn expired() -> Value {
    json!({"type": "ERROR", "object": refusal(StatusCode::GONE, "Expired", "too old resource version")})
}

/// The bookmark event: the watch has received all events up to this version. A real apiserver sends it to clients that
/// request bookmarks: about every minute, and also two seconds before a watch ends. It sends none if the version is not
/// later than the one that the watch started from. A real bookmark also has the required fields of its kind, all of
/// them empty.
pub fn bookmark(kind: Kind, version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string()});
    let object = json!({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata});
    json!({"type": "BOOKMARK", "object": object})
}

fn not_found(target: &Target) -> Refused {
    let name = target.name.as_deref().unwrap_or_default();
    (StatusCode::NOT_FOUND, "NotFound", format!("{} \"{name}\" not found", target.kind.plural))
}

fn conflict(target: &Target) -> Refused {
    let name = target.name.as_deref().unwrap_or_default();
    let message = format!("Operation cannot be fulfilled on {} \"{name}\"", target.kind.plural);
    (StatusCode::CONFLICT, "Conflict", message)
}

/// Whether a request is a merge patch. The simulated apiserver accepts no other patch: it can't merge an apply patch
/// correctly.
fn is_merge_patch(request: &Request<Bytes>) -> bool {
    let content = request.headers().get(CONTENT_TYPE).and_then(|content| content.to_str().ok());
    content.is_some_and(|content| content.split(';').next() == Some("application/merge-patch+json"))
}

fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter().fold(value, |value, key| &value[*key]).as_str().unwrap_or_default()
}

/// The response to a discovery request: the list of API groups, or the kinds of one group version.
fn discovery(path: &str, kinds: impl Iterator<Item = Kind>) -> Option<Value> {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    match parts[..] {
        ["apis"] => {
            let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
            for kind in kinds {
                let Some((group, version)) = kind.api_version.split_once('/') else { continue };
                let versions = groups.entry(group).or_default();
                let named = json!({"groupVersion": kind.api_version, "version": version});
                if !versions.contains(&named) {
                    versions.push(named);
                }
            }
            let groups: Vec<_> = groups
                .iter()
                .map(|(name, versions)| json!({"name": name, "versions": versions, "preferredVersion": versions[0]}))
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group, version] => {
            let named = format!("{group}/{version}");
            let resource = |kind: Kind| {
                json!({
                    "name": kind.plural, "singularName": kind.kind.to_lowercase(), "kind": kind.kind,
                    "namespaced": kind.is_namespaced(), "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
                })
            };
            let kinds = kinds.filter(|kind| kind.api_version == named);
            let resources: Vec<_> = kinds.map(resource).collect();
            (!resources.is_empty()).then(|| {
                json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": named, "resources": resources,
                })
            })
        }
        _ => None,
    }
}

impl Store {
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&(&'static str, String, String), &Arc<Value>)> {
        let first = (kind.plural, String::new(), String::new());
        self.objects.range(first..).take_while(move |((plural, ..), _)| *plural == kind.plural)
    }

    /// The CRD of a kind, or the default if nobody has changed it.
    fn definition(&self, plural: &str) -> Definition {
        self.definitions.get(plural).copied().unwrap_or_default()
    }

    fn is_served(&self, kind: Kind) -> bool {
        self.definition(kind.plural).presence != Presence::Absent
    }

    /// Removes a terminating CRD once its last object is gone.
    fn end_without_objects(&mut self, kind: Kind) {
        let is_terminating = self.definition(kind.plural).presence == Presence::Terminating;
        if is_terminating && self.of_kind(kind).next().is_none() {
            self.definitions.entry(kind.plural).or_default().presence = Presence::Absent;
        }
    }

    fn handle(&mut self, request: &Request<Bytes>) -> (StatusCode, String) {
        let path = request.uri().path();
        let served = KINDS.into_iter().filter(|kind| self.is_served(*kind));
        if let Some(kinds) = discovery(path, served) {
            return (StatusCode::OK, kinds.to_string());
        }
        let Some(target) = target(path).filter(|target| self.is_served(target.kind)) else {
            // A real apiserver has no handler for such a path, so the response is not a `Status`.
            return (StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
        };
        let is_change = matches!(*request.method(), Method::PUT | Method::PATCH);
        if is_change && self.refused.contains(&key(&target)) {
            // An apiserver reports etcd's rejection of a too large object as an internal error.
            let (code, reason, message) = match target.kind.plural {
                "floatingippools" => {
                    (StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "etcdserver: request is too large")
                }
                _ => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "denied by policy"),
            };
            return (code, refusal(code, reason, message).to_string());
        }
        match self.carry_out(&target, request) {
            Ok((status, object)) => (status, object.to_string()),
            Err((code, reason, message)) => (code, refusal(code, reason, &message).to_string()),
        }
    }

    fn carry_out(
        &mut self,
        target: &Target,
        request: &Request<Bytes>,
    ) -> Result<(StatusCode, Value), Refused> {
        let body = || {
            let invalid = |_| (StatusCode::BAD_REQUEST, "BadRequest", "the request can't be read".to_owned());
            serde_json::from_slice::<Value>(request.body()).map_err(invalid)
        };
        let ok = |object: Value| (StatusCode::OK, object);
        match (request.method().clone(), &target.name) {
            (Method::GET, None) => Ok(ok(self.list(target, named(&query(request)).as_deref()))),
            (Method::GET, Some(_)) => {
                let found = self.objects.get(&key(target)).ok_or_else(|| not_found(target))?;
                Ok(ok(Value::clone(found)))
            }
            (Method::POST, None) => self.create(target, body()?).map(|object| (StatusCode::CREATED, object)),
            (Method::PUT, Some(_)) => self.replace(target, body()?),
            (Method::PATCH, Some(_)) if !is_merge_patch(request) => {
                let message = "the simulated apiserver accepts only merge patches".to_owned();
                Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message))
            }
            (Method::PATCH, Some(_)) => self.patch(target, &body()?).map(ok),
            (Method::DELETE, Some(_)) if request.body().is_empty() => {
                self.delete(target, &Value::Null).map(ok)
            }
            (Method::DELETE, Some(_)) => self.delete(target, &body()?["preconditions"]).map(ok),
            _ => Err((StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", String::new())),
        }
    }

    fn list(&self, target: &Target, name: Option<&str>) -> Value {
        let is_meant = |(_, namespace, named): &(&str, String, String)| {
            (target.namespace.is_empty() || *namespace == target.namespace)
                && name.is_none_or(|name| named == name)
        };
        let of_kind = self.of_kind(target.kind);
        let items: Vec<_> =
            of_kind.filter(|(key, _)| is_meant(key)).map(|(_, object)| Value::clone(object)).collect();
        list_of(target.kind, self.version, items)
    }

    fn create(&mut self, target: &Target, mut object: Value) -> Result<Value, Refused> {
        let name = text(&object, &["metadata", "name"]).to_owned();
        if self.definition(target.kind.plural).presence != Presence::Installed {
            let why = "create not allowed while custom resource definition is terminating";
            let message = format!("{} \"{name}\" is forbidden: {why}", target.kind.plural);
            return Err((StatusCode::FORBIDDEN, "Forbidden", message));
        }
        let key = (target.kind.plural, target.namespace.clone(), name.clone());
        if self.objects.contains_key(&key) {
            let message = format!("{} \"{name}\" already exists", target.kind.plural);
            return Err((StatusCode::CONFLICT, "AlreadyExists", message));
        }
        self.uids += 1;
        let metadata = &mut object["metadata"];
        metadata["uid"] = format!("00000000-0000-4000-8000-{:012}", self.uids).into();
        metadata["creationTimestamp"] = moment(self.now).into();
        if !target.namespace.is_empty() {
            metadata["namespace"] = target.namespace.clone().into();
        }
        if target.kind.has_status {
            metadata["generation"] = 1.into();
            remove(&mut object, "status");
        }
        object["apiVersion"] = target.kind.api_version.into();
        object["kind"] = target.kind.kind.into();
        tidy(&mut object);
        Ok(self.happened(target.kind, key, "ADDED", object))
    }

    fn replace(&mut self, target: &Target, object: Value) -> Result<(StatusCode, Value), Refused> {
        let found = self.objects.get(&key(target)).cloned();
        if found.is_none() && !target.kind.is_created_by_replacing() {
            return Err(not_found(target));
        }
        // A UID is a precondition: a newer object of the same name must not be replaced.
        let uid = text(&object, &["metadata", "uid"]);
        let is_another = |found: &Value| text(found, &["metadata", "uid"]) != uid;
        if !uid.is_empty() && found.as_deref().is_none_or(is_another) {
            return Err(conflict(target));
        }
        let Some(present) = found else {
            return self.create(target, object).map(|created| (StatusCode::CREATED, created));
        };
        if text(&object, &["metadata", "resourceVersion"]).is_empty() && !target.kind.is_replaced_blindly() {
            let message = "metadata.resourceVersion: must be specified for an update".to_owned();
            return Err((StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message));
        }
        self.check_version(target, &present, &object)?;
        let mut replaced = if target.is_status {
            let mut replaced = Value::clone(&present);
            match object.get("status") {
                Some(status) => replaced["status"] = status.clone(),
                None => remove(&mut replaced, "status"),
            }
            replaced
        } else {
            object
        };
        keep_system_fields(&mut replaced, &present, target);
        check_finalizers(&present, &replaced)?;
        Ok((StatusCode::OK, self.put(target.kind, key(target), &present, replaced)))
    }

    fn patch(&mut self, target: &Target, patch: &Value) -> Result<Value, Refused> {
        let present = self.objects.get(&key(target)).cloned().ok_or_else(|| not_found(target))?;
        self.check_version(target, &present, patch)?;
        let mut patched = Value::clone(&present);
        merge(&mut patched, patch);
        keep_system_fields(&mut patched, &present, target);
        check_finalizers(&present, &patched)?;
        Ok(self.put(target.kind, key(target), &present, patched))
    }

    fn check_version(&self, target: &Target, present: &Value, sent: &Value) -> Result<(), Refused> {
        let version = text(sent, &["metadata", "resourceVersion"]);
        if version.is_empty() || version == text(present, &["metadata", "resourceVersion"]) {
            return Ok(());
        }
        Err(conflict(target))
    }

    /// Stores a new version of an existing object. An unchanged object gets no new version.
    fn put(
        &mut self,
        kind: Kind,
        key: (&'static str, String, String),
        present: &Value,
        mut object: Value,
    ) -> Value {
        if kind.has_status && object["spec"] != present["spec"] {
            let generation = present["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            object["metadata"]["generation"] = generation.into();
        }
        tidy(&mut object);
        if object == *present {
            return object;
        }
        let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
        let has_finalizers = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if is_deleted && !has_finalizers {
            // The event contains the object as last stored, with the version of the deletion.
            self.happened(kind, key, "DELETED", present.clone());
            return object;
        }
        self.happened(kind, key, "MODIFIED", object)
    }

    /// Deletes an object if the preconditions match.
    fn delete(&mut self, target: &Target, preconditions: &Value) -> Result<Value, Refused> {
        let present = self.objects.get(&key(target)).ok_or_else(|| not_found(target))?;
        let mut object = Value::clone(present);
        for field in ["uid", "resourceVersion"] {
            let meant = &preconditions[field];
            if !meant.is_null() && *meant != object["metadata"][field] {
                let message = format!("Precondition failed: {field} in precondition: {meant}");
                return Err((StatusCode::CONFLICT, "Conflict", message));
            }
        }
        let has_finalizers = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !has_finalizers {
            self.happened(target.kind, key(target), "DELETED", object);
            return Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = moment(self.now).into();
            // Kinds without a generation don't get one.
            if let Some(generation) = object["metadata"]["generation"].as_i64() {
                object["metadata"]["generation"] = (generation + 1).into();
            }
            return Ok(self.happened(target.kind, key(target), "MODIFIED", object));
        }
        Ok(object)
    }

    fn happened(
        &mut self,
        kind: Kind,
        key: (&'static str, String, String),
        what: &'static str,
        mut object: Value,
    ) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = Bytes::from(format!("{{\"type\":\"{what}\",\"object\":{object}}}\n"));
        let (version, at, plural) = (self.version, self.now, kind.plural);
        let stored = Arc::new(object.clone());
        if what == "DELETED" {
            self.objects.remove(&key);
            self.end_without_objects(kind);
        } else {
            self.objects.insert(key, Arc::clone(&stored));
        }
        self.events.push(Event { version, at, plural, what, object: stored, line });
        object
    }
}

fn list_of(kind: Kind, version: u64, items: Vec<Value>) -> Value {
    json!({
        "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version,
        "metadata": {"resourceVersion": version.to_string()}, "items": items,
    })
}

fn key(target: &Target) -> (&'static str, String, String) {
    (target.kind.plural, target.namespace.clone(), target.name.clone().unwrap_or_default())
}

/// Removes empty metadata fields.
fn tidy(object: &mut Value) {
    for field in ["labels", "annotations", "finalizers"] {
        let is_empty = match &object["metadata"][field] {
            Value::Object(fields) => fields.is_empty(),
            Value::Array(items) => items.is_empty(),
            other => other.is_null(),
        };
        if is_empty {
            remove(&mut object["metadata"], field);
        }
    }
}

/// Rejects new finalizers on an object that is being deleted.
fn check_finalizers(present: &Value, changed: &Value) -> Result<(), Refused> {
    let of = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = of(present);
    let is_deleted = !present["metadata"]["deletionTimestamp"].is_null();
    if is_deleted && of(changed).iter().any(|finalizer| !before.contains(finalizer)) {
        let message = "metadata.finalizers: Forbidden: no new finalizers can be added".to_owned();
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message));
    }
    Ok(())
}

/// Restores the fields that a client can't change: identity, times and versions, and the status if the request is not
/// for the status subresource.
fn keep_system_fields(object: &mut Value, present: &Value, target: &Target) {
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion"] {
        match present["metadata"].get(field) {
            Some(value) => object["metadata"][field] = value.clone(),
            None => remove(&mut object["metadata"], field),
        }
    }
    if target.kind.has_status && !target.is_status {
        match present.get("status") {
            Some(status) => object["status"] = status.clone(),
            None => remove(object, "status"),
        }
    }
}

fn remove(value: &mut Value, field: &str) {
    if let Value::Object(fields) = value {
        fields.remove(field);
    }
}

/// Applies a JSON merge patch.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(fields) = into else { return };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// A time in the format of Kubernetes, in whole seconds.
pub fn moment(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLURAL: &str = "netipallocations";
    const GROUP: &str = "/apis/netinfra.darkbrains.com/v1alpha1";
    const MERGE_PATCH: &str = "application/merge-patch+json";

    fn ask(api: &ApiServer, method: Method, path: &str, content: &str, body: &Value) -> StatusCode {
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content);
        let request = request.body(Bytes::from(body.to_string())).unwrap();
        api.answer(&request, Timestamp::default()).status()
    }

    #[test]
    fn server_side_apply_is_rejected() {
        let api = ApiServer::default();
        api.create(PLURAL, &json!({"metadata": {"name": "a"}}), Timestamp::default());
        let path = format!("{GROUP}/{PLURAL}/a");
        let patch = |content: &str| ask(&api, Method::PATCH, &path, content, &json!({"spec": {}}));
        assert_eq!(patch("application/apply-patch+yaml"), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(patch(MERGE_PATCH), StatusCode::OK);
    }

    #[test]
    fn a_watch_request_can_ask_for_bookmarks() {
        let watch = |query: &str| {
            watched(&Request::get(format!("{GROUP}/{PLURAL}?{query}")).body(Bytes::new()).unwrap())
        };
        assert_eq!(watch("resourceVersion=5"), None);
        let plain = watch("watch=true&resourceVersion=5").unwrap();
        assert_eq!((plain.kind.plural, plain.version, plain.wants_bookmarks), (PLURAL, Some(5), false));
        assert!(watch("watch=true&allowWatchBookmarks=true").unwrap().wants_bookmarks);
    }

    #[test]
    fn a_deleted_crd_is_served_until_its_last_object_is_gone() {
        let (api, now) = (ApiServer::default(), Timestamp::default());
        let (list, new) = (format!("{GROUP}/{PLURAL}"), json!({"metadata": {"name": "new"}}));
        let create = || ask(&api, Method::POST, &list, "application/json", &new);
        let get = |path: &str| ask(&api, Method::GET, path, "application/json", &Value::Null);
        api.create(PLURAL, &json!({"metadata": {"name": "free"}}), now);
        api.create(PLURAL, &json!({"metadata": {"name": "held", "finalizers": ["example.com/one"]}}), now);

        api.remove_kind(PLURAL, now);
        api.install_kind(PLURAL, now);
        assert!(api.has_kind(PLURAL));
        assert_eq!(api.all(PLURAL).len(), 1);
        assert_eq!((create(), get(&list)), (StatusCode::FORBIDDEN, StatusCode::OK));

        api.edit(PLURAL, "", "held", now, |object| object["metadata"]["finalizers"] = json!([]));
        api.create(PLURAL, &new, now);
        assert!(!api.has_kind(PLURAL));
        assert_eq!(api.all(PLURAL).len(), 0);
        assert_eq!([create(), get(&list), get(GROUP)], [StatusCode::NOT_FOUND; 3]);
        let After::Events(events, reached) = api.events_after(PLURAL, 0) else { panic!("no events") };
        let types: Vec<_> = events.iter().map(|event| event.what).collect();
        assert_eq!(types, ["ADDED", "ADDED", "DELETED", "MODIFIED", "DELETED"]);
        assert!(matches!(api.events_after(PLURAL, reached), After::Absent));

        api.install_kind(PLURAL, now);
        assert!(matches!(api.events_after(PLURAL, reached), After::Forgotten));
        assert_eq!((get(GROUP), create()), (StatusCode::OK, StatusCode::CREATED));
    }
}
