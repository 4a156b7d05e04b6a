//! The simulator: the controller's own code, and the drivers' own code, in clusters and clouds that exist in memory only.
//!
//! In: a number. Out: a story and a judgement, the same for the same number. Nothing here is a model of the controller: it
//! runs as it does in a pod, but for its edges, which are here a simulated apiserver ([`apiserver`]), the fake clouds of the
//! testbed, and a network with weather ([`universe`], [`edges`]). Time is the runtime's, and stands still while anything
//! can go on.
//!
//! ```text
//! script (from the seed) ──▶ cluster (people, machines) ──▶ apiserver ◀──▶ controller ◀──▶ clouds ──▶ judge
//!                        └─▶ fleet (processes, weather)
//! ```
//!
//! A file imports only files on lines below its own, and on its own line only those to its right:
//!
//! ```text
//! reduce, run, burst                           whole runs
//! judge, places                               what must be so in the end
//! cluster, script, edges                      what people do, what goes wrong, what a process sees of the world
//! call_checks, names, journals, broken, vips  parts of that, with what must never happen to them
//! ipam
//! universe                                    the world of a run, and its record
//! arrivals, grace, refusals, event            facts and words
//! objects, clouds, options, apiserver
//! violation, rng, lock
//! ```

pub mod apiserver;
pub mod arrivals;
pub mod broken;
pub mod burst;
mod call_checks;
pub mod clouds;
pub mod cluster;
pub mod edges;
pub mod event;
pub mod grace;
pub mod ipam;
mod journals;
pub mod judge;
mod lock;
mod names;
mod objects;
pub mod options;
mod places;
pub mod reduce;
pub mod refusals;
pub mod rng;
pub mod run;
pub mod script;
pub mod universe;
pub mod violation;
pub mod vips;
