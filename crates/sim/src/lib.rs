//! The simulator runs the controller's own code and the drivers' own code in clusters and clouds that exist only in
//! memory.
//!
//! In: a seed. Out: the event log of the run, and the violated invariants. The same seed always gives the same result.
//! The simulator does not model the controller: the controller runs as it does in a pod. Only its clients are replaced,
//! by a simulated apiserver ([`apiserver`]), the testbed's fake clouds, and a network with faults ([`universe`],
//! [`edges`]). Time is tokio's paused clock: it advances only when no task can make progress.
//!
//! ```text
//! script (from the seed) ──▶ cluster (people, VMs) ──▶ apiserver ◀──▶ controller ◀──▶ clouds ──▶ judge
//!                        └─▶ fleet (processes, network faults)
//! ```
//!
//! A file imports only from files on the lines below its own, and from files to its right on its own line:
//!
//! ```text
//! reduce, run, burst                          whole runs
//! judge, places                               invariants at the end of a run
//! cluster, script, edges                      events caused by people, faults, the clients of a process
//! call_checks, names, journals, broken, vips  parts of the line above; invariants checked during the run
//! ipam
//! universe                                    the shared state of a run, and its record
//! arrivals, grace, refusals, event            data types
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
