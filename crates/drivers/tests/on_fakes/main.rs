//! What is specific to each address driver, on fake clouds in virtual time. What all drivers have in common is in
//! `contract/`.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

#[cfg(feature = "aws")]
mod aws;
mod azure;
mod azure_identity;
mod digitalocean;
mod google;
#[path = "../support/mod.rs"]
mod support;

/// The token that the fakes accept.
const TOKEN: &str = "token";
