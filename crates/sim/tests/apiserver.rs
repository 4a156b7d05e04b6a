//! The simulated apiserver behaves as a real one: random histories give the same answers, the same lists and the same watch events on the
//! simulated and on a real kube-apiserver, and so does what happens to a whole kind. It needs the servers that `just tools` builds:
//! `just e2e` runs it.
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

/// So many histories are watched together: a real watch goes back a few hundred events at the most.
const BATCH: usize = 20;

/// How long a real apiserver may take until it serves a kind, or serves it no more: every five seconds it looks whether the
/// objects of a kind that was deleted are gone.
const WITHIN: Duration = Duration::from_secs(60);

/// How long a watch that asks for bookmarks lasts. It gets one two seconds before its end, or up to a second off that.
const BOOKMARKED_SECONDS: u64 = 8;

const MERGE_PATCH: &str = "application/merge-patch+json";
const FINALIZER: &str = "example.com/one";
const IPS: [&str; 2] = ["203.0.113.1", "203.0.113.2"];

/// A kind that histories are about.
struct Subject {
    plural: &'static str,
    /// Where its objects are.
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

    /// An object that a real apiserver takes as it is, with nothing left for it to fill in.
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
                // A real apiserver gives each new node this taint, unless it has it already.
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

    /// What makes any spec of an object into the one of this size.
    fn spec_patch(&self, size: usize) -> Value {
        match self.plural {
            "floatingippools" => json!({"ips": IPS[..size]}),
            "netipallocations" => json!({"reservedIPs": IPS[..size]}),
            "nodes" => json!({"unschedulable": (size > 1).then_some(true)}),
            _ => json!({"leaseTransitions": size}),
        }
    }

    /// A status, for those that have one by itself.
    fn status(&self, size: usize) -> Value {
        match self.plural {
            "floatingippools" => json!({"error": format!("e{size}")}),
            _ => json!({"summary": {"attached": size, "desired": 2}}),
        }
    }

    /// What an answer or an object says, in words that don't depend on numbers and times.
    fn told(&self, body: &Value) -> String {
        if let Value::String(text) = body {
            return text.clone();
        }
        if body["kind"] == "Status" {
            return format!("{} {}", body["status"], body["reason"]);
        }
        if let Value::Array(items) = &body["items"] {
            let mut items: Vec<_> = items.iter().map(|item| self.told(item)).collect();
            items.sort();
            let has_version = version_of(body).parse::<u64>().is_ok();
            let (kind, items) = (&body["kind"], items.join("\n"));
            return format!("{kind} {} versioned {has_version}\n{items}", body["apiVersion"]);
        }
        let metadata = &body["metadata"];
        // The simulated people edit nodes as a whole, so a node's status is not what it is in a real apiserver.
        let status = if self.kind().has_status { body["status"].clone() } else { Value::Null };
        let rest = json!({
            "namespace": metadata["namespace"], "labels": metadata["labels"],
            "annotations": metadata["annotations"], "finalizers": metadata["finalizers"],
            "generation": metadata["generation"], "deleted": !metadata["deletionTimestamp"].is_null(),
            "spec": body["spec"], "status": status,
        });
        format!("{} {rest}", metadata["name"])
    }

    /// What an event of a watch says, likewise.
    fn told_event(&self, event: &Value) -> String {
        format!("{} {} {}", event["type"], self.told(&event["object"]), event["object"]["code"])
    }
}

/// The version that an object, a list or an event's object says it has.
fn version_of(body: &Value) -> String {
    body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// One side: the simulated apiserver or the real one, and what it remembers of objects.
struct Side {
    real: Option<Client>,
    simulated: ApiServer,
    /// What was seen last of each object, and before that.
    seen: BTreeMap<String, (Seen, Seen)>,
}

/// By what an object is told from others of its name, and from what it was before.
#[derive(Clone, Default)]
struct Seen {
    version: String,
    uid: String,
}

impl Side {
    async fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let content = if *method == Method::PATCH { MERGE_PATCH } else { "application/json" };
        self.send_as(content, method, path, body).await
    }

    /// Sends a request. An answer that is no JSON is a text.
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

    /// What a request is answered, in words.
    async fn answer(&self, subject: &Subject, (method, path, body): &Asked) -> String {
        let (status, body) = self.send(method, path, body.as_ref()).await;
        format!("{} {}", status.as_u16(), subject.told(&body))
    }

    /// Does one step, and tells what came of it in words.
    async fn step(&mut self, subject: &Subject, step: &Step, history: u64) -> String {
        let name = format!("{}-{history}-{}", subject.plural, step.name);
        let (last, older) = self.seen.get(&name).cloned().unwrap_or_default();
        let recall = |which: Which| match which {
            Which::Last => last.clone(),
            Which::Older => older.clone(),
            Which::None => Seen::default(),
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
                name_known(&mut object["metadata"], &[version, uid]);
                self.send(&Method::PUT, &one, Some(&object)).await
            }
            What::ReplaceStatus => {
                name_known(&mut object["metadata"], &[version, uid]);
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
                name_known(&mut metadata, &[version]);
                let patch = json!({"metadata": metadata, "spec": subject.spec_patch(step.size)});
                // What no apiserver takes for a patch is refused, and not guessed at.
                let is_foreign = matches!(step.what, What::ForeignPatch);
                let content = if is_foreign { "application/json" } else { MERGE_PATCH };
                self.send_as(content, &Method::PATCH, &one, Some(&patch)).await
            }
            What::Delete => self.send(&Method::DELETE, &one, None).await,
            What::DeleteThis => {
                let mut preconditions = json!({});
                name_known(&mut preconditions, &[version, uid]);
                let options =
                    json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
                self.send(&Method::DELETE, &one, Some(&options)).await
            }
        };
        let uid = body["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let now = Seen { version: version_of(&body), uid };
        let changed = if now.version.is_empty() || now.version == last.version { "" } else { " changed" };
        if body["kind"] == subject.kind().kind && now.version != last.version {
            self.seen.insert(name, (now, last));
        }
        format!("{}{changed} {}", status.as_u16(), subject.told(&body))
    }

    /// What a watch from a version on tells, in words.
    async fn events(&self, subject: &Subject, from: &str) -> Vec<String> {
        let events: Vec<Value> = match &self.real {
            Some(client) => {
                let path = format!("{}?watch=true&resourceVersion={from}&timeoutSeconds=1", subject.path);
                watch(client, &path).await
            }
            None => match self.simulated.events_after(subject.plural, from.parse().unwrap()) {
                After::Events(events, _) => {
                    let told = |event: Event| json!({"type": event.what, "object": *event.object});
                    events.into_iter().map(told).collect()
                }
                After::Forgotten => vec![expired()],
                After::Absent => Vec::new(),
            },
        };
        events.iter().map(|event| subject.told_event(event)).collect()
    }

    /// The version of everything, which a list of any kind tells.
    async fn version(&self) -> String {
        let (_, list) = self.send(&Method::GET, SUBJECTS[0].path, None).await;
        version_of(&list)
    }

    /// Waits until a path is answered like this.
    async fn until(&self, path: &str, status: StatusCode) {
        let what = format!("{path} is {status}");
        eventually(&what, WITHIN, async || Ok(self.send(&Method::GET, path, None).await.0 == status))
            .await
            .unwrap();
    }
}

/// Names what is known of an object, in its metadata or as a precondition.
fn name_known(fields: &mut Value, known: &[(&str, &str)]) {
    for (field, text) in known.iter().filter(|(_, text)| !text.is_empty()) {
        fields[*field] = (*text).into();
    }
}

/// The events that a real apiserver tells a watch until it ends. One that it refuses is told nothing but why, with or without
/// an event around it.
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

/// Which of those that were seen of an object is sent along.
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

/// A real apiserver that serves every kind, and the simulated one.
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
async fn the_simulated_apiserver_answers_as_a_real_one() {
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
            let told = simulated.events(subject, &simulated_from).await;
            for (told, expected) in told.iter().zip(expected) {
                assert_eq!(told, expected, "{}, histories from {first} on", subject.plural);
            }
            assert_eq!(told.len(), expected.len(), "{}, histories from {first} on", subject.plural);
            let list = (Method::GET, subject.path.to_owned(), None);
            let (listed, expected) =
                (simulated.answer(subject, &list).await, real.answer(subject, &list).await);
            assert_eq!(listed, expected, "{}, histories from {first} on", subject.plural);
        }
    }
    println!("{HISTORIES} histories of {STEPS} steps: the same answers, the same lists and the same events");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_refused_and_bookmarked_as_on_a_real_apiserver() {
    let (_control_plane, real, simulated) = both().await;
    for subject in &SUBJECTS {
        let create = (Method::POST, subject.path.to_owned(), Some(subject.object("first", 1, false)));
        assert_eq!(simulated.answer(subject, &create).await, real.answer(subject, &create).await);
    }
    simulated.simulated.compact();
    // A real apiserver knows of a kind what happened since it was installed, at the most, and that was later than this.
    for subject in SUBJECTS.iter().filter(|subject| subject.kind().has_status) {
        let (told, expected) = (simulated.events(subject, "1").await, real.events(subject, "1").await);
        assert_eq!(expected, [r#""ERROR" "Failure" "Expired" 410"#], "{}", subject.plural);
        assert_eq!(told, expected, "{}", subject.plural);
    }
    let bookmarks = join_all(SUBJECTS.iter().map(|subject| bookmarked(&real, subject))).await;
    for (subject, (from, told)) in SUBJECTS.iter().zip(bookmarks) {
        let reached: u64 = version_of(&told["object"]).parse().unwrap();
        assert!(reached >= from.parse::<u64>().unwrap(), "{}: {told} after {from}", subject.plural);
        assert_eq!(shape(&bookmark(subject.kind(), reached)), shape(&told), "{}", subject.plural);
    }
}

/// The version from which a real watch begins, and the last bookmark that it gets.
async fn bookmarked(real: &Side, subject: &Subject) -> (String, Value) {
    let from = real.version().await;
    let query = "watch=true&allowWatchBookmarks=true";
    let path = format!("{}?{query}&resourceVersion={from}&timeoutSeconds={BOOKMARKED_SECONDS}", subject.path);
    // A bookmark is told only after something has happened since the watch began.
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

/// What of a bookmark is compared. A real one has the fields that its kind always has, and they are empty.
fn shape(bookmark: &Value) -> Value {
    let object = &bookmark["object"];
    let metadata = object["metadata"].as_object().unwrap().iter();
    let named: Vec<_> = metadata.filter(|(_, value)| !value.is_null()).map(|(field, _)| field).collect();
    json!({
        "type": bookmark["type"], "kind": object["kind"], "apiVersion": object["apiVersion"],
        "metadata": named,
    })
}

/// A request: its method, its path and its body.
type Asked = (Method, String, Option<Value>);

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_whose_definition_is_deleted_goes_as_on_a_real_apiserver() {
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
    ask("there", &[create("free", false), create("held", true), get("held"), list()]).await;

    let path = format!("{}?watch=true&resourceVersion={real_from}&timeoutSeconds=600", subject.path);
    let client = real.real.clone().unwrap();
    let open = tokio::spawn(async move { watch(&client, &path).await });

    assert_eq!(real.send(&Method::DELETE, &definition, None).await.0, StatusCode::OK);
    simulated.simulated.remove_kind(subject.plural, now);
    real.until(&subject.one("free"), StatusCode::NOT_FOUND).await;
    eventually("what is held is deleted", WITHIN, async || {
        let (_, held) = real.send(&Method::GET, &subject.one("held"), None).await;
        Ok(!held["metadata"]["deletionTimestamp"].is_null())
    })
    .await
    .unwrap();
    assert!(simulated.simulated.has_kind(subject.plural));
    ask("going", &[get("free"), get("held"), list(), create("new", false), create("held", true)]).await;
    let released = patch("held", json!({"finalizers": null}));
    let labelled = patch("held", json!({"labels": {"label": "x"}}));
    ask("going", &[labelled, delete("held"), released.clone()]).await;

    real.until(subject.path, StatusCode::NOT_FOUND).await;
    real.until(&discovery, StatusCode::NOT_FOUND).await;
    assert!(!simulated.simulated.has_kind(subject.plural));
    let watched: Asked = (Method::GET, format!("{}?watch=true&resourceVersion=1", subject.path), None);
    let discovered: Asked = (Method::GET, discovery, None);
    let gone = [get("held"), list(), create("new", false), released, delete("held"), watched, discovered];
    ask("gone", &gone).await;

    // Whoever watched is told of everything, and hears then that there is no more to come.
    let told = tokio::time::timeout(WITHIN, open).await.unwrap().unwrap();
    let mut expected: Vec<_> = told.iter().map(|event| subject.told_event(event)).collect();
    let mut told = simulated.events(subject, &simulated_from).await;
    // Of what is deleted together, nobody says what goes first.
    expected.sort();
    told.sort();
    assert_eq!(told, expected);
    let reached = simulated.version().await.parse().unwrap();
    assert!(matches!(simulated.simulated.events_after(subject.plural, reached), After::Absent));

    control_plane.install_crds().await.unwrap();
    simulated.simulated.install_kind(subject.plural, now);
    real.until(subject.path, StatusCode::OK).await;
    ask("there again", &[list(), get("held"), create("new", false), delete("new")]).await;
    let (told, expected) =
        (simulated.events(subject, &simulated_from).await, real.events(subject, &real_from).await);
    assert_eq!(told, expected, "a watch of what was there before");
}
