//! Tests of the testbed itself. They need the servers that `just tools` builds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

mod cluster_api;
mod external_dns;
mod nameserver;
mod up_and_down;
