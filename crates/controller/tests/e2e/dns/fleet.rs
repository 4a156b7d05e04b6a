//! Nodes that come and go with their droplets and pods, for a pool whose addresses follow the pods.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::DeleteParams;
use testbed::cluster::{eventually, node, pod};

use crate::rig::Rig;

/// Longer than the lease of a node: until it expires, kwok may run no pods on a node that was deleted and recreated.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(180);

const POOL_NODES: u64 = 8;
const POOL_ADDRESSES: u64 = 4;
const FIRST_DROPLET: u64 = 2_000;

/// The nodes of the long test. As many of them run a pod as there are addresses.
pub struct Fleet<'a> {
    rig: &'a Rig,
    pub addresses: Vec<String>,
    with_pod: VecDeque<u64>,
    without_pod: VecDeque<u64>,
}

fn fleet_node(number: u64) -> String {
    format!("fleet-{number}")
}

impl<'a> Fleet<'a> {
    pub async fn create(rig: &'a Rig) -> Self {
        let addresses: Vec<_> = (1..=POOL_ADDRESSES).map(|number| format!("198.51.100.{number}")).collect();
        rig.clouds.digitalocean.enforce_limits(false);
        rig.clouds.digitalocean.with(|account| {
            // Short, so that 200 failovers take only minutes.
            account.action_time = Duration::from_millis(200);
            addresses.iter().for_each(|address| account.add_reserved_ip(address, "nyc3"));
        });
        let fleet = Self {
            rig,
            addresses,
            with_pod: (1..=POOL_ADDRESSES).collect(),
            without_pod: (POOL_ADDRESSES + 1..=POOL_NODES).collect(),
        };
        for number in 1..=POOL_NODES {
            fleet.boot(number).await;
        }
        for number in &fleet.with_pod {
            fleet.run_pod(*number).await;
        }
        fleet
    }

    /// Creates a droplet and its node.
    async fn boot(&self, number: u64) {
        let (name, droplet) = (fleet_node(number), FIRST_DROPLET + number);
        self.rig.clouds.digitalocean.with(|account| account.add_droplet(droplet, &*name, "nyc3"));
        let fixture = node(&name).provider_id(&format!("digitalocean://{droplet}")).label("fleet", "yes");
        fixture.create(&self.rig.client).await.unwrap();
    }

    /// Deletes a droplet, its node and its pod.
    async fn lose(&self, number: u64) {
        let droplet = FIRST_DROPLET + number;
        self.rig.clouds.digitalocean.with(|account| account.remove_droplet(droplet));
        let nodes: Api<Node> = Api::all(self.rig.client.clone());
        nodes.delete(&fleet_node(number), &DeleteParams::default()).await.unwrap();
        self.end_pod(number).await;
    }

    async fn run_pod(&self, number: u64) {
        let name = fleet_node(number);
        pod("default", &name).label("app", "fleet").on(&name).create(&self.rig.client).await.unwrap();
    }

    async fn end_pod(&self, number: u64) {
        let pods: Api<Pod> = Api::namespaced(self.rig.client.clone(), "default");
        pods.delete(&fleet_node(number), &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    /// Moves this many pods to other nodes, those that have run longest first. The new pods start before the old ones
    /// end, so that the addresses always have a target.
    pub async fn move_pods(&mut self, count: usize) {
        for _ in 0..count {
            let new = self.without_pod.pop_front().unwrap();
            self.run_pod(new).await;
            self.with_pod.push_back(new);
        }
        for _ in 0..count {
            let old = self.with_pod.pop_front().unwrap();
            self.end_pod(old).await;
            self.without_pod.push_back(old);
        }
    }

    /// Loses a node with a pod, while all other addresses stay attached. After `replaced_after` another node runs a
    /// pod, and the lost node comes back.
    pub async fn lose_one(&mut self, replaced_after: Duration) {
        let old = self.with_pod.pop_front().unwrap();
        self.lose(old).await;
        tokio::time::sleep(replaced_after).await;
        let new = self.without_pod.pop_front().unwrap();
        self.run_pod(new).await;
        self.with_pod.push_back(new);
        self.boot(old).await;
        self.without_pod.push_back(old);
    }

    /// Waits until the addresses are on exactly the nodes that run a pod.
    pub async fn followed(&self) {
        let wanted: BTreeSet<_> = self.with_pod.iter().map(|number| FIRST_DROPLET + number).collect();
        let followed = eventually("the addresses are on the nodes with pods", FOLLOWED_WITHIN, async || {
            let holder = |address: &String| {
                self.rig.clouds.digitalocean.with(|account| account.holder(address)).unwrap_or_default()
            };
            Ok(self.addresses.iter().map(holder).collect::<BTreeSet<_>>() == wanted)
        });
        followed.await.unwrap_or_else(|error| {
            let pods = self.rig.kubectl(&["get", "pods,nodes", "-A", "-o", "wide"]);
            panic!("{error}: {wanted:?}\n{pods}\n{}", self.rig.logs())
        });
    }
}
