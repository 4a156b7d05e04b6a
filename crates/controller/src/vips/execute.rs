//! Carries out the planned steps for VIPs: creates and deletes claims, and updates Clusters.
//!
//! In: a step, and the Cluster or claim that it was planned for. Out: one [`Ended`] for each step. This module never
//! decides and never retries. Every change is a compare-and-swap: the name of a claim depends only on its Cluster and
//! role, a claim is deleted only with the UID and version that the controller saw, and a Cluster is updated only in the
//! version of the plan.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client};
use plan::Timestamp;
use plan::vips::{Key, PoolRef, Role};
use serde_json::{Value, json};

use super::names::ROLE;
use super::report::ClusterUpdate;
use super::watch::{Cluster, IPAM, Kind};
use super::{conditions, index};
use crate::leadership::fence::Fence;

/// Cluster API's label with the name of the Cluster that an object belongs to.
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// The longest value of the field `clusterName`.
const CLUSTER_NAME_MAX: usize = 63;

/// The field manager of the controller's updates.
const MANAGER: &str = "ip-address-controller";

/// The outcome of a step.
pub enum Ended {
    /// The creation of a claim.
    Claimed(Key, Role, Result<(), kube::Error>),
    /// The deletion of a claim, with the metadata that the controller saw before.
    GivenUp(Key, Role, Box<ObjectMeta>, Result<(), kube::Error>),
    /// An update of a Cluster.
    Amended(Key, ClusterUpdate, Result<Box<Cluster>, kube::Error>),
    /// The apiserver rejected an update because the Cluster has changed or is gone. Has the current Cluster if it could
    /// be read.
    Outdated(Key, ClusterUpdate, Option<Box<Cluster>>),
    /// An update of a Cluster's conditions. Has the current Cluster if it still exists.
    Reported(Key, Result<Option<Box<Cluster>>, kube::Error>),
}

/// Checks the lease right before it sends a change, so a process that was suspended and has lost the lease sends nothing.
/// It does not cancel a change in flight when the lease expires, because then a slow apiserver would only get the same
/// request again. A late change does no harm: every change is safe to repeat.
pub async fn while_leading<T>(
    fence: &Fence,
    change: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match fence.remaining() {
        Some(_) => change.await,
        None => {
            Err(kube::Error::Service("request not sent: the lease of this replica is no longer valid".into()))
        }
    }
}

/// Builds a claim for an address of a pool, owned by its Cluster.
pub fn claim(cluster: &ObjectMeta, served: &ApiResource, key: &Key, role: Role, pool: &PoolRef) -> Value {
    let kind = if pool.namespace.is_some() { Kind::NamespacedPools } else { Kind::GlobalPools };
    let mut labels = json!({ROLE: role.name()});
    let mut spec = json!({"poolRef": {"apiGroup": IPAM, "kind": kind.name(), "name": &*pool.name}});
    // The IPAM provider finds the Cluster by these fields, and ignores the claim while the Cluster is paused.
    if key.name.len() <= CLUSTER_NAME_MAX {
        labels[CLUSTER_NAME] = (*key.name).into();
        spec["clusterName"] = (*key.name).into();
    }
    let owner = json!({
        "apiVersion": served.api_version,
        "kind": Kind::Clusters.name(),
        "name": &*key.name,
        "uid": cluster.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    });
    let name = role.claim(key).name;
    let metadata = json!({
        "name": &*name,
        "namespace": &*key.namespace,
        "labels": labels,
        "ownerReferences": [owner],
    });
    json!({"metadata": metadata, "spec": spec})
}

/// Creates a claim.
pub async fn create(client: Client, served: ApiResource, claim: Value) -> Result<(), kube::Error> {
    let metadata: ObjectMeta =
        serde_json::from_value(claim["metadata"].clone()).map_err(kube::Error::SerdeError)?;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let mut object = DynamicObject::new("", &served).data(json!({"spec": claim["spec"]}));
    object.metadata = metadata;
    let api = Api::<DynamicObject>::namespaced_with(client, &namespace, &served);
    api.create(&PostParams::default(), &object).await.map(|_| ())
}

/// Deletes a claim if it still has the UID and version that the controller saw.
pub async fn delete(
    client: Client,
    served: ApiResource,
    claim: Key,
    seen: &ObjectMeta,
) -> Result<(), kube::Error> {
    let api = Api::<DynamicObject>::namespaced_with(client, &claim.namespace, &served);
    let ObjectMeta { uid, resource_version, .. } = seen.clone();
    let preconditions = Some(Preconditions { uid, resource_version });
    let preconditions = preconditions.filter(|_| !plan::sabotaged!(ClaimBlindlyGivenUp));
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    api.delete(&claim.name, &params).await.map(|_| ())
}

/// Patches a Cluster.
pub async fn amend(
    client: Client,
    served: ApiResource,
    key: Key,
    patch: Value,
) -> Result<Cluster, kube::Error> {
    let api = Api::<Cluster>::namespaced_with(client, &key.namespace, &served);
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    api.patch(&key.name, &params, &Patch::Merge(patch)).await
}

/// Reads a Cluster and updates its conditions to repeat its annotation. Returns the updated Cluster, or none if it is
/// gone.
pub async fn report_conditions(
    client: Client,
    served: ApiResource,
    key: &Key,
    fence: &Fence,
    now: Timestamp,
) -> Result<Option<Cluster>, kube::Error> {
    let Some(cluster) = read(client.clone(), served.clone(), key).await? else { return Ok(None) };
    let facts = index::facts(&cluster);
    let Some(conditions) =
        conditions::updated(&cluster, &served.version, now).filter(|_| !facts.is_paused && !facts.is_leaving)
    else {
        return Ok(Some(cluster));
    };
    let api = Api::<Cluster>::namespaced_with(client, &key.namespace, &served);
    let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    // A merge patch replaces the whole list, so it has to name the version that the list is from.
    let patch = json!({
        "metadata": {"resourceVersion": cluster.metadata.resource_version},
        "status": {"conditions": conditions},
    });
    while_leading(fence, api.patch_status(&key.name, &params, &Patch::Merge(patch))).await.map(Some)
}

/// Reads a Cluster, or none if it is gone. The watch delivers it too, but may lag when many Clusters are created.
pub async fn read(client: Client, served: ApiResource, key: &Key) -> Result<Option<Cluster>, kube::Error> {
    let api = Api::<Cluster>::namespaced_with(client, &key.namespace, &served);
    // A list, because the ClusterRole of 0.1.0 does not allow `get`.
    let one = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let found = api.list(&one).await?.items;
    Ok(found.into_iter().find(|cluster| cluster.metadata.name.as_deref() == Some(&*key.name)))
}
