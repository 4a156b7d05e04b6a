use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use crate::metrics::Identity;
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::BoxError;

/// The response of the apiserver to a request.
enum Answer {
    /// A list of this version with these objects, which have the same version.
    List(u64, &'static [&'static str]),
    /// A list of this version whose objects have a version of their own.
    ListOf(u64, &'static [&'static str], u64),
    /// A page of a list.
    Page(&'static [&'static str]),
    /// An error.
    Status(u16),
    /// A watch that brings these lines, each after a pause in seconds, and then ends, breaks or stays silent.
    Watch(Vec<(u64, String)>, Then),
}

enum Then {
    Ends,
    Breaks,
    StaysSilent,
}

fn object(name: &str, version: u64) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}})
}

/// A line of a watch. Like the apiserver, it names the type first.
fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}")
}

fn modified(name: &str, version: u64) -> String {
    line("MODIFIED", &object(name, version))
}

fn body(value: &Value) -> UnsyncBoxBody<Bytes, BoxError> {
    let bytes = Bytes::from(format!("{value}\n"));
    http_body_util::Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn response(answer: Answer) -> Response<UnsyncBoxBody<Bytes, BoxError>> {
    let list = |names: &[&str], version: u64, metadata: Value| {
        let items: Vec<_> = names.iter().map(|name| object(name, version)).collect();
        Response::new(body(&json!({"metadata": metadata, "items": items})))
    };
    match answer {
        Answer::List(version, names) => list(names, version, json!({"resourceVersion": version.to_string()})),
        Answer::ListOf(version, names, of_objects) => {
            list(names, of_objects, json!({"resourceVersion": version.to_string()}))
        }
        Answer::Page(names) => list(names, 1, json!({"resourceVersion": "1", "continue": "next"})),
        Answer::Status(code) => {
            let status = json!({"kind": "Status", "status": "Failure", "message": "no", "code": code});
            let mut response = Response::new(body(&status));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            response
        }
        Answer::Watch(lines, then) => {
            let lines = stream::iter(lines).then(async |(pause, line)| {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                Ok(http_body::Frame::data(Bytes::from(format!("{line}\n"))))
            });
            let last = stream::once(async move {
                match then {
                    Then::Ends => None,
                    Then::Breaks => Some(Err(BoxError::from("the connection broke"))),
                    Then::StaysSilent => std::future::pending().await,
                }
            });
            let frames = lines.chain(last.filter_map(async |last| last));
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
    }
}

/// A watch of ConfigMaps on an apiserver with these responses. After the last response, the apiserver refuses every
/// request.
struct Rig {
    events: mpsc::UnboundedReceiver<String>,
    requests: Arc<Mutex<Vec<String>>>,
    relist: Relist,
    ended: JoinHandle<Ended>,
    metrics: Metrics,
}

impl Rig {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::reading(answers, false)
    }

    /// A watch whose receiver gets lists in parts.
    fn in_parts(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::reading(answers, true)
    }

    fn reading(answers: impl IntoIterator<Item = Answer>, in_parts: bool) -> Self {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let serve = move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
            let answer = answers.lock().unwrap().pop_front().unwrap_or(Answer::Status(503));
            async move { Ok::<_, BoxError>(response(answer)) }
        };
        let client = Client::new(tower::service_fn(serve), "default");
        let metrics = Metrics::new(&Identity::default()).unwrap();
        let clients = Clients { lists: client.clone(), watches: client, metrics: metrics.clone() };
        let (to, events) = mpsc::unbounded_channel();
        let relist = Relist::default();
        let asked = relist.clone();
        let ended = tokio::spawn(async move {
            let mut reading = Reading {
                annotations: Annotations::Only(&["kept"]),
                keep: |object| object,
                in_parts,
                ignores_older: true,
            };
            let convert = |event| (!matches!(event, WatchEvent::Listing)).then(|| printed(event));
            follow(&clients, &(), &mut reading, &asked, &mut 0, &to, convert).await
        });
        Self { events, requests, relist, ended, metrics }
    }

    /// The next events.
    async fn next(&mut self, count: usize) -> Vec<String> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.events.recv().await.unwrap());
        }
        events
    }

    /// The value of the metric for the age of the watch.
    fn age(&self) -> u64 {
        let text = self.metrics.text().unwrap();
        let line = text.lines().find(|line| line.starts_with("ip_address_controller_watch_age_seconds{"));
        line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// The `resourceVersion` of each watch request.
    fn watched_from(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let watches = requests.iter().filter(|query| query.contains("watch=true"));
        let version =
            |query: &String| query.rsplit_once("resourceVersion=").map(|(_, version)| version.to_owned());
        watches.filter_map(version).collect()
    }
}

fn printed(event: WatchEvent<ConfigMap>) -> String {
    let name = |meta: &ObjectMeta| meta.name.clone().unwrap_or_default();
    match event {
        WatchEvent::Changed(Change::All(all)) => {
            format!("all {}", all.iter().map(|one| name(one.meta())).collect::<Vec<_>>().join(" "))
        }
        WatchEvent::Changed(Change::Applied(one)) => format!("applied {}", name(one.meta())),
        WatchEvent::Changed(Change::Deleted(gone)) => format!("deleted {}", name(&gone)),
        WatchEvent::Listing => "listing".to_owned(),
        WatchEvent::Part(part) => {
            format!("part {}", part.iter().map(|one| name(one.meta())).collect::<Vec<_>>().join(" "))
        }
        WatchEvent::Listed(_) => "listed".to_owned(),
        WatchEvent::Lost(_) => "lost".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_continues_from_its_last_version() {
    let answers = [
        Answer::List(5, &["a"]),
        Answer::Watch(vec![(120, modified("a", 7))], Then::Ends),
        Answer::Watch(vec![(120, modified("a", 9))], Then::Ends),
        Answer::Watch(Vec::new(), Then::StaysSilent),
    ];
    let mut rig = Rig::new(answers);
    assert_eq!(rig.next(4).await, ["all a", "listed", "applied a", "applied a"]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.watched_from(), ["5", "7", "9"]);
    assert_eq!(rig.requests.lock().unwrap().len(), 4, "the apiserver was asked for nothing else");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_for_a_short_time_is_resumed() {
    let failures = (0..20).map(|_| Answer::Status(503));
    let answers = [Answer::List(5, &["a"]), Answer::Watch(vec![(1, modified("a", 7))], Then::Breaks)];
    let resumed = [Answer::List(8, &["a"]), Answer::Watch(vec![(1, modified("a", 9))], Then::StaysSilent)];
    let mut rig = Rig::new(answers.into_iter().chain(failures).chain(resumed));
    assert_eq!(rig.next(4).await, ["all a", "listed", "applied a", "applied a"]);
    assert_eq!(rig.watched_from(), ["5", "7"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_does_not_resume_from_a_version_that_etcd_has_lost() {
    for then in [Then::Breaks, Then::Ends] {
        let watched = Answer::Watch(vec![(10, modified("a", 7))], then);
        let mut rig = Rig::new([Answer::List(5, &["a"]), watched, Answer::List(6, &["a"])]);
        assert_eq!(rig.next(3).await, ["all a", "listed", "applied a"]);
        assert_eq!(rig.ended.await.unwrap(), Ended::Restored);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_listed_again_after_a_long_interruption() {
    let mut rig = Rig::new([Answer::List(5, &["a"])]);
    let began = Instant::now();
    assert_eq!(rig.next(3).await, ["all a", "listed", "lost"]);
    let took = began.elapsed();
    assert!((GAP_MAX - RESUME_EVERY..=GAP_MAX).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_listed_again_after_a_watch_that_was_silent_for_too_long() {
    let silent = || Answer::Watch(Vec::new(), Then::StaysSilent);
    let mut rig = Rig::new([Answer::List(5, &["a"]), silent(), Answer::List(6, &["a"]), silent()]);
    rig.next(2).await;
    let began = Instant::now();
    assert_eq!(rig.next(3).await, ["lost", "all a", "listed"]);
    assert_eq!(began.elapsed(), SILENCE_MAX + LIST_RETRY);
}

#[tokio::test(start_paused = true)]
async fn the_age_of_a_watch_that_does_not_work_grows_although_lists_work() {
    let forbidden = (0..100).flat_map(|_| [Answer::Status(403), Answer::List(5, &["a"])]);
    let silent = || [Answer::List(5, &["a"]), Answer::Watch(Vec::new(), Then::StaysSilent)];
    let silent = (0..3).flat_map(|_| silent());
    let answers: [Vec<Answer>; 2] =
        [[Answer::List(5, &["a"])].into_iter().chain(forbidden).collect(), silent.collect()];
    for answers in answers {
        let mut rig = Rig::new(answers);
        rig.next(1).await;
        tokio::time::sleep(Duration::from_secs(301)).await;
        assert!(rig.age() > 300, "{}", rig.age());
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_of_a_watch_without_events_stays_low_if_it_ends_regularly() {
    let bookmark = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}});
    let ends = || Answer::Watch(vec![(120, line("BOOKMARK", &bookmark))], Then::Ends);
    let mut rig = Rig::new([Answer::List(5, &["a"]), ends(), ends(), ends()]);
    rig.next(1).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(rig.age() < 130, "{}", rig.age());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_counts_as_interrupted() {
    let ends = || [Answer::Watch(Vec::new(), Then::Ends), Answer::List(5, &["a"])];
    let mut rig = Rig::new([Answer::List(5, &["a"])].into_iter().chain((0..100).flat_map(|_| ends())));
    assert_eq!(rig.next(3).await, ["all a", "listed", "lost"]);
    assert_eq!(rig.watched_from().len(), 31, "one request a second");
}

#[tokio::test(start_paused = true)]
async fn the_receiver_can_ask_for_a_list() {
    let silent = || Answer::Watch(Vec::new(), Then::StaysSilent);
    let answers = [Answer::List(5, &["a"]), silent(), Answer::List(6, &["b"]), silent()];
    let mut rig = Rig::new(answers);
    rig.next(2).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let began = Instant::now();
    rig.relist.ask();
    assert_eq!(rig.next(2).await, ["all b", "listed"]);
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.watched_from(), ["5", "6"]);
}

#[tokio::test(start_paused = true)]
async fn a_retried_list_also_serves_a_pending_request() {
    let silent = Answer::Watch(Vec::new(), Then::StaysSilent);
    let mut rig = Rig::new([Answer::Status(503), Answer::List(6, &["b"]), silent]);
    rig.next(1).await;
    rig.relist.ask();
    assert_eq!(rig.next(2).await, ["all b", "listed"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.requests.lock().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_older_than_what_is_known_ends_the_watch() {
    let status = json!({"code": 410, "message": "too old", "reason": "Expired", "status": "Failure"});
    let expired = line("ERROR", &status);
    let answers = [
        Answer::List(5, &["a"]),
        Answer::Watch(vec![(0, modified("a", 9)), (0, expired)], Then::Ends),
        Answer::List(8, &["a"]),
    ];
    let mut rig = Rig::new(answers);
    assert_eq!(rig.next(4).await, ["all a", "listed", "applied a", "lost"]);
    assert_eq!(rig.ended.await.unwrap(), Ended::Restored);
}

#[tokio::test(start_paused = true)]
async fn a_list_with_an_object_that_is_older_than_known_ends_the_watch() {
    let status = json!({"code": 410, "message": "too old", "reason": "Expired", "status": "Failure"});
    let expired = line("ERROR", &status);
    let watched = Answer::Watch(vec![(0, modified("a", 9)), (0, expired)], Then::Ends);
    // A restore can raise the version of etcd, so that no version of the past is used again.
    let mut rig = Rig::new([Answer::List(5, &["a"]), watched, Answer::ListOf(1_000, &["a"], 5)]);
    assert_eq!(rig.next(4).await, ["all a", "listed", "applied a", "lost"]);
    assert_eq!(rig.ended.await.unwrap(), Ended::Restored);
}

#[tokio::test(start_paused = true)]
async fn a_large_list_is_forwarded_in_parts() {
    let answers = [Answer::Page(&["a", "b"]), Answer::Page(&["c"]), Answer::List(5, &["d"])];
    let mut rig = Rig::in_parts(answers);
    assert_eq!(rig.next(4).await, ["part a b", "part c", "part d", "listed"]);
}

#[tokio::test(start_paused = true)]
async fn pages_get_larger_while_their_objects_are_small() {
    let answers = [Answer::Page(&["a"]), Answer::Page(&["b"]), Answer::Page(&["c"]), Answer::List(5, &["d"])];
    let mut rig = Rig::new(answers);
    rig.next(2).await;
    let requests = rig.requests.lock().unwrap().clone();
    let limit = |query: &String| {
        let (_, limit) = query.split_once("limit=")?;
        limit.split('&').next()?.parse().ok()
    };
    let limits: Vec<u32> = requests.iter().filter_map(limit).collect();
    assert_eq!(limits, [10, 80, 500, 500]);
}

#[tokio::test(start_paused = true)]
async fn a_list_has_all_pages() {
    let answers = [Answer::Page(&["a", "b"]), Answer::Page(&["c"]), Answer::List(5, &["d"])];
    let mut rig = Rig::new(answers);
    assert_eq!(rig.next(2).await, ["all a b c d", "listed"]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_served_ends_the_watch() {
    let mut rig = Rig::new([Answer::Status(404)]);
    assert_eq!(rig.next(1).await, ["lost"]);
    assert_eq!(rig.ended.await.unwrap(), Ended::NotServed);
}

#[tokio::test(start_paused = true)]
async fn only_the_annotations_that_decisions_need_are_kept() {
    let metadata = json!({
        "name": "a", "resourceVersion": "7", "annotations": {"kept": "1", "large": "x".repeat(250_000)},
        "managedFields": [{"manager": "kubectl"}],
    });
    let object: Decoded<ConfigMap> = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    let annotations = Annotations::Only(&["kept"]);
    let mut reading =
        Reading { annotations, keep: |object: ConfigMap| object, in_parts: false, ignores_older: true };
    let slim = kept_of(object, &mut reading);
    assert_eq!(slim.meta().annotations.as_ref().unwrap().keys().collect::<Vec<_>>(), ["kept"]);
    assert!(slim.meta().managed_fields.is_none());
}
