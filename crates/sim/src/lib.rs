//! The simulator: the controller's own code, and the drivers' own code, in clusters and clouds that exist in memory only.
//!
//! In: a number. Out: a story and a judgement, the same for the same number. Nothing here is a model of the controller: it
//! runs as it does in a pod, but for its edges, which are here a twin of the apiserver ([`apiserver`]), the fake clouds of the
//! testbed, and a network with weather ([`universe`], [`edges`]). Time is the runtime's, and stands still while anything
//! can go on.
//!
//! ```text
//! script (from the seed) ──▶ cluster (people, machines) ──▶ apiserver ◀──▶ controller ◀──▶ clouds ──▶ judge
//!                        └─▶ fleet (processes, weather)
//! ```

pub mod apiserver;
pub mod arrivals;
pub mod broken;
pub mod cluster;
pub mod dice;
pub mod edges;
pub mod grace;
pub mod ipam;
pub mod judge;
mod names;
mod places;
pub mod reduce;
pub mod run;
pub mod rush;
pub mod script;
pub mod universe;
pub mod vips;
