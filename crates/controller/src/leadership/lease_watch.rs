//! Watches one Lease.
//!
//! In: the apiserver's watch of the Lease. Out: each version of it, and whether the watch works. While it works, nobody
//! has to read the Lease to know that its holder renews it. It never decides who leads.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::WatchParams;
use kube::core::WatchEvent;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::tasks::Tasks;

/// The pause before a watch that failed is requested again.
const RETRY: Duration = Duration::from_secs(2);

/// How long it may take until the response to the request starts.
const RESPONSE_MAX: Duration = Duration::from_secs(10);

/// The timeout after which the apiserver ends the watch.
const WATCH_SECONDS: u32 = 120;

/// A watch that is silent for longer than its timeout is dead, also if a proxy keeps its connection alive.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// What a watch of a Lease shows.
pub(super) enum Shown {
    /// The watch works. If the Lease exists, its version follows.
    Works,
    /// The Lease has this version now.
    Version(Box<Lease>),
    /// The Lease was deleted.
    Deleted,
    /// The watch failed. The Lease may change unseen until its next version.
    Lost,
}

/// A watch of a Lease. It stops when this is dropped.
pub(super) struct LeaseWatch {
    shown: mpsc::UnboundedReceiver<Shown>,
    _task: Tasks<()>,
}

impl LeaseWatch {
    /// Starts a watch.
    pub(super) fn start(api: Api<Lease>, name: &str) -> Self {
        let (to, shown) = mpsc::unbounded_channel();
        let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
        let mut task = Tasks::default();
        task.spawn(async move {
            loop {
                watch(&api, &params, &to).await;
                if to.send(Shown::Lost).is_err() {
                    return;
                }
                sleep(RETRY).await;
            }
        });
        Self { shown, _task: task }
    }

    /// What the watch shows next. Canceling this loses nothing.
    pub(super) async fn next(&mut self) -> Shown {
        match self.shown.recv().await {
            Some(shown) => shown,
            None => std::future::pending().await,
        }
    }
}

/// Forwards the versions of a Lease until the watch fails. Continues if the apiserver ends it.
async fn watch(api: &Api<Lease>, params: &WatchParams, to: &mpsc::UnboundedSender<Shown>) {
    loop {
        // Without a resourceVersion, the watch begins with the present version.
        let Ok(Ok(mut events)) =
            timeout(RESPONSE_MAX, api.watch(params, "")).await.map(|started| started.map(StreamExt::boxed))
        else {
            return;
        };
        if to.send(Shown::Works).is_err() {
            return;
        }
        loop {
            let shown = match timeout(SILENCE_MAX, events.next()).await {
                Ok(Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease)))) => {
                    Shown::Version(Box::new(lease))
                }
                Ok(Some(Ok(WatchEvent::Deleted(_)))) => Shown::Deleted,
                Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
                Ok(None) => break,
                Ok(Some(Ok(WatchEvent::Error(_)) | Err(_))) | Err(_) => return,
            };
            if to.send(shown).is_err() {
                return;
            }
        }
    }
}
