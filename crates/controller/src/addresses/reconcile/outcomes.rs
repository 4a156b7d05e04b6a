//! Processes the results of calls, and sets the pauses after failures.

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
use crate::backoff::ANY_VERSION;

/// After this many evictions the pause becomes longer, because the new pods apparently don't require a node with an
/// address.
const EVICTIONS_AT_FIRST: u32 = 20;

/// How many times the controller tries to restore the ephemeral address of a VM.
const RESTORE_TRIES: u32 = 8;

/// The pause between two evictions for an object after `EVICTIONS_AT_FIRST` evictions.
const EVICTION_PAUSE_LATER: Duration = Duration::from_secs(300);

/// The pause after an eviction failed.
const EVICTION_RETRY: Duration = Duration::from_secs(30);

/// The pause before the controller reads the UID of the namespace kube-system again.
const CLUSTER_RETRY: Duration = Duration::from_secs(10);

/// How long a VM gets no address after it refused one.
const AVOID: Duration = Duration::from_secs(60);

/// Whether the provider refused the call.
fn is_refused(error: &DriverError) -> bool {
    !matches!(error, DriverError::Unavailable(_) | DriverError::RateLimited { .. } | DriverError::NotSent(_))
}

/// Whether the VM is the cause of an error, so that it gets no address for a while. `failures` is the number of
/// failures of the address.
fn is_caused_by_vm(action: &Action, error: &DriverError, failures: u32) -> bool {
    match (action, error) {
        (_, error) if !is_refused(error) => false,
        // The VM may have lost its ephemeral address.
        (Action::Replace(_), _) => true,
        // Another change ran at the same time. Usually the next attempt succeeds.
        (_, DriverError::Conflict(_)) => failures > 1,
        (_, error) => !matches!(error, DriverError::Denied { .. }),
    }
}

impl Reconciler {
    /// Processes the result of a step.
    pub(super) fn note_outcome(&mut self, outcome: Outcome) {
        let (step, result) = outcome.into_parts();
        let Step { scope, address, action, .. } = &step;
        match action {
            _ if matches!(result, Err(DriverError::NotSent(_))) => {}
            Action::Attach(_) | Action::Replace(_) if result != Ok(Effect::HasEphemeral) => {
                self.metrics.attached(&step.pool, *address, result.is_ok());
            }
            Action::Detach(_) if matches!(result, Ok(Effect::HasPtr(_))) => {}
            Action::Detach(_) => self.metrics.detached(&step.pool, result.is_ok()),
            _ => {}
        }
        match result {
            Ok(effect) => {
                tracing::info!(object = %step.pool, %address, "move" = self.move_id(*address), %step, ?effect, "step done");
                match effect {
                    Effect::Holds(holding) => {
                        // Only a successful attach resets the failures.
                        if matches!(holding, Holding::By(_)) {
                            self.failures.succeeded(address);
                        }
                        self.index.world.ptrs.remove(address);
                        self.index.correct(scope, *address, holding);
                    }
                    Effect::HasPtr(name) => _ = self.index.world.ptrs.insert(*address, name),
                    Effect::HasEphemeral => {
                        action.machine().iter().for_each(|vm| self.failed_restores.succeeded(vm));
                        self.index.world.has_ephemeral.extend(action.machine().cloned());
                    }
                }
            }
            Err(DriverError::NotSent(NotSent { wait })) => {
                tracing::debug!(object = %step.pool, %address, "move" = self.move_id(*address), %step, ?wait, "request not sent yet");
                let at = later(self.clock.wall(), wait);
                self.index.world.turns.insert(*address, Turn { at, is_urgent: step.is_urgent });
            }
            Err(error) => {
                tracing::warn!(object = %step.pool, %address, "move" = self.move_id(*address), %step, %error, "step failed");
                let now = self.clock.wall();
                self.publish_event(&step.pool, EventReason::MoveFailed, format!("{step} failed: {error}"));
                let entry = self.index.world.pool(&step.pool).and_then(|pool| pool.entry(*address));
                match action {
                    // Only the VM gets a pause: the address may have to move to another VM at any time.
                    Action::Attach(to) if entry.is_some_and(Move::repeats_attach) => {
                        self.index.world.avoid_machines.insert(to.vm.clone(), later(now, AVOID));
                    }
                    // The VM probably holds an address in an unknown state. That is no failure of this address, so the
                    // controller tries the next VM soon.
                    Action::Attach(to)
                        if matches!(error, DriverError::Conflict(_))
                            && self.index.world.refuses_occupied.contains(&scope.provider)
                            && self.index.world.may_hold_unknown(&to.vm) =>
                    {
                        self.failures.succeeded(address);
                        self.index.world.avoid_machines.insert(to.vm.clone(), later(now, AVOID));
                        let (until, why) = (later(now, self.retry.shortest), error.to_string().into());
                        self.index.world.avoid_addresses.insert(*address, Pause { until, why });
                    }
                    _ => self.hold_back(&step, &error, now),
                }
                if plan::sabotaged!(RetryWithoutReading) {
                    return;
                }
                // The controller lists the account again before it does anything else with the address.
                self.index.correct(scope, *address, Holding::Unknown(error.to_string().into()));
                self.clouds.forget(scope);
            }
        }
    }

    /// Starts the backoff of an address after a failed call. If the VM caused the failure, the VM gets no address for
    /// `AVOID`.
    fn hold_back(&mut self, step: &Step, error: &DriverError, now: Timestamp) {
        let Step { address, action, .. } = step;
        // Only failed restores count for the VM.
        let restores = match action {
            Action::Restore(vm) => self.failed_restores.failed(vm.clone(), ANY_VERSION, error),
            _ => 0,
        };
        let (failures, pause) = self.failures.failed_call(*address, error);
        let pause = match action {
            // The VM has lost its ephemeral address in vain, so restore it soon.
            Action::Replace(_) if is_refused(error) => self.retry.shortest,
            Action::Restore(_) if restores >= RESTORE_TRIES => self.retry.shortest,
            Action::Restore(_) => self.retry.grown(restores - 1),
            _ => pause,
        };
        let (until, why) = (later(now, pause), error.to_string().into());
        self.index.world.avoid_addresses.insert(*address, Pause { until, why });
        if let (Action::Restore(vm), true) = (action, restores >= RESTORE_TRIES) {
            self.failed_restores.succeeded(vm);
            // Stop restoring, as if the VM had an ephemeral address. Otherwise the move of this address never
            // continues. A person has to assign one to the VM.
            self.index.world.has_ephemeral.insert(vm.clone());
            let note =
                format!("failed to restore the ephemeral address of VM {vm}: {error}. Assign one by hand");
            self.publish_event(&step.pool, EventReason::NoOwnAddress, note);
        }
        if let (Action::Attach(to) | Action::Replace(to), true) =
            (action, is_caused_by_vm(action, error, failures))
        {
            self.index.world.avoid_machines.insert(to.vm.clone(), later(now, AVOID));
        }
    }

    /// Processes the result of a request for a new address.
    pub(super) fn note_created(&mut self, created: Created) {
        let Created { pool: key, scope, request, .. } = &created;
        let (key, scope, request) = (key.clone(), scope.clone(), request.clone());
        match created.into_result() {
            Ok(_) if plan::sabotaged!(AnswerForgotten) => {}
            Ok(address) => {
                tracing::info!(object = %key, %address, "created address");
                self.failed_creations.succeeded(&key);
                self.index.observe_created(&key, &scope, address, &request);
            }
            Err(error) => {
                tracing::warn!(object = %key, %error, "failed to create address");
                let (_, pause) = self.failed_creations.failed_call(key.clone(), &error);
                let (until, why) = (later(self.clock.wall(), pause), error.to_string().into());
                self.index.world.avoid_creations.insert(key.clone(), Pause { until, why });
                if self.index.uid(&key) == request.uid {
                    self.index.doubt_creation(&key, matches!(error, DriverError::Unavailable(_)));
                }
                self.clouds.forget(&scope);
            }
        }
    }

    /// Processes the result of a read or write of DNS records.
    pub(super) fn note_recorded(&mut self, recorded: Recorded) {
        let RecordStep { pool: key, name, action } = recorded.step.clone();
        let now = self.clock.wall();
        let is_read = matches!(action, RecordAction::Read | RecordAction::ReadAgain);
        match recorded.into_result() {
            Ok(set) => {
                if !is_read {
                    // Only a write resets the failures: the credentials may allow reads but no writes.
                    self.failed_records.succeeded(&name);
                    let values: Vec<_> = set.values.iter().map(ToString::to_string).collect();
                    let (reason, note) = match values.is_empty() {
                        true => (EventReason::Unpublished, format!("deleted the records of {name}")),
                        false => (EventReason::Published, format!("published {name}: {}", values.join(", "))),
                    };
                    tracing::info!(object = %key, %name, ?values, "changed DNS records");
                    self.publish_event(&key, reason, note);
                }
                self.index.world.records.insert(name, RecordFact { set, as_of: now });
            }
            // The records stay as they were last read.
            Err(
                DriverError::NotSent(NotSent { wait }) | DriverError::RateLimited { retry_after: wait, .. },
            ) if is_read && self.index.world.records.contains_key(&name) => {
                tracing::debug!(object = %key, %name, ?wait, "DNS records not read again yet");
                let wait = wait.max(self.retry.shortest).min(self.retry.longest);
                self.index.world.record_reads_due.insert(name, later(now, wait));
            }
            Err(error) => {
                tracing::warn!(object = %key, %name, %error, "failed to read or write DNS records");
                let (failures, pause) = self.failed_records.failed_call(name.clone(), &error);
                if failures == 1 && !matches!(error, DriverError::NotSent(_)) {
                    self.publish_event(
                        &key,
                        EventReason::RecordFailed,
                        format!("failed to read or write {name}: {error}"),
                    );
                }
                let (until, why) = (later(now, pause), error.to_string().into());
                self.index.world.avoid_records.insert(name.clone(), Pause { until, why });
                // The controller reads the records again before it does anything else with them.
                self.index.world.records.remove(&name);
            }
        }
    }

    /// Processes the UID of the namespace kube-system, which is the owner ID in the owner marks of DNS records.
    pub(super) fn note_cluster_id(&mut self, asked: Result<String, kube::Error>) {
        match asked {
            Ok(id) if !id.is_empty() => self.index.world.dns_owner = Some(id.into()),
            Ok(_) => {
                tracing::warn!(
                    "the namespace kube-system has no UID, so no DNS name is published: set DNS_OWNER_ID"
                );
                self.cluster_due = Some(Instant::now() + CLUSTER_RETRY);
            }
            Err(error) => {
                tracing::warn!(%error, "can't read the namespace kube-system, so the controller publishes no DNS name: grant get on this namespace, or set DNS_OWNER_ID");
                self.cluster_due = Some(Instant::now() + CLUSTER_RETRY);
            }
        }
    }

    /// Processes the result of an eviction.
    pub(super) fn note_evicted(&mut self, evicted: Evicted) {
        let Evicted { pool: key, node, pod, .. } = &evicted;
        let (key, what) = (key.clone(), format!("{}/{} from {node}", pod.namespace, pod.name));
        let (status, pause) = match evicted.into_result() {
            Ok(()) => {
                tracing::info!(object = %key, pod = what, "evicted pod");
                self.publish_event(
                    &key,
                    EventReason::PodEvicted,
                    format!("evicted {what}: the node holds no address"),
                );
                self.not_evicted.remove(&key);
                let (count, last) = self.evictions.entry(key.clone()).or_insert((0, Instant::now()));
                (*count, *last) = (*count + 1, Instant::now());
                ("evicted", if *count < EVICTIONS_AT_FIRST { EVICTION_PAUSE } else { EVICTION_PAUSE_LATER })
            }
            Err(error) => {
                tracing::warn!(object = %key, pod = what, %error, "failed to evict pod");
                if self.not_evicted.insert(key.clone()) {
                    self.publish_event(
                        &key,
                        EventReason::PodNotEvicted,
                        format!("failed to evict {what}: {error}"),
                    );
                }
                (if matches!(error, NotEvicted::Refused(_)) { "refused" } else { "error" }, EVICTION_RETRY)
            }
        };
        self.metrics.evicted(&key, status);
        let until = later(self.clock.wall(), pause);
        self.index.world.avoid_evictions.insert(key, until);
    }

    /// Sets the pause of an address whose failed move was abandoned. The pause grows each time, because every attempt
    /// may cost a VM its ephemeral address.
    pub(super) fn rest(&mut self, address: plan::Address, now: Timestamp) {
        let Some(failure) = self.failures.failure(&address) else { return };
        let pause = self.retry.grown(failure.count);
        let (until, why) = (later(now, pause), Arc::clone(&failure.why));
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

    /// The pauses, in seconds, after the first five failures with this error.
    fn pauses(arguments: &[&str], error: &DriverError) -> Vec<u64> {
        let settings = Settings::try_parse_from([&["controller"], arguments].concat()).unwrap();
        (0..5).map(|failures| settings.retry().pause_after(error, failures).as_secs()).collect()
    }

    #[test]
    fn a_vm_gets_no_address_after_its_own_errors_only() {
        let to = Target { node: "n".into(), vm: "vm".into() };
        let (attach, replace) = (Action::Attach(to.clone()), Action::Replace(to));
        let conflict = DriverError::Conflict("being changed".into());
        assert!(!is_caused_by_vm(&attach, &conflict, 1));
        assert!(is_caused_by_vm(&attach, &conflict, 2), "the next attempt failed too");
        assert!(is_caused_by_vm(&attach, &DriverError::Invalid("no".into()), 1));
        let denied = DriverError::Denied { permission: "p".into(), message: "no".into() };
        assert!(!is_caused_by_vm(&attach, &denied, 1), "it would fail on every VM");
        assert!(!is_caused_by_vm(&attach, &DriverError::Unavailable("late".into()), 9));
        assert!(is_caused_by_vm(&replace, &conflict, 1), "it may have lost its ephemeral address");
    }

    #[test]
    fn f14_the_shortest_and_longest_pause_before_a_retry_are_settings() {
        let refused = DriverError::Invalid("no".into());
        assert_eq!(pauses(&[], &refused), [1, 2, 4, 8, 16], "the documented defaults");
        let set = ["--retry-seconds-min=3", "--retry-seconds-max=20"];
        assert_eq!(pauses(&set, &refused), [3, 6, 12, 20, 20]);
        let denied = DriverError::Denied { permission: "p".into(), message: "no".into() };
        assert_eq!(
            pauses(&set, &denied),
            [20; 5],
            "after a missing permission the pause is the longest, but not above --retry-seconds-max"
        );
        let limited = |seconds| DriverError::RateLimited {
            retry_after: Duration::from_secs(seconds),
            message: "too many".into(),
        };
        assert_eq!(pauses(&set, &limited(0)), [3, 6, 12, 20, 20]);
        assert_eq!(pauses(&set, &limited(60)), [20; 5]);
        let crossed = ["--retry-seconds-min=600", "--retry-seconds-max=60"];
        for error in [&refused, &denied, &limited(0)] {
            assert_eq!(pauses(&crossed, error), [60; 5], "a minimum above the maximum");
        }
        let vips = Retry { shortest: SECOND, longest: 300 * SECOND }.at_most(30 * SECOND);
        let grown: Vec<_> = (0..7).map(|failures| vips.grown(failures).as_secs()).collect();
        assert_eq!(grown, [1, 2, 4, 8, 16, 30, 30], "a Cluster does not wait long");
        for (name, default) in [("RETRY_SECONDS_MIN", "1"), ("RETRY_SECONDS_MAX", "300")] {
            let command = Settings::command();
            let setting = command.get_arguments().find(|setting| setting.get_env() == Some(name.as_ref()));
            assert_eq!(setting.unwrap().get_default_values(), [default], "{name}");
        }
    }
}
