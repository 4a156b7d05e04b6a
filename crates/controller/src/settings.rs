//! Flags and environment variables, under the names that users of the originals already have.

use std::path::PathBuf;

use clap::Parser;

/// Keeps IP addresses where workloads need them.
#[derive(Clone, Debug, Parser)]
#[command(name = "ip-address-controller", version)]
pub struct Settings {
    /// Path of a kubeconfig. Without it: the pod's own account, or else the usual kubeconfig
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,

    /// Port of /metrics
    #[arg(long, env = "METRICS_PORT", default_value_t = 9999)]
    pub metrics_port: u16,

    /// Port of /healthz, /readyz and, for those who look there, /metrics
    #[arg(long, env = "HEALTH_PORT", default_value_t = 8080)]
    pub health_port: u16,

    /// The version that metrics tell; by default the build's
    #[arg(long, env = "CONTROLLER_VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub controller_version: String,

    /// A token for DigitalOcean
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN", hide_env_values = true)]
    pub digitalocean_access_token: Option<String>,

    /// A file with a token for DigitalOcean, read again for every call
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN_FILE")]
    pub digitalocean_access_token_file: Option<PathBuf>,

    /// Where DigitalOcean's API is
    #[arg(long, env = "DIGITALOCEAN_API_URL", default_value = drivers::digitalocean::DEFAULT_URL)]
    pub digitalocean_api_url: String,

    /// Where Compute Engine's API is
    #[arg(long, env = "GOOGLE_COMPUTE_CUSTOM_ENDPOINT", default_value = drivers::compute::DEFAULT_URL)]
    pub google_compute_custom_endpoint: String,
}
