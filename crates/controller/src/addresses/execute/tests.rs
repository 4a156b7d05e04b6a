//! The executor with a fake driver.

use std::collections::BTreeSet;
use std::sync::Mutex;

use drivers::{Listing, Properties};
use futures::future::{BoxFuture, join_all, ready};
use plan::{MachineState, Target, VmId};

use super::*;
use crate::leadership::clock::SystemClock;
use futures::FutureExt;
use kube::client::Body;
use tower::BoxError;

/// A provider that needs a second to accept a call, and whose operations end after a minute. For half an hour it
/// refuses to poll operations whose ID begins with `refused/`. Operations whose ID begins with `hung/` never end. It
/// never answers polls for the account `silent`.
struct Cloud {
    started: Instant,
    orders: Mutex<Vec<Duration>>,
    looks: Mutex<Vec<(Duration, BTreeSet<String>)>>,
}

impl Cloud {
    fn new() -> Arc<Self> {
        let (orders, looks) = (Mutex::default(), Mutex::default());
        Arc::new(Self { started: Instant::now(), orders, looks })
    }

    /// Starts the fake and its polling task, which runs until the returned `Tasks` are dropped.
    fn start() -> (Arc<Self>, Poller, Tasks<()>) {
        let cloud = Self::new();
        let (poller, from) = mpsc::unbounded_channel();
        let mut polling = Tasks::default();
        polling.spawn(poll(Arc::<Self>::clone(&cloud), from));
        (cloud, poller, polling)
    }
}

fn scope() -> Scope {
    Scope { provider: Provider::Gcp, account: "demo".into() }
}

fn operation(id: String) -> Operation {
    let address = "203.0.113.7".parse().unwrap();
    Operation { id, scope: scope(), address, target: None, completes: true }
}

/// A step that attaches an address to a VM of its own.
fn step(at: u8) -> Step {
    let target =
        Target { node: format!("node-{at}").as_str().into(), vm: format!("vm-{at}").as_str().into() };
    let pool = PoolKey { kind: "NetIPAllocation", namespace: "".into(), name: "edge".into() };
    let address = format!("203.0.113.{at}").parse().unwrap();
    let (is_urgent, action) = (at.is_multiple_of(2), Action::Attach(target));
    Step { pool, scope: scope(), address, is_urgent, action, ptr: None }
}

impl AddressDriver for Cloud {
    fn list<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        ready(Ok(Listing::default())).boxed()
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        _: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        let order = async {
            self.orders.lock().unwrap().push(self.started.elapsed());
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(Progress::Underway(Operation { scope: scope.clone(), ..operation(vm.to_string()) }))
        };
        order.boxed()
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.attach(scope, address, vm)
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        if operations.iter().any(|operation| &*operation.scope.account == "silent") {
            return std::future::pending().boxed();
        }
        let age = self.started.elapsed();
        let ids = operations.iter().map(|operation| operation.id.clone()).collect();
        self.looks.lock().unwrap().push((age, ids));
        let refused = DriverError::RateLimited {
            retry_after: Duration::from_secs(1_800),
            message: "another tool has used up the rate limit".into(),
        };
        let for_ever = DriverError::NotSent(NotSent { wait: Duration::MAX });
        let look = |operation: &Operation| match operation.id.starts_with("refused/") {
            true if operation.id.ends_with("/for-ever") => Err(for_ever.clone()),
            true => Err(refused.clone()),
            false if operation.id.starts_with("hung/") => Ok(Polled::StillUnderway),
            false if age < Duration::from_secs(60) => Ok(Polled::StillUnderway),
            false => Ok(Polled::Ended),
        };
        ready(operations.iter().map(look).collect()).boxed()
    }

    fn machines<'a>(
        &'a self,
        _: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        ready(Ok(BTreeMap::new())).boxed()
    }

    fn properties(&self) -> Properties {
        Properties { moves_in_one_call: false, refuses_occupied: false, staleness_max: Duration::ZERO }
    }
}

/// Starts operations and waits for all of them, except those whose polls are refused (`refused/…`). Returns every poll
/// until ten minutes after that, and how long the waiting took.
async fn looks(ids: impl Iterator<Item = String>) -> (Vec<(Duration, BTreeSet<String>)>, Duration) {
    let (cloud, poller, _polling) = Cloud::start();
    let mut ends = Vec::new();
    for id in ids {
        let (to, ended) = oneshot::channel();
        if !id.starts_with("refused/") {
            ends.push(ended);
        }
        poller.send((operation(id), to)).unwrap();
    }
    for ended in ends {
        ended.await.unwrap().unwrap();
    }
    let took = cloud.started.elapsed();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let looks = cloud.looks.lock().unwrap().clone();
    (looks, took)
}

#[tokio::test(start_paused = true)]
async fn many_operations_are_polled_less_often_than_one() {
    let (looks_at_one, _) = looks((0..1).map(|at| at.to_string())).await;
    assert!((85..=110).contains(&looks_at_one.len()), "{}", looks_at_one.len());
    let (looks_at_many, ended) = looks((0..1_000).map(|at| at.to_string())).await;
    assert!((28..=35).contains(&looks_at_many.len()), "{}", looks_at_many.len());
    assert!(ended < Duration::from_secs(63), "no operation waits long for the others: {ended:?}");
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_does_not_end_is_polled_less_and_less() {
    let (cloud, poller, _polling) = Cloud::start();
    let (to, _ended) = oneshot::channel();
    poller.send((operation("hung/1".into()), to)).unwrap();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let looks = cloud.looks.lock().unwrap().len();
    assert!((240..600).contains(&looks), "{looks}");
}

#[tokio::test(start_paused = true)]
async fn few_steps_call_at_once_and_none_waits_for_operations() {
    let (cloud, poller, _polling) = Cloud::start();
    let gate = Gate::default();
    let steps = (0..200).map(async |at: u8| {
        let step = step(at);
        while let Err(error) = take(&*cloud, &gate, &poller, &step).await {
            let DriverError::NotSent(NotSent { wait }) = error else { panic!("{error}") };
            tokio::time::sleep(wait).await;
        }
    });
    join_all(steps).await;
    let orders = cloud.orders.lock().unwrap().clone();
    let at_once = orders.iter().filter(|at| at.is_zero()).count();
    assert!((32..=100).contains(&at_once), "{at_once}");
    assert!(orders.iter().all(|at| *at < Duration::from_secs(10)), "{orders:?}");
    assert!(cloud.started.elapsed() > Duration::from_secs(60), "the executor waits for each operation");
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_can_not_be_polled_delays_no_other() {
    let ids = ["refused/1", "refused/2", "refused/for-ever", "fine"].map(str::to_owned);
    let (looks, ended) = looks(ids.into_iter()).await;
    assert!(ended < Duration::from_secs(62), "{ended:?}");
    let of_refused = looks.iter().filter(|(_, ids)| ids.contains("refused/1")).count();
    assert_eq!(of_refused, 1, "it is not polled again before retry_after");
    let of_last = looks.iter().filter(|(_, ids)| ids.contains("refused/for-ever")).count();
    assert_eq!(of_last, 1, "the wait may be of any length");
    let is_early = |(at, _): &(Duration, _)| *at < Duration::from_secs(62);
    assert!(looks.iter().all(is_early), "there is nothing left to poll");
}

fn executor() -> Executor {
    let nowhere = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, BoxError>>()
    });
    let drivers = Drivers { addresses: [(Provider::Gcp, Cloud::new() as _)].into(), ..Drivers::default() };
    let fence = Fence::new(Arc::new(SystemClock));
    Executor::new(drivers, Duration::from_secs(30), Client::new(nowhere, "default"), fence)
}

#[tokio::test(start_paused = true)]
async fn polls_without_an_answer_delay_no_other_account() {
    let mut executor = executor();
    let silent = Scope { account: "silent".into(), ..scope() };
    executor.begin(Step { scope: silent, ..step(1) });
    executor.begin(step(2));
    let Ended::Step(outcome) = executor.ended().await else { panic!("only steps were begun") };
    assert_eq!((outcome.step.scope, outcome.result.is_ok()), (scope(), true));
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_knows_which_calls_began_before_it() {
    for later in [step(2), Step { scope: Scope { account: "silent".into(), ..scope() }, ..step(2) }] {
        let mut executor = executor();
        executor.begin(step(1));
        executor.hand_over();
        tokio::time::sleep(Duration::from_millis(500)).await;
        executor.begin(later);
        assert!(executor.has_earlier_calls());
        executor.ended().await;
        assert!(!executor.has_earlier_calls() && !executor.is_idle(), "the later call is in flight");
    }
    let mut executor = executor();
    executor.hand_over();
    executor.begin(step(1));
    assert!(!executor.has_earlier_calls() && !executor.is_idle());
}
