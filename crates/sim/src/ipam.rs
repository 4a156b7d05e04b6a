//! Who works on Cluster API's objects beside the controller: the IPAM provider, the garbage collector, and Cluster API itself.
//!
//! In: claims, pools, and Clusters that are being deleted. Out: an address for each claim whose pool has one, the counts in the
//! pools' status, and the end of what is to go. Each works by small steps with pauses between them, so that the controller sees
//! what is half done. No address is given twice, and one that was given stays until its claim goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rng::Rng;
use crate::universe::Universe;

/// The kinds that are worked on.
const KINDS: [&str; 5] =
    ["clusters", "ipaddressclaims", "ipaddresses", "inclusterippools", "globalinclusterippools"];

/// Both kinds of pools, in objects and in paths.
const POOLS: [(&str, &str); 2] =
    [("InClusterIPPool", "inclusterippools"), ("GlobalInClusterIPPool", "globalinclusterippools")];

/// Keeps a claim until its address is released.
const RELEASE: &str = "ipam.cluster.x-k8s.io/ReleaseAddress";

/// The longest pause between two steps, mostly.
const PAUSE: Duration = Duration::from_millis(400);

/// The longest pause now and then.
const LONG_PAUSE: Duration = Duration::from_secs(6);

/// The provider of a run, and those beside it.
pub struct Ipam {
    universe: Arc<Universe>,
    rng: Rng,
}

impl Ipam {
    /// Nothing has been done yet.
    pub fn new(seed: u64, universe: Arc<Universe>) -> Self {
        Self { universe, rng: Rng::new(seed, "ipam") }
    }

    /// Works for as long as the run lasts.
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

    /// Does what is next for each object; the answer is whether nothing was put off.
    fn step(&mut self) -> bool {
        self.end_clusters();
        self.collect_garbage();
        self.serve_claims();
        // What a pool says of itself lags behind what is so.
        let counts = self.rng.one_in(2);
        if counts {
            POOLS.iter().for_each(|(_, plural)| self.count(plural));
        }
        counts
    }

    /// A Cluster that is being deleted is gone a while later.
    fn end_clusters(&self) {
        for cluster in self.universe.api.all("clusters").iter().filter(|cluster| is_leaving(cluster)) {
            self.edit("clusters", cluster, |cluster| cluster["metadata"]["finalizers"] = Value::Null);
        }
    }

    /// A claim whose owner is gone is deleted.
    fn collect_garbage(&self) {
        let api = &self.universe.api;
        let uids: BTreeSet<_> =
            api.all("clusters").iter().map(|cluster| text(&cluster["metadata"]["uid"])).collect();
        for claim in api.all("ipaddressclaims").iter().filter(|claim| !is_leaving(claim)) {
            let owners: Vec<_> =
                claim["metadata"]["ownerReferences"].as_array().into_iter().flatten().collect();
            let is_gone = |owner: &&Value| !uids.contains(&text(&owner["uid"]));
            if !owners.is_empty() && owners.iter().all(is_gone) {
                let (namespace, name) = named(claim);
                api.delete("ipaddressclaims", &namespace, &name, self.universe.now());
            }
        }
    }

    /// One step for each claim: it is taken care of, gets an address, is told of it; or its address is released, and it is gone.
    fn serve_claims(&mut self) {
        let api = self.universe.api.clone();
        for claim in api.all("ipaddressclaims") {
            let (namespace, name) = named(&claim);
            let address = api.one("ipaddresses", &namespace, &name);
            let is_cared_for = claim["metadata"]["finalizers"].is_array();
            match (is_leaving(&claim), &address) {
                (true, Some(_)) => api.delete("ipaddresses", &namespace, &name, self.universe.now()),
                (true, None) => self.edit("ipaddressclaims", &claim, |claim| {
                    claim["metadata"]["finalizers"] = Value::Null;
                }),
                (false, _) if !is_cared_for => self.edit("ipaddressclaims", &claim, |claim| {
                    claim["metadata"]["finalizers"] = json!([RELEASE]);
                }),
                (false, None) => {
                    // Mostly one follows the other in a moment.
                    if self.give(&claim) && !self.rng.one_in(4) {
                        self.tell(&claim);
                    }
                }
                (false, Some(_)) if claim["status"]["addressRef"].is_null() => self.tell(&claim),
                (false, Some(_)) => {}
            }
        }
    }

    /// Tells a claim of its address.
    fn tell(&self, claim: &Value) {
        let (_, name) = named(claim);
        self.edit("ipaddressclaims", claim, |claim| claim["status"]["addressRef"] = json!({"name": name}));
    }

    /// Gives a claim the first address of its pool that nobody has; the answer is whether there is one.
    fn give(&self, claim: &Value) -> bool {
        let (namespace, name) = named(claim);
        let meant = &claim["spec"]["poolRef"];
        let Some((kind, plural)) = POOLS.iter().find(|(kind, _)| meant["kind"] == *kind) else {
            return false;
        };
        let home = if *kind == "InClusterIPPool" { namespace.as_str() } else { "" };
        let pool = self.universe.api.one(plural, home, &text(&meant["name"]));
        let Some(pool) = pool.filter(|pool| !is_leaving(pool)) else { return false };
        let given = self.given();
        let Some(free) = listed(&pool).into_iter().find(|address| !given.contains(address)) else {
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

    fn given(&self) -> BTreeSet<String> {
        let addresses = self.universe.api.all("ipaddresses");
        addresses.iter().map(|address| text(&address["spec"]["address"])).collect()
    }

    /// Says of each pool how many addresses it has.
    fn count(&self, plural: &str) {
        let given = self.given();
        for pool in self.universe.api.all(plural) {
            let all = listed(&pool);
            let used = all.iter().filter(|address| given.contains(*address)).count();
            let counts = json!({"total": all.len(), "used": used, "free": all.len() - used});
            self.edit(plural, &pool, |pool| pool["status"]["ipAddresses"] = counts);
        }
    }

    fn edit(&self, plural: &str, object: &Value, change: impl FnOnce(&mut Value)) {
        let (namespace, name) = named(object);
        self.universe.api.edit(plural, &namespace, &name, self.universe.now(), change);
    }
}

fn is_leaving(object: &Value) -> bool {
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

    /// The claims that have an address, each with the one that it has.
    fn served(ipam: &Ipam) -> Vec<(String, String)> {
        let api = &ipam.universe.api;
        let claims = api.all("ipaddressclaims");
        let told = claims.iter().filter_map(|claim| claim["status"]["addressRef"]["name"].as_str());
        let address = |name: &str| text(&api.one("ipaddresses", "ns", name).unwrap()["spec"]["address"]);
        told.map(|name| (name.to_owned(), address(name))).collect()
    }

    fn free(ipam: &Ipam) -> Value {
        ipam.universe.api.one("globalinclusterippools", "", "p").unwrap()["status"]["ipAddresses"]["free"]
            .clone()
    }

    #[tokio::test]
    async fn a_full_pool_gives_nothing_until_a_claim_has_gone_and_no_address_is_given_twice() {
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
    async fn a_claim_whose_cluster_is_gone_goes_too_and_one_without_an_owner_stays() {
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
