//! Evicts a pod as `kubectl drain` does: PodDisruptionBudgets and the pod's grace period apply.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Preconditions};
use kube::{Api, Client};

use crate::leadership::fence::Fence;

/// A pod to evict. The request contains its UID, because another pod may have the same name by then.
#[derive(Clone, Debug)]
pub struct Evictee {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The UID of the pod.
    pub uid: Option<String>,
    /// The `resourceVersion` that the decision is based on.
    pub version: Option<String>,
}

/// Why a pod was not evicted.
#[derive(Debug, thiserror::Error)]
pub enum NotEvicted {
    /// A PodDisruptionBudget does not allow it now.
    #[error("a PodDisruptionBudget does not allow it now: {0}")]
    Refused(String),
    /// This process does not lead, or its lease expires too soon.
    #[error("this process does not lead, or its lease expires too soon")]
    NotLeading,
    /// Any other error of the apiserver.
    #[error(transparent)]
    Failed(#[from] kube::Error),
}

/// Evicts a pod if this process leads.
pub(super) async fn evict(client: Client, fence: Arc<Fence>, pod: &Evictee) -> Result<(), NotEvicted> {
    let (uid, resource_version) = (pod.uid.clone(), pod.version.clone());
    let preconditions = Preconditions { uid, resource_version };
    let delete_options = Some(DeleteParams::default().preconditions(preconditions));
    let params = EvictParams { delete_options, ..EvictParams::default() };
    let api: Api<Pod> = Api::namespaced(client, &pod.namespace);
    let left = fence.remaining().ok_or(NotEvicted::NotLeading)?;
    match tokio::time::timeout(left, api.evict(&pod.name, &params)).await {
        Err(_) => Err(NotEvicted::NotLeading),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 429 => Err(NotEvicted::Refused(status.message)),
        Ok(Err(error)) => Err(error.into()),
    }
}
