//! Asks the clouds, each scope on its own, and tells what they said.
//!
//! In: which scopes are wanted and how old their facts may get. Out: [`Told`] events. A cloud that is slow or down holds up
//! nobody else. A listing is numbered when it begins, so that what it says can't undo what was learnt later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use drivers::budget::{Haste, with_haste};
use drivers::times::later;
use drivers::{AddressDriver, DriverError, Listing, NotSent, Tags};
use plan::{Address, MachineState, Provider, Scope, Tick, VmId};
use tokio::time::Instant;

use crate::tasks::Tasks;

/// The pause before a listing that failed is tried again.
const LISTING_RETRY: Duration = Duration::from_secs(5);

/// How old the facts may get of a scope in which something is changing that we don't do ourselves.
const UNSETTLED_AGE_MAX: Duration = Duration::from_secs(1);

/// No cloud's word makes us wait longer than this before we ask again.
const LISTING_RETRY_MAX: Duration = Duration::from_secs(600);

/// What a cloud said.
pub struct Told {
    /// Which scope.
    pub scope: Scope,
    /// What it said.
    pub what: What,
}

/// What a cloud was asked.
pub enum What {
    /// Its addresses, asked at this moment.
    Addresses(Tick, Result<Listing, DriverError>),
    /// What became of these machines, by those that it has.
    Machines(BTreeSet<VmId>, Result<BTreeMap<VmId, MachineState>, DriverError>),
}

/// Who is asked, and when they answered last.
pub struct Clouds {
    drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    asking: Tasks<Told>,
    scopes: BTreeMap<Scope, Asked>,
    /// When the machines of a scope may be asked for again; never while they are.
    machines_due: BTreeMap<Scope, Option<Instant>>,
}

/// How asking a scope stands.
#[derive(Default)]
struct Asked {
    /// It is being asked now.
    is_under_way: bool,
    /// What is being read may have been asked too early, so it must be read again.
    is_too_early: bool,
    /// When it last answered.
    told: Option<Instant>,
    /// When its facts are too old; never asked is too old now.
    due: Option<Instant>,
    /// The credentials don't allow to list its addresses.
    is_denied: bool,
    /// It failed, and is left alone until it is due, however much it is wanted.
    is_resting: bool,
    age_max: Duration,
}

impl Clouds {
    /// Nobody has been asked yet.
    pub fn new(drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>) -> Self {
        Self { drivers, asking: Tasks::default(), scopes: BTreeMap::new(), machines_due: BTreeMap::new() }
    }

    /// Asks every scope whose facts are too old, that must be read again, or in which something changes that is not ours.
    /// `begin` numbers a listing and names the addresses that objects list, and where the credentials don't allow to list, also the
    /// machines that are asked instead.
    pub fn ask(
        &mut self,
        wanted: &BTreeMap<Scope, Duration>,
        read_again: &BTreeSet<Scope>,
        unsettled: &BTreeSet<Scope>,
        mut begin: impl FnMut(&Scope, bool) -> (Tick, ListRequest),
    ) {
        let now = Instant::now();
        self.scopes.retain(|scope, asked| wanted.contains_key(scope) || asked.is_under_way);
        for (scope, age_max) in wanted {
            let asked = self.scopes.entry(scope.clone()).or_default();
            asked.age_max =
                if unsettled.contains(scope) { UNSETTLED_AGE_MAX.min(*age_max) } else { *age_max };
            if let (Some(told), false) = (asked.told, asked.is_resting) {
                asked.due = asked.due.map(|due| due.min(later(told, asked.age_max)));
            }
            if asked.is_under_way {
                asked.is_too_early |= read_again.contains(scope);
                continue;
            }
            let is_due = asked.due.is_none_or(|due| due <= now);
            if is_due || (read_again.contains(scope) && !asked.is_resting) {
                asked.is_under_way = true;
                let (driver, scope) = (self.drivers.get(&scope.provider).cloned(), scope.clone());
                let (tick, named) = begin(&scope, asked.is_denied);
                self.asking.spawn(async move {
                    let listing = match driver {
                        Some(driver) => with_haste(Haste::Reading, list(&*driver, &scope, named)).await,
                        None => Err(no_credentials(&scope)),
                    };
                    Told { scope, what: What::Addresses(tick, listing) }
                });
            }
        }
    }

    /// Believes nothing of a scope any more: it is asked again as soon as it can be.
    pub fn forget(&mut self, scope: &Scope) {
        if let Some(asked) = self.scopes.get_mut(scope) {
            asked.is_too_early |= asked.is_under_way;
            if !asked.is_resting {
                asked.due = None;
            }
        }
    }

    /// Asks what became of machines of a scope, once at a time, and not again right after that failed.
    pub fn ask_machines(&mut self, scope: &Scope, machines: &BTreeSet<VmId>) {
        let is_too_early = |due: &Option<Instant>| due.is_none_or(|due| due > Instant::now());
        if self.machines_due.get(scope).is_some_and(is_too_early) {
            return;
        }
        self.machines_due.insert(scope.clone(), None);
        let (driver, scope, asked) =
            (self.drivers.get(&scope.provider).cloned(), scope.clone(), machines.clone());
        self.asking.spawn(async move {
            let machines = match driver {
                Some(driver) => with_haste(Haste::Reading, driver.machines(&scope)).await,
                None => Err(no_credentials(&scope)),
            };
            Told { scope, what: What::Machines(asked, machines) }
        });
    }

    /// The next answer. Waits for ever while nobody is asked.
    pub async fn told(&mut self) -> Told {
        loop {
            match self.asking.next().await {
                Some(Ok(told)) => {
                    self.note(&told);
                    return told;
                }
                Some(Err(error)) => tracing::error!(%error, "asking a cloud was cut off"),
                None => std::future::pending().await,
            }
        }
    }

    fn note(&mut self, told: &Told) {
        let listing = match &told.what {
            What::Addresses(_, listing) => listing,
            What::Machines(_, machines) => {
                match machines {
                    Ok(_) => self.machines_due.remove(&told.scope),
                    Err(error) => {
                        let due = later(Instant::now(), pause_after(error));
                        self.machines_due.insert(told.scope.clone(), Some(due))
                    }
                };
                return;
            }
        };
        let Some(asked) = self.scopes.get_mut(&told.scope) else { return };
        let pause = match listing {
            // What was missing is asked for again after a pause, or a part that fails would use up the whole budget.
            Ok(listing) if listing.tags == Tags::Untold => LISTING_RETRY.min(asked.age_max),
            Ok(_) if asked.is_too_early => Duration::ZERO,
            Ok(_) => asked.age_max,
            Err(error) => pause_after(error),
        };
        if let Err(error) = listing {
            tracing::warn!(scope = %told.scope, %error, "listing addresses failed");
        }
        asked.is_denied = match listing {
            Ok(listing) => listing.without.is_some(),
            Err(error) => matches!(error, DriverError::Denied { .. }) || asked.is_denied,
        };
        asked.is_under_way = false;
        asked.is_too_early = false;
        asked.is_resting = !matches!(listing, Ok(listing) if listing.tags != Tags::Untold);
        asked.told = Some(Instant::now());
        asked.due = Some(later(Instant::now(), pause));
    }

    /// When the next scope is due.
    pub fn next_due(&self) -> Option<Instant> {
        let listings = self.scopes.values().filter(|asked| !asked.is_under_way).filter_map(|asked| asked.due);
        // Whether anybody still wants to know what became of machines, the next round tells.
        let machines = self.machines_due.values().flatten().filter(|due| **due > Instant::now());
        listings.chain(machines.copied()).min()
    }
}

/// How long a cloud is left alone that did not tell what it was asked for.
fn pause_after(error: &DriverError) -> Duration {
    match error {
        DriverError::RateLimited { retry_after: wait, .. } | DriverError::NotSent(NotSent { wait }) => {
            (*wait).min(LISTING_RETRY_MAX)
        }
        _ => LISTING_RETRY,
    }
}

/// Addresses and the machines that they may be on.
#[derive(Debug, Default)]
pub struct ListRequest {
    /// The addresses.
    pub addresses: BTreeSet<Address>,
    /// The machines, where they are to be asked.
    pub machines: Option<BTreeSet<VmId>>,
}

/// Lists a scope; where that is not allowed, asks for what is named. Each time it is tried first whether it is allowed now.
async fn list(
    driver: &dyn AddressDriver,
    scope: &Scope,
    ListRequest { addresses, machines }: ListRequest,
) -> Result<Listing, DriverError> {
    match (driver.list_with(scope, &addresses).await, machines) {
        (Err(DriverError::Denied { .. }), Some(machines)) => {
            driver.list_one_by_one(scope, &addresses, &machines).await
        }
        (listing, _) => listing,
    }
}

fn no_credentials(scope: &Scope) -> DriverError {
    DriverError::Unavailable(format!("there are no credentials for {}", scope.provider))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope { provider: Provider::DigitalOcean, account: "".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn machines_are_not_asked_for_again_right_after_that_failed() {
        let mut clouds = Clouds::new(BTreeMap::new());
        let asked = BTreeSet::from([VmId::from("1")]);
        for seconds in [0, 1, LISTING_RETRY.as_secs() + 1] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            clouds.ask_machines(&scope(), &asked);
            clouds.ask_machines(&scope(), &asked);
            let told = tokio::time::timeout(Duration::from_millis(1), clouds.told()).await;
            assert_eq!(told.is_ok(), seconds != 1, "after {seconds} s");
            if let Ok(Told { what: What::Machines(about, told), .. }) = told {
                assert!(about == asked && told.is_err());
                assert!(clouds.next_due().is_some(), "somebody has to come back to it");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_never_expires_is_requested_once() {
        let mut clouds = Clouds::new(BTreeMap::new());
        for age_max in [Duration::MAX, Duration::from_secs(i64::MIN.unsigned_abs())] {
            let wanted = BTreeMap::from([(scope(), age_max)]);
            for _ in 0..2 {
                clouds.ask(&wanted, &BTreeSet::new(), &BTreeSet::new(), |_, _| {
                    (Tick(1), ListRequest::default())
                });
                clouds.note(&Told { scope: scope(), what: What::Addresses(Tick(1), Ok(Listing::default())) });
            }
            assert!(clouds.next_due().is_some_and(|due| due > Instant::now() + LISTING_RETRY_MAX));
        }
    }
}
