//! What every address driver must do, whatever its cloud: one list of cases, run against each driver and its server.
//!
//! `cases.rs` is the contract. An [`Account`] is a driver together with the cloud it speaks to, and what a person with a
//! console can do there. `just contract` prints the table of cases and drivers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "this is a test"
)]

mod azure;
mod canary;
mod cases;
mod compute;
mod digitalocean;
#[cfg(feature = "aws")]
mod ec2;

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use drivers::NotSent;
use drivers::{AddressDriver, DriverError, Polled, Progress};
use futures::FutureExt;
use plan::{Address, Scope, VmId};
use testbed::fake::faults::Fault;

/// The address that the cases are about. It exists, is in the region of [`ONE`] and [`TWO`], and nobody holds it.
const ADDRESS: &str = "203.0.113.10";

/// An address beside it.
const OTHER: &str = "203.0.113.20";

/// A machine that has no address.
const ONE: &str = "one";

/// Another one, in the same region.
const TWO: &str = "two";

/// One in another region, which the address can't be used in.
const AFAR: &str = "afar";

/// One that never existed.
const GONE: &str = "gone";

/// A driver and the account that it works on.
trait Account {
    /// How the table names it.
    const NAME: &'static str;

    /// An account with the two addresses and three machines.
    async fn new() -> Self;
    fn driver(&self) -> &dyn AddressDriver;
    fn scope(&self) -> Scope;
    fn vm(&self, name: &str) -> VmId;
    /// The region of the addresses and of the first two machines.
    fn region(&self) -> &str;

    /// Lets the next request of a kind go wrong.
    async fn strike(&self, request: Kind, fault: Fault);
    /// Takes away the permission for a kind of request, and says what it is called.
    async fn deny(&self, request: Kind) -> &'static str;
    async fn add_addresses(&self, count: usize);
    async fn remove_address(&self, ip: &str);
    async fn put_on(&self, ip: &str, machine: &str);
    async fn stop(&self, machine: &str);
    async fn remove(&self, machine: &str);
    async fn holder(&self, ip: &str) -> Option<VmId>;
    /// How many changes the cloud has made or begun.
    async fn changes(&self) -> usize;
    /// How often two machines were told to hold one address.
    async fn doubled(&self) -> Vec<String>;

    /// Why the cloud can't fail an operation after it has accepted it, where it can't.
    const NEVER_FAILS_LATE: Option<&'static str> = None;
    /// Why there is only one page, where there is only one.
    const ONE_PAGE: Option<&'static str> = None;
    /// Whether who asks too often is told how long to wait.
    const SAYS_WHEN_TO_RETRY: bool = false;
    /// The calls that the driver says it makes, which its policy is made of; none where the server does not tell.
    const CALLS: &'static [&'static str] = &[];
    /// Those that it has made.
    fn calls(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// A request that changes or lists something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    List,
    Attach,
    Detach,
    Create,
    Release,
}

/// What became of a case.
enum Outcome {
    Passed,
    /// The cloud has no such thing.
    Without(&'static str),
    Failed(String),
}

/// What a case says of itself: nothing where it holds, or why the cloud has no such thing.
type Verdict = Result<(), &'static str>;

/// One driver's outcomes, in the order of the cases.
struct Column {
    name: &'static str,
    outcomes: Vec<(&'static str, Outcome)>,
    /// The calls that were made in all cases together.
    made: BTreeSet<&'static str>,
    /// Those that the driver says it makes.
    listed: BTreeSet<&'static str>,
}

/// Runs a case and takes its panic for its failure.
async fn outcome(case: impl Future<Output = Verdict>) -> Outcome {
    match AssertUnwindSafe(case).catch_unwind().await {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(reason)) => Outcome::Without(reason),
        Err(panic) => Outcome::Failed(said(&*panic)),
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Prints the table, and fails where a case does.
fn judge(columns: &[Column]) {
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
    judge(&[
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
async fn amazons_driver_keeps_the_contract_on_moto() {
    canary::watch();
    let _ = rustls::crypto::ring::default_provider().install_default();
    judge(&[cases::column::<ec2::OnMoto>().await]);
    canary::assert_silent();
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

/// Calls the driver until it is done, as the controller does.
async fn finish(
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
            Progress::Occupied => panic!("it has an address of its own"),
            Progress::Named(name) => panic!("nobody gave it the PTR name {name}"),
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
    panic!("it does not end")
}

async fn attach<A: Account>(account: &A, ip: &str, machine: &str) -> Result<(), DriverError> {
    let (driver, scope, vm) = (account.driver(), account.scope(), account.vm(machine));
    finish(driver, async || driver.attach(&scope, address(ip), &vm).await).await
}

async fn detach<A: Account>(account: &A, ip: &str, machine: &str) -> Result<(), DriverError> {
    let (driver, scope, vm) = (account.driver(), account.scope(), account.vm(machine));
    finish(driver, async || driver.detach(&scope, address(ip), &vm).await).await
}
