//! Carries out a plan's steps, and tells what became of each.
//!
//! In: a plan and the drivers. Out: an [`Outcome`], which nothing else can make, so a report can't claim what never
//! happened. It never decides, and it never stops half-way because another step failed: partial success is an outcome.

use std::sync::Arc;
use std::time::Duration;

use drivers::{AddressDriver, DriverError, Polled, Progress};
use futures::StreamExt;
use plan::{Address, Holding, NodeName, Plan, PoolKey, Provider, Scope, Step, VmId};
use tokio::time::Instant;

use crate::clouds::Clouds;

/// Steps under way at once. No two steps of a plan share an address or a machine.
const STEPS_AT_ONCE: usize = 16;

/// The longest that one step may take. After that its outcome is not known.
const STEP_SECONDS_MAX: u64 = 120;

/// The pause between two looks at an operation.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// What became of a plan's steps.
#[derive(Debug, Default)]
pub struct Outcome {
    results: Vec<(Step, Result<(), DriverError>)>,
}

impl Outcome {
    /// What became of an address of a pool, where a step was taken for it: the node that it is on now, or why not.
    pub fn of(&self, pool: &PoolKey, address: Address) -> Option<Result<Option<&NodeName>, &DriverError>> {
        let (step, result) =
            self.results.iter().find(|(step, _)| step.pool == *pool && step.address == address)?;
        Some(result.as_ref().map(|()| step.to.as_ref().map(|(_, node)| node)))
    }

    /// The machine that an address was put on.
    pub fn machine_of(&self, pool: &PoolKey, address: Address) -> Option<&VmId> {
        let done = |(step, result): &&(Step, Result<_, _>)| {
            step.pool == *pool && step.address == address && result.is_ok()
        };
        self.results.iter().find(done).and_then(|(step, _)| step.to.as_ref()).map(|(vm, _)| vm)
    }

    /// Whether every step did what it should.
    pub fn is_success(&self) -> bool {
        self.results.iter().all(|(_, result)| result.is_ok())
    }
}

/// Carries out all steps of a plan and corrects what is known accordingly.
pub async fn carry_out(clouds: &mut Clouds, plan: &Plan) -> Outcome {
    let steps = plan.steps.iter().map(|step| {
        let driver = clouds.driver(step.scope.provider);
        let step = step.clone();
        async move {
            let result = match driver {
                Some(driver) => take(driver, &step).await,
                None => Err(no_driver(step.scope.provider)),
            };
            (step, result)
        }
    });
    let results: Vec<_> = futures::stream::iter(steps).buffered(STEPS_AT_ONCE).collect().await;
    for (step, result) in &results {
        match result {
            Ok(()) => {
                tracing::info!(pool = %step.pool, "{step}");
                let holding = step.to.as_ref().map_or(Holding::Free, |(vm, _)| Holding::By(vm.clone()));
                clouds.correct(&step.scope, step.address, holding);
            }
            Err(error) => {
                tracing::warn!(pool = %step.pool, %error, "{step} failed");
                clouds.forget(&step.scope);
            }
        }
    }
    Outcome { results }
}

/// Takes one step to its end.
async fn take(driver: Arc<dyn AddressDriver>, step: &Step) -> Result<(), DriverError> {
    let Step { scope, address, from, to, .. } = step;
    if let Some((from, _)) = from
        && (to.is_none() || !driver.traits().moves_in_one_call)
    {
        until_done(&*driver, || driver.detach(scope, *address, from)).await?;
    }
    if let Some((vm, _)) = to {
        until_done(&*driver, || driver.attach(scope, *address, vm)).await?;
    }
    Ok(())
}

/// Asks the driver to go on until it says that it is done.
async fn until_done<'a, F>(
    driver: &dyn AddressDriver,
    mut advance: impl FnMut() -> F,
) -> Result<(), DriverError>
where
    F: Future<Output = Result<Progress, DriverError>> + 'a,
{
    let deadline = Instant::now() + Duration::from_secs(STEP_SECONDS_MAX);
    while let Progress::Underway(operation) = advance().await? {
        let operations = [operation];
        loop {
            if Instant::now() > deadline {
                let message = format!("{} did not end within {STEP_SECONDS_MAX} s", operations[0].id);
                return Err(DriverError::Unavailable(message));
            }
            match driver.poll(&operations).await.pop() {
                Some(Ok(Polled::StillUnderway)) => tokio::time::sleep(POLL_EVERY).await,
                Some(Ok(Polled::Ended)) if operations[0].completes => return Ok(()),
                Some(Ok(Polled::Ended)) => break,
                Some(Err(error)) => return Err(error),
                None => return Err(DriverError::Unavailable("the driver did not say".into())),
            }
        }
    }
    Ok(())
}

fn no_driver(provider: Provider) -> DriverError {
    DriverError::Unavailable(format!("no credentials for {provider}"))
}

/// The scopes that a plan touches.
pub fn scopes_of(plan: &Plan) -> impl Iterator<Item = &Scope> {
    plan.steps.iter().map(|step| &step.scope)
}
