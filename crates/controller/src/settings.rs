//! Flags and environment variables, under the names that users of the originals already have.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::rounds::Retry;

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

    /// The Lease that all copies share
    #[arg(long, env = "LEASE_NAME", default_value = "ip-address-controller-leader")]
    pub lease_name: String,

    /// The Lease's namespace
    #[arg(long, env = "LEASE_NAMESPACE", default_value = "kube-system")]
    pub lease_namespace: String,

    /// How many seconds a leader that says nothing is still believed to lead
    #[arg(long, env = "LEASE_DURATION", default_value_t = 60, value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub lease_duration: u64,

    /// D: how many seconds after a leader's end one of its requests can still take effect. A new leader waits so long, and
    /// so does everything about an address after a request without an answer
    #[arg(long, env = "TAKEOVER_SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub takeover_seconds: u64,

    /// How many seconds after its first failure a change is tried again; each further failure doubles it
    #[arg(long, env = "RETRY_SECONDS_MIN", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub retry_seconds_min: u64,

    /// The longest pause, in seconds, before a change that failed is tried again
    #[arg(long, env = "RETRY_SECONDS_MAX", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub retry_seconds_max: u64,

    /// Who we are among the candidates; by default the pod's name
    #[arg(long, env = "POD_NAME", default_value_t = identity())]
    pub identity: String,

    /// The namespace that we run in: while a FLIPOP leads there, we wait. By default the Lease's
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: Option<String>,

    /// The node that we run on. A leader whose own node is about to give up its address hands over first
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,

    /// The cluster's name: metrics carry it in the label `cluster`
    #[arg(long, env = "CLUSTER_NAME")]
    pub cluster_name: Option<String>,

    /// Accepted for those who set it: the lease is always held, because the fence rests on it
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true)]
    pub leader_elect: bool,

    /// The version that metrics tell; by default the build's
    #[arg(long, env = "CONTROLLER_VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub controller_version: String,

    /// How log lines are written
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// A token for DigitalOcean
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN", hide_env_values = true)]
    pub digitalocean_access_token: Option<String>,

    /// A file with a token for DigitalOcean, read again for every call
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN_FILE")]
    pub digitalocean_access_token_file: Option<PathBuf>,

    /// Where DigitalOcean's API is
    #[arg(long, env = "DIGITALOCEAN_API_URL", default_value = drivers::digitalocean::DEFAULT_URL)]
    pub digitalocean_api_url: String,

    /// How many requests a minute DigitalOcean allows this account
    #[arg(long, env = "DIGITALOCEAN_REQUESTS_PER_MINUTE", default_value_t = drivers::digitalocean::REQUESTS_PER_MINUTE)]
    pub digitalocean_requests_per_minute: usize,

    /// How many requests an hour DigitalOcean allows this account
    #[arg(long, env = "DIGITALOCEAN_REQUESTS_PER_HOUR", default_value_t = drivers::digitalocean::REQUESTS_PER_HOUR)]
    pub digitalocean_requests_per_hour: usize,

    /// A token for Cloudflare
    #[arg(long, env = "CLOUDFLARE_TOKEN", hide_env_values = true)]
    pub cloudflare_token: Option<String>,

    /// A file with a token for Cloudflare, read again for every call
    #[arg(long, env = "CLOUDFLARE_TOKEN_FILE")]
    pub cloudflare_token_file: Option<PathBuf>,

    /// Where Cloudflare's API is
    #[arg(long, env = "CLOUDFLARE_API_URL", default_value = drivers::cloudflare::DEFAULT_URL)]
    pub cloudflare_api_url: String,

    /// How many requests in five minutes we make of what Cloudflare allows the token's user
    #[arg(long, env = "CLOUDFLARE_REQUESTS_PER_FIVE_MINUTES", default_value_t = drivers::cloudflare::REQUESTS_PER_FIVE_MINUTES)]
    pub cloudflare_requests_per_five_minutes: usize,

    /// Host and port of a name server that takes dynamic updates over TCP
    #[arg(long, env = "RFC2136_SERVER")]
    pub rfc2136_server: Option<String>,

    /// The name of the TSIG key that signs dynamic updates
    #[arg(long, env = "RFC2136_TSIG_KEY_NAME")]
    pub rfc2136_tsig_key_name: Option<String>,

    /// The TSIG key's secret, in base64
    #[arg(long, env = "RFC2136_TSIG_SECRET", hide_env_values = true)]
    pub rfc2136_tsig_secret: Option<String>,

    /// A file with the TSIG key's secret, read again for every message
    #[arg(long, env = "RFC2136_TSIG_SECRET_FILE")]
    pub rfc2136_tsig_secret_file: Option<PathBuf>,

    /// The TSIG key's algorithm: hmac-sha256, hmac-sha384 or hmac-sha512
    #[arg(long, env = "RFC2136_TSIG_ALGORITHM", default_value = "hmac-sha256")]
    pub rfc2136_tsig_algorithm: String,

    /// What our mark on DNS records says. By default the UID of the namespace kube-system, which is the cluster's
    #[arg(long, env = "DNS_OWNER_ID")]
    pub dns_owner_id: Option<String>,

    /// How many requests a minute Google Cloud allows this project
    #[arg(long, env = "GOOGLE_REQUESTS_PER_MINUTE", default_value_t = drivers::compute::REQUESTS_PER_MINUTE)]
    pub google_requests_per_minute: usize,

    /// Where Compute Engine's API is
    #[arg(long, env = "GOOGLE_COMPUTE_CUSTOM_ENDPOINT", default_value = drivers::compute::DEFAULT_URL)]
    pub google_compute_custom_endpoint: String,
}

impl Settings {
    /// Pauses after failures.
    pub fn retry(&self) -> Retry {
        let [shortest, longest] = [self.retry_seconds_min, self.retry_seconds_max].map(Duration::from_secs);
        Retry { shortest, longest }
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one JSON object a line.
    Json,
}

fn identity() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
