//! Tells objects and nodes what happens to them.

use plan::{Action, EventReason, Step};

use super::Reconciler;
use crate::kubernetes::events::NewEvent;

impl Reconciler {
    /// Tells of something that happened to an object.
    pub(super) fn tell(&mut self, key: &plan::PoolKey, reason: EventReason, note: String) {
        let Some(tracked) = self.index.objects.get(key) else { return };
        self.reporter.tell(NewEvent::of_object(&tracked.object, reason, "Move", note), self.clock.wall());
    }

    /// Tells the object, and the nodes where an address comes or goes, of a move that begins or ends.
    pub(super) fn publish_move(&mut self, pool: &plan::Pool, step: &Step) {
        let (key, address) = (&pool.key, step.address);
        let name = |vm: &plan::VmId| self.index.world.node_of(vm).map(|(name, _)| name.clone());
        match (&step.action, pool.entry(address)) {
            // An entry that could not be written is begun again, and that is no news.
            (Action::Begin(entry), _) if !entry.releases && !self.begun.contains_key(&address) => {
                let from =
                    entry.from.as_ref().map(|vm| name(vm).map_or(vm.to_string(), |name| name.to_string()));
                let note = match (from, &entry.to) {
                    (Some(_), Some(to)) if entry.asks_again() => {
                        format!(
                            "{address} is asked for again on {}: the change that brought it there has failed",
                            to.node
                        )
                    }
                    (Some(from), Some(to)) => format!("{address} goes from {from} to {}", to.node),
                    (Some(from), None) => format!("{address} is taken off {from}"),
                    (None, Some(to)) => format!("{address} goes to {}", to.node),
                    (None, None) => return,
                };
                self.tell(key, EventReason::Moving, note);
            }
            (Action::Finish, Some(entry)) => {
                let left = entry.from.as_ref().filter(|_| !entry.asks_again()).and_then(name);
                let came = entry.to.as_ref().map(|to| to.node.clone());
                let news = [
                    (left, EventReason::AddressDetached, format!("{address} of {key} has left")),
                    (came.clone(), EventReason::AddressAttached, format!("{address} of {key} is here")),
                ];
                for (node, reason, note) in news {
                    let Some(node) = node else { continue };
                    let news = NewEvent::of_node(&node, self.index.nodes.get(&node), reason, note);
                    self.reporter.tell(news, self.clock.wall());
                }
                let world = &self.index.world;
                let lacks = |vm: &&plan::VmId| {
                    let is_target = entry.to.as_ref().is_some_and(|to| to.vm == **vm);
                    !is_target && !world.has_own.contains(*vm) && !world.holds_any(vm)
                };
                let lacking: Vec<_> = entry.owed.iter().filter(lacks).cloned().collect();
                for vm in lacking {
                    let note = format!("{vm} had an address of its own and has none now: give it one");
                    self.tell(key, EventReason::NoOwnAddress, note);
                }
                if let Some(node) = came {
                    self.tell(key, EventReason::Attached, format!("{address} is on {node}"));
                }
            }
            (Action::Abandon, Some(_)) => {
                self.tell(key, EventReason::MoveGivenUp, format!("the move of {address} was given up"));
            }
            _ => {}
        }
    }
}
