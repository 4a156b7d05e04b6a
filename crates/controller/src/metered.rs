//! A driver whose failures are counted. It changes nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drivers::{AddressDriver, DriverError, Listing, Operation, Polled, Progress, Traits};
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, MachineState, Provider, Scope, VmId};

use crate::metrics::Metrics;

/// Counts the failures of all drivers.
pub fn metered(
    drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    metrics: &Metrics,
) -> BTreeMap<Provider, Arc<dyn AddressDriver>> {
    let metered = |(provider, driver)| {
        let metered = Metered { driver, provider, metrics: metrics.clone() };
        (provider, Arc::new(metered) as Arc<dyn AddressDriver>)
    };
    drivers.into_iter().map(metered).collect()
}

struct Metered {
    driver: Arc<dyn AddressDriver>,
    provider: Provider,
    metrics: Metrics,
}

impl Metered {
    fn counted<'a, T: 'a>(
        &'a self,
        operation: &'static str,
        answer: BoxFuture<'a, Result<T, DriverError>>,
    ) -> BoxFuture<'a, Result<T, DriverError>> {
        answer.inspect(move |answer| self.count(operation, answer.as_ref().err())).boxed()
    }

    fn count(&self, operation: &str, error: Option<&DriverError>) {
        if let Some(error) = error {
            self.metrics.failed(self.provider, operation, error);
        }
    }
}

impl AddressDriver for Metered {
    fn list<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.counted("list", self.driver.list(scope))
    }

    fn list_one_by_one<'a>(
        &'a self,
        scope: &'a Scope,
        addresses: &'a BTreeSet<Address>,
        machines: &'a BTreeSet<VmId>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.counted("list", self.driver.list_one_by_one(scope, addresses, machines))
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted("attach", self.driver.attach(scope, address, vm))
    }

    fn replace<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted("attach", self.driver.replace(scope, address, vm))
    }

    fn restore<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted("restore", self.driver.restore(scope, address, vm))
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted("detach", self.driver.detach(scope, address, vm))
    }

    fn create<'a>(
        &'a self,
        scope: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        self.counted("create", self.driver.create(scope, region, tag))
    }

    fn release<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.counted("release", self.driver.release(scope, address))
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        let count = move |answers: &Vec<Result<Polled, DriverError>>| {
            for answer in answers {
                let error = match answer {
                    Ok(Polled::Failed(error)) | Err(error) => Some(error),
                    Ok(Polled::Ended | Polled::StillUnderway) => None,
                };
                self.count("poll", error);
            }
        };
        self.driver.poll(operations).inspect(count).boxed()
    }

    fn machines<'a>(
        &'a self,
        scope: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        self.counted("machines", self.driver.machines(scope))
    }

    fn traits(&self) -> Traits {
        self.driver.traits()
    }
}
