//! Events: what happened, for whoever runs `kubectl describe`.
//!
//! The controller publishes an Event once, when something has happened, and never waits for it. It does not use kube's recorder, which
//! merges Events of one reason under the first note: ours differ by address.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use plan::{ConditionType, EventReason, Reason, Timestamp};

use super::decode::Report;
use super::limits::{NOTE_MAX, cut};

/// The most characters of an object's name in that of an Event about it.
const NAME_MAX: usize = 180;

/// Where Events about what has no namespace are.
const NAMESPACE_OF_CLUSTER: &str = "default";

/// The reason of an Event, and whether its type is Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// The reason.
    pub reason: &'static str,
    /// Whether a person should look at it.
    pub is_warning: bool,
}

impl From<EventReason> for EventKind {
    fn from(reason: EventReason) -> Self {
        Self { reason: reason.name(), is_warning: reason.row().is_warning }
    }
}

impl From<Reason> for EventKind {
    fn from(reason: Reason) -> Self {
        Self { reason: reason.name(), is_warning: reason.condition() == ConditionType::Stalled }
    }
}

/// Something that happened to an object or a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// To whom.
    pub regarding: ObjectReference,
    /// Its reason, and whether a person should look at it.
    pub kind: EventKind,
    /// What was being done.
    pub action: &'static str,
    /// A sentence.
    pub note: String,
}

impl NewEvent {
    /// An object can't be decoded.
    pub fn of_undecodable<T>(report: &Report<T>, kind: &str, api_version: &str) -> Self {
        let regarding = ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(report.name.clone()),
            namespace: Some(report.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            uid: report.uid.clone(),
            ..ObjectReference::default()
        };
        let note = format!(
            "the controller can't decode this object and does not act on it; correct this field: {}",
            report.error
        );
        Self { regarding, kind: EventReason::Undecodable.into(), action: "Decode", note }
    }
}

pub(crate) async fn tell(
    client: Client,
    news: NewEvent,
    number: u64,
    who: &str,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let namespace = news.regarding.namespace.clone().unwrap_or_else(|| NAMESPACE_OF_CLUSTER.into());
    let name: String = news.regarding.name.iter().flat_map(|name| name.chars()).take(NAME_MAX).collect();
    let event = Event {
        metadata: ObjectMeta {
            // Two may happen in the same moment.
            name: Some(format!("{name}.{:x}.{number:x}", now.as_nanosecond())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some(news.action.into()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(&news.note, NOTE_MAX)),
        reason: Some(news.kind.reason.into()),
        regarding: Some(news.regarding),
        reporting_controller: Some("ip-address-controller".into()),
        reporting_instance: Some(who.to_owned()),
        type_: Some(if news.kind.is_warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    };
    Api::namespaced(client, &namespace).create(&PostParams::default(), &event).await.map(drop)
}
