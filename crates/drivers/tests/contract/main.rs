//! Contract tests: what every address driver must do, whatever its provider. One list of cases runs against each driver
//! and its server.
//!
//! `cases.rs` is the contract. An [`Account`] is a driver, the fake cloud that it uses, and what a person can change in
//! that cloud. `just contract` prints the table of cases and drivers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "this is a test"
)]

mod azure;
mod cases;
mod compute;
mod digitalocean;
#[cfg(feature = "aws")]
mod ec2;
#[path = "../support/mod.rs"]
mod support;

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use drivers::{AddressDriver, DriverError};
use futures::FutureExt;
use plan::{Scope, VmId};
use testbed::fake::faults::Fault;

use support::{address, canary, finish};

/// The address that the cases use. It exists, is in the region of [`ONE`] and [`TWO`], and is free.
const ADDRESS: &str = "203.0.113.10";

/// A second free address.
const OTHER: &str = "203.0.113.20";

/// A VM without an address.
const ONE: &str = "one";

/// Another VM without an address, in the same region.
const TWO: &str = "two";

/// A VM in another region, where the address can't be used.
const AFAR: &str = "afar";

/// A VM that never existed.
const GONE: &str = "gone";

/// A driver and its account.
trait Account {
    /// The name in the table.
    const NAME: &'static str;

    /// An account with two addresses and three VMs.
    async fn new() -> Self;
    fn driver(&self) -> &dyn AddressDriver;
    fn scope(&self) -> Scope;
    fn vm(&self, name: &str) -> VmId;
    /// The region of the addresses and of the first two VMs.
    fn region(&self) -> &str;

    /// Injects a fault into the next request of a kind.
    async fn inject_fault(&self, request: Kind, fault: Fault);
    /// Denies the permission for a kind of request, and returns the name of the permission.
    async fn deny(&self, request: Kind) -> &'static str;
    async fn add_addresses(&self, count: usize);
    async fn remove_address(&self, ip: &str);
    async fn put_on(&self, ip: &str, machine: &str);
    async fn stop(&self, machine: &str);
    async fn remove(&self, machine: &str);
    async fn holder(&self, ip: &str) -> Option<VmId>;
    /// The number of changes that the fake cloud has made or started.
    async fn changes(&self) -> usize;
    /// The cases in which two VMs held one address.
    async fn doubled(&self) -> Vec<String>;

    /// Why an accepted operation can't fail at this provider. `None` if it can.
    const NEVER_FAILS_LATE: Option<&'static str> = None;
    /// Why listings have only one page. `None` if they can have several.
    const ONE_PAGE: Option<&'static str> = None;
    /// Whether a throttling error says how long to wait.
    const SAYS_WHEN_TO_RETRY: bool = false;
    /// The driver's list of its calls, on which its policy is based. Empty if the server does not report calls.
    const CALLS: &'static [&'static str] = &[];
    /// The calls that the driver has made.
    fn calls(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    List,
    Attach,
    Detach,
    Create,
    Release,
}

/// The result of a case.
enum Outcome {
    Passed,
    /// The case does not apply to the provider.
    Without(&'static str),
    Failed(String),
}

/// What a case returns: `Ok` if it passes, or why it does not apply to the provider.
type Verdict = Result<(), &'static str>;

/// The outcomes of one driver, in the order of the cases.
struct Column {
    name: &'static str,
    outcomes: Vec<(&'static str, Outcome)>,
    /// The calls that the driver made in all cases.
    made: BTreeSet<&'static str>,
    /// The driver's list of its calls.
    listed: BTreeSet<&'static str>,
}

/// Runs a case. A panic is a failure.
async fn outcome(case: impl Future<Output = Verdict>) -> Outcome {
    match AssertUnwindSafe(case).catch_unwind().await {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(reason)) => Outcome::Without(reason),
        Err(panic) => Outcome::Failed(message_of(&*panic)),
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Prints the table, and fails if a case has failed or a driver has made a call that it does not list.
fn report(columns: &[Column]) {
    let Some(first) = columns.first() else { return };
    let width = first.outcomes.iter().map(|(case, _)| case.len()).max().unwrap_or(0);
    let names: Vec<_> = columns.iter().map(|column| column.name).collect();
    println!("{:width$}  {}", "case", names.join("  "));
    for (at, (case, _)) in first.outcomes.iter().enumerate() {
        let cells = columns.iter().map(|column| {
            let word = match column.outcomes[at].1 {
                Outcome::Passed => "yes",
                Outcome::Without(_) => "n/a",
                Outcome::Failed(_) => "NO",
            };
            format!("{word:wide$}", wide = column.name.len())
        });
        println!("{:width$}  {}", case.replace('_', " "), cells.collect::<Vec<_>>().join("  "));
    }
    let mut failed = 0;
    for column in columns {
        for (case, outcome) in &column.outcomes {
            match outcome {
                Outcome::Passed => {}
                Outcome::Without(reason) => println!("n/a {}: {case}: {reason}", column.name),
                Outcome::Failed(message) => {
                    failed += 1;
                    println!("NO {}: {case}: {message}", column.name);
                }
            }
        }
    }
    assert_eq!(failed, 0, "cases failed");
    for Column { name, made, listed, .. } in columns {
        let unlisted: Vec<_> = made.difference(listed).collect();
        assert!(unlisted.is_empty() || listed.is_empty(), "{name}: no policy allows {unlisted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_driver_keeps_the_contract_on_its_fake() {
    canary::watch();
    report(&[
        cases::column::<digitalocean::Ours>().await,
        cases::column::<compute::Ours>().await,
        cases::column::<azure::Ours>().await,
        #[cfg(feature = "aws")]
        cases::column::<ec2::Ours>().await,
    ]);
    canary::assert_silent();
}

#[cfg(feature = "aws")]
#[tokio::test]
#[ignore = "needs Python packages: `just contract` runs it"]
async fn the_aws_driver_keeps_the_contract_on_moto() {
    canary::watch();
    let _ = rustls::crypto::ring::default_provider().install_default();
    report(&[cases::column::<ec2::OnMoto>().await]);
    canary::assert_silent();
}

async fn attach<A: Account>(account: &A, ip: &str, machine: &str) -> Result<(), DriverError> {
    let (driver, scope, vm) = (account.driver(), account.scope(), account.vm(machine));
    finish(driver, async || driver.attach(&scope, address(ip), &vm).await).await
}

async fn detach<A: Account>(account: &A, ip: &str, machine: &str) -> Result<(), DriverError> {
    let (driver, scope, vm) = (account.driver(), account.scope(), account.vm(machine));
    finish(driver, async || driver.detach(&scope, address(ip), &vm).await).await
}
