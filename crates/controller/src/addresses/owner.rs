//! An owner of pods as the index keeps it: a Deployment, ReplicaSet, StatefulSet or DaemonSet.
//!
//! In: the metadata of an object. Out: its name, its UID, and the UID of the object that controls it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// An owner of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: Option<String>,
    /// The UID of the object that controls it.
    pub controlled_by: Option<String>,
}

impl From<ObjectMeta> for Owner {
    fn from(metadata: ObjectMeta) -> Self {
        Self {
            controlled_by: controller_of(&metadata).map(|owner| owner.uid.clone()),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid,
        }
    }
}

/// The owner that controls an object.
pub(crate) fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.as_deref()?.iter().find(|owner| owner.controller == Some(true))
}
