//! The reconcile loop: it processes events, plans, acts and reports.
//!
//! ```text
//! watches ─┐                                       ┌─▶ report (journal and status, marks)
//! clouds ──┼─▶ observe ──▶ plan ──▶ journal ───────┤
//! outcomes ┘                                       └─▶ act (on entries in the journal that a later listing confirms)
//! ```
//!
//! In: events of the watches, listings of the providers, and outcomes. Out: calls of the executor and writes of the
//! reporter.
//!
//! The loop adds new moves to the journal in memory at once, as pending, so the next plan takes them into account. An
//! entry gets its `written` tick when the apiserver has stored it. The planner allows the first call only after a
//! listing that started later than that.

mod events;
mod outcomes;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use drivers::times::later;
use plan::{
    Epoch, EventReason, Journal, LastSteps, Plan, Scope, SignedDuration, Timestamp, Verdict, VmId, Waits,
};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::execute::{Ended, Executor};
use super::index::Index;
use super::kind::Kind;
use super::metrics::AddressMetrics;
use super::needed::Needed;
use super::report::{Reporter, Written};
use super::resources::{floating_ip_pool, net_ip_allocation};
use super::watch::{Inbox, Received};
use crate::backoff::{Backoff, Retry};
use crate::kubernetes::events::{NewEvent, Publisher};
use crate::kubernetes::watch::Relists;
use crate::kubernetes::write::is_refused;
use crate::leadership::clock::{Clock, Suspends};
use crate::providers::listings::{Clouds, Response, ResponseKind};
use crate::reconciler::{Flow, IDLE_MAX, Reconcile, Source, first_of};

/// The maximum age of a VM's state.
const MACHINES_AGE_MAX: Duration = Duration::from_secs(60);

/// If the difference between two clocks changes by no more than this, nobody has set a clock: the process reads one
/// after the other.
const CLOCKS_AGREE: Duration = Duration::from_millis(10);

/// The pause between two evictions for an object.
const EVICTION_PAUSE: Duration = Duration::from_secs(5);

/// The number of evictions is reset this long after the last one.
const EVICTIONS_FORGOTTEN: Duration = Duration::from_secs(1_800);

/// The shortest interval between two updates of the metrics about objects and nodes. A cluster may have many of both.
const DESCRIBE_EVERY: Duration = Duration::from_secs(1);

/// The reconciler of addresses and DNS names.
pub struct Reconciler {
    index: Index,
    seen: mpsc::UnboundedReceiver<Received>,
    /// The rest of an event that takes long to process. It is processed before all other watch events.
    rest: Option<Received>,
    relists: Relists<Kind>,
    needed: watch::Sender<Needed>,
    clouds: Clouds,
    executor: Executor,
    reporter: Reporter,
    clock: Arc<dyn Clock>,
    suspends: Suspends,
    /// The last difference between the wall clock and the time since boot.
    wall_ahead: Option<SignedDuration>,
    metrics: AddressMetrics,
    retry: Retry,
    /// The failures of each address since it was last attached.
    failures: Backoff<plan::Address>,
    /// Failures to restore the ephemeral address of a VM.
    failed_restores: Backoff<plan::VmId>,
    failed_creations: Backoff<plan::PoolKey>,
    /// For each pool, the number of recent evictions, and the time of the last one.
    evictions: BTreeMap<plan::PoolKey, (u32, Instant)>,
    /// Failures to read or write the records of a DNS name.
    failed_records: Backoff<plan::RecordName>,
    /// When to read the UID of the namespace kube-system. `None` while the request is in flight.
    cluster_due: Option<Instant>,
    /// Pools whose last eviction failed and was reported.
    not_evicted: BTreeSet<plan::PoolKey>,
    next_plan: Instant,
    /// When the provider last reported the state of a VM.
    machines_listed: BTreeMap<VmId, Instant>,
    /// When the unfinished moves started.
    begun: BTreeMap<plan::Address, Instant>,
    /// When the metrics about objects and nodes were last updated.
    described: Option<Instant>,
}

/// An event that wakes up the loop.
pub enum Happened {
    /// An event of a watch.
    Observed(Received),
    /// A response of a provider to a listing.
    Responded(Response),
    /// The result of a call.
    Ended(Ended),
    /// The result of a write.
    Written(Written),
}

impl Reconciler {
    /// A reconciler that has not processed any event.
    pub fn new(
        inbox: Inbox,
        clouds: Clouds,
        executor: Executor,
        reporter: Reporter,
        clock: Arc<dyn Clock>,
        metrics: AddressMetrics,
        retry: Retry,
    ) -> Self {
        let mut index = Index::default();
        index.world.moves_in_one_call = executor.providers_where(|properties| properties.moves_in_one_call);
        index.world.refuses_occupied = executor.providers_where(|properties| properties.refuses_occupied);
        Self {
            index,
            seen: inbox.events,
            rest: None,
            relists: inbox.relists,
            needed: inbox.needed,
            clouds,
            executor,
            reporter,
            clock,
            suspends: Suspends::default(),
            wall_ahead: None,
            metrics,
            retry,
            failures: Backoff::new(retry),
            failed_restores: Backoff::new(retry),
            failed_creations: Backoff::new(retry),
            evictions: BTreeMap::new(),
            failed_records: Backoff::new(retry),
            cluster_due: Some(Instant::now()),
            not_evicted: BTreeSet::new(),
            next_plan: Instant::now(),
            machines_listed: BTreeMap::new(),
            begun: BTreeMap::new(),
            described: None,
        }
    }

    /// The highest epoch in any journal.
    pub fn last_epoch(&self) -> Epoch {
        let epochs = self.index.world.pools().flat_map(|pool| match &pool.journal {
            Journal::Known(moves) => {
                let of_creation = pool.creation.iter().map(|entry| entry.epoch);
                moves.values().map(|entry| entry.epoch).chain(of_creation).collect()
            }
            Journal::Unreadable => Vec::new(),
        });
        epochs.max().unwrap_or_default()
    }

    /// Sets the node whose address this process does not detach. The process hands over leadership instead, and the
    /// next leader detaches the address.
    pub fn spare(&mut self, node: Option<plan::NodeName>) {
        self.index.world.own_node = node;
    }

    /// Sets the owner ID in the owner marks of DNS records. `None`: the UID of the namespace kube-system.
    pub fn sign_records_as(&mut self, owner: Option<Arc<str>>) {
        self.index.world.dns_owner = owner;
    }

    /// Sets the maximum number of created addresses.
    pub fn limit_creations(&mut self, max: usize) {
        self.index.world.created_max = Some(max);
    }

    /// Prepares to lead with the given epoch.
    pub fn begin_to_lead(&mut self, epoch: Epoch) {
        self.index.world.epoch = epoch;
        self.index.world.losses = self.index.remembered_losses();
        self.index.distrust_late_reads(&self.executor.late_reads());
        self.metrics.process.set_leader(true);
    }

    /// Moves the ends of all pauses if somebody has set the wall clock, so each pause keeps its length. Distrusts what is
    /// known if the machine was suspended.
    fn follow_clock(&mut self) {
        if self.suspends.noticed(&*self.clock) {
            self.index.note_suspend();
        }
        let since_boot = SignedDuration::try_from(self.clock.since_boot()).unwrap_or_default();
        let ahead = self.clock.wall().as_duration().saturating_sub(since_boot);
        let moved = ahead.saturating_sub(*self.wall_ahead.get_or_insert(ahead));
        if moved.unsigned_abs() > CLOCKS_AGREE {
            self.wall_ahead = Some(ahead);
            self.index.world.clock_moved(moved);
        }
    }

    /// Plans, and starts the resulting calls and writes. Returns whether another process should lead.
    fn plan_and_act(&mut self) -> bool {
        self.follow_clock();
        let (now, began) = (self.clock.wall(), Instant::now());
        self.reporter.catch_up(&self.index);
        self.index.let_late_reads_pass();
        self.index.retry_outdated();
        if !plan::sabotaged!(InFlightForgotten) {
            self.index.world.in_flight = self.executor.in_flight.clone();
        }
        self.index.world.avoid_addresses.retain(|_, pause| pause.until > now);
        self.index.world.turns.retain(|_, turn| turn.at > now);
        self.index.world.avoid_machines.retain(|_, until| *until > now);
        self.index.world.avoid_creations.retain(|_, pause| pause.until > now);
        self.index.world.avoid_evictions.retain(|_, until| *until > now);
        self.index.world.avoid_records.retain(|_, pause| pause.until > now);
        self.index.world.record_reads_due.retain(|_, turn| *turn > now);
        self.machines_listed.retain(|vm, at| {
            let is_fresh = at.elapsed() <= MACHINES_AGE_MAX;
            if !is_fresh {
                self.index.world.machines.remove(vm);
            }
            is_fresh
        });
        self.index.world.unwritable = self
            .reporter
            .unwritable(&self.index)
            .into_iter()
            .map(|(key, until)| (key, self.clock_at(until)))
            .collect();
        let plan = self.plan(now);
        for (scope, machines) in &plan.ask_machines {
            self.clouds.ask_machines(scope, machines);
        }
        for step in plan.steps.iter().filter(|step| step.action.is_call()) {
            if !self.reporter.is_writing(&step.pool) {
                tracing::info!(object = %step.pool, address = %step.address, "move" = self.move_id(step.address), %step, "starting step");
                // This step may add or remove the ephemeral address of the VM, so the known fact is no longer valid.
                step.action.machine().iter().for_each(|vm| _ = self.index.world.has_ephemeral.remove(*vm));
                self.executor.begin(step.clone());
            }
        }
        self.evict(&plan);
        self.create(&plan);
        self.publish_names(&plan);
        self.journal(&plan, now);
        self.relists.ask(|kind| plan.relist.overlaps(kind.for_planner()));
        let (ask_again, hands_over) = (plan.ask_again, plan.hands_over);
        // If the plan has steps, the status has to show them, so plan again. Most plans have none and stay valid.
        let after = if plan.steps.is_empty() && plan.creations.is_empty() && plan.records.is_empty() {
            plan
        } else {
            self.index.world.in_flight = self.executor.in_flight.clone();
            self.plan(now)
        };
        self.relists.ask(|kind| after.relist.overlaps(kind.for_planner()));
        self.reporter.publish(&self.index, &after, now);
        for report in self.index.undecodable.due(Instant::now()) {
            let (kind, api_version) = report.kind.named();
            self.reporter.events.publish(NewEvent::of_undecodable(&report, &kind, &api_version), now);
        }
        let (scopes, busy) = (self.index.scopes(), self.busy(&after));
        let index = &mut self.index;
        let begin = |scope: &_, is_denied: bool| (index.tick(), index.named(scope, is_denied));
        self.clouds.ask(&scopes, &busy, &after.read_again, &after.listing_age_max, begin);
        let ask_again = ask_again.map(|at| later(Instant::now(), until(at, now)));
        for (key, verdicts) in &after.verdicts {
            let is_error = verdicts.iter().any(|(_, verdict)| is_error(verdict));
            self.metrics.evaluated(key, is_error, began.elapsed());
        }
        let describe = self.describe();
        let due = ask_again.into_iter().chain(describe).chain([Instant::now() + IDLE_MAX]);
        self.next_plan = due.min().unwrap_or(self.next_plan);
        hands_over
    }

    /// The scopes in which not all is settled. A person may mend that at the provider, so they are listed more often.
    fn busy(&self, plan: &Plan) -> BTreeSet<Scope> {
        let is_unsettled = |(key, verdicts): &(&plan::PoolKey, &Vec<_>)| {
            let is_settled = |(_, verdict): &(plan::Address, Verdict)| verdict.is_settled();
            plan.lacking.contains_key(*key) || !verdicts.iter().all(is_settled)
        };
        let unsettled = plan.verdicts.iter().filter(is_unsettled).map(|(key, _)| key);
        unsettled.filter_map(|key| Some(self.index.world.pool(key)?.scope.clone())).collect()
    }

    /// Plans, and stores for the next plan since when holders have been lost, addresses unmatched and states unknown. Every
    /// plan stores them, because every plan may be written to a status.
    fn plan(&mut self, now: Timestamp) -> Plan {
        self.index.note_outdated();
        self.index.note_grace_starts(now);
        let mut plan = plan::plan(&self.index.world, now);
        // An object that is not in the cache may have an address on any node, so marks of its kind stay.
        plan.marks.uncertain.extend(self.index.unread_address_kinds());
        // So may an object that was created while the watch of its kind was silent.
        if self.index.world.silent.has(plan::Kind::Pools) {
            if self.reporter.has_marks_to_change(&self.index, &plan.marks) {
                plan.relist = plan.relist.with(plan::Kind::Pools);
            }
            plan.marks.uncertain.extend([net_ip_allocation::KIND, floating_ip_pool::KIND]);
        }
        self.index.world.losses = plan.losses.clone();
        self.index.world.unmatched = plan.unmatched.clone();
        self.index.world.unknown_since = plan.unknown_since.clone();
        plan
    }

    /// The wall clock time of a future instant.
    fn clock_at(&self, moment: Instant) -> Timestamp {
        let now = self.clock.wall();
        now.checked_add(moment.saturating_duration_since(Instant::now())).unwrap_or(now)
    }

    /// Updates the metrics about objects and nodes, or returns when that is due.
    fn describe(&mut self) -> Option<Instant> {
        let due = self.described.map(|last| later(last, DESCRIBE_EVERY)).filter(|due| *due > Instant::now());
        if due.is_none() {
            self.metrics.describe(&self.index);
            self.described = Some(Instant::now());
        }
        due
    }
}

impl Reconcile for Reconciler {
    type Event = Happened;

    async fn next_event(&mut self, first: Source) -> Happened {
        let Self { seen, rest, clouds, executor, reporter, .. } = self;
        let watched = async {
            if let Some(rest) = rest.take() {
                return Happened::Observed(rest);
            }
            match seen.recv().await {
                Some(seen) => Happened::Observed(seen),
                None => std::future::pending().await,
            }
        };
        // Results of the executor come before others, because they correct the facts.
        let ended = async {
            tokio::select! {
                biased;
                ended = executor.ended() => Happened::Ended(ended),
                written = reporter.written() => Happened::Written(written),
                response = clouds.next_response() => Happened::Responded(response),
            }
        };
        first_of(first, watched, ended).await
    }

    fn queue_length(&self) -> usize {
        self.seen.len() + usize::from(self.rest.is_some())
    }

    fn source(event: &Happened) -> Source {
        if matches!(event, Happened::Observed(_)) { Source::Watches } else { Source::Requests }
    }

    fn changed_at(event: &Happened) -> Option<Instant> {
        match event {
            Happened::Observed(received) if received.is_change() => Some(received.at),
            _ => None,
        }
    }

    fn apply(&mut self, happened: Happened) -> bool {
        self.follow_clock();
        match happened {
            Happened::Observed(Received { at, seen }) => {
                let listed = seen.answers_relist();
                self.rest = self.index.observe(seen).map(|seen| Received { at, seen });
                if let Some(kind) = listed.filter(|_| self.rest.is_none()) {
                    self.relists.answered(kind);
                }
            }
            Happened::Responded(Response { scope, what: ResponseKind::Addresses(as_of, listing) }) => {
                self.index.observe_listing(&scope, listing, as_of);
            }
            Happened::Responded(Response { what: ResponseKind::Machines(asked, Ok(machines)), .. }) => {
                self.index.observe_machines(&asked, &machines);
                self.machines_listed.extend(asked.into_iter().map(|vm| (vm, Instant::now())));
            }
            Happened::Responded(Response { scope, what: ResponseKind::Machines(_, Err(error)) }) => {
                tracing::warn!(%scope, %error, "failed to list VMs");
            }
            Happened::Ended(Ended::Step(outcome)) => self.note_outcome(outcome),
            Happened::Ended(Ended::Creation(created)) => self.note_created(created),
            Happened::Ended(Ended::Eviction(evicted)) => self.note_evicted(evicted),
            Happened::Ended(Ended::Record(recorded)) => self.note_recorded(recorded),
            Happened::Ended(Ended::ClusterId(asked)) => self.note_cluster_id(asked),
            Happened::Written(Written::Object(key, _, Ok(answered))) => {
                self.index.observe_object_written(&key, answered)
            }
            Happened::Written(Written::Object(key, _, Err(error))) => {
                tracing::warn!(object = %key, %error, "failed to update object");
            }
            Happened::Written(Written::Status(key, sent, Ok(answered))) => {
                if let Some(note) = self.index.observe_written(&key, &sent, answered) {
                    self.publish_event(&key, EventReason::OutdatedCRD, note);
                }
                self.reporter.publish_after_write(&key, self.clock.wall());
            }
            Happened::Written(Written::Status(key, _, Err(error))) => {
                tracing::warn!(object = %key, %error, "failed to update status");
                if !matches!(&error, kube::Error::Api(status) if status.is_conflict()) {
                    self.metrics.not_written(&key);
                }
                // A refused write has no effect, so the pool goes back to the stored status. A write without a response
                // may have taken effect, so the pool stays as it is, and the reporter writes it again.
                if is_refused(&error) {
                    self.index.refresh(&key);
                }
            }
            Happened::Written(Written::Marks(node, _, Err(error))) => {
                tracing::warn!(%node, %error, "failed to update node labels and annotations")
            }
            Happened::Written(Written::Marks(..)) => {}
        }
        if let Some(needed) = self.index.take_needed() {
            self.needed.send_replace(needed);
        }
        if self.index.lacks_labels() {
            self.relists.ask(|kind| kind == Kind::Pods);
        }
        self.metrics.process.set_ready(self.index.is_complete());
        true
    }

    fn is_complete(&self) -> bool {
        self.index.is_complete()
    }

    fn reconcile(&mut self) -> Flow {
        self.next_plan = Instant::now() + IDLE_MAX;
        if self.plan_and_act() { Flow::HandOver } else { Flow::Continue }
    }

    fn next_due(&self) -> Option<Instant> {
        let others = [self.clouds.next_due(), self.reporter.next_due()];
        others.into_iter().flatten().chain([self.next_plan]).min()
    }

    fn wind_down(&mut self, last: LastSteps) -> bool {
        self.executor.hand_over();
        // Without earlier calls, the next leader can take over soon.
        let last = if self.executor.has_earlier_calls() { last } else { LastSteps::Nothing };
        self.index.world.last_steps = Some(last);
        if self.executor.is_idle() {
            self.reporter.write_last();
        }
        // The process hands over already, so it does not matter what this returns.
        let (Flow::Continue | Flow::HandOver) = self.reconcile();
        true
    }

    fn is_idle(&self) -> bool {
        self.executor.is_idle() && self.reporter.is_idle()
    }

    fn events(&mut self) -> &mut Publisher {
        &mut self.reporter.events
    }
}

/// Whether a verdict counts as an error in the metrics.
fn is_error(verdict: &Verdict) -> bool {
    let waits = |waits: &Waits| {
        matches!(
            waits,
            Waits::ForRetry(_) | Waits::ForNewerController | Waits::ForCorrection | Waits::ForStateOf(_)
        )
    };
    matches!(verdict, Verdict::Unknown(_)) || matches!(verdict, Verdict::Waits(why) if waits(why))
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}
