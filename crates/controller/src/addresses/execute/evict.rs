//! Evicts a pod, the way a drain does: budgets are asked, and the pod ends in its own time.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Preconditions};
use kube::{Api, Client};

use crate::leadership::fence::Fence;

/// A pod to be evicted. Another pod may have its name by then, so its UID is named too.
#[derive(Clone, Debug)]
pub struct Evictee {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from another of its name.
    pub uid: Option<String>,
    /// The version of it that was looked at.
    pub version: Option<String>,
}

/// Why a pod was not evicted.
#[derive(Debug, thiserror::Error)]
pub enum NotEvicted {
    /// A PodDisruptionBudget does not allow it now.
    #[error("a PodDisruptionBudget does not allow it now: {0}")]
    Refused(String),
    /// We are not the leader any more, or not for long enough.
    #[error("we may not be the leader by then")]
    NotLeading,
    /// Something else.
    #[error(transparent)]
    Failed(#[from] kube::Error),
}

/// Asks for the eviction of a pod, while we lead.
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
