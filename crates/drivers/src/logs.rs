//! Which log lines may be shown, so that no credential reaches a log whatever level a user asks for.
//!
//! In: where a line comes from and its level. Out: whether it may be shown. Only this repository's own crates, which never log a
//! credential, may log everything. Libraries are limited, because the next version of any of them may print a request:
//!
//! ```text
//! our own crates                      every level
//! kube                                debug: its trace shows headers and bodies
//! SDKs that hold credentials          nothing: their lines repeat requests, answers and identities
//! every other library                 warn
//! ```
//!
//! What goes wrong in an SDK is in the error that its driver reports.

use tracing::Metadata;
use tracing::level_filters::LevelFilter;

/// Our own crates, and the target that capi-vip-allocator's users look for.
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

/// How the names of SDKs' crates begin.
const SDKS: [&str; 4] = ["aws_", "azure_", "google_cloud_", "typespec"];

/// The most verbose level that a target may log at.
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

/// Whether a line or span may be shown, whatever a user asks for.
pub fn may_show(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= level_max(metadata.target())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_crates_log_everything() {
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
