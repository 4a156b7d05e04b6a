//! Clouds and DNS providers: their drivers from settings, what is listed and when, and metrics about every call.

pub mod build;
pub mod external_dns;
pub mod listings;
pub mod metered;
pub mod metrics;
