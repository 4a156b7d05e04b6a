//! Drivers for cloud and DNS providers. A driver lists addresses and changes them; it never decides where an address
//! goes.
//!
//! In: addresses and VMs as the planner names them, an HTTP service, and a source of tokens. Out: the provider's
//! answers and the effects of changes. A driver never retries. It waits for no operation except the creation of an
//! address. It never turns an error into a fact: what it could not read, it reports as unknown. SDK and JSON types stay
//! inside the drivers.
//!
//! Every driver sends its requests through one injected tower service. Tests inject a fake cloud there and run the
//! driver unchanged.

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

pub use address::{AddressDriver, Listed, Listing, Operation, Polled, Progress, Properties, Tags};
pub use error::{DriverError, NotSent};
pub use provider_id::{machine_of, unsupported};
pub use times::Seconds;
