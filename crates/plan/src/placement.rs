//! Which address goes to which node.
//!
//! In: addresses in order of urgency, and the nodes that each may go to. Out: a node for each, or none. As many
//! addresses as possible get a node, the more urgent first. Between equal nodes the name decides. Nothing here starts a
//! move.
//!
//! This is maximum bipartite matching by augmenting paths. Addresses that may go to the same nodes form one group. The
//! search goes over groups instead of addresses, so each step of it looks at each group once. Once an address has a
//! node, it keeps one: a later address can only shift it to another node. So the addresses with a node are always the
//! first possible ones in the given order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::World;
use crate::bits::Bits;

/// Addresses that may go to the same nodes.
pub(crate) struct Group {
    /// The nodes that may get one.
    pub(crate) fit: Bits,
    /// If the policy spreads over zones: how many addresses of the pool each zone has already.
    pub(crate) zones: Option<BTreeMap<Option<Arc<str>>, usize>>,
}

/// The slot of the node for each seeker. Seekers are given by their group, in order of urgency. Busy nodes get no
/// address.
pub(crate) fn place(
    world: &World,
    mut groups: Vec<Group>,
    seekers: &[usize],
    busy: &Bits,
) -> Vec<Option<usize>> {
    if seekers.is_empty() {
        return Vec::new();
    }
    let is_free = |slot: &usize| !busy.contains(*slot) && world.stands_for_machine(*slot);
    let by_name: Vec<usize> = world.slots_by_name().filter(is_free).collect();
    let candidates = candidates(&groups, &by_name);
    let mut table = Table {
        by_name,
        candidates,
        taken: BTreeMap::new(),
        cursors: vec![0; groups.len()],
        exhausted: vec![false; groups.len()],
    };
    let mut counts = vec![0; groups.len()];
    let mut placed = Vec::with_capacity(seekers.len());
    for group in seekers {
        let is_placed = !table.exhausted[*group] && table.augment(world, &mut groups, *group);
        // If no path leads to a free node now, none will later: later placements only use more nodes.
        table.exhausted[*group] |= !is_placed;
        placed.push(is_placed.then(|| {
            counts[*group] += 1;
            counts[*group] - 1
        }));
    }
    let slots = table.slots_of_groups(groups.len());
    seekers
        .iter()
        .zip(placed)
        .map(|(group, position)| position.map(|position| slots[*group][position]))
        .collect()
}

/// The free nodes of each group, by name, if they are few. For a group with many, the search goes through all nodes.
fn candidates(groups: &[Group], by_name: &[usize]) -> Vec<Option<Vec<usize>>> {
    const MANY_SHARE: usize = 16;
    let mut rank = vec![None; by_name.iter().max().map_or(0, |last| last + 1)];
    for (at, slot) in by_name.iter().enumerate() {
        rank[*slot] = Some(at);
    }
    let few = |group: &Group| {
        (group.fit.count() <= by_name.len() / MANY_SHARE).then(|| {
            let mut ranks: Vec<usize> = group.fit.iter().filter_map(|slot| *rank.get(slot)?).collect();
            ranks.sort_unstable();
            ranks.into_iter().map(|rank| by_name[rank]).collect()
        })
    };
    groups.iter().map(few).collect()
}

struct Table {
    /// Nodes that are not busy, by name.
    by_name: Vec<usize>,
    /// The same for each group that has few nodes.
    candidates: Vec<Option<Vec<usize>>>,
    /// The group that got each taken node.
    taken: BTreeMap<usize, usize>,
    /// Where the search of each group continues. All nodes before are taken or not fit.
    cursors: Vec<usize>,
    exhausted: Vec<bool>,
}

impl Table {
    /// Gives the group one more node, if possible.
    fn augment(&mut self, world: &World, groups: &mut [Group], start: usize) -> bool {
        let mut reached_by: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(group) = queue.pop_front() {
            if let Some(free) = self.free_node(world, &groups[group], group) {
                self.shift(group, free, &reached_by, world, groups);
                return true;
            }
            let fit = &groups[group].fit;
            for slot in self.nodes_of(group).iter().filter(|slot| fit.contains(**slot)) {
                let Some(other) = self.taken.get(slot) else { continue };
                if *other != start && !reached_by.contains_key(other) {
                    reached_by.insert(*other, (group, *slot));
                    queue.push_back(*other);
                }
            }
        }
        false
    }

    /// Along the path, each group takes the node of the next group, and the last one takes the free node.
    fn shift(
        &mut self,
        last: usize,
        free: usize,
        reached_by: &BTreeMap<usize, (usize, usize)>,
        world: &World,
        groups: &mut [Group],
    ) {
        let (mut group, mut gained) = (last, free);
        loop {
            self.taken.insert(gained, group);
            count_zone(world, &mut groups[group], gained, 1);
            let Some((previous, slot)) = reached_by.get(&group) else { return };
            count_zone(world, &mut groups[group], *slot, -1);
            (group, gained) = (*previous, *slot);
        }
    }

    /// The nodes to search for a group, by name.
    fn nodes_of(&self, group: usize) -> &[usize] {
        self.candidates[group].as_deref().unwrap_or(&self.by_name)
    }

    /// The first free node by name. With spreading over zones, the first one in a zone with the fewest addresses.
    fn free_node(&mut self, world: &World, group: &Group, index: usize) -> Option<usize> {
        if let Some(zones) = &group.zones {
            let is_free = |slot: &&usize| !self.taken.contains_key(slot) && group.fit.contains(**slot);
            let load =
                |slot: &&usize| world.at(**slot).map(|(_, node)| zones.get(&node.zone).copied().unwrap_or(0));
            return self.nodes_of(index).iter().filter(is_free).min_by_key(load).copied();
        }
        while let Some(slot) = self.nodes_of(index).get(self.cursors[index]) {
            if !self.taken.contains_key(slot) && group.fit.contains(*slot) {
                return Some(*slot);
            }
            self.cursors[index] += 1;
        }
        None
    }

    /// The nodes of each group, by name.
    fn slots_of_groups(&self, count: usize) -> Vec<Vec<usize>> {
        let mut slots = vec![Vec::new(); count];
        for slot in &self.by_name {
            if let Some(group) = self.taken.get(slot) {
                slots[*group].push(*slot);
            }
        }
        slots
    }
}

fn count_zone(world: &World, group: &mut Group, slot: usize, change: isize) {
    if let (Some(zones), Some((_, node))) = (&mut group.zones, world.at(slot)) {
        let count = zones.entry(node.zone.clone()).or_default();
        *count = count.saturating_add_signed(change);
    }
}
