//! The invariants of VIPs, checked at each write and at the end of a run.
//!
//! In: every write request for a Cluster or a claim. Out: the apiserver's response, and violations of this invariant:
//!
//! ```text
//! I11 a VIP is the address of the Cluster's own claim, and no other Cluster has it
//!     the controller never replaces an endpoint or VIP
//!     each VIP has one claim; the controller never changes a claim of another owner, or deletes one with an address
//!     the controller does not change a paused Cluster, and every retry waits for the backoff
//!     the reported reason of a VIP does not change because of missing knowledge; conditions match the annotation
//!     the controller does not change the conditions of Cluster API
//!     at the end every Cluster has its VIPs in all places, and no claim or address of a deleted Cluster is left
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use controller::vips::names::{INGRESS_ENABLED, INGRESS_VIP, ROLE, STATUS};
use http::{Method, Request, Response};
use plan::vips::Role;
use serde_json::Value;

use super::{CLASS_WITH_VARIABLE, NAMESPACE, POOLS, claim_name, host, is_by_hand, owner, text};
use crate::universe::Universe;

const PAUSED: &str = "cluster.x-k8s.io/paused";

const I11: &str = "I11";

/// How old the controller's knowledge may be when it acts.
const CANT_KNOW: Duration = Duration::from_secs(20);

/// The conditions of a Cluster: the controller's if `ours`, otherwise all others.
fn conditions(cluster: &Value, ours: bool) -> Vec<&Value> {
    let all = cluster["status"]["conditions"].as_array().into_iter().flatten();
    let is_ours = |condition: &Value| text(&condition["type"]).is_some_and(|kind| kind.starts_with("vip."));
    all.filter(|condition| is_ours(condition) == ours).collect()
}

/// Type and status that the condition of a VIP must have, given the reason in the Cluster's annotation.
fn condition(role: Role, reason: &str) -> (&'static str, &'static str) {
    let kind = match role {
        Role::ControlPlane => "vip.capi.gorizond.io/ControlPlaneVIPReady",
        Role::Ingress => "vip.capi.gorizond.io/IngressVIPReady",
    };
    (kind, if reason == "Assigned" { "True" } else { "False" })
}

/// Whether the conditions of a Cluster match its annotation.
fn is_reported(cluster: &Value) -> bool {
    let wanted = Role::ALL.into_iter().filter_map(|role| Some(condition(role, &reason(cluster, role)?)));
    let mut present: Vec<_> = conditions(cluster, true)
        .iter()
        .filter_map(|condition| Some((text(&condition["type"])?, text(&condition["status"])?)))
        .collect();
    present.sort_unstable();
    present == wanted.collect::<Vec<_>>()
}

/// Whether another Cluster has had this VIP for so long that the controller must know it.
fn is_of_another(universe: &Universe, cluster: &Value, vip_sought: &str) -> bool {
    let clusters = universe.api.all("clusters");
    let mut others = clusters.iter().filter(|other| other["metadata"]["uid"] != cluster["metadata"]["uid"]);
    others.any(|other| {
        let has = Role::ALL.into_iter().any(|role| vip(other, role) == Some(vip_sought));
        has && is_known(universe, other)
    })
}

/// The VIP of a Cluster.
fn vip(cluster: &Value, role: Role) -> Option<&str> {
    match role {
        Role::ControlPlane => host(cluster),
        Role::Ingress => text(&cluster["metadata"]["annotations"][INGRESS_VIP]),
    }
}

fn variable(cluster: &Value) -> Option<&str> {
    let variables = cluster["spec"]["topology"]["variables"].as_array();
    text(&variables?.iter().find(|variable| variable["name"] == "clusterVip")?["value"])
}

/// The reason that the controller reports for a VIP.
fn reason(cluster: &Value, role: Role) -> Option<String> {
    let status: Value = serde_json::from_str(text(&cluster["metadata"]["annotations"][STATUS])?).ok()?;
    status[role.name()]["reason"].as_str().map(ToOwned::to_owned)
}

/// The Cluster's own claim and its address.
fn given(universe: &Universe, cluster: &Value, role: Role) -> Option<(Arc<Value>, Arc<Value>)> {
    let name = claim_name(role, text(&cluster["metadata"]["name"])?);
    let claim = universe.api.one("ipaddressclaims", NAMESPACE, &name)?;
    let address =
        universe.api.one("ipaddresses", NAMESPACE, text(&claim["status"]["addressRef"]["name"])?)?;
    (owner(&claim) == text(&cluster["metadata"]["uid"])).then_some((claim, address))
}

/// Whether an object has been unchanged for so long that the controller must know its state.
fn is_known(universe: &Universe, object: &Value) -> bool {
    let since = universe.api.changed_at(object);
    since.is_some_and(|since| universe.now().duration_since(since).unsigned_abs() > CANT_KNOW)
}

/// Executes a request of a process, and checks what it did to Clusters and claims.
pub fn carried_out(
    universe: &Universe,
    process: u64,
    sent: Duration,
    request: &Request<Bytes>,
) -> Response<Bytes> {
    let answer = || universe.api.answer(request, universe.now());
    let (path, method) = (request.uri().path(), request.method());
    let part = |plural: &str| path.rsplit_once(&format!("/{NAMESPACE}/{plural}")).map(|(_, rest)| rest);
    let (plural, name) = match (part("clusters"), part("ipaddressclaims")) {
        _ if *method == Method::GET => return answer(),
        (Some(name), _) => ("clusters", name),
        (None, Some(name)) => ("ipaddressclaims", name),
        (None, None) => return answer(),
    };
    let name = match text_of(request, "name") {
        Some(name) if *method == Method::POST => name,
        _ => name.trim_start_matches('/').trim_end_matches("/status").to_owned(),
    };
    let before = universe.api.one(plural, NAMESPACE, &name);
    let answered = answer();
    universe.log(&format!("{method} {plural} {name} -> {}", answered.status().as_u16()));
    let change = format!("{method} {name} {}", String::from_utf8_lossy(request.body()));
    let is_repeated = universe.is_repeated(process, change, sent);
    if !answered.status().is_success() {
        if is_repeated {
            universe
                .report_violation(I11, format!("{name}: {method} was rejected, and retried without backoff"));
        }
        return answered;
    }
    let after = universe.api.one(plural, NAMESPACE, &name);
    let wrong = match (method, plural, &before, &after) {
        (&Method::PATCH, "clusters", Some(before), Some(after)) if path.ends_with("/status") => {
            reported(universe, before, after)
        }
        (&Method::PATCH, "clusters", Some(before), Some(after)) => amended(universe, before, after),
        (&Method::POST, "ipaddressclaims", None, Some(claim)) => claimed(universe, claim),
        (&Method::DELETE, "ipaddressclaims", Some(claim), _) => deleted(claim),
        _ => vec![format!("the controller must not send {method} for {plural}")],
    };
    wrong.into_iter().for_each(|what| universe.report_violation(I11, format!("{name}: {what}")));
    answered
}

fn text_of(request: &Request<Bytes>, field: &str) -> Option<String> {
    let body: Value = serde_json::from_slice(request.body()).ok()?;
    text(&body["metadata"][field]).map(ToOwned::to_owned)
}

/// The rules that an update of a Cluster's status violates.
fn reported(universe: &Universe, before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if is_paused(before) && is_known(universe, before) {
        found.push("the status of a paused Cluster was changed".to_owned());
    }
    if conditions(before, false) != conditions(after, false) {
        found.push("conditions of another controller were changed".to_owned());
    }
    if !is_reported(after) {
        found.push("the conditions do not match the annotation".to_owned());
    }
    found
}

/// The rules that an update of a Cluster violates.
fn amended(universe: &Universe, before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if is_paused(before) && is_known(universe, before) {
        found.push("a paused Cluster was changed".to_owned());
    }
    for role in Role::ALL {
        let given = given(universe, after, role);
        let address = given.as_ref().and_then(|(_, address)| text(&address["spec"]["address"]));
        match (vip(before, role), vip(after, role)) {
            (before, after) if before == after => {}
            (Some(before), after) => found.push(format!("the {role} VIP {before} was replaced by {after:?}")),
            (None, Some(new)) if address != Some(new) => {
                found.push(format!(
                    "the {role} VIP {new} is not the address {address:?} of the Cluster's own claim"
                ));
            }
            (None, Some(new)) if is_of_another(universe, after, new) => {
                found.push(format!("the {role} VIP {new} is already a VIP of another Cluster"));
            }
            (None, _) => {}
        }
        let reasons = (reason(before, role), reason(after, role));
        let is_as_it_was = given.as_ref().is_some_and(|(claim, address)| {
            vip(before, role) == text(&address["spec"]["address"])
                && [before, claim, address].into_iter().all(|object| is_known(universe, object))
        });
        // The controller reports `Failed` for both VIPs when any request for the Cluster fails.
        let is_denied = !matches!(reasons.1.as_deref(), Some("Assigned" | "Failed"));
        if reasons.0.as_deref() == Some("Assigned") && is_denied && is_as_it_was {
            found.push(format!("reported {:?} for the {role} VIP, which is still assigned", reasons.1));
        }
        if reasons.0 != reasons.1 && reasons.1.as_deref().is_some_and(|now| is_untrue(universe, role, now)) {
            found.push(format!("reported {:?} for the {role} VIP, which is not true", reasons.1));
        }
    }
    found
}

/// Whether a reason says that something is missing, although the controller must know that it exists.
fn is_untrue(universe: &Universe, role: Role, reason: &str) -> bool {
    let has = |plural: &str, namespace: &str, name: &str| {
        let object = universe.api.one(plural, namespace, name);
        let created = object.and_then(|object| text(&object["metadata"]["creationTimestamp"])?.parse().ok());
        created.is_some_and(|at| universe.now().duration_since(at).unsigned_abs() > CANT_KNOW)
    };
    match reason {
        "NoClass" => true,
        "NoPool" => {
            let meant = POOLS.iter().filter(|pool| pool.role == role);
            meant.into_iter().any(|pool| has(pool.plural, pool.namespace, pool.name))
        }
        _ => false,
    }
}

fn is_paused(cluster: &Value) -> bool {
    cluster["spec"]["paused"] == true || cluster["metadata"]["annotations"][PAUSED].is_string()
}

/// The rules that a new claim violates.
fn claimed(universe: &Universe, claim: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(uid) = owner(claim) else { return vec!["a new claim has no owner".to_owned()] };
    let role = &claim["metadata"]["labels"][ROLE];
    let is_same =
        |other: &&Arc<Value>| owner(other) == Some(uid) && other["metadata"]["labels"][ROLE] == *role;
    let count = universe.api.all("ipaddressclaims").iter().filter(is_same).count();
    if count > 1 {
        found.push(format!("one VIP has {count} claims"));
    }
    let clusters = universe.api.all("clusters");
    let cluster = clusters.iter().find(|cluster| cluster["metadata"]["uid"] == uid);
    if let Some(cluster) = cluster
        && is_paused(cluster)
        && is_known(universe, cluster)
    {
        found.push("a claim was created for a paused Cluster".to_owned());
    }
    found
}

/// The rules that the deletion of a claim violates.
fn deleted(claim: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if owner(claim).is_none() {
        found.push("a claim of another owner was deleted".to_owned());
    }
    if let Some(address) = text(&claim["status"]["addressRef"]["name"]) {
        found.push(format!("a claim with the address {address} was deleted"));
    }
    found
}

/// Violations at the end of a run.
pub fn judge(universe: &Universe) -> Vec<String> {
    let mut found = Vec::new();
    let clusters = universe.api.all("clusters");
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for cluster in &clusters {
        let name = text(&cluster["metadata"]["name"]).unwrap_or_default();
        if !is_reported(cluster) {
            found.push(format!("the conditions of {name} do not match: {:?}", conditions(cluster, true)));
        }
        for role in Role::ALL {
            let wants =
                role == Role::ControlPlane || cluster["metadata"]["annotations"][INGRESS_ENABLED] != "false";
            let given = given(universe, cluster, role);
            let own = given.as_ref().and_then(|(_, address)| text(&address["spec"]["address"]));
            let Some(vip) = vip(cluster, role) else {
                if wants {
                    found.push(format!("{name} has no {role} VIP"));
                }
                continue;
            };
            holders.entry(vip.to_owned()).or_default().push(format!("{name} {role}"));
            let is_by_hand = role == Role::ControlPlane && is_by_hand(cluster);
            if !is_by_hand && own != Some(vip) {
                found.push(format!("{name} has the {role} VIP {vip}, but its claim has {own:?}"));
            }
            let (copy, is_copied) = match role {
                Role::ControlPlane => {
                    let class = &cluster["spec"]["topology"]["classRef"]["name"];
                    (variable(cluster), *class == CLASS_WITH_VARIABLE)
                }
                Role::Ingress => (text(&cluster["metadata"]["labels"][INGRESS_VIP]), true),
            };
            if copy != is_copied.then_some(vip) {
                found.push(format!("{name} has the {role} VIP {vip}, but the copy is {copy:?}"));
            }
            let (reported, wanted) = (reason(cluster, role), (!is_by_hand).then(|| "Assigned".to_owned()));
            if reported != wanted {
                found.push(format!("the {role} VIP of {name} has reason {reported:?}, not {wanted:?}"));
            }
        }
    }
    for (vip, holders) in holders.iter().filter(|(_, holders)| holders.len() > 1) {
        found.push(format!("several VIPs are {vip}: {}", holders.join(", ")));
    }
    let uids: Vec<_> = clusters.iter().filter_map(|cluster| text(&cluster["metadata"]["uid"])).collect();
    let claims = universe.api.all("ipaddressclaims");
    let name = |object: &Value| text(&object["metadata"]["name"]).unwrap_or_default().to_owned();
    for claim in claims.iter().filter(|claim| owner(claim).is_none_or(|owner| !uids.contains(&owner))) {
        found.push(format!("the owner of the claim {} does not exist", name(claim)));
    }
    for address in universe.api.all("ipaddresses") {
        if !claims.iter().any(|claim| name(claim) == name(&address)) {
            found.push(format!("the address {} has no claim", name(&address)));
        }
    }
    found
}
