//! What several test binaries of the drivers share: constructors of the values that the tests pass to drivers, and the
//! DNS name that they publish. `canary.rs` has the test secrets, and the search for them in the log.
//!
//! Cargo takes each file in `tests` for a test binary, so this module is a folder with a `mod.rs`.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

pub mod canary;

use plan::{Address, DnsProvider, PoolKey, Provider, RecordKind, RecordName, RecordSet, Scope, VmId};

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
