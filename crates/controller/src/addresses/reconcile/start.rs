//! Starts the steps of a plan, except for calls that move an address.
//!
//! In: a plan. Out: journal entries in memory, evictions, DNS reads and writes, and creations. It never waits for a
//! result: `outcomes` processes the results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plan::{
    Action, Creation, CreationAction, CreationStep, Eviction, Move, PENDING, Plan, Published, Step, Timestamp,
};
use tokio::time::Instant;

use super::{EVICTION_PAUSE, EVICTIONS_FORGOTTEN, Reconciler};
use crate::addresses::create_request::CreateRequest;
use crate::addresses::execute::evict::Evictee;

impl Reconciler {
    /// Whether an object's journal can be written now.
    fn may_journal(&self, key: &plan::PoolKey) -> bool {
        !self.reporter.is_writing(key) && !self.index.world.unwritable.contains_key(key)
    }

    /// Adds and removes journal entries in memory. The reporter writes them.
    pub(super) fn journal(&mut self, plan: &Plan, now: Timestamp) {
        let mut changed: BTreeMap<plan::PoolKey, Vec<&Step>> = BTreeMap::new();
        for step in plan.steps.iter().filter(|step| !step.action.is_call()) {
            if self.may_journal(&step.pool) {
                changed.entry(step.pool.clone()).or_default().push(step);
            }
        }
        for (key, steps) in changed {
            let Some(mut pool) = self.index.world.pool(&key).cloned() else { continue };
            for step in steps {
                tracing::info!(object = %key, address = %step.address, "move" = self.move_id(step.address), %step, "updating journal");
                self.publish_move(&pool, step);
                let repeats_attach = pool.entry(step.address).is_some_and(Move::repeats_attach);
                if let (Action::Finish | Action::Abandon, Some(entry)) =
                    (&step.action, pool.entry(step.address))
                {
                    self.index.world.inherited.remove(&step.address);
                    // Facts about ephemeral addresses are only valid during a move.
                    entry.machines().for_each(|vm| _ = self.index.world.has_ephemeral.remove(vm));
                }
                if step.action == Action::Claim {
                    self.index.world.inherited.insert(step.address);
                }
                pool.note(step.address, &step.action, self.index.world.epoch, now);
                match &step.action {
                    Action::Begin(_) | Action::Claim => {
                        self.begun.entry(step.address).or_insert_with(Instant::now);
                    }
                    Action::Finish => {
                        self.failures.succeeded(&step.address);
                        let began = self.begun.remove(&step.address);
                        let took = began.map(|began| began.elapsed());
                        took.iter().for_each(|took| self.metrics.moved(&key, step.scope.provider, *took));
                    }
                    Action::Abandon | Action::Drop => {
                        self.begun.remove(&step.address);
                        if !repeats_attach {
                            self.rest(step.address, now);
                        }
                    }
                    _ => {}
                }
                if step.action == Action::Drop {
                    self.index.drop_address(&key, step.address);
                }
            }
            self.index.world.set_pool(pool);
        }
    }

    /// Evicts pods from nodes without an address.
    pub(super) fn evict(&mut self, plan: &Plan) {
        self.evictions.retain(|_, (_, last)| last.elapsed() < EVICTIONS_FORGOTTEN);
        for Eviction { pool, node } in &plan.evictions {
            let Some(pod) = self.index.pod_to_evict(pool, node) else {
                // No pod can be evicted yet, so try again later.
                let until = plan::later(self.clock.wall(), EVICTION_PAUSE);
                self.index.world.avoid_evictions.insert(pool.clone(), until);
                continue;
            };
            let evictee = Evictee {
                namespace: pod.key.namespace.to_string(),
                name: pod.key.name.to_string(),
                uid: pod.uid.as_deref().map(Into::into),
                version: pod.version.as_deref().map(Into::into),
            };
            self.executor.evict(pool.clone(), node.clone(), evictee);
        }
    }

    /// The ID of a move in logs and in the journal.
    pub(super) fn move_id(&self, address: plan::Address) -> String {
        format!("{address}-{}", self.index.world.epoch.0)
    }

    /// Reads and writes DNS records, and forgets names that no object publishes any more.
    pub(super) fn publish_names(&mut self, plan: &Plan) {
        let mut names = plan.published.values().flatten().map(|(name, _)| name).peekable();
        let world = &mut self.index.world;
        let is_due = self.cluster_due.is_some_and(|due| due <= Instant::now());
        let is_needed = world.dns_owner.is_none() && world.last_steps.is_none();
        if is_needed && names.peek().is_some() && is_due {
            self.cluster_due = None;
            self.executor.ask_cluster_id();
        }
        let names: BTreeSet<_> = names.collect();
        world.records.retain(|name, _| names.contains(name));
        let published: BTreeSet<_> = plan
            .published
            .values()
            .flatten()
            .filter_map(|(name, state)| matches!(state, Published::Yes(_)).then_some(name))
            .collect();
        self.failed_records.retain(|name| names.contains(name) && !published.contains(name));
        for step in &plan.records {
            if !self.reporter.is_writing(&step.pool) {
                tracing::info!(object = %step.pool, %step, "starting DNS step");
                self.executor.publish(step.clone());
            }
        }
    }

    /// Starts the creation steps of the plan.
    pub(super) fn create(&mut self, plan: &Plan) {
        for step @ CreationStep { pool: key, scope, action } in &plan.creations {
            if !self.may_journal(key) {
                continue;
            }
            tracing::info!(object = %key, %step, "starting creation step");
            let entry = match action {
                CreationAction::Ask { count, region, tag } => {
                    let uid = self.index.uid(key);
                    let request = CreateRequest { uid, region: Arc::clone(region), tag: tag.clone() };
                    self.executor.ask(key, scope, &request, *count);
                    continue;
                }
                CreationAction::Adopt(found) => {
                    found.iter().for_each(|address| self.index.adopt(key, *address));
                    continue;
                }
                CreationAction::Begin(entry) if plan::sabotaged!(CreationBeforeJournal) => {
                    Some(entry.clone())
                }
                CreationAction::Begin(entry) => Some(Creation { written: PENDING, ..entry.clone() }),
                CreationAction::Claim => {
                    let entry = self.index.world.pool(key).and_then(|pool| pool.creation.clone());
                    entry.map(|entry| Creation { epoch: self.index.world.epoch, written: PENDING, ..entry })
                }
                CreationAction::Finish => None,
            };
            if let Some(mut pool) = self.index.world.pool(key).cloned() {
                pool.is_tag_used |= entry.as_ref().is_some_and(|entry| entry.tag.is_some());
                pool.creation = entry;
                self.index.world.set_pool(pool);
            }
        }
    }
}
