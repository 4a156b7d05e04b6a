//! The apiserver's twin is honest: random histories give the same answers and the same watch events on the twin and on a
//! real kube-apiserver. It needs the servers that `just tools` builds: `just e2e` runs it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use sim::apiserver::ApiServer;
use sim::dice::Dice;
use testbed::control_plane::{ControlPlane, Options};

const HISTORIES: u64 = 1_000;
const STEPS: u64 = 12;

/// So many histories are watched together: a real watch goes back a few hundred events at the most.
const BATCH: usize = 20;
const PATH: &str = "/apis/flipop.digitalocean.com/v1alpha1/namespaces/default/floatingippools";

/// One side: the twin or the real one, and what it remembers of versions.
struct Side {
    real: Option<Client>,
    twin: ApiServer,
    /// The last version that was seen of each object, and one before that.
    versions: BTreeMap<String, (String, String)>,
}

impl Side {
    async fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let content =
            if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        match &self.real {
            Some(client) => {
                let answer = client.send(request.body(Body::from(bytes.to_vec())).unwrap()).await.unwrap();
                let status = answer.status();
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                (status, serde_json::from_slice(&body).unwrap_or_default())
            }
            None => {
                let answer = self.twin.answer(&request.body(bytes).unwrap(), jiff::Timestamp::now());
                (answer.status(), serde_json::from_slice(answer.body()).unwrap_or_default())
            }
        }
    }

    /// Does one step, and tells what came of it in words that don't depend on numbers and times.
    async fn step(&mut self, step: &Step, history: u64) -> String {
        let name = format!("pool-{history}-{}", step.name);
        let (last, older) = self.versions.get(&name).cloned().unwrap_or_default();
        let version = match step.version {
            Version::Last => Some(last.clone()),
            Version::Older => Some(older),
            Version::None => None,
        };
        let mut object = json!({
            "apiVersion": "flipop.digitalocean.com/v1alpha1", "kind": "FloatingIPPool",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"provider": "digitalocean", "region": "nyc3", "ips": step.ips},
        });
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            object["metadata"]["resourceVersion"] = version.into();
        }
        if step.has_finalizer {
            object["metadata"]["finalizers"] = json!(["example.com/one"]);
        }
        let one = format!("{PATH}/{name}");
        let (status, body) = match step.what {
            What::Create => {
                if let Value::Object(metadata) = &mut object["metadata"] {
                    metadata.remove("resourceVersion");
                }
                self.send(&Method::POST, PATH, Some(&object)).await
            }
            What::Get => self.send(&Method::GET, &one, None).await,
            What::Replace => self.send(&Method::PUT, &one, Some(&object)).await,
            What::ReplaceStatus => {
                object["status"] = json!({"error": format!("e{}", step.ips.len())});
                self.send(&Method::PUT, &format!("{one}/status"), Some(&object)).await
            }
            What::Patch => {
                let mut patch = json!({"metadata": object["metadata"], "spec": {"ips": step.ips}});
                let label = if step.has_finalizer { Value::Null } else { json!("x") };
                patch["metadata"]["labels"] = json!({"label": label});
                if !step.has_finalizer {
                    patch["metadata"]["finalizers"] = Value::Null;
                }
                self.send(&Method::PATCH, &one, Some(&patch)).await
            }
            What::Delete => self.send(&Method::DELETE, &one, None).await,
            What::DeleteVersion => {
                let preconditions = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                let options =
                    json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions});
                self.send(&Method::DELETE, &one, Some(&options)).await
            }
        };
        let now = body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let changed = if now.is_empty() || now == last { "" } else { " changed" };
        if body["kind"] == "FloatingIPPool" && now != last {
            self.versions.insert(name, (now, last));
        }
        format!("{}{changed} {}", status.as_u16(), told(&body))
    }

    /// What a watch from a version on tells, in the same words.
    async fn events(&self, from: &str) -> Vec<String> {
        let events: Vec<Value> = match &self.real {
            Some(client) => {
                let path = format!("{PATH}?watch=true&resourceVersion={from}&timeoutSeconds=1");
                let request = Request::builder().uri(path).body(Body::empty()).unwrap();
                let body =
                    client.send(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
                let text = String::from_utf8_lossy(&body).into_owned();
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
            }
            None => {
                let (events, _) = self.twin.events_after("floatingippools", from.parse().unwrap()).unwrap();
                events.into_iter().map(|event| json!({"type": event.what, "object": *event.object})).collect()
            }
        };
        let tell = |event: &Value| format!("{} {}", event["type"], told(&event["object"]));
        events.iter().map(tell).collect()
    }

    async fn version(&self) -> String {
        let (_, list) = self.send(&Method::GET, PATH, None).await;
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }
}

fn told(body: &Value) -> String {
    if body["kind"] == "Status" {
        return format!("{} {}", body["status"], body["reason"]);
    }
    let metadata = &body["metadata"];
    json!({
        "name": metadata["name"], "labels": metadata["labels"], "finalizers": metadata["finalizers"],
        "generation": metadata["generation"], "deleted": !metadata["deletionTimestamp"].is_null(),
        "spec": body["spec"], "status": body["status"],
    })
    .to_string()
}

#[derive(Debug)]
struct Step {
    what: What,
    name: u64,
    version: Version,
    ips: Vec<&'static str>,
    has_finalizer: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Create,
    Get,
    Replace,
    ReplaceStatus,
    Patch,
    Delete,
    DeleteVersion,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    Last,
    Older,
    None,
}

fn step(dice: &mut Dice) -> Step {
    const WHATS: [What; 9] = [
        What::Create,
        What::Create,
        What::Get,
        What::Replace,
        What::ReplaceStatus,
        What::Patch,
        What::Patch,
        What::Delete,
        What::DeleteVersion,
    ];
    let ips = ["203.0.113.1", "203.0.113.2"];
    Step {
        what: *dice.pick(&WHATS),
        name: dice.roll(2),
        version: *dice.pick(&[Version::Last, Version::Last, Version::Older, Version::None]),
        ips: ips[..usize::try_from(1 + dice.roll(2)).unwrap()].to_vec(),
        has_finalizer: dice.one_in(2),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_twin_answers_and_tells_what_a_real_apiserver_does() {
    let control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    control_plane.install_crds().await.unwrap();
    let client = control_plane.client().await.unwrap();
    let side = |real| Side { real, twin: ApiServer::default(), versions: BTreeMap::new() };
    let (mut real, mut twin) = (side(Some(client)), side(None));
    for first in (0..HISTORIES).step_by(BATCH) {
        let (real_from, twin_from) = (real.version().await, twin.version().await);
        for history in first..first + BATCH as u64 {
            let mut dice = Dice::new(history, "twin");
            for at in 0..STEPS {
                let step = step(&mut dice);
                let (expected, answered) = (real.step(&step, history).await, twin.step(&step, history).await);
                assert_eq!(answered, expected, "history {history}, step {at}: {step:?}");
            }
        }
        let (told, expected) = (twin.events(&twin_from).await, real.events(&real_from).await);
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(told, expected, "histories from {first} on");
        }
        assert_eq!(told.len(), expected.len(), "histories from {first} on");
    }
    println!("{HISTORIES} histories of {STEPS} steps: the same answers and the same events");
}
