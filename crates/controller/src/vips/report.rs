//! What is written on a Cluster: its VIPs, and what is to be said of them.
//!
//! In: a Cluster, and what is planned for it. Out: one change of it, or none where it says all that already. The words are in an
//! annotation of ours, because a status can't be written in one change with a VIP; conditions repeat it afterwards. An Event is told
//! for each new reason. What is written in one change with a VIP is what is so from that moment on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::{ApiResource, ObjectMeta};
use plan::vips::{self, Key, Role, Step, Verdict, World};
use plan::{EventReason, VipReason};
use serde_json::{Value, json};

use super::codec::{Words, words};
use super::index::Tracked;
use super::names::{INGRESS_VIP, STATUS, VARIABLE};
use super::watch::Kind;
use crate::kubernetes::events::{EventKind, NewEvent};

/// A change of a Cluster.
pub struct Amendment {
    /// The change.
    pub patch: Value,
    /// The VIPs that it writes.
    pub vips: Vec<Written>,
    /// What is to be told once it is written.
    pub news: Vec<NewEvent>,
}

/// A VIP that is written on a Cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    /// What it is for.
    pub role: Role,
    /// The VIP.
    pub vip: Arc<str>,
    /// Whether the Cluster had none, and does not only get it in one more place.
    pub is_new: bool,
}

/// How a VIP is spoken of.
pub enum Manner {
    /// Not at all: something is being changed, and what has become of it is told then.
    Silent,
    /// An address on its way is no news: mostly it is there in a moment.
    Patient,
    /// Everything is told.
    Plain,
}

/// What to change of a Cluster; none where nothing is.
pub fn amendment(
    world: &World,
    key: &Key,
    tracked: &Tracked,
    served: &ApiResource,
    default_port: u16,
    manner: impl Fn(Role) -> Manner,
) -> Option<Amendment> {
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
            // Cluster API may take all annotations off a Cluster that is new, and leaves its labels.
            Role::Ingress => cluster.ingress.is_none() && cluster.ingress_label.as_ref() != Some(&vip),
        };
        vips.push(Written { role, vip, is_new });
    }
    let said = vips::plan(world, key, &after);
    let before = words(tracked.said.as_deref());
    let mut now = before.clone();
    for (role, next) in &said {
        let name = role.name().to_owned();
        let is_written = vips.iter().any(|written: &Written| written.role == *role);
        match (&next.said, manner(*role)) {
            (Verdict::Unknown(_) | Verdict::Paused | Verdict::Leaving, _) => {}
            // The watch may have told of a claim and its address before the claim's creation was answered.
            (_, Manner::Silent) if !is_written => {}
            (Verdict::Manual(_) | Verdict::NotWanted, _) => _ = now.remove(&name),
            // Another copy may have been waiting for longer, and have said so. A full pool may have an address for a moment, which
            // one of those gets that wait for it: the others need not hear of it.
            (said, Manner::Patient) if said.is_on_its_way() => {
                let waiting = [VipReason::Allocating, VipReason::Releasing, VipReason::PoolExhausted];
                let waits = |words: &Words| waiting.iter().any(|reason| words.reason == reason.name());
                now.retain(|told, words| *told != name || waits(words));
            }
            (said, _) => _ = now.insert(name, speak(said)),
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
        now.get(name).is_some_and(|words| before.get(name).is_none_or(|old| old.reason != words.reason))
    };
    let told = said.iter().filter(|(role, _)| is_new(*role));
    let news = told.map(|(role, next)| news(&tracked.metadata, served, *role, &next.said)).collect();
    Some(Amendment { patch, vips, news })
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
            // An endpoint that somebody set is not touched.
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

fn speak(said: &Verdict) -> Words {
    Words { reason: said.reason().name().to_owned(), message: said.to_string() }
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

/// That a Cluster can't be changed.
pub fn refusal(metadata: &ObjectMeta, served: &ApiResource, note: String) -> NewEvent {
    let regarding = reference(metadata, served);
    NewEvent { regarding, kind: EventReason::WriteRefused.into(), action: "AllocateVIP", note }
}

fn news(metadata: &ObjectMeta, served: &ApiResource, role: Role, said: &Verdict) -> NewEvent {
    let regarding = reference(metadata, served);
    let is_warning = said.is_stuck() || matches!(said, Verdict::Assigned { undefined_in: Some(_), .. });
    let note = format!("{role} VIP: {said}");
    let kind = EventKind { reason: said.reason().name(), is_warning };
    NewEvent { regarding, kind, action: "AllocateVIP", note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::decode::Change;
    use crate::vips::index::Index;
    use crate::vips::names::INGRESS_ENABLED;
    use crate::vips::watch::Seen;
    use kube::core::GroupVersionKind;
    use std::collections::BTreeMap;

    /// A Cluster whose control plane's claim has an address, with what else there is in its spec and annotations.
    fn index(spec: Value, annotations: Value) -> Index {
        claimed("vip-cp-c", spec, annotations, json!({}))
    }

    /// A Cluster of which a claim has an address, with what else there is in its spec, annotations and labels.
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
        index.see(Seen::Clusters(Change::All(vec![serde_json::from_value(cluster).unwrap()])));
        index.see(Seen::Classes(Change::All(vec![serde_json::from_value(class).unwrap()])));
        index.see(Seen::Claims(Change::All(vec![serde_json::from_value(claim).unwrap()])));
        index.see(Seen::Addresses(Change::All(vec![serde_json::from_value(address).unwrap()])));
        for kind in [Kind::GlobalPools, Kind::NamespacedPools] {
            index.see(Seen::Pools(kind, Change::All(Vec::new())));
        }
        index
    }

    fn amended(index: &Index, manner: impl Fn(Role) -> Manner) -> Option<Amendment> {
        let (key, tracked) = index.clusters.iter().next().unwrap();
        let served = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Cluster"));
        amendment(&index.world, key, tracked, &served, 6443, manner)
    }

    const SAID: &str = r#"{"control-plane":{"reason":"Assigned","message":"10.0.0.1 from pool p"}}"#;

    #[test]
    fn v3_one_change_writes_endpoint_variable_and_words_on_the_version_that_was_planned_for() {
        let variables = json!([{"name": "cni", "value": "calico"}, {"name": VARIABLE, "value": ""}]);
        let index = index(json!({"topology": {"class": "k", "variables": variables}}), json!({}));
        let Amendment { patch, vips, news } = amended(&index, |_| Manner::Patient).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["controlPlaneEndpoint"], json!({"host": "10.0.0.1", "port": 6443}));
        let variables = json!([{"name": "cni", "value": "calico"}, {"name": VARIABLE, "value": "10.0.0.1"}]);
        assert_eq!(patch["spec"]["topology"], json!({"variables": variables}));
        assert_eq!(patch["metadata"]["annotations"][STATUS], SAID);
        assert_eq!(vips, [Written { role: Role::ControlPlane, vip: "10.0.0.1".into(), is_new: true }]);
        assert_eq!(news[0].note, "control-plane VIP: 10.0.0.1 from pool p");
    }

    #[test]
    fn words_come_with_their_vip_also_where_the_claim_seems_to_be_under_way_still() {
        let index = index(json!({"topology": {"class": "k"}}), json!({}));
        let patch = amended(&index, |_| Manner::Silent).unwrap().patch;
        assert_eq!(patch["metadata"]["annotations"][STATUS], SAID);
    }

    #[test]
    fn v3_a_port_that_the_cluster_names_stays() {
        let endpoint = json!({"host": "", "port": 8443});
        let index = index(json!({"controlPlaneEndpoint": endpoint, "topology": {"class": "k"}}), json!({}));
        let patch = amended(&index, |_| Manner::Patient).unwrap().patch;
        assert_eq!(patch["spec"]["controlPlaneEndpoint"], json!({"host": "10.0.0.1", "port": 8443}));
    }

    #[test]
    fn v4_an_endpoint_that_somebody_set_is_not_in_the_change() {
        let endpoint = json!({"host": "10.9.9.9", "port": 1});
        let index = index(json!({"controlPlaneEndpoint": endpoint, "topology": {"class": "k"}}), json!({}));
        let Amendment { patch, vips, .. } = amended(&index, |_| Manner::Patient).unwrap();
        assert!(!vips[0].is_new, "which is no VIP that was assigned");
        let filled = json!({"topology": {"variables": [{"name": VARIABLE, "value": "10.9.9.9"}]}});
        assert_eq!(patch["spec"], filled);
    }

    #[test]
    fn v8_an_ingress_vip_whose_annotation_was_taken_off_is_written_again_and_is_no_new_one() {
        let ingress = |labels: Value| {
            let (spec, asked) = (json!({"topology": {"class": "k"}}), json!({INGRESS_ENABLED: "true"}));
            let Amendment { patch, vips, .. } =
                amended(&claimed("vip-ingress-c", spec, asked, labels), |_| Manner::Patient).unwrap();
            assert_eq!(patch["metadata"]["annotations"][INGRESS_VIP], "10.0.0.1");
            vips.into_iter().map(|written| (written.role, written.is_new)).collect::<Vec<_>>()
        };
        assert_eq!(ingress(json!({})), [(Role::Ingress, true)]);
        assert_eq!(ingress(json!({INGRESS_VIP: "10.0.0.1"})), [(Role::Ingress, false)]);
        assert_eq!(ingress(json!({INGRESS_VIP: "10.0.0.9"})), [(Role::Ingress, true)], "it was another one");
    }

    #[test]
    fn a_cluster_that_says_it_all_already_is_not_changed() {
        let spec = json!({
            "controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443},
            "topology": {"class": "k", "variables": [{"name": VARIABLE, "value": "10.0.0.1"}]},
        });
        assert!(amended(&index(spec.clone(), json!({STATUS: SAID})), |_| Manner::Plain).is_none());
        assert!(amended(&index(spec, json!({})), |_| Manner::Silent).is_none());
    }

    #[test]
    fn a_copy_that_has_just_begun_to_wait_leaves_what_another_said_of_it() {
        let said = |reason: &str| {
            let words = json!({"control-plane": {"reason": reason, "message": "waiting"}}).to_string();
            let mut index = index(json!({"topology": {"class": "k"}}), json!({STATUS: words}));
            index.world.addresses = Some(BTreeMap::new());
            amended(&index, |_| Manner::Patient)
                .map(|amendment| amendment.patch["metadata"]["annotations"].clone())
        };
        assert_eq!(said("Allocating"), None);
        assert_eq!(said("PoolExhausted"), None);
        assert_eq!(said("Failed"), Some(json!({STATUS: null})));
    }

    #[test]
    fn what_is_not_so_any_more_is_taken_away() {
        let spec = json!({"controlPlaneEndpoint": {"host": "10.9.9.9", "port": 1}});
        let annotations = json!({STATUS: SAID, "vip.capi.gorizond.io/cluster-class": "k"});
        let patch = amended(&index(spec, annotations), |_| Manner::Patient).unwrap().patch;
        assert_eq!(patch["metadata"]["annotations"], json!({STATUS: null}));
    }
}
