//! Patches for the finalizer and the spec of an object.
//!
//! In: an object and the plan. Out: a patch that adds or removes the finalizer, or that updates the list of addresses in
//! the spec. It never changes the status.

use api::FINALIZER;
use plan::{Address, Journal, Mode, Plan, Pool, PoolKey, Published, Verdict};
use serde_json::{Value, json};

use crate::addresses::index::Index;

/// A patch of an object's finalizers or spec.
pub(super) struct ObjectPatch {
    pub(super) patch: Value,
    /// Whether the status is written first. The finalizer is removed only after the journal was written as empty.
    pub(super) is_last: bool,
}

/// The patch that an object's finalizers or spec need, if any.
pub(super) fn patch(index: &Index, plan: &Plan, key: &PoolKey) -> Option<ObjectPatch> {
    let metadata = index.objects.get(key)?.object.metadata();
    let pool = index.world.pool(key)?;
    let listed = metadata.finalizers.as_deref().unwrap_or_default();
    let has_finalizer = listed.iter().any(|finalizer| finalizer == FINALIZER);
    let is_deleted = metadata.deletion_timestamp.is_some();
    let is_asking = index.world.in_flight.creations.contains_key(key);
    let needs_finalizer = match &pool.journal {
        // A newer controller wrote the journal, so this one neither adds nor removes the finalizer.
        Journal::Unreadable => has_finalizer,
        Journal::Known(moves) => {
            let is_unfinished = !moves.is_empty() || pool.creation.is_some() || !pool.adopted.is_empty();
            let published = plan.published.get(key).map(Vec::as_slice).unwrap_or_default();
            let was_published = index.objects.get(key)?.object.dns().is_some_and(|dns| dns.owner.is_some());
            let is_published = published.iter().any(|(_, state)| !is_over(state, was_published));
            is_asking
                || needs_finalizer(pool, plan.verdicts.get(key)?, is_unfinished, is_deleted, is_published)
        }
    };
    // The apiserver does not accept new finalizers on an object that is being deleted.
    let is_added = needs_finalizer && !has_finalizer && !is_deleted;
    let is_removed = has_finalizer && !needs_finalizer;
    let spec = index.spec_addresses(key);
    if !is_added && !is_removed && spec.is_none() {
        return None;
    }
    let is_last = is_removed && spec.is_none();
    let mut patch = json!({"metadata": {"resourceVersion": metadata.resource_version}});
    if is_added || is_removed {
        let others = listed.iter().map(String::as_str).filter(|finalizer| *finalizer != FINALIZER);
        let finalizers: Vec<&str> = others.chain(is_added.then_some(FINALIZER)).collect();
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    if let Some(spec) = spec {
        patch["spec"]["ips"] = json!(spec);
    }
    Some(ObjectPatch { patch, is_last })
}

/// Whether an object needs the finalizer.
fn needs_finalizer(
    pool: &Pool,
    verdicts: &[(Address, Verdict)],
    is_unfinished: bool,
    is_deleted: bool,
    is_published: bool,
) -> bool {
    let is_done = |(_, verdict): &(Address, Verdict)| {
        matches!(
            verdict,
            Verdict::Leaving
                | Verdict::Disabled
                | Verdict::Unmarked
                | Verdict::Missing
                | Verdict::Unsupported(_)
                | Verdict::Foreign(_)
                | Verdict::OwnedBy(_)
        )
    };
    match pool.policy.mode {
        Mode::Active => is_unfinished || pool.policy.detaches_on_delete,
        Mode::Leaving => {
            let is_held = is_published || !verdicts.iter().all(is_done);
            is_unfinished || (pool.policy.detaches_on_delete && is_held)
        }
        Mode::Observe => is_unfinished,
        // The controller can't finish anything for a refused object, so the finalizer must not block the deletion.
        Mode::Refused => is_unfinished && !is_deleted,
    }
}

/// Whether nothing is left to do for the DNS name of an object that is being deleted. A name that can't be read and was
/// never published does not block the deletion.
fn is_over(state: &Published, was_published: bool) -> bool {
    match state {
        Published::Left
        | Published::Gone
        | Published::Conflict(_)
        | Published::NotOurs(_)
        | Published::OwnedByOther(_) => true,
        Published::Failed(_) | Published::Unread => !was_published,
        Published::Yes(_)
        | Published::Publishing
        | Published::Unreadable(_)
        | Published::LastKept(_)
        | Published::Nothing
        | Published::Would(_) => false,
    }
}
