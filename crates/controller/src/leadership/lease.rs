//! Leadership, by a Lease with client-go's semantics.
//!
//! In: a client of its own, with hard timeouts and no silent retries. Out: the moment at which we lead, our epoch, and a
//! fence that is open exactly while we do. Expiry of another's lease is judged by when we saw it change, on our own clock;
//! clocks of two machines are never compared. Every write carries the version that was read.
//!
//! A leader that could not renew in time is not the leader any more and says so by ending: its process must end too.
//!
//! Who may take the lease, and how long a new leader keeps still, is decided by `plan::leadership`. While a FLIPOP in our
//! namespace leads we stand by: it moves the same addresses, and does not look at our lease.
//!
//! The epoch is one more than the highest of the Lease's and every journal's, and is written into the Lease. If people change
//! that or how long it lasts, a leader's next renewal puts its own back, and only a Lease whose leader says so itself was given
//! up in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use plan::leadership::{Gained, Sighting, candidacy};
use plan::{Epoch, NodeName};

use super::clock::Clock;
use super::fence::Fence;

/// The pause between two looks at the lease, or two renewals.
pub const RETRY: Duration = Duration::from_secs(2);

/// The lease by which FLIPOP's leader is told from its standbys.
pub const FLIPOP_LEASE: &str = "floating-ip-pool-controller-leader-election";

/// The annotation that holds the leader's epoch.
pub const EPOCH_ANNOTATION: &str = "netinfra.darkbrains.com/epoch";

/// The annotation by which a leader says that it gave the lease up in order, after so many transitions. Whoever takes it counts one
/// more, and whoever of us does takes the annotation off.
pub const RELEASED_ANNOTATION: &str = "netinfra.darkbrains.com/released";

/// The annotation that names the node whose pod gave the lease up for somebody else to do what would have cut it off.
pub const HANDED_OVER_ANNOTATION: &str = "netinfra.darkbrains.com/handed-over-from";

/// Options of a candidate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name among the candidates.
    pub identity: String,
    /// The Lease that all candidates share, as namespace and name.
    pub lease: (String, String),
    /// Lease duration.
    pub duration: Duration,
    /// The namespace in which the candidate stands by while a FLIPOP leads; none where it does nothing that FLIPOP does.
    pub flipop_namespace: Option<String>,
}

/// A candidate for leadership.
pub struct Candidate {
    api: Api<Lease>,
    /// The leases of our own namespace, where a FLIPOP that we replace has its own; none where we do nothing that it does.
    beside: Option<Api<Lease>>,
    name: String,
    identity: String,
    duration: Duration,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    /// Our epoch, once we lead.
    epoch: Option<Epoch>,
    /// The lease as last seen, and when we saw it change.
    seen: Option<(Lease, Duration)>,
    /// FLIPOP's lease, likewise.
    flipop: Option<(Lease, Duration)>,
    /// Whether FLIPOP was ever seen to lead: its last request may still be under way.
    has_stood_by: bool,
}

impl Candidate {
    /// A candidate for the lease that the options name.
    pub fn new(client: Client, options: Options, clock: Arc<dyn Clock>, fence: Arc<Fence>) -> Self {
        let Options { identity, lease: (namespace, name), duration, flipop_namespace } = options;
        Self {
            beside: flipop_namespace.map(|namespace| Api::namespaced(client.clone(), &namespace)),
            api: Api::namespaced(client, &namespace),
            name,
            identity,
            duration,
            clock,
            fence,
            epoch: None,
            seen: None,
            flipop: None,
            has_stood_by: false,
        }
    }

    /// Waits until we lead.
    pub async fn win(&mut self) -> Gained {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let changes = watcher(self.api.clone(), config);
        futures::pin_mut!(changes);
        loop {
            match self.try_win().await {
                Ok(Some(gained)) => return gained,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "looking at the lease failed"),
            }
            // A release is seen at once, so that nobody waits for the next look.
            let changed = async {
                if !matches!(changes.next().await, Some(Ok(_))) {
                    tokio::time::sleep(RETRY).await;
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Whether a FLIPOP in our namespace leads.
    async fn flipop_leads(&mut self) -> Result<bool> {
        let Some(beside) = &self.beside else { return Ok(false) };
        let Some(lease) = beside.get_opt(FLIPOP_LEASE).await? else {
            self.flipop = None;
            return Ok(false);
        };
        let now = self.clock.since_boot();
        let is_first = self.flipop.is_none();
        let changed_at = note(&mut self.flipop, &lease, now);
        let leads = !holder(&lease).is_empty() && now < changed_at.saturating_add(lasts(&lease));
        self.has_stood_by |= leads;
        if leads && is_first {
            tracing::warn!(
                lease = FLIPOP_LEASE,
                holder = holder(&lease),
                "standing by while FLIPOP leads: scale it to zero"
            );
        }
        Ok(leads)
    }

    async fn try_win(&mut self) -> Result<Option<Gained>> {
        if self.flipop_leads().await? {
            return Ok(None);
        }
        let lease = self.api.get_opt(&self.name).await?;
        let now = self.clock.since_boot();
        let seen = lease.as_ref().map(|lease| sighting(lease, note(&mut self.seen, lease, now)));
        let Some(gained) = candidacy(seen, &self.identity, self.duration, now) else { return Ok(None) };
        let written = match lease {
            None => self.api.create(&PostParams::default(), &self.record(Lease::default(), 0)).await?,
            Some(lease) => {
                let transitions = transitions(&lease).saturating_add(1);
                let mut taken = self.record(lease, transitions);
                if plan::sabotaged!(LeaseWithoutPrecondition) {
                    taken.metadata.resource_version =
                        self.api.get(&self.name).await?.metadata.resource_version;
                }
                self.api.replace(&self.name, &PostParams::default(), &taken).await?
            }
        };
        self.renewed(written, now);
        let is_after_flipop = gained == Gained::Released && self.has_stood_by;
        Ok(Some(if is_after_flipop { Gained::TakenOver } else { gained }))
    }

    /// Our claim, on top of the lease as it was read.
    fn record(&self, lease: Lease, transitions: i32) -> Lease {
        let now = MicroTime(self.clock.wall());
        let mut metadata = ObjectMeta { name: Some(self.name.clone()), ..lease.metadata };
        metadata.annotations.iter_mut().for_each(|all| _ = all.remove(RELEASED_ANNOTATION));
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.seconds()),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..lease.spec.unwrap_or_default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    fn seconds(&self) -> i32 {
        i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)
    }

    /// The lease is ours until its duration has passed since the request that the apiserver granted began.
    fn renewed(&mut self, lease: Lease, began: Duration) {
        self.fence.open_until(began.saturating_add(self.duration));
        self.seen = Some((lease, began));
    }

    /// The highest epoch that the lease knows of.
    pub fn last_epoch(&self) -> Epoch {
        self.seen.as_ref().and_then(|(lease, _)| epoch(lease)).unwrap_or_default()
    }

    /// Whether a pod on this node handed the lease over, and nobody on another has led since.
    pub fn was_handed_over_from(&self, node: &NodeName) -> bool {
        let annotations = self.seen.as_ref().and_then(|(lease, _)| lease.metadata.annotations.as_ref());
        annotations.and_then(|all| all.get(HANDED_OVER_ANNOTATION)).is_some_and(|from| from == node.as_str())
    }

    /// Writes our epoch into the lease.
    pub async fn set_epoch(&mut self, epoch: Epoch) -> Result<()> {
        self.epoch = Some(epoch);
        loop {
            match self.renew().await {
                Err(error) if self.fence.remaining().is_none() || self.is_lost().await => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "writing our epoch into the lease failed");
                    tokio::time::sleep(self.pause()).await;
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Renews the lease until that fails for too long; then we lead no more.
    pub async fn keep(&mut self) {
        // As client-go does: two thirds of the duration.
        let deadline = self.duration.saturating_mul(2) / 3;
        let mut last = self.clock.since_boot();
        while self.clock.since_boot() < last.saturating_add(deadline) {
            // It was renewed right before; a renewal that is cut off leaves us not knowing its version.
            tokio::time::sleep(self.pause()).await;
            match self.renew().await {
                Ok(()) => {
                    last = self.clock.since_boot();
                    if matches!(self.flipop_leads().await, Ok(true)) {
                        tracing::error!(lease = FLIPOP_LEASE, "FLIPOP leads beside us: giving way to it");
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "renewing the lease failed");
                    if self.is_lost().await {
                        break;
                    }
                }
            }
        }
        self.fence.close();
    }

    /// The pause between two writes of the lease.
    fn pause(&self) -> Duration {
        RETRY.min(self.duration / 4)
    }

    /// Reads the lease again after a failure: an answer may have been lost, or somebody may have annotated it. One that is
    /// still ours is gone on with; whether ours has been extended is only known from an answered write.
    async fn is_lost(&mut self) -> bool {
        let Ok(Some(found)) = self.api.get_opt(&self.name).await else { return false };
        let claim = |lease: &Lease| {
            let spec = lease.spec.clone().unwrap_or_default();
            (spec.holder_identity, spec.lease_transitions)
        };
        match &mut self.seen {
            Some((known, _)) if claim(known) == claim(&found) => {
                *known = found;
                false
            }
            _ => true,
        }
    }

    async fn renew(&mut self) -> Result<()> {
        let (lease, _) = self.seen.as_ref().context("there is no lease to renew")?;
        let began = self.clock.since_boot();
        let mut renewed = lease.clone();
        if let Some(spec) = &mut renewed.spec {
            spec.renew_time = Some(MicroTime(self.clock.wall()));
            spec.lease_duration_seconds = Some(self.seconds());
        }
        let annotations = renewed.metadata.annotations.get_or_insert_default();
        annotations.remove(RELEASED_ANNOTATION);
        if let Some(epoch) = self.epoch {
            annotations.remove(HANDED_OVER_ANNOTATION);
            annotations.insert(EPOCH_ANNOTATION.into(), epoch.0.to_string());
        }
        if plan::sabotaged!(LeaseWithoutPrecondition) {
            renewed.metadata.resource_version = self.api.get(&self.name).await?.metadata.resource_version;
        }
        let written = self.api.replace(&self.name, &PostParams::default(), &renewed).await?;
        self.renewed(written, began);
        Ok(())
    }

    /// Gives the lease up in order: nothing of ours is under way any more. Who hands it over names its node.
    pub async fn release(&mut self, handed_over_from: Option<&NodeName>) -> Result<()> {
        self.fence.close();
        // The last renewal may have been cut off before its answer came.
        if self.is_lost().await {
            return Ok(());
        }
        let (lease, _) = self.seen.as_ref().context("there is no lease to release")?;
        let mut released = lease.clone();
        let annotations = released.metadata.annotations.get_or_insert_default();
        annotations.extend(handed_over_from.map(|node| (HANDED_OVER_ANNOTATION.into(), node.to_string())));
        annotations.extend(self.epoch.map(|epoch| (EPOCH_ANNOTATION.into(), epoch.0.to_string())));
        annotations.insert(RELEASED_ANNOTATION.into(), transitions(lease).to_string());
        if let Some(spec) = &mut released.spec {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        self.api.replace(&self.name, &PostParams::default(), &released).await?;
        Ok(())
    }
}

fn sighting(lease: &Lease, since: Duration) -> Sighting<'_> {
    let is_released = annotation(lease, RELEASED_ANNOTATION).is_some_and(|after| after == transitions(lease));
    Sighting { holder: holder(lease), is_released, lasts: lasts(lease), since }
}

/// Takes note of a lease as it is now, and tells when we saw it change.
fn note(seen: &mut Option<(Lease, Duration)>, lease: &Lease, now: Duration) -> Duration {
    match seen {
        Some((known, at)) if known.metadata.resource_version == lease.metadata.resource_version => *at,
        _ => {
            *seen = Some((lease.clone(), now));
            now
        }
    }
}

/// The epoch of the last who led by a lease.
fn epoch(lease: &Lease) -> Option<Epoch> {
    annotation(lease, EPOCH_ANNOTATION).map(|epoch| Epoch(epoch.into()))
}

/// A number that a lease is annotated with. One that nobody can have counted to is none.
fn annotation(lease: &Lease, name: &str) -> Option<i32> {
    lease.metadata.annotations.as_ref()?.get(name)?.parse().ok()
}

/// How often a lease was taken by another than before.
fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0)
}

/// Who holds a lease; empty where nobody does.
fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// How long a lease lasts that is not renewed.
fn lasts(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Duration::from_secs(u64::from(seconds.unsigned_abs()))
}
