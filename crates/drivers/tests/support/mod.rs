//! Helpers that the driver tests share: test values, the connection to a fake cloud, and `finish`, which repeats a call
//! until it is done. `aws.rs` has the AWS drivers with an access key, `canary.rs` the test secrets and the search for them
//! in the log.
//!
//! Cargo builds each file in `tests` as a test binary, so this module is a folder with a `mod.rs`.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

#[cfg(feature = "aws")]
pub mod aws;
pub mod canary;

use std::time::Duration;

use drivers::http::{HttpService, with_deadline};
use drivers::{AddressDriver, DriverError, NotSent, Polled, Progress};
use plan::{Address, DnsProvider, PoolKey, Provider, RecordKind, RecordName, RecordSet, Scope, VmId};
use testbed::fake::{Fake, Machine};

pub fn address(text: &str) -> Address {
    text.parse().unwrap()
}

pub fn vm(text: &str) -> VmId {
    text.into()
}

pub fn scope(provider: Provider, account: &str) -> Scope {
    Scope { provider, account: account.into() }
}

/// The object that publishes the DNS name.
pub fn object() -> PoolKey {
    PoolKey { kind: "FloatingIPPool", namespace: "default".into(), name: "pool".into() }
}

/// The A records of `hello.example.com`.
pub fn hello(provider: DnsProvider) -> RecordName {
    let (zone, name) = ("example.com".into(), "hello.example.com".into());
    RecordName { provider, zone, name, kind: RecordKind::A }
}

/// A record set with these values and the owner ID `us`.
pub fn set(values: &[&str]) -> RecordSet {
    let values = values.iter().map(|value| address(value)).collect();
    RecordSet { values, ttl: Some(60), owner: Some("us".into()) }
}

/// Connects a driver to a fake cloud.
pub fn service<M: Machine>(fake: &Fake<M>) -> HttpService {
    with_deadline(HttpService::new(fake.service()))
}

/// Repeats a call until it is done, as the controller does.
pub async fn finish(
    driver: &dyn AddressDriver,
    mut advance: impl AsyncFnMut() -> Result<Progress, DriverError>,
) -> Result<(), DriverError> {
    for _ in 0..10 {
        let progress = match advance().await {
            Err(DriverError::NotSent(NotSent { wait })) => {
                tokio::time::sleep(wait).await;
                continue;
            }
            progress => progress?,
        };
        let operation = match progress {
            Progress::Done => return Ok(()),
            Progress::Occupied => panic!("the VM has an ephemeral address"),
            Progress::Named(name) => panic!("unexpected PTR name {name}"),
            Progress::Underway(operation) => operation,
        };
        let operations = [operation];
        while let polled = driver.poll(&operations).await.remove(0)?
            && polled != Polled::Ended
        {
            match polled {
                Polled::Failed(error) => return Err(error),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
        if operations[0].completes {
            return Ok(());
        }
    }
    panic!("the change does not finish")
}
