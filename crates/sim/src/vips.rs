//! The VIPs of a run: people who make Clusters, pools and claims, and what must never happen to them.
//!
//! Most Clusters have a class that defines the variable for the VIP, one has a class that does not, and one has no topology. Some
//! want no ingress VIP. There are two pools for each role, of both kinds, which together are at times too small. Now and then a
//! person sets an endpoint while its VIP is on its way, which may be an address of a pool, or has a claim of their own under the name that is ours.
//!
//! ```text
//! I11 a VIP is the address of the Cluster's own claim, and no other Cluster has it
//!     an endpoint or VIP that is there is never replaced
//!     there is one claim for each VIP; one of somebody else is never touched, one with an address never given up
//!     a Cluster that is paused is left alone, and nothing is tried again without a pause
//!     what is said of a VIP does not change because something is not known, and a condition says what the annotation says
//!     conditions of Cluster API stay as they are
//!     in the end every Cluster has its VIPs wherever they belong, and nothing is left of those that are gone
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use controller::vips::{CLASS, INGRESS_ENABLED, INGRESS_VIP, PRIORITY, ROLE, STATUS};
use http::{Method, Request, Response};
use plan::vips::Role;
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::ipam::listed;
use crate::script::CHAOS;
use crate::universe::Universe;

/// How many Clusters there are at the most.
pub(crate) const CLUSTERS: u64 = 5;
/// Those that are there from the beginning.
const FIRST: u64 = 2;
pub(crate) const NAMESPACE: &str = "capi";
/// The class that defines the variable.
const CLASS_WITH_VARIABLE: &str = "edge";
/// The class that does not.
const CLASS_WITHOUT: &str = "bare";
const PAUSED: &str = "cluster.x-k8s.io/paused";
/// The invariant.
const I11: &str = "I11";

/// Whoever acts may have read so long ago.
const CANT_KNOW: Duration = Duration::from_secs(20);

/// A Cluster appears, and somebody sets its endpoint so soon after that, at the latest.
const SOON: Duration = Duration::from_secs(4);

/// A pool of the run.
struct Pool {
    plural: &'static str,
    namespace: &'static str,
    name: &'static str,
    role: Role,
    priority: u64,
}

const POOLS: [Pool; 4] = [
    Pool {
        plural: "globalinclusterippools",
        namespace: "",
        name: "first",
        role: Role::ControlPlane,
        priority: 10,
    },
    Pool {
        plural: "inclusterippools",
        namespace: NAMESPACE,
        name: "second",
        role: Role::ControlPlane,
        priority: 0,
    },
    Pool {
        plural: "globalinclusterippools",
        namespace: "",
        name: "ingress",
        role: Role::Ingress,
        priority: 0,
    },
    Pool { plural: "inclusterippools", namespace: NAMESPACE, name: "near", role: Role::Ingress, priority: 5 },
];

/// The addresses that a pool has at first, and when it has grown.
const SIZES: [u64; 2] = [2, 6];

/// Something that people do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Event {
    Create {
        cluster: u64,
    },
    Delete {
        cluster: u64,
    },
    /// The Cluster is gone, and another one of the same name is there.
    Replace {
        cluster: u64,
    },
    Pause {
        cluster: u64,
        is_paused: bool,
    },
    /// A person sets an endpoint where there is none.
    SetEndpoint {
        cluster: u64,
    },
    /// Somebody makes a claim of their own under the name that is ours, or has done with it.
    Claim {
        cluster: u64,
        role: Role,
        is_there: bool,
    },
    AddPool {
        pool: usize,
    },
    /// A pool is deleted, if nobody has an address of it.
    RemovePool {
        pool: usize,
    },
    Grow {
        pool: usize,
    },
    /// A pool keeps only the addresses that are in use.
    Shrink {
        pool: usize,
    },
}

/// When what happens, often just before the controller is in trouble.
pub fn script(seed: u64, troubles: &[Duration]) -> Vec<(Duration, Event)> {
    let mut dice = Dice::new(seed, "vips");
    let mut events = Vec::new();
    for _ in 0..12 + dice.roll(36) {
        let at = match troubles {
            [_, ..] if dice.one_in(2) => dice.pick(troubles).saturating_sub(dice.up_to(SOON)),
            _ => dice.up_to(CHAOS),
        };
        let event = event(&mut dice);
        if let Event::Create { cluster } | Event::Replace { cluster } = event
            && dice.one_in(3)
        {
            // Mostly its VIP is written within a second, so that is when somebody else's endpoint is most in danger.
            let after = *dice.pick(&[SOON, SOON / 4]);
            events.push((at + dice.up_to(after), Event::SetEndpoint { cluster }));
        }
        events.push((at, event));
    }
    events
}

fn event(dice: &mut Dice) -> Event {
    let cluster = dice.roll(CLUSTERS);
    let pool = usize::try_from(dice.roll(POOLS.len() as u64)).unwrap_or(0);
    match dice.roll(24) {
        0..7 => Event::Create { cluster },
        7..9 => Event::Delete { cluster },
        9..12 => Event::Replace { cluster },
        12..14 => Event::Pause { cluster, is_paused: true },
        14 => Event::Pause { cluster, is_paused: false },
        15 => Event::SetEndpoint { cluster },
        16..18 => Event::Claim { cluster, role: *dice.pick(&Role::ALL), is_there: true },
        18 => Event::Claim { cluster, role: *dice.pick(&Role::ALL), is_there: false },
        19 => Event::AddPool { pool },
        20 => Event::RemovePool { pool },
        21 => Event::Grow { pool },
        _ => Event::Shrink { pool },
    }
}

/// What is there from the beginning.
pub fn prepare(universe: &Universe) {
    for (name, variables) in
        [(CLASS_WITH_VARIABLE, json!([{"name": "clusterVip"}])), (CLASS_WITHOUT, json!([]))]
    {
        let class =
            json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"variables": variables}});
        universe.api.create("clusterclasses", &class, universe.now());
    }
    (0..POOLS.len()).for_each(|pool| happen(universe, &Event::AddPool { pool }));
    (0..FIRST).for_each(|cluster| happen(universe, &Event::Create { cluster }));
}

/// Lets something happen. What makes no sense at this moment does not.
pub fn happen(universe: &Universe, event: &Event) {
    let (api, now) = (&universe.api, universe.now());
    let edit = |cluster: u64, change: &dyn Fn(&mut Value)| {
        api.edit("clusters", NAMESPACE, &name(cluster), now, change);
    };
    match *event {
        Event::Create { cluster } => create(universe, cluster),
        Event::Delete { cluster } => api.delete("clusters", NAMESPACE, &name(cluster), now),
        Event::Replace { cluster } => {
            edit(cluster, &|object| object["metadata"]["finalizers"] = Value::Null);
            api.delete("clusters", NAMESPACE, &name(cluster), now);
            create(universe, cluster);
        }
        Event::Pause { cluster, is_paused } => edit(cluster, &|object| {
            object["spec"]["paused"] = is_paused.into();
            set_condition(object, "Paused", is_paused);
        }),
        Event::SetEndpoint { cluster } => edit(cluster, &|object| {
            if host(object).is_none() {
                object["spec"]["controlPlaneEndpoint"] =
                    json!({"host": by_hand(cluster), "port": PORT_BY_HAND});
            }
        }),
        Event::Claim { cluster, role, is_there: true } => {
            let claim = json!({
                "metadata": {"name": claim_name(role, &name(cluster)), "namespace": NAMESPACE},
                "spec": {"poolRef": {"kind": "GlobalInClusterIPPool", "name": "first"}},
            });
            api.create("ipaddressclaims", &claim, now);
        }
        Event::Claim { cluster, role, is_there: false } => {
            let name = claim_name(role, &name(cluster));
            if api.one("ipaddressclaims", NAMESPACE, &name).is_some_and(|claim| owner(&claim).is_none()) {
                api.delete("ipaddressclaims", NAMESPACE, &name, now);
            }
        }
        Event::AddPool { pool } => add_pool(universe, pool),
        Event::RemovePool { pool } => {
            let Pool { plural, namespace, name, .. } = POOLS[pool];
            if in_use(universe, pool).is_empty() {
                api.delete(plural, namespace, name, now);
            }
        }
        Event::Grow { pool } => resize(universe, pool, &addresses(pool, SIZES[1])),
        Event::Shrink { pool } => resize(universe, pool, &in_use(universe, pool)),
    }
}

/// Nobody does anything any more, and nothing is in the way.
pub fn heal(universe: &Universe) {
    for pool in 0..POOLS.len() {
        [Event::AddPool { pool }, Event::Grow { pool }].iter().for_each(|event| happen(universe, event));
    }
    let in_range = universe.api.one("clusters", NAMESPACE, &name(CLUSTER_IN_RANGE));
    // Others may have been given its address, or have had it before, and wait until it is gone.
    if in_range.as_deref().is_some_and(is_by_hand) {
        happen(universe, &Event::Delete { cluster: CLUSTER_IN_RANGE });
    }
    for cluster in 0..CLUSTERS {
        happen(universe, &Event::Pause { cluster, is_paused: false });
        for role in Role::ALL {
            happen(universe, &Event::Claim { cluster, role, is_there: false });
        }
    }
}

pub(crate) fn name(cluster: u64) -> String {
    format!("cluster-{cluster}")
}

/// Makes a Cluster, of which Cluster API says something at once.
fn create(universe: &Universe, cluster: u64) {
    let (api, now) = (&universe.api, universe.now());
    api.create("clusters", &object(cluster), now);
    api.edit("clusters", NAMESPACE, &name(cluster), now, |object| set_condition(object, "Available", false));
}

/// Sets a condition as Cluster API does: in its place in the list.
fn set_condition(cluster: &mut Value, kind: &str, status: bool) {
    let mut conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != kind);
    conditions.insert(0, json!({"type": kind, "status": if status { "True" } else { "False" }}));
    cluster["status"]["conditions"] = conditions.into();
}

/// The conditions of a Cluster that are ours, or those that are not.
fn conditions(cluster: &Value, ours: bool) -> Vec<&Value> {
    let all = cluster["status"]["conditions"].as_array().into_iter().flatten();
    let is_ours = |condition: &Value| text(&condition["type"]).is_some_and(|kind| kind.starts_with("vip."));
    all.filter(|condition| is_ours(condition) == ours).collect()
}

/// What our condition about a VIP should be, by the annotation of a Cluster.
fn condition(role: Role, word: &str) -> (&'static str, &'static str) {
    let kind = match role {
        Role::ControlPlane => "vip.capi.gorizond.io/ControlPlaneVIPReady",
        Role::Ingress => "vip.capi.gorizond.io/IngressVIPReady",
    };
    (kind, if word == "Assigned" { "True" } else { "False" })
}

/// Whether the conditions of a Cluster say what its annotation says.
fn is_reported(cluster: &Value) -> bool {
    let words = Role::ALL.into_iter().filter_map(|role| Some(condition(role, &word(cluster, role)?)));
    let mut said: Vec<_> = conditions(cluster, true)
        .iter()
        .filter_map(|condition| Some((text(&condition["type"])?, text(&condition["status"])?)))
        .collect();
    said.sort_unstable();
    said == words.collect::<Vec<_>>()
}

fn claim_name(role: Role, cluster: &str) -> String {
    format!("{}{cluster}", role.claim_prefix())
}

/// The port of an endpoint that a person sets.
const PORT_BY_HAND: u16 = 443;

/// The Cluster whose endpoint a person sets to an address of a pool, of which the provider knows nothing.
const CLUSTER_IN_RANGE: u64 = 3;

/// The endpoint that a person sets.
fn by_hand(cluster: u64) -> String {
    match cluster {
        CLUSTER_IN_RANGE => addresses(0, SIZES[0]).remove(0),
        _ => format!("by-hand-{cluster}.example.com"),
    }
}

/// Whether a person has set the endpoint of a Cluster.
fn is_by_hand(cluster: &Value) -> bool {
    host(cluster).is_some() && cluster["spec"]["controlPlaneEndpoint"]["port"] == PORT_BY_HAND
}

/// Whether a Cluster other than this one has a VIP, and has had it for so long that everybody knows.
fn is_of_another(universe: &Universe, cluster: &Value, vip_sought: &str) -> bool {
    let clusters = universe.api.all("clusters");
    let mut others = clusters.iter().filter(|other| other["metadata"]["uid"] != cluster["metadata"]["uid"]);
    others.any(|other| {
        let has = Role::ALL.into_iter().any(|role| vip(other, role) == Some(vip_sought));
        has && is_known(universe, other)
    })
}

fn object(cluster: u64) -> Value {
    let mut object = json!({
        "metadata": {
            "name": name(cluster), "namespace": NAMESPACE, "finalizers": ["cluster.cluster.x-k8s.io"],
        },
        "spec": {},
    });
    match cluster {
        0 => object["metadata"]["annotations"] = json!({CLASS: CLASS_WITH_VARIABLE}),
        1 => object["spec"]["topology"] = json!({"classRef": {"name": CLASS_WITHOUT}}),
        _ => object["spec"]["topology"] = json!({"classRef": {"name": CLASS_WITH_VARIABLE}}),
    }
    if cluster == 2 {
        object["metadata"]["annotations"] = json!({INGRESS_ENABLED: "false"});
    }
    object
}

fn addresses(pool: usize, count: u64) -> Vec<String> {
    (1..=count).map(|number| format!("10.20.{pool}.{number}")).collect()
}

/// The addresses of a pool that somebody has.
fn in_use(universe: &Universe, pool: usize) -> Vec<String> {
    let given = universe.api.all("ipaddresses");
    let is_given = |address: &String| given.iter().any(|given| given["spec"]["address"] == address.as_str());
    let pool = universe.api.one(POOLS[pool].plural, POOLS[pool].namespace, POOLS[pool].name);
    pool.as_deref().into_iter().flat_map(listed).filter(is_given).collect()
}

fn add_pool(universe: &Universe, pool: usize) {
    let Pool { plural, namespace, name, role, priority } = POOLS[pool];
    let classes = format!("{CLASS_WITH_VARIABLE},{CLASS_WITHOUT}");
    let object = json!({
        "metadata": {
            "name": name, "namespace": namespace, "annotations": {CLASS: classes},
            "labels": {CLASS: "true", ROLE: role.name(), PRIORITY: priority.to_string()},
        },
        "spec": {"addresses": addresses(pool, SIZES[0])},
    });
    universe.api.create(plural, &object, universe.now());
}

fn resize(universe: &Universe, pool: usize, addresses: &[String]) {
    let Pool { plural, namespace, name, .. } = POOLS[pool];
    universe.api.edit(plural, namespace, name, universe.now(), |object| {
        object["spec"]["addresses"] = json!(addresses);
    });
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn host(cluster: &Value) -> Option<&str> {
    text(&cluster["spec"]["controlPlaneEndpoint"]["host"])
}

/// The VIP that a Cluster has.
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

/// Whose a claim is.
fn owner(claim: &Value) -> Option<&str> {
    text(&claim["metadata"]["ownerReferences"][0]["uid"])
}

/// What is said of a VIP, in one word.
fn word(cluster: &Value, role: Role) -> Option<String> {
    let words: Value = serde_json::from_str(text(&cluster["metadata"]["annotations"][STATUS])?).ok()?;
    words[role.name()]["reason"].as_str().map(ToOwned::to_owned)
}

/// The Cluster's own claim, and the address that it has.
fn given(universe: &Universe, cluster: &Value, role: Role) -> Option<(Arc<Value>, Arc<Value>)> {
    let name = claim_name(role, text(&cluster["metadata"]["name"])?);
    let claim = universe.api.one("ipaddressclaims", NAMESPACE, &name)?;
    let address =
        universe.api.one("ipaddresses", NAMESPACE, text(&claim["status"]["addressRef"]["name"])?)?;
    (owner(&claim) == text(&cluster["metadata"]["uid"])).then_some((claim, address))
}

/// Whether an object has been as it is for so long that everybody knows.
fn is_known(universe: &Universe, object: &Value) -> bool {
    let since = universe.api.changed_at(object);
    since.is_some_and(|since| universe.now().duration_since(since).unsigned_abs() > CANT_KNOW)
}

/// Carries out a request of a process of the controller, and looks at what it did to Clusters and claims.
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
    universe.tell(&format!("{method} {plural} {name} -> {}", answered.status().as_u16()));
    let change = format!("{method} {name} {}", String::from_utf8_lossy(request.body()));
    let is_repeated = universe.is_repeated(process, change, sent);
    if !answered.status().is_success() {
        if is_repeated {
            universe.condemn(I11, format!("{name}: {method} was answered, and tried again at once"));
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
        (&Method::DELETE, "ipaddressclaims", Some(claim), _) => given_up(claim),
        _ => vec![format!("{method} is not what the controller does with {plural}")],
    };
    wrong.into_iter().for_each(|what| universe.condemn(I11, format!("{name}: {what}")));
    answered
}

fn text_of(request: &Request<Bytes>, field: &str) -> Option<String> {
    let body: Value = serde_json::from_slice(request.body()).ok()?;
    text(&body["metadata"][field]).map(ToOwned::to_owned)
}

/// What is wrong with a change of a Cluster's status.
fn reported(universe: &Universe, before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if is_paused(before) && is_known(universe, before) {
        found.push("it is paused, and its status was changed".to_owned());
    }
    if conditions(before, false) != conditions(after, false) {
        found.push("conditions of somebody else were changed".to_owned());
    }
    if !is_reported(after) {
        found.push("its conditions don't say what its annotation says".to_owned());
    }
    found
}

/// What is wrong with a change of a Cluster.
fn amended(universe: &Universe, before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if is_paused(before) && is_known(universe, before) {
        found.push("it is paused, and was changed".to_owned());
    }
    for role in Role::ALL {
        let given = given(universe, after, role);
        let address = given.as_ref().and_then(|(_, address)| text(&address["spec"]["address"]));
        match (vip(before, role), vip(after, role)) {
            (before, after) if before == after => {}
            (Some(before), after) => found.push(format!("the {role} VIP {before} was replaced by {after:?}")),
            (None, Some(new)) if address != Some(new) => {
                found.push(format!(
                    "the {role} VIP {new} is not of a claim of its own, which has {address:?}"
                ));
            }
            (None, Some(new)) if is_of_another(universe, after, new) => {
                found.push(format!("the {role} VIP {new} is one of another Cluster"));
            }
            (None, _) => {}
        }
        let said = (word(before, role), word(after, role));
        let is_as_it_was = given.as_ref().is_some_and(|(claim, address)| {
            vip(before, role) == text(&address["spec"]["address"])
                && [before, claim, address].into_iter().all(|object| is_known(universe, object))
        });
        // That the last try of something for the Cluster failed is said of both its VIPs.
        let is_denied = !matches!(said.1.as_deref(), Some("Assigned" | "Failed"));
        if said.0.as_deref() == Some("Assigned") && is_denied && is_as_it_was {
            found.push(format!("{:?} is said of the {role} VIP, which is assigned as it was", said.1));
        }
        if said.0 != said.1 && said.1.as_deref().is_some_and(|word| is_untrue(universe, role, word)) {
            found.push(format!("{:?} is said of the {role} VIP, and that is not so", said.1));
        }
    }
    found
}

/// Whether a word speaks of something as missing that has been there for long.
fn is_untrue(universe: &Universe, role: Role, word: &str) -> bool {
    let has = |plural: &str, namespace: &str, name: &str| {
        let object = universe.api.one(plural, namespace, name);
        let created = object.and_then(|object| text(&object["metadata"]["creationTimestamp"])?.parse().ok());
        created.is_some_and(|at| universe.now().duration_since(at).unsigned_abs() > CANT_KNOW)
    };
    match word {
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

/// What is wrong with a new claim.
fn claimed(universe: &Universe, claim: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(uid) = owner(claim) else { return vec!["a claim belongs to nobody".to_owned()] };
    let role = &claim["metadata"]["labels"][ROLE];
    let is_same =
        |other: &&Arc<Value>| owner(other) == Some(uid) && other["metadata"]["labels"][ROLE] == *role;
    let count = universe.api.all("ipaddressclaims").iter().filter(is_same).count();
    if count > 1 {
        found.push(format!("there are {count} claims for one VIP"));
    }
    let clusters = universe.api.all("clusters");
    let cluster = clusters.iter().find(|cluster| cluster["metadata"]["uid"] == uid);
    if let Some(cluster) = cluster
        && is_paused(cluster)
        && is_known(universe, cluster)
    {
        found.push("an address is claimed for a Cluster that is paused".to_owned());
    }
    found
}

/// What is wrong with giving a claim up.
fn given_up(claim: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if owner(claim).is_none() {
        found.push("a claim of somebody else was given up".to_owned());
    }
    if let Some(address) = text(&claim["status"]["addressRef"]["name"]) {
        found.push(format!("a claim was given up that has the address {address}"));
    }
    found
}

/// What is wrong in the end.
pub fn judge(universe: &Universe) -> Vec<String> {
    let mut found = Vec::new();
    let clusters = universe.api.all("clusters");
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for cluster in &clusters {
        let name = text(&cluster["metadata"]["name"]).unwrap_or_default();
        if !is_reported(cluster) {
            found.push(format!("the conditions of {name} are {:?}", conditions(cluster, true)));
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
                found.push(format!("{name} has the {role} VIP {vip}, and its claim has {own:?}"));
            }
            let (copy, is_copied) = match role {
                Role::ControlPlane => {
                    let class = &cluster["spec"]["topology"]["classRef"]["name"];
                    (variable(cluster), *class == CLASS_WITH_VARIABLE)
                }
                Role::Ingress => (text(&cluster["metadata"]["labels"][INGRESS_VIP]), true),
            };
            if copy != Some(vip).filter(|_| is_copied) {
                found.push(format!("{name} has the {role} VIP {vip}, and its copy is {copy:?}"));
            }
            let (said, so) = (word(cluster, role), (!is_by_hand).then(|| "Assigned".to_owned()));
            if said != so {
                found.push(format!("{said:?} is said of the {role} VIP of {name}, which is {so:?}"));
            }
        }
    }
    for (vip, holders) in holders.iter().filter(|(_, holders)| holders.len() > 1) {
        found.push(format!("{vip} is a VIP of {}", holders.join(" and ")));
    }
    let uids: Vec<_> = clusters.iter().filter_map(|cluster| text(&cluster["metadata"]["uid"])).collect();
    let claims = universe.api.all("ipaddressclaims");
    let name = |object: &Value| text(&object["metadata"]["name"]).unwrap_or_default().to_owned();
    for claim in claims.iter().filter(|claim| owner(claim).is_none_or(|owner| !uids.contains(&owner))) {
        found.push(format!("the claim {} is nobody's", name(claim)));
    }
    for address in universe.api.all("ipaddresses") {
        if !claims.iter().any(|claim| name(claim) == name(&address)) {
            found.push(format!("the address {} is of no claim", name(&address)));
        }
    }
    found
}
