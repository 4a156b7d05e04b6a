//! Schedules listings of the clouds, one per scope.
//!
//! In: the wanted scopes, and the maximum age of their facts. Out: [`Response`] events. A slow or unavailable cloud never
//! delays the others. Each listing gets a number when it starts, so that an old listing can't replace newer facts. While
//! all is settled in a scope and its listings show no change, their interval doubles, up to a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use drivers::budget::{Urgency, with_haste};
use drivers::times::later;
use drivers::{AddressDriver, DriverError, Listing, NotSent, Tags};
use plan::{Address, Holding, MachineState, Provider, Scope, Tick, VmId};
use tokio::time::Instant;

use crate::tasks::Tasks;

/// The pause after a failed listing.
const LISTING_RETRY: Duration = Duration::from_secs(5);

/// The shortest pause after a throttled request.
const LIMITED_RETRY: Duration = Duration::from_secs(1);

/// The longest pause after a failed request, even if the cloud asks for a longer one.
const LISTING_RETRY_MAX: Duration = Duration::from_secs(600);

/// How often to list a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// After a listing that showed a change.
    pub busy: Duration,
    /// At most, while nothing changes.
    pub idle: Duration,
}

impl Interval {
    /// Always the same interval.
    pub fn fixed(interval: Duration) -> Self {
        Self { busy: interval, idle: interval }
    }

    /// The interval for a scope in which one object wants this interval, and another the other one.
    pub fn min(self, other: Self) -> Self {
        Self { busy: self.busy.min(other.busy), idle: self.idle.min(other.idle) }
    }

    /// The interval after this many listings without a change.
    fn after(self, unchanged: u32) -> Duration {
        self.busy.saturating_mul(1 << unchanged.min(UNCHANGED_MAX)).min(self.idle)
    }
}

/// More listings without a change make no difference.
const UNCHANGED_MAX: u32 = 10;

/// The response of a cloud.
pub struct Response {
    /// The scope of the request.
    pub scope: Scope,
    /// The result.
    pub what: ResponseKind,
}

/// The result of a request to a cloud.
pub enum ResponseKind {
    /// A listing of addresses: its number and its result. Of two listings or journal writes, the later one has
    /// the higher number.
    Addresses(Tick, Result<Listing, DriverError>),
    /// The VMs that the caller asked for, and the states of all VMs of the scope.
    Machines(BTreeSet<VmId>, Result<BTreeMap<VmId, MachineState>, DriverError>),
}

/// The requests to all clouds that are in flight, and when the next ones of each scope are due.
pub struct Clouds {
    drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    requests: Tasks<Response>,
    scopes: BTreeMap<Scope, ScopeState>,
    /// When the VMs of a scope may be requested again. None while a request is in flight.
    machines_due: BTreeMap<Scope, Option<Instant>>,
}

/// The state of a scope's listings.
#[derive(Default)]
struct ScopeState {
    /// A listing is in flight.
    is_in_flight: bool,
    /// The listing in flight may have started too early, so another one must follow.
    is_too_early: bool,
    /// When the last listing ended.
    answered: Option<Instant>,
    /// When the next listing is due. None means now.
    due: Option<Instant>,
    /// The credentials do not allow listing addresses.
    is_denied: bool,
    /// The last listing failed. No listing starts before it is due, even if it is requested.
    is_backing_off: bool,
    interval: Interval,
    /// The maximum age of the facts while something waits for a change.
    age_max: Option<Duration>,
    /// A hash of the last listing.
    shown: Option<u64>,
    /// How many listings in a row showed no change.
    unchanged: u32,
}

impl ScopeState {
    /// The time from one listing to the next.
    fn pause(&self, scope: &Scope) -> Duration {
        let interval = sooner(scope, self.interval.after(self.unchanged));
        self.age_max.map_or(interval, |age_max| age_max.min(interval))
    }

    /// Notes what a listing showed.
    fn compare(&mut self, listing: &Listing) {
        let shown = Some(hash_of(listing));
        self.unchanged = if self.shown == shown { self.unchanged + 1 } else { 0 };
        self.shown = shown;
    }
}

/// Shortens an interval by up to a tenth, for each scope by another part, so that the listings of many scopes do not
/// coincide for long.
fn sooner(scope: &Scope, interval: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    scope.hash(&mut hasher);
    let part = u32::try_from(hasher.finish() % 100).unwrap_or_default();
    interval - interval / 1_000 * part
}

fn hash_of(listing: &Listing) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (address, listed) in &listing.addresses {
        let holder = match &listed.holding {
            Holding::By(vm) => Some(vm.as_str()),
            Holding::Unknown(doubt) => Some(&*doubt.why),
            Holding::Free => None,
            Holding::Missing => Some(""),
        };
        (address, holder, &listed.tag).hash(&mut hasher);
    }
    hasher.finish()
}

impl Clouds {
    /// Creates the scheduler without any requests.
    pub fn new(drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>) -> Self {
        Self { drivers, requests: Tasks::default(), scopes: BTreeMap::new(), machines_due: BTreeMap::new() }
    }

    /// Starts a listing of every scope whose facts are too old or that is in `read_again`. `busy` are scopes in which not
    /// all is settled. `overrides` has maximum ages, for scopes in which something waits for a change. `begin` returns the
    /// number of a listing and the addresses that objects list. If the credentials do not allow listing, it also returns
    /// the VMs to read instead.
    pub fn ask(
        &mut self,
        wanted: &BTreeMap<Scope, Interval>,
        busy: &BTreeSet<Scope>,
        read_again: &BTreeSet<Scope>,
        overrides: &BTreeMap<Scope, Duration>,
        mut begin: impl FnMut(&Scope, bool) -> (Tick, ListRequest),
    ) {
        let now = Instant::now();
        self.scopes.retain(|scope, asked| wanted.contains_key(scope) || asked.is_in_flight);
        for (scope, interval) in wanted {
            let asked = self.scopes.entry(scope.clone()).or_default();
            (asked.interval, asked.age_max) = (*interval, overrides.get(scope).copied());
            if busy.contains(scope) {
                asked.unchanged = 0;
            }
            if let (Some(answered), false) = (asked.answered, asked.is_backing_off) {
                let pause = asked.pause(scope);
                asked.due = asked.due.map(|due| due.min(later(answered, pause)));
            }
            if asked.is_in_flight {
                asked.is_too_early |= read_again.contains(scope);
                continue;
            }
            let is_due = asked.due.is_none_or(|due| due <= now);
            if is_due || (read_again.contains(scope) && !asked.is_backing_off) {
                asked.is_in_flight = true;
                let (driver, scope) = (self.drivers.get(&scope.provider).cloned(), scope.clone());
                let (tick, named) = begin(&scope, asked.is_denied);
                self.requests.spawn(async move {
                    let listing = match driver {
                        Some(driver) => with_haste(Urgency::Reading, list(&*driver, &scope, named)).await,
                        None => Err(no_credentials(&scope)),
                    };
                    Response { scope, what: ResponseKind::Addresses(tick, listing) }
                });
            }
        }
    }

    /// Schedules a new listing of a scope: immediately, or after the backoff if the last listing failed.
    pub fn forget(&mut self, scope: &Scope) {
        if let Some(asked) = self.scopes.get_mut(scope) {
            asked.is_too_early |= asked.is_in_flight;
            if !asked.is_backing_off {
                asked.due = None;
            }
        }
    }

    /// Requests the states of VMs of a scope, unless such a request is in flight or failed a short while ago.
    pub fn ask_machines(&mut self, scope: &Scope, machines: &BTreeSet<VmId>) {
        let is_too_early = |due: &Option<Instant>| due.is_none_or(|due| due > Instant::now());
        if self.machines_due.get(scope).is_some_and(is_too_early) {
            return;
        }
        self.machines_due.insert(scope.clone(), None);
        let (driver, scope, asked) =
            (self.drivers.get(&scope.provider).cloned(), scope.clone(), machines.clone());
        self.requests.spawn(async move {
            let machines = match driver {
                Some(driver) => with_haste(Urgency::Reading, driver.machines(&scope)).await,
                None => Err(no_credentials(&scope)),
            };
            Response { scope, what: ResponseKind::Machines(asked, machines) }
        });
    }

    /// Waits for the next response. Never returns if no request is in flight.
    pub async fn next_response(&mut self) -> Response {
        loop {
            match self.requests.next().await {
                Some(Ok(response)) => {
                    self.note(&response);
                    return response;
                }
                Some(Err(error)) => tracing::error!(%error, "a listing task failed"),
                None => std::future::pending().await,
            }
        }
    }

    fn note(&mut self, response: &Response) {
        let listing = match &response.what {
            ResponseKind::Addresses(_, listing) => listing,
            ResponseKind::Machines(_, machines) => {
                match machines {
                    Ok(_) => self.machines_due.remove(&response.scope),
                    Err(error) => {
                        let due = later(Instant::now(), pause_after(error));
                        self.machines_due.insert(response.scope.clone(), Some(due))
                    }
                };
                return;
            }
        };
        let Some(asked) = self.scopes.get_mut(&response.scope) else { return };
        if let Ok(listing) = listing {
            asked.compare(listing);
        }
        let pause = match listing {
            // The listing is incomplete. The retry waits, so that a part that keeps failing does not use up the rate
            // limit.
            Ok(listing) if listing.tags == Tags::Incomplete => {
                LISTING_RETRY.min(asked.pause(&response.scope))
            }
            Ok(_) if asked.is_too_early => Duration::ZERO,
            Ok(_) => asked.pause(&response.scope),
            Err(error) => pause_after(error),
        };
        if let Err(error) = listing {
            tracing::warn!(scope = %response.scope, %error, "failed to list addresses");
        }
        asked.is_denied = match listing {
            Ok(listing) => listing.without.is_some(),
            Err(error) => matches!(error, DriverError::Denied { .. }) || asked.is_denied,
        };
        asked.is_in_flight = false;
        asked.is_too_early = false;
        asked.is_backing_off = !matches!(listing, Ok(listing) if listing.tags != Tags::Incomplete);
        asked.answered = Some(Instant::now());
        asked.due = Some(later(Instant::now(), pause));
    }

    /// When the next request is due.
    pub fn next_due(&self) -> Option<Instant> {
        let listings = self.scopes.values().filter(|asked| !asked.is_in_flight).filter_map(|asked| asked.due);
        // A time in the past does not count: the next reconciliation decides whether the states are still needed.
        let machines = self.machines_due.values().flatten().filter(|due| **due > Instant::now());
        listings.chain(machines.copied()).min()
    }
}

/// The pause after a failed request.
fn pause_after(error: &DriverError) -> Duration {
    match error {
        DriverError::RateLimited { retry_after: wait, .. } | DriverError::NotSent(NotSent { wait }) => {
            (*wait).clamp(LIMITED_RETRY, LISTING_RETRY_MAX)
        }
        _ => LISTING_RETRY,
    }
}

/// What to read in addition to a listing, or instead of it if listing is not allowed.
#[derive(Debug, Default)]
pub struct ListRequest {
    /// The addresses that objects list.
    pub addresses: BTreeSet<Address>,
    /// The VMs that may hold them. None if they are not needed.
    pub machines: Option<BTreeSet<VmId>>,
}

/// Lists a scope. If the credentials do not allow that, reads the requested addresses and VMs one by one. It always
/// tries the listing first, because the permissions may have changed.
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
    async fn a_failed_request_for_vms_is_not_repeated_at_once() {
        let mut clouds = Clouds::new(BTreeMap::new());
        let asked = BTreeSet::from([VmId::from("1")]);
        for seconds in [0, 1, LISTING_RETRY.as_secs() + 1] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            clouds.ask_machines(&scope(), &asked);
            clouds.ask_machines(&scope(), &asked);
            let response = tokio::time::timeout(Duration::from_millis(1), clouds.next_response()).await;
            assert_eq!(response.is_ok(), seconds != 1, "after {seconds} s");
            if let Ok(Response { what: ResponseKind::Machines(about, response), .. }) = response {
                assert!(about == asked && response.is_err());
                assert!(clouds.next_due().is_some(), "the retry has a due time");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_never_expires_is_requested_once() {
        let mut clouds = Clouds::new(BTreeMap::new());
        for age_max in [Duration::MAX, Duration::from_secs(i64::MIN.unsigned_abs())] {
            let wanted = BTreeMap::from([(scope(), Interval::fixed(age_max))]);
            for _ in 0..2 {
                clouds.ask(&wanted, &BTreeSet::new(), &BTreeSet::new(), &BTreeMap::new(), |_, _| {
                    (Tick(1), ListRequest::default())
                });
                clouds.note(&Response {
                    scope: scope(),
                    what: ResponseKind::Addresses(Tick(1), Ok(Listing::default())),
                });
            }
            assert!(clouds.next_due().is_some_and(|due| due > Instant::now() + LISTING_RETRY_MAX));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i10_listings_become_rarer_while_nothing_changes() {
        let mut clouds = Clouds::new(BTreeMap::new());
        let interval = Interval { busy: Duration::from_secs(60), idle: Duration::from_secs(300) };
        let wanted = BTreeMap::from([(scope(), interval)]);
        let mut pause_after = |listing: Listing, busy: &BTreeSet<Scope>| {
            let ask = |clouds: &mut Clouds| {
                let begin = |_: &Scope, _| (Tick(1), ListRequest::default());
                clouds.ask(&wanted, busy, &BTreeSet::new(), &BTreeMap::new(), begin);
            };
            ask(&mut clouds);
            clouds.note(&Response { scope: scope(), what: ResponseKind::Addresses(Tick(1), Ok(listing)) });
            ask(&mut clouds);
            clouds.scopes[&scope()].due.unwrap() - Instant::now()
        };
        let held = |vm: &str| {
            let listed = drivers::Listed { holding: Holding::By(vm.into()), region: None, tag: None };
            let addresses = BTreeMap::from([("203.0.113.1".parse().unwrap(), listed)]);
            Listing { addresses, ..Listing::default() }
        };
        let is_about = |pause: Duration, seconds: u64| {
            let most = Duration::from_secs(seconds);
            pause <= most && pause >= most * 9 / 10
        };
        for seconds in [60, 120, 240, 300, 300] {
            let pause = pause_after(held("1"), &BTreeSet::new());
            assert!(is_about(pause, seconds), "{pause:?}, expected {seconds} s");
        }
        assert!(is_about(pause_after(held("2"), &BTreeSet::new()), 60), "something changed");
        let busy = BTreeSet::from([scope()]);
        for _ in 0..3 {
            assert!(is_about(pause_after(held("2"), &busy), 60), "not all is settled");
        }
    }

    #[test]
    fn a_netipallocation_is_never_listed_less_often_than_its_interval() {
        let pool = Interval { busy: Duration::from_secs(60), idle: Duration::from_secs(300) };
        let both = pool.min(Interval::fixed(Duration::from_secs(90)));
        assert_eq!([0, 1, 40].map(|unchanged| both.after(unchanged).as_secs()), [60, 90, 90]);
        assert_eq!(Interval::fixed(Duration::MAX).after(40), Duration::MAX);
    }
}
