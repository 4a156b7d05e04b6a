//! Carries out what is planned for VIPs: makes and gives up claims, and writes on Clusters.
//!
//! In: a step for a Cluster as it was planned for. Out: an [`Ended`] for each. Nothing here decides, and nothing is tried twice.
//! Every change is a compare-and-swap: a claim is made under a name that only one can have, given up only as the one that was
//! seen, and a Cluster is changed only in the version that was planned for.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client};
use plan::vips::{Key, PoolRef, Role};
use serde_json::{Value, json};

use super::ROLE;
use super::report::Amendment;
use super::watch::{Claim, Cluster, IPAM, Kind};

/// The label by which others find what belongs to a Cluster.
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// The longest name that the field `clusterName` takes.
const CLUSTER_NAME_MAX: usize = 63;

/// Who changed a field.
const MANAGER: &str = "ip-address-controller";

/// What became of something.
pub enum Ended {
    /// A claim was made, or was not.
    Claimed(Key, Role, Result<Claim, kube::Error>),
    /// A claim was given up in this version, or was not.
    GivenUp(Key, Role, u64, Result<(), kube::Error>),
    /// A Cluster was changed, or was not.
    Amended(Key, Amendment, Result<Cluster, kube::Error>),
    /// An Event was told, or was not.
    Told(Result<(), kube::Error>),
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
pub async fn create(client: Client, served: ApiResource, claim: Value) -> Result<Claim, kube::Error> {
    let metadata: ObjectMeta =
        serde_json::from_value(claim["metadata"].clone()).map_err(kube::Error::SerdeError)?;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let mut object = DynamicObject::new("", &served).data(json!({"spec": claim["spec"]}));
    object.metadata = metadata;
    let api = Api::<DynamicObject>::namespaced_with(client, &namespace, &served);
    let made = api.create(&PostParams::default(), &object).await?;
    made.try_parse().map_err(|error| kube::Error::SerdeError(serde::de::Error::custom(error)))
}

/// Gives a claim up, if it still is the one that was seen.
pub async fn delete(
    client: Client,
    served: ApiResource,
    claim: Key,
    seen: ObjectMeta,
) -> Result<(), kube::Error> {
    let api = Api::<DynamicObject>::namespaced_with(client, &claim.namespace, &served);
    let preconditions = Preconditions { uid: seen.uid, resource_version: seen.resource_version };
    let preconditions = Some(preconditions).filter(|_| !plan::sabotaged!(ClaimBlindlyGivenUp));
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
