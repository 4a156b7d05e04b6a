//! Events on objects and nodes about moves.

use plan::{Action, EventReason, Step};

use super::Reconciler;
use crate::kubernetes::events::NewEvent;

impl Reconciler {
    /// Publishes an Event on an object.
    pub(super) fn publish_event(&mut self, key: &plan::PoolKey, reason: EventReason, note: String) {
        let Some(tracked) = self.index.objects.get(key) else { return };
        self.reporter
            .events
            .publish(NewEvent::of_object(&tracked.object, reason, "Move", note), self.clock.wall());
    }

    /// Publishes the Events of a move that starts or ends, on the object and on the nodes.
    pub(super) fn publish_move(&mut self, pool: &plan::Pool, step: &Step) {
        let (key, address) = (&pool.key, step.address);
        let name = |vm: &plan::VmId| self.index.world.node_of(vm).map(|(name, _)| name.clone());
        match (&step.action, pool.entry(address)) {
            // If the journal entry could not be written, the move starts again. That gets no second Event.
            (Action::Begin(entry), _) if !entry.releases && !self.begun.contains_key(&address) => {
                let from =
                    entry.from.as_ref().map(|vm| name(vm).map_or(vm.to_string(), |name| name.to_string()));
                let note = match (from, &entry.to) {
                    (Some(_), Some(to)) if entry.repeats_attach() => {
                        format!(
                            "attaching {address} to {} again, because the provider's last attach operation failed",
                            to.node
                        )
                    }
                    (Some(from), Some(to)) => format!("moving {address} from {from} to {}", to.node),
                    (Some(from), None) => format!("detaching {address} from {from}"),
                    (None, Some(to)) => format!("attaching {address} to {}", to.node),
                    (None, None) => return,
                };
                self.publish_event(key, EventReason::Moving, note);
            }
            (Action::Finish, Some(entry)) => {
                let left = entry.from.as_ref().filter(|_| !entry.repeats_attach()).and_then(name);
                let came = entry.to.as_ref().map(|to| to.node.clone());
                let events = [
                    (left, EventReason::AddressDetached, format!("detached {address} ({key})")),
                    (came.clone(), EventReason::AddressAttached, format!("attached {address} ({key})")),
                ];
                for (node, reason, note) in events {
                    let Some(node) = node else { continue };
                    let event = NewEvent::of_node(&node, self.index.nodes.get(&node), reason, note);
                    self.reporter.events.publish(event, self.clock.wall());
                }
                let world = &self.index.world;
                let lacks = |vm: &&plan::VmId| {
                    let is_target = entry.to.as_ref().is_some_and(|to| to.vm == **vm);
                    !is_target && !world.has_ephemeral.contains(*vm) && !world.holds_any(vm)
                };
                let lacking: Vec<_> = entry.to_restore.iter().filter(lacks).cloned().collect();
                for vm in lacking {
                    let note = format!("VM {vm} has lost its ephemeral address: assign a new one by hand");
                    self.publish_event(key, EventReason::NoOwnAddress, note);
                }
                if let Some(node) = came {
                    self.publish_event(key, EventReason::Attached, format!("attached {address} to {node}"));
                }
            }
            (Action::Abandon, Some(_)) => {
                self.publish_event(key, EventReason::MoveGivenUp, format!("abandoned the move of {address}"));
            }
            _ => {}
        }
    }
}
