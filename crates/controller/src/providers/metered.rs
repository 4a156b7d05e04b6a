//! Wraps drivers to count and time their calls. It changes nothing else.
//!
//! In: calls to drivers. Out: the same calls, counted for the object that [`for_object`] sets around them. Listings and
//! polls of operations serve a whole account, so they count for no object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drivers::record::{RecordChange, RecordDriver};
use drivers::{AddressDriver, DriverError, Listing, Operation, Polled, Progress, Properties};
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, DnsProvider, MachineState, PoolKey, Provider, RecordName, RecordSet, Scope, VmId};
use tokio::time::Instant;

use super::build::Drivers;
use super::metrics::ProviderMetrics;

tokio::task_local! {
    static OBJECT: PoolKey;
}

/// Runs a future whose calls to drivers count for this object.
pub async fn for_object<F: Future>(object: PoolKey, calls: F) -> F::Output {
    OBJECT.scope(object, calls).await
}

/// Wraps all drivers.
pub fn metered(drivers: Drivers, metrics: &ProviderMetrics) -> Drivers {
    let addresses = drivers.addresses.into_iter().map(|(provider, driver)| {
        let metered = Metered { driver, provider, metrics: metrics.clone() };
        (provider, Arc::new(metered) as Arc<dyn AddressDriver>)
    });
    let records = drivers.records.into_iter().map(|(provider, driver)| {
        let metered = MeteredRecords { driver, provider, metrics: metrics.clone() };
        (provider, Arc::new(metered) as Arc<dyn RecordDriver>)
    });
    Drivers { addresses: addresses.collect(), records: records.collect() }
}

/// A kind of call, by its names in metrics.
#[derive(Clone, Copy)]
struct Call {
    /// The value of the label `operation`.
    operation: &'static str,
    /// FLIPOP's name for the call, or a name in its style if FLIPOP does not have the call.
    known_as: &'static str,
}

const LIST: Call = Call { operation: "list", known_as: "ListIPs" };
const ATTACH: Call = Call { operation: "attach", known_as: "AssignIP" };
const RESTORE: Call = Call { operation: "restore", known_as: "RestoreIP" };
const DETACH: Call = Call { operation: "detach", known_as: "UnassignIP" };
const CREATE: Call = Call { operation: "create", known_as: "CreateIP" };
const RELEASE: Call = Call { operation: "release", known_as: "ReleaseIP" };
const POLL: Call = Call { operation: "poll", known_as: "PollActions" };
const MACHINES: Call = Call { operation: "machines", known_as: "ListNodes" };

struct Metered {
    driver: Arc<dyn AddressDriver>,
    provider: Provider,
    metrics: ProviderMetrics,
}

impl Metered {
    fn counted<'a, T: 'a>(
        &'a self,
        call: Call,
        answer: BoxFuture<'a, Result<T, DriverError>>,
    ) -> BoxFuture<'a, Result<T, DriverError>> {
        async move {
            let began = Instant::now();
            let answer = answer.await;
            // A request that was not sent is no call.
            if !matches!(answer, Err(DriverError::NotSent(_))) {
                self.count(call, answer.as_ref().err());
                self.record_call(call, answer.is_ok(), began);
            }
            answer
        }
        .boxed()
    }

    fn count(&self, call: Call, error: Option<&DriverError>) {
        if let Some(error) = error {
            self.metrics.failed(self.provider, call.operation, error);
        }
    }

    fn record_call(&self, call: Call, is_done: bool, began: Instant) {
        let (provider, call) = (self.provider.name(), call.known_as);
        let called = |object: Option<&PoolKey>| {
            self.metrics.record_call(provider, call, object, is_done, began.elapsed())
        };
        OBJECT.try_with(|object| called(Some(object))).unwrap_or_else(|_| called(None));
    }
}

impl AddressDriver for Metered {
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.counted(LIST, self.driver.list(scope))
    }

    fn list_with<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.counted(LIST, self.driver.list_with(scope, addresses))
    }

    fn list_one_by_one<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
        machines: &'a BTreeSet<VmId>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.counted(LIST, self.driver.list_one_by_one(scope, addresses, machines))
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted(ATTACH, self.driver.attach(scope, address, vm))
    }

    fn replace<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted(ATTACH, self.driver.replace(scope, address, vm))
    }

    fn restore<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted(RESTORE, self.driver.restore(scope, address, vm))
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted(DETACH, self.driver.detach(scope, address, vm))
    }

    fn keep_ptr(&self, address: Address, name: &str) {
        self.driver.keep_ptr(address, name);
    }

    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        self.counted(CREATE, self.driver.create(scope, region, tag))
    }

    fn release<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted(RELEASE, self.driver.release(scope, address, tag))
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        async move {
            let began = Instant::now();
            let answers = self.driver.poll(operations).await;
            for answer in &answers {
                let error = match answer {
                    Ok(Polled::Failed(error)) | Err(error) => Some(error),
                    Ok(Polled::Ended | Polled::StillUnderway) => None,
                };
                self.count(POLL, error);
            }
            // If the provider answers that the operation failed, the call itself succeeded.
            self.record_call(POLL, answers.iter().all(Result::is_ok), began);
            answers
        }
        .boxed()
    }

    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        self.counted(MACHINES, self.driver.machines(scope))
    }

    fn properties(&self) -> Properties {
        self.driver.properties()
    }
}

struct MeteredRecords {
    driver: Arc<dyn RecordDriver>,
    provider: DnsProvider,
    metrics: ProviderMetrics,
}

impl MeteredRecords {
    async fn counted<T>(
        &self,
        call: &'static str,
        object: &PoolKey,
        answer: BoxFuture<'_, Result<T, DriverError>>,
    ) -> Result<T, DriverError> {
        let began = Instant::now();
        let answer = answer.await;
        // A request that was not sent is no call.
        if !matches!(answer, Err(DriverError::NotSent(_))) {
            self.metrics.record_call(
                self.provider.name(),
                call,
                Some(object),
                answer.is_ok(),
                began.elapsed(),
            );
        }
        answer
    }
}

impl RecordDriver for MeteredRecords {
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        object: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
        self.counted("GetDNSRecordSet", object, self.driver.read(name, object)).boxed()
    }

    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
        self.counted("EnsureDNSARecordSet", &change.object, self.driver.write(change)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{Identity, Metrics};
    use drivers::digitalocean::addresses::DigitalOcean;
    use drivers::google::addresses::Compute;
    use drivers::http::HttpService;
    use drivers::tokens;
    use testbed::fake::{Fake, compute, digitalocean};

    #[tokio::test(start_paused = true)]
    async fn a_saved_ptr_name_reaches_the_driver() {
        let mut project = compute::Compute::new("demo", "token");
        project.add_instance_without_address("us-west1-a", "one");
        project.add_address("us-west1", "ours", "203.0.113.1");
        let fake = Fake::new(project);
        let service = HttpService::new(fake.service());
        let driver = Compute::new(service, "http://compute.invalid/compute/v1", tokens::fixed("token"));
        let metrics = ProviderMetrics::new(&Metrics::new(&Identity::default()).unwrap()).unwrap();
        let drivers = BTreeMap::from([(Provider::Gcp, Arc::new(driver) as Arc<dyn AddressDriver>)]);
        let drivers = Drivers { addresses: drivers, ..Drivers::default() };
        let driver = &metered(drivers, &metrics).addresses[&Provider::Gcp];
        let scope = Scope { provider: Provider::Gcp, account: "demo".into() };
        let (address, vm) = ("203.0.113.1".parse().unwrap(), "demo/us-west1-a/one".into());
        driver.keep_ptr(address, "mail.example.com.");
        driver.attach(&scope, address, &vm).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let ptr = fake.with(|project| project.ptr("203.0.113.1"));
        assert_eq!(ptr.as_deref(), Some("mail.example.com."));
    }

    #[tokio::test]
    async fn f12_a_change_counts_for_its_object_and_a_listing_for_none() {
        let mut account = digitalocean::DigitalOcean::new("token");
        account.add_droplet(1, "one", "nyc3");
        account.add_reserved_ip("203.0.113.1", "nyc3");
        let service = HttpService::new(Fake::new(account).service());
        let driver = DigitalOcean::new(service, "http://digitalocean.invalid/", tokens::fixed("token"));
        let process = Metrics::new(&Identity::default()).unwrap();
        let metrics = ProviderMetrics::new(&process).unwrap();
        let drivers = BTreeMap::from([(Provider::DigitalOcean, Arc::new(driver) as Arc<dyn AddressDriver>)]);
        let drivers = Drivers { addresses: drivers, ..Drivers::default() };
        let driver = &metered(drivers, &metrics).addresses[&Provider::DigitalOcean];
        let scope = Scope { provider: Provider::DigitalOcean, account: "".into() };
        let pool = PoolKey { kind: "FloatingIPPool", namespace: "web".into(), name: "pool".into() };
        let assign = async |machine: &str| {
            let (address, vm) = ("203.0.113.1".parse().unwrap(), machine.into());
            for_object(pool.clone(), driver.attach(&scope, address, &vm)).await
        };
        driver.list(&scope).await.unwrap();
        assign("2").await.unwrap_err();
        assert!(matches!(assign("1").await, Ok(Progress::Underway(_))), "the operation is in flight");
        let text = process.text().unwrap();
        let told: Vec<_> =
            text.lines().filter(|line| line.starts_with("flipop_providers_calls_total")).collect();
        let expected = [
            r#"flipop_providers_calls_total{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="web",outcome="error",provider="digitalocean"} 1"#,
            r#"flipop_providers_calls_total{call="AssignIP",kind="FloatingIPPool",name="pool",namespace="web",outcome="success",provider="digitalocean"} 1"#,
            r#"flipop_providers_calls_total{call="ListIPs",kind="",name="",namespace="",outcome="success",provider="digitalocean"} 1"#,
        ];
        assert_eq!(told, expected);
    }
}
