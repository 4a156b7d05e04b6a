//! What a step makes of the journal that it is about. Whoever keeps the journal writes it out before anything is called.

use std::collections::BTreeSet;

use crate::{Action, Address, Epoch, Journal, Move, PENDING, Pool, Timestamp, VmId};

/// How many machines are remembered that an address has left. It does not leave more of them while a cloud may be late.
const RETURNED_MAX: usize = 4;

impl Pool {
    /// The unfinished move of an address.
    pub fn entry(&self, address: Address) -> Option<&Move> {
        match &self.journal {
            Journal::Known(moves) => moves.get(&address),
            Journal::Unreadable => None,
        }
    }

    /// Puts a step that is no call into the journal. What is to be written counts as not written until it is.
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
            Action::Owe => {
                if let Some(entry) = moves.get_mut(&address) {
                    entry.owed.extend(entry.to.as_ref().map(|to| to.vm.clone()));
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
                self.lent.remove(&address);
                let Some(entry) = moves.remove(&address) else { return };
                let is_assignment = !entry.asks_again();
                let Move { to, mut owed, .. } = entry;
                if let Some(to) = to {
                    // It has its name again.
                    self.ptrs.remove(&address);
                    self.last_assignment = is_assignment.then_some(now).or(self.last_assignment);
                    if owed.remove(&to.vm) {
                        self.lent.insert(address);
                    }
                    // The machine was ours when it was told to hold the address, whatever became of its node.
                    self.last_holders.insert(address, to.vm);
                }
                self.remember_returned(address, owed);
            }
            Action::Abandon => {
                if let Some(Move { owed, .. }) = moves.remove(&address) {
                    self.remember_returned(address, owed);
                }
            }
            // These are calls, and the last is for the object's spec.
            Action::Attach(_)
            | Action::Replace(_)
            | Action::Restore(_)
            | Action::Detach(_)
            | Action::Release(_)
            | Action::Drop => {}
        }
    }

    /// A move is over, so whoever it still owed an address of their own has one.
    fn remember_returned(&mut self, address: Address, owed: BTreeSet<VmId>) {
        if owed.is_empty() {
            return;
        }
        let returned = self.returned.entry(address).or_default();
        returned.retain(|vm| !owed.contains(vm));
        returned.extend(owed);
        returned.drain(..returned.len().saturating_sub(RETURNED_MAX));
    }
}
