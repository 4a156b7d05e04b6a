//! Sets of nodes, with one bit for each node. One set for each of 1,000 pools, with 15,000 nodes, takes 2 MB in all,
//! however many nodes match.

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

    /// The slots that are also in one of two other sets.
    pub(crate) fn within(&self, others: [&Bits; 2]) -> Bits {
        let other = |word: usize| others.iter().fold(0, |all, bits| all | bits.0.get(word).unwrap_or(&0));
        Bits(self.0.iter().enumerate().map(|(word, bits)| bits & other(word)).collect())
    }

    /// Adds all slots of another set.
    pub(crate) fn add(&mut self, other: &Bits) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(bits, more)| *bits |= more);
    }

    /// Whether the set contains no slot.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// How many slots the set contains.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The slots, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().filter(|(_, bits)| **bits != 0).flat_map(|(word, bits)| {
            (0..WORD).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * WORD + bit)
        })
    }

    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / WORD).is_some_and(|word| word >> (slot % WORD) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_added_slots_until_they_are_removed() {
        let mut bits = Bits::default();
        for slot in [0, 63, 64, 200] {
            bits.set(slot, true);
        }
        bits.set(63, false);
        bits.set(10_000, false);
        let held: Vec<_> = (0..300).filter(|slot| bits.contains(*slot)).collect();
        assert_eq!(held, [0, 64, 200]);
        assert_eq!(bits.iter().collect::<Vec<_>>(), held);
        assert_eq!(bits.count(), 3);
        let mut other = Bits::default();
        other.set(64, true);
        assert_eq!(bits.within([&other, &Bits::default()]).iter().collect::<Vec<_>>(), [64]);
        other.set(300, true);
        bits.add(&other);
        assert_eq!(bits.iter().collect::<Vec<_>>(), [0, 64, 200, 300]);
        assert!(!bits.is_empty() && Bits::default().is_empty());
    }
}
