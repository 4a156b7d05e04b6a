//! One watch: from the apiserver to a channel.
//!
//! In: the apiserver's watch of a kind. Out: what changed. Objects are decoded one by one: one that can't be decoded comes out as such and
//! fails no other. A relist comes out as one event with all objects, so that what is missing from it is known to be gone.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::decode::{Change, Decoded};

/// The pause after a watch failed, so that an absent resource costs a request now and then and is found when it comes.
pub const WATCH_RETRY: Duration = Duration::from_secs(2);

/// The apiserver ends each watch after so long, so that something comes over a living connection at least as often.
const WATCH_SECONDS: u32 = 4;

/// A connection over which nothing has come for so long is dead. With the pause before the next try, a watch that died
/// without a word is noticed and replaced within ten seconds.
pub const SILENCE_SECONDS_MAX: u64 = 6;

/// What a watch tells.
pub enum Heard<K> {
    /// Something changed.
    Changed(Change<K>),
    /// It has failed, and is over.
    Lost(watcher::Error),
}

/// Tells of everything until the watch fails; the answer is whether somebody still listens.
pub async fn follow<K, S>(
    api: Api<Decoded<K>>,
    to: &mpsc::UnboundedSender<S>,
    tell: impl Fn(Heard<K>) -> S,
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
            Err(error) => return to.send(tell(Heard::Lost(error))).is_ok(),
        };
        if to.send(tell(Heard::Changed(change))).is_err() {
            return false;
        }
    }
    true
}

/// A broken behaviour for the simulator: an undecodable object counts as absent.
fn is_ignored<K>(object: &Decoded<K>) -> bool {
    matches!(object, Decoded::Undecodable(_)) && plan::sabotaged!(UndecodableReadAsAbsent)
}

/// Who wrote which field is the largest part of most objects, and nobody here asks.
fn slimmed<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// Whether the cluster does not have what is watched.
pub fn is_not_found(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status,
        _ => return false,
    };
    status.code == 404
}

/// An object's version as a number, by which a later one is told from an earlier one.
pub fn version(metadata: &ObjectMeta) -> u64 {
    metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
