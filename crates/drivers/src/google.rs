//! Google Cloud: static external addresses of Compute Engine.

pub mod addresses;
mod bodies;
mod calls;
mod change;
mod listing;
mod machine_id;
mod operations;

pub use machine_id::machine_of;
