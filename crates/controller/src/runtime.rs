//! Puts the parts together: stand by, win the lease, lead, and give it up in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use drivers::http::with_deadline;
use drivers::network::{MayLeave, network};
use futures::FutureExt;
use futures::future::Shared;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use plan::{DnsProvider, Epoch, NodeName, leadership};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::addresses::execute::Executor;
use crate::addresses::metrics::AddressMetrics;
use crate::addresses::reconcile::Reconciler;
use crate::addresses::report::Reporter;
use crate::addresses::watch;
use crate::backoff::Retry;
use crate::health;
use crate::kubernetes::watch::SILENCE_SECONDS_MAX;
use crate::leadership::clock::{Clock, SystemClock};
use crate::leadership::fence::{Fence, fenced};
use crate::leadership::lease::{self, Candidate, RETRY};
use crate::metrics::{Identity, Metrics};
use crate::providers::build::{self, Drivers};
use crate::providers::external_dns::ExternalDns;
use crate::providers::listings::Clouds;
use crate::providers::metered::metered;
use crate::providers::metrics::ProviderMetrics;
use crate::settings::{Settings, VipOptions};
use crate::vips::metrics::VipMetrics;
use crate::vips::reconcile::{self as vips, VipReconciler};
use crate::vips::runtime_extension;

/// The longest that a write of a status or of marks may take.
const WRITE_SECONDS_MAX: u64 = 3;

/// The longest that a write for a VIP may take: a change of a Cluster passes other people's webhooks, each of which may take ten
/// seconds, and one that was cut off has to pass them all again.
const VIP_WRITE_SECONDS_MAX: u64 = 15;

/// The longest pause before something that failed for a VIP is tried again: it costs nobody's quota, and a Cluster waits for it.
const VIP_RETRY_MAX: Duration = Duration::from_secs(30);

/// The longest that a request about the lease may take.
const LEASE_REQUEST_SECONDS_MAX: u64 = 3;

/// Where a controller touches the world. A simulation puts its own world here.
pub struct Edges {
    /// A client for watches.
    pub watching: Client,
    /// A client for writes.
    pub writing: Client,
    /// A client for writes about VIPs.
    pub writing_vips: Client,
    /// A client for the lease alone.
    pub leasing: Client,
    /// The clouds and DNS providers, each behind the fence.
    pub drivers: Drivers,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// What keeps changes in when we don't lead.
    pub fence: Arc<Fence>,
    /// Where the part for VIPs hears of what happens, for others who tell or ask it something.
    pub vips: vips::Line,
}

/// Options of a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name among the candidates.
    pub identity: String,
    /// The node that it runs on, where it is known.
    pub node: Option<NodeName>,
    /// The namespace that it runs in, where that is not the Lease's.
    pub namespace: Option<String>,
    /// The Lease that all candidates share, as namespace and name.
    pub lease: (String, String),
    /// How long a leader that says nothing is still believed to lead.
    pub lease_duration: Duration,
    /// D: how long after a leader's end one of its requests can still take effect.
    pub takeover: Duration,
    /// Pauses after failures.
    pub retry: Retry,
    /// What our mark on DNS records says, where it is not the cluster's id.
    pub dns_owner: Option<Arc<str>>,
    /// The most addresses that are created in the cluster.
    pub created_max: usize,
    /// Whether public addresses and names are kept where they belong.
    pub keeps_addresses: bool,
    /// What the part for VIPs is told, where it is there.
    pub vips: Option<VipOptions>,
}

/// The metrics of the process and of all parts.
#[derive(Clone)]
pub struct AllMetrics {
    /// Those of the process, and the text of all.
    pub process: Metrics,
    /// Those about calls to providers.
    pub providers: ProviderMetrics,
    /// Those about addresses.
    pub addresses: AddressMetrics,
    /// Those about VIPs.
    pub vips: VipMetrics,
}

impl AllMetrics {
    /// Nothing has happened yet.
    pub fn new(identity: &Identity) -> Result<Self> {
        let process = Metrics::new(identity)?;
        let providers = ProviderMetrics::new(&process)?;
        let addresses = AddressMetrics::new(process.clone(), providers.clone())?;
        let vips = VipMetrics::new(process.clone())?;
        Ok(Self { process, providers, addresses, vips })
    }
}

/// Runs until asked to stop, or until leadership is lost.
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
    let may_leave: MayLeave = Arc::new({
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
        // Over the watches' connections something must come all the time, asked for or not; others may be silent between
        // two requests.
        watching: client(config.clone(), SILENCE_SECONDS_MAX, false)?,
        writing: client(config.clone(), WRITE_SECONDS_MAX, true)?,
        writing_vips: client(config.clone(), VIP_WRITE_SECONDS_MAX, true)?,
        leasing: client(config, LEASE_REQUEST_SECONDS_MAX, true)?,
        drivers,
        clock: Arc::clone(&clock),
        fence,
        vips: vips::Line::default(),
    };
    let to_vips = edges.vips.to.clone();
    let (retry, lease, vips) = (settings.retry(), settings.lease(), settings.vips());
    let (health_address, metrics_address) = (settings.health_address(), settings.metrics_address());
    let options = Options {
        // A pod that starts again is another candidate: its earlier life may not be over for the cloud.
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
            ended.context("the health server ended")
        }
        ended = hooks => ended.context("the server for runtime hooks ended"),
        ended = control(edges, options, metrics.clone(), asked_to_stop()) => ended,
    }
}

/// The controller itself: stands by, leads, and ends when it is asked to or has lost the lease.
pub async fn control(
    edges: Edges,
    options: Options,
    metrics: AllMetrics,
    asked_to_stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let Edges { watching, writing, writing_vips, leasing, mut drivers, clock, fence, vips: line } = edges;
    let external_dns = ExternalDns::new(writing.clone(), Arc::clone(&fence));
    drivers.records.insert(DnsProvider::ExternalDns, Arc::new(external_dns));
    let mut watches = Vec::new();
    let addresses = options.keeps_addresses.then(|| {
        let (to, seen) = mpsc::unbounded_channel();
        watches.push(watch::start(&watching, &to));
        let mut addresses = Reconciler::new(
            seen,
            Clouds::new(drivers.addresses.clone()),
            Executor::new(drivers, options.takeover, writing.clone(), Arc::clone(&fence)),
            Reporter::new(writing.clone(), Arc::clone(&fence), &options.identity),
            Arc::clone(&clock),
            metrics.addresses.clone(),
            options.retry,
        );
        addresses.sign_records_as(options.dns_owner.clone());
        addresses.limit_creations(options.created_max);
        addresses
    });
    let vips = options.vips.clone().map(|vips| {
        watches.push(crate::vips::watch::start(&watching, &line.to));
        let (fence, clock) = (Arc::clone(&fence), Arc::clone(&clock));
        let edges = vips::Edges { client: writing_vips, fence, clock };
        let retry = options.retry.at_most(VIP_RETRY_MAX);
        VipReconciler::new(line.seen, edges, metrics.vips.clone(), &options.identity, retry, vips)
    });
    let mut parts = Parts { addresses, vips, metrics: metrics.process };
    let asked_to_stop = asked_to_stop.shared();
    if !options.keeps_addresses && options.vips.as_ref().is_none_or(|vips| !vips.allocates) {
        // Who only answers questions must not keep another one from leading.
        let answer = async {
            parts.until_complete().await;
            parts.stand_by().await;
        };
        tokio::select! {
            biased;
            () = answer => {}
            () = asked_to_stop => {}
        }
        return Ok(());
    }
    let namespace = options.namespace.clone().unwrap_or_else(|| options.lease.0.clone());
    let of_lease = lease::Options {
        identity: options.identity.clone(),
        lease: options.lease.clone(),
        duration: options.lease_duration,
        flipop_namespace: options.keeps_addresses.then_some(namespace),
    };
    let mut candidate = Candidate::new(leasing, of_lease, clock, fence);
    lead(&mut candidate, &mut parts, &options, asked_to_stop).await
}

/// What is done under one leadership. A part that is not there never has anything to do.
struct Parts {
    addresses: Option<Reconciler>,
    vips: Option<VipReconciler>,
    metrics: Metrics,
}

impl Parts {
    /// Watches without acting, as a standby does.
    async fn stand_by(&mut self) {
        let Self { addresses, vips, .. } = self;
        futures::join!(
            of(addresses, async |addresses| addresses.stand_by().await),
            of(vips, async |vips| vips.stand_by().await)
        );
    }

    /// Watches without acting until everything is known. Addresses don't wait for VIPs.
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

    /// The highest epoch in any journal that is known.
    fn last_epoch(&self) -> Epoch {
        self.addresses.as_ref().map(Reconciler::last_epoch).unwrap_or_default()
    }

    /// Acts, as the leader of the given epoch, until somebody else should.
    async fn lead(&mut self, epoch: Epoch) {
        self.metrics.set_leader(true);
        let Self { addresses, vips, .. } = self;
        tokio::select! {
            biased;
            () = of(addresses, async |addresses| addresses.lead(epoch).await) => {}
            () = of(vips, async |vips| vips.lead().await) => {}
        }
    }

    /// Begins nothing new, and waits until nothing is under way.
    async fn finish(&mut self) {
        let Self { addresses, vips, .. } = self;
        let finish_rounds = async {
            if let Some(addresses) = addresses {
                addresses.finish().await;
            }
        };
        let finish_vips = async {
            if let Some(vips) = vips {
                vips.finish().await;
            }
        };
        futures::join!(finish_rounds, finish_vips);
    }
}

/// What a part does; for ever nothing where it is not there.
async fn of<P>(part: &mut Option<P>, does: impl AsyncFnOnce(&mut P)) {
    match part {
        Some(part) => does(part).await,
        None => std::future::pending().await,
    }
}

/// Wins the lease and acts while it lasts.
async fn lead(
    candidate: &mut Candidate,
    parts: &mut Parts,
    options: &Options,
    asked_to_stop: Shared<impl Future<Output = ()>>,
) -> Result<()> {
    // Whoever can't read everything could hold the lease and do nothing with it.
    tokio::select! {
        biased;
        () = parts.until_complete() => {}
        () = asked_to_stop.clone() => return Ok(()),
    }
    let gained = tokio::select! {
        biased;
        gained = candidate.win() => gained,
        () = parts.stand_by() => bail!("the watches ended"),
        () = asked_to_stop.clone() => return Ok(()),
    };
    tokio::select! {
        biased;
        () = candidate.keep() => bail!("leadership was lost"),
        () = parts.until_complete() => {}
        // We hold the lease and have done nothing, but whoever held it before may still: it is left to run out.
        () = asked_to_stop.clone() => return Ok(()),
    }
    let wait = leadership::quarantine(gained, options.takeover);
    tracing::info!(?gained, wait_seconds = wait.as_secs(), "leading, once nobody else can act any more");
    tokio::select! {
        biased;
        () = candidate.keep() => bail!("leadership was lost"),
        _ = tokio::time::timeout(wait, parts.stand_by()) => {}
        // Released in order, it would tell the next one that there is nothing to wait for.
        () = asked_to_stop.clone() => return Ok(()),
    }
    // Where nobody on another node has led since one here handed over, nobody else is there: it is done after all.
    let spared = options.node.clone().filter(|node| !candidate.was_handed_over_from(node));
    parts.addresses.iter_mut().for_each(|addresses| addresses.spare(spared.clone()));
    // Whoever led before has written its last, so this epoch is above all that were.
    let epoch = leadership::next_epoch(candidate.last_epoch(), parts.last_epoch());
    candidate.set_epoch(epoch).await.context("writing our epoch into the lease")?;
    tracing::info!(epoch = epoch.0, "leading");
    let handed_over_from = tokio::select! {
        biased;
        () = candidate.keep() => bail!("leadership was lost"),
        () = parts.lead(epoch) => {
            tracing::info!("handing over: the next step would cut off the node that we run on");
            options.node.as_ref()
        }
        () = asked_to_stop.clone() => {
            tracing::info!("asked to stop");
            None
        }
    };
    tokio::select! {
        biased;
        () = parts.finish() => {}
        () = candidate.keep() => bail!("leadership was lost"),
    }
    candidate.release(handed_over_from).await.context("releasing the lease")
}

async fn config(settings: &Settings) -> Result<Config> {
    match &settings.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(without_lines)?;
            Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
        }
        None => {
            let found = Config::infer().await.map_err(without_lines);
            found.context("neither in a cluster nor with a kubeconfig")
        }
    }
}

/// The error without the lines of a kubeconfig around a mistake in it: they may contain a token.
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

/// A client whose requests end: one that gets no answer for so long has failed.
fn client(mut config: Config, seconds_max: u64, counts_from_request: bool) -> Result<Client> {
    let longest = Duration::from_secs(seconds_max);
    config.connect_timeout = Some(longest);
    config.read_timeout = Some(longest);
    config.write_timeout = Some(longest);
    config.reset_reader_on_write = counts_from_request;
    // A retry that nobody sees could outlive the lease, or repeat a write whose answer was lost.
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
        // Without handlers the signals keep their default effect, which is to end the process.
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
    async fn a_broken_kubeconfig_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        for mistake in
            ["    token: canary\n   indented: wrongly\n", "    token: [canary\n", "    token: {canary: 1}\n"]
        {
            std::fs::write(&file, format!("users:\n- name: me\n  user:\n{mistake}")).unwrap();
            let path = format!("--kubeconfig={}", file.display());
            let error = config(&Settings::parse_from(["controller", &path])).await.err().unwrap();
            let told = format!("{error:?} {error:#}");
            assert!(told.contains("failed to parse the kubeconfig at line"), "{told}");
            assert!(!told.contains("canary"), "{told}");
        }
    }
}
