//! Takes note of what became of calls, and of when to try again what failed.

use std::sync::Arc;
use std::time::Duration;

use drivers::{DriverError, NotSent};
use plan::{
    Action, EventReason, Holding, Move, Pause, RecordAction, RecordFact, RecordStep, Step, Timestamp, Turn,
    later,
};
use tokio::time::Instant;

use super::{EVICTION_PAUSE, Reconciler};
use crate::addresses::execute::evict::NotEvicted;
use crate::addresses::execute::{Created, Effect, Evicted, Outcome, Recorded};

/// After so many evictions the pods seem to come back: they don't ask for a node with an address.
const EVICTIONS_AT_FIRST: u32 = 20;

/// How often it is tried to give a machine an address of its own again.
const RESTORE_TRIES: u32 = 8;

/// The pause between two evictions for an object whose pods come back.
const EVICTION_PAUSE_LATER: Duration = Duration::from_secs(300);

/// The pause after an eviction that was refused or failed.
const EVICTION_RETRY: Duration = Duration::from_secs(30);

/// The pause before the cluster is asked for its id again.
const CLUSTER_RETRY: Duration = Duration::from_secs(10);

/// How long a machine that refused an address gets none.
const AVOID: Duration = Duration::from_secs(60);

/// Whether a cloud has answered that it won't do something.
fn is_refused(error: &DriverError) -> bool {
    !matches!(error, DriverError::Unavailable(_) | DriverError::RateLimited { .. } | DriverError::NotSent(_))
}

/// Whether a machine does not take an address, which has failed so often, so that it is asked to take none for a while.
fn is_the_machines_fault(action: &Action, error: &DriverError, failures: u32) -> bool {
    match (action, error) {
        (_, error) if !is_refused(error) => false,
        // It may have lost its own address for that.
        (Action::Replace(_), _) => true,
        // Somebody else changed something at the same moment, which mostly is over with the next look.
        (_, DriverError::Conflict(_)) => failures > 1,
        (_, error) => !matches!(error, DriverError::Denied { .. }),
    }
}

impl Reconciler {
    /// Takes note of what a call has done.
    pub(super) fn note_outcome(&mut self, outcome: Outcome) {
        let (step, result) = outcome.into_parts();
        let Step { scope, address, action, .. } = &step;
        match action {
            _ if matches!(result, Err(DriverError::NotSent(_))) => {}
            Action::Attach(_) | Action::Replace(_) if result != Ok(Effect::HasOwn) => {
                self.metrics.attached(&step.pool, *address, result.is_ok());
            }
            Action::Detach(_) if matches!(result, Ok(Effect::HasPtr(_))) => {}
            Action::Detach(_) => self.metrics.detached(&step.pool, result.is_ok()),
            _ => {}
        }
        match result {
            Ok(effect) => {
                tracing::info!(pool = %step.pool, id = self.move_id(*address), ?effect, "done: {step}");
                match effect {
                    Effect::Holds(holding) => {
                        // Only one that has arrived has overcome what made it fail.
                        if matches!(holding, Holding::By(_)) {
                            self.failures.remove(address);
                        }
                        self.index.world.ptrs.remove(address);
                        self.index.correct(scope, *address, holding);
                    }
                    Effect::HasPtr(name) => _ = self.index.world.ptrs.insert(*address, name),
                    Effect::HasOwn => {
                        action.machine().iter().for_each(|vm| _ = self.failed_restores.remove(*vm));
                        self.index.world.has_own.extend(action.machine().cloned());
                    }
                }
            }
            Err(DriverError::NotSent(NotSent { wait })) => {
                tracing::debug!(pool = %step.pool, id = self.move_id(*address), ?wait, "waits for its turn: {step}");
                let at = later(self.clock.wall(), wait);
                self.index.world.turns.insert(*address, Turn { at, is_urgent: step.is_urgent });
            }
            Err(error) => {
                tracing::warn!(pool = %step.pool, id = self.move_id(*address), %error, "failed: {step}");
                let now = self.clock.wall();
                self.tell(&step.pool, EventReason::MoveFailed, format!("{step} failed: {error}"));
                let entry = self.index.world.pool(&step.pool).and_then(|pool| pool.entry(*address));
                match action {
                    // The machine has a rest, and not the address, which may have to go to another one any moment.
                    Action::Attach(to) if entry.is_some_and(Move::asks_again) => {
                        self.index.world.avoid_machines.insert(to.vm.clone(), later(now, AVOID));
                    }
                    _ => self.hold_back(&step, &error, now),
                }
                if plan::sabotaged!(RetryWithoutReading) {
                    return;
                }
                // Where the address is now has to be read again before anything else is done with it.
                self.index.correct(scope, *address, Holding::Unknown(error.to_string().into()));
                self.clouds.forget(scope);
            }
        }
    }

    /// Leaves an address alone for a while for which something has failed, and the machine too where that is to blame.
    fn hold_back(&mut self, step: &Step, error: &DriverError, now: Timestamp) {
        let Step { address, action, .. } = step;
        let why: Arc<str> = error.to_string().into();
        // What else has failed with the address says nothing of the machine.
        let restores = match action {
            Action::Restore(vm) => {
                let restores = self.failed_restores.entry(vm.clone()).or_default();
                *restores += 1;
                *restores
            }
            _ => 0,
        };
        let (failures, last) = self.failures.entry(*address).or_insert((0, Arc::clone(&why)));
        let pause = match action {
            // The machine has lost its own address for nothing: it is not kept waiting for another.
            Action::Replace(_) if is_refused(error) => self.retry.shortest,
            Action::Restore(_) if restores >= RESTORE_TRIES => self.retry.shortest,
            Action::Restore(_) => self.retry.grown(restores - 1),
            _ => self.retry.pause_after(error, *failures),
        };
        (*failures, *last) = (*failures + 1, Arc::clone(&why));
        let failures = *failures;
        self.index.world.avoid_addresses.insert(*address, Pause { until: later(now, pause), why });
        if let (Action::Restore(vm), true) = (action, restores >= RESTORE_TRIES) {
            self.failed_restores.remove(vm);
            // It would hold up the address for ever; a person has to see to the machine.
            self.index.world.has_own.insert(vm.clone());
            let note = format!("{vm} has no address of its own any more, and can't be given one: {error}");
            self.tell(&step.pool, EventReason::NoOwnAddress, note);
        }
        if let (Action::Attach(to) | Action::Replace(to), true) =
            (action, is_the_machines_fault(action, error, failures))
        {
            self.index.world.avoid_machines.insert(to.vm.clone(), later(now, AVOID));
        }
    }

    /// Takes note of what became of a request for a new address.
    pub(super) fn note_created(&mut self, created: Created) {
        let Created { pool: key, scope, request, .. } = &created;
        let (key, scope, request) = (key.clone(), scope.clone(), request.clone());
        match created.into_result() {
            Ok(_) if plan::sabotaged!(AnswerForgotten) => {}
            Ok(address) => {
                tracing::info!(pool = %key, %address, "created");
                self.failed_creations.remove(&key);
                self.index.see_created(&key, &scope, address, &request);
            }
            Err(error) => {
                tracing::warn!(pool = %key, %error, "creating an address failed");
                let failures = self.failed_creations.entry(key.clone()).or_default();
                let pause = self.retry.pause_after(&error, *failures);
                *failures += u32::from(!matches!(error, DriverError::NotSent(_)));
                let (until, why) = (later(self.clock.wall(), pause), error.to_string().into());
                self.index.world.avoid_creations.insert(key.clone(), Pause { until, why });
                if self.index.uid(&key) == request.uid {
                    self.index.doubt_creation(&key, matches!(error, DriverError::Unavailable(_)));
                }
                self.clouds.forget(&scope);
            }
        }
    }

    /// Takes note of what a set of records holds.
    pub(super) fn note_recorded(&mut self, recorded: Recorded) {
        let RecordStep { pool: key, name, action } = recorded.step.clone();
        let now = self.clock.wall();
        match recorded.into_result() {
            Ok(set) => {
                if action != RecordAction::Read {
                    // Reading alone proves nothing: what can be read may still not be written.
                    self.failed_records.remove(&name);
                    let values: Vec<_> = set.values.iter().map(ToString::to_string).collect();
                    let (reason, note) = match values.is_empty() {
                        true => (EventReason::Unpublished, format!("{name} is gone, as its object asked")),
                        false => (EventReason::Published, format!("{name} holds {}", values.join(", "))),
                    };
                    tracing::info!(object = %key, "{note}");
                    self.tell(&key, reason, note);
                }
                self.index.world.records.insert(name, RecordFact { set, as_of: now });
            }
            Err(error) => {
                tracing::warn!(object = %key, %name, %error, "reading or writing records failed");
                let failures = self.failed_records.entry(name.clone()).or_default();
                let pause = self.retry.pause_after(&error, *failures);
                let is_failed = !matches!(error, DriverError::NotSent(_));
                *failures += u32::from(is_failed);
                if is_failed && *failures == 1 {
                    self.tell(&key, EventReason::RecordFailed, format!("{name}: {error}"));
                }
                let (until, why) = (later(now, pause), error.to_string().into());
                self.index.world.avoid_records.insert(name.clone(), Pause { until, why });
                // What it holds now has to be read again before anything else is done with it.
                self.index.world.records.remove(&name);
            }
        }
    }

    /// Takes note of what the cluster's id is, by which records are marked.
    pub(super) fn note_cluster_id(&mut self, asked: Result<String, kube::Error>) {
        match asked {
            Ok(id) if !id.is_empty() => self.index.world.dns_owner = Some(id.into()),
            Ok(_) => {
                tracing::warn!("the namespace kube-system has no UID, so no name is published");
                self.cluster_due = Some(Instant::now() + CLUSTER_RETRY);
            }
            Err(error) => {
                tracing::warn!(%error, "the cluster's id can't be read, so no name is published: set DNS_OWNER_ID");
                self.cluster_due = Some(Instant::now() + CLUSTER_RETRY);
            }
        }
    }

    /// Takes note of what became of an eviction.
    pub(super) fn note_evicted(&mut self, evicted: Evicted) {
        let Evicted { pool: key, node, pod, .. } = &evicted;
        let (key, what) = (key.clone(), format!("{}/{} from {node}", pod.namespace, pod.name));
        let (status, pause) = match evicted.into_result() {
            Ok(()) => {
                tracing::info!(object = %key, "evicted {what}");
                self.tell(&key, EventReason::PodEvicted, format!("evicted {what}, which holds no address"));
                self.not_evicted.remove(&key);
                let (count, last) = self.evictions.entry(key.clone()).or_insert((0, Instant::now()));
                (*count, *last) = (*count + 1, Instant::now());
                ("evicted", if *count < EVICTIONS_AT_FIRST { EVICTION_PAUSE } else { EVICTION_PAUSE_LATER })
            }
            Err(error) => {
                tracing::warn!(object = %key, %error, "not evicted: {what}");
                if self.not_evicted.insert(key.clone()) {
                    self.tell(&key, EventReason::PodNotEvicted, format!("{what}: {error}"));
                }
                (if matches!(error, NotEvicted::Refused(_)) { "refused" } else { "error" }, EVICTION_RETRY)
            }
        };
        self.metrics.evicted(&key, status);
        let until = later(self.clock.wall(), pause);
        self.index.world.avoid_evictions.insert(key, until);
    }

    /// Leaves an address alone for a while whose move was given up because it failed, and longer each time: every try may cost
    /// some machine its own address.
    pub(super) fn rest(&mut self, address: plan::Address, now: Timestamp) {
        let Some((failures, why)) = self.failures.get(&address) else { return };
        let pause = self.retry.grown(*failures);
        let (until, why) = (later(now, pause), Arc::clone(why));
        self.index.world.avoid_addresses.insert(address, Pause { until, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Retry;
    use crate::settings::Settings;
    use clap::{CommandFactory, Parser};
    use plan::Target;

    const SECOND: Duration = Duration::from_secs(1);

    /// The pauses, in seconds, after the first failures of a kind.
    fn pauses(arguments: &[&str], error: &DriverError) -> Vec<u64> {
        let settings = Settings::try_parse_from([&["controller"], arguments].concat()).unwrap();
        (0..5).map(|failures| settings.retry().pause_after(error, failures).as_secs()).collect()
    }

    #[test]
    fn a_machine_is_barred_for_what_it_refuses_and_not_for_what_others_did_at_the_same_moment() {
        let to = Target { node: "n".into(), vm: "vm".into() };
        let (attach, replace) = (Action::Attach(to.clone()), Action::Replace(to));
        let conflict = DriverError::Conflict("being changed".into());
        assert!(!is_the_machines_fault(&attach, &conflict, 1));
        assert!(is_the_machines_fault(&attach, &conflict, 2), "it was not over with the next look");
        assert!(is_the_machines_fault(&attach, &DriverError::Invalid("no".into()), 1));
        let denied = DriverError::Denied { permission: "p".into(), message: "no".into() };
        assert!(!is_the_machines_fault(&attach, &denied, 1), "no machine would do");
        assert!(!is_the_machines_fault(&attach, &DriverError::Unavailable("late".into()), 9));
        assert!(is_the_machines_fault(&replace, &conflict, 1), "it has lost its own address for that");
    }

    #[test]
    fn f14_the_settings_are_the_shortest_and_the_longest_pause_before_a_retry() {
        let refused = DriverError::Invalid("no".into());
        assert_eq!(pauses(&[], &refused), [1, 2, 4, 8, 16], "as documented, where nothing is set");
        let set = ["--retry-seconds-min=3", "--retry-seconds-max=20"];
        assert_eq!(pauses(&set, &refused), [3, 6, 12, 20, 20]);
        let denied = DriverError::Denied { permission: "p".into(), message: "no".into() };
        assert_eq!(
            pauses(&set, &denied),
            [20; 5],
            "what a person has to change is tried seldom, but no more seldom"
        );
        let limited = |seconds| DriverError::RateLimited {
            retry_after: Duration::from_secs(seconds),
            message: "too many".into(),
        };
        assert_eq!(pauses(&set, &limited(0)), [3; 5]);
        assert_eq!(pauses(&set, &limited(60)), [20; 5]);
        let vips = Retry { shortest: SECOND, longest: 300 * SECOND }.at_most(30 * SECOND);
        let grown: Vec<_> = (0..7).map(|failures| vips.grown(failures).as_secs()).collect();
        assert_eq!(grown, [1, 2, 4, 8, 16, 30, 30], "a Cluster does not wait for long");
        for (name, default) in [("RETRY_SECONDS_MIN", "1"), ("RETRY_SECONDS_MAX", "300")] {
            let command = Settings::command();
            let setting = command.get_arguments().find(|setting| setting.get_env() == Some(name.as_ref()));
            assert_eq!(setting.unwrap().get_default_values(), [default], "{name}");
        }
    }
}
