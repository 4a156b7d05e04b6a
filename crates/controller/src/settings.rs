//! Flags and environment variables of the controller.
//!
//! In: the arguments and the environment of the process. Out: plain data. The names are those of the Python controller,
//! FLIPOP and capi-vip-allocator, so that existing manifests continue to work. The doc comment of a field is its text
//! in `--help`.

mod manager;
mod values;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use plan::leadership::LEASE_MAX;

use self::manager::{LogLevel, ManagerFlags};
pub use self::values::LogFormat;
use self::values::boolean;
use crate::backoff::Retry;
use crate::bind_address::BindAddress;

/// Kubernetes controller that keeps IP addresses on nodes, publishes DNS records, and allocates VIPs for Cluster API
#[derive(Clone, Debug, Parser)]
#[command(name = "ip-address-controller", version)]
pub struct Settings {
    /// Path of a kubeconfig. Default: the ServiceAccount of the pod, or else the default kubeconfig of the user
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,

    /// Port of /metrics
    #[arg(long, env = "METRICS_PORT", default_value_t = 9999)]
    pub metrics_port: u16,

    /// Port of /healthz and /readyz. It also serves /metrics
    #[arg(long, env = "HEALTH_PORT", default_value_t = 8080)]
    pub health_port: u16,

    /// Name of the Lease for leader election. Installations that manage the same objects must use the same
    /// Lease. Default: ip-address-controller-leader. With --enable-addresses=false, the default is
    /// capi-vip-allocator.gorizond.io
    #[arg(long, env = "LEASE_NAME")]
    pub lease_name: Option<String>,

    /// Namespace of the Lease. Default: kube-system. With --enable-addresses=false, the default is the
    /// namespace of the pod
    #[arg(long, env = "LEASE_NAMESPACE")]
    pub lease_namespace: Option<String>,

    /// Lease duration in seconds. If the leader does not renew the Lease for this long, another replica takes over
    #[arg(long, env = "LEASE_DURATION", default_value_t = 60, value_parser = clap::value_parser!(u64).range(3..=LEASE_MAX.as_secs()))]
    pub lease_duration: u64,

    /// How many seconds after the lease of a leader has expired one of its requests can still take effect. A new leader
    /// waits for this long before it acts. After a request without an answer, the controller waits for this long before
    /// it changes the same address again
    #[arg(long, env = "TAKEOVER_SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub takeover_seconds: u64,

    /// Backoff in seconds after the first failure of a change. Each further failure doubles it
    #[arg(long, env = "RETRY_SECONDS_MIN", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub retry_seconds_min: u64,

    /// Maximum backoff in seconds before the controller retries a failed change
    #[arg(long, env = "RETRY_SECONDS_MAX", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub retry_seconds_max: u64,

    /// Maximum number of addresses that the controller creates, over all accounts and pools. 0: it creates none.
    /// Existing addresses stay
    #[arg(long, env = "CREATED_ADDRESSES_MAX", default_value_t = 1_000)]
    pub created_addresses_max: usize,

    /// Identity of this replica in the Lease and in metrics. Default: the hostname, which is the name of the pod
    #[arg(long, env = "POD_NAME", default_value_t = identity())]
    pub identity: String,

    /// Namespace of the pod. While a FLIPOP leads in this namespace, the controller stands by. Default: the namespace
    /// of the Lease
    #[arg(long, env = "POD_NAMESPACE")]
    pub pod_namespace: Option<String>,

    /// Node that the pod runs on. Before the leader changes the address of this node, it hands over the lease
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,

    /// Value of the label `cluster` of all metrics. Default: metrics do not have this label
    #[arg(long, env = "CLUSTER_NAME")]
    pub cluster_name: Option<String>,

    /// Accepted without effect: the controller always uses leader election
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true, value_parser = boolean)]
    pub leader_elect: bool,

    /// Manage public addresses and DNS names. false: the controller manages VIPs only
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true, value_parser = boolean)]
    pub enable_addresses: bool,

    /// Allocate VIPs for Clusters of Cluster API
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true, value_parser = boolean)]
    pub enable_reconciler: bool,

    /// Serve runtime hooks of Cluster API. Cluster API then creates nothing for a Cluster before the Cluster has its
    /// VIP
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false, value_parser = boolean)]
    pub enable_runtime_extension: bool,

    /// Port of the runtime hooks
    #[arg(long, default_value_t = 9443)]
    pub runtime_extension_port: u16,

    /// Prefix of the names of the runtime hook handlers
    #[arg(long, default_value = "vip-allocator")]
    pub runtime_extension_name: String,

    /// Directory with tls.crt and tls.key for the runtime hooks. The controller reads both again when they change
    #[arg(long, default_value = "/tmp/runtime-extension/serving-certs")]
    pub runtime_extension_cert_dir: PathBuf,

    /// Port of the endpoint of a Cluster that does not set one
    #[arg(long, default_value_t = 6443, value_parser = clap::value_parser!(u16).range(1..))]
    pub default_port: u16,

    /// Version that the metrics show
    #[arg(long, env = "CONTROLLER_VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub controller_version: String,

    /// Format of log lines
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Token for DigitalOcean
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN", hide_env_values = true)]
    pub digitalocean_access_token: Option<Secret>,

    /// File with the token for DigitalOcean. The controller reads it for every call. Overrides
    /// DIGITALOCEAN_ACCESS_TOKEN
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN_FILE")]
    pub digitalocean_access_token_file: Option<PathBuf>,

    /// Endpoint URL of the DigitalOcean API
    #[arg(long, env = "DIGITALOCEAN_API_URL", default_value = drivers::digitalocean::DEFAULT_URL)]
    pub digitalocean_api_url: String,

    /// Rate limit of the DigitalOcean account, in requests a minute
    #[arg(long, env = "DIGITALOCEAN_REQUESTS_PER_MINUTE", default_value_t = drivers::digitalocean::addresses::REQUESTS_PER_MINUTE)]
    pub digitalocean_requests_per_minute: usize,

    /// Rate limit of the DigitalOcean account, in requests an hour
    #[arg(long, env = "DIGITALOCEAN_REQUESTS_PER_HOUR", default_value_t = drivers::digitalocean::addresses::REQUESTS_PER_HOUR)]
    pub digitalocean_requests_per_hour: usize,

    /// Token for Cloudflare
    #[arg(long, env = "CLOUDFLARE_TOKEN", hide_env_values = true)]
    pub cloudflare_token: Option<Secret>,

    /// File with the token for Cloudflare. The controller reads it for every call. Overrides CLOUDFLARE_TOKEN
    #[arg(long, env = "CLOUDFLARE_TOKEN_FILE")]
    pub cloudflare_token_file: Option<PathBuf>,

    /// Endpoint URL of the Cloudflare API
    #[arg(long, env = "CLOUDFLARE_API_URL", default_value = drivers::cloudflare::records::DEFAULT_URL)]
    pub cloudflare_api_url: String,

    /// Maximum number of requests to Cloudflare in five minutes. Cloudflare allows 1,200 for each user, including the
    /// dashboard
    #[arg(long, env = "CLOUDFLARE_REQUESTS_PER_FIVE_MINUTES", default_value_t = drivers::cloudflare::records::REQUESTS_PER_FIVE_MINUTES)]
    pub cloudflare_requests_per_five_minutes: usize,

    /// DNS server that accepts dynamic updates (RFC 2136) over TCP, as host:port
    #[arg(long, env = "RFC2136_SERVER")]
    pub rfc2136_server: Option<String>,

    /// Name of the TSIG key that signs dynamic updates. Default: none, updates are not signed
    #[arg(long, env = "RFC2136_TSIG_KEY_NAME")]
    pub rfc2136_tsig_key_name: Option<String>,

    /// Secret of the TSIG key, in base64
    #[arg(long, env = "RFC2136_TSIG_SECRET", hide_env_values = true)]
    pub rfc2136_tsig_secret: Option<Secret>,

    /// File with the secret of the TSIG key. The controller reads it for every message. Overrides RFC2136_TSIG_SECRET
    #[arg(long, env = "RFC2136_TSIG_SECRET_FILE")]
    pub rfc2136_tsig_secret_file: Option<PathBuf>,

    /// Algorithm of the TSIG key: hmac-sha256, hmac-sha384 or hmac-sha512
    #[arg(long, env = "RFC2136_TSIG_ALGORITHM", default_value = "hmac-sha256")]
    pub rfc2136_tsig_algorithm: String,

    /// AWS region of requests that have none of their own, such as those to Route 53. Requests for addresses use the
    /// region of the nodes. Default: us-east-1
    #[arg(long, env = "AWS_REGION", default_value = "")]
    pub aws_region: String,

    /// Percentage of AWS's default rate limits that the controller uses. Set less than 100 if other clients share the
    /// account, and more if it has higher limits
    #[arg(long, env = "AWS_REQUESTS_PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub aws_requests_percent: u32,

    /// Percentage of Azure's default rate limits that the controller uses. Set less than 100 if other clients share the
    /// subscription, and more if it has higher limits
    #[arg(long, env = "AZURE_REQUESTS_PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub azure_requests_percent: u32,

    /// Overrides the AWS endpoint URL
    #[arg(long, env = "AWS_ENDPOINT_URL")]
    pub aws_endpoint_url: Option<String>,

    /// Owner ID of the DNS records that this cluster publishes. Default: the UID of the namespace kube-system
    #[arg(long, env = "DNS_OWNER_ID")]
    pub dns_owner_id: Option<String>,

    /// Rate limit of each Google Cloud project, in requests a minute
    #[arg(long, env = "GOOGLE_REQUESTS_PER_MINUTE", default_value_t = drivers::google::addresses::REQUESTS_PER_MINUTE)]
    pub google_requests_per_minute: usize,

    /// Endpoint URL of the Compute Engine API
    #[arg(long, env = "GOOGLE_COMPUTE_CUSTOM_ENDPOINT", default_value = drivers::google::addresses::DEFAULT_URL)]
    pub google_compute_custom_endpoint: String,

    /// Azure tenant ID of the controller's identity
    #[arg(long, env = "AZURE_TENANT_ID", default_value = "")]
    pub azure_tenant_id: String,

    /// Azure client ID of the controller's identity: an application, or one of several managed identities of the node
    #[arg(long, env = "AZURE_CLIENT_ID")]
    pub azure_client_id: Option<String>,

    /// Client secret of the Azure application. Without it, the controller uses workload identity or a managed identity
    #[arg(long, env = "AZURE_CLIENT_SECRET", hide_env_values = true)]
    pub azure_client_secret: Option<Secret>,

    /// File with the ServiceAccount token that the controller exchanges for an Azure token. Azure workload identity
    /// sets it
    #[arg(long, env = "AZURE_FEDERATED_TOKEN_FILE")]
    pub azure_federated_token_file: Option<PathBuf>,

    /// Endpoint URL for Azure tokens. Default: that of the public cloud
    #[arg(long, env = "AZURE_AUTHORITY_HOST")]
    pub azure_authority_host: Option<String>,

    /// Endpoint URL of Azure Resource Manager
    #[arg(long, env = "AZURE_RESOURCE_MANAGER_ENDPOINT", default_value = drivers::azure::addresses::DEFAULT_URL)]
    pub azure_resource_manager_endpoint: String,

    /// Azure resource group in which the controller creates addresses. Default: it creates none
    #[arg(long, env = "AZURE_RESOURCE_GROUP")]
    pub azure_resource_group: Option<String>,

    /// Flags that capi-vip-allocator has from controller-runtime.
    #[command(flatten)]
    pub manager: ManagerFlags,
}

impl Settings {
    /// Parses the arguments and the environment of this process. Prints an error and exits if they are invalid.
    pub fn of_this_process() -> Self {
        Self::parse_from(with_two_dashes(std::env::args_os()))
    }

    /// The bind address of /healthz and /readyz.
    pub fn health_address(&self) -> BindAddress {
        let given = self.manager.health_probe_bind_address.clone();
        given.unwrap_or_else(|| BindAddress::every(self.health_port))
    }

    /// The bind address of /metrics.
    pub fn metrics_address(&self) -> BindAddress {
        let given = self.manager.metrics_bind_address.clone();
        given.unwrap_or_else(|| BindAddress::every(self.metrics_port))
    }

    /// The format of log lines, from the flags of zap or else from `LOG_FORMAT`.
    pub fn log_format(&self) -> LogFormat {
        self.manager.log_format().unwrap_or(self.log_format)
    }

    /// The log filter if `RUST_LOG` is not set. Levels above info apply to the crates of this project only, because
    /// debug lines of HTTP libraries would drown the rest.
    pub fn log_filter(&self) -> String {
        match self.manager.log_level().unwrap_or(LogLevel::Info) {
            level @ (LogLevel::Error | LogLevel::Info) => level.name().into(),
            level => format!("info,controller={0},drivers={0},plan={0}", level.name()),
        }
    }

    /// Namespace and name of the Lease for leader election. An installation that manages VIPs only uses the Lease of
    /// capi-vip-allocator, so that at most one of the two leads.
    pub fn lease(&self) -> (String, String) {
        let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (namespace, name) = match self.enable_addresses {
            true => (None, "ip-address-controller-leader"),
            false => (named(&self.pod_namespace), "capi-vip-allocator.gorizond.io"),
        };
        let namespace = named(&self.lease_namespace).or(namespace).unwrap_or_else(|| "kube-system".into());
        (namespace, named(&self.lease_name).unwrap_or_else(|| name.into()))
    }

    /// Options for VIPs, or none if neither the reconciler nor the runtime extension is enabled.
    pub fn vips(&self) -> Option<VipOptions> {
        let has_vips = self.enable_reconciler || self.enable_runtime_extension;
        has_vips.then_some(VipOptions { allocates: self.enable_reconciler, default_port: self.default_port })
    }

    /// Backoff after failures.
    pub fn retry(&self) -> Retry {
        let [shortest, longest] = [self.retry_seconds_min, self.retry_seconds_max].map(Duration::from_secs);
        Retry { shortest, longest }
    }
}

/// A secret setting. Its `Debug` output does not contain the value.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// The value of the setting.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Options for VIPs of Cluster API.
#[derive(Clone, Debug)]
pub struct VipOptions {
    /// Whether the controller allocates VIPs. If false, it only answers runtime hooks.
    pub allocates: bool,
    /// Port of the endpoint of a Cluster that does not set one.
    pub default_port: u16,
}

/// Adds the second dash to a long flag that has only one, such as `-zap-log-level`: Go programs accept both forms. A
/// flag of one letter, such as `-V`, stays as it is.
fn with_two_dashes(arguments: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.into_iter().map(|argument| {
        let name = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let is_word =
            name.is_some_and(|name| name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic()));
        match name.filter(|_| is_word) {
            Some(name) => format!("--{name}").into(),
            None => argument,
        }
    })
}

fn identity() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(arguments: &[&str]) -> Settings {
        parsed(arguments).unwrap()
    }

    fn parsed(arguments: &[&str]) -> Result<Settings, clap::Error> {
        let arguments = ["ip-address-controller"].iter().chain(arguments).map(OsString::from);
        Settings::try_parse_from(with_two_dashes(arguments))
    }

    #[test]
    fn v6_the_flags_of_the_vip_allocator_have_its_defaults() {
        let settings = settings(&[]);
        assert!(settings.enable_reconciler && !settings.enable_runtime_extension);
        assert_eq!((settings.runtime_extension_port, settings.default_port), (9443, 6443));
    }

    #[test]
    fn v6_the_flags_in_the_vip_allocators_manifests_are_accepted() {
        let as_written = [
            "--leader-elect",
            "--enable-runtime-extension=false",
            "--runtime-extension-port=9443",
            "--enable-reconciler=true",
            "--default-port=6443",
        ];
        assert!(settings(&as_written).vips().is_some_and(|options| options.allocates));
        let changed = ["--enable-reconciler=false", "--enable-runtime-extension", "--default-port=8443"];
        let options = settings(&changed).vips().unwrap();
        assert_eq!((options.allocates, options.default_port), (false, 8443));
    }

    #[test]
    fn v6_without_the_reconciler_addresses_are_still_managed() {
        let settings = settings(&["--enable-reconciler=false"]);
        assert!(settings.vips().is_none() && settings.enable_addresses);
    }

    #[test]
    fn v6_controller_runtimes_flags_set_the_bind_addresses() {
        let addresses = |arguments: &[&str]| {
            let settings = settings(arguments);
            [settings.metrics_address(), settings.health_address()].map(|address| address.to_string())
        };
        assert_eq!(addresses(&[]), [":9999", ":8080"]);
        let both = ["--metrics-bind-address=127.0.0.1:8443", "--health-probe-bind-address=:8081"];
        assert_eq!(addresses(&both), ["127.0.0.1:8443", ":8081"]);
        let with_ports = [&both[..], &["--metrics-port=1", "--health-port=2"]].concat();
        assert_eq!(addresses(&with_ports), ["127.0.0.1:8443", ":8081"], "an address overrides a port");
        assert_eq!(addresses(&["--metrics-bind-address=0", "--health-probe-bind-address=0"]), ["0", "0"]);
        assert_eq!(addresses(&["--metrics-bind-address=", "--health-probe-bind-address="]), [":8080", "0"]);
        assert!(parsed(&["--metrics-bind-address=8080"]).is_err());
    }

    #[test]
    fn v6_zaps_flags_set_log_level_and_format() {
        let log = |arguments: &[&str]| {
            let settings = settings(arguments);
            (settings.log_filter(), settings.log_format())
        };
        let debug = || "info,controller=debug,drivers=debug,plan=debug".to_owned();
        assert_eq!(log(&[]), ("info".into(), LogFormat::Text));
        assert_eq!(log(&["--zap-devel"]), (debug(), LogFormat::Text));
        assert_eq!(log(&["--zap-devel=false"]), ("info".into(), LogFormat::Json));
        assert_eq!(log(&["--zap-devel=false", "--zap-encoder=console"]).1, LogFormat::Text);
        assert_eq!(log(&["--zap-encoder=JSON", "--log-format=text"]).1, LogFormat::Json);
        assert_eq!(log(&["--zap-devel", "--zap-log-level=error"]).0, "error");
        assert_eq!([log(&["--zap-log-level=1"]).0, log(&["--zap-log-level=DEBUG"]).0], [debug(), debug()]);
        assert!(log(&["--zap-log-level=9"]).0.contains("controller=trace"));
        assert!(parsed(&["--zap-log-level=0"]).is_err() && parsed(&["--zap-encoder=xml"]).is_err());
        settings(&["--zap-stacktrace-level=panic", "--zap-time-encoding=iso8601"]);
    }

    #[test]
    fn v6_flags_are_accepted_in_every_form_that_go_accepts() {
        assert!(settings(&["-leader-elect", "-enable-reconciler", "-kubeconfig", "file"]).enable_reconciler);
        assert!(!settings(&["-enable-reconciler=False"]).enable_reconciler);
        assert!(!settings(&["--enable-reconciler=0", "-leader-elect=T"]).enable_reconciler);
        assert_eq!(settings(&["-kubeconfig=file"]).kubeconfig, Some(PathBuf::from("file")));
        assert!(parsed(&["--enable-reconciler=yes"]).is_err());
        assert!(parsed(&["-V"]).unwrap_err().to_string().contains(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn debug_output_of_settings_contains_no_secret() {
        let settings = settings(&[
            "--digitalocean-access-token=canary",
            "--cloudflare-token=canary",
            "--rfc2136-tsig-secret=canary",
            "--azure-client-secret=canary",
        ]);
        let printed = format!("{settings:?} {settings:#?}");
        assert!(!printed.contains("canary"), "{printed}");
        assert_eq!(settings.cloudflare_token.unwrap().text(), "canary");
    }

    #[test]
    fn without_addresses_the_lease_is_that_of_the_vip_allocator() {
        let lease = |arguments: &[&str]| {
            let (namespace, name) = settings(arguments).lease();
            format!("{namespace}/{name}")
        };
        let alone = ["--enable-addresses=false", "--pod-namespace=capi-system"];
        assert_eq!(lease(&alone), "capi-system/capi-vip-allocator.gorizond.io");
        assert_eq!(lease(&["--pod-namespace=flipop"]), "kube-system/ip-address-controller-leader");
        assert_eq!(lease(&["--lease-name=mine", "--lease-namespace=here"]), "here/mine");
    }
}
