//! The loop that addresses and VIPs share: it collects events, plans, acts and reports.
//!
//! ```text
//!           ┌── stand_by, until_complete: apply events, never act
//! events ───┤
//!           └── lead: apply a batch of events ──▶ reconcile (plan, act, report) ──▶ wait for the next event or deadline
//! ```
//!
//! In: a [`Reconcile`], which waits for events and knows when it must plan again. Out: calls of its methods, one at a
//! time. This module never reads an event, so it decides only when to plan, never what to do.

use std::time::Duration;

use plan::LastSteps;
use tokio::time::Instant;

use crate::kubernetes::events::Publisher;
use crate::metrics::LoopMetrics;
use crate::pulse::Pulse;

/// How long the loop collects further events of the watches before it plans.
const SETTLE: Duration = Duration::from_millis(5);

/// The maximum number of events before a plan. A flood of events must not delay moves.
const BATCH_MAX: usize = 256;

/// The maximum duration of processing events before a plan. Some events take milliseconds.
const BATCH_DURATION_MAX: Duration = Duration::from_millis(20);

/// The last steps of a leader, and how long after its end it takes them. Most calls end within the first phase, and the
/// next leader takes over at once. An address that is detached in the second phase can be attached in the third. The rest
/// of the time until Kubernetes kills the process is for calls to end.
const LAST_STEPS: [(LastSteps, Duration); 3] = [
    (LastSteps::Nothing, Duration::from_secs(2)),
    (LastSteps::Urgent, Duration::from_secs(5)),
    (LastSteps::Attach, Duration::from_secs(8)),
];

/// How long a process that stops leading waits for its Events.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// The longest pause between two plans.
pub const IDLE_MAX: Duration = Duration::from_secs(30);

/// What the loop drives.
pub trait Reconcile {
    /// A change in the cluster, or the result of a request.
    type Event: Send;

    /// Waits for the next event. If several are ready, one from `first` comes first. A cancelled wait loses no event.
    fn next_event(&mut self, first: Source) -> impl Future<Output = Self::Event> + Send;

    /// Where an event comes from.
    fn source(event: &Self::Event) -> Source;

    /// The time at which a watch delivered this event. None unless the event is a change of one object.
    fn changed_at(_event: &Self::Event) -> Option<Instant> {
        None
    }

    /// How many events of the watches wait to be applied.
    fn queue_length(&self) -> usize;

    /// Applies an event. Returns whether the next plan may differ because of it.
    fn apply(&mut self, event: Self::Event) -> bool;

    /// Whether the reconciler has read everything that it watches.
    fn is_complete(&self) -> bool;

    /// Plans, and starts the planned requests.
    fn reconcile(&mut self) -> Flow;

    /// When to plan again even without an event.
    fn next_due(&self) -> Option<Instant>;

    /// Reports the results of finished requests before the lease is released, and starts the last requests. Returns
    /// whether it has planned, so that [`Self::next_due`] is up to date.
    fn wind_down(&mut self, last: LastSteps) -> bool;

    /// Whether no request is in flight.
    fn is_idle(&self) -> bool;

    /// The publisher of its Events.
    fn events(&mut self) -> &mut Publisher;
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A watch. More events of watches may follow at once.
    Watches,
    /// A finished request of this process.
    Requests,
}

impl Source {
    fn other(self) -> Self {
        match self {
            Self::Watches => Self::Requests,
            Self::Requests => Self::Watches,
        }
    }
}

/// Whether this process continues to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It continues.
    Continue,
    /// Another process should take over.
    HandOver,
}

/// Waits for an event of a watch or for the result of a request. If both are ready, the one from `first` comes first.
pub async fn first_of<E>(
    first: Source,
    watched: impl Future<Output = E>,
    ended: impl Future<Output = E>,
) -> E {
    match first {
        Source::Watches => tokio::select! {
            biased;
            event = watched => event,
            event = ended => event,
        },
        Source::Requests => tokio::select! {
            biased;
            event = ended => event,
            event = watched => event,
        },
    }
}

/// A reconciler and its loop.
pub struct Loop<R> {
    /// What the loop drives.
    pub reconciler: R,
    metrics: LoopMetrics,
    /// When the loop last began to work. None while it waits for an event.
    works_since: Option<Instant>,
    /// When a watch delivered the first change that the next plan will consider.
    changed_at: Option<Instant>,
}

impl<R: Reconcile> Loop<R> {
    /// A loop that has not begun.
    pub fn new(reconciler: R, metrics: LoopMetrics) -> Self {
        Self { reconciler, metrics, works_since: None, changed_at: None }
    }

    /// Applies events without acting. Never returns.
    pub async fn stand_by(&mut self) {
        loop {
            self.apply_next().await;
        }
    }

    /// Applies events without acting until the reconciler has read everything that it watches.
    pub async fn until_complete(&mut self) {
        while !self.reconciler.is_complete() {
            self.apply_next().await;
        }
    }

    /// Reconciles until another process should take over.
    pub async fn lead(&mut self) {
        loop {
            self.works_since.get_or_insert_with(Instant::now);
            if self.reconciler.reconcile() == Flow::HandOver {
                return;
            }
            if let Some(at) = self.changed_at.take() {
                self.metrics.planned(at.elapsed());
            }
            self.collect(Instant::now() + IDLE_MAX).await;
        }
    }

    /// Waits until no request is in flight, and reports the results. If a call to a cloud does not end, addresses that no VM
    /// serves must not wait for it, so they still move for some seconds.
    pub async fn finish(&mut self) {
        let began = Instant::now();
        loop {
            let phase = LAST_STEPS.iter().find(|(_, ends)| began.elapsed() < *ends);
            let last = phase.map_or(LastSteps::Nothing, |(last, _)| *last);
            let has_planned = self.reconciler.wind_down(last);
            if self.reconciler.is_idle() || plan::sabotaged!(ReleasedWithCallsInFlight) {
                // Events that take longer are lost.
                _ = tokio::time::timeout(FLUSH_MAX, self.reconciler.events().flush()).await;
                return self.metrics.stop();
            }
            let latest = phase.map_or_else(Pulse::next, |(_, ends)| began + *ends);
            match has_planned {
                true => self.collect(latest).await,
                false => self.apply_before(latest.min(Pulse::next())).await,
            }
        }
    }

    /// Applies the next event, or returns after a while without one.
    async fn apply_next(&mut self) {
        self.apply_before(Pulse::next()).await;
    }

    /// Applies the next event, or returns when none is ready at `due`.
    async fn apply_before(&mut self, due: Instant) {
        if let Some(event) = self.next_before(Source::Requests, due).await {
            self.reconciler.apply(event);
        }
    }

    /// Applies events until a plan is needed: because of one of them, or because of a deadline, which is not after
    /// `latest`.
    async fn collect(&mut self, latest: Instant) {
        let mut first = Source::Requests;
        let mut needs_plan = false;
        while !needs_plan {
            let due = self.reconciler.next_due().map_or(latest, |due| due.min(latest));
            let Some(event) = self.next_before(first, due.min(Pulse::next())).await else {
                needs_plan = Instant::now() >= due;
                continue;
            };
            // Events of watches come in groups. Results of requests are processed at once.
            let settled = match R::source(&event) {
                Source::Watches => Instant::now() + SETTLE,
                Source::Requests => Instant::now(),
            };
            let batch_ends = Instant::now() + BATCH_DURATION_MAX;
            needs_plan = self.apply(event);
            for _ in 1..BATCH_MAX {
                if Instant::now() >= batch_ends {
                    break;
                }
                first = first.other();
                let Some(event) = self.next_before(first, settled).await else { break };
                needs_plan |= self.apply(event);
            }
            // The deadline may have passed in the meantime, and the reconciler does not report it again.
            needs_plan |= Instant::now() >= due;
        }
    }

    /// Applies an event for the next plan. Returns whether that plan may differ because of it.
    fn apply(&mut self, event: R::Event) -> bool {
        self.changed_at = self.changed_at.or_else(|| R::changed_at(&event));
        self.reconciler.apply(event)
    }

    /// The next event, or none if no event is ready at `due`. An event that is ready is returned even after `due`.
    async fn next_before(&mut self, first: Source, due: Instant) -> Option<R::Event> {
        if let Some(since) = self.works_since.take() {
            self.metrics.worked(since.elapsed(), self.reconciler.queue_length());
        }
        let event = tokio::select! {
            biased;
            event = self.reconciler.next_event(first) => Some(event),
            () = tokio::time::sleep_until(due) => None,
        };
        self.metrics.beat();
        self.works_since = Some(Instant::now());
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Identity, Metrics};
    use kube::Client;
    use kube::client::Body;
    use std::collections::VecDeque;
    use tower::BoxError;

    /// Events with the time at which they become ready, and whether they change something.
    struct Fake {
        watched: VecDeque<(Instant, bool)>,
        ended: VecDeque<(Instant, bool)>,
        applied: Vec<Source>,
        /// The time of each plan, and how many events were applied before it.
        plans: Vec<(Instant, usize)>,
        due: Option<Instant>,
        hands_over_after: usize,
        /// Each call of `wind_down`.
        wound_down: Vec<(Instant, LastSteps)>,
        /// Whether `wind_down` plans.
        plans_last: bool,
        /// How long each plan takes.
        plan_takes: Duration,
        events: Publisher,
    }

    impl Fake {
        /// Hands over with the plan of this number.
        fn plans(count: usize) -> Self {
            let nowhere = tower::service_fn(|_: http::Request<Body>| {
                std::future::pending::<Result<http::Response<Body>, BoxError>>()
            });
            Self {
                watched: VecDeque::new(),
                ended: VecDeque::new(),
                applied: Vec::new(),
                plans: Vec::new(),
                due: None,
                hands_over_after: count,
                wound_down: Vec::new(),
                plans_last: true,
                plan_takes: Duration::ZERO,
                events: Publisher::new(Client::new(nowhere, "default"), "me"),
            }
        }

        fn in_loop(self) -> Loop<Self> {
            self.with_metrics(&Metrics::new(&Identity::default()).unwrap())
        }

        fn with_metrics(self, metrics: &Metrics) -> Loop<Self> {
            Loop::new(self, metrics.of_loop("fake"))
        }
    }

    async fn ready(events: &mut VecDeque<(Instant, bool)>) -> bool {
        let Some((at, _)) = events.front().copied() else { return std::future::pending().await };
        tokio::time::sleep_until(at).await;
        events.pop_front().is_some_and(|(_, changes)| changes)
    }

    impl Reconcile for Fake {
        type Event = (Source, bool);

        async fn next_event(&mut self, first: Source) -> Self::Event {
            let Self { watched, ended, .. } = self;
            let watched = async { (Source::Watches, ready(watched).await) };
            let ended = async { (Source::Requests, ready(ended).await) };
            first_of(first, watched, ended).await
        }

        fn source((source, _): &Self::Event) -> Source {
            *source
        }

        fn changed_at((source, _): &Self::Event) -> Option<Instant> {
            (*source == Source::Watches).then(Instant::now)
        }

        fn queue_length(&self) -> usize {
            self.watched.len()
        }

        fn apply(&mut self, (source, changes): Self::Event) -> bool {
            self.applied.push(source);
            changes
        }

        fn is_complete(&self) -> bool {
            !self.applied.is_empty()
        }

        fn reconcile(&mut self) -> Flow {
            self.plans.push((Instant::now(), self.applied.len()));
            std::thread::sleep(self.plan_takes);
            if self.plans.len() < self.hands_over_after { Flow::Continue } else { Flow::HandOver }
        }

        fn next_due(&self) -> Option<Instant> {
            self.due.filter(|due| *due > Instant::now())
        }

        fn wind_down(&mut self, last: LastSteps) -> bool {
            self.wound_down.push((Instant::now(), last));
            self.plans_last
        }

        fn is_idle(&self) -> bool {
            self.ended.is_empty()
        }

        fn events(&mut self) -> &mut Publisher {
            &mut self.events
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_plan_follows_a_group_of_watch_events() {
        let (mut fake, now) = (Fake::plans(2), Instant::now());
        fake.watched.extend((0..4).map(|number| (now + Duration::from_millis(number), true)));
        let mut fake = fake.in_loop();
        fake.lead().await;
        let fake = fake.reconciler;
        assert_eq!(fake.plans, [(now, 0), (now + SETTLE, 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_result_of_a_request_is_planned_for_at_once() {
        let (mut fake, now) = (Fake::plans(2), Instant::now());
        let then = now + Duration::from_secs(1);
        fake.ended.push_back((then, true));
        let mut fake = fake.in_loop();
        fake.lead().await;
        let fake = fake.reconciler;
        assert_eq!(fake.plans, [(now, 0), (then, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_changes_nothing_causes_no_plan() {
        let (mut fake, now) = (Fake::plans(2), Instant::now());
        fake.ended.extend([(now, false), (now + Duration::from_secs(1), false)]);
        let mut fake = fake.in_loop();
        fake.lead().await;
        let fake = fake.reconciler;
        assert_eq!(fake.plans, [(now, 0), (now + IDLE_MAX, 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_events_delays_neither_a_plan_nor_results() {
        let (mut fake, now) = (Fake::plans(2), Instant::now());
        fake.watched.extend((0..10_000).map(|_| (now, true)));
        fake.ended.extend((0..100).map(|_| (now, true)));
        let mut fake = fake.in_loop();
        fake.lead().await;
        let fake = fake.reconciler;
        let results = fake.applied.iter().filter(|source| **source == Source::Requests).count();
        assert_eq!((fake.plans[1].1, results), (BATCH_MAX, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_causes_a_plan_without_an_event() {
        let (mut fake, now) = (Fake::plans(3), Instant::now());
        fake.due = Some(now + Duration::from_secs(7));
        let mut fake = fake.in_loop();
        fake.lead().await;
        let fake = fake.reconciler;
        let expected = [now, now + Duration::from_secs(7), now + Duration::from_secs(7) + IDLE_MAX];
        assert_eq!(fake.plans.iter().map(|(at, _)| *at).collect::<Vec<_>>(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_passes_while_events_are_collected_causes_a_plan() {
        let (mut fake, now) = (Fake::plans(2), Instant::now());
        fake.due = Some(now + Duration::from_secs(7));
        let event = now + Duration::from_millis(6_998);
        fake.watched.push_back((event, false));
        let mut fake = fake.in_loop();
        fake.lead().await;
        let fake = fake.reconciler;
        assert_eq!(fake.plans[1], (event + SETTLE, 1));
    }

    #[tokio::test]
    async fn metrics_show_slow_plans_and_the_events_that_wait() {
        let metrics = Metrics::new(&Identity::default()).unwrap();
        let (mut fake, now) = (Fake::plans(3), Instant::now());
        fake.plan_takes = Duration::from_millis(60);
        fake.watched.extend([(now, true), (now + Duration::from_secs(3_600), true)]);
        fake.ended.push_back((now + Duration::from_millis(100), true));
        fake.with_metrics(&metrics).lead().await;
        let text = metrics.text().unwrap();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        let lag = value(r#"ip_address_controller_loop_lag_seconds_sum{loop="fake"} "#);
        assert!(lag.is_some_and(|seconds| seconds >= 0.12), "the lag contains two plans: {text}");
        let planned = value(r#"ip_address_controller_event_to_plan_seconds_sum{loop="fake"} "#);
        assert!(planned.is_some_and(|seconds| seconds >= 0.06), "{text}");
        let count = value(r#"ip_address_controller_event_to_plan_seconds_count{loop="fake"} "#);
        assert_eq!(count, Some(1.0), "only one event came from a watch");
        assert_eq!(value(r#"ip_address_controller_loop_queue_length{loop="fake"} "#), Some(1.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_standby_applies_events_and_plans_nothing() {
        let (mut fake, now) = (Fake::plans(1), Instant::now());
        fake.watched.extend([(now, true), (now, true)]);
        let mut fake = fake.in_loop();
        fake.until_complete().await;
        assert_eq!(fake.reconciler.applied.len(), 1);
        let an_hour = Duration::from_secs(3_600);
        assert!(tokio::time::timeout(an_hour, fake.stand_by()).await.is_err());
        assert_eq!((fake.reconciler.applied.len(), fake.reconciler.plans.len()), (2, 0));
        assert!(fake.metrics.is_alive(), "a standby without events is alive");
    }

    #[tokio::test(start_paused = true)]
    async fn finish_waits_for_all_requests() {
        let (mut fake, now) = (Fake::plans(1), Instant::now());
        let last = now + Duration::from_secs(20);
        fake.ended.extend([(now, true), (last, true)]);
        let mut fake = fake.in_loop();
        fake.finish().await;
        assert_eq!((Instant::now(), fake.reconciler.plans.len()), (last, 0));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(fake.metrics.is_alive(), "a loop that has finished may wait for others");
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_request_does_not_end_the_last_steps_follow_each_other() {
        use LastSteps::{Attach, Nothing, Urgent};
        for plans_last in [true, false] {
            let (mut fake, now) = (Fake { plans_last, ..Fake::plans(1) }, Instant::now());
            fake.ended.extend([3_000, 19_500].map(|at| (now + Duration::from_millis(at), true)));
            let mut fake = fake.in_loop();
            fake.finish().await;
            let called = |(at, last): &(Instant, LastSteps)| ((*at - now).as_secs(), *last);
            let called: Vec<_> = fake.reconciler.wound_down.iter().map(called).collect();
            let expected = [
                (0, Nothing),
                (2, Urgent),
                (3, Urgent),
                (5, Attach),
                (8, Nothing),
                (13, Nothing),
                (18, Nothing),
                (19, Nothing),
            ];
            assert_eq!(called, expected, "plans: {plans_last}");
        }
    }
}
