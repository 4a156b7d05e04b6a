//! Azure: public IP addresses, and the credentials for them.

pub mod addresses;
mod bodies;
mod calls;
pub mod identity;
mod ids;
mod interface;
mod machine_id;

pub use machine_id::{machine_of, unsupported};
