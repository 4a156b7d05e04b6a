//! What is specific to each address driver, on fake clouds in virtual time. What all drivers have in common is in
//! `contract/`.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

#[cfg(feature = "aws")]
mod aws;
mod azure;
mod azure_identity;
mod digitalocean;
mod google;
mod quota;
#[path = "../support/mod.rs"]
mod support;

use drivers::{AddressDriver, DriverError};
use plan::Scope;

use support::{address, finish, vm};

/// The token that the fakes accept.
const TOKEN: &str = "token";

/// Attaches an address, and waits until the VM has it.
async fn attach(
    driver: &dyn AddressDriver,
    scope: &Scope,
    ip: &str,
    machine: &str,
) -> Result<(), DriverError> {
    finish(driver, async || driver.attach(scope, address(ip), &vm(machine)).await).await
}

/// Like [`attach`], but first removes an ephemeral address that is in the way.
async fn replace(
    driver: &dyn AddressDriver,
    scope: &Scope,
    ip: &str,
    machine: &str,
) -> Result<(), DriverError> {
    finish(driver, async || driver.replace(scope, address(ip), &vm(machine)).await).await
}

/// Detaches an address, and waits until the VM no longer has it.
async fn detach(
    driver: &dyn AddressDriver,
    scope: &Scope,
    ip: &str,
    machine: &str,
) -> Result<(), DriverError> {
    finish(driver, async || driver.detach(scope, address(ip), &vm(machine)).await).await
}

/// Gives a VM its ephemeral address back, and waits until it has one.
async fn restore(
    driver: &dyn AddressDriver,
    scope: &Scope,
    ip: &str,
    machine: &str,
) -> Result<(), DriverError> {
    finish(driver, async || driver.restore(scope, address(ip), &vm(machine)).await).await
}
