//! Which address goes to which node: as many as possible, in the order of the user's list and of the nodes' names.
//!
//! This is maximum bipartite matching by augmenting paths. An address that came earlier keeps a node, though perhaps
//! another than its first choice, whenever a later one can be placed too.

use std::collections::{BTreeMap, BTreeSet};

use crate::NodeName;

/// For each seeker, the node it gets. A seeker's candidates are tried in the order of their names.
pub(crate) fn place(seekers: &[&BTreeSet<NodeName>]) -> Vec<Option<NodeName>> {
    let mut taken: BTreeMap<&NodeName, usize> = BTreeMap::new();
    for seeker in 0..seekers.len() {
        augment(seekers, seeker, &mut taken, &mut BTreeSet::new());
    }
    let mut placed = vec![None; seekers.len()];
    for (node, seeker) in taken {
        placed[seeker] = Some(node.clone());
    }
    placed
}

fn augment<'a>(
    seekers: &[&'a BTreeSet<NodeName>],
    seeker: usize,
    taken: &mut BTreeMap<&'a NodeName, usize>,
    tried: &mut BTreeSet<&'a NodeName>,
) -> bool {
    if let Some(free) = seekers[seeker].iter().find(|node| !taken.contains_key(node)) {
        taken.insert(free, seeker);
        return true;
    }
    for node in seekers[seeker] {
        if !tried.insert(node) {
            continue;
        }
        let Some(&holder) = taken.get(node) else { continue };
        if augment(seekers, holder, taken, tried) {
            taken.insert(node, seeker);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(names: &str) -> BTreeSet<NodeName> {
        names.split_whitespace().map(|name| NodeName(name.into())).collect()
    }

    fn check(candidates: &[&str], expected: &str) {
        let sets: Vec<_> = candidates.iter().map(|names| nodes(names)).collect();
        let placed = place(&sets.iter().collect::<Vec<_>>());
        let text: Vec<_> = placed.iter().map(|node| node.as_ref().map_or("-", |node| &node.0)).collect();
        assert_eq!(text.join(" "), expected);
    }

    #[test]
    fn the_first_address_gets_the_first_node() {
        check(&["n1 n2", "n1 n2"], "n1 n2");
    }

    #[test]
    fn an_address_steps_aside_for_one_that_has_no_other_choice() {
        check(&["n1 n2", "n1"], "n2 n1");
    }

    #[test]
    fn an_address_without_a_node_waits() {
        check(&["n1", "n1", ""], "n1 - -");
    }

    /// The most that can be placed, by trying everything.
    fn best(seekers: &[BTreeSet<NodeName>], used: &mut BTreeSet<NodeName>) -> usize {
        let Some((first, rest)) = seekers.split_first() else { return 0 };
        let mut most = best(rest, used);
        for node in first {
            if used.insert(node.clone()) {
                most = most.max(1 + best(rest, used));
                used.remove(node);
            }
        }
        most
    }

    proptest! {
        #[test]
        fn as_many_are_placed_as_could_be(masks in proptest::collection::vec(0u8..32, 0..6)) {
            let set = |mask: &u8| (0..5).filter(|bit| mask >> bit & 1 == 1).map(|bit| NodeName(format!("n{bit}"))).collect();
            let seekers: Vec<BTreeSet<NodeName>> = masks.iter().map(set).collect();
            let placed = place(&seekers.iter().collect::<Vec<_>>());
            prop_assert_eq!(placed.iter().flatten().count(), best(&seekers, &mut BTreeSet::new()));
            let distinct: BTreeSet<_> = placed.iter().flatten().collect();
            prop_assert_eq!(distinct.len(), placed.iter().flatten().count());
        }
    }
}
