//! Clouds and DNS providers: creates their drivers from the settings, schedules listings, and counts every call.

pub mod build;
pub mod external_dns;
pub mod listings;
pub mod metered;
pub mod metrics;
