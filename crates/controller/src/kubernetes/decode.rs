//! Decodes the objects of a watch or list one by one, so that an undecodable object never fails the others of its kind.
//!
//! In: the JSON of each object, which `kube` passes on unparsed. Out: the object, or an [`Undecodable`] with its
//! metadata and its JSON. An undecodable object is not absent: the controller keeps its last decoded version. If there
//! is none, it reserves the addresses and VMs that the JSON names.
//!
//! The JSON is scanned without recursion, so no depth of nesting can fail the scan or exhaust the stack.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::time::Instant;

/// An object, or the parts of an object that can't be decoded.
#[derive(Clone, Debug)]
pub enum Decoded<K> {
    /// The decoded object.
    Object(K),
    /// The object can't be decoded.
    Undecodable(Box<Undecodable>),
}

/// An object that can't be decoded.
#[derive(Clone, Debug)]
pub struct Undecodable {
    /// Its metadata, or at least its name, namespace, UID, version and creation time.
    pub metadata: ObjectMeta,
    /// The field that can't be decoded, and why.
    pub error: Arc<str>,
    json: Arc<str>,
}

/// The identity of an object whose metadata can't be decoded either.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: String,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
}

impl<K: DeserializeOwned> Decoded<K> {
    fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        let error = match serde_json::from_str(json) {
            Ok(object) => return Ok(Self::Object(object)),
            Err(error) => {
                let error = format!("{}: {error}", path_at(json, error.column()));
                error.chars().take(ERROR_MAX).collect::<String>().into()
            }
        };
        let metadata = metadata(json)?;
        Ok(Self::Undecodable(Box::new(Undecodable { metadata, error, json: json.into() })))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Decoded<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(from)?;
        Self::from_json(json.get()).map_err(D::Error::custom)
    }
}

impl<K> From<K> for Decoded<K> {
    fn from(object: K) -> Self {
        Self::Object(object)
    }
}

impl<K> Decoded<K> {
    /// Converts the decoded object.
    pub fn map<L>(self, change: impl FnOnce(K) -> L) -> Decoded<L> {
        match self {
            Self::Object(object) => Decoded::Object(change(object)),
            Self::Undecodable(undecodable) => Decoded::Undecodable(undecodable),
        }
    }
}

impl<K: Resource> Resource for Decoded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn api_version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::api_version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Object(object) => object.meta(),
            Self::Undecodable(undecodable) => &undecodable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Object(object) => object.meta_mut(),
            Self::Undecodable(undecodable) => &mut undecodable.metadata,
        }
    }
}

/// The most characters of an error, which can contain a value as large as the object.
const ERROR_MAX: usize = 500;

/// The most names in a field path.
const PATH_MAX: usize = 12;

/// The path of the field at this offset of the JSON, for error messages.
fn path_at(json: &str, offset: usize) -> String {
    /// In an object the name of the current field, in a list the index of the current item.
    enum Within {
        Object(Option<String>),
        List(usize),
    }
    let mut path: Vec<Within> = Vec::new();
    let mut bytes = json.bytes().enumerate().take(offset);
    while let Some((at, byte)) = bytes.next() {
        match (byte, path.last_mut()) {
            (b'{', _) => path.push(Within::Object(None)),
            (b'[', _) => path.push(Within::List(0)),
            (b'}' | b']', _) => _ = path.pop(),
            (b',', Some(Within::Object(name))) => *name = None,
            (b',', Some(Within::List(number))) => *number += 1,
            (b'"', within) => {
                let mut is_escaped = false;
                let end = bytes.find(|(_, byte)| {
                    let is_end = *byte == b'"' && !is_escaped;
                    is_escaped = *byte == b'\\' && !is_escaped;
                    is_end
                });
                if let (Some(Within::Object(name @ None)), Some((end, _))) = (within, end) {
                    *name = json.get(at + 1..end).map(ToOwned::to_owned);
                }
            }
            _ => {}
        }
    }
    let names = path.iter().take(PATH_MAX).filter_map(|within| match within {
        Within::Object(name) => name.clone(),
        Within::List(number) => Some(number.to_string()),
    });
    names.collect::<Vec<_>>().join(".")
}

/// The unparsed fields of a JSON object.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Decodes as much of the metadata as possible, without `managedFields`: they are nested as deeply as the object and
/// not needed.
fn metadata(json: &str) -> Result<ObjectMeta, serde_json::Error> {
    let fields: Fields<'_> = serde_json::from_str(json)?;
    let metadata = fields.get("metadata").map_or("{}", |metadata| metadata.get());
    let mut fields: Fields<'_> = serde_json::from_str(metadata)?;
    fields.remove("managedFields");
    if let Ok(metadata) = serde_json::from_str(&serde_json::to_string(&fields)?) {
        return Ok(metadata);
    }
    let Identity { name, namespace, uid, resource_version, creation_timestamp } =
        serde_json::from_str(metadata)?;
    let creation_timestamp = creation_timestamp.and_then(|text| text.parse().ok()).map(Time);
    Ok(ObjectMeta {
        name: Some(name),
        namespace,
        uid,
        resource_version,
        creation_timestamp,
        ..ObjectMeta::default()
    })
}

impl Undecodable {
    /// Decodes the part of the object at a path. None if that part can't be decoded.
    pub fn at<T: DeserializeOwned>(&self, path: &[&str]) -> Option<T> {
        let mut json = &*self.json;
        for name in path {
            let fields: Fields<'_> = serde_json::from_str(json).ok()?;
            json = fields.get(*name)?.get();
        }
        serde_json::from_str(json).ok()
    }

    /// Decodes the object without its status. Uses `spec` instead of the object's own spec, if given. Returns None if
    /// decoding fails.
    pub fn with_spec<K: DeserializeOwned>(&self, spec: Option<serde_json::Value>) -> Option<K> {
        let spec = match spec {
            Some(spec) => spec,
            None => self.at(&["spec"])?,
        };
        let metadata = serde_json::to_value(&self.metadata).ok()?;
        serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec})).ok()
    }

    /// Every string in the object, including strings in embedded JSON, and also the text between strings.
    pub fn strings(&self) -> impl Iterator<Item = &str> {
        self.json.split('"').map(|text| text.trim_end_matches('\\'))
    }

    /// Every IP address anywhere in the object.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let is_part = |byte: char| byte.is_ascii_hexdigit() || matches!(byte, '.' | ':');
        let runs = self.json.split(|byte| !is_part(byte)).map(|run| run.trim_end_matches('.'));
        let parsed = runs.filter(|run| run.len() > 2).flat_map(|run| {
            // A port may follow the address.
            let host = run.rsplit_once(':').map(|(host, _)| host);
            run.parse().ok().or_else(|| host.and_then(|host| host.parse().ok()))
        });
        parsed.collect()
    }
}

/// A change of the objects of a kind.
#[derive(Debug)]
pub enum Change<K> {
    /// All objects, after a relist.
    All(Vec<Decoded<K>>),
    /// An object was created or updated.
    Applied(Box<Decoded<K>>),
    /// An object was deleted.
    Deleted(Box<ObjectMeta>),
}

impl<K> Change<K> {
    /// Whether it is a change of one object.
    pub(crate) fn is_of_one(&self) -> bool {
        matches!(self, Self::Applied(_) | Self::Deleted(_))
    }
}

impl<K> Change<K> {
    /// Whether it contains all objects.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::All(_))
    }

    /// Converts the decoded objects.
    pub fn map<L>(self, change: impl Fn(K) -> L) -> Change<L> {
        match self {
            Self::All(all) => Change::All(all.into_iter().map(|one| one.map(&change)).collect()),
            Self::Applied(one) => Change::Applied(Box::new(one.map(change))),
            Self::Deleted(gone) => Change::Deleted(gone),
        }
    }

    /// Replaces each undecodable object by a stand-in. Objects without a stand-in are left out. Returns none if the
    /// only changed object has no stand-in.
    pub fn with_stand_ins(self, stand_in: impl Fn(Undecodable) -> Option<K>) -> Option<Settled<K>> {
        let settle = |one| match one {
            Decoded::Object(object) => Some(object),
            Decoded::Undecodable(undecodable) => stand_in(*undecodable),
        };
        Some(match self {
            Self::All(all) => Settled::All(all.into_iter().filter_map(settle).collect()),
            Self::Applied(one) => Settled::Applied(settle(*one)?),
            Self::Deleted(gone) => Settled::Deleted(gone),
        })
    }
}

/// A [`Change`] whose objects are all decoded or replaced by stand-ins.
#[derive(Debug)]
pub enum Settled<K> {
    /// All objects, after a relist.
    All(Vec<K>),
    /// An object was created or updated.
    Applied(K),
    /// An object was deleted.
    Deleted(Box<ObjectMeta>),
}

/// The undecodable objects, and when each was reported.
#[derive(Debug)]
pub struct Register<T> {
    entries: BTreeMap<(T, String, String), Entry>,
}

#[derive(Debug)]
struct Entry {
    uid: Option<String>,
    version: Option<String>,
    error: Arc<str>,
    /// Whether this version was reported.
    is_reported: bool,
    /// When any version of the object was last reported.
    last_report: Option<Instant>,
}

/// A report about an undecodable object.
#[derive(Debug, PartialEq, Eq)]
pub struct Report<T> {
    /// Its kind.
    pub kind: T,
    /// Its namespace. Empty if it is cluster-scoped.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: Option<String>,
    /// Why it can't be decoded.
    pub error: Arc<str>,
}

/// The shortest pause between two reports about one object. Each version is reported at most once.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The most reports at once.
const REPORTS_MAX: usize = 20;

impl<T> Default for Register<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Register<T> {
    /// Applies a change of a kind. `names` returns the namespace and the name of an object.
    pub fn observe<K>(&mut self, kind: T, change: &Change<K>, names: impl Fn(&K) -> (&str, &str)) {
        match change {
            Change::All(all) => {
                let present: BTreeSet<_> = all.iter().map(|one| key_of(kind, one, &names)).collect();
                self.entries.retain(|key, _| key.0 != kind || present.contains(key));
                all.iter().for_each(|one| self.observe_one(kind, one, &names));
            }
            Change::Applied(one) => self.observe_one(kind, one, names),
            Change::Deleted(gone) => {
                let (namespace, name) = names_of(gone);
                self.remove(kind, namespace, name);
            }
        }
    }

    /// Processes an object that was read.
    pub fn observe_one<K>(&mut self, kind: T, one: &Decoded<K>, names: impl Fn(&K) -> (&str, &str)) {
        if matches!(one, Decoded::Undecodable(_)) || !self.entries.is_empty() {
            self.set(key_of(kind, one, names), one);
        }
    }

    /// Forgets the objects of a kind.
    pub fn forget(&mut self, kind: T) {
        self.entries.retain(|key, _| key.0 != kind);
    }

    /// Processes the deletion of an object.
    pub fn remove(&mut self, kind: T, namespace: &str, name: &str) {
        if !self.entries.is_empty() {
            self.entries.remove(&(kind, namespace.to_owned(), name.to_owned()));
        }
    }

    fn set<K>(&mut self, key: (T, String, String), one: &Decoded<K>) {
        let Decoded::Undecodable(undecodable) = one else {
            self.entries.remove(&key);
            return;
        };
        let Undecodable { metadata, error, .. } = &**undecodable;
        let before = self.entries.get(&key);
        if before.is_some_and(|before| before.version == metadata.resource_version) {
            return;
        }
        let entry = Entry {
            uid: metadata.uid.clone(),
            version: metadata.resource_version.clone(),
            error: Arc::clone(error),
            is_reported: false,
            last_report: before.and_then(|before| before.last_report),
        };
        self.entries.insert(key, entry);
    }

    /// The namespaces and names of the undecodable objects of a kind.
    pub fn of(&self, kind: T) -> impl Iterator<Item = (&str, &str)> {
        let of_kind = self.entries.keys().filter(move |(of, ..)| *of == kind);
        of_kind.map(|(_, namespace, name)| (&**namespace, &**name))
    }

    /// Returns the reports that are due, logs them, and marks them as reported.
    pub fn due(&mut self, now: Instant) -> Vec<Report<T>> {
        let is_due = |entry: &Entry| {
            let was_reported = |at: Instant| now.saturating_duration_since(at) < REPORT_EVERY;
            !entry.is_reported && !entry.last_report.is_some_and(was_reported)
        };
        let due = self.entries.iter_mut().filter(|(_, entry)| is_due(entry)).take(REPORTS_MAX);
        due.map(|((kind, namespace, name), entry)| {
            (entry.is_reported, entry.last_report) = (true, Some(now));
            tracing::warn!(namespace, object = name, error = %entry.error, "failed to decode an object");
            Report {
                kind: *kind,
                namespace: namespace.clone(),
                name: name.clone(),
                uid: entry.uid.clone(),
                error: Arc::clone(&entry.error),
            }
        })
        .collect()
    }
}

/// The namespace and the name of an object.
pub fn names_of(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn key_of<T, K>(kind: T, one: &Decoded<K>, names: impl Fn(&K) -> (&str, &str)) -> (T, String, String) {
    let (namespace, name) = match one {
        Decoded::Object(object) => names(object),
        Decoded::Undecodable(undecodable) => names_of(&undecodable.metadata),
    };
    (kind, namespace.to_owned(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::NetIPAllocation;
    use kube::ResourceExt;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::{Value, json};

    use crate::addresses::slim::SlimNode;
    use crate::vips::watch::Cluster;

    fn undecodable<K: DeserializeOwned + std::fmt::Debug>(json: &str) -> Undecodable {
        match serde_json::from_str::<Decoded<K>>(json).unwrap() {
            Decoded::Undecodable(undecodable) => *undecodable,
            Decoded::Object(object) => panic!("decoded {object:?}"),
        }
    }

    fn allocation(name: &str, status: &Value) -> Value {
        json!({
            "metadata": {"name": name, "uid": name, "resourceVersion": "7"},
            "spec": {"reservedIPs": ["203.0.113.1"], "cloud": {"provider": "gcp"}}, "status": status,
        })
    }

    /// A Cluster with a variable of this nesting depth.
    fn nested(depth: usize) -> String {
        let value = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let variables = format!("[{{\"name\":\"v\",\"value\":{value}}}]");
        format!(
            "{{\"metadata\":{{\"name\":\"c\",\"namespace\":\"ns\",\"resourceVersion\":\"7\",\
             \"managedFields\":[{{\"fieldsV1\":{value}}}]}},\
             \"spec\":{{\"controlPlaneEndpoint\":{{\"host\":\"10.0.0.9\",\"port\":6443}},\
             \"topology\":{{\"class\":\"k\",\"variables\":{variables}}}}}}}"
        )
    }

    #[test]
    fn one_undecodable_item_does_not_fail_a_list() {
        let bad = json!({"conditions": [{"lastTransitionTime": "yesterday"}]});
        let items = json!([allocation("a", &json!({})), allocation("b", &bad), allocation("c", &json!({}))]);
        let list = json!({"metadata": {"resourceVersion": "9"}, "items": items}).to_string();
        let list: ObjectList<Decoded<NetIPAllocation>> = serde_json::from_str(&list).unwrap();
        let is_decoded = |one: &Decoded<_>| matches!(one, Decoded::Object(_));
        assert_eq!(list.items.iter().map(is_decoded).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(list.items[1].name_any(), "b");
    }

    #[test]
    fn one_undecodable_object_does_not_fail_a_watch() {
        let bad = allocation("b", &json!({"moves": {"version": "two", "epoch": 1}}));
        let line = format!("{{\"type\":\"MODIFIED\",\"object\":{bad}}}");
        let event: WatchEvent<Decoded<NetIPAllocation>> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Modified(Decoded::Undecodable(found)) = event else { panic!("{event:?}") };
        assert_eq!(found.metadata.resource_version.as_deref(), Some("7"));
        assert!(found.error.starts_with("status.moves.version: invalid type"), "{}", found.error);
    }

    #[test]
    fn deeply_nested_objects_do_not_fail_a_watch() {
        for depth in [130, 100_000] {
            let line = format!("{{\"type\":\"ADDED\",\"object\":{}}}", nested(depth));
            let event: WatchEvent<Decoded<Cluster>> = serde_json::from_str(&line).unwrap();
            let WatchEvent::Added(Decoded::Undecodable(found)) = event else { panic!("{event:?}") };
            assert_eq!(
                (found.metadata.name.as_deref(), found.metadata.namespace.as_deref()),
                (Some("c"), Some("ns"))
            );
            let host = found.at::<String>(&["spec", "controlPlaneEndpoint", "host"]);
            assert_eq!(host.as_deref(), Some("10.0.0.9"));
            assert_eq!(found.addresses(), ["10.0.0.9".parse().unwrap()].into());
        }
        assert!(matches!(serde_json::from_str(&nested(100)).unwrap(), Decoded::<Cluster>::Object(_)));
    }

    #[test]
    fn the_error_names_the_undecodable_field() {
        let json = r#"{"a":{"b,\"}":[1,{"c":"d"},{"e":7}]},"f":1}"#;
        let path = |of: &str| path_at(json, json.find(of).unwrap() + 1);
        assert_eq!([path("7"), path("1,"), path("1}")], ["a.b,\\\"}.2.e", "a.b,\\\"}.0", "f"]);
    }

    #[test]
    fn an_object_with_invalid_metadata_keeps_its_identity() {
        let metadata = json!({
            "name": "n1", "uid": "u", "resourceVersion": "7", "labels": ["no", "map"],
            "creationTimestamp": "2026-01-10T02:14:07Z",
        });
        let found = undecodable::<SlimNode>(&json!({"metadata": metadata}).to_string());
        let ObjectMeta { name, uid, resource_version, creation_timestamp, .. } = found.metadata;
        assert_eq!([name, uid, resource_version].map(Option::unwrap), ["n1", "u", "7"]);
        assert_eq!(creation_timestamp.unwrap().0.to_string(), "2026-01-10T02:14:07Z");
    }

    #[test]
    fn every_address_and_string_in_an_object_is_found() {
        let object = json!({
            "metadata": {"name": "n1", "annotations": {"applied": "{\"ip\":\"203.0.113.1\",\"vm\":\"p/z/vm-1\"}"}},
            "status": {"addresses": "wrong", "ips": {"203.0.113.2": 1}, "note": "2001:db8::1, [2001:db8::2]:443 10.0.0.1:80."},
            "spec": {"cidr": "198.51.100.0/24", "time": "2026-01-10T02:14:07Z", "id": "203.0.113.3-7"},
        });
        let found = undecodable::<SlimNode>(&object.to_string());
        let addresses: Vec<_> = found.addresses().iter().map(ToString::to_string).collect();
        let expected = [
            "10.0.0.1",
            "198.51.100.0",
            "203.0.113.1",
            "203.0.113.2",
            "203.0.113.3",
            "2001:db8::1",
            "2001:db8::2",
        ];
        assert_eq!(addresses, expected);
        assert!(found.strings().any(|text| text == "p/z/vm-1"));
    }

    fn read(name: &str, version: &str, is_decodable: bool) -> Decoded<NetIPAllocation> {
        let status = if is_decodable { json!({}) } else { json!({"addresses": [{"address": 1}]}) };
        let mut object = allocation(name, &status);
        object["metadata"]["resourceVersion"] = version.into();
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_register_forgets_fixed_and_deleted_objects() {
        let mut register = Register::default();
        let mut observe = |kind, change| {
            register.observe(kind, &change, |object: &NetIPAllocation| names_of(object.meta()));
            let all =
                [1, 2].map(|kind| register.of(kind).map(|(_, name)| name.to_owned()).collect::<Vec<_>>());
            all.concat()
        };
        observe(1, Change::All(["a", "b", "c"].map(|name| read(name, "1", false)).into()));
        let all = observe(2, Change::Applied(Box::new(read("other", "1", false))));
        assert_eq!(all, ["a", "b", "c", "other"]);
        observe(1, Change::Applied(Box::new(read("a", "2", true))));
        let all = observe(1, Change::Deleted(Box::new(read("b", "1", false).meta().clone())));
        assert_eq!(all, ["c", "other"]);
        assert_eq!(observe(1, Change::All(Vec::new())), ["other"]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_version_is_reported_once_and_at_most_once_a_minute() {
        let mut register = Register::default();
        let mut reports = |version: &str| {
            register
                .observe(1, &Change::All(vec![read("a", version, false)]), |object| names_of(object.meta()));
            register.due(Instant::now()).len()
        };
        assert_eq!([reports("1"), reports("1"), reports("2")], [1, 0, 0]);
        tokio::time::advance(REPORT_EVERY).await;
        assert_eq!([reports("2"), reports("2")], [1, 0]);
    }
}
