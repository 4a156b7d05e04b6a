//! Carries out what is planned for VIPs: makes and gives up claims, and writes on Clusters.
//!
//! In: a step for a Cluster as it was planned for. Out: an [`Ended`] for each. Nothing here decides, and nothing is tried twice.
//! Every change is a compare-and-swap: a claim is made under a name that only one can have, given up only as the one that was
//! seen, and a Cluster is changed only in the version that was planned for.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client};
use plan::Timestamp;
use plan::vips::{Key, PoolRef, Role};
use serde_json::{Value, json};

use super::names::ROLE;
use super::report::Amendment;
use super::watch::{Cluster, IPAM, Kind};
use super::{conditions, index};
use crate::leadership::fence::Fence;

/// The label by which others find what belongs to a Cluster.
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// The longest name that the field `clusterName` takes.
const CLUSTER_NAME_MAX: usize = 63;

/// Who changed a field.
const MANAGER: &str = "ip-address-controller";

/// What became of something.
pub enum Ended {
    /// A claim was made, or was not.
    Claimed(Key, Role, Result<(), kube::Error>),
    /// A claim was given up as it was seen, or was not.
    GivenUp(Key, Role, Box<ObjectMeta>, Result<(), kube::Error>),
    /// A Cluster was changed, or was not.
    Amended(Key, Amendment, Result<Box<Cluster>, kube::Error>),
    /// A Cluster was not changed, because it has become another one. This is what it is now, where that could be read.
    Outdated(Key, Amendment, Option<Box<Cluster>>),
    /// The conditions of a Cluster were written, or were not. This is what it is now, where it is still there.
    Reported(Key, Result<Option<Box<Cluster>>, kube::Error>),
    /// An Event was told, or was not.
    Told(Result<(), kube::Error>),
}

/// Makes a change if we still lead. A process that was stopped after it had begun does not send it when it goes on as no leader. What is
/// sent is not cut off: a slow apiserver would be asked the same again and again, and a second try ends as if it were the first.
pub async fn while_leading<T>(
    fence: &Fence,
    change: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match fence.remaining() {
        Some(_) => change.await,
        None => Err(kube::Error::Service("not sent: we may not be the leader by then".into())),
    }
}

/// A claim from a pool, owned by its Cluster.
pub fn claim(cluster: &ObjectMeta, served: &ApiResource, key: &Key, role: Role, pool: &PoolRef) -> Value {
    let kind = if pool.namespace.is_some() { Kind::NamespacedPools } else { Kind::GlobalPools };
    let mut labels = json!({ROLE: role.name()});
    let mut spec = json!({"poolRef": {"apiGroup": IPAM, "kind": kind.name(), "name": &*pool.name}});
    // By these the provider finds the Cluster, and leaves the claim alone while it is paused.
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

/// Makes a claim.
pub async fn create(client: Client, served: ApiResource, claim: Value) -> Result<(), kube::Error> {
    let metadata: ObjectMeta =
        serde_json::from_value(claim["metadata"].clone()).map_err(kube::Error::SerdeError)?;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let mut object = DynamicObject::new("", &served).data(json!({"spec": claim["spec"]}));
    object.metadata = metadata;
    let api = Api::<DynamicObject>::namespaced_with(client, &namespace, &served);
    api.create(&PostParams::default(), &object).await.map(|_| ())
}

/// Gives a claim up, if it still is the one that was seen.
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

/// Changes a Cluster.
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

/// Brings the conditions of a Cluster in line with its annotation, in the version that is read for it. The result is the Cluster as
/// it is then; none where it is gone.
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
    // A merge patch replaces the whole list, so it names the version in which the list was read.
    let patch = json!({
        "metadata": {"resourceVersion": cluster.metadata.resource_version},
        "status": {"conditions": conditions},
    });
    while_leading(fence, api.patch_status(&key.name, &params, &Patch::Merge(patch))).await.map(Some)
}

/// A Cluster as it is now; none where it is gone. The watch will tell of it too, but may be late when many Clusters are built.
pub async fn read(client: Client, served: ApiResource, key: &Key) -> Result<Option<Cluster>, kube::Error> {
    let api = Api::<Cluster>::namespaced_with(client, &key.namespace, &served);
    // Whoever may watch may list, too.
    let one = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let found = api.list(&one).await?.items;
    Ok(found.into_iter().find(|cluster| cluster.metadata.name.as_deref() == Some(&*key.name)))
}
