//! Google Cloud: static external addresses of Compute Engine.

pub mod addresses;
mod bodies;
mod calls;
mod machine_id;

pub use machine_id::machine_of;
