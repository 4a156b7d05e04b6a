//! Watches Cluster API and its IPAM provider, in whatever versions the cluster serves them, from whenever it does.
//!
//! In: the apiserver's discovery and watches. Out: [`Seen`] events on a channel. Types here hold only the fields that decisions
//! need. A cluster without Cluster API costs one request for its list of API groups now and then, and no word.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::core::{ApiResource, GroupVersionKind, NotUsed, Object};
use kube::{Api, Client};
use plan::vips::{Decision, Key, Role};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::kubernetes::decode::{Change, Decoded};
use crate::kubernetes::watch::{Heard, WATCH_RETRY, follow, is_not_found};
use crate::tasks::Tasks;

/// So often a cluster is asked whether it has by now what it did not have.
const DISCOVER_EVERY: Duration = Duration::from_secs(5);

/// The group of Clusters and classes.
pub const CORE: &str = "cluster.x-k8s.io";

/// The group of pools, claims and addresses.
pub const IPAM: &str = "ipam.cluster.x-k8s.io";

/// The versions whose fields are known here, the best one first.
const VERSIONS: [&str; 4] = ["v1beta2", "v1beta1", "v1alpha2", "v1alpha1"];

/// A kind that is watched.
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

    /// Its name in the API.
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

/// What an object may lack. One that lacks it must not keep all others from being read.
#[derive(Clone, Debug, Default)]
pub struct Lenient<T>(pub T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Option::<T>::deserialize(from).map(|found| Self(found.unwrap_or_default()))
    }
}

/// A Cluster, as far as decisions need it.
pub type Cluster = Object<Lenient<ClusterSpec>, ClusterStatus>;

/// What a Cluster's status says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// Conditions as they are, of whoever set them.
    pub conditions: Vec<Value>,
}

/// What a Cluster's spec says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    /// Whether nobody is to touch it.
    pub paused: Option<bool>,
    /// Where its API server is.
    pub control_plane_endpoint: Option<Endpoint>,
    /// Its class, and what it tells the class.
    pub topology: Option<Topology>,
}

/// Where an API server is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Empty counts as none.
    pub host: String,
    /// What is no port counts as none: the API takes more than there are.
    pub port: i64,
}

/// A Cluster's class, in the words of both versions, and its variables as they are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Topology {
    /// In v1beta1.
    pub class: String,
    /// In v1beta1.
    pub class_namespace: String,
    /// In v1beta2.
    pub class_ref: ClassRef,
    /// Each with a name and a value.
    pub variables: Vec<Value>,
}

/// A reference to a class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClassRef {
    /// Its name.
    pub name: String,
    /// Its namespace; empty where it is the Cluster's.
    pub namespace: String,
}

/// A class, as far as decisions need it.
pub type Class = Object<Lenient<Variables>, Variables>;

/// The variables that a class defines, by its spec or, those of extensions included, by its status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Variables {
    /// All of them.
    pub variables: Vec<Named>,
}

/// A reference, or a definition, as far as it has a name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The name.
    pub name: String,
}

/// A pool, as far as decisions need it.
pub type Pool = Object<Lenient<NotUsed>, PoolStatus>;

/// What a pool's status says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    /// How many addresses there are.
    pub ip_addresses: Option<Addresses>,
}

/// How many addresses there are.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct Addresses {
    pub total: i64,
    pub used: i64,
    pub free: i64,
    /// Those in use that the pool's range does not have.
    #[serde(default)]
    pub out_of_range: i64,
}

/// A claim, as far as decisions need it.
pub type Claim = Object<ClaimSpec, ClaimStatus>;

/// What a claim's spec says.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// Where it claims from.
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

/// What a claim's status says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// The address that it was given; an empty name counts as none.
    pub address_ref: Named,
}

/// An address, as far as decisions need it.
pub type Address = Object<AddressSpec, NotUsed>;

/// What an address says.
#[derive(Clone, Debug, Deserialize)]
pub struct AddressSpec {
    /// The address itself.
    pub address: String,
}

/// What was seen.
pub enum Seen {
    /// Clusters.
    Clusters(Change<Cluster>),
    /// Classes.
    Classes(Change<Class>),
    /// Pools of either kind.
    Pools(Kind, Change<Pool>),
    /// Claims.
    Claims(Change<Claim>),
    /// Addresses.
    Addresses(Change<Address>),
    /// The cluster has this kind, in this version.
    Served(Kind, ApiResource),
    /// A watch has failed with these words; until it tells of something again, its kind is not known.
    Unsure(Kind, String),
    /// The cluster does not have this kind.
    Absent(Kind),
    /// Somebody asks what is planned for a Cluster as they know it.
    Asked(Box<Cluster>, oneshot::Sender<[(Role, Decision); 2]>),
    /// Somebody asks for the endpoint of a Cluster. Where that is not known yet, the answer is what is waited for.
    AskedEndpoint(Key, oneshot::Sender<Result<Option<(String, u16)>, String>>),
}

/// Starts watching. The watches end when the set is dropped.
pub fn start(client: &Client, to: &mpsc::UnboundedSender<Seen>) -> Tasks<()> {
    let mut tasks = Tasks::default();
    tasks.spawn(watch(client.clone(), to.clone()));
    tasks
}

/// Follows each kind from when the cluster has it, for as long as somebody listens.
async fn watch(client: Client, to: mpsc::UnboundedSender<Seen>) {
    let mut following: Tasks<(Kind, bool)> = Tasks::default();
    let mut waiting = BTreeSet::from(Kind::ALL);
    loop {
        if !waiting.is_empty() {
            let served = served(&client, &waiting).await;
            for kind in std::mem::take(&mut waiting) {
                let found = served.as_ref().map(|served| served.iter().find(|(found, _)| *found == kind));
                let seen = match &found {
                    Ok(Some((_, resource))) => Seen::Served(kind, resource.clone()),
                    Ok(None) => Seen::Absent(kind),
                    Err(error) => Seen::Unsure(kind, error.to_string()),
                };
                // Told before anything of its kind is, which would otherwise be forgotten again.
                if to.send(seen).is_err() {
                    return;
                }
                match found {
                    Ok(Some((_, resource))) => {
                        following.spawn(follow_kind(client.clone(), to.clone(), kind, resource.clone()));
                    }
                    Ok(None) | Err(_) => _ = waiting.insert(kind),
                }
            }
        }
        let is_over = following.is_empty();
        tokio::select! {
            biased;
            ended = following.next(), if !is_over => match ended {
                Some(Ok((kind, true))) => {
                    waiting.insert(kind);
                    tokio::time::sleep(WATCH_RETRY).await;
                }
                Some(Ok((_, false))) => return,
                Some(Err(_)) | None => {}
            },
            () = tokio::time::sleep(DISCOVER_EVERY), if !waiting.is_empty() => {}
        }
    }
}

/// Which of these kinds the cluster has, each in the best version that it serves.
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
                // Subresources have the kind of their resource, and a slash in their name.
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

/// Follows a kind until its watch fails; the answer is whether somebody still listens.
async fn follow_kind(
    client: Client,
    to: mpsc::UnboundedSender<Seen>,
    kind: Kind,
    resource: ApiResource,
) -> (Kind, bool) {
    let (client, resource) = (&client, &resource);
    let is_heard = match kind {
        Kind::Clusters => each(client, &to, kind, resource, Seen::Clusters).await,
        Kind::Classes => each(client, &to, kind, resource, Seen::Classes).await,
        Kind::GlobalPools | Kind::NamespacedPools => {
            each(client, &to, kind, resource, |change| Seen::Pools(kind, change)).await
        }
        Kind::Claims => each(client, &to, kind, resource, Seen::Claims).await,
        Kind::Addresses => each(client, &to, kind, resource, Seen::Addresses).await,
    };
    (kind, is_heard)
}

async fn each<P, U>(
    client: &Client,
    to: &mpsc::UnboundedSender<Seen>,
    kind: Kind,
    resource: &ApiResource,
    seen: impl Fn(Change<Object<P, U>>) -> Seen,
) -> bool
where
    P: Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    U: Clone + Default + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<Decoded<Object<P, U>>>::all_with(client.clone(), resource);
    follow(api, to, |heard| match heard {
        Heard::Changed(change) => seen(change),
        Heard::Lost(_) if plan::sabotaged!(UnknownVipsReadAsEmpty) => seen(Change::All(Vec::new())),
        Heard::Lost(error) if is_not_found(&error) => Seen::Absent(kind),
        Heard::Lost(error) => Seen::Unsure(kind, error.to_string()),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_without_a_spec_can_be_read() {
        let bare = json!({"metadata": {"name": "c"}});
        assert!(serde_json::from_value::<Cluster>(bare.clone()).unwrap().spec.0.topology.is_none());
        assert!(serde_json::from_value::<Class>(bare.clone()).unwrap().spec.0.variables.is_empty());
        assert!(serde_json::from_value::<Pool>(bare).unwrap().status.is_none());
    }
}
