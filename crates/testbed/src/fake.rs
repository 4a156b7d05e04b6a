//! Fake clouds: each is a state machine behind a tower service, with a ledger that safety tests check.
//!
//! In: HTTP requests, either from a driver in the same process or over loopback through [`http::serve`]. Out: the
//! answers that the real cloud would give, with the same delays. A fake never helps the caller: it does exactly what
//! the request says, refuses what the real cloud refuses, and records every change in its [`Ledger`](ledger::Ledger).
//!
//! ```text
//! driver ──▶ FakeService ──▶ Fault? ──▶ Limit? ──▶ Machine::handle ──▶ answer (perhaps late, cut or lost)
//!                                                        └─▶ Ledger
//! ```
//!
//! The fakes use tokio's clock. A test that pauses the clock gets the same answers in virtual time.

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
