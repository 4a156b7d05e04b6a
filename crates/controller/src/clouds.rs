//! Asks the clouds, each scope on its own, and tells what they said.
//!
//! In: which scopes are wanted and how old their facts may get. Out: [`Told`] events. A cloud that is slow or down holds up
//! nobody else. A listing is numbered when it begins, so that what it says can't undo what was learnt later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[cfg(feature = "aws")]
use drivers::aws::addresses::Ec2;
#[cfg(feature = "aws")]
use drivers::aws::records::Route53;
#[cfg(feature = "aws")]
use drivers::aws::{self, Aws};
use drivers::azure::addresses::Azure;
use drivers::azure::identity::{self, Identity};
use drivers::budget::{Haste, Limit, NotSent, budgeted, with_haste};
use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::digitalocean::records::Records;
use drivers::google::addresses::Compute;
use drivers::http::HttpService;
use drivers::network::MayLeave;
use drivers::record::RecordDriver;
use drivers::rfc2136::records::{self, Key, Rfc2136};
use drivers::times::later;
use drivers::tokens::{self, Tokens};
use drivers::{AddressDriver, DriverError, Listing, Seconds, Tags};
use plan::{Address, DnsProvider, MachineState, Provider, Scope, Tick, VmId};
use tokio::time::Instant;

use crate::settings::{Secret, Settings};
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

/// What moves addresses and what publishes names.
#[derive(Clone, Default)]
pub struct Drivers {
    /// The clouds.
    pub addresses: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    /// The DNS providers.
    pub records: BTreeMap<DnsProvider, Arc<dyn RecordDriver>>,
}

/// Drivers for everything that has credentials, over the given service. What changes nothing, such as the exchange of a
/// token, goes over `open`, which is not fenced. Messages to a name server ask `may_leave` themselves.
pub fn drivers(
    settings: &Settings,
    service: &HttpService,
    open: &HttpService,
    may_leave: MayLeave,
) -> Drivers {
    let mut drivers = Drivers::default();
    match tokens::google() {
        Ok(tokens) => {
            let service = budgeted(service.clone(), &[per_minute(settings.google_requests_per_minute)]);
            let driver = Compute::new(service, &settings.google_compute_custom_endpoint, tokens);
            drivers.addresses.insert(Provider::Gcp, Arc::new(driver));
        }
        Err(error) => tracing::warn!(%error, "Google Cloud is not available"),
    }
    drivers.addresses.insert(Provider::Azure, Arc::new(azure(settings, service, open)));
    let token = secret(&settings.digitalocean_access_token_file, &settings.digitalocean_access_token);
    if let Some(tokens) = token {
        let hour = Duration::from_secs(3_600);
        let per_hour = Limit::window(settings.digitalocean_requests_per_hour, hour);
        let limits = [per_minute(settings.digitalocean_requests_per_minute), per_hour];
        let service = budgeted(service.clone(), &limits);
        let url = &settings.digitalocean_api_url;
        let records = Records::new(service.clone(), url, Arc::clone(&tokens));
        drivers.records.insert(DnsProvider::DigitalOcean, Arc::new(records));
        drivers.addresses.insert(Provider::DigitalOcean, Arc::new(DigitalOcean::new(service, url, tokens)));
    }
    if let Some(tokens) = secret(&settings.cloudflare_token_file, &settings.cloudflare_token) {
        let window = Duration::from_secs(300);
        let limit = Limit::window(settings.cloudflare_requests_per_five_minutes, window);
        let driver =
            Cloudflare::new(budgeted(service.clone(), &[limit]), &settings.cloudflare_api_url, tokens);
        drivers.records.insert(DnsProvider::Cloudflare, Arc::new(driver));
    }
    #[cfg(feature = "aws")]
    {
        // Whether there are credentials is known only when somebody asks for them.
        let aws = Aws::new(service.clone(), aws::Identity::Found, &settings.aws_region, wall_seconds());
        let aws = Arc::new(aws.at(settings.aws_endpoint_url.as_deref()));
        let names = Route53::new(Arc::clone(&aws), ::drivers::aws::records::limits());
        let ec2 = Ec2::new(aws, ::drivers::aws::addresses::limits(), ::drivers::aws::addresses::LATE_MAX);
        drivers.addresses.insert(Provider::Aws, Arc::new(ec2));
        drivers.records.insert(DnsProvider::Route53, Arc::new(names));
    }
    if let Some(server) = &settings.rfc2136_server {
        let secret = secret(&settings.rfc2136_tsig_secret_file, &settings.rfc2136_tsig_secret);
        // A key without its secret is told as an error of each message, and nothing goes out unsigned.
        let missing = || tokens::missing("RFC2136_TSIG_SECRET");
        let key = settings.rfc2136_tsig_key_name.clone().filter(|name| !name.is_empty()).map(|name| Key {
            name,
            algorithm: settings.rfc2136_tsig_algorithm.clone(),
            secret: secret.unwrap_or_else(missing),
        });
        let linger = Duration::from_secs(settings.takeover_seconds);
        let service = rfc2136::network(server, may_leave, linger);
        drivers.records.insert(DnsProvider::Rfc2136, Arc::new(Rfc2136::new(service, key, wall_seconds())));
    }
    drivers
}

/// Azure's driver. A machine's own identity needs no setting, so whether there is one is known when it is asked for.
fn azure(settings: &Settings, service: &HttpService, open: &HttpService) -> Azure {
    let given = |setting: &Option<String>| setting.clone().filter(|text| !text.is_empty());
    let identity = Identity {
        tenant: settings.azure_tenant_id.clone(),
        client: given(&settings.azure_client_id),
        secret: given(&settings.azure_client_secret.as_ref().map(|secret| secret.text().to_owned())),
        federated_token_file: settings
            .azure_federated_token_file
            .clone()
            .filter(|file| !file.as_os_str().is_empty()),
        authority: given(&settings.azure_authority_host),
    };
    let url = &settings.azure_resource_manager_endpoint;
    let tokens = identity::tokens(identity, open.clone(), url);
    let service = budgeted(service.clone(), &drivers::azure::addresses::limits());
    Azure::new(service, url, tokens, given(&settings.azure_resource_group))
}

/// A secret in a file that may change, or else in a variable.
fn secret(file: &Option<PathBuf>, variable: &Option<Secret>) -> Option<Arc<dyn Tokens>> {
    let text = || variable.as_ref().map(Secret::text).filter(|text| !text.is_empty());
    let fixed = || text().map(|text| tokens::fixed(text.trim()));
    file.as_ref().map(tokens::in_file).or_else(fixed)
}

/// The time that signatures carry.
fn wall_seconds() -> Seconds {
    Arc::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

fn per_minute(requests_max: usize) -> Limit {
    Limit::window(requests_max, Duration::from_secs(60))
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
        mut begin: impl FnMut(&Scope, bool) -> (Tick, Named),
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
pub struct Named {
    /// The addresses.
    pub addresses: BTreeSet<Address>,
    /// The machines, where they are to be asked.
    pub machines: Option<BTreeSet<VmId>>,
}

/// Lists a scope; where that is not allowed, asks for what is named. Each time it is tried first whether it is allowed now.
async fn list(
    driver: &dyn AddressDriver,
    scope: &Scope,
    Named { addresses, machines }: Named,
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
    use clap::{CommandFactory, Parser};
    use testbed::fake::{Fake, azure, digitalocean, entra};

    /// DigitalOcean's driver as these settings make it, at an account that accepts the given token alone.
    fn digitalocean(arguments: &[&str], accepted: &str) -> Arc<dyn AddressDriver> {
        let settings = Settings::try_parse_from([&["controller"], arguments].concat()).unwrap();
        let account = Fake::new(digitalocean::DigitalOcean::new(accepted));
        let service = HttpService::new(account.service());
        let drivers = drivers(&settings, &service, &service, Arc::new(|| true));
        Arc::clone(&drivers.addresses[&Provider::DigitalOcean])
    }

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
                clouds.ask(&wanted, &BTreeSet::new(), &BTreeSet::new(), |_, _| (Tick(1), Named::default()));
                clouds.note(&Told { scope: scope(), what: What::Addresses(Tick(1), Ok(Listing::default())) });
            }
            assert!(clouds.next_due().is_some_and(|due| due > Instant::now() + LISTING_RETRY_MAX));
        }
    }

    #[tokio::test]
    async fn a_token_for_azure_is_asked_for_outside_of_the_fence() {
        let arguments =
            ["--azure-tenant-id=tenant", "--azure-client-id=client", "--azure-client-secret=secret"];
        let arguments =
            [&["controller", "--azure-authority-host=https://entra.invalid"], &arguments[..]].concat();
        let settings = Settings::try_parse_from(arguments).unwrap();
        let subscription = Fake::new(azure::Azure::new("s", "g", "token"));
        let tenant = Fake::new(entra::Entra::new("tenant", "client", "secret", "token"));
        let (service, open) = (HttpService::new(subscription.service()), HttpService::new(tenant.service()));
        let drivers = drivers(&settings, &service, &open, Arc::new(|| false));
        let scope = Scope { provider: Provider::Azure, account: "s".into() };
        drivers.addresses[&Provider::Azure].list(&scope).await.unwrap();
        assert_eq!(tenant.ledger().calls()["entra.token"], 1);
    }

    #[tokio::test]
    async fn f13_a_token_in_a_file_is_read_again_for_every_call_and_goes_before_the_variable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("DIGITALOCEAN_ACCESS_TOKEN");
        std::fs::write(&file, "old\n").unwrap();
        let argument = format!("--digitalocean-access-token-file={}", file.display());
        let driver = digitalocean(&[&argument, "--digitalocean-access-token=older"], "new");
        assert!(matches!(driver.list(&scope()).await, Err(DriverError::Denied { .. })));
        // A kubelet puts another file in the place of the one that was there.
        let rotated = folder.path().join("rotated");
        std::fs::write(&rotated, "new\n").unwrap();
        std::fs::rename(rotated, &file).unwrap();
        driver.list(&scope()).await.unwrap();
        std::fs::remove_file(&file).unwrap();
        let error = driver.list(&scope()).await.unwrap_err().to_string();
        assert!(
            error.contains(&file.display().to_string()),
            "it does not say which file is missing: {error}"
        );
    }

    #[tokio::test]
    async fn f13_a_token_comes_from_the_variable_that_users_have_set() {
        let command = Settings::command();
        let names: BTreeSet<_> =
            command.get_arguments().filter_map(|setting| setting.get_env()?.to_str()).collect();
        for name in ["DIGITALOCEAN_ACCESS_TOKEN", "CLOUDFLARE_TOKEN"] {
            assert!(names.contains(name) && names.contains(&*format!("{name}_FILE")), "{name}");
        }
        let driver = digitalocean(&["--digitalocean-access-token=token"], "token");
        driver.list(&scope()).await.unwrap();
    }
}
