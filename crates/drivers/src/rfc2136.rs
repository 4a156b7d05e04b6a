//! Name servers that take dynamic updates (RFC 2136): DNS records.

pub mod records;
