//! Remembers recent changes, to correct EC2 listings that do not show them yet.
//!
//! In: the changes that EC2 has confirmed, and each listing. Out: the listing with stale entries corrected. It never
//! sends a request.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::{Address, Holding, VmId};
use tokio::time::Instant;

use crate::{Listed, Listing, Tags};

/// Changes of the last moments, by region.
pub(super) struct Recent {
    /// How long a read can be stale.
    staleness_max: Duration,
    /// The confirmed changes of each address, the oldest first.
    changes: BTreeMap<(Arc<str>, Address), Vec<Change>>,
    /// For each address that reads show as free, the time of the first of these reads. A read that shows a holder
    /// removes the entry.
    free: BTreeMap<(Arc<str>, Address), Instant>,
    /// When the driver last gave each VM an ephemeral address. The entry ends when the driver replaces that address.
    own: BTreeMap<VmId, Instant>,
    /// When the driver last replaced the ephemeral address of each VM, and that address if EC2 showed it.
    replaced: BTreeMap<VmId, (Instant, Option<IpAddr>)>,
    /// When the creation of an address last got no response.
    unanswered: BTreeMap<Arc<str>, Instant>,
}

struct Change {
    at: Instant,
    was: Holding,
    /// The state after the change. `None` if the address was released.
    is: Option<Listed>,
}

impl Recent {
    pub(super) fn new(staleness_max: Duration) -> Self {
        let (changes, free) = (BTreeMap::new(), BTreeMap::new());
        let (own, replaced, unanswered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { staleness_max, changes, free, own, replaced, unanswered }
    }

    /// Records a change that EC2 has confirmed.
    pub(super) fn note(&mut self, region: &Arc<str>, address: Address, was: Holding, is: Option<Listed>) {
        let change = Change { at: Instant::now(), was, is };
        self.changes.entry((Arc::clone(region), address)).or_default().push(change);
    }

    /// Forgets what is known about an address, because a change of it got no response and may have taken effect.
    pub(super) fn doubt(&mut self, region: &Arc<str>, address: Address) {
        let key = (Arc::clone(region), address);
        self.changes.remove(&key);
        self.free.remove(&key);
    }

    /// Records that a VM got an ephemeral address.
    pub(super) fn note_own(&mut self, vm: &VmId) {
        self.own.insert(vm.clone(), Instant::now());
    }

    /// Records, before `AssociateAddress`, that an Elastic IP address replaces the ephemeral address of a VM. Returns
    /// the previous record.
    pub(super) fn note_replacing(
        &mut self,
        vm: &VmId,
        own: Option<IpAddr>,
    ) -> Option<(Instant, Option<IpAddr>)> {
        self.replaced.insert(vm.clone(), (Instant::now(), own))
    }

    /// Restores the previous record, because EC2 refused the call.
    pub(super) fn note_refused(&mut self, vm: &VmId, before: Option<(Instant, Option<IpAddr>)>) {
        match before {
            Some(before) => _ = self.replaced.insert(vm.clone(), before),
            None => _ = self.replaced.remove(vm),
        }
    }

    /// Records that the ephemeral address of a VM was replaced.
    pub(super) fn note_replaced(&mut self, vm: &VmId) {
        self.own.remove(vm);
    }

    /// Whether the ephemeral address that EC2 shows on a VM may be one that was already replaced.
    pub(super) fn may_be_replaced(&mut self, vm: &VmId, own: Option<IpAddr>) -> bool {
        self.forget();
        self.replaced.get(vm).is_some_and(|(_, replaced)| replaced.is_none() || *replaced == own)
    }

    /// Whether a VM has an ephemeral address that EC2 may not show yet.
    pub(super) fn has_ephemeral(&mut self, vm: &VmId) -> bool {
        self.forget();
        self.own.contains_key(vm)
    }

    /// Records that a creation got no response, so a new address may exist.
    pub(super) fn note_unanswered(&mut self, region: &Arc<str>) {
        self.unanswered.insert(Arc::clone(region), Instant::now());
    }

    /// Whether a read is stale: it shows the state before a confirmed change.
    pub(super) fn is_late(&mut self, region: &Arc<str>, address: Address, listed: &Holding) -> bool {
        self.forget();
        let changes = self.changes.get(&(Arc::clone(region), address));
        changes.is_some_and(|changes| is_late(changes, listed))
    }

    /// How long to wait until an address that is shown as free is certainly free.
    pub(super) fn until_surely_free(&mut self, region: &Arc<str>, address: Address) -> Duration {
        let since = *self.free.entry((Arc::clone(region), address)).or_insert_with(Instant::now);
        self.staleness_max.saturating_sub(since.elapsed())
    }

    /// Forgets that earlier reads showed an address as free, because a read showed a holder.
    pub(super) fn note_held(&mut self, region: &Arc<str>, address: Address) {
        self.free.remove(&(Arc::clone(region), address));
    }

    fn forget(&mut self) {
        let staleness_max = self.staleness_max;
        for changes in self.changes.values_mut() {
            changes.retain(|change| change.at.elapsed() < staleness_max);
        }
        self.changes.retain(|_, changes| !changes.is_empty());
        self.own.retain(|_, at| at.elapsed() < staleness_max);
        self.replaced.retain(|_, (at, _)| at.elapsed() < staleness_max);
        self.unanswered.retain(|_, at| at.elapsed() < staleness_max);
    }

    /// Corrects the entries of a listing that show the state before a confirmed change. An entry that shows neither the
    /// old nor the new state is a change by somebody else and stays. If an address may exist that the listing does not
    /// show yet, the tags count as incomplete.
    pub(super) fn correct(&mut self, region: &Arc<str>, listing: &mut Listing) {
        self.forget();
        if self.unanswered.contains_key(region) {
            listing.tags = Tags::Incomplete;
        }
        for ((_, address), changes) in self.changes.iter().filter(|((of, _), _)| of == region) {
            let listed = listing.get(*address);
            if !is_late(changes, &listed.holding) {
                continue;
            }
            let is = changes.last().and_then(|last| last.is.as_ref());
            match is {
                Some(is) => {
                    let tag = listed.tag.or_else(|| is.tag.clone());
                    listing.addresses.insert(*address, Listed { tag, ..is.clone() });
                }
                None => _ = listing.addresses.remove(address),
            }
        }
        let is_free = |address: &Address| listing.get(*address).holding == Holding::Free;
        self.free.retain(|(of, address), _| of != region || is_free(address));
        for address in listing.addresses.keys().filter(|address| is_free(address)) {
            self.free.entry((Arc::clone(region), *address)).or_insert_with(Instant::now);
        }
    }
}

fn is_late(changes: &[Change], listed: &Holding) -> bool {
    let is = changes.last().and_then(|last| last.is.as_ref());
    let is_so = is.map_or(Holding::Missing, |is| is.holding.clone()) == *listed;
    !is_so && changes.iter().any(|change| change.was == *listed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::addresses::STALENESS_MAX;

    const ADDRESS: &str = "203.0.113.7";

    fn listed(holding: Holding) -> Listed {
        Listed { holding, region: None, tag: None }
    }

    fn on(vm: &str) -> Holding {
        Holding::By(vm.into())
    }

    /// The holder after correcting a listing that shows `shown`.
    fn corrected(recent: &mut Recent, shown: &Holding) -> Holding {
        let address = ADDRESS.parse().unwrap();
        let mut listing = Listing::default();
        if *shown != Holding::Missing {
            listing.addresses.insert(address, listed(shown.clone()));
        }
        recent.correct(&"here".into(), &mut listing);
        listing.get(address).holding
    }

    #[tokio::test(start_paused = true)]
    async fn a_stale_listing_is_corrected_and_a_foreign_change_is_kept() {
        let mut recent = Recent::new(STALENESS_MAX);
        let address = ADDRESS.parse().unwrap();
        recent.note(&"here".into(), address, on("one"), Some(listed(Holding::Free)));
        recent.note(&"here".into(), address, Holding::Free, Some(listed(on("two"))));
        for late in [on("one"), Holding::Free] {
            assert_eq!(corrected(&mut recent, &late), on("two"));
        }
        for foreign in [on("two"), on("three"), Holding::Missing] {
            assert_eq!(corrected(&mut recent, &foreign), foreign);
        }
        tokio::time::sleep(STALENESS_MAX).await;
        assert_eq!(corrected(&mut recent, &Holding::Free), Holding::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_change_without_a_response_listings_are_not_corrected() {
        let mut recent = Recent::new(STALENESS_MAX);
        recent.note(&"here".into(), ADDRESS.parse().unwrap(), Holding::Free, Some(listed(on("one"))));
        assert_eq!(corrected(&mut recent, &Holding::Free), on("one"));
        recent.doubt(&"here".into(), ADDRESS.parse().unwrap());
        assert_eq!(corrected(&mut recent, &Holding::Free), Holding::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_change_without_a_response_it_is_not_certainly_free() {
        let (mut recent, here, address) =
            (Recent::new(STALENESS_MAX), "here".into(), ADDRESS.parse().unwrap());
        corrected(&mut recent, &Holding::Free);
        tokio::time::sleep(STALENESS_MAX).await;
        assert_eq!(recent.until_surely_free(&here, address), Duration::ZERO);
        recent.doubt(&here, address);
        assert_eq!(recent.until_surely_free(&here, address), STALENESS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_creation_without_a_response_tags_are_incomplete() {
        let mut recent = Recent::new(STALENESS_MAX);
        let tags = |recent: &mut Recent| {
            let mut listing = Listing { tags: Tags::Complete, ..Listing::default() };
            recent.correct(&"here".into(), &mut listing);
            listing.tags
        };
        assert_eq!(tags(&mut recent), Tags::Complete);
        recent.note_unanswered(&"here".into());
        assert_eq!(tags(&mut recent), Tags::Incomplete);
        tokio::time::sleep(STALENESS_MAX).await;
        assert_eq!(tags(&mut recent), Tags::Complete);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_certainly_free_if_all_recent_reads_say_so() {
        let (mut recent, here, address) =
            (Recent::new(STALENESS_MAX), "here".into(), ADDRESS.parse().unwrap());
        assert_eq!(corrected(&mut recent, &Holding::Free), Holding::Free);
        tokio::time::sleep(STALENESS_MAX / 2).await;
        assert_eq!(recent.until_surely_free(&here, address), STALENESS_MAX / 2);
        assert_eq!(corrected(&mut recent, &on("one")), on("one"));
        assert_eq!(corrected(&mut recent, &Holding::Free), Holding::Free);
        assert_eq!(recent.until_surely_free(&here, address), STALENESS_MAX);
        tokio::time::sleep(STALENESS_MAX).await;
        assert_eq!(recent.until_surely_free(&here, address), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn ec2_may_still_show_a_replaced_ephemeral_address() {
        let (mut recent, vm) = (Recent::new(STALENESS_MAX), "one".into());
        let [before, after] = ["198.51.100.1", "198.51.100.2"].map(|ip| ip.parse().ok());
        assert!(!recent.may_be_replaced(&vm, before));
        let known = recent.note_replacing(&vm, before);
        assert!(recent.may_be_replaced(&vm, before));
        recent.note_refused(&vm, known);
        assert!(!recent.may_be_replaced(&vm, before), "it was never replaced");
        recent.note_replacing(&vm, before);
        assert!(!recent.may_be_replaced(&vm, after), "the VM has got another ephemeral address since then");
        recent.note_replacing(&vm, None);
        assert!(recent.may_be_replaced(&vm, after), "it may be the address that EC2 did not show yet");
        tokio::time::sleep(STALENESS_MAX).await;
        assert!(!recent.may_be_replaced(&vm, before));
    }

    #[tokio::test(start_paused = true)]
    async fn created_and_released_addresses_are_corrected() {
        let mut recent = Recent::new(STALENESS_MAX);
        let address = ADDRESS.parse().unwrap();
        recent.note(&"here".into(), address, Holding::Missing, Some(listed(Holding::Free)));
        assert_eq!(corrected(&mut recent, &Holding::Missing), Holding::Free);
        recent.note(&"elsewhere".into(), address, Holding::Free, None);
        assert_eq!(
            corrected(&mut recent, &Holding::Missing),
            Holding::Free,
            "the change was in another region"
        );
        recent.note(&"here".into(), address, Holding::Free, None);
        assert_eq!(corrected(&mut recent, &Holding::Free), Holding::Missing);
    }
}
