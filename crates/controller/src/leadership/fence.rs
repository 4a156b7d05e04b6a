//! The fence: nothing is changed anywhere by a process that is not the leader, or may not be the leader any more when the
//! change takes effect.
//!
//! In: the lease's extensions. Out: for every change, whether it may be made and how long it may take. It is asked before
//! a call begins, and again by `drivers::network` right before each write to the socket, so a process that was stopped
//! anywhere before that and goes on later does not send it. What is left is the moment between that last answer and the
//! system call it allows, which no process can close from its own side.
//!
//! Changes of Kubernetes objects name the version that they were planned for, so there the apiserver is the fence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drivers::http::{HttpService, is_read};
use plan::leadership;
use tower::{BoxError, Service, ServiceExt};

use super::clock::Clock;

/// Whether we may change anything, and until when.
pub struct Fence {
    clock: Arc<dyn Clock>,
    /// When our lease ends, in milliseconds since boot; 0 while we have none.
    ends: AtomicU64,
}

impl Fence {
    /// Closed.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, ends: AtomicU64::new(0) })
    }

    /// Our lease ends then.
    pub fn open_until(&self, end: Duration) {
        self.ends.store(u64::try_from(end.as_millis()).unwrap_or(0), Ordering::SeqCst);
    }

    /// We have no lease.
    pub fn close(&self) {
        self.ends.store(0, Ordering::SeqCst);
    }

    /// How long a change that begins now may take, or nothing where none may begin.
    pub fn remaining(&self) -> Option<Duration> {
        if plan::sabotaged!(NoFence) {
            return Some(Duration::from_secs(10));
        }
        let end = Duration::from_millis(self.ends.load(Ordering::SeqCst));
        leadership::remaining(end, self.clock.since_boot())
    }
}

/// Lets reads through, and changes only while the fence is open, cutting them off when it closes.
pub fn fenced(service: HttpService, fence: Arc<Fence>) -> HttpService {
    let send = move |request: http::Request<bytes::Bytes>| {
        let (mut service, fence) = (service.clone(), Arc::clone(&fence));
        async move {
            if is_read(&request) {
                return service.ready().await?.call(request).await;
            }
            let service = service.ready().await?;
            let left = fence.remaining().ok_or("not sent: we are not the leader, or not for long enough")?;
            match tokio::time::timeout(left, service.call(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(BoxError::from("cut off because our lease is about to end")),
            }
        }
    };
    HttpService::new(tower::service_fn(send))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::Timestamp;
    use std::sync::Mutex;

    struct Stopped(Mutex<Duration>);

    impl Clock for Stopped {
        fn wall(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn since_boot(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    #[test]
    fn a_change_may_take_what_is_left_of_the_lease_less_the_margin() {
        let clock = Arc::new(Stopped(Mutex::new(Duration::from_secs(100))));
        let fence = Fence::new(Arc::clone(&clock) as Arc<dyn Clock>);
        assert_eq!(fence.remaining(), None, "closed at first");
        fence.open_until(Duration::from_secs(115));
        assert_eq!(fence.remaining(), Some(Duration::from_secs(14)));
        *clock.0.lock().unwrap() = Duration::from_secs(114);
        assert_eq!(fence.remaining(), None, "within the margin");
        *clock.0.lock().unwrap() = Duration::from_secs(200);
        assert_eq!(fence.remaining(), None, "over");
    }

    #[tokio::test]
    async fn a_closed_fence_lets_reads_through_and_no_change() {
        let clock = Arc::new(Stopped(Mutex::new(Duration::from_secs(100))));
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
