//! The scenarios of the differential test, with the reason for each known difference.

use serde_json::{Value, json};

use super::Outcome::{Differs, Same};
use super::Step::{
    Address, Droplet, Edit, Held, Node, NodeDestroyed, NodeGone, NodeLabel, NodeReady, Pod, PodGone,
    PodReady, Pool, PoolGone, Taints,
};
use super::{Outcome, Scenario, Step};
use crate::side::INGRESS;

/// For scenarios in which a node stops matching the pool.
const UNMARKED: Outcome = Differs(
    "FLIPOP forgets the node and leaves its annotation, although its documentation says that it removes it",
);

/// A scenario that starts with this many nodes with the label `pool=work`.
fn on(nodes: u64, name: &'static str) -> Scenario {
    Scenario {
        name,
        given: (1..=nodes).map(|node| Node(node, "work")).collect(),
        when: Vec::new(),
        outcome: Same,
    }
}

impl Scenario {
    fn given(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.given.extend(steps);
        self
    }

    /// Adds this many free addresses, from number 1.
    fn addresses(self, count: u64) -> Self {
        self.given((1..=count).map(Address))
    }

    fn when(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.when.push(steps.into_iter().collect());
        self
    }

    fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }
}

/// Creates a pool with these addresses and this match.
fn pool(ips: &[u64], matching: Value) -> Step {
    Pool("pool", json!({"ips": ips, "match": matching}))
}

fn by_node() -> Value {
    json!({"nodeLabel": "pool=work"})
}

fn by_pod() -> Value {
    json!({"podNamespace": "default", "podLabel": "app=nginx"})
}

fn tolerating(toleration: Value) -> Value {
    json!({"nodeLabel": "pool=work", "tolerations": [toleration]})
}

/// Creates a Ready pod that `by_pod` matches.
fn nginx(name: &'static str, node: u64) -> Step {
    Pod { name, namespace: "default", app: "nginx", node, is_ready: true }
}

/// The taint `dedicated=edge` with this effect.
fn dedicated(effect: &str) -> Value {
    json!([{"key": "dedicated", "value": "edge", "effect": effect}])
}

fn cordoned() -> Value {
    json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
}

pub fn all() -> Vec<Scenario> {
    [matching(), taints(), numbers(), pods(), nodes(), edits(), pools(), accounts()].concat()
}

fn matching() -> Vec<Scenario> {
    let nginx_in_ingress = Pod { name: "away", namespace: INGRESS, app: "nginx", node: 2, is_ready: true };
    vec![
        on(2, "nodes are matched by their label")
            .given([Node(3, "other")])
            .addresses(2)
            .when([pool(&[1, 2], by_node())]),
        on(2, "every node matches an empty match").addresses(2).when([pool(&[1, 2], json!({}))]),
        on(3, "nodes are matched by the label of their pods")
            .given([
                nginx("one", 2),
                Pod { name: "two", namespace: "default", app: "other", node: 1, is_ready: true },
            ])
            .addresses(1)
            .when([pool(&[1], json!({"podLabel": "app=nginx"}))]),
        on(3, "nodes are matched by the namespace of their pods")
            .given([nginx("one", 1), nginx_in_ingress.clone()])
            .addresses(1)
            .when([pool(&[1], json!({"podNamespace": INGRESS}))]),
        on(3, "pods of another namespace don't count")
            .given([nginx("one", 3), nginx_in_ingress])
            .addresses(2)
            .when([pool(&[1, 2], by_pod())]),
        on(2, "a node must match by its own label and by its pods")
            .given([Node(3, "other"), nginx("one", 2), nginx("two", 3)])
            .addresses(2)
            .when([pool(
                &[1, 2],
                json!({"nodeLabel": "pool=work", "podNamespace": "default", "podLabel": "app=nginx"}),
            )]),
        on(3, "a label may be one of a set")
            .given([Node(4, "other")])
            .addresses(2)
            .when([pool(&[1, 2], json!({"nodeLabel": "pool=work,name notin (n1)"}))]),
    ]
}

fn taints() -> Vec<Scenario> {
    let tainted = |name, taints: Value, matching: Value| {
        on(2, name).given([Taints(1, taints)]).addresses(2).when([pool(&[1, 2], matching)])
    };
    let no_schedule = || dedicated("NoSchedule");
    vec![
        tainted("a taint that is not tolerated keeps a node out", no_schedule(), by_node()),
        tainted(
            "a taint is tolerated by key and effect, with Exists",
            no_schedule(),
            tolerating(json!({"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"})),
        ),
        tainted(
            "a taint is tolerated by key and value, with Equal",
            no_schedule(),
            tolerating(json!({"key": "dedicated", "operator": "Equal", "value": "edge"})),
        ),
        tainted(
            "another value is not tolerated",
            no_schedule(),
            tolerating(json!({"key": "dedicated", "operator": "Equal", "value": "core"})),
        ),
        tainted(
            "no operator means Equal, so a taint with a value is not tolerated by its key alone",
            no_schedule(),
            tolerating(json!({"key": "dedicated", "effect": "NoSchedule"})),
        ),
        tainted(
            "another effect is not tolerated",
            no_schedule(),
            tolerating(json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"})),
        ),
        tainted(
            "Exists without a key tolerates everything",
            no_schedule(),
            tolerating(json!({"operator": "Exists"})),
        ),
        tainted("a taint PreferNoSchedule keeps a node out too", dedicated("PreferNoSchedule"), by_node()),
        on(2, "a node that is tainted later loses its address to another")
            .given([Taints(2, no_schedule())])
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([Taints(2, json!(null)), Taints(1, no_schedule())]),
        on(1, "a node that is tainted later keeps its address while no other node needs it")
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([Taints(1, no_schedule())]),
        on(2, "a cordoned node gives its address to another")
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([Taints(1, cordoned())]),
        on(2, "a cordoned node keeps its address if the pool tolerates it")
            .addresses(1)
            .when([pool(
                &[1],
                tolerating(json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})),
            )])
            .when([Taints(1, cordoned())]),
    ]
}

fn numbers() -> Vec<Scenario> {
    vec![
        on(2, "with fewer nodes than addresses, some addresses are unassigned")
            .addresses(4)
            .when([pool(&[1, 2, 3, 4], by_node())]),
        on(4, "with more nodes than addresses, the first nodes by name get them")
            .addresses(2)
            .when([pool(&[1, 2], by_node())]),
        on(1, "a node that joins later gets a free address")
            .addresses(2)
            .when([pool(&[1, 2], by_node())])
            .when([Node(2, "work")]),
        on(2, "a node that joins later takes no address from others")
            .given([Held(1, 2)])
            .when([pool(&[1], by_node())])
            .when([Node(3, "work")]),
        on(3, "assignments wait for the cool-off").addresses(3).when([Pool(
            "pool",
            json!({"ips": [1, 2, 3], "match": by_node(), "assignmentCoolOffSeconds": 1.5}),
        )]),
        on(2, "desiredIPs 0 means all listed addresses")
            .addresses(2)
            .when([Pool("pool", json!({"ips": [1, 2], "desiredIPs": 0, "match": by_node()}))]),
        on(2, "addresses are created for a pool without any")
            .when([Pool("pool", json!({"desiredIPs": 2, "match": by_node()}))]),
        on(3, "addresses are created in addition to the listed ones")
            .given([Held(1, 1)])
            .when([Pool("pool", json!({"ips": [1], "desiredIPs": 3, "match": by_node()}))]),
        on(3, "addresses beyond the desired number are disabled")
            .addresses(3)
            .when([Pool("pool", json!({"ips": [1, 2, 3], "desiredIPs": 2, "match": by_node()}))]),
        on(1, "a pool without addresses and without desiredIPs reports an error")
            .when([Pool("pool", json!({"match": by_node()}))]),
    ]
}

fn pods() -> Vec<Scenario> {
    let waiting = Pod { name: "one", namespace: "default", app: "nginx", node: 1, is_ready: false };
    vec![
        on(2, "a pod that is not Ready does not count")
            .given([waiting.clone(), nginx("two", 2)])
            .addresses(2)
            .when([pool(&[1, 2], by_pod())]),
        on(2, "a node gets an address when its pod becomes Ready")
            .given([waiting])
            .addresses(2)
            .when([pool(&[1, 2], by_pod())])
            .when([PodReady("one", true)]),
        on(2, "a pod moves to another node and the address follows")
            .given([nginx("one", 1)])
            .addresses(1)
            .when([pool(&[1], by_pod())])
            .when([PodGone("one"), nginx("next", 2)]),
        on(2, "a pod is deleted and its address stays while no other node needs it")
            .given([nginx("one", 1), nginx("two", 2)])
            .addresses(2)
            .when([pool(&[1, 2], by_pod())])
            .when([PodGone("one")]),
        on(2, "a pod that is NotReady for a while gets its address back")
            .given([nginx("one", 1), nginx("two", 2)])
            .addresses(2)
            .when([pool(&[1, 2], by_pod())])
            .when([PodReady("one", false)])
            .when([PodReady("one", true)]),
        on(2, "a pod that stops being Ready loses its address to a Ready pod")
            .given([nginx("one", 1)])
            .addresses(1)
            .when([pool(&[1], by_pod())])
            .when([PodReady("one", false), nginx("two", 2)])
            .when([PodReady("one", true)]),
        on(2, "one matching pod of several on a node is enough")
            .given([nginx("one", 1), nginx("two", 1)])
            .addresses(1)
            .when([pool(&[1], by_pod())])
            .when([nginx("three", 2), PodGone("one")]),
        on(3, "a pod starts on a node with an unused address")
            .given([nginx("one", 1), Held(1, 1), Held(2, 2)])
            .when([pool(&[1, 2], by_pod())])
            .when([nginx("two", 2)]),
    ]
}

fn nodes() -> Vec<Scenario> {
    vec![
        on(3, "a node is deleted and the next one gets its address")
            .addresses(2)
            .when([pool(&[1, 2], by_node())])
            .when([NodeGone(1)]),
        on(2, "a node is deleted and no other is left")
            .addresses(2)
            .when([pool(&[1, 2], by_node())])
            .when([NodeGone(1)]),
        on(3, "a node is deleted with its droplet, and the next one gets its address")
            .addresses(2)
            .when([pool(&[1, 2], by_node())])
            .when([NodeDestroyed(1)]),
        on(2, "a node is deleted with its droplet, and no other is left")
            .addresses(2)
            .when([pool(&[1, 2], by_node())])
            .when([NodeDestroyed(1)]),
        on(2, "a node loses its label and another gets its address")
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([NodeLabel(1, "none")])
            .outcome(UNMARKED),
        on(1, "a node loses its label and keeps its address while no other node needs it")
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([NodeLabel(1, "none")])
            .outcome(UNMARKED),
        on(2, "a node that is NotReady loses its address to another")
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([NodeReady(1, false)]),
        on(2, "a node that is NotReady for a while keeps its address if no other node needs it")
            .addresses(2)
            .when([pool(&[1, 2], by_node())])
            .when([NodeReady(1, false)])
            .when([NodeReady(1, true)]),
        on(2, "a node that was NotReady does not take its address back")
            .addresses(1)
            .when([pool(&[1], by_node())])
            .when([NodeReady(1, false)])
            .when([NodeReady(1, true)]),
    ]
}

fn edits() -> Vec<Scenario> {
    let all_held = |name| on(3, name).given([Held(1, 1), Held(2, 2), Held(3, 3)]);
    vec![
        on(1, "a changed match moves the addresses")
            .given([Node(2, "other"), Address(1)])
            .when([pool(&[1], by_node())])
            .when([Edit("pool", json!({"match": {"nodeLabel": "pool=other"}}))])
            .outcome(UNMARKED),
        on(2, "an address added to the spec goes to a node without one")
            .addresses(2)
            .when([pool(&[1], by_node())])
            .when([Edit("pool", json!({"ips": [1, 2]}))]),
        all_held("an address removed from the spec stays where it is")
            .when([pool(&[1, 2, 3], by_node())])
            .when([Edit("pool", json!({"ips": [1, 2]}))]),
        on(2, "a higher desiredIPs creates addresses")
            .addresses(1)
            .when([Pool("pool", json!({"ips": [1], "desiredIPs": 1, "match": by_node()}))])
            .when([Edit("pool", json!({"desiredIPs": 2}))]),
        all_held("a lower desiredIPs disables addresses and releases none")
            .when([Pool("pool", json!({"ips": [1, 2, 3], "desiredIPs": 3, "match": by_node()}))])
            .when([Edit("pool", json!({"desiredIPs": 2}))]),
        all_held("a deleted pool leaves its addresses where they are")
            .when([pool(&[1, 2, 3], by_node())])
            .when([PoolGone("pool")])
            .outcome(UNMARKED),
        all_held("a deleted and recreated pool finds its addresses where they are")
            .when([pool(&[1, 2, 3], by_node())])
            .when([PoolGone("pool")])
            .when([pool(&[1, 2, 3], by_node())])
            .outcome(UNMARKED),
    ]
}

fn pools() -> Vec<Scenario> {
    let other = |ips: &[u64], matching: Value| Pool("second", json!({"ips": ips, "match": matching}));
    vec![
        on(2, "two pools with different nodes")
            .given([Node(3, "other"), Node(4, "other")])
            .addresses(4)
            .when([pool(&[1, 2], by_node()), other(&[3, 4], json!({"nodeLabel": "pool=other"}))]),
        on(2, "two pools match the same nodes")
            .addresses(2)
            .when([pool(&[1], by_node())])
            .when([other(&[2], by_node())]).outcome(Differs("FLIPOP keeps trying the first node, which the cloud refuses; ours uses the free node")),
        on(1, "two pools list the same address")
            .given([Node(2, "other"), Address(1)])
            .when([pool(&[1], by_node())])
            .when([other(&[1], json!({"nodeLabel": "pool=other"}))]).outcome(Differs("FLIPOP's pools take it from each other; with ours the older pool has it and the younger one reports a conflict")),
    ]
}

fn accounts() -> Vec<Scenario> {
    vec![
        on(2, "an address on a matching node stays there").given([Held(1, 2)]).when([pool(&[1], by_node())]),
        on(1, "an address on a node that does not match moves to one that does")
            .given([Node(2, "other"), Held(1, 2)])
            .when([pool(&[1], by_node())]),
        on(0, "an address on a node that does not match stays while no other node needs it")
            .given([Node(1, "other"), Held(1, 1)])
            .when([pool(&[1], by_node())]),
        on(1, "an address on a droplet that is no node")
            .given([Droplet(9), Held(1, 9)])
            .when([pool(&[1], by_node())])
            .outcome(Differs(
                "FLIPOP takes it; ours leaves foreign addresses alone unless policy.takeover is Always",
            )),
        on(2, "an address that the account does not have").addresses(1).when([pool(&[1, 2], by_node())]),
        on(2, "a node with an address that no pool lists gets no second one")
            .given([Held(9, 1), Address(1)])
            .when([pool(&[1], by_node())])
            .outcome(Differs(
                "FLIPOP keeps trying that node, which the cloud refuses; ours uses the free node",
            )),
    ]
}
