//! Cloudflare: DNS records.

pub mod records;
