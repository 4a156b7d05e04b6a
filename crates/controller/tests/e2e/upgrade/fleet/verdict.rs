//! When a fleet is settled, and the verdict of a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use testbed::cluster::eventually;
use testbed::demo::ZONE;
use testbed::fake::ledger::{CloudChange, Ledger};

use super::{
    ADDRESSES_OF_ALLOCATION, ADDRESSES_OF_POOL, ALLOCATIONS, Fleet, LONG, Leader, POOLS, POOLS_THAT_MOVE,
    Wave, ZONE_OF_MACHINES, allocation_name, record_name,
};
use crate::upgrade::phases::places;

/// How often the test reads all objects. Shorter intervals would take CPU time from the controllers.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The result of a switch. All lists are empty if nothing went wrong.
pub struct Verdict {
    pub moves: usize,
    lost: Vec<String>,
    leaked: Vec<String>,
    moved_twice: Vec<String>,
    moved_without_need: Vec<String>,
    on_two_machines: Vec<String>,
    emptied_names: Vec<String>,
    wrong_vips: Vec<String>,
}

impl Verdict {
    pub fn faults(&self) -> [(&'static str, &Vec<String>); 7] {
        [
            ("lost", &self.lost),
            ("leaked", &self.leaked),
            ("moved twice", &self.moved_twice),
            ("moved without need", &self.moved_without_need),
            ("on two machines", &self.on_two_machines),
            ("emptied names", &self.emptied_names),
            ("wrong VIPs", &self.wrong_vips),
        ]
    }
}

impl Fleet {
    /// Waits until all objects are Ready, and all addresses are on the expected nodes.
    pub async fn settled(&self, wave: Option<(usize, &Wave)>, leader: &mut Leader) -> Duration {
        let mut unsettled = Vec::new();
        let settled = eventually("everything is settled", LONG, async || {
            if leader.controller.process.try_wait()?.is_some() {
                let restarts = leader.restarts + 1;
                let name = format!("ip-address-controller-{}-again-{restarts}", leader.release);
                *leader = self.leader(leader.release, name, restarts);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            unsettled = self.unsettled(wave).await;
            Ok(unsettled.is_empty())
        });
        match settled.await {
            Ok(took) => took,
            Err(error) => panic!("{error}: {unsettled:#?}\n{}", self.rig.logs()),
        }
    }

    /// Objects that are not Ready or have open entries, and addresses, names and Clusters that are not as expected.
    async fn unsettled(&self, wave: Option<(usize, &Wave)>) -> Vec<String> {
        let mut unsettled = Vec::new();
        let list = ListParams::default();
        for pool in self.pools().list(&list).await.unwrap() {
            let status = pool.status.clone().unwrap_or_default();
            let is_creator = pool.name_any().starts_with("creator");
            let listed = pool.spec.ips.clone().unwrap_or_default().len();
            let is_complete = pool.spec.desired().is_none_or(|desired| desired == listed);
            let is_ready = is_creator || is_ready(&pool, status.observed_generation, &status.conditions);
            let attached = status.summary.clone().unwrap_or_default().attached;
            if status.moves.is_some() || !is_complete || !is_ready {
                let open = status.moves.map_or(0, |moves| moves.entries.len());
                unsettled.push(format!(
                    "{}: {open} open, {listed} listed, {attached} attached, {:?}",
                    pool.name_any(),
                    reasons(&status.conditions)
                ));
            }
        }
        for found in self.allocations().list(&list).await.unwrap() {
            let status = found.status.clone().unwrap_or_default();
            if status.moves.is_some() || !is_ready(&found, status.observed_generation, &status.conditions) {
                unsettled.push(format!("{}: {:?}", found.name_any(), reasons(&status.conditions)));
            }
        }
        for found in self.records().list(&list).await.unwrap() {
            let status = found.status.clone().unwrap_or_default();
            if !is_ready(&found, status.observed_generation, &status.conditions) {
                unsettled.push(format!("{}: {:?}", found.name_any(), reasons(&status.conditions)));
            }
        }
        let Some((number, wave)) = wave else { return unsettled };
        unsettled.extend(self.misplaced(number));
        for name in &wave.clusters {
            let cluster = self.clusters().get(name).await.unwrap();
            if cluster.data["spec"]["controlPlaneEndpoint"]["host"].is_null() {
                unsettled.push(format!("Cluster {name} has no endpoint"));
            }
        }
        unsettled
    }

    /// Addresses that are not on a node that still matches after the wave, and DNS names that do not have their
    /// addresses.
    fn misplaced(&self, number: usize) -> Vec<String> {
        let is_second = number % 2 == 1;
        let places = places(&self.ledgers());
        let holder = |address: &String| places.get(address).and_then(|place| place.holder.clone());
        let mut misplaced = Vec::new();
        for pool in 0..POOLS {
            for address in Self::pool_addresses(pool) {
                let droplet = holder(&address).and_then(|holder| holder.parse::<u64>().ok());
                let number = droplet.filter(|droplet| droplet / 100 == 100 + pool).map(|found| found % 100);
                let is_right = number.is_some_and(|number| {
                    pool >= POOLS_THAT_MOVE || (number >= ADDRESSES_OF_POOL) != is_second
                });
                if !is_right {
                    misplaced.push(format!("{address} is on {droplet:?}"));
                }
            }
            let values = self.rig.clouds.cloudflare.ledger().values_of(&record_name(pool));
            let values = values.last().map(|(_, values)| values.clone()).unwrap_or_default();
            if values != Self::pool_addresses(pool).into_iter().collect() {
                misplaced.push(format!("{} holds {} values", record_name(pool), values.len()));
            }
        }
        for allocation in 0..ALLOCATIONS {
            for address in Self::allocation_addresses(allocation) {
                let on = holder(&address).unwrap_or_default();
                if !on.contains(&format!("/{}-", allocation_name(allocation))) {
                    misplaced.push(format!("{address} is on {on:?}"));
                }
            }
        }
        let group = allocation_name(0);
        let held: BTreeSet<_> = places.values().filter_map(|place| place.holder.clone()).collect();
        for number in ADDRESSES_OF_ALLOCATION..2 * ADDRESSES_OF_ALLOCATION {
            let name = format!("{group}-{number}");
            let has_ours = held.iter().any(|vm| vm.ends_with(&format!("/{name}")));
            let has_ephemeral =
                self.rig.clouds.compute.with(|compute| compute.has_ephemeral(ZONE_OF_MACHINES, &name));
            if !has_ours && !has_ephemeral {
                misplaced.push(format!("{name} has lost its ephemeral address"));
            }
        }
        misplaced
    }

    /// Derives the verdict for a wave from the ledgers.
    pub async fn judge(&self, wave: &Wave) -> Verdict {
        let ledgers = self.ledgers();
        let mut arrivals: BTreeMap<String, usize> = BTreeMap::new();
        for (ledger, began) in ledgers.iter().zip(wave.began) {
            for done in &ledger.done[began..] {
                if let CloudChange::Attached { address, .. } = &done.change {
                    *arrivals.entry(address.clone()).or_default() += 1;
                }
            }
        }
        let with = |is_meant: &dyn Fn(&String, usize) -> bool| -> Vec<String> {
            let meant = arrivals.iter().filter(|(address, count)| is_meant(address, **count));
            meant.map(|(address, count)| format!("{address} ({count})")).collect()
        };
        let listed: BTreeSet<String> = {
            let pools = self.pools().list(&ListParams::default()).await.unwrap();
            pools.into_iter().flat_map(|pool| pool.spec.ips.unwrap_or_default()).collect()
        };
        let account: BTreeSet<String> =
            self.rig.clouds.digitalocean.with(|account| account.reserved_ips()).into_iter().collect();
        let names = (0..POOLS).map(record_name).chain([format!("nodes.{ZONE}")]);
        let cloudflare = self.rig.clouds.cloudflare.ledger();
        let is_emptied = |name: &String| {
            let states = cloudflare.values_of(name);
            states.iter().skip_while(|(_, values)| values.is_empty()).any(|(_, values)| values.is_empty())
        };
        Verdict {
            moves: arrivals.values().sum(),
            lost: listed.difference(&account).cloned().collect(),
            leaked: account.difference(&listed).filter(|ip| !self.foreign.contains(*ip)).cloned().collect(),
            moved_twice: with(&|_, count| count > 1),
            moved_without_need: with(&|address, _| !wave.moving.contains(address)),
            on_two_machines: ledgers.iter().flat_map(Ledger::double_holders).collect(),
            emptied_names: names.filter(is_emptied).collect(),
            wrong_vips: self.wrong_vips(wave).await,
        }
    }

    /// Clusters whose endpoint is not the address of their claim, and claims without a Cluster.
    async fn wrong_vips(&self, wave: &Wave) -> Vec<String> {
        let of = |kind: &str| -> Api<DynamicObject> {
            let kind = GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", kind);
            Api::namespaced_with(self.rig.client.clone(), "default", &ApiResource::from_gvk(&kind))
        };
        let (claims, addresses) = (of("IPAddressClaim"), of("IPAddress"));
        let mut wrong = Vec::new();
        for name in &wave.clusters {
            let claim = format!("vip-cp-{name}");
            let cluster = self.clusters().get(name).await.unwrap();
            let address = addresses.get_opt(&claim).await.unwrap().map(|found| found.data);
            let claimed = address.as_ref().and_then(|data| data["spec"]["address"].as_str());
            if claimed.is_none() || cluster.data["spec"]["controlPlaneEndpoint"]["host"].as_str() != claimed {
                wrong.push(format!("{name}: {claimed:?}"));
            }
        }
        let expected: BTreeSet<_> = wave.clusters.iter().map(|name| format!("vip-cp-{name}")).collect();
        let found = claims.list(&ListParams::default()).await.unwrap();
        let is_live = |claim: &&DynamicObject| claim.metadata.deletion_timestamp.is_none();
        let found: BTreeSet<_> = found.iter().filter(is_live).map(ResourceExt::name_any).collect();
        wrong.extend(found.difference(&expected).cloned());
        wrong
    }
}

fn is_ready<K>(object: &K, observed: Option<i64>, conditions: &[Condition]) -> bool
where
    K: Resource + DeserializeOwned,
{
    let is_ready = |condition: &Condition| condition.type_ == "Ready" && condition.status == "True";
    observed == object.meta().generation && conditions.iter().any(is_ready)
}

fn reasons(conditions: &[Condition]) -> Vec<String> {
    conditions.iter().map(|found| format!("{}={} {}", found.type_, found.status, found.reason)).collect()
}
