//! Processes listings of the providers. After a change of leader, a fact counts as unknown if it contradicts the status
//! and may be older than the previous leader's changes.

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
    /// Called when this process starts to lead. For the given time, reads from these providers may lack the previous
    /// leader's changes.
    pub fn distrust_late_reads(&mut self, late: &BTreeMap<Provider, Duration>) {
        let now = Instant::now();
        self.stale_until = late
            .iter()
            .map(|(provider, staleness_max)| (*provider, drivers::times::later(now, *staleness_max)))
            .collect();
        self.world.stale_until = late.keys().map(|provider| (*provider, PENDING)).collect();
    }

    /// Trusts the reads from a provider again after its time in `stale_until`.
    pub fn let_late_reads_pass(&mut self) {
        let now = Instant::now();
        let is_over = |(provider, until): (&Provider, &Instant)| (*until <= now).then_some(*provider);
        let over: Vec<_> = self.stale_until.iter().filter_map(is_over).collect();
        for provider in over {
            self.stale_until.remove(&provider);
            let tick = self.tick();
            self.world.stale_until.insert(provider, tick);
            // Forget the ephemeral addresses too: they were read from stale data.
            let mut seen = std::mem::take(&mut self.world.has_ephemeral);
            seen.retain(|vm| {
                let machine = self.world.node_of(vm).and_then(|(_, node)| node.machine.as_ref());
                machine.is_some_and(|(scope, _)| scope.provider != provider)
            });
            self.world.has_ephemeral = seen;
        }
        self.doubt_late_facts();
    }

    /// Treats a fact as unknown if it contradicts a status that may be newer than the fact.
    fn doubt_late_facts(&mut self) {
        let is_late = |scope: &Scope| self.stale_until.contains_key(&scope.provider);
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

    /// The holders of addresses without an unfinished move, according to the status of their objects, and whether each
    /// holder's node is Ready. Empty if reads from the provider can't be stale.
    fn newer_than_shown(&self, scope: &Scope) -> BTreeMap<Address, LastReported> {
        if self.stale_until.get(&scope.provider).is_none_or(|until| *until <= Instant::now()) {
            return BTreeMap::new();
        }
        let is_ready =
            |vm: &VmId| self.world.node_of(vm).is_some_and(|(_, node)| node.readiness == Readiness::Ready);
        let mut all = BTreeMap::new();
        for (key, tracked) in &self.objects {
            let is_meant = |pool: &&Pool| pool.scope == *scope && pool.policy.mode.acts();
            let Some(pool) = self.world.pool(key).filter(is_meant) else { continue };
            // Not only `Attached` counts. The status gets `lastHolder` as soon as the address is attached, but its
            // state may be `Moving` for a moment longer. While reads may be stale, the state may be `Unknown`.
            let is_on_its_holder = |status: &&AddressStatus| {
                matches!(status.state, AddressState::Attached | AddressState::Moving | AddressState::Unknown)
            };
            let found = tracked.object.addresses().iter().filter(is_on_its_holder).filter_map(|status| {
                let address = status.address.parse().ok()?;
                let vm = pool.last_holders.get(&address)?;
                let reported = LastReported { vm: vm.clone(), is_ready: is_ready(vm) };
                pool.entry(address).is_none().then_some((address, reported))
            });
            all.extend(found);
        }
        all
    }

    /// Processes a listing that started at `as_of`, or its error.
    pub fn observe_listing(&mut self, scope: &Scope, listing: Result<Listing, DriverError>, as_of: Tick) {
        let asked = self.asked_for(scope);
        match listing {
            Ok(listing) => {
                match &listing.without {
                    Some(permission) => _ = self.without.insert(scope.clone(), permission.clone()),
                    None => _ = self.without.remove(scope),
                }
                for address in asked.iter().chain(listing.addresses.keys()) {
                    let drivers::Listed { holding, region, tag } = listing.get(*address);
                    if listing.without.is_some() {
                        // This listing comes from the VMs, which show neither region nor tag. A region can't
                        // change, so the known one stays.
                        let region = self.world.fact(scope, *address).and_then(|known| known.region.clone());
                        let fact = Fact { region, ..Fact::new(holding, as_of) };
                        self.world.set_fact(scope, *address, fact);
                        continue;
                    }
                    // A region can't change, so the known one narrows where an unknown address may be.
                    let region = region.or_else(|| {
                        let is_unknown = matches!(holding, Holding::Unknown(_));
                        self.world.fact(scope, *address).filter(|_| is_unknown)?.region.clone()
                    });
                    let is_unconfirmed = listing.unconfirmed.contains(address);
                    self.world.set_fact(
                        scope,
                        *address,
                        Fact { holding, region, tag, is_unconfirmed, as_of },
                    );
                }
                let is_whole = listing.unreachable.is_empty()
                    && listing.tags != Tags::Incomplete
                    && listing.without.is_none();
                match listing.without.is_some() || !listing.unreachable.is_empty() {
                    true => _ = self.world.incomplete.insert(scope.clone()),
                    false => _ = self.world.incomplete.remove(scope),
                }
                let is_newer = self.world.accounts.get(scope).is_none_or(|account| account.as_of < as_of);
                if is_whole && is_newer {
                    let can_tag = listing.tags == Tags::Complete;
                    self.world.accounts.insert(scope.clone(), Account { as_of, can_tag });
                } else if is_newer {
                    // The listing is incomplete, so the account may have addresses that the controller does not see.
                    self.world.accounts.remove(scope);
                }
                self.world.retain_facts(scope, |address| {
                    asked.contains(&address) || listing.addresses.contains_key(&address)
                });
            }
            Err(error) => {
                let why: Arc<str> = error.to_string().into();
                for address in asked {
                    let unknown = Holding::Unknown(Arc::clone(&why).into());
                    let holding = if plan::sabotaged!(UnknownReadAsFree) { Holding::Free } else { unknown };
                    self.hold(scope, address, holding, as_of);
                }
            }
        }
    }

    /// Processes the states of the requested VMs. A VM that the provider does not return is gone.
    pub fn observe_machines(&mut self, asked: &BTreeSet<VmId>, found: &BTreeMap<VmId, MachineState>) {
        for vm in asked {
            let state = found.get(vm).copied().unwrap_or(MachineState::Gone);
            self.world.machines.insert(vm.clone(), state);
        }
    }

    /// Sets the holder of an address after a change by this process.
    pub fn correct(&mut self, scope: &Scope, address: Address, holding: Holding) {
        let as_of = self.tick();
        self.hold(scope, address, holding, as_of);
    }

    /// Sets the holder of an address. Region and tag stay.
    fn hold(&mut self, scope: &Scope, address: Address, holding: Holding, as_of: Tick) {
        let known = self.world.fact(scope, address);
        let (region, tag) = known.map_or((None, None), |known| (known.region.clone(), known.tag.clone()));
        self.world.set_fact(scope, address, Fact { region, tag, ..Fact::new(holding, as_of) });
    }
}

const NOT_SHOWN_YET: &str = "the provider may not show the previous leader's change yet";
