//! Leader election by a Lease, with client-go's semantics.
//!
//! In: a separate client with hard timeouts and no silent retries, and a watch of the Lease. Out: whether
//! this process leads, its epoch, and a fence that is open while it leads. A candidate follows the Lease by
//! its watch. It reads the Lease from the apiserver only when it may take the Lease, or when the watch has
//! shown no renewal for a few seconds. It measures the expiry of another leader's Lease with its own clock,
//! from when it saw the Lease change. It never compares the clocks of two machines. Every write names the
//! version that was read.
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
//! released only if its leader annotated it as released.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use plan::leadership::{Gained, Sighting, candidacy};
use plan::{Epoch, NodeName};

use super::clock::Clock;
use super::fence::Fence;
use super::lease_watch::{LeaseWatch, Shown, Version, holder};
use crate::kubernetes::watch::version;

/// The pause between two attempts to acquire or renew the lease.
pub const RETRY: Duration = Duration::from_secs(2);

/// How often a candidate checks whether the lease has expired.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// If a candidate has seen no change of a lease for this long, it reads the lease, because the watch may be silent. The
/// holder renews the lease more often.
const READ_AFTER: Duration = Duration::from_secs(6);

/// A leader reads FLIPOP's lease if its watch has shown nothing for this long.
const READ_FLIPOP_AFTER: Duration = Duration::from_secs(30);

/// The lease of FLIPOP's leader.
pub const FLIPOP_LEASE: &str = "floating-ip-pool-controller-leader-election";

/// The annotation with the leader's epoch.
pub const EPOCH_ANNOTATION: &str = "netinfra.darkbrains.com/epoch";

/// The annotation of a leader that released the lease, with the number of transitions at that time. The next leader,
/// whatever program it runs, increases `leaseTransitions`, which makes the annotation invalid. If that leader is this
/// controller, it also removes the annotation.
pub const RELEASED_ANNOTATION: &str = "netinfra.darkbrains.com/released";

/// The annotation with the node whose pod handed the lease over, because the next step would change the node's address.
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
    /// The namespace in which a leading FLIPOP makes the candidate stand by. None if the controller handles no public
    /// addresses.
    pub flipop_namespace: Option<String>,
}

/// A candidate for leadership.
pub struct Candidate {
    api: Api<Lease>,
    /// The Leases in FLIPOP's namespace. None if the controller handles no public addresses.
    flipop_api: Option<Api<Lease>>,
    /// The watch of the lease. A leader needs none.
    watch: Option<LeaseWatch>,
    flipop_watch: Option<LeaseWatch>,
    /// For watches, which may be silent for long.
    watches: Client,
    name: String,
    identity: String,
    duration: Duration,
    clock: Arc<dyn Clock>,
    fence: Arc<Fence>,
    /// The epoch of this process, once it leads.
    epoch: Option<Epoch>,
    lease: Known,
    flipop: Known,
    /// Whether the log says that FLIPOP leads.
    is_flipop_reported: bool,
    /// Whether FLIPOP has led since the start of this process. FLIPOP's last request may still be in flight.
    has_stood_by: bool,
}

/// A lease as this process knows it.
#[derive(Default)]
struct Known {
    /// The newest version, and when this process saw it first.
    present: Option<(Lease, Duration)>,
    /// The `resourceVersion` up to which changes are known. A watch may show older ones.
    version: u64,
    /// When the lease was last read, or its watch last showed something new.
    checked: Duration,
}

impl Known {
    /// Records a lease that was read. A read is never outdated, so a lower version means that etcd was restored.
    fn record_read(&mut self, lease: Option<&Lease>, now: Duration) {
        self.checked = now;
        let Some(lease) = lease else {
            // What was seen before the deletion does not count.
            self.present = None;
            return;
        };
        let is_known = |(known, _): &(Lease, Duration)| {
            known.metadata.resource_version == lease.metadata.resource_version
        };
        if !self.present.as_ref().is_some_and(is_known) {
            self.present = Some((lease.clone(), now));
        }
        self.version = version(&lease.metadata);
    }

    /// Records what a watch shows.
    fn record_shown(&mut self, shown: &Shown, now: Duration) {
        let (Version::Present(lease) | Version::Deleted(lease)) = &shown.version else { return };
        if version(&lease.metadata) <= self.version {
            return;
        }
        (self.version, self.checked) = (version(&lease.metadata), now);
        let is_deleted = matches!(shown.version, Version::Deleted(_));
        self.present = (!is_deleted).then(|| (Lease::clone(lease), now));
    }

    /// The lease as its holder last renewed it.
    fn sighting(&self) -> Option<Sighting<'_>> {
        self.present.as_ref().map(|(lease, since)| sighting(lease, *since))
    }

    /// Whether the Lease has a holder and has not expired. The Lease contains its duration.
    fn leads(&self, now: Duration) -> bool {
        let leads = |(lease, since): &(Lease, Duration)| {
            !holder(lease).is_empty() && now < since.saturating_add(lasts(lease))
        };
        self.present.as_ref().is_some_and(leads)
    }
}

/// Logs that this process stops leading because FLIPOP leads.
fn report_conflict() {
    tracing::error!(lease = FLIPOP_LEASE, "stopping because FLIPOP leads too: scale FLIPOP to zero");
}

/// Logs that this process stops leading because it was suspended for too long.
fn report_stop() {
    tracing::warn!("this process was suspended, and what it knows about the clouds is too old");
}

impl Candidate {
    /// Creates a candidate for the lease in the options. `watches` is a client for watches, which may be silent for
    /// long.
    pub fn new(
        client: Client,
        watches: Client,
        options: Options,
        clock: Arc<dyn Clock>,
        fence: Arc<Fence>,
    ) -> Self {
        let Options { identity, lease: (namespace, name), duration, flipop_namespace } = options;
        let watch_flipop =
            |namespace: &String| LeaseWatch::start(Api::namespaced(watches.clone(), namespace), FLIPOP_LEASE);
        Self {
            watch: None,
            flipop_watch: flipop_namespace.as_ref().map(watch_flipop),
            watches,
            flipop_api: flipop_namespace.map(|namespace| Api::namespaced(client.clone(), &namespace)),
            api: Api::namespaced(client, &namespace),
            name,
            identity,
            duration,
            clock,
            fence,
            epoch: None,
            lease: Known::default(),
            flipop: Known::default(),
            is_flipop_reported: false,
            has_stood_by: false,
        }
    }

    /// Waits until this process has the lease.
    pub async fn win(&mut self) -> Gained {
        let api = Api::namespaced(self.watches.clone(), self.api.namespace().unwrap_or_default());
        self.watch = Some(LeaseWatch::start(api, &self.name));
        loop {
            match self.try_win().await {
                Ok(Some(gained)) => {
                    self.watch = None;
                    return gained;
                }
                Ok(None) => self.wait_for_chance().await,
                Err(error) => {
                    tracing::warn!(%error, "failed to acquire the lease");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Waits until this process may take the lease, as far as it knows, or until it has to read a lease again.
    async fn wait_for_chance(&mut self) {
        loop {
            self.note_shown();
            let now = self.clock.since_boot();
            let is_free = candidacy(self.lease.sighting(), &self.identity, self.duration, now).is_some();
            // The lease that keeps this process from leading. Its holder renews it often.
            let (blocks, is_watched) = match self.flipop.leads(now) {
                true => (&self.flipop, is_working(&mut self.flipop_watch)),
                false if is_free => return,
                false => (&self.lease, is_working(&mut self.watch)),
            };
            let longest = if is_watched { READ_AFTER } else { RETRY };
            if now >= blocks.checked.saturating_add(longest) {
                return;
            }
            tokio::select! {
                biased;
                () = changed(&mut self.watch) => {}
                () = changed(&mut self.flipop_watch) => {}
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
        }
    }

    /// Records what the watches show.
    fn note_shown(&mut self) {
        let now = self.clock.since_boot();
        if let Some(watch) = &mut self.watch {
            self.lease.record_shown(&watch.shown(), now);
        }
        if let Some(watch) = &mut self.flipop_watch {
            let shown = watch.shown();
            self.has_stood_by |= shown.had_holder;
            self.flipop.record_shown(&shown, now);
            self.report_flipop(now);
        }
    }

    /// Reads the lease of a FLIPOP in the same namespace. Returns whether FLIPOP leads.
    async fn read_flipop(&mut self) -> Result<bool> {
        let Some(flipop_api) = &self.flipop_api else { return Ok(false) };
        let lease = flipop_api.get_opt(FLIPOP_LEASE).await?;
        let now = self.clock.since_boot();
        self.flipop.record_read(lease.as_ref(), now);
        Ok(self.report_flipop(now))
    }

    /// Whether FLIPOP leads, as far as this process knows. Logs it once.
    fn report_flipop(&mut self, now: Duration) -> bool {
        let leads = self.flipop.leads(now);
        if leads && !std::mem::replace(&mut self.is_flipop_reported, true) {
            let holder = self.flipop.present.as_ref().map(|(lease, _)| holder(lease)).unwrap_or_default();
            tracing::warn!(
                lease = FLIPOP_LEASE,
                holder,
                "standing by while FLIPOP leads: scale FLIPOP to zero"
            );
        }
        self.is_flipop_reported &= leads;
        self.has_stood_by |= leads;
        leads
    }

    /// Waits until a watch shows that FLIPOP leads. Never returns if this controller manages no public
    /// addresses, because then FLIPOP does not matter.
    async fn until_flipop_leads(&mut self) {
        loop {
            self.note_shown();
            if self.flipop.leads(self.clock.since_boot()) {
                return;
            }
            changed(&mut self.flipop_watch).await;
        }
    }

    async fn try_win(&mut self) -> Result<Option<Gained>> {
        if self.read_flipop().await? {
            return Ok(None);
        }
        let lease = self.api.get_opt(&self.name).await?;
        let now = self.clock.since_boot();
        self.lease.record_read(lease.as_ref(), now);
        let gained = candidacy(self.lease.sighting(), &self.identity, self.duration, now);
        let Some(gained) = gained else { return Ok(None) };
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
        self.lease.present = Some((lease, began));
    }

    /// The epoch in the lease.
    pub fn last_epoch(&self) -> Epoch {
        self.lease.present.as_ref().and_then(|(lease, _)| epoch(lease)).unwrap_or_default()
    }

    /// Whether a pod on this node handed the lease over, and no pod has led since.
    pub fn was_handed_over_from(&self, node: &NodeName) -> bool {
        let annotations =
            self.lease.present.as_ref().and_then(|(lease, _)| lease.metadata.annotations.as_ref());
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
            // Pause before the first renewal, because the Lease was written just before this call. If FLIPOP
            // leads, only the pause is canceled. A canceled renewal would leave the Lease's version unknown.
            if tokio::time::timeout(self.pause(), self.until_flipop_leads()).await.is_ok() {
                report_conflict();
                break;
            }
            if !self.fence.runs() {
                report_stop();
                break;
            }
            match self.renew().await {
                Ok(()) => {
                    last = self.clock.since_boot();
                    let is_due = last >= self.flipop.checked.saturating_add(READ_FLIPOP_AFTER);
                    if is_due || !is_working(&mut self.flipop_watch) {
                        // If this read fails, this process tries again after the next renewal.
                        _ = self.read_flipop().await;
                    }
                    if self.flipop.leads(self.clock.since_boot()) {
                        report_conflict();
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to renew the lease");
                    if !self.fence.runs() || self.is_lost().await {
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

    /// Reads the lease after a failed write or before a release, because the response may be lost, or a person may have annotated the
    /// lease. Returns whether another process has taken it. The read does not extend the lease: only a successful write
    /// does.
    async fn is_lost(&mut self) -> bool {
        let Ok(Some(found)) = self.api.get_opt(&self.name).await else { return false };
        let claim = |lease: &Lease| {
            let spec = lease.spec.clone().unwrap_or_default();
            (spec.holder_identity, spec.lease_transitions)
        };
        match &mut self.lease.present {
            // A lower version means that etcd was restored from a copy. So etcd may have lost changes that this process
            // knows.
            Some((known, _)) if version(&known.metadata) > version(&found.metadata) => {
                tracing::error!(
                    "etcd was restored from an older copy: it contains an earlier version of the lease"
                );
                true
            }
            Some((known, _)) if claim(known) == claim(&found) => {
                *known = found;
                false
            }
            _ => true,
        }
    }

    async fn renew(&mut self) -> Result<()> {
        let (lease, _) = self.lease.present.as_ref().context("no lease to renew")?;
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
        let written = self.api.replace(&self.name, &PostParams::default(), &renewed).await;
        // The process may have been stopped before it saw the response.
        anyhow::ensure!(
            self.fence.runs(),
            "this process was suspended, and what it knows about the clouds is too old"
        );
        self.renewed(written?, began);
        Ok(())
    }

    /// Blocks all further changes. The lease stays as it is, so it has to expire.
    pub fn close_fence(&self) {
        self.fence.close();
    }

    /// Releases the lease. The caller has no requests in flight. For a hand-over, it passes its node.
    pub async fn release(&mut self, handed_over_from: Option<&NodeName>) -> Result<()> {
        self.fence.close();
        // The last renewal may have been canceled before its response arrived, so the known version may be too old.
        if self.is_lost().await {
            return Ok(());
        }
        let (lease, _) = self.lease.present.as_ref().context("no lease to release")?;
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

/// Waits until a watch shows something new. Never returns without a watch.
async fn changed(watch: &mut Option<LeaseWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Whether a watch works.
fn is_working(watch: &mut Option<LeaseWatch>) -> bool {
    watch.as_mut().is_some_and(|watch| watch.shown().works)
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

/// The duration of a lease.
fn lasts(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Duration::from_secs(u64::from(seconds.unsigned_abs()))
}
