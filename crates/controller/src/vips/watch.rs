//! Watches the kinds of Cluster API and its IPAM provider, in the API versions that the apiserver serves.
//!
//! In: the apiserver's discovery and watches. Out: [`Observed`] events on a channel. The types here have only the
//! fields that the controller needs. Without Cluster API, this module requests the list of API groups twice a minute
//! and logs nothing. It starts the watches when the CRDs are installed.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::core::{ApiResource, GroupVersionKind, NotUsed, Object};
use plan::vips::{Decision, Key, Role};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::kubernetes::decode::Change;
use crate::kubernetes::watch::{
    Annotations, Clients, Ended, LIST_RETRY, Reading, Relist, Relists, WatchEvent, follow, is_not_found,
    no_response,
};
use crate::tasks::Tasks;

/// The pause between two discoveries while the apiserver does not serve all kinds.
const DISCOVER_EVERY: Duration = Duration::from_secs(30);

/// How long a discovery may take.
const DISCOVERY_MAX: Duration = Duration::from_secs(20);

/// The API group of Clusters and ClusterClasses.
pub const CORE: &str = "cluster.x-k8s.io";

/// The API group of pools, claims and addresses.
pub const IPAM: &str = "ipam.cluster.x-k8s.io";

/// The supported API versions, the preferred one first.
const VERSIONS: [&str; 4] = ["v1beta2", "v1beta1", "v1alpha2", "v1alpha1"];

/// A watched kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Clusters,
    Classes,
    GlobalPools,
    NamespacedPools,
    Claims,
    Addresses,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Clusters,
        Self::Classes,
        Self::GlobalPools,
        Self::NamespacedPools,
        Self::Claims,
        Self::Addresses,
    ];

    /// The name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clusters => "Cluster",
            Self::Classes => "ClusterClass",
            Self::GlobalPools => "GlobalInClusterIPPool",
            Self::NamespacedPools => "InClusterIPPool",
            Self::Claims => "IPAddressClaim",
            Self::Addresses => "IPAddress",
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::Clusters | Self::Classes => CORE,
            _ => IPAM,
        }
    }
}

/// A field that may be missing or null, which then decodes to its default value.
#[derive(Clone, Debug, Default)]
pub struct Lenient<T>(pub T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Option::<T>::deserialize(from).map(|found| Self(found.unwrap_or_default()))
    }
}

/// A Cluster, with the fields that the controller needs.
pub type Cluster = Object<Lenient<ClusterSpec>, ClusterStatus>;

/// The status of a Cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// All conditions as they are, also those of other controllers.
    pub conditions: Vec<Value>,
}

/// The spec of a Cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// Whether controllers must ignore the Cluster.
    pub paused: Option<bool>,
    /// The endpoint of its API server.
    pub control_plane_endpoint: Option<Endpoint>,
    /// Its ClusterClass and variables.
    pub topology: Option<Topology>,
}

/// The endpoint of an API server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Unset if empty.
    pub host: String,
    /// The port. The API accepts any number, so a value outside 1–65535 counts as unset.
    pub port: i64,
}

/// A Cluster's class, with the field names of both API versions, and its unchanged variables.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Topology {
    /// The name of the class in v1beta1.
    pub class: String,
    /// The namespace of the class in v1beta1.
    pub class_namespace: String,
    /// The class in v1beta2.
    pub class_ref: ClassRef,
    /// Variables, each with a name and a value.
    pub variables: Vec<Value>,
}

/// A reference to a ClusterClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClassRef {
    /// Its name.
    pub name: String,
    /// Its namespace. If empty, the namespace of the Cluster.
    pub namespace: String,
}

/// A ClusterClass, with the fields that the controller needs.
pub type Class = Object<Lenient<Variables>, Variables>;

/// The variables of a class. The status also has those that runtime extensions define.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Variables {
    /// The definitions.
    pub variables: Vec<Named>,
}

/// The name of a reference or definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The name.
    pub name: String,
}

/// A pool, with the fields that the controller needs.
pub type Pool = Object<Lenient<NotUsed>, PoolStatus>;

/// The status of a pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    /// The numbers of addresses.
    pub ip_addresses: Option<Addresses>,
}

/// The numbers of addresses of a pool.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Addresses {
    pub total: i64,
    pub used: i64,
    pub free: i64,
    /// Used addresses outside of the pool's range.
    #[serde(default)]
    pub out_of_range: i64,
}

/// A claim, with the fields that the controller needs.
pub type Claim = Object<ClaimSpec, ClaimStatus>;

/// The spec of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// The pool that it claims an address from.
    pub pool_ref: PoolReference,
}

/// A reference to a pool.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PoolReference {
    /// The pool's kind.
    pub kind: String,
    /// The pool's name.
    pub name: String,
}

/// The status of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// The IPAddress of the claim. Unset if the name is empty.
    pub address_ref: Named,
}

/// An IPAddress, with the fields that the controller needs.
pub type Address = Object<AddressSpec, NotUsed>;

/// The spec of an IPAddress.
#[derive(Clone, Debug, Deserialize)]
pub struct AddressSpec {
    /// The IP address.
    pub address: String,
}

/// An event of a watch, or a query of the runtime extension.
pub enum Observed {
    /// A change of Clusters.
    Clusters(Change<Cluster>),
    /// A change of ClusterClasses.
    Classes(Change<Class>),
    /// A change of pools of this kind.
    Pools(Kind, Change<Pool>),
    /// A change of claims.
    Claims(Change<Claim>),
    /// A change of addresses.
    Addresses(Change<Address>),
    /// The list of a kind that was requested at this time is complete.
    Listed(Kind, Instant),
    /// The apiserver serves this kind in this version.
    Served(Kind, ApiResource),
    /// The watch of a kind failed with this error. Its objects are unknown until the next list.
    Unsure(Kind, String),
    /// The apiserver does not serve this kind.
    Absent(Kind),
    /// A query for the plan of this Cluster, as the request of the runtime hook contains it.
    Asked(Box<Cluster>, oneshot::Sender<[(Role, Decision); 2]>),
    /// A query for the endpoint of a Cluster. The response is an error with the reason if the Cluster has to wait for
    /// it.
    AskedEndpoint(Key, oneshot::Sender<Result<Option<(String, u16)>, String>>),
}

impl Observed {
    /// The kind that an event of a watch is about, unless it is a whole list.
    pub(super) fn changed_kind(&self) -> Option<Kind> {
        let (kind, is_whole) = match self {
            Self::Clusters(change) => (Kind::Clusters, change.is_whole()),
            Self::Classes(change) => (Kind::Classes, change.is_whole()),
            Self::Pools(kind, change) => (*kind, change.is_whole()),
            Self::Claims(change) => (Kind::Claims, change.is_whole()),
            Self::Addresses(change) => (Kind::Addresses, change.is_whole()),
            _ => return None,
        };
        (!is_whole).then_some(kind)
    }

    /// The kind whose pending relist this event ends: the list is complete, or can't be made now.
    pub(super) fn answers_relist(&self) -> Option<Kind> {
        match self {
            Self::Listed(kind, _) | Self::Unsure(kind, _) | Self::Absent(kind) => Some(*kind),
            _ => None,
        }
    }
}

/// Starts the watches. They end when the set is dropped. Its task ends only if the watches can't continue.
pub fn start(
    clients: &Clients,
    relists: &Relists<Kind>,
    to: &mpsc::UnboundedSender<Observed>,
) -> Tasks<Ended> {
    let mut tasks = Tasks::default();
    tasks.spawn(watch(clients.clone(), relists.clone(), to.clone()));
    tasks
}

/// Watches each kind while the apiserver serves it. Returns if a watch can't continue.
async fn watch(clients: Clients, relists: Relists<Kind>, to: mpsc::UnboundedSender<Observed>) -> Ended {
    let mut following: Tasks<(Kind, Ended)> = Tasks::default();
    let mut waiting = BTreeSet::from(Kind::ALL);
    let mut pause = DISCOVER_EVERY;
    loop {
        if !waiting.is_empty() {
            let served = timeout(DISCOVERY_MAX, served(&clients.lists, &waiting)).await;
            let served = served.unwrap_or_else(|_| Err(no_response(DISCOVERY_MAX)));
            pause = if served.is_ok() { DISCOVER_EVERY } else { LIST_RETRY };
            for kind in std::mem::take(&mut waiting) {
                let found = served.as_ref().map(|served| served.iter().find(|(found, _)| *found == kind));
                let seen = match &found {
                    Ok(Some((_, resource))) => Observed::Served(kind, resource.clone()),
                    Ok(None) => Observed::Absent(kind),
                    Err(error) => Observed::Unsure(kind, error.to_string()),
                };
                // Sent before the watch starts, because this event clears the objects of its kind.
                if to.send(seen).is_err() {
                    return Ended::ReceiverGone;
                }
                match found {
                    Ok(Some((_, resource))) => {
                        let relist = relists.of(kind);
                        let follow = follow_kind(clients.clone(), relist, to.clone(), kind, resource.clone());
                        following.spawn(follow);
                    }
                    Ok(None) | Err(_) => _ = waiting.insert(kind),
                }
            }
        }
        let is_over = following.is_empty();
        tokio::select! {
            biased;
            ended = following.next(), if !is_over => match ended {
                Some(Ok((kind, Ended::NotServed))) => {
                    waiting.insert(kind);
                    tokio::time::sleep(LIST_RETRY).await;
                }
                Some(Ok((_, ended))) => return ended,
                Some(Err(_)) | None => {}
            },
            () = tokio::time::sleep(pause), if !waiting.is_empty() => {}
        }
    }
}

/// The kinds that the apiserver serves, each in the preferred version.
async fn served(client: &Client, kinds: &BTreeSet<Kind>) -> Result<Vec<(Kind, ApiResource)>, kube::Error> {
    let mut found: Vec<(Kind, ApiResource)> = Vec::new();
    for group in client.list_api_groups().await?.groups {
        let wanted: Vec<_> = kinds.iter().copied().filter(|kind| kind.group() == group.name).collect();
        if wanted.is_empty() {
            continue;
        }
        for version in VERSIONS {
            if !group.versions.iter().any(|served| served.version == version) {
                continue;
            }
            let listed = client.list_api_group_resources(&format!("{}/{version}", group.name)).await?;
            for kind in &wanted {
                let is_new = !found.iter().any(|(found, _)| found == kind);
                // A subresource has the kind of its resource, and a slash in its name.
                let is_meant = |name: &str, served: &str| served == kind.name() && !name.contains('/');
                let resource =
                    listed.resources.iter().find(|resource| is_meant(&resource.name, &resource.kind));
                if let Some(resource) = resource.filter(|_| is_new) {
                    let named = GroupVersionKind::gvk(&group.name, version, kind.name());
                    found.push((*kind, ApiResource::from_gvk_with_plural(&named, &resource.name)));
                }
            }
        }
    }
    Ok(found)
}

/// Watches a kind until the watch can't continue. Returns the kind and the reason.
async fn follow_kind(
    clients: Clients,
    relist: Relist,
    to: mpsc::UnboundedSender<Observed>,
    kind: Kind,
    resource: ApiResource,
) -> (Kind, Ended) {
    let from = Origin { clients: &clients, relist: &relist, kind, resource: &resource };
    let ended = match kind {
        Kind::Clusters => each(&from, &to, Observed::Clusters).await,
        Kind::Classes => each(&from, &to, Observed::Classes).await,
        Kind::GlobalPools | Kind::NamespacedPools => {
            each(&from, &to, |change| Observed::Pools(kind, change)).await
        }
        Kind::Claims => each(&from, &to, Observed::Claims).await,
        Kind::Addresses => each(&from, &to, Observed::Addresses).await,
    };
    (kind, ended)
}

/// Where the objects of a kind come from.
struct Origin<'a> {
    clients: &'a Clients,
    relist: &'a Relist,
    kind: Kind,
    resource: &'a ApiResource,
}

async fn each<P, U>(
    from: &Origin<'_>,
    to: &mpsc::UnboundedSender<Observed>,
    seen: impl Fn(Change<Object<P, U>>) -> Observed,
) -> Ended
where
    P: Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    U: Clone + Default + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let keep = |object: Object<P, U>| object;
    let mut reading = Reading { annotations: Annotations::All, keep, in_parts: false, ignores_older: true };
    let Origin { clients, relist, kind, resource } = *from;
    follow(clients, resource, &mut reading, relist, &mut 0, to, |heard| match heard {
        WatchEvent::Changed(change) => Some(seen(change)),
        WatchEvent::Listing | WatchEvent::Part(_) => None,
        WatchEvent::Listed(began) => Some(Observed::Listed(kind, began)),
        WatchEvent::Lost(_) if plan::sabotaged!(UnknownVipsReadAsEmpty) => {
            Some(seen(Change::All(Vec::new())))
        }
        WatchEvent::Lost(error) if is_not_found(&error) => Some(Observed::Absent(kind)),
        WatchEvent::Lost(error) => Some(Observed::Unsure(kind, error.to_string())),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_without_a_spec_is_decoded() {
        let bare = json!({"metadata": {"name": "c"}});
        assert!(serde_json::from_value::<Cluster>(bare.clone()).unwrap().spec.0.topology.is_none());
        assert!(serde_json::from_value::<Class>(bare.clone()).unwrap().spec.0.variables.is_empty());
        assert!(serde_json::from_value::<Pool>(bare).unwrap().status.is_none());
    }
}
