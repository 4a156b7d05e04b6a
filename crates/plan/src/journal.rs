//! What a step makes of the journal that it is about. Whoever keeps the journal writes it out before anything is called.

use crate::{Action, Address, Epoch, Journal, Move, PENDING, Pool, Timestamp};

impl Pool {
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
            Action::Finish => {
                if let Some(to) = moves.remove(&address).and_then(|entry| entry.to) {
                    self.last_assignment = Some(now);
                    // The machine was ours when it was told to hold the address, whatever became of its node.
                    self.last_holders.insert(address, to.vm);
                }
            }
            Action::Abandon => _ = moves.remove(&address),
            // These are calls, and the last is for the object's spec.
            Action::Attach(_) | Action::Detach(_) | Action::Release | Action::Drop => {}
        }
    }
}
