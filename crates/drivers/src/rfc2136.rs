//! DNS servers with dynamic updates (RFC 2136).

pub mod records;
