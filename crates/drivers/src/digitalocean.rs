//! DigitalOcean: reserved IPs and DNS records.

pub mod addresses;
mod bodies;
mod calls;
mod machine_id;
pub mod records;

pub use calls::{DEFAULT_URL, permission_of};
pub use machine_id::machine_of;
