//! VIPs for Cluster API: the loop of this part, beside that of addresses and under the same leadership.
//!
//! ```text
//! watches ──▶ observe ──▶ plan ──▶ act (claims) and report (Clusters, Events)
//!    ▲                                          │
//!    └──────────── what has ended ◀─────────────┘
//! ```
//!
//! In: Clusters, classes, pools, claims and addresses. Out: claims, endpoints and what is said of them. There is no journal but
//! the claims themselves, and every change is a compare-and-swap in one store, so a change that was cut off, or that two copies
//! make, ends as if it had been made once.
//!
//! The file is long because the loop, its bookkeeping and the answers of every write share one state. It becomes shorter when both
//! reconcilers share one loop.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use kube::{Client, ResourceExt};
use plan::Timestamp;
use plan::vips::{Decision, Key, Role, Step, Verdict};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::execute::Ended;
use super::index::Index;
use super::metrics::VipMetrics;
use super::report::{Amendment, Manner, Written};
use super::watch::{Cluster, Kind, Seen};
use super::{execute, index, report};
use crate::backoff::{ANY_VERSION, Backoff, Retry};
use crate::kubernetes::events::{self, NewEvent};
use crate::kubernetes::watch::version;
use crate::kubernetes::write::{REFUSALS_REPORTED, is_refused};
use crate::leadership::clock::Clock;
use crate::leadership::fence::Fence;
use crate::settings::VipOptions;
use crate::tasks::Tasks;

/// Changes that come together are looked at together.
const SETTLE: Duration = Duration::from_millis(5);

/// The longest pause between two rounds.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The most requests under way at once, so that others are served too.
const UNDER_WAY_MAX: usize = 64;

/// What mostly is over in a moment is worth a word only when it takes longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// A watch tells of a change much sooner than this, or has missed that there was one.
const WATCH_MAX: Duration = Duration::from_secs(10);

/// A pool that was applied together with a Cluster is seen much sooner than this after the Cluster's creation.
const POOL_SEEN_MAX: Duration = Duration::from_secs(30);

/// Metrics about objects are set so often at the most.
const DESCRIBE_EVERY: Duration = Duration::from_secs(1);

/// The most Clusters whose conditions are written at once: VIPs never wait for conditions.
const REPORTING_MAX: usize = 8;

/// The pause after the apiserver denied the right to write conditions, which the manifest of 0.1.0 lacks.
const DENIED_PAUSE: Duration = Duration::from_secs(300);

/// The most Events under way at once.
const TELLING_MAX: usize = 32;

/// What is under way for a Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Claim(Role),
    Cluster,
    Conditions,
}

/// Everything that takes part.
pub struct VipReconciler {
    index: Index,
    seen: mpsc::UnboundedReceiver<Seen>,
    client: Client,
    fence: Arc<Fence>,
    clock: Arc<dyn Clock>,
    metrics: VipMetrics,
    /// Who tells Events.
    identity: String,
    options: VipOptions,
    tasks: Tasks<Ended>,
    under_way: BTreeSet<(Key, Work)>,
    /// Clusters of which the apiserver has a newer version than this: nothing is written on them before that is seen.
    outdated: BTreeMap<Key, u64>,
    /// Claims that the apiserver has otherwise than they were seen, or not seen, here: nothing is done with them before the watch
    /// tells how, or has had the time to.
    outdated_claims: BTreeMap<Key, (Option<ObjectMeta>, Instant)>,
    /// What failed for a VIP of a Cluster, or for what is said of it. Cluster API changes Clusters all the time, so a failure
    /// outlasts their versions.
    failures: Backoff<(Key, Option<Role>)>,
    /// The Clusters whose conditions could not be written.
    unreported: Backoff<Key>,
    /// Until when no conditions are written, because the controller may not.
    denied_until: Option<Instant>,
    /// When each VIP was first missed.
    missed: BTreeMap<(Key, Role), Instant>,
    /// Since when an address has been on its way for a VIP, and nothing else in between.
    allocating: BTreeMap<(Key, Role), Instant>,
    told: u64,
    telling: usize,
    described: Option<Instant>,
}

/// What happened.
enum Happened {
    Seen(Seen),
    Ended(Box<Ended>),
    TimeWentBy,
}

/// How a [`VipReconciler`] hears of what happens: watches tell it, and others may ask.
pub struct Line {
    /// To tell or ask it something.
    pub to: mpsc::UnboundedSender<Seen>,
    /// What it was told and asked.
    pub seen: mpsc::UnboundedReceiver<Seen>,
}

impl Default for Line {
    fn default() -> Self {
        let (to, seen) = mpsc::unbounded_channel();
        Self { to, seen }
    }
}

/// Where a [`VipReconciler`] touches the world.
pub struct Edges {
    /// A client for writes.
    pub client: Client,
    /// What keeps changes in when we don't lead.
    pub fence: Arc<Fence>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl VipReconciler {
    /// Nothing has happened yet.
    pub fn new(
        seen: mpsc::UnboundedReceiver<Seen>,
        edges: Edges,
        metrics: VipMetrics,
        identity: &str,
        retry: Retry,
        options: VipOptions,
    ) -> Self {
        let Edges { client, fence, clock } = edges;
        Self {
            index: Index::default(),
            seen,
            client,
            fence,
            clock,
            metrics,
            identity: identity.to_owned(),
            options,
            tasks: Tasks::default(),
            under_way: BTreeSet::new(),
            outdated: BTreeMap::new(),
            outdated_claims: BTreeMap::new(),
            failures: Backoff::new(retry),
            unreported: Backoff::new(retry),
            denied_until: None,
            missed: BTreeMap::new(),
            allocating: BTreeMap::new(),
            told: 0,
            telling: 0,
            described: None,
        }
    }

    /// Watches without acting, as a standby does.
    pub async fn stand_by(&mut self) {
        loop {
            self.see_next().await;
        }
    }

    /// Watches without acting until each kind is known, or known to be absent.
    pub async fn until_complete(&mut self) {
        while !self.index.is_complete() {
            self.see_next().await;
        }
    }

    async fn see_next(&mut self) {
        match self.seen.recv().await {
            Some(seen) => self.see(seen),
            None => std::future::pending().await,
        }
    }

    /// Acts, for as long as we lead.
    pub async fn lead(&mut self) {
        if !self.options.allocates {
            return self.stand_by().await;
        }
        self.round();
        loop {
            let happened = self.next().await;
            let pause = if matches!(happened, Happened::Ended(_)) { Duration::ZERO } else { SETTLE };
            self.take_in(happened);
            let settled = Instant::now() + pause;
            while let Ok(more) = tokio::time::timeout_at(settled, self.next_now()).await {
                self.take_in(more);
                if Instant::now() >= settled {
                    break;
                }
            }
            self.round();
        }
    }

    /// Begins nothing new, and waits until nothing is under way.
    pub async fn finish(&mut self) {
        while !self.tasks.is_empty() {
            let happened = self.next_now().await;
            self.take_in(happened);
        }
    }

    async fn next(&mut self) -> Happened {
        let now = Instant::now();
        let retries = self.failures.next_due().into_iter();
        let words = self.allocating.values().map(|since| *since + PATIENCE);
        let claims = self.outdated_claims.values().map(|(_, until)| *until);
        let reports = self.unreported.next_due().into_iter().chain(self.denied_until);
        let due = retries
            .chain(words)
            .chain(reports)
            .chain(claims)
            .filter(|due| *due > now)
            .chain([now + IDLE_MAX])
            .min()
            .unwrap_or(now);
        tokio::select! {
            biased;
            happened = self.next_now() => happened,
            () = tokio::time::sleep_until(due) => Happened::TimeWentBy,
        }
    }

    async fn next_now(&mut self) -> Happened {
        let is_idle = self.tasks.is_empty();
        tokio::select! {
            biased;
            Some(ended) = self.tasks.next(), if !is_idle => match ended {
                Ok(ended) => Happened::Ended(Box::new(ended)),
                Err(error) => {
                    tracing::error!(%error, "a write was cut off");
                    Happened::TimeWentBy
                }
            },
            seen = self.seen.recv() => match seen {
                Some(seen) => Happened::Seen(seen),
                None => std::future::pending().await,
            },
        }
    }

    fn take_in(&mut self, happened: Happened) {
        match happened {
            Happened::Seen(seen) => self.see(seen),
            Happened::Ended(ended) => self.learn(*ended),
            Happened::TimeWentBy => {}
        }
    }

    /// Takes in what was seen, and answers who asks. Somebody who asks may be gone by then.
    fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Asked(cluster, answer) => {
                let key = index::key(&cluster.metadata);
                let _ = answer.send(plan::vips::plan(&self.index.world, &key, &index::facts(&cluster)));
            }
            Seen::AskedEndpoint(key, answer) => {
                let _ = answer.send(self.endpoint(&key));
            }
            seen => self.index.see(seen),
        }
    }

    /// The endpoint of a Cluster, or none where it may be built without one; otherwise what is waited for.
    fn endpoint(&self, key: &Key) -> Result<Option<(String, u16)>, String> {
        let world = &self.index.world;
        let cluster = world.clusters.get(key).filter(|_| world.are_clusters_known);
        let cluster = cluster.ok_or_else(|| format!("the Cluster {key} is not known yet"))?;
        let tracked = self.index.clusters.get(key);
        let Some(host) = &cluster.endpoint else {
            let created = tracked.and_then(|tracked| tracked.metadata.creation_timestamp.as_ref());
            let planned = plan::vips::plan(world, key, cluster);
            return may_be_built(&planned, age(created, self.clock.wall())).map(|()| None);
        };
        let port = tracked.and_then(|tracked| tracked.port);
        Ok(Some((host.to_string(), port.unwrap_or(self.options.default_port))))
    }

    /// Plans for each Cluster, and begins what follows from it.
    fn round(&mut self) {
        let began = Instant::now();
        let (clusters, claims) = (&self.index.clusters, &self.index.claims);
        self.unreported.retain(|key| clusters.contains_key(key));
        self.failures.retain(|(key, _)| clusters.contains_key(key));
        let failures = &self.failures;
        let is_resting =
            |key: &Key, role: Role| failures.waits_until(&(key.clone(), Some(role)), ANY_VERSION).is_some();
        self.index.world.failed.retain(|(key, role), _| is_resting(key, *role));
        self.outdated_claims
            .retain(|claim, (seen, until)| claims.get(claim) == seen.as_ref() && *until > began);
        self.missed.retain(|(key, _), _| clusters.contains_key(key));
        self.allocating.retain(|(key, _), _| clusters.contains_key(key));
        let is_behind = |key: &Key, known: &u64| {
            clusters.get(key).is_some_and(|tracked| version(&tracked.metadata) <= *known)
        };
        self.outdated.retain(|key, known| is_behind(key, known));
        self.index.world.speak_for_claims();
        let keys: Vec<_> = self.index.world.clusters.keys().cloned().collect();
        for key in keys {
            self.consider(&key);
        }
        for report in self.index.undecodable.due(began) {
            let Some(served) = self.index.served.get(&report.kind) else { continue };
            let news = NewEvent::of_undecodable(&report, report.kind.name(), &served.api_version);
            self.tell(news);
        }
        if self.described.is_none_or(|last| last.elapsed() >= DESCRIBE_EVERY) {
            self.metrics.describe(&self.index);
            self.described = Some(Instant::now());
        }
    }

    fn consider(&mut self, key: &Key) {
        let began = Instant::now();
        let Some(cluster) = self.index.world.clusters.get(key) else { return };
        let class = cluster.class.clone();
        let planned = plan::vips::plan(&self.index.world, key, cluster);
        for (role, next) in &planned {
            if next.said.is_on_its_way() || matches!(next.said, Verdict::Exhausted(_)) {
                self.miss(key, *role);
            }
            if next.said.is_on_its_way() {
                self.allocating.entry((key.clone(), *role)).or_insert(began);
            } else {
                self.allocating.remove(&(key.clone(), *role));
            }
            match &next.step {
                Some(Step::Create(pool)) => self.claim(key, *role, pool),
                Some(Step::Delete) => self.give_up(key, *role),
                Some(Step::Write { .. }) | None => {}
            }
        }
        if self.amend(key) {
            self.report_conditions(key, &planned);
        }
        self.index.world.speak_for(&planned);
        if let Some(class) = class {
            let said = planned.iter().map(|(_, next)| &next.said);
            self.metrics.considered(&class, said, began.elapsed());
        }
    }

    /// Takes note of when a VIP was first missed.
    fn miss(&mut self, key: &Key, role: Role) {
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

    /// Whether something may be begun for a Cluster, of which it is the only one then.
    fn begin(&mut self, key: &Key, work: Work) -> bool {
        self.under_way.len() < UNDER_WAY_MAX
            && self.fence.remaining().is_some()
            && self.under_way.insert((key.clone(), work))
    }

    fn claim(&mut self, key: &Key, role: Role, pool: &plan::vips::PoolRef) {
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
        tracing::info!(cluster = %key, %role, %pool, "claiming an address");
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        self.tasks.spawn(async move {
            let created = execute::while_leading(&fence, execute::create(client, claims, claim)).await;
            Ended::Claimed(key, role, created)
        });
    }

    fn give_up(&mut self, key: &Key, role: Role) {
        let claim = role.claim(key);
        let (Some(seen), Some(served)) =
            (self.index.claims.get(&claim).cloned(), self.index.served.get(&Kind::Claims).cloned())
        else {
            return;
        };
        if self.outdated_claims.contains_key(&claim) || !self.begin(key, Work::Claim(role)) {
            return;
        }
        tracing::info!(cluster = %key, %role, %claim, "giving a claim up that got no address");
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        self.tasks.spawn(async move {
            let deleted = execute::while_leading(&fence, execute::delete(client, served, claim, &seen)).await;
            Ended::GivenUp(key, role, Box::new(seen), deleted)
        });
    }

    /// Begins to change a Cluster where something is to be changed. The result is whether it is known that nothing is.
    fn amend(&mut self, key: &Key) -> bool {
        let rests = self.failures.waits_until(&(key.clone(), None), ANY_VERSION).is_some();
        let is_busy = self.under_way.contains(&(key.clone(), Work::Cluster));
        if rests || is_busy || self.outdated.contains_key(key) {
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
                _ if self.under_way.contains(&(key.clone(), Work::Claim(role))) => Manner::Silent,
                Some(waits) if waits >= PATIENCE => Manner::Plain,
                _ => Manner::Patient,
            }
        };
        let port = self.options.default_port;
        let amendment = report::amendment(&self.index.world, key, tracked, &served, port, manner);
        let Some(amendment) = amendment else { return true };
        if !self.begin(key, Work::Cluster) {
            return false;
        }
        let (client, fence, key) = (self.client.clone(), Arc::clone(&self.fence), key.clone());
        self.tasks.spawn(async move {
            let change = execute::amend(client.clone(), served.clone(), key.clone(), amendment.patch.clone());
            match execute::while_leading(&fence, change).await {
                // It has changed, or is gone.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                    let now = execute::read(client, served, &key).await.ok().flatten();
                    Ended::Outdated(key, amendment, now.map(Box::new))
                }
                amended => Ended::Amended(key, amendment, amended.map(Box::new)),
            }
        });
        false
    }

    /// Begins to bring the conditions of a Cluster in line with its annotation, where they are not. What is not known changes none.
    fn report_conditions(&mut self, key: &Key, planned: &[(Role, Decision); 2]) {
        let now = Instant::now();
        let is_unsure = |(_, next): &(Role, Decision)| {
            matches!(next.said, Verdict::Unknown(_) | Verdict::Paused | Verdict::Leaving)
        };
        let rests = self.unreported.waits_until(key, ANY_VERSION).max(self.denied_until);
        let (Some(tracked), Some(served)) =
            (self.index.clusters.get(key), self.index.served.get(&Kind::Clusters).cloned())
        else {
            return;
        };
        if tracked.are_conditions_current
            || planned.iter().any(is_unsure)
            || rests.is_some_and(|until| until > now)
            || self.under_way.iter().filter(|(_, work)| *work == Work::Conditions).count() >= REPORTING_MAX
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

    /// Takes note of what became of the conditions of a Cluster.
    fn reported(&mut self, key: Key, result: Result<Option<Box<Cluster>>, kube::Error>) {
        match result {
            Ok(Some(cluster)) => {
                self.unreported.succeeded(&key);
                self.denied_until = None;
                self.index.see_answer(*cluster);
            }
            // The watch tells when it is gone.
            Ok(None) => {
                if let Some(known) = self.index.clusters.get(&key) {
                    let version = version(&known.metadata);
                    self.outdated.insert(key, version);
                }
            }
            Err(error) => {
                self.unreported.failed(key.clone(), ANY_VERSION);
                match &error {
                    // Others change a Cluster while it is built.
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

    /// Takes note of what became of something.
    fn learn(&mut self, ended: Ended) {
        match ended {
            Ended::Claimed(key, role, result) => {
                self.under_way.remove(&(key.clone(), Work::Claim(role)));
                match result {
                    Ok(()) => {
                        self.failures.succeeded(&(key.clone(), Some(role)));
                        self.await_claim(role.claim(&key), None);
                    }
                    // It is there already.
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        self.await_claim(role.claim(&key), None);
                    }
                    Err(error) => self.failed(&key, Some(role), "claim_creation_failed", &error),
                }
            }
            Ended::GivenUp(key, role, seen, result) => {
                self.under_way.remove(&(key.clone(), Work::Claim(role)));
                match result {
                    Ok(()) if plan::sabotaged!(AnswerRepeated) => {}
                    Ok(()) => self.await_claim(role.claim(&key), Some(*seen)),
                    // It is gone, or has changed.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                        self.await_claim(role.claim(&key), Some(*seen));
                    }
                    Err(error) => self.failed(&key, Some(role), "claim_deletion_failed", &error),
                }
            }
            Ended::Amended(key, amendment, result) => {
                self.under_way.remove(&(key.clone(), Work::Cluster));
                match result {
                    Ok(cluster) => self.amended(&key, amendment, *cluster),
                    Err(error) if amendment.vips.is_empty() => {
                        self.failed(&key, None, CLUSTER_PATCH_FAILED, &error);
                    }
                    Err(error) => {
                        for Written { role, .. } in &amendment.vips {
                            self.failed(&key, Some(*role), CLUSTER_PATCH_FAILED, &error);
                        }
                    }
                }
            }
            Ended::Outdated(key, amendment, now) => {
                self.under_way.remove(&(key.clone(), Work::Cluster));
                if let Some(now) = now {
                    self.index.see_answer(*now);
                }
                let known = self.index.clusters.get(&key).map(|known| version(&known.metadata));
                let refused = &amendment.patch["metadata"]["resourceVersion"];
                let refused = refused.as_str().and_then(|version| version.parse().ok());
                // Until a newer one is seen, the same would be refused again.
                if let (Some(refused), Some(known)) = (refused, known)
                    && known <= refused
                {
                    self.outdated.insert(key, refused);
                }
            }
            Ended::Reported(key, result) => {
                self.under_way.remove(&(key.clone(), Work::Conditions));
                self.reported(key, result);
            }
            Ended::Told(result) => {
                self.telling -= 1;
                if let Err(error) = result {
                    tracing::debug!(%error, "an Event was not told");
                }
            }
        }
    }

    /// Waits for the watch to tell of a claim that is not as it was seen any more.
    fn await_claim(&mut self, claim: Key, seen: Option<ObjectMeta>) {
        self.outdated_claims.insert(claim, (seen, Instant::now() + WATCH_MAX));
    }

    fn amended(&mut self, key: &Key, amendment: Amendment, cluster: Cluster) {
        self.failures.succeeded(&(key.clone(), None));
        let created = cluster.creation_timestamp().map(|created| created.0);
        self.index.see_answer(cluster);
        let class = self.index.world.clusters.get(key).and_then(|cluster| cluster.class.clone());
        for Written { role, vip, is_new } in &amendment.vips {
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
        for news in amendment.news {
            if news.kind.is_warning {
                tracing::warn!(target: LOG, cluster = %key, reason = news.kind.reason, "{}", news.note);
            }
            self.tell(news);
        }
    }

    /// Reports that the apiserver refuses what is written on a Cluster, which can't say so itself.
    fn report_refused_write(&mut self, key: &Key, error: &kube::Error) {
        let (Some(tracked), Some(served)) =
            (self.index.clusters.get(key), self.index.served.get(&Kind::Clusters))
        else {
            return;
        };
        let note =
            format!("the apiserver refused an update by the controller, which retries with backoff: {error}");
        self.tell(report::refusal(&tracked.metadata, served, note));
    }

    /// Publishes an Event. Nobody waits for it.
    fn tell(&mut self, news: NewEvent) {
        if self.telling >= TELLING_MAX {
            return tracing::debug!(note = news.note, "dropped an Event: too many are being sent");
        }
        self.telling += 1;
        self.told += 1;
        let (client, number, identity) = (self.client.clone(), self.told, self.identity.clone());
        let now = self.clock.wall();
        self.tasks
            .spawn(async move { Ended::Told(events::tell(client, news, number, &identity, now).await) });
    }

    /// Takes note of what failed for a VIP, or for what is said of a Cluster.
    fn failed(&mut self, key: &Key, role: Option<Role>, reason: &'static str, error: &kube::Error) {
        let failures = self.failures.failed((key.clone(), role), ANY_VERSION);
        if reason == CLUSTER_PATCH_FAILED && failures == REFUSALS_REPORTED && is_refused(error) {
            self.report_refused_write(key, error);
        }
        tracing::warn!(target: LOG, cluster = %key, %error, reason, "trying again later");
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

/// Why a VIP is not there yet: its Cluster could not be changed.
const CLUSTER_PATCH_FAILED: &str = "cluster_patch_failed";

/// Where log lines are from that scripts look for.
const LOG: &str = "controllers.Cluster";

/// How old a Cluster is, where it says when it was created.
pub fn age(created: Option<&Time>, now: Timestamp) -> Option<Duration> {
    created.map(|created| now.duration_since(created.0).unsigned_abs())
}

/// Whether a Cluster may be built with what is known of its VIP: it has one, or none is meant for it. The answer is otherwise what
/// is waited for: also a pool that may only not have been seen yet, because it came with the Cluster or somebody has claimed from it.
pub fn may_be_built(planned: &[(Role, Decision); 2], age: Option<Duration>) -> Result<(), String> {
    let [(_, control_plane), _] = planned;
    let is_new = age.is_some_and(|age| age < POOL_SEEN_MAX);
    match (&control_plane.said, &control_plane.step) {
        (Verdict::Assigned { .. } | Verdict::Manual(_), None)
        | (Verdict::NotWanted | Verdict::Leaving | Verdict::Paused, _) => Ok(()),
        (Verdict::NoPool { claimed_from: None, .. }, _) if !is_new => Ok(()),
        (said, _) => Err(said.to_string()),
    }
}
