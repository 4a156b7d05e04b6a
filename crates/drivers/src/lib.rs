//! Cloud drivers. A driver lists and changes; it never chooses.
//!
//! In: the planner's names for addresses and machines, an HTTP service, and a source of tokens. Out: what the cloud says
//! and does. A driver never decides where an address goes, never retries on its own, never waits for an operation other than a
//! creation, and never turns an error into a fact: what it could not read is told as unknown. SDK and JSON types stay inside.
//!
//! Every driver speaks through one injected tower service, so tests put a fake cloud's state machine in its place and
//! run the driver itself unchanged.

mod address;
#[cfg(feature = "aws")]
pub mod aws;
pub mod azure;
pub mod budget;
pub mod cloudflare;
pub mod digitalocean;
mod error;
pub mod google;
pub mod http;
pub mod logs;
pub mod network;
mod provider_id;
pub mod record;
pub mod rfc2136;
pub mod times;
pub mod tokens;

pub use address::{AddressDriver, Listed, Listing, Operation, Polled, Progress, Tags, Traits};
pub use error::{DriverError, NotSent};
pub use provider_id::{machine_of, unsupported};
pub use times::Seconds;
