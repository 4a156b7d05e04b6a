//! Makes the calls to the providers, and returns the result of each.
//!
//! In: steps that the planner allows now. Out: an [`Outcome`] for each step. Only this file can create an `Outcome`, so
//! the reporter can't report a call that was never made. At most one step per address and per VM is in flight. The
//! executor never decides what to do. It never treats a missing response as a result: it polls an operation until the
//! provider reports that it has ended. After a call without a response it keeps the address and its VMs in flight until
//! the call can't take effect any more.

pub mod evict;
mod gate;
mod records;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use drivers::budget::{Priority, Urgency, with_haste, with_priority};
use drivers::record::RecordDriver;
use drivers::times::later;
use drivers::{AddressDriver, DriverError, NotSent, Operation, Polled, Progress, Properties};
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

/// The polling interval for fewer than [`POLL_FEW`] operations.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// The polling interval grows by [`POLL_EVERY`] for each group of this many operations, because polling uses the same
/// rate limit as the moves.
const POLL_FEW: u32 = 16;

/// The longest polling interval.
const POLL_EVERY_MAX: Duration = Duration::from_secs(2);

/// An operation is polled again after this part of its age. So an operation that does not end does not use up the rate
/// limit, and the end of any other is noticed with little delay.
const POLL_SLOWS: u32 = 32;

/// The longest pause between two polls of an operation that has been in flight for long.
const POLL_OLD_MAX: Duration = Duration::from_secs(15);

/// The pause after polling has failed.
const POLL_RETRY: Duration = Duration::from_secs(1);

/// The maximum number of operations of one step. A step that needs more does not converge.
const OPERATIONS_MAX: usize = 8;

/// The effect of a successful step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The new holder of the address, if any.
    Holds(Holding),
    /// The VM has an ephemeral address. The step restored it, or found it and did not attach the address.
    HasEphemeral,
    /// The step changed nothing, because the address has a PTR record with this name, which has to be journalled first.
    HasPtr(Arc<str>),
}

/// The result of a step.
#[derive(Debug)]
pub struct Outcome {
    step: Step,
    result: Result<Effect, DriverError>,
}

impl Outcome {
    /// Splits the outcome into its step and the effect or error.
    pub fn into_parts(self) -> (Step, Result<Effect, DriverError>) {
        (self.step, self.result)
    }
}

/// The result of a request for a new address.
#[derive(Debug)]
pub struct Created {
    /// The object.
    pub pool: PoolKey,
    /// The account.
    pub scope: Scope,
    /// The request.
    pub request: CreateRequest,
    result: Result<Address, DriverError>,
}

impl Created {
    /// The new address, or the error.
    pub fn into_result(self) -> Result<Address, DriverError> {
        self.result
    }
}

/// A result of the executor.
#[derive(Debug)]
pub enum Ended {
    /// A step.
    Step(Outcome),
    /// A request for a new address.
    Creation(Created),
    /// An eviction.
    Eviction(Evicted),
    /// A read or write of DNS records.
    Record(Recorded),
    /// A read of the UID of the namespace kube-system.
    ClusterId(Result<String, kube::Error>),
}

/// The result of a read or write of DNS records.
#[derive(Debug)]
pub struct Recorded {
    /// The step.
    pub step: RecordStep,
    result: Result<RecordSet, DriverError>,
}

impl Recorded {
    /// The current values, or the error.
    pub fn into_result(self) -> Result<RecordSet, DriverError> {
        self.result
    }
}

/// The result of an eviction.
#[derive(Debug)]
pub struct Evicted {
    /// The object.
    pub pool: PoolKey,
    /// The node of the pod.
    pub node: NodeName,
    /// The pod.
    pub pod: Evictee,
    result: Result<(), NotEvicted>,
}

impl Evicted {
    /// `Ok`, or why the pod was not evicted.
    pub fn into_result(self) -> Result<(), NotEvicted> {
        self.result
    }
}

/// The channel to the polling task of a scope. Each operation comes with the channel for its result.
type Poller = mpsc::UnboundedSender<(Operation, oneshot::Sender<Result<(), DriverError>>)>;

/// The drivers, and the calls in flight.
pub struct Executor {
    drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    record_drivers: BTreeMap<DnsProvider, Arc<dyn RecordDriver>>,
    /// One for each scope, so that a cloud that does not answer for one account delays no other.
    pollers: BTreeMap<Scope, Poller>,
    gates: BTreeMap<Scope, Arc<Gate>>,
    /// Each task returns whether it began before [`Self::hand_over`].
    under_way: Tasks<(bool, Ended)>,
    is_handing_over: bool,
    /// The number of calls in flight that began before [`Self::hand_over`].
    earlier: usize,
    /// For evictions, and to read the UID of the namespace kube-system.
    client: Client,
    fence: Arc<Fence>,
    /// What is in flight, for the planner.
    pub in_flight: InFlight,
    /// How long a request without a response may still take effect.
    echo: Duration,
    polling: Tasks<()>,
}

impl Executor {
    /// An executor without calls in flight. A request without a response may take effect for as long as `echo`.
    pub fn new(drivers: Drivers, echo: Duration, client: Client, fence: Arc<Fence>) -> Self {
        let Drivers { addresses: drivers, records: record_drivers } = drivers;
        let under_way = Tasks::default();
        let in_flight = InFlight::default();
        Self {
            drivers,
            record_drivers,
            pollers: BTreeMap::new(),
            gates: BTreeMap::new(),
            under_way,
            is_handing_over: false,
            earlier: 0,
            client,
            fence,
            in_flight,
            echo,
            polling: Tasks::default(),
        }
    }

    /// The providers whose reads may be stale, and for how long.
    pub fn late_reads(&self) -> BTreeMap<Provider, Duration> {
        let late = |(provider, driver): (&Provider, &Arc<dyn AddressDriver>)| {
            let staleness_max = driver.properties().staleness_max;
            (!staleness_max.is_zero()).then_some((*provider, staleness_max))
        };
        self.drivers.iter().filter_map(late).collect()
    }

    /// The providers whose properties pass a test.
    pub fn providers_where(&self, test: impl Fn(Properties) -> bool) -> BTreeSet<Provider> {
        let passes = |(_, driver): &(&Provider, &Arc<dyn AddressDriver>)| test(driver.properties());
        self.drivers.iter().filter(passes).map(|(provider, _)| *provider).collect()
    }

    /// Starts a step. The planner plans no step for an address or VM that is in flight.
    pub fn begin(&mut self, step: Step) {
        let provider = step.scope.provider;
        let Some(driver) = self.drivers.get(&provider).cloned() else {
            tracing::warn!(object = %step.pool, %provider, %step, "no credentials for this provider; step skipped");
            return;
        };
        self.in_flight.addresses.insert(step.address);
        self.in_flight.machines.extend(step.action.machine().cloned());
        let gate = Arc::clone(self.gates.entry(step.scope.clone()).or_default());
        let polling = &mut self.polling;
        let new_poller = || {
            let (to, from) = mpsc::unbounded_channel();
            polling.spawn(poll(Arc::clone(&driver), from));
            to
        };
        let poller = self.pollers.entry(step.scope.clone()).or_insert_with(new_poller).clone();
        let echo = self.echo;
        self.spawn(async move {
            let taken = take(&*driver, &gate, &poller, &step);
            let result = for_object(step.pool.clone(), taken).await;
            outlast(echo, &result).await;
            Ended::Step(Outcome { step, result })
        });
    }

    /// Creates addresses, each with a separate request. The planner plans no creation while one is in flight for the
    /// pool.
    pub fn ask(&mut self, pool: &PoolKey, scope: &Scope, request: &CreateRequest, count: usize) {
        let Some(driver) = self.drivers.get(&scope.provider).cloned() else {
            let provider = scope.provider;
            return tracing::warn!(object = %pool, %provider, "no credentials for this provider; no address created");
        };
        *self.in_flight.creations.entry(pool.clone()).or_default() += count;
        tracing::info!(object = %pool, count, "creating addresses");
        for _ in 0..count {
            let (driver, echo) = (Arc::clone(&driver), self.echo);
            let (pool, scope, request) = (pool.clone(), scope.clone(), request.clone());
            self.spawn(async move {
                let created = driver.create(&scope, &request.region, request.tag.as_deref());
                let created = with_haste(Urgency::Ordinary, created);
                let result = for_object(pool.clone(), created).await;
                outlast(echo, &result).await;
                Ended::Creation(Created { pool, scope, request, result })
            });
        }
    }

    /// Evicts a pod. The planner plans no other eviction for the pool while one is in flight.
    pub fn evict(&mut self, pool: PoolKey, node: NodeName, pod: Evictee) {
        self.in_flight.evictions.insert(pool.clone());
        let (client, fence) = (self.client.clone(), Arc::clone(&self.fence));
        self.spawn(async move {
            let result = evict::evict(client, fence, &pod).await;
            Ended::Eviction(Evicted { pool, node, pod, result })
        });
    }

    /// Reads or writes DNS records. The planner plans no step for records that are in flight.
    pub fn publish(&mut self, step: RecordStep) {
        let (what, urgency) = match step.action {
            RecordAction::Read => (InFlightRecord::Read, Urgency::Ordinary),
            RecordAction::ReadAgain => (InFlightRecord::Read, Urgency::Refresh),
            RecordAction::Write { .. } | RecordAction::Remove(_) => {
                (InFlightRecord::Write, Urgency::Ordinary)
            }
        };
        self.in_flight.records.insert(step.name.clone(), what);
        let (driver, echo) = (self.record_drivers.get(&step.name.provider).cloned(), self.echo);
        self.spawn(async move {
            let result = with_haste(urgency, records::take(driver, &step)).await;
            if what == InFlightRecord::Write {
                outlast(echo, &result).await;
            }
            Ended::Record(Recorded { step, result })
        });
    }

    /// Reads the UID of the namespace kube-system.
    pub fn ask_cluster_id(&mut self) {
        let client = self.client.clone();
        self.spawn(async move { Ended::ClusterId(records::cluster_id(client).await) });
    }

    /// The next result. Waits forever if nothing is in flight.
    pub async fn ended(&mut self) -> Ended {
        loop {
            match self.under_way.next().await {
                Some(Ok((is_earlier, ended))) => {
                    self.earlier -= usize::from(is_earlier);
                    self.forget(&ended);
                    return ended;
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a task that runs a step was cancelled; the controller repeats the step only after a restart")
                }
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

    fn spawn(&mut self, task: impl Future<Output = Ended> + Send + 'static) {
        let is_earlier = !self.is_handing_over;
        self.earlier += usize::from(is_earlier);
        self.under_way.spawn(async move { (is_earlier, task.await) });
    }

    /// Notes that this process is about to release its lease.
    pub fn hand_over(&mut self) {
        self.is_handing_over = true;
    }

    /// Whether a call is in flight that began before [`Self::hand_over`].
    pub fn has_earlier_calls(&self) -> bool {
        self.earlier > 0
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
}

/// Waits after a call without a response, until the call can't take effect any more. Only then is a listing reliable.
async fn outlast<T>(echo: Duration, result: &Result<T, DriverError>) {
    if matches!(result, Err(DriverError::Unavailable(_))) && !plan::sabotaged!(NoWaitAfterSilence) {
        tokio::time::sleep(echo).await;
    }
}

/// Executes one step.
async fn take(
    driver: &dyn AddressDriver,
    gate: &Gate,
    poller: &Poller,
    step: &Step,
) -> Result<Effect, DriverError> {
    let Step { scope, address, is_urgent, action, ptr, .. } = step;
    ptr.iter().for_each(|name| driver.keep_ptr(*address, name));
    let urgency = match action {
        _ if *is_urgent => Urgency::Urgent,
        Action::Detach(_) => Urgency::Detaching,
        _ => Urgency::Ordinary,
    };
    let advance = async |has_begun: bool| {
        let calls = match action {
            Action::Attach(to) => driver.attach(scope, *address, &to.vm),
            Action::Replace(to) => driver.replace(scope, *address, &to.vm),
            Action::Restore(vm) => driver.restore(scope, *address, vm),
            Action::Detach(from) => driver.detach(scope, *address, from),
            Action::Release(mark) => driver.release(scope, *address, mark),
            other => return Err(DriverError::Invalid(format!("{other:?} is not a call"))),
        };
        // A step that has started may have left a VM without any address, so it counts as urgent.
        gate.pass(*is_urgent || has_begun, with_priority(Priority { urgency, has_begun }, calls)).await
    };
    for operation in 0..OPERATIONS_MAX {
        let progress = loop {
            match advance(operation > 0).await {
                // A step that has started continues after the wait. Any other step ends, and the planner decides again.
                Err(DriverError::NotSent(NotSent { wait })) if operation > 0 => {
                    tokio::time::sleep(wait).await;
                }
                progress => break progress?,
            }
        };
        let is_done = match progress {
            Progress::Done => true,
            Progress::Occupied => return Ok(Effect::HasEphemeral),
            Progress::Named(name) => return Ok(Effect::HasPtr(name)),
            Progress::Underway(operation) => {
                let completes = operation.completes;
                let (to, ended) = oneshot::channel();
                let stopped = || DriverError::Unavailable("the polling of operations has stopped".into());
                poller.send((operation, to)).map_err(|_| stopped())?;
                ended.await.map_err(|_| stopped())??;
                completes
            }
        };
        if is_done {
            return Ok(match action {
                Action::Attach(to) | Action::Replace(to) => Effect::Holds(Holding::By(to.vm.clone())),
                Action::Restore(_) => Effect::HasEphemeral,
                Action::Release(_) => Effect::Holds(Holding::Missing),
                _ => Effect::Holds(Holding::Free),
            });
        }
    }
    Err(DriverError::Invalid(format!(
        "{address} has not reached its target after {OPERATIONS_MAX} operations"
    )))
}

/// Polls all operations of a scope together, until each has ended. If polling one operation fails, that operation
/// counts as in flight, and does not delay the others.
async fn poll(
    driver: Arc<dyn AddressDriver>,
    mut from: mpsc::UnboundedReceiver<(Operation, oneshot::Sender<Result<(), DriverError>>)>,
) {
    // Each operation with the times of its first and its next poll.
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() {
            match from.recv().await {
                Some((operation, to)) => waiting.push((operation, to, Instant::now(), Instant::now())),
                None => return,
            }
        }
        let crowds = u32::try_from(waiting.len()).unwrap_or(u32::MAX) / POLL_FEW;
        tokio::time::sleep(POLL_EVERY.saturating_mul(crowds.saturating_add(1)).min(POLL_EVERY_MAX)).await;
        let now = Instant::now();
        while let Ok((operation, to)) = from.try_recv() {
            waiting.push((operation, to, now, now));
        }
        let (due, mut still): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|(.., from)| *from <= now);
        if due.is_empty() {
            waiting = still;
            continue;
        }
        let operations: Vec<Operation> = due.iter().map(|(operation, ..)| operation.clone()).collect();
        let polled = with_haste(Urgency::Reading, driver.poll(&operations)).await;
        for ((operation, to, began, _), polled) in due.into_iter().zip(polled) {
            let ended = match polled {
                Ok(Polled::Ended) => Ok(()),
                Ok(Polled::Failed(error)) => Err(error),
                Ok(Polled::StillUnderway) => {
                    let age = now.saturating_duration_since(began);
                    still.push((operation, to, began, later(now, (age / POLL_SLOWS).min(POLL_OLD_MAX))));
                    continue;
                }
                Err(error) => {
                    tracing::warn!(operation = operation.id, %error, "failed to poll an operation; it may still be in flight");
                    let wait = match error {
                        DriverError::RateLimited { retry_after: wait, .. }
                        | DriverError::NotSent(NotSent { wait }) => wait,
                        _ => POLL_RETRY,
                    };
                    still.push((operation, to, began, later(Instant::now(), wait)));
                    continue;
                }
            };
            // The step may have been cancelled because the process has lost the lease.
            let _ = to.send(ended);
        }
        waiting = still;
    }
}
