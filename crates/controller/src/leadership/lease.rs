//! Leader election by a Lease, with client-go's semantics.
//!
//! In: a separate client with hard timeouts and no silent retries. Out: whether this process leads, its epoch, and a
//! fence that is open while it leads. A candidate measures the expiry of another leader's Lease with its own clock,
//! from when it saw the Lease change. It never compares the clocks of two machines. Every write names the version that
//! was read.
//!
//! A leader that could not renew the Lease in time has lost it. [`Candidate::keep`] then returns, and the process must
//! end.
//!
//! `plan::leadership` decides whether a candidate may take the Lease, and how long a new leader waits. While a FLIPOP
//! in the same namespace leads, the candidate stands by, because FLIPOP moves the same addresses and ignores this
//! Lease.
//!
//! The epoch of a new leader is one more than the highest epoch in the Lease and all journals. The leader writes it
//! into the Lease. If a person changes the epoch or the duration, the next renewal restores them. A Lease counts as
//! released only if its leader annotated it so.

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

/// The pause between two attempts to acquire or renew the lease.
pub const RETRY: Duration = Duration::from_secs(2);

/// The lease of FLIPOP's leader.
pub const FLIPOP_LEASE: &str = "floating-ip-pool-controller-leader-election";

/// The annotation with the leader's epoch.
pub const EPOCH_ANNOTATION: &str = "netinfra.darkbrains.com/epoch";

/// The annotation of a leader that released the lease, with the number of transitions at that time. The next leader of
/// any program increases `leaseTransitions`, which makes the annotation invalid. The next leader of this program also
/// removes it.
pub const RELEASED_ANNOTATION: &str = "netinfra.darkbrains.com/released";

/// The annotation with the node whose pod handed the lease over, because the next step would have cut off that node.
pub const HANDED_OVER_ANNOTATION: &str = "netinfra.darkbrains.com/handed-over-from";

/// Options of a candidate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its unique holder identity.
    pub identity: String,
    /// The Lease that all candidates share, as namespace and name.
    pub lease: (String, String),
    /// Lease duration.
    pub duration: Duration,
    /// The namespace in which a leading FLIPOP makes the candidate stand by. None if the controller does not do
    /// FLIPOP's work.
    pub flipop_namespace: Option<String>,
}

/// A candidate for leadership.
pub struct Candidate {
    api: Api<Lease>,
    /// The Leases in FLIPOP's namespace. None if the controller does not do FLIPOP's work.
    flipop_api: Option<Api<Lease>>,
    name: String,
    identity: String,
    duration: Duration,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    /// The epoch of this process, once it leads.
    epoch: Option<Epoch>,
    /// The lease as last seen, and when this process saw it change.
    seen: Option<(Lease, Duration)>,
    /// FLIPOP's lease as last seen, and when this process saw it change.
    flipop: Option<(Lease, Duration)>,
    /// Whether FLIPOP has led since the start of this process. Its last request may still be in flight.
    has_stood_by: bool,
}

impl Candidate {
    /// Creates a candidate for the lease in the options.
    pub fn new(client: Client, options: Options, clock: Arc<dyn Clock>, fence: Arc<Fence>) -> Self {
        let Options { identity, lease: (namespace, name), duration, flipop_namespace } = options;
        Self {
            flipop_api: flipop_namespace.map(|namespace| Api::namespaced(client.clone(), &namespace)),
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

    /// Waits until this process has the lease.
    pub async fn win(&mut self) -> Gained {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let changes = watcher(self.api.clone(), config);
        futures::pin_mut!(changes);
        loop {
            match self.try_win().await {
                Ok(Some(gained)) => return gained,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "failed to acquire the lease"),
            }
            // The watch shows a release at once, without waiting for the next attempt.
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

    /// Whether a FLIPOP in the same namespace leads.
    async fn flipop_leads(&mut self) -> Result<bool> {
        let Some(flipop_api) = &self.flipop_api else { return Ok(false) };
        let Some(lease) = flipop_api.get_opt(FLIPOP_LEASE).await? else {
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
                "standing by while FLIPOP leads: scale FLIPOP to zero"
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

    /// The lease as it was read, with this process as its holder.
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

    /// Records a successful write. The lease is valid for its duration, counted from the start of that request.
    fn renewed(&mut self, lease: Lease, began: Duration) {
        self.fence.open_until(began.saturating_add(self.duration));
        self.seen = Some((lease, began));
    }

    /// The epoch in the lease.
    pub fn last_epoch(&self) -> Epoch {
        self.seen.as_ref().and_then(|(lease, _)| epoch(lease)).unwrap_or_default()
    }

    /// Whether a pod on this node handed the lease over, and no pod has led since.
    pub fn was_handed_over_from(&self, node: &NodeName) -> bool {
        let annotations = self.seen.as_ref().and_then(|(lease, _)| lease.metadata.annotations.as_ref());
        annotations.and_then(|all| all.get(HANDED_OVER_ANNOTATION)).is_some_and(|from| from == node.as_str())
    }

    /// Writes the epoch into the lease. Retries until the lease is lost.
    pub async fn set_epoch(&mut self, epoch: Epoch) -> Result<()> {
        self.epoch = Some(epoch);
        loop {
            match self.renew().await {
                Err(error) if self.fence.remaining().is_none() || self.is_lost().await => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "failed to write the epoch into the lease");
                    tokio::time::sleep(self.pause()).await;
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Renews the lease. Returns when this process no longer leads.
    pub async fn keep(&mut self) {
        // Two thirds of the duration, as in client-go.
        let deadline = self.duration.saturating_mul(2) / 3;
        let mut last = self.clock.since_boot();
        while self.clock.since_boot() < last.saturating_add(deadline) {
            // The pause is first, because the lease was written just before this call. A canceled renewal would leave
            // its version unknown.
            tokio::time::sleep(self.pause()).await;
            match self.renew().await {
                Ok(()) => {
                    last = self.clock.since_boot();
                    if matches!(self.flipop_leads().await, Ok(true)) {
                        tracing::error!(
                            lease = FLIPOP_LEASE,
                            "stopping because FLIPOP leads too: scale FLIPOP to zero"
                        );
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to renew the lease");
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

    /// Reads the lease after a failed write, because the response may be lost, or a person may have annotated the
    /// lease. Returns whether another process has taken it. The read does not extend the lease: only a successful write
    /// does.
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
        let (lease, _) = self.seen.as_ref().context("no lease to renew")?;
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

    /// Releases the lease. The caller has no requests in flight. For a hand-over, it passes its node.
    pub async fn release(&mut self, handed_over_from: Option<&NodeName>) -> Result<()> {
        self.fence.close();
        // The last renewal may have been canceled before its response arrived.
        if self.is_lost().await {
            return Ok(());
        }
        let (lease, _) = self.seen.as_ref().context("no lease to release")?;
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

/// Records a lease, and returns when this process saw its last change.
fn note(seen: &mut Option<(Lease, Duration)>, lease: &Lease, now: Duration) -> Duration {
    match seen {
        Some((known, at)) if known.metadata.resource_version == lease.metadata.resource_version => *at,
        _ => {
            *seen = Some((lease.clone(), now));
            now
        }
    }
}

/// The epoch of the last leader.
fn epoch(lease: &Lease) -> Option<Epoch> {
    annotation(lease, EPOCH_ANNOTATION).map(|epoch| Epoch(epoch.into()))
}

/// The number in an annotation of a lease. None if it is out of range.
fn annotation(lease: &Lease, name: &str) -> Option<i32> {
    lease.metadata.annotations.as_ref()?.get(name)?.parse().ok()
}

/// The number of transitions of a lease.
fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0)
}

/// The holder of a lease. Empty if it has none.
fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// The duration of a lease.
fn lasts(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Duration::from_secs(u64::from(seconds.unsigned_abs()))
}
