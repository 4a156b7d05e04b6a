//! The VIPs of a run: events by people who create and change Clusters, IPAM pools and claims. [`checks`] has the
//! invariants.
//!
//! In: the seed, and the times of crashes and other faults. Out: events and their effects in Kubernetes. It never does
//! the controller's work.
//!
//! Most Clusters have a class that defines the variable for the VIP. One has a class that does not, and one has no
//! topology. One requests no ingress VIP. Each role has two pools, one of each kind, which together are sometimes too
//! small. Sometimes a person sets an endpoint while the controller allocates the VIP, and this endpoint may be an
//! address of a pool. Sometimes a person creates a claim with the name that the controller uses.

pub mod checks;

use std::time::Duration;

use controller::vips::names::{CLASS, INGRESS_ENABLED, PRIORITY, ROLE};
use plan::vips::Role;
use serde_json::{Value, json};

use crate::event::VipEvent;
use crate::ipam::listed;
use crate::options::CHAOS;
use crate::rng::Rng;
use crate::universe::Universe;

/// Maximum number of Clusters.
pub(crate) const CLUSTERS: u64 = 5;
/// Number of Clusters at the beginning.
const FIRST: u64 = 2;
pub(crate) const NAMESPACE: &str = "capi";
/// The class that defines the variable for the VIP.
const CLASS_WITH_VARIABLE: &str = "edge";
/// The class that does not define the variable.
const CLASS_WITHOUT: &str = "bare";

/// A person sets the endpoint of a new Cluster within this time.
const SOON: Duration = Duration::from_secs(4);

/// An IPAM pool of the run.
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

/// The number of addresses of a pool: at the beginning, and after it has grown.
const SIZES: [u64; 2] = [2, 6];

/// Draws random events and their times. If there are `troubles` (crashes, stops, failures of the apiserver),
/// about half of the events happen shortly before one of them.
pub fn script(seed: u64, troubles: &[Duration]) -> Vec<(Duration, VipEvent)> {
    let mut rng = Rng::new(seed, "vips");
    let mut events = Vec::new();
    for _ in 0..12 + rng.roll(36) {
        let at = match troubles {
            [_, ..] if rng.one_in(2) => rng.pick(troubles).saturating_sub(rng.up_to(SOON)),
            _ => rng.up_to(CHAOS),
        };
        let event = event(&mut rng);
        if let VipEvent::Create { cluster } | VipEvent::Replace { cluster } = event
            && rng.one_in(3)
        {
            // The controller usually writes the VIP within a second, so a person's endpoint is most at risk then.
            let after = *rng.pick(&[SOON, SOON / 4]);
            events.push((at + rng.up_to(after), VipEvent::SetEndpoint { cluster }));
        }
        events.push((at, event));
    }
    events
}

fn event(rng: &mut Rng) -> VipEvent {
    let cluster = rng.roll(CLUSTERS);
    let pool = usize::try_from(rng.roll(POOLS.len() as u64)).unwrap_or(0);
    match rng.roll(24) {
        0..7 => VipEvent::Create { cluster },
        7..9 => VipEvent::Delete { cluster },
        9..12 => VipEvent::Replace { cluster },
        12..14 => VipEvent::Pause { cluster, is_paused: true },
        14 => VipEvent::Pause { cluster, is_paused: false },
        15 => VipEvent::SetEndpoint { cluster },
        16..18 => VipEvent::Claim { cluster, role: *rng.pick(&Role::ALL), is_there: true },
        18 => VipEvent::Claim { cluster, role: *rng.pick(&Role::ALL), is_there: false },
        19 => VipEvent::AddPool { pool },
        20 => VipEvent::RemovePool { pool },
        21 => VipEvent::Grow { pool },
        _ => VipEvent::Shrink { pool },
    }
}

/// Creates the initial objects.
pub fn prepare(universe: &Universe) {
    for (name, variables) in
        [(CLASS_WITH_VARIABLE, json!([{"name": "clusterVip"}])), (CLASS_WITHOUT, json!([]))]
    {
        let class =
            json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"variables": variables}});
        universe.api.create("clusterclasses", &class, universe.now());
    }
    (0..POOLS.len()).for_each(|pool| happen(universe, &VipEvent::AddPool { pool }));
    (0..FIRST).for_each(|cluster| happen(universe, &VipEvent::Create { cluster }));
}

/// Applies an event. An event that is not possible at this moment has no effect.
pub fn happen(universe: &Universe, event: &VipEvent) {
    let (api, now) = (&universe.api, universe.now());
    let edit = |cluster: u64, change: &dyn Fn(&mut Value)| {
        api.edit("clusters", NAMESPACE, &name(cluster), now, change);
    };
    match *event {
        VipEvent::Create { cluster } => create(universe, cluster),
        VipEvent::Delete { cluster } => api.delete("clusters", NAMESPACE, &name(cluster), now),
        VipEvent::Replace { cluster } => {
            edit(cluster, &|object| object["metadata"]["finalizers"] = Value::Null);
            api.delete("clusters", NAMESPACE, &name(cluster), now);
            create(universe, cluster);
        }
        VipEvent::Pause { cluster, is_paused } => edit(cluster, &|object| {
            object["spec"]["paused"] = is_paused.into();
            set_condition(object, "Paused", is_paused);
        }),
        VipEvent::SetEndpoint { cluster } => edit(cluster, &|object| {
            if host(object).is_none() {
                object["spec"]["controlPlaneEndpoint"] =
                    json!({"host": by_hand(cluster), "port": PORT_BY_HAND});
            }
        }),
        VipEvent::Claim { cluster, role, is_there: true } => {
            let claim = json!({
                "metadata": {"name": claim_name(role, &name(cluster)), "namespace": NAMESPACE},
                "spec": {"poolRef": {"kind": "GlobalInClusterIPPool", "name": "first"}},
            });
            api.create("ipaddressclaims", &claim, now);
        }
        VipEvent::Claim { cluster, role, is_there: false } => {
            let name = claim_name(role, &name(cluster));
            if api.one("ipaddressclaims", NAMESPACE, &name).is_some_and(|claim| owner(&claim).is_none()) {
                api.delete("ipaddressclaims", NAMESPACE, &name, now);
            }
        }
        VipEvent::AddPool { pool } => add_pool(universe, pool),
        VipEvent::RemovePool { pool } => {
            let Pool { plural, namespace, name, .. } = POOLS[pool];
            if in_use(universe, pool).is_empty() {
                api.delete(plural, namespace, name, now);
            }
        }
        VipEvent::Grow { pool } => resize(universe, pool, &addresses(pool, SIZES[1])),
        VipEvent::Shrink { pool } => resize(universe, pool, &in_use(universe, pool)),
    }
}

/// Removes everything that keeps a Cluster from getting its VIPs.
pub fn heal(universe: &Universe) {
    for pool in 0..POOLS.len() {
        [VipEvent::AddPool { pool }, VipEvent::Grow { pool }]
            .iter()
            .for_each(|event| happen(universe, event));
    }
    let in_range = universe.api.one("clusters", NAMESPACE, &name(CLUSTER_IN_RANGE));
    // The IPAM provider may have allocated this address to other Clusters too. They wait until this Cluster is gone.
    if in_range.as_deref().is_some_and(is_by_hand) {
        happen(universe, &VipEvent::Delete { cluster: CLUSTER_IN_RANGE });
    }
    for cluster in 0..CLUSTERS {
        happen(universe, &VipEvent::Pause { cluster, is_paused: false });
        for role in Role::ALL {
            happen(universe, &VipEvent::Claim { cluster, role, is_there: false });
        }
    }
}

pub(crate) fn name(cluster: u64) -> String {
    format!("cluster-{cluster}")
}

/// Creates a Cluster. Cluster API sets a condition on it at once.
fn create(universe: &Universe, cluster: u64) {
    let (api, now) = (&universe.api, universe.now());
    api.create("clusters", &object(cluster), now);
    api.edit("clusters", NAMESPACE, &name(cluster), now, |object| set_condition(object, "Available", false));
}

/// Sets a condition at the beginning of the list, and keeps all others.
fn set_condition(cluster: &mut Value, kind: &str, status: bool) {
    let mut conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != kind);
    conditions.insert(0, json!({"type": kind, "status": if status { "True" } else { "False" }}));
    cluster["status"]["conditions"] = conditions.into();
}

fn claim_name(role: Role, cluster: &str) -> String {
    format!("{}{cluster}", role.claim_prefix())
}

/// The port of an endpoint that a person sets.
const PORT_BY_HAND: u16 = 443;

/// The Cluster whose endpoint a person sets to an address of a pool, without a claim.
const CLUSTER_IN_RANGE: u64 = 3;

/// The endpoint that a person sets for a Cluster.
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

/// The addresses of a pool that are in use.
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

/// The UID of a claim's owner.
fn owner(claim: &Value) -> Option<&str> {
    text(&claim["metadata"]["ownerReferences"][0]["uid"])
}
