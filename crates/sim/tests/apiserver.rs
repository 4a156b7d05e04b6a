//! Compares the simulated apiserver with a real kube-apiserver. Random histories must give the same responses, lists
//! and watch events on both, and so must the deletion of a CRD. The tests need the servers that `just tools` builds.
//! `just e2e` runs them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use sim::apiserver::{After, ApiServer, Event, KINDS, Kind, bookmark, expired};
use sim::rng::Rng;
use testbed::cluster::eventually;
use testbed::control_plane::{ControlPlane, Options};

const HISTORIES: u64 = 1_000;
const STEPS: u64 = 12;

/// Number of histories per watch. A real watch can start at most a few hundred events in the past.
const BATCH: usize = 20;

/// How long a real apiserver may take until it serves a CRD, or stops serving it. The apiserver checks every five
/// seconds whether the objects of a deleted CRD are gone.
const WITHIN: Duration = Duration::from_secs(60);

/// Duration of a watch that requests bookmarks. The watch gets a bookmark about two seconds before it ends.
const BOOKMARKED_SECONDS: u64 = 8;

const MERGE_PATCH: &str = "application/merge-patch+json";
const FINALIZER: &str = "example.com/one";
const IPS: [&str; 2] = ["203.0.113.1", "203.0.113.2"];

/// A kind that histories use.
struct Subject {
    plural: &'static str,
    /// The path of its objects.
    path: &'static str,
}

static SUBJECTS: [Subject; 4] = [
    Subject {
        plural: "floatingippools",
        path: "/apis/flipop.digitalocean.com/v1alpha1/namespaces/default/floatingippools",
    },
    Subject { plural: "netipallocations", path: "/apis/netinfra.darkbrains.com/v1alpha1/netipallocations" },
    Subject { plural: "nodes", path: "/api/v1/nodes" },
    Subject { plural: "leases", path: "/apis/coordination.k8s.io/v1/namespaces/default/leases" },
];

impl Subject {
    fn kind(&self) -> Kind {
        *KINDS.iter().find(|kind| kind.plural == self.plural).unwrap()
    }

    /// The path of one object.
    fn one(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// An object that a real apiserver stores unchanged, without defaults to fill in.
    fn object(&self, name: &str, size: usize, has_finalizer: bool) -> Value {
        let kind = self.kind();
        let mut metadata = json!({"name": name});
        if self.path.contains("/namespaces/default/") {
            metadata["namespace"] = "default".into();
        }
        if has_finalizer {
            metadata["finalizers"] = json!([FINALIZER]);
        }
        let spec = self.spec(name, size);
        json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec})
    }

    fn spec(&self, name: &str, size: usize) -> Value {
        match self.plural {
            "floatingippools" => json!({"provider": "digitalocean", "region": "nyc3", "ips": IPS[..size]}),
            "netipallocations" => json!({
                "reservedIPs": IPS[..size], "nodeSelector": {"role": "edge"}, "cloud": {"provider": "gcp"},
            }),
            "nodes" => {
                // A real apiserver adds this taint to each new node.
                let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
                let mut spec = json!({"providerID": format!("gce://project/zone/{name}"), "taints": [taint]});
                if size > 1 {
                    spec["unschedulable"] = true.into();
                }
                spec
            }
            _ => json!({
                "holderIdentity": "somebody", "leaseDurationSeconds": 15, "leaseTransitions": size,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            }),
        }
    }

    /// A merge patch that turns any spec of an object into the spec of this size.
    fn spec_patch(&self, size: usize) -> Value {
        match self.plural {
            "floatingippools" => json!({"ips": IPS[..size]}),
            "netipallocations" => json!({"reservedIPs": IPS[..size]}),
            "nodes" => json!({"unschedulable": (size > 1).then_some(true)}),
            _ => json!({"leaseTransitions": size}),
        }
    }

    /// A status, for kinds with a status subresource.
    fn status(&self, size: usize) -> Value {
        match self.plural {
            "floatingippools" => json!({"error": format!("e{size}")}),
            _ => json!({"summary": {"attached": size, "desired": 2}}),
        }
    }

    /// Describes a response or an object, without versions, UIDs and times.
    fn describe(&self, body: &Value) -> String {
        if let Value::String(text) = body {
            return text.clone();
        }
        if body["kind"] == "Status" {
            return format!("{} {}", body["status"], body["reason"]);
        }
        if let Value::Array(items) = &body["items"] {
            let mut items: Vec<_> = items.iter().map(|item| self.describe(item)).collect();
            items.sort();
            let has_version = version_of(body).parse::<u64>().is_ok();
            let (kind, items) = (&body["kind"], items.join("\n"));
            return format!("{kind} {} versioned {has_version}\n{items}", body["apiVersion"]);
        }
        let metadata = &body["metadata"];
        // In the simulation nodes have no status subresource, so their status differs from that on a real apiserver.
        let status = if self.kind().has_status { body["status"].clone() } else { Value::Null };
        let rest = json!({
            "namespace": metadata["namespace"], "labels": metadata["labels"],
            "annotations": metadata["annotations"], "finalizers": metadata["finalizers"],
            "generation": metadata["generation"], "deleted": !metadata["deletionTimestamp"].is_null(),
            "spec": body["spec"], "status": status,
        });
        format!("{} {rest}", metadata["name"])
    }

    /// Describes a watch event in the same way.
    fn describe_event(&self, event: &Value) -> String {
        format!("{} {} {}", event["type"], self.describe(&event["object"]), event["object"]["code"])
    }
}

/// The `resourceVersion` of an object or a list.
fn version_of(body: &Value) -> String {
    body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// One side of the comparison: the simulated apiserver or the real one, and the versions seen on it.
struct Side {
    real: Option<Client>,
    simulated: ApiServer,
    /// The last two versions seen of each object, newest first.
    seen: BTreeMap<String, (ObjectVersion, ObjectVersion)>,
}

/// Identifies one version of an object.
#[derive(Clone, Default)]
struct ObjectVersion {
    version: String,
    uid: String,
}

impl Side {
    async fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let content = if *method == Method::PATCH { MERGE_PATCH } else { "application/json" };
        self.send_as(content, method, path, body).await
    }

    /// Sends a request. A response that is not JSON becomes a string.
    async fn send_as(
        &self,
        content: &str,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content);
        let (status, bytes) = match &self.real {
            Some(client) => {
                let answer = client.send(request.body(Body::from(bytes.to_vec())).unwrap()).await.unwrap();
                (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
            }
            None => {
                let answer = self.simulated.answer(&request.body(bytes).unwrap(), Timestamp::now());
                (answer.status(), answer.into_body())
            }
        };
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    /// Sends a request and describes the response.
    async fn answer(&self, subject: &Subject, (method, path, body): &Asked) -> String {
        let (status, body) = self.send(method, path, body.as_ref()).await;
        format!("{} {}", status.as_u16(), subject.describe(&body))
    }

    /// Executes a step and describes the result.
    async fn step(&mut self, subject: &Subject, step: &Step, history: u64) -> String {
        let name = format!("{}-{history}-{}", subject.plural, step.name);
        let (last, older) = self.seen.get(&name).cloned().unwrap_or_default();
        let recall = |which: Which| match which {
            Which::Last => last.clone(),
            Which::Older => older.clone(),
            Which::None => ObjectVersion::default(),
        };
        let (version, uid) = (recall(step.version).version, recall(step.uid).uid);
        let (version, uid) = (("resourceVersion", &*version), ("uid", &*uid));
        let mut object = subject.object(&name, step.size, step.has_finalizer);
        if step.has_note {
            object["metadata"]["annotations"] = json!({"example.com/note": "x"});
        }
        let one = subject.one(&name);
        let (status, body) = match step.what {
            What::Create => self.send(&Method::POST, subject.path, Some(&object)).await,
            What::Get => self.send(&Method::GET, &one, None).await,
            What::Replace => {
                set_known(&mut object["metadata"], &[version, uid]);
                self.send(&Method::PUT, &one, Some(&object)).await
            }
            What::ReplaceStatus => {
                set_known(&mut object["metadata"], &[version, uid]);
                object["status"] = subject.status(step.size);
                self.send(&Method::PUT, &format!("{one}/status"), Some(&object)).await
            }
            What::Patch | What::ForeignPatch => {
                let set = |is_set: bool| is_set.then_some("x");
                let mut metadata = json!({
                    "labels": {"label": set(!step.has_finalizer)},
                    "annotations": {"example.com/note": set(step.has_note)},
                    "finalizers": step.has_finalizer.then_some([FINALIZER]),
                });
                set_known(&mut metadata, &[version]);
                let patch = json!({"metadata": metadata, "spec": subject.spec_patch(step.size)});
                // An apiserver rejects a patch with an unknown content type.
                let is_foreign = matches!(step.what, What::ForeignPatch);
                let content = if is_foreign { "application/json" } else { MERGE_PATCH };
                self.send_as(content, &Method::PATCH, &one, Some(&patch)).await
            }
            What::Delete => self.send(&Method::DELETE, &one, None).await,
            What::DeleteThis => {
                let mut preconditions = json!({});
                set_known(&mut preconditions, &[version, uid]);
                let options =
                    json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
                self.send(&Method::DELETE, &one, Some(&options)).await
            }
        };
        let uid = body["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let now = ObjectVersion { version: version_of(&body), uid };
        let changed = if now.version.is_empty() || now.version == last.version { "" } else { " changed" };
        if body["kind"] == subject.kind().kind && now.version != last.version {
            self.seen.insert(name, (now, last));
        }
        format!("{}{changed} {}", status.as_u16(), subject.describe(&body))
    }

    /// Describes the events of a watch from a version.
    async fn events(&self, subject: &Subject, from: &str) -> Vec<String> {
        let events: Vec<Value> = match &self.real {
            Some(client) => {
                let path = format!("{}?watch=true&resourceVersion={from}&timeoutSeconds=1", subject.path);
                watch(client, &path).await
            }
            None => match self.simulated.events_after(subject.plural, from.parse().unwrap()) {
                After::Events(events, _) => {
                    let json = |event: Event| json!({"type": event.what, "object": *event.object});
                    events.into_iter().map(json).collect()
                }
                After::Forgotten => vec![expired()],
                After::Absent => Vec::new(),
            },
        };
        events.iter().map(|event| subject.describe_event(event)).collect()
    }

    /// The current `resourceVersion`, from a list.
    async fn version(&self) -> String {
        let (_, list) = self.send(&Method::GET, SUBJECTS[0].path, None).await;
        version_of(&list)
    }

    /// Waits until the response for a path has this status code.
    async fn until(&self, path: &str, status: StatusCode) {
        let what = format!("GET {path} returns {status}");
        eventually(&what, WITHIN, async || Ok(self.send(&Method::GET, path, None).await.0 == status))
            .await
            .unwrap();
    }
}

/// Sets `resourceVersion` or `uid` in metadata or preconditions, unless they are empty.
fn set_known(fields: &mut Value, known: &[(&str, &str)]) {
    for (field, text) in known.iter().filter(|(_, text)| !text.is_empty()) {
        fields[*field] = (*text).into();
    }
}

/// The events of a watch on a real apiserver until it ends. A rejected watch gives one ERROR event: the apiserver sends
/// the error as an event or as a plain `Status`.
async fn watch(client: &Client, path: &str) -> Vec<Value> {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    let body = client.send(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    let event = |line: Value| match line["kind"] == "Status" {
        true => json!({"type": "ERROR", "object": line}),
        false => line,
    };
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).map(event).collect()
}

#[derive(Debug)]
struct Step {
    what: What,
    name: u64,
    version: Which,
    uid: Which,
    size: usize,
    has_finalizer: bool,
    has_note: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Create,
    Get,
    Replace,
    ReplaceStatus,
    Patch,
    ForeignPatch,
    Delete,
    DeleteThis,
}

/// The version of an object that a request contains: the last one seen, an older one, or none.
#[derive(Clone, Copy, Debug)]
enum Which {
    Last,
    Older,
    None,
}

fn step(rng: &mut Rng, subject: &Subject) -> Step {
    const WHATS: [What; 12] = [
        What::Create,
        What::Create,
        What::Create,
        What::Get,
        What::Replace,
        What::Replace,
        What::Patch,
        What::Patch,
        What::Patch,
        What::ForeignPatch,
        What::Delete,
        What::DeleteThis,
    ];
    let replaces_status = subject.kind().has_status && rng.one_in(8);
    Step {
        what: if replaces_status { What::ReplaceStatus } else { *rng.pick(&WHATS) },
        name: rng.roll(2),
        version: *rng.pick(&[Which::Last, Which::Last, Which::Older, Which::None]),
        uid: *rng.pick(&[Which::Last, Which::Older, Which::None, Which::None]),
        size: if rng.one_in(2) { 1 } else { 2 },
        has_finalizer: rng.one_in(2),
        has_note: rng.one_in(2),
    }
}

/// Starts a real apiserver that serves all kinds, and a simulated one.
async fn both() -> (ControlPlane, Side, Side) {
    let control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    control_plane.install_crds().await.unwrap();
    let client = control_plane.client().await.unwrap();
    let side = |real| Side { real, simulated: ApiServer::default(), seen: BTreeMap::new() };
    let (real, simulated) = (side(Some(client)), side(None));
    for subject in &SUBJECTS {
        real.until(subject.path, StatusCode::OK).await;
    }
    (control_plane, real, simulated)
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_equal_on_a_real_apiserver() {
    let (_control_plane, mut real, mut simulated) = both().await;
    for first in (0..HISTORIES).step_by(BATCH) {
        let (real_from, simulated_from) = (real.version().await, simulated.version().await);
        for history in first..first + BATCH as u64 {
            let mut rng = Rng::new(history, "twin");
            let subject = rng.pick(&SUBJECTS);
            for at in 0..STEPS {
                let step = step(&mut rng, subject);
                let expected = real.step(subject, &step, history).await;
                let answered = simulated.step(subject, &step, history).await;
                assert_eq!(answered, expected, "{}, history {history}, step {at}: {step:?}", subject.plural);
            }
        }
        let expected = join_all(SUBJECTS.iter().map(|subject| real.events(subject, &real_from))).await;
        for (subject, expected) in SUBJECTS.iter().zip(&expected) {
            let events = simulated.events(subject, &simulated_from).await;
            for (event, expected) in events.iter().zip(expected) {
                assert_eq!(event, expected, "{}, histories from {first} on", subject.plural);
            }
            assert_eq!(events.len(), expected.len(), "{}, histories from {first} on", subject.plural);
            let list = (Method::GET, subject.path.to_owned(), None);
            let (listed, expected) =
                (simulated.answer(subject, &list).await, real.answer(subject, &list).await);
            assert_eq!(listed, expected, "{}, histories from {first} on", subject.plural);
        }
    }
    println!("{HISTORIES} histories of {STEPS} steps: equal responses, lists and events");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_errors_and_bookmarks_are_equal_on_a_real_apiserver() {
    let (_control_plane, real, simulated) = both().await;
    for subject in &SUBJECTS {
        let create = (Method::POST, subject.path.to_owned(), Some(subject.object("first", 1, false)));
        assert_eq!(simulated.answer(subject, &create).await, real.answer(subject, &create).await);
    }
    simulated.simulated.compact();
    // A real apiserver has no events of a CRD from before its installation, which was later than version 1.
    for subject in SUBJECTS.iter().filter(|subject| subject.kind().has_status) {
        let (events, expected) = (simulated.events(subject, "1").await, real.events(subject, "1").await);
        assert_eq!(expected, [r#""ERROR" "Failure" "Expired" 410"#], "{}", subject.plural);
        assert_eq!(events, expected, "{}", subject.plural);
    }
    let bookmarks = join_all(SUBJECTS.iter().map(|subject| bookmarked(&real, subject))).await;
    for (subject, (from, last)) in SUBJECTS.iter().zip(bookmarks) {
        let reached: u64 = version_of(&last["object"]).parse().unwrap();
        assert!(reached >= from.parse::<u64>().unwrap(), "{}: {last} after {from}", subject.plural);
        assert_eq!(shape(&bookmark(subject.kind(), reached)), shape(&last), "{}", subject.plural);
    }
}

/// The version that a real watch starts from, and its last bookmark.
async fn bookmarked(real: &Side, subject: &Subject) -> (String, Value) {
    let from = real.version().await;
    let query = "watch=true&allowWatchBookmarks=true";
    let path = format!("{}?{query}&resourceVersion={from}&timeoutSeconds={BOOKMARKED_SECONDS}", subject.path);
    // The apiserver sends a bookmark only if something has changed since the watch began.
    let changes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let object = subject.object("bookmarked", 1, false);
        let (status, _) = real.send(&Method::POST, subject.path, Some(&object)).await;
        assert_eq!(status, StatusCode::CREATED, "{}", subject.plural);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (status, _) = real.send(&Method::DELETE, &subject.one("bookmarked"), None).await;
        assert_eq!(status, StatusCode::OK, "{}", subject.plural);
    };
    let (events, ()) = tokio::join!(watch(real.real.as_ref().unwrap(), &path), changes);
    let last = events.iter().rfind(|event| event["type"] == "BOOKMARK").cloned();
    (from, last.unwrap_or_else(|| panic!("{}: no bookmark among {events:?}", subject.plural)))
}

/// The parts of a bookmark that the test compares. A real bookmark also has the required fields of its kind, all empty.
fn shape(bookmark: &Value) -> Value {
    let object = &bookmark["object"];
    let metadata = object["metadata"].as_object().unwrap().iter();
    let named: Vec<_> = metadata.filter(|(_, value)| !value.is_null()).map(|(field, _)| field).collect();
    json!({
        "type": bookmark["type"], "kind": object["kind"], "apiVersion": object["apiVersion"],
        "metadata": named,
    })
}

/// A request: method, path and body.
type Asked = (Method, String, Option<Value>);

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_crd_is_handled_as_by_a_real_apiserver() {
    let (control_plane, real, simulated) = both().await;
    let subject = SUBJECTS.iter().find(|subject| subject.plural == "netipallocations").unwrap();
    let (group_version, now) = (subject.kind().api_version, Timestamp::now());
    let (group, _) = group_version.split_once('/').unwrap();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = format!("{definitions}/{}.{group}", subject.plural);
    let discovery = format!("/apis/{group_version}");
    let ask = async |when: &str, asked: &[Asked]| {
        for asked in asked {
            let (answered, expected) =
                (simulated.answer(subject, asked).await, real.answer(subject, asked).await);
            assert_eq!(answered, expected, "{when}: {asked:?}");
        }
    };
    let list = || -> Asked { (Method::GET, subject.path.to_owned(), None) };
    let get = |name: &str| -> Asked { (Method::GET, subject.one(name), None) };
    let delete = |name: &str| -> Asked { (Method::DELETE, subject.one(name), None) };
    let create = |name: &str, has_finalizer: bool| -> Asked {
        (Method::POST, subject.path.to_owned(), Some(subject.object(name, 1, has_finalizer)))
    };
    let patch = |name: &str, metadata: Value| -> Asked {
        (Method::PATCH, subject.one(name), Some(json!({"metadata": metadata})))
    };

    let (real_from, simulated_from) = (real.version().await, simulated.version().await);
    ask("installed", &[create("free", false), create("held", true), get("held"), list()]).await;

    let path = format!("{}?watch=true&resourceVersion={real_from}&timeoutSeconds=600", subject.path);
    let client = real.real.clone().unwrap();
    let open = tokio::spawn(async move { watch(&client, &path).await });

    assert_eq!(real.send(&Method::DELETE, &definition, None).await.0, StatusCode::OK);
    simulated.simulated.remove_kind(subject.plural, now);
    real.until(&subject.one("free"), StatusCode::NOT_FOUND).await;
    eventually("the object with a finalizer is marked as deleted", WITHIN, async || {
        let (_, held) = real.send(&Method::GET, &subject.one("held"), None).await;
        Ok(!held["metadata"]["deletionTimestamp"].is_null())
    })
    .await
    .unwrap();
    assert!(simulated.simulated.has_kind(subject.plural));
    ask("terminating", &[get("free"), get("held"), list(), create("new", false), create("held", true)]).await;
    let released = patch("held", json!({"finalizers": null}));
    let labelled = patch("held", json!({"labels": {"label": "x"}}));
    ask("terminating", &[labelled, delete("held"), released.clone()]).await;

    real.until(subject.path, StatusCode::NOT_FOUND).await;
    real.until(&discovery, StatusCode::NOT_FOUND).await;
    assert!(!simulated.simulated.has_kind(subject.plural));
    let watched: Asked = (Method::GET, format!("{}?watch=true&resourceVersion=1", subject.path), None);
    let discovered: Asked = (Method::GET, discovery, None);
    let gone = [get("held"), list(), create("new", false), released, delete("held"), watched, discovered];
    ask("removed", &gone).await;

    // An open watch gets all events and then ends.
    let events = tokio::time::timeout(WITHIN, open).await.unwrap().unwrap();
    let mut expected: Vec<_> = events.iter().map(|event| subject.describe_event(event)).collect();
    let mut events = simulated.events(subject, &simulated_from).await;
    // The order in which an apiserver deletes the objects of a CRD is not defined.
    expected.sort();
    events.sort();
    assert_eq!(events, expected);
    let reached = simulated.version().await.parse().unwrap();
    assert!(matches!(simulated.simulated.events_after(subject.plural, reached), After::Absent));

    control_plane.install_crds().await.unwrap();
    simulated.simulated.install_kind(subject.plural, now);
    real.until(subject.path, StatusCode::OK).await;
    ask("installed again", &[list(), get("held"), create("new", false), delete("new")]).await;
    let (events, expected) =
        (simulated.events(subject, &simulated_from).await, real.events(subject, &real_from).await);
    assert_eq!(events, expected, "a watch from before the CRD was installed again");
}
