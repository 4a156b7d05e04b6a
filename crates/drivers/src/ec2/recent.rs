//! What was answered a short while ago, against listings that don't show it yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plan::{Address, Holding};
use tokio::time::Instant;

use crate::{Listed, Listing};

/// How long a listing may show what was before a change. Amazon promises nothing; seconds are usual.
const LATE_MAX: Duration = Duration::from_secs(30);

/// The answers of the last moments, by region and address, the oldest first.
#[derive(Default)]
pub(super) struct Recent {
    changes: BTreeMap<(Arc<str>, Address), Vec<Change>>,
}

struct Change {
    at: Instant,
    was: Holding,
    /// What it is now; none where it does not exist any more.
    is: Option<Listed>,
}

impl Recent {
    /// A change was answered.
    pub(super) fn note(&mut self, region: &Arc<str>, address: Address, was: Holding, is: Option<Listed>) {
        let change = Change { at: Instant::now(), was, is };
        self.changes.entry((Arc::clone(region), address)).or_default().push(change);
    }

    /// Lets a listing say what was answered, where it says what was before. What is neither is news, and is believed.
    pub(super) fn correct(&mut self, region: &Arc<str>, listing: &mut Listing) {
        for changes in self.changes.values_mut() {
            changes.retain(|change| change.at.elapsed() < LATE_MAX);
        }
        self.changes.retain(|_, changes| !changes.is_empty());
        for ((_, address), changes) in self.changes.iter().filter(|((of, _), _)| of == region) {
            let told = listing.told(*address);
            let is = changes.last().and_then(|last| last.is.as_ref());
            let is_so = is.map_or(Holding::Missing, |is| is.holding.clone()) == told.holding;
            if is_so || !changes.iter().any(|change| change.was == told.holding) {
                continue;
            }
            match is {
                Some(is) => {
                    let tag = told.tag.or_else(|| is.tag.clone());
                    listing.addresses.insert(*address, Listed { tag, ..is.clone() });
                }
                None => _ = listing.addresses.remove(address),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut recent = Recent::default();
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
    async fn a_new_address_is_there_and_one_that_was_given_back_is_not() {
        let mut recent = Recent::default();
        let address = ADDRESS.parse().unwrap();
        recent.note(&"here".into(), address, Holding::Missing, Some(listed(Holding::Free)));
        assert_eq!(believed(&mut recent, &Holding::Missing), Holding::Free);
        recent.note(&"elsewhere".into(), address, Holding::Free, None);
        assert_eq!(believed(&mut recent, &Holding::Missing), Holding::Free, "that is another region");
        recent.note(&"here".into(), address, Holding::Free, None);
        assert_eq!(believed(&mut recent, &Holding::Free), Holding::Missing);
    }
}
