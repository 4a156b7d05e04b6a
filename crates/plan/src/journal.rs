//! How a step changes the journal of its pool, in memory. The controller writes the journal into the object's status
//! before it calls the cloud.

use std::collections::BTreeSet;

use crate::{Action, Address, Epoch, Journal, Move, PENDING, Pool, Timestamp, VmId};

/// For each address, the status remembers this many of the last VMs on which the controller restored an ephemeral
/// address. While the cloud's listings may be stale, an address does not leave more VMs than that.
const RETURNED_MAX: usize = 4;

impl Pool {
    /// The unfinished move of an address.
    pub fn entry(&self, address: Address) -> Option<&Move> {
        match &self.journal {
            Journal::Known(moves) => moves.get(&address),
            Journal::Unreadable => None,
        }
    }

    /// Whether an entry of the journal is not written yet.
    pub fn has_pending(&self) -> bool {
        let is_creation_pending = self.creation.as_ref().is_some_and(|entry| entry.written == PENDING);
        let is_move_pending = match &self.journal {
            Journal::Known(moves) => moves.values().any(|entry| entry.written == PENDING),
            Journal::Unreadable => false,
        };
        is_creation_pending || is_move_pending
    }

    /// Applies a step to the journal. A step that is a call to the cloud leaves the journal as it is. A changed entry
    /// counts as not written ([`PENDING`]) until the status is written.
    pub fn note(&mut self, address: Address, action: &Action, epoch: Epoch, now: Timestamp) {
        let Journal::Known(moves) = &mut self.journal else { return };
        match action {
            Action::Begin(entry) => {
                let written = if crate::sabotaged!(JournalAfterCall) { crate::Tick(0) } else { PENDING };
                moves.insert(address, Move { written, ..entry.clone() });
            }
            Action::Claim => {
                if let Some(entry) = moves.get_mut(&address) {
                    entry.epoch = epoch;
                    entry.written = PENDING;
                }
            }
            Action::NoteEphemeral => {
                if let Some(entry) = moves.get_mut(&address) {
                    entry.to_restore.extend(entry.to.as_ref().map(|to| to.vm.clone()));
                    entry.written = PENDING;
                }
            }
            Action::KeepPtr(name) => {
                if let Some(entry) = moves.get_mut(&address) {
                    self.ptrs.insert(address, name.clone());
                    entry.written = PENDING;
                }
            }
            Action::Finish => {
                self.replaced_ephemeral.remove(&address);
                let Some(entry) = moves.remove(&address) else { return };
                let is_assignment = !entry.repeats_attach();
                let Move { to, mut to_restore, .. } = entry;
                if let Some(to) = to {
                    // The driver has restored the PTR record.
                    self.ptrs.remove(&address);
                    self.last_assignment = is_assignment.then_some(now).or(self.last_assignment);
                    if to_restore.remove(&to.vm) {
                        self.replaced_ephemeral.insert(address);
                    }
                    // The VM backed a node when the move started, even if that node no longer exists.
                    self.last_holders.insert(address, to.vm);
                }
                self.remember_returned(address, to_restore);
            }
            Action::Abandon => {
                if let Some(Move { to_restore, .. }) = moves.remove(&address) {
                    self.remember_returned(address, to_restore);
                }
            }
            // All but the last are calls. The last changes the object's spec.
            Action::Attach(_)
            | Action::Replace(_)
            | Action::Restore(_)
            | Action::Detach(_)
            | Action::Release(_)
            | Action::Drop => {}
        }
    }

    /// Remembers the VMs that have an ephemeral address again: at the end of a move, all VMs that are still in its
    /// `to_restore`.
    fn remember_returned(&mut self, address: Address, to_restore: BTreeSet<VmId>) {
        if to_restore.is_empty() {
            return;
        }
        let returned = self.returned.entry(address).or_default();
        returned.retain(|vm| !to_restore.contains(vm));
        returned.extend(to_restore);
        returned.drain(..returned.len().saturating_sub(RETURNED_MAX));
    }
}
