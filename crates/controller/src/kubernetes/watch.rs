//! Forwards one watch from the apiserver to a channel.
//!
//! In: the apiserver's watch of a kind. Out: its changes. Objects are decoded one by one, so an undecodable object is
//! forwarded as such and never fails the watch. A relist becomes one event with all objects, so the receiver knows
//! which objects are gone.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::decode::{Change, Decoded};

/// The pause after a failed watch. It limits the requests for a kind that the apiserver does not serve.
pub const WATCH_RETRY: Duration = Duration::from_secs(2);

/// The timeout after which the apiserver ends each watch, so that a live connection is never silent for longer.
const WATCH_SECONDS: u32 = 4;

/// A connection counts as dead if it is silent for this long. Together with the pause before the retry, a dead watch is
/// replaced within ten seconds.
pub const SILENCE_SECONDS_MAX: u64 = 6;

/// An event of a watch.
pub enum WatchEvent<K> {
    /// Objects changed.
    Changed(Change<K>),
    /// The watch failed and has ended.
    Lost(watcher::Error),
}

/// Forwards the changes until the watch fails. Returns whether the receiver still exists.
pub async fn follow<K, S>(
    api: Api<Decoded<K>>,
    to: &mpsc::UnboundedSender<S>,
    convert: impl Fn(WatchEvent<K>) -> S,
) -> bool
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let events = watcher(api, watcher::Config::default().timeout(WATCH_SECONDS));
    futures::pin_mut!(events);
    let mut relisted = Vec::new();
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(Event::Init) => {
                relisted.clear();
                continue;
            }
            Ok(Event::InitApply(object)) if is_ignored(&object) => continue,
            Ok(Event::InitApply(object)) => {
                relisted.push(slimmed(object));
                continue;
            }
            Ok(Event::InitDone) => Change::All(std::mem::take(&mut relisted)),
            Ok(Event::Apply(object)) if is_ignored(&object) => {
                Change::Deleted(Box::new(object.meta().clone()))
            }
            Ok(Event::Apply(object)) => Change::Applied(Box::new(slimmed(object))),
            Ok(Event::Delete(object)) => Change::Deleted(Box::new(object.meta().clone())),
            Err(error) => return to.send(convert(WatchEvent::Lost(error))).is_ok(),
        };
        if to.send(convert(WatchEvent::Changed(change))).is_err() {
            return false;
        }
    }
    true
}

/// A deliberate defect for the simulator: an undecodable object counts as absent.
fn is_ignored<K>(object: &Decoded<K>) -> bool {
    matches!(object, Decoded::Undecodable(_)) && plan::sabotaged!(UndecodableReadAsAbsent)
}

/// Removes `managedFields`, which is the largest part of most objects and which the controller does not use.
fn slimmed<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// Whether the apiserver does not serve the watched kind.
pub fn is_not_found(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status,
        _ => return false,
    };
    status.code == 404
}

/// The `resourceVersion` of an object as a number, to compare versions. 0 if it is not a number.
pub fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
