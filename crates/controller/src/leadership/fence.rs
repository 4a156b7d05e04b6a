//! The fence blocks changes if this process is not the leader, or may lose the lease before the change takes effect.
//!
//! In: the renewals of the lease. Out: for every change, whether it may start and how long it may take. The controller
//! checks the fence before a call, and `drivers::network` checks it again right before each write to the socket. So a
//! process that is suspended before that write does not send it after the lease has expired. The time between that last
//! check and the system call remains: no process can close this gap on its own.
//!
//! A process that was suspended for long also makes no more changes, even if its lease is still valid: what it knows
//! about clouds and about its calls in flight is outdated.
//!
//! Updates of Kubernetes objects name the version that they were planned for, so the apiserver rejects outdated ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use drivers::http::{HttpService, is_read};
use plan::leadership;
use tower::{BoxError, Service, ServiceExt};

use super::clock::Clock;

/// A leader that was stopped for this long ends, even if nobody else has taken the lease. Otherwise it would decide
/// before it learns what happened in the meantime.
const STOPPED_MAX: Duration = Duration::from_secs(15);

/// Whether this process may make changes, and until when.
pub struct Fence {
    clock: Arc<dyn Clock>,
    /// When the lease of this process expires, in milliseconds since boot. 0 without a lease.
    ends: AtomicU64,
    /// When the process last showed that it runs, in milliseconds since boot.
    ran_at: AtomicU64,
    /// Whether the process was stopped for too long.
    was_stopped: AtomicBool,
}

impl Fence {
    /// Creates a closed fence.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let (ends, ran_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { clock, ends, ran_at, was_stopped: AtomicBool::new(false) })
    }

    /// Opens the fence until the lease expires at `end`, as time since boot.
    pub fn open_until(&self, end: Duration) {
        if self.ends.load(Ordering::SeqCst) == 0 {
            self.ran_at.store(milliseconds(self.clock.since_boot()), Ordering::SeqCst);
        }
        self.ends.store(milliseconds(end), Ordering::SeqCst);
    }

    /// Records that the process runs. The leader calls this every few seconds. Returns false, and closes the fence for
    /// good, if the process was stopped for too long since the last call.
    pub fn runs(&self) -> bool {
        let is_open = self.ends.load(Ordering::SeqCst) > 0;
        // This comes first. Otherwise another thread could see the new time and not yet that the process was stopped.
        if is_open && !self.ran_recently() {
            self.was_stopped.store(true, Ordering::SeqCst);
        }
        self.ran_at.store(milliseconds(self.clock.since_boot()), Ordering::SeqCst);
        !self.was_stopped.load(Ordering::SeqCst)
    }

    fn ran_recently(&self) -> bool {
        let last = Duration::from_millis(self.ran_at.load(Ordering::SeqCst));
        self.clock.since_boot().saturating_sub(last) < STOPPED_MAX
    }

    /// Closes the fence: this process has no lease.
    pub fn close(&self) {
        self.ends.store(0, Ordering::SeqCst);
    }

    /// How long a change that starts now may take. None if no change may start.
    pub fn remaining(&self) -> Option<Duration> {
        if plan::sabotaged!(NoFence) {
            return Some(Duration::from_secs(10));
        }
        let end = Duration::from_millis(self.ends.load(Ordering::SeqCst));
        let may_lead = self.ran_recently() && !self.was_stopped.load(Ordering::SeqCst);
        leadership::remaining(end, self.clock.since_boot()).filter(|_| may_lead)
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(0)
}

/// A service that passes all reads, but passes changes only while the fence is open. It cancels a change that takes
/// longer than the fence allows.
pub fn fenced(service: HttpService, fence: Arc<Fence>) -> HttpService {
    let send = move |request: http::Request<bytes::Bytes>| {
        let (mut service, fence) = (service.clone(), Arc::clone(&fence));
        async move {
            if is_read(&request) {
                return service.ready().await?.call(request).await;
            }
            let service = service.ready().await?;
            let left =
                fence.remaining().ok_or("request not sent: the lease of this replica is no longer valid")?;
            match tokio::time::timeout(left, service.call(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(BoxError::from("canceled: the lease is about to expire")),
            }
        }
    };
    HttpService::new(tower::service_fn(send))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leadership::clock::ManualClock;

    #[test]
    fn a_change_may_take_the_rest_of_the_lease_minus_the_margin() {
        let clock = Arc::new(ManualClock::at(100));
        let fence = Fence::new(Arc::clone(&clock) as Arc<dyn Clock>);
        assert_eq!(fence.remaining(), None, "a new fence is closed");
        fence.open_until(Duration::from_secs(115));
        assert_eq!(fence.remaining(), Some(Duration::from_secs(14)));
        clock.set(114);
        assert!(fence.runs());
        assert_eq!(fence.remaining(), None, "within the margin");
        clock.set(200);
        assert_eq!(fence.remaining(), None, "expired");
    }

    #[test]
    fn a_process_that_was_stopped_for_long_changes_nothing_any_more() {
        let clock = Arc::new(ManualClock::at(100));
        let fence = Fence::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let at = |seconds| clock.set(seconds);
        assert!(fence.runs(), "a standby may be stopped for any time");
        fence.open_until(Duration::from_secs(1_000));
        at(114);
        assert!(fence.runs() && fence.remaining().is_some());
        at(129);
        assert_eq!(fence.remaining(), None, "before anything else runs");
        assert!(!fence.runs());
        fence.open_until(Duration::from_secs(2_000));
        assert_eq!((fence.runs(), fence.remaining()), (false, None), "a renewal does not reopen the fence");
    }

    #[tokio::test]
    async fn a_closed_fence_passes_reads_and_blocks_changes() {
        let clock = Arc::new(ManualClock::at(100));
        let fence = Fence::new(clock);
        let answer = |_| async { Ok::<_, BoxError>(http::Response::new(bytes::Bytes::new())) };
        let service = fenced(HttpService::new(tower::service_fn(answer)), Arc::clone(&fence));
        let request = |method| http::Request::builder().method(method).body(bytes::Bytes::new()).unwrap();
        assert!(service.clone().oneshot(request("GET")).await.is_ok());
        assert!(service.clone().oneshot(request("POST")).await.is_err());
        fence.open_until(Duration::from_secs(160));
        assert!(service.oneshot(request("POST")).await.is_ok());
    }
}
