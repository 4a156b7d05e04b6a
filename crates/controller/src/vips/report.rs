//! Builds the update of a Cluster: its VIPs, and the annotation with their state.
//!
//! In: a Cluster, and the plan for it. Out: one patch with its Events, or none if the Cluster is up to date. The state
//! is in an annotation because one request can't change the spec and the status together. A later request copies the
//! annotation into the conditions. Each new reason causes one Event. A patch that writes a VIP also writes the state
//! that holds after it.
//! This module never sends a request.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::{ApiResource, ObjectMeta};
use plan::vips::{self, Key, Role, Step, Verdict, World};
use plan::{EventReason, VipReason};
use serde_json::{Value, json};

use super::codec::{VipState, vip_states};
use super::index::Tracked;
use super::names::{INGRESS_VIP, STATUS, VARIABLE};
use super::watch::Kind;
use crate::kubernetes::events::{EventKind, NewEvent};

/// An update of a Cluster.
pub struct ClusterUpdate {
    /// The merge patch.
    pub patch: Value,
    /// The VIPs that the patch writes.
    pub vips: Vec<Written>,
    /// The Events to publish after the patch succeeded.
    pub events: Vec<NewEvent>,
}

/// A VIP that a patch writes into a Cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// Its role.
    pub role: Role,
    /// The VIP.
    pub vip: Arc<str>,
    /// Whether the Cluster had no VIP of this role before. False if the patch only adds a missing copy.
    pub is_new: bool,
}

/// How much to report about a VIP.
pub enum Verbosity {
    /// Nothing: a request for the VIP's claim is in flight, and the controller reports after the response.
    Silent,
    /// Everything but an allocation in progress, which usually completes soon.
    Patient,
    /// Everything.
    Plain,
}

/// Builds the update of a Cluster. Returns none if nothing changes.
pub fn cluster_update(
    world: &World,
    key: &Key,
    tracked: &Tracked,
    served: &ApiResource,
    default_port: u16,
    manner: impl Fn(Role) -> Verbosity,
) -> Option<ClusterUpdate> {
    let cluster = world.clusters.get(key)?;
    let mut after = cluster.clone();
    let mut vips = Vec::new();
    let version = tracked.metadata.resource_version.as_ref();
    let version = version.filter(|_| !plan::sabotaged!(VipBlindlyWritten));
    let mut patch = json!({"metadata": {"resourceVersion": version}});
    for (role, next) in vips::plan(world, key, cluster) {
        let Some(Step::Write { vip, with_copy }) = next.step else { continue };
        write(&mut patch, cluster, tracked, role, &vip, with_copy, default_port);
        after = after.with(role, &vip, with_copy);
        let is_new = match role {
            Role::ControlPlane => cluster.endpoint.is_none(),
            // Cluster API may remove all annotations of a new Cluster, but leaves its labels.
            Role::Ingress => cluster.ingress.is_none() && cluster.ingress_label.as_ref() != Some(&vip),
        };
        vips.push(Written { role, vip, is_new });
    }
    let planned = vips::plan(world, key, &after);
    let before = vip_states(tracked.state_annotation.as_deref());
    let mut now = before.clone();
    for (role, next) in &planned {
        let name = role.name().to_owned();
        let is_written = vips.iter().any(|written: &Written| written.role == *role);
        match (&next.verdict, manner(*role)) {
            (Verdict::Unknown(_) | Verdict::Paused | Verdict::Leaving, _) => {}
            // A VIP in this patch is reported even so: the watch may deliver a claim with its address before the
            // response to the claim's creation arrives.
            (_, Verbosity::Silent) if !is_written => {}
            (Verdict::Manual(_) | Verdict::NotWanted, _) => _ = now.remove(&name),
            // A previous leader may have reported a longer wait. A full pool may have a free address for a moment, but
            // only one of the waiting Clusters gets it. In both cases the reported state stays.
            (verdict, Verbosity::Patient) if verdict.is_in_progress() => {
                let waiting = [VipReason::Allocating, VipReason::Releasing, VipReason::PoolExhausted];
                now.retain(|role, state| *role != name || state.has(&waiting));
            }
            (verdict, _) => _ = now.insert(name, state_of(verdict)),
        }
    }
    if now != before {
        let text = (!now.is_empty()).then(|| serde_json::to_string(&now).unwrap_or_default());
        patch["metadata"]["annotations"][STATUS] = text.into();
    }
    if now == before && vips.is_empty() {
        return None;
    }
    let is_new = |role: Role| {
        let name = role.name();
        now.get(name).is_some_and(|state| before.get(name).is_none_or(|old| old.reason != state.reason))
    };
    let changed = planned.iter().filter(|(role, _)| is_new(*role));
    let events = changed.map(|(role, next)| event(&tracked.metadata, served, *role, &next.verdict)).collect();
    Some(ClusterUpdate { patch, vips, events })
}

fn write(
    patch: &mut Value,
    cluster: &vips::Cluster,
    tracked: &Tracked,
    role: Role,
    vip: &str,
    with_copy: bool,
    default_port: u16,
) {
    match role {
        Role::ControlPlane => {
            // The controller never changes an endpoint that is set.
            if cluster.endpoint.is_none() || plan::sabotaged!(VipReplaced) {
                let port = tracked.port.unwrap_or(default_port);
                patch["spec"]["controlPlaneEndpoint"] = json!({"host": vip, "port": port});
            }
            if with_copy {
                let mut variables = tracked.variables.clone().unwrap_or_default();
                match variables.iter_mut().find(|variable| variable["name"] == VARIABLE) {
                    Some(variable) => variable["value"] = vip.into(),
                    None => variables.push(json!({"name": VARIABLE, "value": vip})),
                }
                patch["spec"]["topology"] = json!({"variables": variables});
            }
        }
        Role::Ingress => {
            patch["metadata"]["annotations"][INGRESS_VIP] = vip.into();
            if with_copy {
                patch["metadata"]["labels"][INGRESS_VIP] = vip.into();
            }
        }
    }
}

fn state_of(verdict: &Verdict) -> VipState {
    VipState { reason: verdict.reason().name().to_owned(), message: verdict.to_string() }
}

fn reference(metadata: &ObjectMeta, served: &ApiResource) -> ObjectReference {
    ObjectReference {
        api_version: Some(served.api_version.clone()),
        kind: Some(Kind::Clusters.name().to_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The Event for a Cluster whose update the apiserver refuses.
pub fn refusal(metadata: &ObjectMeta, served: &ApiResource, note: String) -> NewEvent {
    let regarding = reference(metadata, served);
    NewEvent { regarding, kind: EventReason::WriteRefused.into(), action: "AllocateVIP", note }
}

fn event(metadata: &ObjectMeta, served: &ApiResource, role: Role, verdict: &Verdict) -> NewEvent {
    let regarding = reference(metadata, served);
    let is_warning = verdict.is_stuck() || matches!(verdict, Verdict::Assigned { undefined_in: Some(_), .. });
    let note = format!("{role} VIP: {verdict}");
    let kind = EventKind { reason: verdict.reason().name(), is_warning };
    NewEvent { regarding, kind, action: "AllocateVIP", note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::decode::Change;
    use crate::vips::index::Index;
    use crate::vips::names::INGRESS_ENABLED;
    use crate::vips::watch::Observed;
    use kube::core::GroupVersionKind;
    use std::collections::BTreeMap;

    /// A Cluster with this spec and annotations, whose control plane claim has an address.
    fn index(spec: Value, annotations: Value) -> Index {
        claimed("vip-cp-c", spec, annotations, json!({}))
    }

    /// A Cluster with this spec, annotations and labels, and a claim with this name that has an address.
    fn claimed(name: &str, spec: Value, annotations: Value, labels: Value) -> Index {
        let mut index = Index::default();
        let object = |name: &str, rest: Value| {
            let mut object = json!({"metadata": {
                "name": name, "namespace": "ns", "uid": name, "resourceVersion": "7"}});
            object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            object
        };
        let mut cluster = object("c", json!({"spec": spec}));
        cluster["metadata"]["annotations"] = annotations;
        cluster["metadata"]["labels"] = labels;
        let class = object("k", json!({"spec": {"variables": [{"name": VARIABLE}]}}));
        let status = json!({"addressRef": {"name": name}});
        let spec = json!({"poolRef": {"kind": "GlobalInClusterIPPool", "name": "p"}});
        let mut claim = object(name, json!({"spec": spec, "status": status}));
        let owner = json!({"apiVersion": "v1", "kind": "Cluster", "name": "c", "uid": "c"});
        claim["metadata"]["ownerReferences"] = json!([owner]);
        let mut address = object(name, json!({"spec": {"address": "10.0.0.1"}}));
        let owner = json!({
            "apiVersion": "v1", "kind": "IPAddressClaim", "name": name, "uid": name, "controller": true});
        address["metadata"]["ownerReferences"] = json!([owner]);
        index.observe(Observed::Clusters(Change::All(vec![serde_json::from_value(cluster).unwrap()])));
        index.observe(Observed::Classes(Change::All(vec![serde_json::from_value(class).unwrap()])));
        index.observe(Observed::Claims(Change::All(vec![serde_json::from_value(claim).unwrap()])));
        index.observe(Observed::Addresses(Change::All(vec![serde_json::from_value(address).unwrap()])));
        for kind in [Kind::GlobalPools, Kind::NamespacedPools] {
            index.observe(Observed::Pools(kind, Change::All(Vec::new())));
        }
        index
    }

    fn amended(index: &Index, manner: impl Fn(Role) -> Verbosity) -> Option<ClusterUpdate> {
        let (key, tracked) = index.clusters.iter().next().unwrap();
        let served = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
        cluster_update(&index.world, key, tracked, &served, 6443, manner)
    }

    const ASSIGNED: &str = r#"{"control-plane":{"reason":"Assigned","message":"10.0.0.1 from pool p"}}"#;

    #[test]
    fn v3_one_patch_has_endpoint_variable_state_and_version() {
        let variables = json!([{"name": "cni", "value": "calico"}, {"name": VARIABLE, "value": ""}]);
        let index = index(json!({"topology": {"class": "k", "variables": variables}}), json!({}));
        let ClusterUpdate { patch, vips, events } = amended(&index, |_| Verbosity::Patient).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["controlPlaneEndpoint"], json!({"host": "10.0.0.1", "port": 6443}));
        let variables = json!([{"name": "cni", "value": "calico"}, {"name": VARIABLE, "value": "10.0.0.1"}]);
        assert_eq!(patch["spec"]["topology"], json!({"variables": variables}));
        assert_eq!(patch["metadata"]["annotations"][STATUS], ASSIGNED);
        assert_eq!(vips, [Written { role: Role::ControlPlane, vip: "10.0.0.1".into(), is_new: true }]);
        assert_eq!(events[0].note, "control-plane VIP: 10.0.0.1 from pool p");
    }

    #[test]
    fn a_patch_with_a_vip_has_the_state_even_if_manner_is_silent() {
        let index = index(json!({"topology": {"class": "k"}}), json!({}));
        let patch = amended(&index, |_| Verbosity::Silent).unwrap().patch;
        assert_eq!(patch["metadata"]["annotations"][STATUS], ASSIGNED);
    }

    #[test]
    fn v3_a_port_that_the_cluster_sets_stays() {
        let endpoint = json!({"host": "", "port": 8443});
        let index = index(json!({"controlPlaneEndpoint": endpoint, "topology": {"class": "k"}}), json!({}));
        let patch = amended(&index, |_| Verbosity::Patient).unwrap().patch;
        assert_eq!(patch["spec"]["controlPlaneEndpoint"], json!({"host": "10.0.0.1", "port": 8443}));
    }

    #[test]
    fn v4_an_endpoint_that_a_user_set_is_not_in_the_patch() {
        let endpoint = json!({"host": "10.9.9.9", "port": 1});
        let index = index(json!({"controlPlaneEndpoint": endpoint, "topology": {"class": "k"}}), json!({}));
        let ClusterUpdate { patch, vips, .. } = amended(&index, |_| Verbosity::Patient).unwrap();
        assert!(!vips[0].is_new, "only the variable is new");
        let filled = json!({"topology": {"variables": [{"name": VARIABLE, "value": "10.9.9.9"}]}});
        assert_eq!(patch["spec"], filled);
    }

    #[test]
    fn v8_restoring_an_ingress_annotation_reports_no_new_vip() {
        let ingress = |labels: Value| {
            let (spec, asked) = (json!({"topology": {"class": "k"}}), json!({INGRESS_ENABLED: "true"}));
            let ClusterUpdate { patch, vips, .. } =
                amended(&claimed("vip-ingress-c", spec, asked, labels), |_| Verbosity::Patient).unwrap();
            assert_eq!(patch["metadata"]["annotations"][INGRESS_VIP], "10.0.0.1");
            vips.into_iter().map(|written| (written.role, written.is_new)).collect::<Vec<_>>()
        };
        assert_eq!(ingress(json!({})), [(Role::Ingress, true)]);
        assert_eq!(ingress(json!({INGRESS_VIP: "10.0.0.1"})), [(Role::Ingress, false)]);
        assert_eq!(
            ingress(json!({INGRESS_VIP: "10.0.0.9"})),
            [(Role::Ingress, true)],
            "the label has another VIP"
        );
    }

    #[test]
    fn a_cluster_that_is_up_to_date_is_not_patched() {
        let spec = json!({
            "controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443},
            "topology": {"class": "k", "variables": [{"name": VARIABLE, "value": "10.0.0.1"}]},
        });
        assert!(amended(&index(spec.clone(), json!({STATUS: ASSIGNED})), |_| Verbosity::Plain).is_none());
        assert!(amended(&index(spec, json!({})), |_| Verbosity::Silent).is_none());
    }

    #[test]
    fn a_new_leader_keeps_the_reported_wait() {
        let patched = |reason: &str| {
            let state = json!({"control-plane": {"reason": reason, "message": "waiting"}}).to_string();
            let mut index = index(json!({"topology": {"class": "k"}}), json!({STATUS: state}));
            index.world.addresses = Some(BTreeMap::new());
            amended(&index, |_| Verbosity::Patient)
                .map(|cluster_update| cluster_update.patch["metadata"]["annotations"].clone())
        };
        assert_eq!(patched("Allocating"), None);
        assert_eq!(patched("PoolExhausted"), None);
        assert_eq!(patched("Failed"), Some(json!({STATUS: null})));
    }

    #[test]
    fn an_outdated_state_is_removed() {
        let spec = json!({"controlPlaneEndpoint": {"host": "10.9.9.9", "port": 1}});
        let annotations = json!({STATUS: ASSIGNED, "vip.capi.gorizond.io/cluster-class": "k"});
        let patch = amended(&index(spec, annotations), |_| Verbosity::Patient).unwrap().patch;
        assert_eq!(patch["metadata"]["annotations"], json!({STATUS: null}));
    }
}
