//! Carries out calls to the clouds, and tells what became of each.
//!
//! In: steps that the planner allows now. Out: an [`Outcome`] for each, which nothing else can make, so a report can't
//! claim what never happened. At most one step per address and per machine is under way. It never decides, and it never
//! takes silence for an end: an operation is polled until the cloud says that it has ended, and after a call without an
//! answer nothing is done with its address and machines until it can't take effect any more.

pub mod evict;
mod gate;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drivers::budget::{Haste, Priority, with_haste, with_priority};
use drivers::record::RecordDriver;
use drivers::times::later;
use drivers::{AddressDriver, DriverError, NotSent, Operation, Polled, Progress};
use kube::Client;
use plan::{
    Action, Address, DnsProvider, Holding, InFlight, InFlightRecord, NodeName, PoolKey, Provider,
    RecordAction, RecordSet, RecordStep, Scope, Step,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::evict::{Evictee, NotEvicted};
use self::gate::Gate;
use super::create_request::CreateRequest;
use crate::leadership::fence::Fence;
use crate::providers::build::Drivers;
use crate::providers::metered::for_object;
use crate::tasks::Tasks;

/// The pause between two looks at a few operations.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// With every so many operations the pause grows by as much again: a look at many takes calls that the moves themselves need.
const POLL_FEW: u32 = 16;

/// The longest pause between two looks, at however many.
const POLL_EVERY_MAX: Duration = Duration::from_secs(2);

/// The pause after a look at operations that failed.
const POLL_RETRY: Duration = Duration::from_secs(1);

/// A change that needs more operations than this does not converge.
const OPERATIONS_MAX: usize = 8;

/// What a step has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The address is there now.
    Holds(Holding),
    /// The machine has an address of its own: it got one, or it was in the way and still is.
    HasOwn,
    /// The address is still where it was, and has this name in its PTR record.
    HasPtr(Arc<str>),
}

/// What became of a step.
#[derive(Debug)]
pub struct Outcome {
    step: Step,
    result: Result<Effect, DriverError>,
}

impl Outcome {
    /// The step, and what it has done, or why that is not what it should be.
    pub fn into_parts(self) -> (Step, Result<Effect, DriverError>) {
        (self.step, self.result)
    }
}

/// What became of a request for a new address.
#[derive(Debug)]
pub struct Created {
    /// For whom it was.
    pub pool: PoolKey,
    /// Where.
    pub scope: Scope,
    /// What was asked for.
    pub request: CreateRequest,
    result: Result<Address, DriverError>,
}

impl Created {
    /// The new address, or why there is none.
    pub fn into_result(self) -> Result<Address, DriverError> {
        self.result
    }
}

/// Something that was begun has ended.
#[derive(Debug)]
pub enum Ended {
    /// A step.
    Step(Outcome),
    /// A request for a new address.
    Creation(Created),
    /// An eviction.
    Eviction(Evicted),
    /// A set of records was read or written.
    Record(Recorded),
    /// The cluster was asked for its id.
    ClusterId(Result<String, kube::Error>),
}

/// What became of reading or writing a set of records.
#[derive(Debug)]
pub struct Recorded {
    /// What was to be done.
    pub step: RecordStep,
    result: Result<RecordSet, DriverError>,
}

impl Recorded {
    /// What the set holds now, or why that is not known.
    pub fn into_result(self) -> Result<RecordSet, DriverError> {
        self.result
    }
}

/// What became of an eviction.
#[derive(Debug)]
pub struct Evicted {
    /// For whom.
    pub pool: PoolKey,
    /// From where.
    pub node: NodeName,
    /// Which pod.
    pub pod: Evictee,
    result: Result<(), NotEvicted>,
}

impl Evicted {
    /// Why it is still there, if so.
    pub fn into_result(self) -> Result<(), NotEvicted> {
        self.result
    }
}

/// Takes operations to be polled, and whom to tell of their end.
type Poller = mpsc::UnboundedSender<(Operation, oneshot::Sender<Result<(), DriverError>>)>;

/// The drivers, and what they are doing.
pub struct Executor {
    drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    record_drivers: BTreeMap<DnsProvider, Arc<dyn RecordDriver>>,
    pollers: BTreeMap<Provider, Poller>,
    gates: BTreeMap<Scope, Arc<Gate>>,
    under_way: Tasks<Ended>,
    /// For evictions.
    client: Client,
    fence: Arc<Fence>,
    /// What is under way, for the planner.
    pub in_flight: InFlight,
    /// How long a request without an answer may still take effect.
    echo: Duration,
    _polling: Tasks<()>,
}

impl Executor {
    /// Nothing is under way. A request without an answer may take effect for as long as `echo`.
    pub fn new(drivers: Drivers, echo: Duration, client: Client, fence: Arc<Fence>) -> Self {
        let Drivers { addresses: drivers, records: record_drivers } = drivers;
        let mut polling = Tasks::default();
        let mut pollers = BTreeMap::new();
        for (provider, driver) in &drivers {
            let (to, from) = mpsc::unbounded_channel();
            pollers.insert(*provider, to);
            polling.spawn(poll(Arc::clone(driver), from));
        }
        let under_way = Tasks::default();
        let in_flight = InFlight::default();
        Self {
            drivers,
            record_drivers,
            pollers,
            gates: BTreeMap::new(),
            under_way,
            client,
            fence,
            in_flight,
            echo,
            _polling: polling,
        }
    }

    /// The clouds that may show what was before somebody else's change, and for how long.
    pub fn late_reads(&self) -> BTreeMap<Provider, Duration> {
        let late = |(provider, driver): (&Provider, &Arc<dyn AddressDriver>)| {
            let late_max = driver.traits().late_max;
            (!late_max.is_zero()).then_some((*provider, late_max))
        };
        self.drivers.iter().filter_map(late).collect()
    }

    /// The clouds that move an address in one call from holder to holder.
    pub fn moves_in_one_call(&self) -> impl Iterator<Item = Provider> {
        let one_call = |(_, driver): &(&Provider, &Arc<dyn AddressDriver>)| driver.traits().moves_in_one_call;
        self.drivers.iter().filter(one_call).map(|(provider, _)| *provider)
    }

    /// Begins a step. The planner does not give one for what is under way.
    pub fn begin(&mut self, step: Step) {
        let provider = step.scope.provider;
        let (Some(driver), Some(poller)) =
            (self.drivers.get(&provider).cloned(), self.pollers.get(&provider).cloned())
        else {
            tracing::warn!(%provider, "no credentials, so nothing can be done: {step}");
            return;
        };
        self.in_flight.addresses.insert(step.address);
        self.in_flight.machines.extend(step.action.machine().cloned());
        let gate = Arc::clone(self.gates.entry(step.scope.clone()).or_default());
        let echo = self.echo;
        self.under_way.spawn(async move {
            let taken = take(&*driver, &gate, &poller, &step);
            let result = for_object(step.pool.clone(), taken).await;
            outlast(echo, &result).await;
            Ended::Step(Outcome { step, result })
        });
    }

    /// Asks for new addresses, each in a request of its own. The planner asks for none while some are under way.
    pub fn ask(&mut self, pool: &PoolKey, scope: &Scope, request: &CreateRequest, count: usize) {
        let Some(driver) = self.drivers.get(&scope.provider) else {
            let provider = scope.provider;
            return tracing::warn!(%provider, %pool, "no credentials, so no address can be created");
        };
        *self.in_flight.creations.entry(pool.clone()).or_default() += count;
        tracing::info!(%pool, count, "asking for new addresses");
        for _ in 0..count {
            let (driver, echo) = (Arc::clone(driver), self.echo);
            let (pool, scope, request) = (pool.clone(), scope.clone(), request.clone());
            self.under_way.spawn(async move {
                let created = driver.create(&scope, &request.region, request.tag.as_deref());
                let created = with_haste(Haste::Ordinary, created);
                let result = for_object(pool.clone(), created).await;
                outlast(echo, &result).await;
                Ended::Creation(Created { pool, scope, request, result })
            });
        }
    }

    /// Evicts a pod. The planner asks for no other of the pool's while one is under way.
    pub fn evict(&mut self, pool: PoolKey, node: NodeName, pod: Evictee) {
        self.in_flight.evictions.insert(pool.clone());
        let (client, fence) = (self.client.clone(), Arc::clone(&self.fence));
        self.under_way.spawn(async move {
            let result = evict::evict(client, fence, &pod).await;
            Ended::Eviction(Evicted { pool, node, pod, result })
        });
    }

    /// Reads or writes a set of records. The planner does not give a step for one that is under way.
    pub fn publish(&mut self, step: RecordStep) {
        let what = match step.action {
            RecordAction::Read => InFlightRecord::Read,
            RecordAction::Write { .. } | RecordAction::Remove(_) => InFlightRecord::Write,
        };
        self.in_flight.records.insert(step.name.clone(), what);
        let (driver, echo) = (self.record_drivers.get(&step.name.provider).cloned(), self.echo);
        self.under_way.spawn(async move {
            let result = with_haste(Haste::Ordinary, records::take(driver, &step)).await;
            if what == InFlightRecord::Write {
                outlast(echo, &result).await;
            }
            Ended::Record(Recorded { step, result })
        });
    }

    /// Asks for the id of the cluster.
    pub fn ask_cluster_id(&mut self) {
        let client = self.client.clone();
        self.under_way.spawn(async move { Ended::ClusterId(records::cluster_id(client).await) });
    }

    /// The next end. Waits for ever while nothing is under way.
    pub async fn ended(&mut self) -> Ended {
        loop {
            match self.under_way.next().await {
                Some(Ok(ended)) => {
                    self.forget(&ended);
                    return ended;
                }
                Some(Err(error)) => tracing::error!(%error, "a step was cut off; its address stays as it is"),
                None => std::future::pending().await,
            }
        }
    }

    fn forget(&mut self, ended: &Ended) {
        match ended {
            Ended::Step(Outcome { step, .. }) => {
                self.in_flight.addresses.remove(&step.address);
                if let Some(machine) = step.action.machine() {
                    self.in_flight.machines.remove(machine);
                }
            }
            Ended::Eviction(Evicted { pool, .. }) => _ = self.in_flight.evictions.remove(pool),
            Ended::Record(Recorded { step, .. }) => _ = self.in_flight.records.remove(&step.name),
            Ended::ClusterId(_) => {}
            Ended::Creation(Created { pool, .. }) => {
                if let Some(count) = self.in_flight.creations.get_mut(pool) {
                    *count -= 1;
                }
                self.in_flight.creations.retain(|_, count| *count > 0);
            }
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
}

/// What has no answer may have been heard: only when it can't take effect any more is what the cloud says the truth.
async fn outlast<T>(echo: Duration, result: &Result<T, DriverError>) {
    if matches!(result, Err(DriverError::Unavailable(_))) && !plan::sabotaged!(NoWaitAfterSilence) {
        tokio::time::sleep(echo).await;
    }
}

/// Takes one step to its end.
async fn take(
    driver: &dyn AddressDriver,
    gate: &Gate,
    poller: &Poller,
    step: &Step,
) -> Result<Effect, DriverError> {
    let Step { scope, address, is_urgent, action, ptr, .. } = step;
    ptr.iter().for_each(|name| driver.keep_ptr(*address, name));
    let haste = match action {
        _ if *is_urgent => Haste::Urgent,
        Action::Detach(_) => Haste::TakingOff,
        _ => Haste::Ordinary,
    };
    let advance = async |has_begun: bool| {
        let calls = match action {
            Action::Attach(to) => driver.attach(scope, *address, &to.vm),
            Action::Replace(to) => driver.replace(scope, *address, &to.vm),
            Action::Restore(vm) => driver.restore(scope, *address, vm),
            Action::Detach(from) => driver.detach(scope, *address, from),
            Action::Release(mark) => driver.release(scope, *address, mark),
            other => return Err(DriverError::Invalid(format!("{other:?} is no call"))),
        };
        // What has begun may have left a machine with no address at all.
        gate.pass(*is_urgent || has_begun, with_priority(Priority { haste, has_begun }, calls)).await
    };
    for operation in 0..OPERATIONS_MAX {
        let progress = loop {
            match advance(operation > 0).await {
                // What has begun is gone on with, whenever its turn comes; what has not is decided on again by then.
                Err(DriverError::NotSent(NotSent { wait })) if operation > 0 => {
                    tokio::time::sleep(wait).await;
                }
                progress => break progress?,
            }
        };
        let is_done = match progress {
            Progress::Done => true,
            Progress::Occupied => return Ok(Effect::HasOwn),
            Progress::Named(name) => return Ok(Effect::HasPtr(name)),
            Progress::Underway(operation) => {
                let completes = operation.completes;
                let (to, ended) = oneshot::channel();
                let unheard = || DriverError::Unavailable("nobody polls operations any more".into());
                poller.send((operation, to)).map_err(|_| unheard())?;
                ended.await.map_err(|_| unheard())??;
                completes
            }
        };
        if is_done {
            return Ok(match action {
                Action::Attach(to) | Action::Replace(to) => Effect::Holds(Holding::By(to.vm.clone())),
                Action::Restore(_) => Effect::HasOwn,
                Action::Release(_) => Effect::Holds(Holding::Missing),
                _ => Effect::Holds(Holding::Free),
            });
        }
    }
    Err(DriverError::Invalid(format!(
        "{address} was not where it should be after {OPERATIONS_MAX} operations"
    )))
}

/// Polls all operations of a cloud together, until each has ended. An error of the poll is not an end, and holds up no other.
async fn poll(
    driver: Arc<dyn AddressDriver>,
    mut from: mpsc::UnboundedReceiver<(Operation, oneshot::Sender<Result<(), DriverError>>)>,
) {
    // Each with the moment from which on it is looked at.
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            match from.recv().await {
                Some((operation, to)) => waiting.push((operation, to, Instant::now())),
                None => return,
            }
        }
        let crowds = u32::try_from(waiting.len()).unwrap_or(u32::MAX) / POLL_FEW;
        tokio::time::sleep(POLL_EVERY.saturating_mul(crowds.saturating_add(1)).min(POLL_EVERY_MAX)).await;
        let now = Instant::now();
        while let Ok((operation, to)) = from.try_recv() {
            waiting.push((operation, to, now));
        }
        let (due, mut still): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|(.., from)| *from <= now);
        if due.is_empty() {
            waiting = still;
            continue;
        }
        let operations: Vec<Operation> = due.iter().map(|(operation, ..)| operation.clone()).collect();
        let polled = with_haste(Haste::Reading, driver.poll(&operations)).await;
        for ((operation, to, _), polled) in due.into_iter().zip(polled) {
            let ended = match polled {
                Ok(Polled::Ended) => Ok(()),
                Ok(Polled::Failed(error)) => Err(error),
                Ok(Polled::StillUnderway) => {
                    still.push((operation, to, now));
                    continue;
                }
                Err(error) => {
                    tracing::warn!(operation = operation.id, %error, "polling failed; the operation may still be under way");
                    let wait = match error {
                        DriverError::RateLimited { retry_after: wait, .. }
                        | DriverError::NotSent(NotSent { wait }) => wait,
                        _ => POLL_RETRY,
                    };
                    still.push((operation, to, later(Instant::now(), wait)));
                    continue;
                }
            };
            // Whoever waited may be gone with its process's leadership.
            let _ = to.send(ended);
        }
        waiting = still;
    }
}
