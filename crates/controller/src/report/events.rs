//! Events on objects and nodes: what happened, for whoever asks `kubectl describe`.
//!
//! An Event is told once, when something has happened, and nobody waits for it. Those of kube's recorder are not used,
//! because it counts Events of one reason together under the first one's words, and ours differ by address.

use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource};
use plan::{NodeName, Timestamp};

use super::limits::{NOTE_MAX, cut};
use crate::decode::Report;
use crate::observe::{Object, UNDECODABLE};
use crate::watch::SlimNode;

/// The most characters of an object's name in that of an Event about it.
const NAME_MAX: usize = 180;

/// Where Events about what has no namespace are.
const NAMESPACE_OF_CLUSTER: &str = "default";

/// Something that happened to an object or a node.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// To whom.
    pub regarding: ObjectReference,
    /// Whether a person should look at it.
    pub is_warning: bool,
    /// One word.
    pub reason: String,
    /// What was being done.
    pub action: &'static str,
    /// A sentence.
    pub note: String,
}

impl News {
    /// Something that happened to an object.
    pub fn of_object(object: &Object, reason: &str, action: &'static str, note: String) -> Self {
        let regarding = match object {
            Object::Allocation(object) => reference(
                &**object,
                NetIPAllocation::kind(&()).as_ref(),
                NetIPAllocation::api_version(&()).as_ref(),
            ),
            Object::Pool(object) => reference(
                &**object,
                FloatingIPPool::kind(&()).as_ref(),
                FloatingIPPool::api_version(&()).as_ref(),
            ),
            Object::Records(object) => reference(
                &**object,
                NodeDNSRecordSet::kind(&()).as_ref(),
                NodeDNSRecordSet::api_version(&()).as_ref(),
            ),
        };
        Self { regarding, is_warning: false, reason: reason.into(), action, note }
    }

    /// Something that happened to a node.
    pub fn of_node(name: &NodeName, node: Option<&SlimNode>, reason: &str, note: String) -> Self {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.to_string()),
            uid: node.and_then(|node| node.metadata.uid.clone()),
            ..ObjectReference::default()
        };
        Self { regarding, is_warning: false, reason: reason.into(), action: "Move", note }
    }

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
        Self { regarding, is_warning: true, reason: UNDECODABLE.into(), action: "Decode", note }
    }

    /// The same, for somebody to look at.
    pub fn as_warning(self) -> Self {
        Self { is_warning: true, ..self }
    }
}

fn reference(object: &impl Resource, kind: &str, api_version: &str) -> ObjectReference {
    let metadata = object.meta();
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// What an object's new status says that the present one does not. That addresses are moved or created is told one by one,
/// and that the cloud has not been asked yet is no news.
pub(super) fn of_status(present: &Object, new: &Object) -> Option<News> {
    let find = |object: &Object, kind: &str| {
        object.conditions().iter().find(|condition| condition.type_ == kind).cloned()
    };
    let ready = find(new, "Ready")?;
    let before = find(present, "Ready").map(|ready| ready.reason);
    let is_told_otherwise = matches!(ready.reason.as_str(), "Moving" | "Queued" | "Creating")
        || (before.is_none() && ready.reason == "Unknown");
    if is_told_otherwise || before.as_ref() == Some(&ready.reason) {
        return None;
    }
    let is_stalled = find(new, "Stalled").is_some_and(|stalled| stalled.status == "True");
    let news = News::of_object(new, &ready.reason, "Reconcile", ready.message);
    Some(if is_stalled { news.as_warning() } else { news })
}

/// What is to be said of an object that uses what will go one day.
pub(super) fn of_deprecation(object: &Object) -> Option<News> {
    let Object::Allocation(allocation) = object else { return None };
    let workload = allocation.spec.workload().filter(|workload| workload.deprecated)?;
    let note = format!(
        "spec.deploymentRef is deprecated and still works; write spec.workloadRef with kind Deployment, name {} and \
         namespace {} instead",
        workload.name, workload.namespace
    );
    Some(News::of_object(object, "DeprecatedField", "Reconcile", note).as_warning())
}

pub(crate) async fn tell(
    client: Client,
    news: News,
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
        reason: Some(news.reason),
        regarding: Some(news.regarding),
        reporting_controller: Some("ip-address-controller".into()),
        reporting_instance: Some(who.to_owned()),
        type_: Some(if news.is_warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    };
    Api::namespaced(client, &namespace).create(&PostParams::default(), &event).await.map(drop)
}
