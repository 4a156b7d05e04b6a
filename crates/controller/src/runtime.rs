//! Starts and connects all parts, waits for the lease, leads, and releases the lease.
//!
//! In: the settings. Out: a running controller, until it gets a stop signal or loses the lease.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use drivers::http::with_deadline;
use drivers::network::{MaySend, network};
use futures::FutureExt;
use futures::future::Shared;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use plan::{DnsProvider, Epoch, NodeName, leadership};
use tokio::signal::unix::{SignalKind, signal};

use crate::addresses::execute::Executor;
use crate::addresses::metrics::AddressMetrics;
use crate::addresses::reconcile::Reconciler;
use crate::addresses::report::Reporter;
use crate::addresses::watch::Watches;
use crate::backoff::Retry;
use crate::health;
use crate::kubernetes::transport;
use crate::kubernetes::watch::{Clients, Ended, Relists};
use crate::leadership::clock::{Clock, SystemClock};
use crate::leadership::fence::{Fence, fenced};
use crate::leadership::lease::{self, Candidate, RETRY};
use crate::metrics::{Identity, Metrics};
use crate::providers::build::{self, Drivers};
use crate::providers::external_dns::ExternalDns;
use crate::providers::listings::Clouds;
use crate::providers::metered::metered;
use crate::providers::metrics::ProviderMetrics;
use crate::reconciler::Loop;
use crate::settings::{Settings, VipOptions};
use crate::tasks::Tasks;
use crate::vips::metrics::VipMetrics;
use crate::vips::reconcile::{self as vips, VipReconciler};
use crate::vips::runtime_extension;

/// The timeout, in seconds, of a write to an object or a node.
const WRITE_SECONDS_MAX: u64 = 3;

/// The timeout, in seconds, of a write for a VIP. An update of a Cluster calls webhooks of other controllers, each of
/// which may take ten seconds, and a retry calls all of them again.
const VIP_WRITE_SECONDS_MAX: u64 = 15;

/// The longest backoff for VIPs. A Cluster waits for the retry, and the retry uses no provider quota.
const VIP_RETRY_MAX: Duration = Duration::from_secs(30);

/// How long a process that stops leading waits for its calls in flight. Kubernetes kills it 30 seconds after SIGTERM.
const FINISH_MAX: Duration = Duration::from_secs(20);

/// The timeout, in seconds, of a request for the Lease.
const LEASE_REQUEST_SECONDS_MAX: u64 = 3;

/// Everything outside of the process that the controller uses. The simulator passes its own.
pub struct Edges {
    /// The clients for lists and watches.
    pub watching: Clients,
    /// A client for writes.
    pub writing: Client,
    /// A client for writes about VIPs.
    pub writing_vips: Client,
    /// A client for the Lease only.
    pub leasing: Client,
    /// The drivers of the providers, each behind the fence.
    pub drivers: Drivers,
    /// The wall clock and the time since boot.
    pub clock: Arc<dyn Clock>,
    /// Blocks changes unless this process leads.
    pub fence: Arc<Fence>,
    /// The channel of the VIP reconciler. The runtime extension sends its requests over it.
    pub vips: vips::Line,
}

/// Options of a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this process in the Lease.
    pub identity: String,
    /// The node that this pod runs on, if known.
    pub node: Option<NodeName>,
    /// The namespace of this pod. `None`: the namespace of the Lease.
    pub namespace: Option<String>,
    /// Namespace and name of the Lease.
    pub lease: (String, String),
    /// The lease duration.
    pub lease_duration: Duration,
    /// How long a request of the previous leader can still take effect after its lease has expired (D in the docs).
    pub takeover: Duration,
    /// The shortest and longest pause after a failure.
    pub retry: Retry,
    /// The owner ID in the owner marks of DNS records. `None`: the UID of the namespace kube-system.
    pub dns_owner: Option<Arc<str>>,
    /// The maximum number of addresses that the controller creates for all objects together.
    pub created_max: usize,
    /// Whether this process reconciles public addresses and DNS names.
    pub keeps_addresses: bool,
    /// The options for VIPs, or `None` if this process does not handle VIPs.
    pub vips: Option<VipOptions>,
}

/// The metrics of the process and of all parts.
#[derive(Clone)]
pub struct AllMetrics {
    /// The metrics of the process, and the registry of all metrics.
    pub process: Metrics,
    /// The metrics about calls to providers.
    pub providers: ProviderMetrics,
    /// The metrics about addresses.
    pub addresses: AddressMetrics,
    /// The metrics about VIPs.
    pub vips: VipMetrics,
}

impl AllMetrics {
    /// Registers all metrics.
    pub fn new(identity: &Identity) -> Result<Self> {
        let process = Metrics::new(identity)?;
        let providers = ProviderMetrics::new(&process)?;
        let addresses = AddressMetrics::new(process.clone(), providers.clone())?;
        let vips = VipMetrics::new(process.clone())?;
        Ok(Self { process, providers, addresses, vips })
    }
}

/// Runs the controller until it gets a stop signal or loses the lease.
pub async fn run(settings: Settings) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let fence = Fence::new(Arc::clone(&clock));
    let config = config(&settings).await?;
    let metrics = AllMetrics::new(&Identity {
        version: settings.controller_version.clone(),
        pod: settings.identity.clone(),
        cluster: settings.cluster_name.clone().filter(|name| !name.is_empty()),
    })?;
    let takeover = Duration::from_secs(settings.takeover_seconds);
    let may_leave: MaySend = Arc::new({
        let fence = Arc::clone(&fence);
        move || fence.remaining().is_some()
    });
    let open = network(Arc::new(|| true), takeover).map_err(|error| anyhow!(error))?;
    let network = network(Arc::clone(&may_leave), takeover).map_err(|error| anyhow!(error))?;
    let service = with_deadline(fenced(network, Arc::clone(&fence)));
    #[cfg(feature = "failpoints")]
    let service = crate::failpoints::around(service);
    let drivers =
        metered(build::drivers(&settings, &service, &with_deadline(open), may_leave), &metrics.providers);
    let edges = Edges {
        watching: Clients {
            lists: transport::client(&config)?,
            watches: transport::client(&config)?,
            metrics: metrics.process.clone(),
        },
        writing: client(config.clone(), WRITE_SECONDS_MAX)?,
        writing_vips: client(config.clone(), VIP_WRITE_SECONDS_MAX)?,
        leasing: client(config, LEASE_REQUEST_SECONDS_MAX)?,
        drivers,
        clock: Arc::clone(&clock),
        fence,
        vips: vips::Line::default(),
    };
    let to_vips = edges.vips.to.clone();
    let (retry, lease, vips) = (settings.retry(), settings.lease(), settings.vips());
    let (health_address, metrics_address) = (settings.health_address(), settings.metrics_address());
    let options = Options {
        // A restarted pod is a new candidate, because requests of the previous process may still take effect.
        identity: format!("{}_{:x}", settings.identity, clock.wall().as_nanosecond()),
        node: settings.node_name.filter(|name| !name.is_empty()).map(|name| name.as_str().into()),
        namespace: settings.pod_namespace.filter(|namespace| !namespace.is_empty()),
        lease,
        lease_duration: Duration::from_secs(settings.lease_duration),
        takeover,
        dns_owner: settings.dns_owner_id.filter(|id| !id.is_empty()).map(Into::into),
        retry,
        created_max: settings.created_addresses_max,
        keeps_addresses: settings.enable_addresses,
        vips,
    };
    tracing::info!(
        version = settings.controller_version,
        identity = options.identity,
        lease_seconds = options.lease_duration.as_secs(),
        retry_seconds = RETRY.as_secs(),
        takeover_seconds = takeover.as_secs(),
        "started"
    );
    let hooks = async {
        let Some(name) = settings.enable_runtime_extension.then_some(settings.runtime_extension_name) else {
            return std::future::pending().await;
        };
        let (port, certificates) = (settings.runtime_extension_port, &settings.runtime_extension_cert_dir);
        runtime_extension::serve(port, name, certificates, to_vips).await
    };
    tokio::select! {
        biased;
        ended = health::serve(&metrics.process, &health_address, &metrics_address) => {
            ended.context("the health server stopped")
        }
        ended = hooks => ended.context("the runtime extension server stopped"),
        ended = control(edges, options, metrics.clone(), asked_to_stop()) => ended,
    }
}

/// The controller itself: it stands by, leads, and returns after `asked_to_stop` or when it has lost the lease.
pub async fn control(
    edges: Edges,
    options: Options,
    metrics: AllMetrics,
    asked_to_stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let Edges { watching, writing, writing_vips, leasing, mut drivers, clock, fence, vips: line } = edges;
    let external_dns = ExternalDns::new(writing.clone(), Arc::clone(&fence));
    drivers.records.insert(DnsProvider::ExternalDns, Arc::new(external_dns));
    let (mut watches_of_addresses, mut watches_of_vips) = (None, Tasks::default());
    let addresses = options.keeps_addresses.then(|| {
        let (watches, inbox) = Watches::start(&watching);
        watches_of_addresses = Some(watches);
        let mut addresses = Reconciler::new(
            inbox,
            Clouds::new(drivers.addresses.clone()),
            Executor::new(drivers, options.takeover, writing.clone(), Arc::clone(&fence)),
            Reporter::new(writing.clone(), Arc::clone(&fence), &options.identity),
            Arc::clone(&clock),
            metrics.addresses.clone(),
            options.retry,
        );
        addresses.sign_records_as(options.dns_owner.clone());
        addresses.limit_creations(options.created_max);
        Loop::new(addresses, metrics.process.of_loop("addresses"))
    });
    let vips = options.vips.clone().map(|vips| {
        let relists = Relists::new(crate::vips::watch::Kind::ALL);
        watches_of_vips = crate::vips::watch::start(&watching, &relists, &line.to);
        let (fence, clock) = (Arc::clone(&fence), Arc::clone(&clock));
        let edges = vips::Edges { relists, client: writing_vips, fence, clock };
        let retry = options.retry.at_most(VIP_RETRY_MAX);
        let vips = VipReconciler::new(line.seen, edges, metrics.vips.clone(), &options.identity, retry, vips);
        Loop::new(vips, metrics.process.of_loop("vips"))
    });
    let mut parts = Reconcilers { addresses, vips, metrics: metrics.process };
    let asked_to_stop = asked_to_stop.shared();
    let watches_end = async {
        tokio::select! {
            biased;
            ended = of(&mut watches_of_addresses, async |watches| watches.ended().await) => ended,
            Some(Ok(ended)) = watches_of_vips.next() => ended,
            else => std::future::pending().await,
        }
    };
    if !options.keeps_addresses && options.vips.as_ref().is_none_or(|vips| !vips.allocates) {
        // A process that only serves the runtime extension does not take part in leader election.
        let answer = async {
            parts.until_complete().await;
            parts.stand_by().await;
        };
        return tokio::select! {
            biased;
            ended = watches_end => Err(why_it_ends(ended)),
            () = answer => Ok(()),
            () = asked_to_stop => Ok(()),
        };
    }
    let namespace = options.namespace.clone().unwrap_or_else(|| options.lease.0.clone());
    let of_lease = lease::Options {
        identity: options.identity.clone(),
        lease: options.lease.clone(),
        duration: options.lease_duration,
        flipop_namespace: options.keeps_addresses.then_some(namespace),
    };
    let mut candidate = Candidate::new(leasing, watching.watches, of_lease, clock, fence);
    tokio::select! {
        biased;
        ended = watches_end => Err(why_it_ends(ended)),
        ended = lead(&mut candidate, &mut parts, &options, asked_to_stop) => ended,
    }
}

/// The error with which the process ends when a watch can't continue.
fn why_it_ends(ended: Ended) -> anyhow::Error {
    match ended {
        Ended::Restored => {
            anyhow!("etcd was restored from an older copy; restarting to read everything again")
        }
        Ended::NotServed | Ended::ReceiverGone => anyhow!("the watches stopped"),
    }
}

/// The reconcilers that share one lease. A part that is `None` never does anything.
struct Reconcilers {
    addresses: Option<Loop<Reconciler>>,
    vips: Option<Loop<VipReconciler>>,
    metrics: Metrics,
}

impl Reconcilers {
    /// Watches without acting.
    async fn stand_by(&mut self) {
        let Self { addresses, vips, .. } = self;
        futures::join!(
            of(addresses, async |addresses| addresses.stand_by().await),
            of(vips, async |vips| vips.stand_by().await)
        );
    }

    /// Watches without acting until the caches of addresses are filled. Waits for those of VIPs only in a process that
    /// keeps no addresses.
    async fn until_complete(&mut self) {
        match (&mut self.addresses, &mut self.vips) {
            (Some(addresses), vips) => tokio::select! {
                biased;
                () = addresses.until_complete() => {}
                () = of(vips, async |vips| vips.stand_by().await) => {}
            },
            (None, Some(vips)) => {
                vips.until_complete().await;
                self.metrics.set_ready(true);
            }
            (None, None) => self.metrics.set_ready(true),
        }
    }

    /// The highest epoch in any journal.
    fn last_epoch(&self) -> Epoch {
        self.addresses.as_ref().map(|addresses| addresses.reconciler.last_epoch()).unwrap_or_default()
    }

    /// Leads with the given epoch. Returns when another process should take over.
    async fn lead(&mut self, epoch: Epoch) {
        self.metrics.set_leader(true);
        let Self { addresses, vips, .. } = self;
        tokio::select! {
            biased;
            () = of(addresses, async |addresses| {
                addresses.reconciler.begin_to_lead(epoch);
                addresses.lead().await;
            }) => {}
            () = of(vips, async |vips| {
                if vips.reconciler.allocates() {
                    vips.lead().await;
                } else {
                    vips.stand_by().await;
                }
            }) => {}
        }
    }

    /// Waits until no call is in flight.
    async fn finish(&mut self) {
        let Self { addresses, vips, .. } = self;
        let finish_addresses = async {
            if let Some(addresses) = addresses {
                addresses.finish().await;
            }
        };
        let finish_vips = async {
            if let Some(vips) = vips {
                vips.finish().await;
            }
        };
        futures::join!(finish_addresses, finish_vips);
    }
}

/// Runs `does` on a part, or waits forever if the part is `None`.
async fn of<P, R>(part: &mut Option<P>, does: impl AsyncFnOnce(&mut P) -> R) -> R {
    match part {
        Some(part) => does(part).await,
        None => std::future::pending().await,
    }
}

/// Waits for the lease, and leads while this process holds it.
async fn lead(
    candidate: &mut Candidate,
    parts: &mut Reconcilers,
    options: &Options,
    asked_to_stop: Shared<impl Future<Output = ()>>,
) -> Result<()> {
    // This comes before the election: a process that can't read all objects would hold the lease and do nothing.
    tokio::select! {
        biased;
        () = parts.until_complete() => {}
        () = asked_to_stop.clone() => return Ok(()),
    }
    let gained = tokio::select! {
        biased;
        gained = candidate.win() => gained,
        () = parts.stand_by() => bail!("the watches stopped"),
        () = asked_to_stop.clone() => return Ok(()),
    };
    tokio::select! {
        biased;
        () = candidate.keep() => bail!("leadership was lost"),
        () = parts.until_complete() => {}
        // This process has changed nothing yet, but requests of the previous leader may still take effect. So the lease
        // is not released: it has to expire.
        () = asked_to_stop.clone() => return Ok(()),
    }
    let wait = leadership::quarantine(gained, options.takeover);
    tracing::info!(
        ?gained,
        wait_seconds = wait.as_secs(),
        "acquired the lease; waiting for the previous leader's requests to expire"
    );
    tokio::select! {
        biased;
        () = candidate.keep() => bail!("leadership was lost"),
        _ = tokio::time::timeout(wait, parts.stand_by()) => {}
        // A released lease would let the next leader act without waiting, so the lease has to expire.
        () = asked_to_stop.clone() => return Ok(()),
    }
    // A leader does not detach the address of its own node: it hands over, and the next leader detaches it. If this node
    // handed over and no other node has led since, there is no other replica, so this process detaches it.
    let own_node = options.node.clone().filter(|node| !candidate.was_handed_over_from(node));
    parts.addresses.iter_mut().for_each(|addresses| addresses.reconciler.spare(own_node.clone()));
    // The previous leader can't write any more, so this epoch is higher than all earlier ones.
    let epoch = leadership::next_epoch(candidate.last_epoch(), parts.last_epoch());
    candidate.set_epoch(epoch).await.context("failed to write the epoch into the lease")?;
    tracing::info!(epoch = epoch.0, "leading");
    let handed_over_from = tokio::select! {
        biased;
        () = candidate.keep() => bail!("leadership was lost"),
        () = parts.lead(epoch) => {
            tracing::info!("handing over the lease: the next step would change the address of the node that this pod runs on");
            options.node.as_ref()
        }
        () = asked_to_stop.clone() => {
            tracing::info!("received a stop signal; waiting for the calls in flight");
            None
        }
    };
    tokio::select! {
        biased;
        () = parts.finish() => {}
        () = candidate.keep() => bail!("leadership was lost"),
        // A released lease would let the next leader act while these calls can still take effect.
        () = tokio::time::sleep(FINISH_MAX) => {
            candidate.close_fence();
            bail!("calls to a provider are still in flight after {} s, so the lease has to expire", FINISH_MAX.as_secs())
        }
    }
    candidate.release(handed_over_from).await.context("failed to release the lease")
}

async fn config(settings: &Settings) -> Result<Config> {
    match &settings.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(without_lines)?;
            Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
        }
        None => {
            let found = Config::infer().await.map_err(without_lines);
            found.context("not running in a cluster, and no kubeconfig found: set --kubeconfig")
        }
    }
}

/// Removes the quoted lines of the kubeconfig from a parse error, because they may contain a token.
fn without_lines<E: std::error::Error + Send + Sync + 'static>(error: E) -> anyhow::Error {
    let mut causes =
        std::iter::successors(Some(&error as &(dyn std::error::Error + 'static)), |it| it.source());
    let wrong = causes.find_map(|cause| match cause.downcast_ref::<KubeconfigError>() {
        Some(KubeconfigError::Parse(wrong)) => Some(wrong.location()),
        _ => None,
    });
    match wrong {
        None => error.into(),
        Some(None) => anyhow!("failed to parse the kubeconfig"),
        Some(Some(at)) => {
            anyhow!("failed to parse the kubeconfig at line {}, column {}", at.line(), at.column())
        }
    }
}

/// A client whose requests fail after `seconds_max` seconds without data.
fn client(mut config: Config, seconds_max: u64) -> Result<Client> {
    let longest = Duration::from_secs(seconds_max);
    config.connect_timeout = Some(longest);
    config.read_timeout = Some(longest);
    config.write_timeout = Some(longest);
    // The connection may be silent between two requests, so the timeout starts with a request.
    config.reset_reader_on_write = true;
    // A hidden retry could be sent after the lease has expired, or repeat a write whose response was lost.
    config.default_retry = false;
    let builder = kube::client::ClientBuilder::try_from(config)?;
    #[cfg(feature = "failpoints")]
    let builder = builder.with_layer(&crate::failpoints::Layer);
    Ok(builder.build())
}

async fn asked_to_stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals terminate the process.
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[tokio::test]
    async fn an_error_does_not_quote_the_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        for mistake in
            ["    token: canary\n   indented: wrongly\n", "    token: [canary\n", "    token: {canary: 1}\n"]
        {
            std::fs::write(&file, format!("users:\n- name: me\n  user:\n{mistake}")).unwrap();
            let path = format!("--kubeconfig={}", file.display());
            let error = config(&Settings::parse_from(["controller", &path])).await.err().unwrap();
            let printed = format!("{error:?} {error:#}");
            assert!(printed.contains("failed to parse the kubeconfig at line"), "{printed}");
            assert!(!printed.contains("canary"), "{printed}");
        }
    }
}
