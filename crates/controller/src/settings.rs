//! Flags and environment variables, under the names that users of the originals already have.

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

    /// The Lease that all copies share. By default ip-address-controller-leader, and capi-vip-allocator.gorizond.io for those
    /// that do VIPs alone
    #[arg(long, env = "LEASE_NAME")]
    pub lease_name: Option<String>,

    /// The Lease's namespace. By default kube-system, and our own for those that do VIPs alone
    #[arg(long, env = "LEASE_NAMESPACE")]
    pub lease_namespace: Option<String>,

    /// How many seconds a leader that says nothing is still believed to lead
    #[arg(long, env = "LEASE_DURATION", default_value_t = 60, value_parser = clap::value_parser!(u64).range(3..=LEASE_MAX.as_secs()))]
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

    /// Maximum number of created addresses, over all accounts and pools. 0 creates none; existing addresses are kept
    #[arg(long, env = "CREATED_ADDRESSES_MAX", default_value_t = 1_000)]
    pub created_addresses_max: usize,

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
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true, value_parser = boolean)]
    pub leader_elect: bool,

    /// Whether public addresses and DNS names are kept where they belong; without it, VIPs are all that is done
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true, value_parser = boolean)]
    pub enable_addresses: bool,

    /// Whether Cluster API's Clusters get their VIPs
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true, value_parser = boolean)]
    pub enable_reconciler: bool,

    /// Whether Cluster API's runtime hooks are answered, so that nothing of a Cluster is built before it has its VIP
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = false, value_parser = boolean)]
    pub enable_runtime_extension: bool,

    /// The port at which runtime hooks are answered
    #[arg(long, default_value_t = 9443)]
    pub runtime_extension_port: u16,

    /// How the names of our runtime hooks' handlers begin
    #[arg(long, default_value = "vip-allocator")]
    pub runtime_extension_name: String,

    /// The folder with the certificate for runtime hooks, tls.crt and tls.key; both are read again when they change
    #[arg(long, default_value = "/tmp/runtime-extension/serving-certs")]
    pub runtime_extension_cert_dir: PathBuf,

    /// The port of a Cluster's endpoint where the Cluster names none
    #[arg(long, default_value_t = 6443, value_parser = clap::value_parser!(u16).range(1..))]
    pub default_port: u16,

    /// The version that metrics tell; by default the build's
    #[arg(long, env = "CONTROLLER_VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub controller_version: String,

    /// How log lines are written
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// A token for DigitalOcean
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN", hide_env_values = true)]
    pub digitalocean_access_token: Option<Secret>,

    /// A file with a token for DigitalOcean, read again for every call
    #[arg(long, env = "DIGITALOCEAN_ACCESS_TOKEN_FILE")]
    pub digitalocean_access_token_file: Option<PathBuf>,

    /// Where DigitalOcean's API is
    #[arg(long, env = "DIGITALOCEAN_API_URL", default_value = drivers::digitalocean::DEFAULT_URL)]
    pub digitalocean_api_url: String,

    /// How many requests a minute DigitalOcean allows this account
    #[arg(long, env = "DIGITALOCEAN_REQUESTS_PER_MINUTE", default_value_t = drivers::digitalocean::addresses::REQUESTS_PER_MINUTE)]
    pub digitalocean_requests_per_minute: usize,

    /// How many requests an hour DigitalOcean allows this account
    #[arg(long, env = "DIGITALOCEAN_REQUESTS_PER_HOUR", default_value_t = drivers::digitalocean::addresses::REQUESTS_PER_HOUR)]
    pub digitalocean_requests_per_hour: usize,

    /// A token for Cloudflare
    #[arg(long, env = "CLOUDFLARE_TOKEN", hide_env_values = true)]
    pub cloudflare_token: Option<Secret>,

    /// A file with a token for Cloudflare, read again for every call
    #[arg(long, env = "CLOUDFLARE_TOKEN_FILE")]
    pub cloudflare_token_file: Option<PathBuf>,

    /// Where Cloudflare's API is
    #[arg(long, env = "CLOUDFLARE_API_URL", default_value = drivers::cloudflare::records::DEFAULT_URL)]
    pub cloudflare_api_url: String,

    /// How many requests in five minutes we make of what Cloudflare allows the token's user
    #[arg(long, env = "CLOUDFLARE_REQUESTS_PER_FIVE_MINUTES", default_value_t = drivers::cloudflare::records::REQUESTS_PER_FIVE_MINUTES)]
    pub cloudflare_requests_per_five_minutes: usize,

    /// Host and port of a name server that takes dynamic updates over TCP
    #[arg(long, env = "RFC2136_SERVER")]
    pub rfc2136_server: Option<String>,

    /// The name of the TSIG key that signs dynamic updates
    #[arg(long, env = "RFC2136_TSIG_KEY_NAME")]
    pub rfc2136_tsig_key_name: Option<String>,

    /// The TSIG key's secret, in base64
    #[arg(long, env = "RFC2136_TSIG_SECRET", hide_env_values = true)]
    pub rfc2136_tsig_secret: Option<Secret>,

    /// A file with the TSIG key's secret, read again for every message
    #[arg(long, env = "RFC2136_TSIG_SECRET_FILE")]
    pub rfc2136_tsig_secret_file: Option<PathBuf>,

    /// The TSIG key's algorithm: hmac-sha256, hmac-sha384 or hmac-sha512
    #[arg(long, env = "RFC2136_TSIG_ALGORITHM", default_value = "hmac-sha256")]
    pub rfc2136_tsig_algorithm: String,

    /// The region that requests to Amazon are signed for that have none of their own. Addresses are where their nodes are
    #[arg(long, env = "AWS_REGION", default_value = "")]
    pub aws_region: String,

    /// Where Amazon's services are, where they are not at Amazon
    #[arg(long, env = "AWS_ENDPOINT_URL")]
    pub aws_endpoint_url: Option<String>,

    /// What our mark on DNS records says. By default the UID of the namespace kube-system, which is the cluster's
    #[arg(long, env = "DNS_OWNER_ID")]
    pub dns_owner_id: Option<String>,

    /// How many requests a minute Google Cloud allows this project
    #[arg(long, env = "GOOGLE_REQUESTS_PER_MINUTE", default_value_t = drivers::google::addresses::REQUESTS_PER_MINUTE)]
    pub google_requests_per_minute: usize,

    /// Where Compute Engine's API is
    #[arg(long, env = "GOOGLE_COMPUTE_CUSTOM_ENDPOINT", default_value = drivers::google::addresses::DEFAULT_URL)]
    pub google_compute_custom_endpoint: String,

    /// The tenant of our identity at Azure
    #[arg(long, env = "AZURE_TENANT_ID", default_value = "")]
    pub azure_tenant_id: String,

    /// The client id of our identity at Azure: an application, or one of several managed identities
    #[arg(long, env = "AZURE_CLIENT_ID")]
    pub azure_client_id: Option<String>,

    /// The secret of an application at Azure. Without it: workload identity or a managed identity
    #[arg(long, env = "AZURE_CLIENT_SECRET", hide_env_values = true)]
    pub azure_client_secret: Option<Secret>,

    /// A file with the pod's own token, which is exchanged for one of Azure's; workload identity sets it
    #[arg(long, env = "AZURE_FEDERATED_TOKEN_FILE")]
    pub azure_federated_token_file: Option<PathBuf>,

    /// Where tokens for Azure are exchanged, where that is not the public cloud
    #[arg(long, env = "AZURE_AUTHORITY_HOST")]
    pub azure_authority_host: Option<String>,

    /// Where Azure Resource Manager is
    #[arg(long, env = "AZURE_RESOURCE_MANAGER_ENDPOINT", default_value = drivers::azure::addresses::DEFAULT_URL)]
    pub azure_resource_manager_endpoint: String,

    /// The resource group in which addresses are created at Azure
    #[arg(long, env = "AZURE_RESOURCE_GROUP")]
    pub azure_resource_group: Option<String>,

    /// Flags that capi-vip-allocator has beside its own.
    #[command(flatten)]
    pub manager: ManagerFlags,
}

impl Settings {
    /// Reads the arguments of this process and its environment.
    pub fn of_this_process() -> Self {
        Self::parse_from(with_two_dashes(std::env::args_os()))
    }

    /// Where /healthz and /readyz are served.
    pub fn health_address(&self) -> BindAddress {
        let given = self.manager.health_probe_bind_address.clone();
        given.unwrap_or_else(|| BindAddress::every(self.health_port))
    }

    /// Where /metrics is served.
    pub fn metrics_address(&self) -> BindAddress {
        let given = self.manager.metrics_bind_address.clone();
        given.unwrap_or_else(|| BindAddress::every(self.metrics_port))
    }

    /// How log lines are written.
    pub fn log_format(&self) -> LogFormat {
        self.manager.log_format().unwrap_or(self.log_format)
    }

    /// What is logged, where RUST_LOG does not say it. A level above info is about the controller's own work: the debug lines
    /// of HTTP libraries would hide it.
    pub fn log_filter(&self) -> String {
        match self.manager.log_level().unwrap_or(LogLevel::Info) {
            level @ (LogLevel::Error | LogLevel::Info) => level.name().into(),
            level => format!("info,controller={0},drivers={0},plan={0}", level.name()),
        }
    }

    /// The Lease by which we lead, as namespace and name. Those that do VIPs alone have the one that capi-vip-allocator had, so
    /// that it stands by while we lead, and we while it does.
    pub fn lease(&self) -> (String, String) {
        let named = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (namespace, name) = match self.enable_addresses {
            true => (None, "ip-address-controller-leader"),
            false => (named(&self.pod_namespace), "capi-vip-allocator.gorizond.io"),
        };
        let namespace = named(&self.lease_namespace).or(namespace).unwrap_or_else(|| "kube-system".into());
        (namespace, named(&self.lease_name).unwrap_or_else(|| name.into()))
    }

    /// What the part for VIPs is told, where it is there at all.
    pub fn vips(&self) -> Option<VipOptions> {
        let is_there = self.enable_reconciler || self.enable_runtime_extension;
        is_there.then_some(VipOptions { allocates: self.enable_reconciler, default_port: self.default_port })
    }

    /// Pauses after failures.
    pub fn retry(&self) -> Retry {
        let [shortest, longest] = [self.retry_seconds_min, self.retry_seconds_max].map(Duration::from_secs);
        Retry { shortest, longest }
    }
}

/// A setting that is never printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// What was set.
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

/// Options of the part that allocates VIPs.
#[derive(Clone, Debug)]
pub struct VipOptions {
    /// Whether VIPs are allocated; without it, what is known is only told to those who ask.
    pub allocates: bool,
    /// The port of an endpoint that has none.
    pub default_port: u16,
}

/// Go's flags may begin with one dash. Ours of one letter stay as they are.
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
    fn v6_the_flags_of_the_vip_allocator_are_taken_as_its_manifests_write_them() {
        let as_written = [
            "--leader-elect",
            "--enable-runtime-extension=false",
            "--runtime-extension-port=9443",
            "--enable-reconciler=true",
            "--default-port=6443",
        ];
        assert!(settings(&as_written).vips().is_some_and(|terms| terms.allocates));
        let turned = ["--enable-reconciler=false", "--enable-runtime-extension", "--default-port=8443"];
        let terms = settings(&turned).vips().unwrap();
        assert_eq!((terms.allocates, terms.default_port), (false, 8443));
    }

    #[test]
    fn v6_without_the_reconciler_only_vips_are_not_done() {
        let settings = settings(&["--enable-reconciler=false"]);
        assert!(settings.vips().is_none() && settings.enable_addresses);
    }

    #[test]
    fn v6_the_flags_of_controller_runtime_say_where_servers_listen() {
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
    fn v6_the_flags_of_zap_choose_level_and_format_of_the_log() {
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
    fn v6_flags_are_taken_in_every_form_that_go_takes() {
        assert!(settings(&["-leader-elect", "-enable-reconciler", "-kubeconfig", "file"]).enable_reconciler);
        assert!(!settings(&["-enable-reconciler=False"]).enable_reconciler);
        assert!(!settings(&["--enable-reconciler=0", "-leader-elect=T"]).enable_reconciler);
        assert_eq!(settings(&["-kubeconfig=file"]).kubeconfig, Some(PathBuf::from("file")));
        assert!(parsed(&["--enable-reconciler=yes"]).is_err());
        assert!(parsed(&["-V"]).unwrap_err().to_string().contains(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn settings_that_are_printed_show_no_secret() {
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
    fn vips_alone_have_the_lease_that_the_vip_allocator_had() {
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
