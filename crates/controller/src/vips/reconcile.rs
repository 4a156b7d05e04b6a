//! The reconciler of VIPs. It runs next to the reconciler of addresses, with the same lease.
//!
//! ```text
//! watches ──▶ observe ──▶ plan ──▶ act (claims) and report (Clusters, Events)
//!    ▲                                          │
//!    └──────────────── outcomes ◀───────────────┘
//! ```
//!
//! In: Clusters, ClusterClasses, pools, claims and addresses. Out: claims, and on Clusters the VIPs, their state,
//! conditions and Events. The claims are the only journal. Every change is a compare-and-swap in one store, so an
//! interrupted change, or the same change by two replicas, has the effect of one change.
//!
//! The file is long because the loop, its bookkeeping and the outcomes of writes share one state.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use kube::{Client, ResourceExt};
use plan::vips::{Decision, Key, Role, Step, Verdict};
use plan::{LastSteps, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::execute::Ended;
use super::index::Index;
use super::metrics::VipMetrics;
use super::report::{ClusterUpdate, Verbosity, Written};
use super::watch::{Cluster, Kind, Observed};
use super::{execute, index, report};
use crate::backoff::{ANY_VERSION, Backoff, Retry};
use crate::kubernetes::events::{NewEvent, Publisher};
use crate::kubernetes::watch::{Relists, version};
use crate::kubernetes::write::{REFUSALS_REPORTED, is_refused};
use crate::leadership::clock::{Clock, Suspends};
use crate::leadership::fence::Fence;
use crate::reconciler::{Flow, Reconcile, Source, first_of};
use crate::settings::VipOptions;
use crate::tasks::Tasks;

/// The maximum number of requests in flight, so that the apiserver can serve other clients too.
const IN_FLIGHT_MAX: usize = 64;

/// How long an allocation may take before its progress is reported on the Cluster.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long to wait for the watch event of a change. A watch is usually much faster.
const WATCH_MAX: Duration = Duration::from_secs(10);

/// The age up to which a Cluster waits for a pool that was applied together with it.
const POOL_SEEN_MAX: Duration = Duration::from_secs(30);

/// The shortest pause between two updates of the metrics about objects.
const METRICS_EVERY: Duration = Duration::from_secs(1);

/// The most concurrent writes of conditions, so that VIPs never wait for conditions.
const REPORTING_MAX: usize = 8;

/// The pause after the apiserver denied a write of conditions, which the ClusterRole of 0.1.0 does not allow.
const DENIED_PAUSE: Duration = Duration::from_secs(300);

/// A request in flight for a Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Claim(Role),
    Cluster,
    Conditions,
}

/// Allocates VIPs for Clusters.
pub struct VipReconciler {
    index: Index,
    seen: mpsc::UnboundedReceiver<Observed>,
    relists: Relists<Kind>,
    client: Client,
    fence: Arc<Fence>,
    clock: Arc<dyn Clock>,
    suspends: Suspends,
    metrics: VipMetrics,
    options: VipOptions,
    tasks: Tasks<Ended>,
    in_flight: BTreeSet<(Key, Work)>,
    /// Clusters that have changed in the apiserver after this version, or are gone. The controller does not update them
    /// before the watch delivers the change.
    outdated: BTreeMap<Key, u64>,
    /// Claims whose state in the apiserver differs from the index, with the last seen metadata. The controller leaves
    /// them alone until the watch delivers the change, or until this time.
    outdated_claims: BTreeMap<Key, (Option<ObjectMeta>, Instant)>,
    /// Failed writes, by Cluster and role of the VIP. A key without a role is for writes of the Cluster's
    /// annotation. A new version of the Cluster does not reset the backoff, because Cluster API changes
    /// Clusters all the time.
    failures: Backoff<(Key, Option<Role>)>,
    /// Failed writes of conditions.
    unreported: Backoff<Key>,
    /// The end of the pause after a denied write of conditions.
    denied_until: Option<Instant>,
    /// When the controller first saw that a VIP is missing.
    missed: BTreeMap<(Key, Role), Instant>,
    /// When the allocation of each VIP began, while it is in progress.
    allocating: BTreeMap<(Key, Role), Instant>,
    events: Publisher,
    described: Option<Instant>,
}

/// An event that wakes up the loop.
pub enum Happened {
    /// An event of a watch, or a query.
    Observed(Observed),
    /// The result of a request.
    Ended(Box<Ended>),
}

/// The channel to a [`VipReconciler`], for events of watches and queries of the runtime extension.
pub struct Line {
    /// Sends events and queries.
    pub to: mpsc::UnboundedSender<Observed>,
    /// Receives events and queries.
    pub seen: mpsc::UnboundedReceiver<Observed>,
}

impl Default for Line {
    fn default() -> Self {
        let (to, seen) = mpsc::unbounded_channel();
        Self { to, seen }
    }
}

/// The external interfaces of a [`VipReconciler`].
pub struct Edges {
    /// Requests lists of kinds whose watch has been silent.
    pub relists: Relists<Kind>,
    /// A client for writes.
    pub client: Client,
    /// Blocks changes without a valid lease.
    pub fence: Arc<Fence>,
    /// Clock for timestamps and ages.
    pub clock: Arc<dyn Clock>,
}

impl VipReconciler {
    /// Creates a reconciler with an empty index.
    pub fn new(
        seen: mpsc::UnboundedReceiver<Observed>,
        edges: Edges,
        metrics: VipMetrics,
        identity: &str,
        retry: Retry,
        options: VipOptions,
    ) -> Self {
        let Edges { relists, client, fence, clock } = edges;
        let events = Publisher::new(client.clone(), identity);
        Self {
            index: Index::default(),
            seen,
            relists,
            client,
            fence,
            clock,
            suspends: Suspends::default(),
            metrics,
            options,
            tasks: Tasks::default(),
            in_flight: BTreeSet::new(),
            outdated: BTreeMap::new(),
            outdated_claims: BTreeMap::new(),
            failures: Backoff::new(retry),
            unreported: Backoff::new(retry),
            denied_until: None,
            missed: BTreeMap::new(),
            allocating: BTreeMap::new(),
            events,
            described: None,
        }
    }

    /// Whether it allocates VIPs. Otherwise it only answers the runtime extension.
    pub fn allocates(&self) -> bool {
        self.options.allocates
    }

    /// Applies an event to the index, or answers a query. The sender of a query may be gone.
    fn observe(&mut self, seen: Observed) {
        match seen {
            Observed::Asked(cluster, answer) => {
                let key = index::key(&cluster.metadata);
                let _ = answer.send(plan::vips::plan(&self.index.world, &key, &index::facts(&cluster)));
            }
            Observed::AskedEndpoint(key, answer) => {
                let _ = answer.send(self.endpoint(&key));
            }
            seen => {
                if let Some(kind) = seen.answers_relist() {
                    self.relists.answered(kind);
                }
                self.index.observe(seen);
            }
        }
    }

    /// The endpoint of a Cluster, or none if Cluster API may create it without one. Otherwise an error with the reason
    /// to wait.
    fn endpoint(&self, key: &Key) -> Result<Option<(String, u16)>, String> {
        let world = &self.index.world;
        let cluster = world.clusters.get(key).filter(|_| world.are_clusters_known);
        let cluster = cluster.ok_or_else(|| format!("the controller has not seen the Cluster {key} yet"))?;
        let tracked = self.index.clusters.get(key);
        let Some(host) = &cluster.endpoint else {
            let created = tracked.and_then(|tracked| tracked.metadata.creation_timestamp.as_ref());
            let planned = plan::vips::plan(world, key, cluster);
            return may_be_built(&planned, age(created, self.clock.wall())).map(|()| None);
        };
        let port = tracked.and_then(|tracked| tracked.port);
        Ok(Some((host.to_string(), port.unwrap_or(self.options.default_port))))
    }

    /// Distrusts what is known if the machine was suspended.
    fn note_suspend(&mut self) {
        if self.suspends.noticed(&*self.clock) {
            self.index.note_suspend();
        }
    }

    /// Plans for each Cluster, and starts the planned requests.
    fn plan_and_act(&mut self) {
        let began = Instant::now();
        self.note_suspend();
        let (clusters, claims) = (&self.index.clusters, &self.index.claims);
        self.unreported.retain(|key| clusters.contains_key(key));
        self.failures.retain(|(key, _)| clusters.contains_key(key));
        let failures = &self.failures;
        let is_backing_off =
            |key: &Key, role: Role| failures.waits_until(&(key.clone(), Some(role)), ANY_VERSION).is_some();
        self.index.world.failed.retain(|(key, role), _| is_backing_off(key, *role));
        self.outdated_claims
            .retain(|claim, (seen, until)| claims.get(claim) == seen.as_ref() && *until > began);
        self.missed.retain(|(key, _), _| clusters.contains_key(key));
        self.index.world.writing.retain(|(key, _), _| clusters.contains_key(key));
        self.allocating.retain(|(key, _), _| clusters.contains_key(key));
        let is_behind = |key: &Key, known: &u64| {
            clusters.get(key).is_some_and(|tracked| version(&tracked.metadata) <= *known)
        };
        self.outdated.retain(|key, known| is_behind(key, known));
        self.index.world.speak_for_claims();
        let keys: Vec<_> = self.index.world.clusters.keys().cloned().collect();
        for key in keys {
            self.reconcile_cluster(&key);
        }
        for report in self.index.undecodable.due(began) {
            let Some(served) = self.index.served.get(&report.kind) else { continue };
            let event = NewEvent::of_undecodable(&report, report.kind.name(), &served.api_version);
            self.events.publish(event, self.clock.wall());
        }
        if self.described.is_none_or(|last| last.elapsed() >= METRICS_EVERY) {
            self.metrics.describe(&self.index);
            self.described = Some(Instant::now());
        }
    }

    fn reconcile_cluster(&mut self, key: &Key) {
        let began = Instant::now();
        let Some(cluster) = self.index.world.clusters.get(key) else { return };
        let class = cluster.class.clone();
        let planned = plan::vips::plan(&self.index.world, key, cluster);
        for (role, next) in &planned {
            let may_be_written = matches!(next.step, Some(Step::Write { .. }))
                || matches!(next.verdict, Verdict::Failed(_))
                || self.in_flight.contains(&(key.clone(), Work::Cluster));
            if !may_be_written {
                self.index.world.writing.remove(&(key.clone(), *role));
            }
            if next.verdict.is_in_progress() || matches!(next.verdict, Verdict::Exhausted(_)) {
                self.note_missing(key, *role);
            }
            if next.verdict.is_in_progress() {
                self.allocating.entry((key.clone(), *role)).or_insert(began);
            } else {
                self.allocating.remove(&(key.clone(), *role));
            }
            match &next.step {
                None | Some(Step::Write { .. }) => {}
                Some(_) if self.is_outdated() => {}
                Some(Step::Create(pool)) => self.create_claim(key, *role, pool),
                Some(Step::Delete) => self.delete_claim(key, *role),
            }
        }
        if self.update_cluster(key) {
            self.report_conditions(key, &planned);
        }
        self.index.world.reserve(&planned);
        if let Some(class) = class {
            let verdict = planned.iter().map(|(_, next)| &next.verdict);
            self.metrics.considered(&class, verdict, began.elapsed());
        }
    }

    /// Records when a VIP was first missing.
    fn note_missing(&mut self, key: &Key, role: Role) {
        let missed = (key.clone(), role);
        if self.missed.contains_key(&missed) {
            return;
        }
        self.missed.insert(missed, Instant::now());
        if role == Role::ControlPlane {
            tracing::info!(
                target: LOG,
                cluster = %key,
                "controlPlaneEndpoint not set, controller will allocate VIP"
            );
        }
    }

    /// Reserves a request for a Cluster. Returns false if the same request is in flight, too many requests are in
    /// flight, or the lease is not valid.
    fn begin(&mut self, key: &Key, work: Work) -> bool {
        self.in_flight.len() < IN_FLIGHT_MAX
            && self.fence.remaining().is_some()
            && self.in_flight.insert((key.clone(), work))
    }

    /// Whether a watch has been silent for too long. In the meantime, a person may have paused a Cluster, or
    /// another Cluster may have got the VIP. After a silence, this function requests lists, and the reconciler
    /// plans again when they are complete.
    fn is_outdated(&mut self) -> bool {
        let silent = self.index.silent();
        self.relists.ask(|kind| silent.contains(&kind));
        !silent.is_empty()
    }

    fn create_claim(&mut self, key: &Key, role: Role, pool: &plan::vips::PoolRef) {
        let (Some(tracked), Some(clusters), Some(claims)) = (
            self.index.clusters.get(key),
            self.index.served.get(&Kind::Clusters),
            self.index.served.get(&Kind::Claims).cloned(),
        ) else {
            return;
        };
        let claim = execute::claim(&tracked.metadata, clusters, key, role, pool);
        if self.outdated_claims.contains_key(&role.claim(key)) || !self.begin(key, Work::Claim(role)) {
            return;
        }
        tracing::info!(cluster = %key, %role, %pool, "creating an IPAddressClaim");
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        self.tasks.spawn(async move {
            let created = execute::while_leading(&fence, execute::create(client, claims, claim)).await;
            Ended::Claimed(key, role, created)
        });
    }

    fn delete_claim(&mut self, key: &Key, role: Role) {
        let claim = role.claim(key);
        let (Some(seen), Some(served)) =
            (self.index.claims.get(&claim).cloned(), self.index.served.get(&Kind::Claims).cloned())
        else {
            return;
        };
        if self.outdated_claims.contains_key(&claim) || !self.begin(key, Work::Claim(role)) {
            return;
        }
        tracing::info!(cluster = %key, %role, %claim, "deleting an IPAddressClaim that got no address");
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        self.tasks.spawn(async move {
            let deleted = execute::while_leading(&fence, execute::delete(client, served, claim, &seen)).await;
            Ended::GivenUp(key, role, Box::new(seen), deleted)
        });
    }

    /// Starts an update of a Cluster if it needs one. Returns whether the Cluster is known to be up to date.
    fn update_cluster(&mut self, key: &Key) -> bool {
        let is_backing_off = self.failures.waits_until(&(key.clone(), None), ANY_VERSION).is_some();
        let is_busy = self.in_flight.contains(&(key.clone(), Work::Cluster));
        if is_backing_off || is_busy || self.outdated.contains_key(key) {
            return false;
        }
        let (Some(tracked), Some(served)) =
            (self.index.clusters.get(key), self.index.served.get(&Kind::Clusters).cloned())
        else {
            return false;
        };
        let manner = |role| {
            let waits = self.allocating.get(&(key.clone(), role)).map(|since| since.elapsed());
            match waits {
                _ if self.in_flight.contains(&(key.clone(), Work::Claim(role))) => Verbosity::Silent,
                Some(waits) if waits >= PATIENCE => Verbosity::Plain,
                _ => Verbosity::Patient,
            }
        };
        let port = self.options.default_port;
        let cluster_update = report::cluster_update(&self.index.world, key, tracked, &served, port, manner);
        let Some(cluster_update) = cluster_update else { return true };
        if self.is_outdated() {
            return false;
        }
        if !self.begin(key, Work::Cluster) {
            return false;
        }
        for Written { role, vip, .. } in &cluster_update.vips {
            self.index.world.writing.insert((key.clone(), *role), Arc::clone(vip));
        }
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        self.tasks.spawn(async move {
            let change =
                execute::amend(client.clone(), served.clone(), key.clone(), cluster_update.patch.clone());
            match execute::while_leading(&fence, change).await {
                // The Cluster has changed, or is gone.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    let now = execute::read(client, served, &key).await.ok().flatten();
                    Ended::Outdated(key, cluster_update, now.map(Box::new))
                }
                amended => Ended::Amended(key, cluster_update, amended.map(Box::new)),
            }
        });
        false
    }

    /// Starts an update of a Cluster's conditions if they do not repeat its annotation. Unknown VIPs change no
    /// condition.
    fn report_conditions(&mut self, key: &Key, planned: &[(Role, Decision); 2]) {
        let now = Instant::now();
        let is_unsure = |(_, next): &(Role, Decision)| {
            matches!(next.verdict, Verdict::Unknown(_) | Verdict::Paused | Verdict::Leaving)
        };
        let paused_until = self.unreported.waits_until(key, ANY_VERSION).max(self.denied_until);
        let (Some(tracked), Some(served)) =
            (self.index.clusters.get(key), self.index.served.get(&Kind::Clusters).cloned())
        else {
            return;
        };
        if tracked.are_conditions_current
            || planned.iter().any(is_unsure)
            || paused_until.is_some_and(|until| until > now)
            || self.in_flight.iter().filter(|(_, work)| *work == Work::Conditions).count() >= REPORTING_MAX
            || !self.begin(key, Work::Conditions)
        {
            return;
        }
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        let wall = self.clock.wall();
        self.tasks.spawn(async move {
            let reported = execute::report_conditions(client, served, &key, &fence, wall).await;
            Ended::Reported(key, reported.map(|cluster| cluster.map(Box::new)))
        });
    }

    /// Handles the outcome of an update of conditions.
    fn reported(&mut self, key: Key, result: Result<Option<Box<Cluster>>, kube::Error>) {
        match result {
            Ok(Some(cluster)) => {
                self.unreported.succeeded(&key);
                self.denied_until = None;
                self.index.observe_answer(*cluster);
            }
            // The watch will deliver the deletion.
            Ok(None) => {
                if let Some(known) = self.index.clusters.get(&key) {
                    let version = version(&known.metadata);
                    self.outdated.insert(key, version);
                }
            }
            Err(error) => {
                self.unreported.failed(key.clone(), ANY_VERSION, &error);
                match &error {
                    // Other controllers change a new Cluster often, so a conflict is not logged.
                    kube::Error::Api(status) if status.code == 409 => {}
                    kube::Error::Api(status) if status.code == 403 => {
                        if self.denied_until.is_none_or(|until| until <= Instant::now()) {
                            tracing::warn!(target: LOG, %error, "not allowed to write conditions; update the ClusterRole");
                        }
                        self.denied_until = Some(Instant::now() + DENIED_PAUSE);
                    }
                    _ => tracing::warn!(target: LOG, cluster = %key, %error, "failed to write conditions"),
                }
            }
        }
    }

    /// Handles the outcome of a request.
    fn handle_outcome(&mut self, ended: Ended) {
        match ended {
            Ended::Claimed(key, role, result) => {
                self.in_flight.remove(&(key.clone(), Work::Claim(role)));
                match result {
                    Ok(()) => {
                        self.failures.succeeded(&(key.clone(), Some(role)));
                        self.await_claim(role.claim(&key), None);
                    }
                    // The claim already exists.
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        self.await_claim(role.claim(&key), None);
                    }
                    Err(error) => self.failed(&key, Some(role), "claim_creation_failed", &error),
                }
            }
            Ended::GivenUp(key, role, seen, result) => {
                self.in_flight.remove(&(key.clone(), Work::Claim(role)));
                match result {
                    Ok(()) if plan::sabotaged!(AnswerRepeated) => {}
                    Ok(()) => self.await_claim(role.claim(&key), Some(*seen)),
                    // The claim is gone, or has changed.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                        self.await_claim(role.claim(&key), Some(*seen));
                    }
                    Err(error) => self.failed(&key, Some(role), "claim_deletion_failed", &error),
                }
            }
            Ended::Amended(key, cluster_update, result) => {
                self.in_flight.remove(&(key.clone(), Work::Cluster));
                match result {
                    Ok(cluster) => self.cluster_updated(&key, cluster_update, *cluster),
                    Err(error) if cluster_update.vips.is_empty() => {
                        self.failed(&key, None, CLUSTER_PATCH_FAILED, &error);
                    }
                    Err(error) => {
                        for Written { role, .. } in &cluster_update.vips {
                            self.failed(&key, Some(*role), CLUSTER_PATCH_FAILED, &error);
                        }
                    }
                }
            }
            Ended::Outdated(key, cluster_update, now) => {
                self.in_flight.remove(&(key.clone(), Work::Cluster));
                if let Some(now) = now {
                    self.index.observe_answer(*now);
                }
                let known = self.index.clusters.get(&key).map(|known| version(&known.metadata));
                let refused = &cluster_update.patch["metadata"]["resourceVersion"];
                let refused = refused.as_str().and_then(|version| version.parse().ok());
                // Until the watch delivers a newer version, the apiserver would reject the same update again.
                if let (Some(refused), Some(known)) = (refused, known)
                    && known <= refused
                {
                    self.outdated.insert(key, refused);
                }
            }
            Ended::Reported(key, result) => {
                self.in_flight.remove(&(key.clone(), Work::Conditions));
                self.reported(key, result);
            }
        }
    }

    /// Leaves a claim alone until the watch delivers its change.
    fn await_claim(&mut self, claim: Key, seen: Option<ObjectMeta>) {
        self.outdated_claims.insert(claim, (seen, Instant::now() + WATCH_MAX));
    }

    fn cluster_updated(&mut self, key: &Key, cluster_update: ClusterUpdate, cluster: Cluster) {
        self.failures.succeeded(&(key.clone(), None));
        let created = cluster.creation_timestamp().map(|created| created.0);
        self.index.observe_answer(cluster);
        let class = self.index.world.clusters.get(key).and_then(|cluster| cluster.class.clone());
        for Written { role, vip, is_new } in &cluster_update.vips {
            self.failures.succeeded(&(key.clone(), Some(*role)));
            let missed = self.missed.remove(&(key.clone(), *role));
            if !is_new {
                continue;
            }
            let took = missed.map(|since| since.elapsed());
            let since_created =
                created.map(|created| self.clock.wall().duration_since(created).as_secs_f64());
            match role {
                Role::ControlPlane => tracing::info!(
                    target: LOG,
                    ip = %vip,
                    cluster = %key,
                    seconds_since_created = since_created,
                    "control-plane VIP assigned"
                ),
                Role::Ingress => tracing::info!(
                    target: LOG,
                    ip = %vip,
                    cluster = %key,
                    "ingress VIP assigned to annotation and label"
                ),
            }
            if let Some(class) = &class {
                self.metrics.assigned(*role, class, took);
            }
        }
        for event in cluster_update.events {
            if event.kind.is_warning {
                tracing::warn!(target: LOG, cluster = %key, reason = event.kind.reason, "{}", event.note);
            }
            self.events.publish(event, self.clock.wall());
        }
    }

    /// Publishes an Event about a refused update. The Cluster's annotation can't report the refusal, because the
    /// annotation is part of the update.
    fn report_refused_write(&mut self, key: &Key, error: &kube::Error) {
        let (Some(tracked), Some(served)) =
            (self.index.clusters.get(key), self.index.served.get(&Kind::Clusters))
        else {
            return;
        };
        let note =
            format!("the apiserver refused an update by the controller, which retries with backoff: {error}");
        self.events.publish(report::refusal(&tracked.metadata, served, note), self.clock.wall());
    }

    /// Records a failed write for the VIP of a role. Without a role, the write was for the annotation of the Cluster.
    fn failed(&mut self, key: &Key, role: Option<Role>, reason: &'static str, error: &kube::Error) {
        let failures = self.failures.failed((key.clone(), role), ANY_VERSION, error);
        if reason == CLUSTER_PATCH_FAILED && failures == REFUSALS_REPORTED && is_refused(error) {
            self.report_refused_write(key, error);
        }
        tracing::warn!(target: LOG, cluster = %key, %error, reason, "write failed, retrying with backoff");
        let Some(role) = role else { return };
        let what = match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        };
        self.index.world.failed.insert((key.clone(), role), what.into());
        let class = self.index.world.clusters.get(key).and_then(|cluster| cluster.class.clone());
        if let Some(class) = class {
            self.metrics.failed(role, &class, reason);
        }
    }
}

impl Reconcile for VipReconciler {
    type Event = Happened;

    async fn next_event(&mut self, first: Source) -> Happened {
        let Self { seen, tasks, .. } = self;
        let watched = async {
            match seen.recv().await {
                Some(seen) => Happened::Observed(seen),
                None => std::future::pending().await,
            }
        };
        let ended = async {
            loop {
                match tasks.next().await {
                    Some(Ok(ended)) => return Happened::Ended(Box::new(ended)),
                    Some(Err(error)) => {
                        tracing::error!(%error, "a task that writes to the apiserver was cancelled")
                    }
                    None => std::future::pending().await,
                }
            }
        };
        first_of(first, watched, ended).await
    }

    fn queue_length(&self) -> usize {
        self.seen.len()
    }

    fn source(event: &Happened) -> Source {
        match event {
            Happened::Observed(_) => Source::Watches,
            Happened::Ended(_) => Source::Requests,
        }
    }

    fn apply(&mut self, event: Happened) -> bool {
        // A standby must notice suspends too: it may lead soon after one.
        self.note_suspend();
        match event {
            Happened::Observed(seen) => {
                // The answer to a query changes no plan.
                let changes = !matches!(seen, Observed::Asked(..) | Observed::AskedEndpoint(..));
                self.observe(seen);
                changes
            }
            Happened::Ended(ended) => {
                self.handle_outcome(*ended);
                true
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.index.is_complete()
    }

    fn reconcile(&mut self) -> Flow {
        self.plan_and_act();
        Flow::Continue
    }

    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let retries = self.failures.next_due().into_iter();
        let reports = self.allocating.values().map(|since| *since + PATIENCE);
        let claims = self.outdated_claims.values().map(|(_, until)| *until);
        let conditions = self.unreported.next_due().into_iter().chain(self.denied_until);
        retries.chain(reports).chain(claims).chain(conditions).filter(|due| *due > now).min()
    }

    fn wind_down(&mut self, _last: LastSteps) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    fn events(&mut self) -> &mut Publisher {
        &mut self.events
    }
}

/// The label value for a failed update of a Cluster.
const CLUSTER_PATCH_FAILED: &str = "cluster_patch_failed";

/// The target of the log lines that scripts look for.
const LOG: &str = "controllers.Cluster";

/// The age of a Cluster, if its creation time is known.
pub fn age(created: Option<&Time>, now: Timestamp) -> Option<Duration> {
    created.map(|created| now.duration_since(created.0).unsigned_abs())
}

/// Checks whether Cluster API may create the objects of a Cluster: the Cluster has its VIP, or is not meant to have
/// one. Otherwise returns the reason to wait. A new Cluster, or one with a claim, also waits if no pool matches: the
/// watch may not have delivered the pool yet.
pub fn may_be_built(planned: &[(Role, Decision); 2], age: Option<Duration>) -> Result<(), String> {
    let [(_, control_plane), _] = planned;
    let is_new = age.is_some_and(|age| age < POOL_SEEN_MAX);
    match (&control_plane.verdict, &control_plane.step) {
        (Verdict::Assigned { .. } | Verdict::Manual(_), None)
        | (Verdict::NotWanted | Verdict::Leaving | Verdict::Paused, _) => Ok(()),
        (Verdict::NoPool { claimed_from: None, .. }, _) if !is_new => Ok(()),
        (verdict, _) => Err(verdict.to_string()),
    }
}
