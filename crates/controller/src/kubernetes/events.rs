//! Publishes Events, for example for `kubectl describe`.
//!
//! In: what happened, and to which object. Out: one `events.k8s.io/v1` Event. The controller never waits for the
//! response and never retries. One object can't fill etcd with Events: above a limit the publisher drops them. It logs
//! each Warning that it drops. The controller does not use kube's recorder, which merges Events with the same reason and
//! keeps only the first note. The notes of this controller differ by address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use plan::{ConditionType, EventReason, Reason, Timestamp};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::decode::Report;
use super::limits::{NOTE_MAX, cut};
use crate::tasks::Tasks;

/// The maximum number of Events that are queued or in flight. The publisher drops further ones.
const QUEUE_MAX: usize = 100;

/// The maximum number of Events in flight, so that they don't delay other writes.
const IN_FLIGHT_MAX: usize = 4;

/// How many Events about one object may follow each other without a pause.
const BURST: u32 = 100;

/// How many of [`BURST`] only Warnings may use. So many other Events can't keep a Warning from the person who has to act.
const KEPT_FOR_WARNINGS: u32 = 25;

/// The average pause between the Events about one object that come after [`BURST`].
const PAUSE: Duration = Duration::from_secs(1);

/// The most characters of an object's name in the name of an Event.
const NAME_MAX: usize = 180;

/// The namespace of Events about cluster-scoped objects.
const NAMESPACE_OF_CLUSTER: &str = "default";

/// The reason of an Event, and whether its type is Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// The reason, in UpperCamelCase.
    pub reason: &'static str,
    /// Whether its type is Warning: a person should look at it.
    pub is_warning: bool,
}

impl From<EventReason> for EventKind {
    fn from(reason: EventReason) -> Self {
        Self { reason: reason.name(), is_warning: reason.row().is_warning }
    }
}

impl From<Reason> for EventKind {
    fn from(reason: Reason) -> Self {
        Self { reason: reason.name(), is_warning: reason.condition() == ConditionType::Stalled }
    }
}

/// An Event to publish.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The object or node that it is about.
    pub regarding: ObjectReference,
    /// Its reason and type.
    pub kind: EventKind,
    /// What the controller did or tried, in UpperCamelCase.
    pub action: &'static str,
    /// A sentence for people.
    pub note: String,
}

impl NewEvent {
    /// The Event for an object that can't be decoded.
    pub fn of_undecodable<T>(report: &Report<T>, kind: &str, api_version: &str) -> Self {
        let regarding = ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(report.name.clone()),
            namespace: Some(report.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            uid: report.uid.clone(),
            ..ObjectReference::default()
        };
        let note = format!(
            "the controller can't decode this object and does not act on it; correct this field: {}",
            report.error
        );
        Self { regarding, kind: EventReason::Undecodable.into(), action: "Decode", note }
    }
}

/// Publishes Events without waiting for the responses.
pub struct Publisher {
    client: Client,
    /// The name of this process in Events.
    instance: Arc<str>,
    /// The number of Events so far.
    published: u64,
    /// Events that are queued or in flight.
    tasks: Tasks<()>,
    /// One permit for each Event that may be in flight.
    permits: Arc<Semaphore>,
    rates: Rates,
}

/// Kind, namespace and name of the object that Events are about.
type Regarding = (Option<String>, Option<String>, Option<String>);

/// How many Events each object had recently.
#[derive(Default)]
struct Rates {
    /// Each Event moves the time of its object one [`PAUSE`] into the future. Events are allowed while that time is less
    /// than [`BURST`] pauses ahead.
    ahead_until: BTreeMap<Regarding, Instant>,
    /// When objects without recent Events are removed.
    cleaned_at: Option<Instant>,
}

impl Rates {
    /// Whether one more Event about an object may be published. If so, this function counts it.
    fn allows(&mut self, regarding: &ObjectReference, is_warning: bool, now: Instant) -> bool {
        if self.cleaned_at.is_none_or(|at| now >= at) {
            self.ahead_until.retain(|_, until| *until > now);
            self.cleaned_at = Some(now + BURST * PAUSE);
        }
        let ObjectReference { kind, namespace, name, .. } = regarding.clone();
        let until = self.ahead_until.entry((kind, namespace, name)).or_insert(now);
        let next = (*until).max(now) + PAUSE;
        let burst = if is_warning { BURST } else { BURST - KEPT_FOR_WARNINGS };
        let is_allowed = next <= now + burst * PAUSE;
        if is_allowed {
            *until = next;
        }
        is_allowed
    }
}

impl Publisher {
    /// A publisher for the process with this name.
    pub fn new(client: Client, instance: &str) -> Self {
        Self {
            client,
            instance: instance.into(),
            published: 0,
            tasks: Tasks::default(),
            permits: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            rates: Rates::default(),
        }
    }

    /// Publishes an Event, or drops it if too many are queued or about the same object.
    pub fn publish(&mut self, event: NewEvent, now: Timestamp) {
        while self.tasks.try_next().is_some() {}
        if self.tasks.len() >= QUEUE_MAX {
            return log_dropped(&event, "too many are queued");
        }
        if !self.rates.allows(&event.regarding, event.kind.is_warning, Instant::now()) {
            return log_dropped(&event, "too many are about the same object");
        }
        self.published += 1;
        let (client, instance, number) = (self.client.clone(), Arc::clone(&self.instance), self.published);
        let permits = Arc::clone(&self.permits);
        self.tasks.spawn(async move {
            // Nobody closes the semaphore.
            let _permit = permits.acquire().await;
            if let Err(error) = send(client, event, number, &instance, now).await {
                tracing::debug!(%error, "failed to publish event");
            }
        });
    }

    /// Waits until no Event is queued or in flight.
    pub async fn flush(&mut self) {
        // The process is about to release its lease, so the Events go out together.
        self.permits.add_permits(QUEUE_MAX);
        while self.tasks.next().await.is_some() {}
    }
}

/// Logs an Event that is not published. Other Events repeat what the log contains at its default level.
fn log_dropped(event: &NewEvent, why: &str) {
    let NewEvent { regarding, kind, note, .. } = event;
    let object = regarding.name.as_deref();
    match kind.is_warning {
        true => tracing::warn!(object, reason = kind.reason, note, "dropped an Event: {why}"),
        false => tracing::debug!(object, reason = kind.reason, note, "dropped an Event: {why}"),
    }
}

async fn send(
    client: Client,
    new: NewEvent,
    number: u64,
    instance: &str,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let namespace = new.regarding.namespace.clone().unwrap_or_else(|| NAMESPACE_OF_CLUSTER.into());
    let name: String = new.regarding.name.iter().flat_map(|name| name.chars()).take(NAME_MAX).collect();
    let event = Event {
        metadata: ObjectMeta {
            // The number keeps the names of two Events at the same time apart.
            name: Some(format!("{name}.{:x}.{number:x}", now.as_nanosecond())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some(new.action.into()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(&new.note, NOTE_MAX)),
        reason: Some(new.kind.reason.into()),
        regarding: Some(new.regarding),
        reporting_controller: Some("ip-address-controller".into()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(if new.kind.is_warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    };
    Api::namespaced(client, &namespace).create(&PostParams::default(), &event).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_about_one_object_are_limited_and_do_not_delay_others() {
        let about =
            |name: &str| ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() };
        let (noisy, quiet) = (about("noisy"), about("quiet"));
        let (mut rates, began) = (Rates::default(), Instant::now());
        let mut allowed = |object: &ObjectReference, is_warning, pauses| {
            let now = began + pauses * PAUSE;
            (0..1_000).filter(|_| rates.allows(object, is_warning, now)).count()
        };
        assert_eq!(allowed(&noisy, false, 0), 75);
        assert_eq!(allowed(&quiet, false, 0), 75);
        assert_eq!(allowed(&noisy, true, 0), 25, "the other Events leave these to Warnings");
        assert_eq!(allowed(&noisy, true, 10), 10);
        assert_eq!(allowed(&noisy, true, 500), 100);
        assert_eq!(rates.ahead_until.len(), 1, "an object without recent Events takes no memory");
    }
}
