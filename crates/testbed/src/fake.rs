//! Fake clouds: state machines behind a tower service, with a ledger that judges every safety test.
//!
//! In: HTTP requests, either straight from a driver in the same process or over loopback through [`http::serve`].
//! Out: the answers the real cloud would give, at the times it would give them. A fake never helps the caller: it does
//! what it is told, refuses what the real cloud refuses, and writes down every change in its [`Ledger`](ledger::Ledger).
//!
//! ```text
//! driver ──▶ FakeService ──▶ Fault? ──▶ Limit? ──▶ Machine::handle ──▶ answer (perhaps late, cut or lost)
//!                                                        └─▶ Ledger
//! ```
//!
//! Time is tokio's, so a test that pauses the clock gets the same answers in virtual time.

mod call;
pub mod faults;
pub mod http;
pub mod ledger;
pub mod limits;
mod machine;
mod ranges;
mod service;
pub mod signature;
pub(crate) mod xml;

pub mod azure;
pub mod cloudflare;
pub mod compute;
pub mod digitalocean;
pub mod ec2;
pub mod entra;
pub mod metadata;
pub mod route53;
pub mod sts;

pub use self::call::{Answer, Call, Refusal, Route, matches, pairs_of};
pub(crate) use self::call::{names, percent_decoded, route_in};
pub use self::machine::Machine;
pub use self::service::{Fake, FakeService};
