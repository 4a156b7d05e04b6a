//! What a step makes of the journal that it is about. Whoever keeps the journal writes it out before anything is called.

use std::collections::BTreeSet;

use crate::{Action, Address, Epoch, Journal, Move, PENDING, Pool, Timestamp, VmId};

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
            Action::Finish => {
                self.lent.remove(&address);
                let Some(Move { to, owed, .. }) = moves.remove(&address) else { return };
                if let Some(to) = to {
                    self.last_assignment = Some(now);
                    if owed.contains(&to.vm) {
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
            | Action::Release
            | Action::Drop => {}
        }
    }

    /// A move is over, so whoever it owed an address of their own has one, or has ours.
    fn remember_returned(&mut self, address: Address, owed: BTreeSet<VmId>) {
        let holder = self.last_holders.get(&address);
        let returned = owed.into_iter().find(|vm| Some(vm) != holder);
        self.returned.extend(returned.map(|vm| (address, vm)));
    }
}
