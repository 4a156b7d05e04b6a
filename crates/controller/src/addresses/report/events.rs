//! Events on our objects and on nodes.

use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use plan::NodeName;

use crate::addresses::object::Object;
use crate::addresses::watch::SlimNode;
use crate::kubernetes::events::NewEvent;

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
pub(super) fn of_status(present: &Object, new: &Object) -> Option<NewEvent> {
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
    let news = NewEvent::of_object(new, &ready.reason, "Reconcile", ready.message);
    Some(if is_stalled { news.as_warning() } else { news })
}

/// What is to be said of an object that uses what will go one day.
pub(super) fn of_deprecation(object: &Object) -> Option<NewEvent> {
    let Object::Allocation(allocation) = object else { return None };
    let workload = allocation.spec.workload().filter(|workload| workload.deprecated)?;
    let note = format!(
        "spec.deploymentRef is deprecated and still works; write spec.workloadRef with kind Deployment, name {} and \
         namespace {} instead",
        workload.name, workload.namespace
    );
    Some(NewEvent::of_object(object, "DeprecatedField", "Reconcile", note).as_warning())
}

impl NewEvent {
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
}
