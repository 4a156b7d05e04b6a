//! Takes in what clouds list, and doubts what may be older than what the last leader has done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::status::{AddressState, AddressStatus};
use drivers::{DriverError, Listing, Tags};
use plan::{
    Account, Address, Fact, Holding, LastReported, MachineState, PENDING, Pool, Provider, Readiness, Scope,
    Tick, VmId,
};
use tokio::time::Instant;

use super::Index;

impl Index {
    /// We lead from now on. What was answered to the leader before us, some clouds may not show for a while.
    pub fn distrust_late_reads(&mut self, late: &BTreeMap<Provider, Duration>) {
        let now = Instant::now();
        self.late_until = late
            .iter()
            .map(|(provider, late_max)| (*provider, drivers::times::later(now, *late_max)))
            .collect();
        self.world.late_until = late.keys().map(|provider| (*provider, PENDING)).collect();
    }

    /// What was answered to the leader before us is shown everywhere after a while.
    pub fn let_late_reads_pass(&mut self) {
        let now = Instant::now();
        let is_over = |(provider, until): (&Provider, &Instant)| (*until <= now).then_some(*provider);
        let over: Vec<_> = self.late_until.iter().filter_map(is_over).collect();
        for provider in over {
            self.late_until.remove(&provider);
            let tick = self.tick();
            self.world.late_until.insert(provider, tick);
            // What machines were seen to have may have been what they had before.
            let mut seen = std::mem::take(&mut self.world.has_own);
            seen.retain(|vm| {
                let machine = self.world.node_of(vm).and_then(|(_, node)| node.machine.as_ref());
                machine.is_some_and(|(scope, _)| scope.provider != provider)
            });
            self.world.has_own = seen;
        }
        self.doubt_late_facts();
    }

    /// What a cloud shows that may be late, and what was read before the newest word of an object came, may be older than that word.
    fn doubt_late_facts(&mut self) {
        let is_late = |scope: &Scope| self.late_until.contains_key(&scope.provider);
        let scopes: BTreeSet<_> =
            self.world.pools().map(|pool| &pool.scope).filter(|scope| is_late(scope)).cloned().collect();
        for scope in scopes {
            for (address, newer) in self.newer_than_shown(&scope) {
                let fact = self.world.fact(&scope, address).filter(|fact| newer.contradicts(&fact.holding));
                if let Some(as_of) = fact.map(|fact| fact.as_of) {
                    self.hold(&scope, address, Holding::Unknown(NOT_SHOWN_YET.into()), as_of);
                }
            }
        }
    }

    /// Where addresses of a scope with nothing left to do are by their objects' own words, if these may be newer than what its cloud
    /// shows, and whether the node there is well.
    fn newer_than_shown(&self, scope: &Scope) -> BTreeMap<Address, LastReported> {
        if self.late_until.get(&scope.provider).is_none_or(|until| *until <= Instant::now()) {
            return BTreeMap::new();
        }
        let is_ready =
            |vm: &VmId| self.world.node_of(vm).is_some_and(|(_, node)| node.readiness == Readiness::Ready);
        let mut all = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_meant = |pool: &&Pool| pool.scope == *scope && pool.policy.mode.acts();
            let Some(pool) = self.world.pool(key).filter(is_meant) else { continue };
            // Who holds an address is written down as soon as it has arrived, and that it has, a moment later. While it is not known
            // whether the cloud is late, it is said to be unknown.
            let is_on_its_holder = |status: &&AddressStatus| {
                matches!(status.state, AddressState::Attached | AddressState::Moving | AddressState::Unknown)
            };
            let found = tracked.object.addresses().iter().filter(is_on_its_holder).filter_map(|status| {
                let address = status.address.parse().ok()?;
                let vm = pool.last_holders.get(&address)?;
                let said = LastReported { vm: vm.clone(), is_ready: is_ready(vm) };
                pool.entry(address).is_none().then_some((address, said))
            });
            all.extend(found);
        }
        all
    }

    /// Takes in what a cloud said, or that it did not say anything, when asked at the given moment.
    pub fn see_listing(&mut self, scope: &Scope, listing: Result<Listing, DriverError>, as_of: Tick) {
        let asked = self.asked_for(scope);
        match listing {
            Ok(listing) => {
                match &listing.without {
                    Some(permission) => _ = self.without.insert(scope.clone(), permission.clone()),
                    None => _ = self.without.remove(scope),
                }
                for address in asked.iter().chain(listing.addresses.keys()) {
                    let drivers::Listed { holding, region, tag } = listing.told(*address);
                    if listing.without.is_some() {
                        // Machines show neither the region of an address nor its tag. The region can't change.
                        let region = self.world.fact(scope, *address).and_then(|known| known.region.clone());
                        let fact = Fact { holding, region, tag: None, is_doubtful: false, as_of };
                        self.world.set_fact(scope, *address, fact);
                        continue;
                    }
                    let is_doubtful = listing.doubtful.contains(address);
                    self.world.set_fact(scope, *address, Fact { holding, region, tag, is_doubtful, as_of });
                }
                let is_whole =
                    listing.untold.is_empty() && listing.tags != Tags::Untold && listing.without.is_none();
                let is_newer = self.world.accounts.get(scope).is_none_or(|account| account.as_of < as_of);
                if is_whole && is_newer {
                    let can_tag = listing.tags == Tags::Told;
                    self.world.accounts.insert(scope.clone(), Account { as_of, can_tag });
                } else if is_newer {
                    // What is on no list may be forgotten now, so nothing can be said of what is there.
                    self.world.accounts.remove(scope);
                }
                self.world.retain_facts(scope, |address| {
                    asked.contains(&address) || listing.addresses.contains_key(&address)
                });
            }
            Err(error) => {
                let reason: Arc<str> = error.to_string().into();
                for address in asked {
                    let unknown = Holding::Unknown(Arc::clone(&reason));
                    let holding = if plan::sabotaged!(UnknownReadAsFree) { Holding::Free } else { unknown };
                    self.hold(scope, address, holding, as_of);
                }
            }
        }
    }

    /// Takes in what became of the machines that a cloud was asked about: one that it does not have is gone.
    pub fn see_machines(&mut self, asked: &BTreeSet<VmId>, told: &BTreeMap<VmId, MachineState>) {
        for vm in asked {
            let state = told.get(vm).copied().unwrap_or(MachineState::Gone);
            self.world.machines.insert(vm.clone(), state);
        }
    }

    /// Takes note of who holds an address after a change of ours.
    pub fn correct(&mut self, scope: &Scope, address: Address, holding: Holding) {
        let as_of = self.tick();
        self.hold(scope, address, holding, as_of);
    }

    /// Who holds an address; whatever else is known of it stays.
    fn hold(&mut self, scope: &Scope, address: Address, holding: Holding, as_of: Tick) {
        let known = self.world.fact(scope, address);
        let (region, tag) = known.map_or((None, None), |known| (known.region.clone(), known.tag.clone()));
        self.world.set_fact(scope, address, Fact { holding, region, tag, is_doubtful: false, as_of });
    }
}

const NOT_SHOWN_YET: &str = "the last leader put it elsewhere, which the cloud may not show yet";
