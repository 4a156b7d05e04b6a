//! What was answered a short while ago, against listings that don't show it yet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use plan::{Address, Holding, VmId};
use tokio::time::Instant;

use crate::{Listed, Listing, Tags};

/// What was heard in the last moments, by region.
pub(super) struct Recent {
    /// How long what is read may be what was before a change.
    late_max: Duration,
    /// The answers to changes of each address, the oldest first.
    changes: BTreeMap<(Arc<str>, Address), Vec<Change>>,
    /// Since when each address has been read as free, without a break.
    free: BTreeMap<(Arc<str>, Address), Instant>,
    /// When each machine was given an address of its own, which has not gone since.
    own: BTreeMap<VmId, Instant>,
    /// When one of ours was last to take the place of a machine's own, and which that was, where it was shown.
    replaced: BTreeMap<VmId, (Instant, Option<IpAddr>)>,
    /// When an address was last asked for without an answer.
    unanswered: BTreeMap<Arc<str>, Instant>,
}

struct Change {
    at: Instant,
    was: Holding,
    /// What it is now; none where it does not exist any more.
    is: Option<Listed>,
}

impl Recent {
    /// Nothing was heard yet.
    pub(super) fn new(late_max: Duration) -> Self {
        let (changes, free) = (BTreeMap::new(), BTreeMap::new());
        let (own, replaced, unanswered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { late_max, changes, free, own, replaced, unanswered }
    }

    /// A change was answered.
    pub(super) fn note(&mut self, region: &Arc<str>, address: Address, was: Holding, is: Option<Listed>) {
        let change = Change { at: Instant::now(), was, is };
        self.changes.entry((Arc::clone(region), address)).or_default().push(change);
    }

    /// Whether a change took effect was not told: what was answered before says nothing any more.
    pub(super) fn doubt(&mut self, region: &Arc<str>, address: Address) {
        let key = (Arc::clone(region), address);
        self.changes.remove(&key);
        self.free.remove(&key);
    }

    /// A machine was given an address of its own.
    pub(super) fn note_own(&mut self, vm: &VmId) {
        self.own.insert(vm.clone(), Instant::now());
    }

    /// One of ours is to take the place of a machine's own.
    /// Gives what was known of that before.
    pub(super) fn note_replacing(
        &mut self,
        vm: &VmId,
        own: Option<IpAddr>,
    ) -> Option<(Instant, Option<IpAddr>)> {
        self.replaced.insert(vm.clone(), (Instant::now(), own))
    }

    /// That was refused: only what was known before is so.
    pub(super) fn note_refused(&mut self, vm: &VmId, before: Option<(Instant, Option<IpAddr>)>) {
        match before {
            Some(before) => _ = self.replaced.insert(vm.clone(), before),
            None => _ = self.replaced.remove(vm),
        }
    }

    /// One of ours took the place of a machine's own.
    pub(super) fn note_replaced(&mut self, vm: &VmId) {
        self.own.remove(vm);
    }

    /// Whether an address of its own that a machine is shown with may be the one that it had before ours came.
    pub(super) fn may_be_replaced(&mut self, vm: &VmId, own: Option<IpAddr>) -> bool {
        self.forget();
        self.replaced.get(vm).is_some_and(|(_, replaced)| replaced.is_none() || *replaced == own)
    }

    /// Whether a machine has an address of its own that may not be shown yet.
    pub(super) fn has_own(&mut self, vm: &VmId) -> bool {
        self.forget();
        self.own.contains_key(vm)
    }

    /// An address was asked for, and whether there is one more was not told.
    pub(super) fn note_unanswered(&mut self, region: &Arc<str>) {
        self.unanswered.insert(Arc::clone(region), Instant::now());
    }

    /// Whether an address that was read like this was so only before a change that has been answered since.
    pub(super) fn is_late(&mut self, region: &Arc<str>, address: Address, told: &Holding) -> bool {
        self.forget();
        let changes = self.changes.get(&(Arc::clone(region), address));
        changes.is_some_and(|changes| is_late(changes, told))
    }

    /// How long it takes until an address that is read as free now is surely nobody's.
    pub(super) fn until_surely_free(&mut self, region: &Arc<str>, address: Address) -> Duration {
        let since = *self.free.entry((Arc::clone(region), address)).or_insert_with(Instant::now);
        self.late_max.saturating_sub(since.elapsed())
    }

    /// An address was read as somebody's.
    pub(super) fn note_held(&mut self, region: &Arc<str>, address: Address) {
        self.free.remove(&(Arc::clone(region), address));
    }

    fn forget(&mut self) {
        let late_max = self.late_max;
        for changes in self.changes.values_mut() {
            changes.retain(|change| change.at.elapsed() < late_max);
        }
        self.changes.retain(|_, changes| !changes.is_empty());
        self.own.retain(|_, at| at.elapsed() < late_max);
        self.replaced.retain(|_, (at, _)| at.elapsed() < late_max);
        self.unanswered.retain(|_, at| at.elapsed() < late_max);
    }

    /// Lets a listing say what was answered, where it says what was before. What is neither is news, and is believed. It can't
    /// tell of all addresses while one may be there that it does not show yet.
    pub(super) fn correct(&mut self, region: &Arc<str>, listing: &mut Listing) {
        self.forget();
        if self.unanswered.contains_key(region) {
            listing.tags = Tags::Untold;
        }
        for ((_, address), changes) in self.changes.iter().filter(|((of, _), _)| of == region) {
            let told = listing.told(*address);
            if !is_late(changes, &told.holding) {
                continue;
            }
            let is = changes.last().and_then(|last| last.is.as_ref());
            match is {
                Some(is) => {
                    let tag = told.tag.or_else(|| is.tag.clone());
                    listing.addresses.insert(*address, Listed { tag, ..is.clone() });
                }
                None => _ = listing.addresses.remove(address),
            }
        }
        let is_free = |address: &Address| listing.told(*address).holding == Holding::Free;
        self.free.retain(|(of, address), _| of != region || is_free(address));
        for address in listing.addresses.keys().filter(|address| is_free(address)) {
            self.free.entry((Arc::clone(region), *address)).or_insert_with(Instant::now);
        }
    }
}

fn is_late(changes: &[Change], told: &Holding) -> bool {
    let is = changes.last().and_then(|last| last.is.as_ref());
    let is_so = is.map_or(Holding::Missing, |is| is.holding.clone()) == *told;
    !is_so && changes.iter().any(|change| change.was == *told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::addresses::LATE_MAX;

    const ADDRESS: &str = "203.0.113.7";

    fn listed(holding: Holding) -> Listed {
        Listed { holding, region: None, tag: None }
    }

    fn on(vm: &str) -> Holding {
        Holding::By(vm.into())
    }

    /// What is believed where a listing tells this.
    fn believed(recent: &mut Recent, told: &Holding) -> Holding {
        let address = ADDRESS.parse().unwrap();
        let mut listing = Listing::default();
        if *told != Holding::Missing {
            listing.addresses.insert(address, listed(told.clone()));
        }
        recent.correct(&"here".into(), &mut listing);
        listing.told(address).holding
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_before_an_answered_change_is_not_believed_for_a_while_and_news_is() {
        let mut recent = Recent::new(LATE_MAX);
        let address = ADDRESS.parse().unwrap();
        recent.note(&"here".into(), address, on("one"), Some(listed(Holding::Free)));
        recent.note(&"here".into(), address, Holding::Free, Some(listed(on("two"))));
        for late in [on("one"), Holding::Free] {
            assert_eq!(believed(&mut recent, &late), on("two"));
        }
        for news in [on("two"), on("three"), Holding::Missing] {
            assert_eq!(believed(&mut recent, &news), news);
        }
        tokio::time::sleep(LATE_MAX).await;
        assert_eq!(believed(&mut recent, &Holding::Free), Holding::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_change_without_an_answer_what_is_read_is_believed() {
        let mut recent = Recent::new(LATE_MAX);
        recent.note(&"here".into(), ADDRESS.parse().unwrap(), Holding::Free, Some(listed(on("one"))));
        assert_eq!(believed(&mut recent, &Holding::Free), on("one"));
        recent.doubt(&"here".into(), ADDRESS.parse().unwrap());
        assert_eq!(believed(&mut recent, &Holding::Free), Holding::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_change_without_an_answer_an_address_is_not_surely_free() {
        let (mut recent, here, address) = (Recent::new(LATE_MAX), "here".into(), ADDRESS.parse().unwrap());
        believed(&mut recent, &Holding::Free);
        tokio::time::sleep(LATE_MAX).await;
        assert_eq!(recent.until_surely_free(&here, address), Duration::ZERO);
        recent.doubt(&here, address);
        assert_eq!(recent.until_surely_free(&here, address), LATE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_without_an_answer_may_be_there_before_it_is_shown() {
        let mut recent = Recent::new(LATE_MAX);
        let tags = |recent: &mut Recent| {
            let mut listing = Listing { tags: Tags::Told, ..Listing::default() };
            recent.correct(&"here".into(), &mut listing);
            listing.tags
        };
        assert_eq!(tags(&mut recent), Tags::Told);
        recent.note_unanswered(&"here".into());
        assert_eq!(tags(&mut recent), Tags::Untold);
        tokio::time::sleep(LATE_MAX).await;
        assert_eq!(tags(&mut recent), Tags::Told);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_surely_free_when_it_was_read_so_for_a_while_without_a_break() {
        let (mut recent, here, address) = (Recent::new(LATE_MAX), "here".into(), ADDRESS.parse().unwrap());
        assert_eq!(believed(&mut recent, &Holding::Free), Holding::Free);
        tokio::time::sleep(LATE_MAX / 2).await;
        assert_eq!(recent.until_surely_free(&here, address), LATE_MAX / 2);
        assert_eq!(believed(&mut recent, &on("one")), on("one"));
        assert_eq!(believed(&mut recent, &Holding::Free), Holding::Free);
        assert_eq!(recent.until_surely_free(&here, address), LATE_MAX);
        tokio::time::sleep(LATE_MAX).await;
        assert_eq!(recent.until_surely_free(&here, address), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn for_a_while_a_machine_may_still_be_shown_with_its_own_address_that_ours_has_replaced() {
        let (mut recent, vm) = (Recent::new(LATE_MAX), "one".into());
        let [before, after] = ["198.51.100.1", "198.51.100.2"].map(|ip| ip.parse().ok());
        assert!(!recent.may_be_replaced(&vm, before));
        let known = recent.note_replacing(&vm, before);
        assert!(recent.may_be_replaced(&vm, before));
        recent.note_refused(&vm, known);
        assert!(!recent.may_be_replaced(&vm, before), "it was never replaced");
        recent.note_replacing(&vm, before);
        assert!(!recent.may_be_replaced(&vm, after), "it has got another since");
        recent.note_replacing(&vm, None);
        assert!(recent.may_be_replaced(&vm, after), "it may be the one that was not shown yet");
        tokio::time::sleep(LATE_MAX).await;
        assert!(!recent.may_be_replaced(&vm, before));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_address_is_there_and_one_that_was_given_back_is_not() {
        let mut recent = Recent::new(LATE_MAX);
        let address = ADDRESS.parse().unwrap();
        recent.note(&"here".into(), address, Holding::Missing, Some(listed(Holding::Free)));
        assert_eq!(believed(&mut recent, &Holding::Missing), Holding::Free);
        recent.note(&"elsewhere".into(), address, Holding::Free, None);
        assert_eq!(believed(&mut recent, &Holding::Missing), Holding::Free, "that is another region");
        recent.note(&"here".into(), address, Holding::Free, None);
        assert_eq!(believed(&mut recent, &Holding::Free), Holding::Missing);
    }
}
