//! Tests on the real control plane: `just e2e [filter]`. They need the servers that `just tools` builds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

mod binary;
mod capi;
mod clouds;
mod creation;
mod deletion;
mod differential;
mod dns;
mod faults;
mod flipop;
mod largest;
mod leadership;
mod manifests;
mod monitoring;
mod netipallocation;
mod packaging;
mod picture;
mod pools;
mod resources;
mod rig;
mod scale;
mod side;
mod side_by_side;
mod skeleton;
mod testbed_itself;
mod undecodable;
mod upgrade;
mod upgrade_mends;
mod workloads;
