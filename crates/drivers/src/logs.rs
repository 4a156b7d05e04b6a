//! Decides which log lines may be written, so that no credential gets into the log at any log level.
//!
//! In: the target and the level of a line. Out: whether it may be written. Only the crates of this repository may log
//! at every level, because they never log a credential. Libraries are limited, because a new version of a library may
//! log requests:
//!
//! ```text
//! crates of this repository           every level
//! kube                                debug: at trace it logs headers and bodies
//! SDKs that hold credentials          nothing: they log requests, responses and identities
//! every other library                 warn
//! ```
//!
//! If an SDK fails, the driver reports the error.

use tracing::Metadata;
use tracing::level_filters::LevelFilter;

/// The crates of this repository, and the log target that users of capi-vip-allocator search for.
const OURS: [&str; 8] = [
    "api",
    "controller",
    "controllers.Cluster",
    "drivers",
    "ip_address_controller",
    "plan",
    "sim",
    "testbed",
];

const KUBE: [&str; 4] = ["kube", "kube_client", "kube_core", "kube_runtime"];

/// Prefixes of the names of SDK crates.
const SDKS: [&str; 4] = ["aws_", "azure_", "google_cloud_", "typespec"];

/// The most verbose level at which a target may log.
pub fn level_max(target: &str) -> LevelFilter {
    let name = target.split("::").next().unwrap_or_default();
    if OURS.contains(&name) {
        LevelFilter::TRACE
    } else if KUBE.contains(&name) {
        LevelFilter::DEBUG
    } else if SDKS.iter().any(|sdk| name.starts_with(sdk)) {
        LevelFilter::OFF
    } else {
        LevelFilter::WARN
    }
}

/// Whether a line or span may be written, whatever log level the user sets.
pub fn may_show(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= level_max(metadata.target())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crates_of_this_repository_log_at_every_level() {
        for ours in ["drivers::http", "controller::rounds", "controllers.Cluster", "ip_address_controller"] {
            assert_eq!(level_max(ours), LevelFilter::TRACE, "{ours}");
        }
        assert_eq!(level_max("kube_client::client"), LevelFilter::DEBUG);
        for library in ["hyper_util::client", "h2::codec", "reqwest", "rustls::client", "driversx", ""] {
            assert_eq!(level_max(library), LevelFilter::WARN, "{library}");
        }
        for sdk in ["aws_config", "aws_sigv4::http_request", "azure_identity", "typespec_client_core::http"] {
            assert_eq!(level_max(sdk), LevelFilter::OFF, "{sdk}");
        }
    }
}
