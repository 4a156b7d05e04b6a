//! Keeps the observed Clusters, ClusterClasses, pools, claims and addresses as a `World`: plain data.
//!
//! In: [`Observed`] events, and the responses to the controller's own writes. Out: the world for the planner, and the
//! metadata that writes need. Only this module reads the labels and annotations that users set.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::core::{ApiResource, ObjectMeta};
use kube::{Resource, ResourceExt};
use plan::vips::{self, Count, Key, PoolRef, Role, World};
use serde_json::Value;
use tokio::time::Instant;

use super::conditions;
use super::names::{CLASS, INGRESS_ENABLED, INGRESS_VIP, PAUSED, PRIORITY, ROLE, STATUS, VARIABLE};
use super::watch::{
    Address, Addresses, Claim, Class, Cluster, ClusterSpec, Endpoint, Kind, Lenient, Observed, Pool, Topology,
};
use crate::kubernetes::decode::{Change, Decoded, Register, Settled, Undecodable, names_of};
use crate::kubernetes::freshness::Freshness;
use crate::kubernetes::watch::version;

/// The data of a Cluster that writes need and the planner does not.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// Its name, namespace, UID, version and creation time.
    pub metadata: ObjectMeta,
    /// The port of its endpoint.
    pub port: Option<u16>,
    /// Its variables, unchanged. None if it has no topology.
    pub variables: Option<Vec<Value>>,
    /// The annotation with the state of its VIPs.
    pub state_annotation: Option<String>,
    /// Whether its conditions repeat the annotation.
    pub are_conditions_current: bool,
}

/// All observed objects.
#[derive(Default)]
pub struct Index {
    /// The input of the planner.
    pub world: World,
    /// The data of each Cluster that the controller needs for its writes.
    pub clusters: BTreeMap<Key, Tracked>,
    /// The UID and version of each claim, as preconditions of its deletion.
    pub claims: BTreeMap<Key, ObjectMeta>,
    /// Objects that can't be decoded.
    pub undecodable: Register<Kind>,
    /// The API version in which the apiserver serves each kind.
    pub served: BTreeMap<Kind, ApiResource>,
    /// Kinds without complete data, and the error of their watch. The index logs the same error only once.
    incomplete: BTreeMap<Kind, String>,
    absent: BTreeSet<Kind>,
    /// Kinds that the apiserver has served at some time.
    ever_served: BTreeSet<Kind>,
    /// How recent the known objects of each kind are.
    freshness: Freshness<Kind>,
}

impl Index {
    /// Whether the index has all objects of each kind that the apiserver serves.
    pub fn is_complete(&self) -> bool {
        let is_known = |kind| self.served.contains_key(&kind) && !self.incomplete.contains_key(&kind);
        Kind::ALL.into_iter().all(|kind| self.absent.contains(&kind) || is_known(kind))
    }

    /// The kinds whose watch has been silent for a while. ClusterClasses are left out: they decide neither whether a
    /// VIP is free nor which pool it comes from.
    pub fn silent(&self) -> BTreeSet<Kind> {
        let now = Instant::now();
        let is_silent =
            |kind: &Kind| !self.incomplete.contains_key(kind) && self.freshness.is_silent(*kind, now);
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Classes);
        kinds.filter(is_silent).collect()
    }

    /// Counts every known watch as silent, because the machine was suspended.
    pub fn note_suspend(&mut self) {
        self.freshness.note_suspend(Instant::now());
    }

    /// Applies an event. Ignores queries, which the reconciler answers.
    pub fn observe(&mut self, seen: Observed) {
        if let Some(kind) = seen.changed_kind() {
            self.freshness.heard(kind, Instant::now());
        }
        match seen {
            Observed::Listed(kind, began) => {
                self.freshness.listed(kind, began, Instant::now());
            }
            Observed::Clusters(change) => self.observe_clusters(change),
            Observed::Classes(change) => {
                self.set_complete(Kind::Classes);
                self.world.undecodable.classes = self.note(Kind::Classes, &change);
                apply(&mut self.world.classes, change, key, |class| Some(defines(class)), |_, last| last);
            }
            Observed::Pools(kind, change) => {
                self.set_complete(kind);
                self.note(kind, &change);
                let pools = match kind {
                    Kind::NamespacedPools => &mut self.world.namespaced_pools,
                    _ => &mut self.world.global_pools,
                };
                apply(
                    pools,
                    change,
                    pool_ref,
                    |found| Some(pool(found)),
                    |undecodable, last| last.or_else(|| Some(pool(&stand_in(&undecodable.metadata)))),
                );
            }
            Observed::Claims(change) => self.observe_claims(change),
            Observed::Addresses(change) => {
                self.set_complete(Kind::Addresses);
                self.world.undecodable.addresses = self.note(Kind::Addresses, &change);
                apply(&mut self.world.addresses, change, key, address, |_, last| last);
            }
            Observed::Served(kind, resource) => {
                let version = &resource.version;
                if self.served.get(&kind).is_none_or(|known| known.version != *version) {
                    tracing::info!(kind = kind.name(), version, "watching");
                }
                self.absent.remove(&kind);
                self.ever_served.insert(kind);
                self.served.insert(kind, resource);
                // The data is complete after the watch's first list.
                self.incomplete.entry(kind).or_default();
                self.forget(kind);
            }
            Observed::Unsure(kind, error) => {
                if self.incomplete.get(&kind) != Some(&error) {
                    tracing::warn!(kind = kind.name(), error, "a watch failed");
                }
                self.incomplete.insert(kind, error);
                self.forget(kind);
            }
            Observed::Absent(kind) => self.observe_absent(kind),
            Observed::Asked(..) | Observed::AskedEndpoint(..) => {}
        }
    }

    /// A kind that was never served has no objects. The objects of a kind that is no longer served are unknown.
    fn observe_absent(&mut self, kind: Kind) {
        self.absent.insert(kind);
        // There is nothing to list.
        self.freshness.forget(kind);
        if self.served.remove(&kind).is_some() {
            tracing::warn!(kind = kind.name(), "the apiserver no longer serves this kind");
        }
        if self.ever_served.contains(&kind) {
            return self.forget(kind);
        }
        match kind {
            Kind::GlobalPools => _ = self.world.global_pools.get_or_insert_default(),
            Kind::NamespacedPools => _ = self.world.namespaced_pools.get_or_insert_default(),
            _ => {}
        }
    }

    fn set_complete(&mut self, kind: Kind) {
        self.incomplete.remove(&kind);
    }

    fn forget(&mut self, kind: Kind) {
        match kind {
            Kind::Clusters => self.world.are_clusters_known = false,
            Kind::Classes => self.world.classes = None,
            Kind::GlobalPools => self.world.global_pools = None,
            Kind::NamespacedPools => self.world.namespaced_pools = None,
            Kind::Claims => self.world.claims = None,
            Kind::Addresses => self.world.addresses = None,
        }
    }

    /// Records the objects of a kind that can't be decoded, and returns all of them.
    fn note<K: Resource>(&mut self, kind: Kind, change: &Change<K>) -> BTreeSet<Key> {
        self.undecodable.observe(kind, change, |object| names_of(object.meta()));
        let of_kind = self.undecodable.of(kind);
        of_kind.map(|(namespace, name)| Key { namespace: namespace.into(), name: name.into() }).collect()
    }

    fn observe_clusters(&mut self, change: Change<Cluster>) {
        self.set_complete(Kind::Clusters);
        self.note(Kind::Clusters, &change);
        match change {
            Change::All(all) => {
                self.world.are_clusters_known = true;
                let present: BTreeSet<_> = all.iter().map(|cluster| key(cluster.meta())).collect();
                self.clusters.retain(|key, _| present.contains(key));
                self.world.clusters.retain(|key, _| present.contains(key));
                all.into_iter().for_each(|cluster| self.observe_decoded_cluster(cluster));
            }
            Change::Applied(cluster) => self.observe_decoded_cluster(*cluster),
            Change::Deleted(gone) => {
                let key = key(&gone);
                self.clusters.remove(&key);
                self.world.clusters.remove(&key);
            }
        }
    }

    /// Applies a version of a Cluster. If this version can't be decoded, the index keeps the last one, reserves every
    /// address in the JSON as a VIP of this Cluster, and the planner does nothing for it.
    fn observe_decoded_cluster(&mut self, cluster: Decoded<Cluster>) {
        let undecodable = match cluster {
            Decoded::Object(cluster) => return self.observe_cluster(cluster),
            Decoded::Undecodable(undecodable) => undecodable,
        };
        let key = key(&undecodable.metadata);
        let known = self.clusters.get(&key).filter(|known| known.metadata.uid == undecodable.metadata.uid);
        match known {
            Some(known) if version(&known.metadata) > version(&undecodable.metadata) => return,
            Some(_) => {}
            None => self.observe_cluster(stand_in_cluster(&undecodable)),
        }
        let (Some(cluster), Some(tracked)) = (self.world.clusters.get_mut(&key), self.clusters.get_mut(&key))
        else {
            return;
        };
        cluster.undecodable = Some(undecodable.addresses());
        // The response to an earlier write must not replace this version.
        tracked.metadata.resource_version = undecodable.metadata.resource_version;
    }

    /// Updates the index with the Cluster that a write returned. Ignores a response about a Cluster that no
    /// longer exists.
    pub fn observe_answer(&mut self, cluster: Cluster) {
        let known = self.clusters.get(&key(&cluster.metadata));
        if known.is_some_and(|known| known.metadata.uid == cluster.metadata.uid) {
            self.observe_cluster(cluster);
        }
    }

    /// Applies a Cluster, unless a newer version is known: the response to a write can arrive before the watch event.
    fn observe_cluster(&mut self, cluster: Cluster) {
        let key = key(&cluster.metadata);
        let known = self.clusters.get(&key).filter(|known| known.metadata.uid == cluster.metadata.uid);
        if known.is_some_and(|known| version(&known.metadata) > version(&cluster.metadata)) {
            return;
        }
        let (annotations, Lenient(spec)) = (cluster.annotations(), &cluster.spec);
        let tracked = Tracked {
            port: spec.control_plane_endpoint.as_ref().and_then(port),
            variables: spec.topology.as_ref().map(|topology| topology.variables.clone()),
            state_annotation: annotations.get(STATUS).cloned(),
            are_conditions_current: conditions::are_current(&cluster),
            metadata: ObjectMeta {
                name: cluster.metadata.name.clone(),
                namespace: cluster.metadata.namespace.clone(),
                uid: cluster.metadata.uid.clone(),
                resource_version: cluster.metadata.resource_version.clone(),
                creation_timestamp: cluster.metadata.creation_timestamp.clone(),
                ..ObjectMeta::default()
            },
        };
        self.world.clusters.insert(key.clone(), facts(&cluster));
        self.clusters.insert(key, tracked);
    }

    fn observe_claims(&mut self, change: Change<Claim>) {
        self.set_complete(Kind::Claims);
        self.world.undecodable.claims = self.note(Kind::Claims, &change);
        // The last known version of an undecodable claim may be outdated, so the planner does not use it.
        let Some(change) = change.with_stand_ins(|_| None) else { return };
        match change {
            Settled::All(all) => {
                self.world.claims = Some(BTreeMap::new());
                self.claims.clear();
                all.into_iter().for_each(|claim| self.observe_claim(claim));
            }
            Settled::Applied(claim) => self.observe_claim(claim),
            Settled::Deleted(gone) => {
                let key = key(&gone);
                let is_same = self.claims.get(&key).is_some_and(|known| known.uid == gone.uid);
                if is_same {
                    self.claims.remove(&key);
                    self.world.claims.as_mut().map(|claims| claims.remove(&key));
                }
            }
        }
    }

    /// Applies a claim if it has the name of a claim for a VIP, and no newer version is known.
    fn observe_claim(&mut self, claim: Claim) {
        let key = key(&claim.metadata);
        if role_of_claim(&key).is_none() {
            return;
        }
        let known = self.claims.get(&key).filter(|known| known.uid == claim.metadata.uid);
        if known.is_some_and(|known| version(known) > version(&claim.metadata)) {
            return;
        }
        let Some(claims) = &mut self.world.claims else { return };
        let owners = claim.owner_references().iter().map(|owner| owner.uid.as_str().into()).collect();
        let is_namespaced = claim.spec.pool_ref.kind == Kind::NamespacedPools.name();
        let address = claim.status.as_ref().map(|status| status.address_ref.name.as_str());
        let facts = vips::Claim {
            uid: claim.metadata.uid.as_deref().unwrap_or_default().into(),
            owners,
            pool: PoolRef {
                name: claim.spec.pool_ref.name.as_str().into(),
                namespace: is_namespaced.then(|| Arc::clone(&key.namespace)),
            },
            address: address
                .filter(|name| !name.is_empty())
                .map(|name| Key { namespace: Arc::clone(&key.namespace), name: name.into() }),
            is_leaving: claim.metadata.deletion_timestamp.is_some(),
        };
        claims.insert(key.clone(), facts);
        self.claims.insert(
            key,
            ObjectMeta {
                uid: claim.metadata.uid.clone(),
                resource_version: claim.metadata.resource_version.clone(),
                ..ObjectMeta::default()
            },
        );
    }
}

/// The role of a claim, derived from its name. None if it is not a claim for a VIP.
pub fn role_of_claim(key: &Key) -> Option<Role> {
    Role::ALL.into_iter().find(|role| key.name.starts_with(role.claim_prefix()))
}

/// Applies a change to the known values. `facts` returns the value of an object. `left` returns the value of an
/// undecodable object, given the last known value.
fn apply<O: Resource, K: Ord, V>(
    known: &mut Option<BTreeMap<K, V>>,
    change: Change<O>,
    key: impl Fn(&ObjectMeta) -> K,
    facts: impl Fn(&O) -> Option<V>,
    left: impl Fn(Undecodable, Option<V>) -> Option<V>,
) {
    let set = |one: Decoded<O>, last: Option<V>| match one {
        Decoded::Object(object) => facts(&object),
        Decoded::Undecodable(undecodable) => left(*undecodable, last),
    };
    match (change, known) {
        (Change::All(all), known) => {
            let mut before = known.take().unwrap_or_default();
            let all = all.into_iter().filter_map(|one| {
                let key = key(one.meta());
                let last = before.remove(&key);
                Some((key, set(one, last)?))
            });
            *known = Some(all.collect());
        }
        // The next list will have it.
        (_, None) => {}
        (Change::Applied(one), Some(known)) => {
            let key = key(one.meta());
            let last = known.remove(&key);
            if let Some(value) = set(*one, last) {
                known.insert(key, value);
            }
        }
        (Change::Deleted(gone), Some(known)) => _ = known.remove(&key(&gone)),
    }
}

/// A pool with this metadata and nothing else.
fn stand_in(metadata: &ObjectMeta) -> Pool {
    Pool { types: None, metadata: metadata.clone(), spec: Lenient::default(), status: None }
}

/// A Cluster with the metadata and, if it can be decoded, the endpoint.
fn stand_in_cluster(undecodable: &Undecodable) -> Cluster {
    let spec = ClusterSpec {
        control_plane_endpoint: undecodable.at(&["spec", "controlPlaneEndpoint"]),
        ..ClusterSpec::default()
    };
    Cluster { types: None, metadata: undecodable.metadata.clone(), spec: Lenient(spec), status: None }
}

/// An object's namespace and name.
pub fn key(metadata: &ObjectMeta) -> Key {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    Key { namespace: text(&metadata.namespace), name: text(&metadata.name) }
}

fn pool_ref(metadata: &ObjectMeta) -> PoolRef {
    let Key { namespace, name } = key(metadata);
    PoolRef { name, namespace: Some(namespace).filter(|namespace| !namespace.is_empty()) }
}

/// Converts an IPAddress. Its claim is the owner reference with `controller: true`. None if `spec.address` is not an IP
/// address.
fn address(found: &Address) -> Option<vips::Address> {
    let owner = found.owner_references().iter().find(|owner| owner.controller == Some(true));
    Some(vips::Address {
        ip: found.spec.address.parse().ok()?,
        claim: owner.map(|owner| owner.uid.as_str().into()),
    })
}

fn port(endpoint: &Endpoint) -> Option<u16> {
    u16::try_from(endpoint.port).ok().filter(|port| *port != 0)
}

/// The planner's view of a Cluster.
pub fn facts(cluster: &Cluster) -> vips::Cluster {
    let Lenient(spec) = &cluster.spec;
    let text = |text: &str| (!text.is_empty()).then(|| Arc::<str>::from(text));
    let annotation = |name: &str| cluster.annotations().get(name).and_then(|value| text(value));
    let topology = spec.topology.as_ref().and_then(|topology| class_of(topology, cluster));
    let class = match &topology {
        Some(class) => Some(Arc::clone(&class.name)),
        None => annotation(CLASS),
    };
    let wants_ingress = match annotation(INGRESS_ENABLED).as_deref() {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ => None,
    };
    vips::Cluster {
        uid: cluster.metadata.uid.as_deref().unwrap_or_default().into(),
        class,
        topology,
        is_paused: spec.paused == Some(true) || cluster.annotations().contains_key(PAUSED),
        is_leaving: cluster.metadata.deletion_timestamp.is_some(),
        endpoint: spec.control_plane_endpoint.as_ref().and_then(|endpoint| text(&endpoint.host)),
        variable: spec.topology.as_ref().and_then(variable),
        wants_ingress,
        ingress: annotation(INGRESS_VIP),
        ingress_label: cluster.labels().get(INGRESS_VIP).and_then(|value| text(value)),
        undecodable: None,
    }
}

fn class_of(topology: &Topology, cluster: &Cluster) -> Option<Key> {
    let Topology { class, class_namespace, class_ref, .. } = topology;
    let first = |one: &str, other: &str| -> Arc<str> { if one.is_empty() { other } else { one }.into() };
    let name = first(&class_ref.name, class);
    let namespace = first(&class_ref.namespace, class_namespace);
    let namespace = first(&namespace, cluster.metadata.namespace.as_deref().unwrap_or_default());
    (!name.is_empty()).then_some(Key { namespace, name })
}

fn variable(topology: &Topology) -> Option<Arc<str>> {
    let value = &topology.variables.iter().find(|variable| variable["name"] == VARIABLE)?["value"];
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.as_str().into()),
        other => Some(other.to_string().into()),
    }
    .filter(|text: &Arc<str>| !text.is_empty())
}

fn defines(class: &Class) -> bool {
    let of_status = class.status.iter().flat_map(|status| &status.variables);
    class.spec.0.variables.iter().chain(of_status).any(|variable| variable.name == VARIABLE)
}

fn pool(found: &Pool) -> vips::Pool {
    let label = |name: &str| found.labels().get(name).map(String::as_str).unwrap_or_default();
    // The value of a label is short and can't contain a comma, so several classes are in an annotation.
    let classes = match label(CLASS) {
        "true" => found.annotations().get(CLASS).map(String::as_str).unwrap_or_default(),
        class => class,
    };
    let classes = classes.split(',').map(str::trim).filter(|class| !class.is_empty());
    let count = found.status.as_ref().and_then(|status| status.ip_addresses);
    vips::Pool {
        classes: classes.map(Into::into).collect(),
        role: label(ROLE).into(),
        priority: label(PRIORITY).parse().unwrap_or(0),
        count: count.map(|Addresses { total, used, free, out_of_range }| {
            // The provider subtracts used addresses from `free` even if they are no longer in the pool's range.
            Count { total, used, free: free + out_of_range }
        }),
        is_leaving: found.metadata.deletion_timestamp.is_some(),
    }
}
