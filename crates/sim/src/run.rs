//! One run: a cluster, its clouds and the controller's processes.
//!
//! In: a seed and a script. Out: the violated invariants and the event log. It starts, stops, crashes and restarts
//! processes. In the cluster it edits only the Lease: `cluster` changes the rest.

use std::sync::Arc;
use std::time::Duration;

use controller::backoff::Retry;
use controller::leadership::lease::RETRY;
use controller::metrics::Identity;
use controller::runtime::{AllMetrics, Options, control};
use futures::FutureExt;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::clouds::clouds;
use crate::cluster::Cluster;
use crate::edges::edges;
use crate::event::{Event, LeaseEdit, Replica};
use crate::ipam::Ipam;
use crate::judge::{self, Written};
use crate::options::{self, CHAOS, CREATED_MAX, DNS_OWNER, LEASE, RETRY_SHORTEST, TAKEOVER};
use crate::rng::Rng;
use crate::universe::{Process, Universe};
use crate::violation::Violation;

/// How long a run may take to settle after the last fault. Every backoff is shorter.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(400);

/// After a run has settled, no process may write anything for this long.
const QUIET: Duration = Duration::from_secs(90);

/// A process that has ended is restarted after this time.
const RESTART: Duration = Duration::from_secs(3);

/// The result of a run.
pub struct Outcome {
    /// The violated invariants. Empty if the run succeeded.
    pub violations: Vec<Violation>,
    /// The event log.
    pub story: Vec<String>,
    /// Number of attaches of addresses that were attached before, except those by people.
    pub failovers: usize,
    /// A hash of all requests, with their times and senders.
    pub trace: u64,
    /// How long the run took in virtual time.
    pub simulated: Duration,
}

/// Runs one seed with a script, in virtual time.
pub fn run(seed: u64, script: &[(Duration, Event)]) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => runtime.block_on(play(seed, script)),
        Err(error) => Outcome {
            violations: vec![Violation { invariant: "I0", what: error.to_string() }],
            story: Vec::new(),
            failovers: 0,
            trace: 0,
            simulated: Duration::ZERO,
        },
    }
}

async fn play(seed: u64, script: &[(Duration, Event)]) -> Outcome {
    let universe = Universe::new(seed, clouds());
    let mut cluster = Cluster::new(seed, Arc::clone(&universe));
    let mut fleet = Fleet::new(seed, Arc::clone(&universe));
    let ipam = tokio::spawn(Ipam::new(seed, Arc::clone(&universe)).work());
    let violations = match live(&universe, &mut cluster, &mut fleet, script).await {
        Some(before) => judge::judge(&universe, &cluster, before, script.len()).await,
        None => judge::on_the_way(&universe),
    };
    fleet.end();
    ipam.abort();
    let failovers = judge::failovers(&universe, &cluster);
    let trace = universe.traced();
    Outcome { violations, story: universe.story(), failovers, trace, simulated: universe.elapsed() }
}

/// Applies the script, ends all faults, and waits until the run has settled. Returns how much had been written by then.
/// Returns None as soon as a check fails, because later events have no influence on that.
async fn live(
    universe: &Universe,
    cluster: &mut Cluster,
    fleet: &mut Fleet,
    script: &[(Duration, Event)],
) -> Option<Written> {
    for (at, event) in script {
        fleet.supervise_until(*at).await?;
        cluster.happen(event);
        fleet.happen(event);
    }
    fleet.supervise_until(CHAOS).await?;
    universe.log("all faults end");
    fleet.heal();
    cluster.heal();
    fleet.supervise_until(CHAOS + SETTLES_WITHIN / 2).await?;
    cluster.resolve();
    let settled_at = CHAOS + SETTLES_WITHIN;
    fleet.supervise_until(settled_at).await?;
    let before = judge::written(universe);
    fleet.supervise_until(settled_at + QUIET).await?;
    Some(before)
}

/// The processes of the controller.
struct Fleet {
    universe: Arc<Universe>,
    rng: Rng,
    processes: Vec<Option<Running>>,
    started: u64,
    /// Scheduled restarts and resumptions.
    later: Vec<(Duration, Later)>,
}

struct Running {
    process: Arc<Process>,
    task: JoinHandle<()>,
    terminate: Option<oneshot::Sender<()>>,
}

enum Later {
    Resume(Arc<Process>),
    Start(usize),
}

impl Fleet {
    fn new(seed: u64, universe: Arc<Universe>) -> Self {
        let mut fleet = Self {
            universe,
            rng: Rng::new(seed, "fleet"),
            processes: (0..options::replicas(seed)).map(|_| None).collect(),
            started: 0,
            later: Vec::new(),
        };
        (0..fleet.processes.len()).for_each(|replica| fleet.start(replica));
        fleet
    }

    fn start(&mut self, replica: usize) {
        self.started += 1;
        // Up to 0.1 % too fast or too slow: more than a real clock drifts.
        let drift = i64::try_from(self.rng.roll(2_000)).unwrap_or(0) - 1_000;
        let process = Process::new(self.started, Arc::clone(&self.universe), drift);
        let (terminate, asked) = oneshot::channel::<()>();
        let options = Options {
            identity: format!("p{}", self.started),
            // Each replica of the controller runs on a node that can hold an address.
            node: Some(format!("edge-{replica}").as_str().into()),
            namespace: None,
            lease: ("kube-system".into(), "lease".into()),
            lease_duration: LEASE,
            takeover: TAKEOVER,
            retry: Retry { shortest: RETRY_SHORTEST, longest: Duration::from_secs(60) },
            dns_owner: Some(DNS_OWNER.into()),
            created_max: CREATED_MAX,
            keeps_addresses: true,
            vips: Some(controller::settings::VipOptions { allocates: true, default_port: 6443 }),
        };
        let Ok(metrics) = AllMetrics::new(&Identity::default()) else { return };
        let edges = edges(&self.universe, &process, &metrics.process);
        let (universe, number, stop) = (Arc::clone(&self.universe), self.started, process.stop.clone());
        universe.log(&format!("p{number} starts"));
        let task = tokio::spawn(async move {
            let asked = async move {
                // A dropped sender is not a request to stop.
                if asked.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let ended = stop.rules(control(edges, options, metrics, asked.boxed())).await;
            let ended = ended.map_err(|error| error.to_string());
            universe.log(&format!("p{number} ends: {ended:?}"));
        });
        self.processes[replica] = Some(Running { process, task, terminate: Some(terminate) });
    }

    /// Lets time pass, and restarts processes that have ended. Returns None if a check has failed.
    async fn supervise_until(&mut self, until: Duration) -> Option<()> {
        const LOOK: Duration = Duration::from_millis(250);
        loop {
            if self.universe.has_violation() {
                return None;
            }
            let now = self.universe.elapsed();
            let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= now);
            self.later = later;
            let due: Vec<(Duration, Later)> = due;
            for (_, what) in due {
                self.happen_later(what);
            }
            for replica in 0..self.processes.len() {
                let has_ended =
                    |running: &mut Running| running.task.is_finished() || running.process.is_dead();
                if let Some(ended) = self.processes[replica].take_if(has_ended) {
                    ended.task.abort();
                    self.later.push((now + RESTART, Later::Start(replica)));
                }
            }
            match until.checked_sub(now) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left.min(LOOK)).await,
                _ => return Some(()),
            }
        }
    }

    fn happen_later(&mut self, what: Later) {
        match what {
            Later::Resume(process) => {
                let is_same =
                    |later: &Later| matches!(later, Later::Resume(other) if other.number == process.number);
                let is_stopped_longer = self.later.iter().any(|(_, later)| is_same(later));
                if !is_stopped_longer && !process.is_dead() {
                    self.universe.log(&format!("p{} resumes", process.number));
                    process.stop.set(false);
                }
            }
            Later::Start(replica) if self.processes[replica].is_none() => self.start(replica),
            Later::Start(_) => {}
        }
    }

    fn happen(&mut self, event: &Event) {
        let now = self.universe.elapsed();
        let (leader, count) = (self.leader(), self.processes.len());
        let of = |replica: &Replica| match *replica {
            Replica::Leader => leader,
            Replica::Number(number) => usize::try_from(number).unwrap_or(0) % count,
        };
        match event {
            Event::Crash { replica } => {
                if let Some(running) = self.processes[of(replica)].take() {
                    self.universe.log(&format!("p{} is killed", running.process.number));
                    running.task.abort();
                    self.later.push((now + RESTART, Later::Start(of(replica))));
                }
            }
            Event::Terminate { replica } => {
                if let Some(running) = &mut self.processes[of(replica)]
                    && let Some(terminate) = running.terminate.take()
                {
                    self.universe.log(&format!("p{} is asked to terminate", running.process.number));
                    _ = terminate.send(());
                }
            }
            Event::Stop { replica, seconds } => {
                if let Some(running) = &self.processes[of(replica)] {
                    self.universe.log(&format!("p{} is stopped", running.process.number));
                    running.process.stop.set(true);
                    let at = now + Duration::from_secs(*seconds);
                    self.later.push((at, Later::Resume(Arc::clone(&running.process))));
                }
            }
            Event::ClockJump { replica, milliseconds } => {
                if let Some(running) = &self.processes[of(replica)] {
                    running.process.jump(*milliseconds);
                }
            }
            Event::KubernetesStorm { one_in, seconds } => {
                self.universe.kubernetes_storm(*one_in, Duration::from_secs(*seconds));
            }
            Event::Unreadable { plural, seconds } => {
                self.universe.make_unreadable(plural, Duration::from_secs(*seconds));
            }
            Event::StaleList { plural, seconds } => {
                self.universe.age_next_list(plural, Duration::from_secs(*seconds));
            }
            Event::Silence { seconds } => self.universe.silence_watches(Duration::from_secs(*seconds)),
            Event::CloudStorm { one_in, seconds } => {
                self.universe.cloud_storm(*one_in, Duration::from_secs(*seconds));
            }
            Event::Overdue { cloud, seconds } => {
                self.universe.delay_next(*cloud, Duration::from_secs(*seconds));
            }
            Event::CrashAtCall { asked, death } => self.universe.crash_at_next(*asked, *death),
            Event::EditLease { edit } => self.edit_lease(*edit),
            _ => {}
        }
    }

    /// A person edits the Lease.
    fn edit_lease(&self, edit: LeaseEdit) {
        let of = |replica: u64| self.processes.get(usize::try_from(replica).unwrap_or(0))?.as_ref();
        let now = self.universe.now();
        self.universe.api.edit("leases", "kube-system", "lease", now, |lease| match edit {
            LeaseEdit::Empty => lease["spec"]["holderIdentity"] = "".into(),
            LeaseEdit::Give { replica } => {
                let process = replica.and_then(of).map(|running| format!("p{}", running.process.number));
                lease["spec"]["holderIdentity"] = process.unwrap_or_else(|| "nobody".into()).into();
            }
            LeaseEdit::Shorten => lease["spec"]["leaseDurationSeconds"] = 1.into(),
            LeaseEdit::Annotate => lease["metadata"]["annotations"]["note"] = "do not touch".into(),
            LeaseEdit::Strip => lease["metadata"]["annotations"] = json!({}),
        });
    }

    /// The replica that holds the Lease, or the first one.
    fn leader(&self) -> usize {
        let leases = self.universe.api.all("leases");
        let holder = leases.first().and_then(|lease| lease["spec"]["holderIdentity"].as_str());
        let is_it = |running: &Option<Running>| {
            running
                .as_ref()
                .is_some_and(|running| Some(format!("p{}", running.process.number).as_str()) == holder)
        };
        self.processes.iter().position(is_it).unwrap_or(0)
    }

    fn heal(&mut self) {
        self.universe.clear_up();
        for (_, what) in std::mem::take(&mut self.later) {
            match what {
                Later::Start(_) => self.later.push((self.universe.elapsed(), what)),
                what => self.happen_later(what),
            }
        }
        self.later.iter_mut().for_each(|(at, _)| *at += RETRY);
    }

    fn end(self) {
        for running in self.processes.into_iter().flatten() {
            running.task.abort();
        }
    }
}
