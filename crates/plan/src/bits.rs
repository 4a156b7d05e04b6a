//! Sets of nodes, a bit for each. 1,000 pools over 15,000 nodes take 2 MB this way, however many of them match.

/// A set of node slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

const WORD: usize = u64::BITS as usize;

impl Bits {
    /// Adds or removes a slot.
    pub(crate) fn set(&mut self, slot: usize, present: bool) {
        let word = slot / WORD;
        if word >= self.0.len() {
            if !present {
                return;
            }
            self.0.resize(word + 1, 0);
        }
        let mask = 1 << (slot % WORD);
        match present {
            true => self.0[word] |= mask,
            false => self.0[word] &= !mask,
        }
    }

    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / WORD).is_some_and(|word| word >> (slot % WORD) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_added_and_not_removed() {
        let mut bits = Bits::default();
        for slot in [0, 63, 64, 200] {
            bits.set(slot, true);
        }
        bits.set(63, false);
        bits.set(10_000, false);
        let held: Vec<_> = (0..300).filter(|slot| bits.contains(*slot)).collect();
        assert_eq!(held, [0, 64, 200]);
    }
}
