//! The other controllers that work on Cluster API's objects: the IPAM provider, the garbage collector and Cluster API.
//!
//! In: claims, pools, and Clusters that are being deleted. Out: an address for each claim whose pool has a free one,
//! the counts in the pools' status, and the removal of deleted objects. All work in small steps with pauses between
//! them, so that the controller sees intermediate states. They never allocate an address twice, and never release it
//! before its claim is deleted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rng::Rng;
use crate::universe::Universe;

/// The kinds that these controllers watch.
const KINDS: [&str; 5] =
    ["clusters", "ipaddressclaims", "ipaddresses", "inclusterippools", "globalinclusterippools"];

/// Both kinds of pools: kind and plural name.
const POOLS: [(&str, &str); 2] =
    [("InClusterIPPool", "inclusterippools"), ("GlobalInClusterIPPool", "globalinclusterippools")];

/// The finalizer that keeps a claim until its address is released.
const RELEASE: &str = "ipam.cluster.x-k8s.io/ReleaseAddress";

/// Maximum length of most pauses between two steps.
const PAUSE: Duration = Duration::from_millis(400);

/// Maximum length of one pause in ten.
const LONG_PAUSE: Duration = Duration::from_secs(6);

/// The IPAM provider, the garbage collector and Cluster API of a run.
pub struct Ipam {
    universe: Arc<Universe>,
    rng: Rng,
}

impl Ipam {
    /// Creates these controllers. They do nothing until [`Ipam::work`] runs.
    pub fn new(seed: u64, universe: Arc<Universe>) -> Self {
        Self { universe, rng: Rng::new(seed, "ipam") }
    }

    /// Reconciles until the run ends.
    pub async fn work(mut self) {
        let (mut seen, mut is_done) = (0, false);
        loop {
            let longest = if self.rng.one_in(10) { LONG_PAUSE } else { PAUSE };
            tokio::time::sleep(self.rng.up_to(longest)).await;
            let (has_changed, version) = self.universe.api.has_changed(&KINDS, seen);
            seen = version;
            if is_done && !has_changed {
                self.universe.api.changed(LONG_PAUSE).await;
                continue;
            }
            is_done = self.step();
        }
    }

    /// Does the next step for each object. Returns false if it has postponed the counts of the pools.
    fn step(&mut self) -> bool {
        self.end_clusters();
        self.collect_garbage();
        self.serve_claims();
        // The counts in a pool's status are sometimes stale.
        let counts = self.rng.one_in(2);
        if counts {
            POOLS.iter().for_each(|(_, plural)| self.count(plural));
        }
        counts
    }

    /// Removes the finalizers of Clusters that are being deleted.
    fn end_clusters(&self) {
        for cluster in self.universe.api.all("clusters").iter().filter(|cluster| is_deleted(cluster)) {
            self.edit("clusters", cluster, |cluster| cluster["metadata"]["finalizers"] = Value::Null);
        }
    }

    /// Deletes claims whose owners no longer exist.
    fn collect_garbage(&self) {
        let api = &self.universe.api;
        let uids: BTreeSet<_> =
            api.all("clusters").iter().map(|cluster| text(&cluster["metadata"]["uid"])).collect();
        for claim in api.all("ipaddressclaims").iter().filter(|claim| !is_deleted(claim)) {
            let owners: Vec<_> =
                claim["metadata"]["ownerReferences"].as_array().into_iter().flatten().collect();
            let is_gone = |owner: &&Value| !uids.contains(&text(&owner["uid"]));
            if !owners.is_empty() && owners.iter().all(is_gone) {
                let (namespace, name) = named(claim);
                api.delete("ipaddressclaims", &namespace, &name, self.universe.now());
            }
        }
    }

    /// Does one step for each claim: adds the finalizer, allocates an address, writes it into the claim's status. For a
    /// deleted claim: releases the address, then removes the finalizer.
    fn serve_claims(&mut self) {
        let api = self.universe.api.clone();
        for claim in api.all("ipaddressclaims") {
            let (namespace, name) = named(&claim);
            let address = api.one("ipaddresses", &namespace, &name);
            let has_finalizer = claim["metadata"]["finalizers"].is_array();
            match (is_deleted(&claim), &address) {
                (true, Some(_)) => api.delete("ipaddresses", &namespace, &name, self.universe.now()),
                (true, None) => self.edit("ipaddressclaims", &claim, |claim| {
                    claim["metadata"]["finalizers"] = Value::Null;
                }),
                (false, _) if !has_finalizer => self.edit("ipaddressclaims", &claim, |claim| {
                    claim["metadata"]["finalizers"] = json!([RELEASE]);
                }),
                (false, None) => {
                    // The status usually follows at once.
                    if self.allocate(&claim) && !self.rng.one_in(4) {
                        self.write_status(&claim);
                    }
                }
                (false, Some(_)) if claim["status"]["addressRef"].is_null() => self.write_status(&claim),
                (false, Some(_)) => {}
            }
        }
    }

    /// Writes the name of a claim's address into the claim's status.
    fn write_status(&self, claim: &Value) {
        let (_, name) = named(claim);
        self.edit("ipaddressclaims", claim, |claim| claim["status"]["addressRef"] = json!({"name": name}));
    }

    /// Allocates the first free address of a claim's pool. Returns whether there is one.
    fn allocate(&self, claim: &Value) -> bool {
        let (namespace, name) = named(claim);
        let meant = &claim["spec"]["poolRef"];
        let Some((kind, plural)) = POOLS.iter().find(|(kind, _)| meant["kind"] == *kind) else {
            return false;
        };
        let home = if *kind == "InClusterIPPool" { namespace.as_str() } else { "" };
        let pool = self.universe.api.one(plural, home, &text(&meant["name"]));
        let Some(pool) = pool.filter(|pool| !is_deleted(pool)) else { return false };
        let allocated = self.allocated();
        let Some(free) = listed(&pool).into_iter().find(|address| !allocated.contains(address)) else {
            return false;
        };
        let owner = json!({
            "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": name,
            "uid": claim["metadata"]["uid"], "controller": true,
        });
        let address = json!({
            "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
            "spec": {"address": free, "claimRef": {"name": name}, "poolRef": meant},
        });
        self.universe.api.create("ipaddresses", &address, self.universe.now());
        true
    }

    fn allocated(&self) -> BTreeSet<String> {
        let addresses = self.universe.api.all("ipaddresses");
        addresses.iter().map(|address| text(&address["spec"]["address"])).collect()
    }

    /// Writes the number of total, used and free addresses into the status of each pool.
    fn count(&self, plural: &str) {
        let allocated = self.allocated();
        for pool in self.universe.api.all(plural) {
            let all = listed(&pool);
            let used = all.iter().filter(|address| allocated.contains(*address)).count();
            let counts = json!({"total": all.len(), "used": used, "free": all.len() - used});
            self.edit(plural, &pool, |pool| pool["status"]["ipAddresses"] = counts);
        }
    }

    fn edit(&self, plural: &str, object: &Value, change: impl FnOnce(&mut Value)) {
        let (namespace, name) = named(object);
        self.universe.api.edit(plural, &namespace, &name, self.universe.now(), change);
    }
}

fn is_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The addresses of a pool.
pub fn listed(pool: &Value) -> Vec<String> {
    pool["spec"]["addresses"].as_array().into_iter().flatten().map(text).collect()
}

fn named(object: &Value) -> (String, String) {
    (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clouds::clouds;

    fn ipam() -> Ipam {
        Ipam::new(0, Universe::new(0, clouds()))
    }

    fn pool(ipam: &Ipam, addresses: &[&str]) {
        let pool = json!({"metadata": {"name": "p"}, "spec": {"addresses": addresses}});
        ipam.universe.api.create("globalinclusterippools", &pool, ipam.universe.now());
    }

    fn claim(ipam: &Ipam, name: &str) {
        let spec = json!({"poolRef": {"kind": "GlobalInClusterIPPool", "name": "p"}});
        let claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        ipam.universe.api.create("ipaddressclaims", &claim, ipam.universe.now());
    }

    fn settle(ipam: &mut Ipam) {
        for _ in 0..20 {
            ipam.step();
        }
    }

    /// The claims that have an address, each with its address.
    fn served(ipam: &Ipam) -> Vec<(String, String)> {
        let api = &ipam.universe.api;
        let claims = api.all("ipaddressclaims");
        let names = claims.iter().filter_map(|claim| claim["status"]["addressRef"]["name"].as_str());
        let address = |name: &str| text(&api.one("ipaddresses", "ns", name).unwrap()["spec"]["address"]);
        names.map(|name| (name.to_owned(), address(name))).collect()
    }

    fn free(ipam: &Ipam) -> Value {
        ipam.universe.api.one("globalinclusterippools", "", "p").unwrap()["status"]["ipAddresses"]["free"]
            .clone()
    }

    #[tokio::test]
    async fn a_full_pool_serves_a_claim_after_another_is_deleted() {
        let mut ipam = ipam();
        pool(&ipam, &["10.0.0.1", "10.0.0.2"]);
        ["a", "b", "c"].into_iter().for_each(|name| claim(&ipam, name));
        settle(&mut ipam);
        let first = [("a".into(), "10.0.0.1".into()), ("b".into(), "10.0.0.2".into())];
        assert_eq!((served(&ipam), free(&ipam)), (first.to_vec(), json!(0)));
        ipam.universe.api.delete("ipaddressclaims", "ns", "a", ipam.universe.now());
        settle(&mut ipam);
        let then = [("b".into(), "10.0.0.2".into()), ("c".into(), "10.0.0.1".into())];
        assert_eq!(served(&ipam), then);
        for name in ["b", "c"] {
            ipam.universe.api.delete("ipaddressclaims", "ns", name, ipam.universe.now());
        }
        settle(&mut ipam);
        assert_eq!((ipam.universe.api.all("ipaddresses"), free(&ipam)), (Vec::new(), json!(2)));
    }

    #[tokio::test]
    async fn claims_of_a_deleted_cluster_are_garbage_collected() {
        let mut ipam = ipam();
        let api = ipam.universe.api.clone();
        let cluster = json!({"metadata": {"name": "c", "namespace": "ns", "finalizers": ["f"]}, "spec": {}});
        api.create("clusters", &cluster, ipam.universe.now());
        let owner = api.one("clusters", "ns", "c").unwrap()["metadata"]["uid"].clone();
        ["owned", "free"].into_iter().for_each(|name| claim(&ipam, name));
        api.edit("ipaddressclaims", "ns", "owned", ipam.universe.now(), |claim| {
            claim["metadata"]["ownerReferences"] = json!([{"uid": owner}]);
        });
        settle(&mut ipam);
        assert_eq!(api.all("ipaddressclaims").len(), 2);
        api.delete("clusters", "ns", "c", ipam.universe.now());
        settle(&mut ipam);
        let left: Vec<_> = api.all("ipaddressclaims").iter().map(|claim| named(claim).1).collect();
        assert_eq!((api.all("clusters"), left), (Vec::new(), vec!["free".to_owned()]));
    }
}
