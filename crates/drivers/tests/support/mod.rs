//! What several test binaries of the drivers share. `canary.rs` has the test secrets, and the search for them in the
//! log.
//!
//! Cargo takes each file in `tests` for a test binary, so this module is a folder with a `mod.rs`.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

pub mod canary;
