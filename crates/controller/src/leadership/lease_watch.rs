//! Watches one Lease.
//!
//! In: the apiserver's watch of the Lease. Out: its newest version, and whether the watch works. While it works, nobody
//! has to read the Lease to know that its holder renews it. It never decides who leads.
//!
//! A watch can start with a version that is older than what its receiver has read, because the apiserver may send it
//! from a cache. The receiver has to compare versions.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::WatchParams;
use kube::core::WatchEvent;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::tasks::Tasks;

/// The pause before a watch that failed is requested again.
const RETRY: Duration = Duration::from_secs(2);

/// How long it may take until the response to the request starts.
const RESPONSE_MAX: Duration = Duration::from_secs(10);

/// The timeout after which the apiserver ends the watch.
const WATCH_SECONDS: u32 = 120;

/// A watch that is silent for longer than its timeout is dead, even if a proxy keeps its connection alive.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// A watch that ends earlier than this has failed: for example, a proxy ends each watch at once.
const LASTS_MIN: Duration = Duration::from_secs(5);

/// What a watch of a Lease shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// Whether the watch works. Otherwise the Lease may change unseen.
    pub(super) works: bool,
    /// The version that it showed last.
    pub(super) version: Version,
    /// Whether it ever showed a version with a holder.
    pub(super) had_holder: bool,
}

/// A version of a Lease that a watch shows.
#[derive(Clone, Debug, Default)]
pub(super) enum Version {
    /// The watch has not shown any.
    #[default]
    None,
    /// The Lease exists.
    Present(Box<Lease>),
    /// The Lease was deleted. This was its last version.
    Deleted(Box<Lease>),
}

/// The holder of a Lease. Empty if it has none.
pub(super) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// A watch of a Lease. Dropping this value stops the watch.
pub(super) struct LeaseWatch {
    shown: watch::Receiver<Shown>,
    _task: Tasks<()>,
}

impl LeaseWatch {
    /// Starts a watch.
    pub(super) fn start(api: Api<Lease>, name: &str) -> Self {
        let (to, shown) = watch::channel(Shown::default());
        let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
        let name = name.to_owned();
        let mut task = Tasks::default();
        task.spawn(async move {
            let mut is_first_failure = true;
            while !to.is_closed() {
                let why = watch_until_failure(&api, &params, &to).await;
                is_first_failure |= to.borrow().works;
                if std::mem::take(&mut is_first_failure) {
                    tracing::warn!(lease = name, error = %why, "can't watch the lease; reading it instead");
                }
                to.send_modify(|shown| shown.works = false);
                sleep(RETRY).await;
            }
        });
        Self { shown, _task: task }
    }

    /// What the watch shows now.
    pub(super) fn shown(&mut self) -> Shown {
        self.shown.borrow_and_update().clone()
    }

    /// Waits until the watch shows something new since the last call of [`Self::shown`].
    pub(super) async fn changed(&mut self) {
        if self.shown.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Shows the versions of a Lease until the watch fails, and returns why it failed. If the apiserver ends the watch,
/// this function starts it again.
async fn watch_until_failure(api: &Api<Lease>, params: &WatchParams, to: &watch::Sender<Shown>) -> String {
    loop {
        let began = Instant::now();
        // Without a resourceVersion, the watch begins with a version that the apiserver has in its cache.
        let mut events = match timeout(RESPONSE_MAX, api.watch(params, "")).await {
            Ok(Ok(events)) => events.boxed(),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("the apiserver did not respond within {RESPONSE_MAX:?}"),
        };
        to.send_if_modified(|shown| !std::mem::replace(&mut shown.works, true));
        loop {
            let version = match timeout(SILENCE_MAX, events.next()).await {
                Ok(Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease)))) => {
                    Version::Present(Box::new(lease))
                }
                Ok(Some(Ok(WatchEvent::Deleted(lease)))) => Version::Deleted(Box::new(lease)),
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
                Ok(None) if began.elapsed() >= LASTS_MIN => break,
                Ok(None) => return "the apiserver ended the watch at once".to_owned(),
                Ok(Some(Ok(WatchEvent::Error(status)))) => return status.message,
                Ok(Some(Err(error))) => return error.to_string(),
                Err(_) => return format!("the watch was silent for {SILENCE_MAX:?}"),
            };
            to.send_modify(|shown| {
                shown.had_holder |= matches!(&version, Version::Present(lease) if !holder(lease).is_empty());
                shown.version = version;
            });
        }
    }
}
