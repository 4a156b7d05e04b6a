//! Events on our objects and on nodes.

use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use plan::{ConditionType, EventReason, NodeName, Reason};

use crate::addresses::node::Node;
use crate::addresses::object::Object;
use crate::kubernetes::events::{EventKind, NewEvent};

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

/// The Event for a new reason of the condition `Ready`. There is none for moves, which have separate Events, none
/// for creations in progress, and none for the first `Unknown`, before the first listing.
pub(super) fn of_status(present: &Object, new: &Object) -> Option<NewEvent> {
    let ready = |object: &Object| {
        object.conditions().iter().find(|condition| condition.type_ == ConditionType::Ready.name()).cloned()
    };
    let now = ready(new)?;
    let reason = *Reason::ALL.iter().find(|reason| reason.name() == now.reason)?;
    let before = ready(present).map(|ready| ready.reason);
    let is_reported_otherwise = matches!(reason, Reason::Moving | Reason::Queued | Reason::Creating)
        || (before.is_none() && reason == Reason::Unknown);
    if is_reported_otherwise || before.as_deref() == Some(reason.name()) {
        return None;
    }
    Some(NewEvent::of_object(new, reason, "Reconcile", now.message))
}

/// The Event of an object that uses a deprecated field.
pub(super) fn of_deprecation(object: &Object) -> Option<NewEvent> {
    let Object::Allocation(allocation) = object else { return None };
    let workload = allocation.spec.workload().filter(|workload| workload.deprecated)?;
    let note = format!(
        "spec.deploymentRef is deprecated and still works; write spec.workloadRef with kind Deployment, name {} and \
         namespace {} instead",
        workload.name, workload.namespace
    );
    Some(NewEvent::of_object(object, EventReason::DeprecatedField, "Reconcile", note))
}

impl NewEvent {
    /// An Event on an object.
    pub fn of_object(
        object: &Object,
        reason: impl Into<EventKind>,
        action: &'static str,
        note: String,
    ) -> Self {
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
        Self { regarding, kind: reason.into(), action, note }
    }

    /// An Event on a node.
    pub fn of_node(name: &NodeName, node: Option<&Node>, reason: EventReason, note: String) -> Self {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.to_string()),
            uid: node.and_then(|node| node.uid.as_deref().map(ToOwned::to_owned)),
            ..ObjectReference::default()
        };
        Self { regarding, kind: reason.into(), action: "Move", note }
    }
}
