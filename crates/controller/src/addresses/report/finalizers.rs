//! Finalizers and the spec: what an object needs before something is begun for it, and when it may go.

use api::FINALIZER;
use plan::{Address, Journal, Mode, Plan, Pool, PoolKey, Published, Verdict};
use serde_json::{Value, json};

use crate::addresses::index::Index;

/// What an object's finalizers and spec need.
pub(super) struct Owed {
    /// The change.
    pub(super) patch: Value,
    /// Whether it comes after the status is written: a finalizer goes only once the journal is known to be empty.
    pub(super) is_last: bool,
}

/// The change that an object's finalizers and spec need, if any.
pub(super) fn owed(index: &Index, plan: &Plan, key: &PoolKey) -> Option<Owed> {
    let metadata = index.objects.get(key)?.object.metadata();
    let pool = index.world.pool(key)?;
    let listed = metadata.finalizers.as_deref().unwrap_or_default();
    let has_finalizer = listed.iter().any(|finalizer| finalizer == FINALIZER);
    let is_deleted = metadata.deletion_timestamp.is_some();
    let is_asking = index.world.in_flight.creations.contains_key(key);
    let needs_finalizer = match &pool.journal {
        // Whoever wrote it knows what it is there for.
        Journal::Unreadable => has_finalizer,
        Journal::Known(moves) => {
            let is_unfinished = !moves.is_empty() || pool.creation.is_some() || !pool.adopted.is_empty();
            let published = plan.published.get(key).map(Vec::as_slice).unwrap_or_default();
            let was_published = index.objects.get(key)?.object.dns().is_some_and(|dns| dns.owner.is_some());
            let is_published = published.iter().any(|(_, said)| !is_over(said, was_published));
            is_asking
                || needs_finalizer(pool, plan.verdicts.get(key)?, is_unfinished, is_deleted, is_published)
        }
    };
    // An object that is being deleted can't get one any more.
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
    Some(Owed { patch, is_last })
}

/// Whether an object must not go yet, given whether something of it is unfinished and whether it is being deleted.
fn needs_finalizer(
    pool: &Pool,
    verdicts: &[(Address, Verdict)],
    is_unfinished: bool,
    is_deleted: bool,
    is_published: bool,
) -> bool {
    let is_let_go = |(_, said): &(Address, Verdict)| {
        matches!(
            said,
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
            let is_held = is_published || !verdicts.iter().all(is_let_go);
            is_unfinished || (pool.policy.detaches_on_delete && is_held)
        }
        Mode::Observe => is_unfinished,
        // What can't be acted on never finishes, and must not stay for ever once nobody wants it.
        Mode::Refused => is_unfinished && !is_deleted,
    }
}

/// Whether nothing is left to do with a set of records of an object that is being deleted. One that can't be read and was never
/// published holds up nothing.
fn is_over(said: &Published, was_published: bool) -> bool {
    match said {
        Published::Left
        | Published::Gone
        | Published::Conflict(_)
        | Published::NotOurs(_)
        | Published::OwnedByOther(_) => true,
        Published::Failed(_) | Published::Unread => !was_published,
        _ => false,
    }
}
