//! Sets of tasks. Dropping a set aborts its tasks.
//!
//! With the feature `simulation`, which no release has, a test can stop all tasks of a simulated process together, as
//! SIGSTOP does: no task of the process continues, but time goes on.

use std::future::Future;

use tokio::task::{JoinError, JoinSet};

/// A set of tasks.
pub struct Tasks<T>(JoinSet<T>);

impl<T: Send + 'static> Default for Tasks<T> {
    fn default() -> Self {
        Self(JoinSet::new())
    }
}

impl<T: Send + 'static> Tasks<T> {
    /// Spawns a task.
    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        #[cfg(feature = "simulation")]
        let task = stop::Stoppable::of_this_process(task);
        self.0.spawn(task);
    }

    /// Waits for the next task to end. Returns none if the set is empty. If the task panicked, the panic continues in
    /// the caller, so that it ends the process as in builds with `panic = "abort"`.
    pub async fn next(&mut self) -> Option<Result<T, JoinError>> {
        resume_panic(self.0.join_next().await)
    }

    /// The result of a task that has ended, if there is one. A panic continues in the caller, as in [`Self::next`].
    pub fn try_next(&mut self) -> Option<Result<T, JoinError>> {
        resume_panic(self.0.try_join_next())
    }

    /// The number of tasks. A task that has ended counts until the caller takes its result.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no tasks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn resume_panic<T>(ended: Option<Result<T, JoinError>>) -> Option<Result<T, JoinError>> {
    match ended {
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        ended => ended,
    }
}

/// Stops simulated processes.
#[cfg(feature = "simulation")]
pub mod stop {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::task::{Context, Poll, Waker};

    tokio::task_local! {
        static STOP: Stop;
    }

    /// Stops and resumes one simulated process.
    #[derive(Clone, Default)]
    pub struct Stop(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        is_stopped: bool,
        waiting: Vec<Waker>,
    }

    impl Stop {
        /// Stops or resumes the process.
        pub fn set(&self, is_stopped: bool) {
            let waiting = {
                let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                state.is_stopped = is_stopped;
                if is_stopped { Vec::new() } else { std::mem::take(&mut state.waiting) }
            };
            waiting.into_iter().for_each(Waker::wake);
        }

        /// Runs a process that this value stops and resumes, together with all tasks that the process spawns.
        pub async fn rules<F: Future>(self, process: F) -> F::Output {
            let process = Stoppable { stop: Some(self.clone()), task: Box::pin(process) };
            STOP.scope(self, process).await
        }
    }

    /// A task that is not polled while its process is stopped.
    pub(super) struct Stoppable<F> {
        stop: Option<Stop>,
        task: Pin<Box<F>>,
    }

    impl<F: Future> Stoppable<F> {
        pub(super) fn of_this_process(task: F) -> Self {
            Self { stop: STOP.try_with(Clone::clone).ok(), task: Box::pin(task) }
        }
    }

    impl<F: Future> Future for Stoppable<F> {
        type Output = F::Output;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
            if let Some(Stop(state)) = &self.stop {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.is_stopped {
                    state.waiting.push(context.waker().clone());
                    return Poll::Pending;
                }
            }
            self.task.as_mut().poll(context)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "a task panics")]
    async fn a_panic_in_a_task_continues_in_the_waiting_caller() {
        let mut tasks = Tasks::default();
        tasks.spawn(async { panic!("a task panics") });
        let _: Option<Result<(), JoinError>> = tasks.next().await;
    }
}
