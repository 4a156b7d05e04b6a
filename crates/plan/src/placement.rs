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
use std::rc::Rc;
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

/// The slot of the node for each seeker: an address that needs a node. `seekers` has the group of each, in order of
/// urgency. Only nodes in free slots get an address. The zones of the groups then include the new addresses.
pub(crate) fn place(
    world: &World,
    groups: &mut [Group],
    seekers: &[usize],
    is_free: impl Fn(usize) -> bool,
) -> Vec<Option<usize>> {
    if seekers.is_empty() {
        return Vec::new();
    }
    let is_free = |slot: &usize| is_free(*slot) && world.stands_for_machine(*slot);
    let by_name: Vec<usize> = world.slots_by_name().filter(is_free).collect();
    let candidates = candidates(groups, &by_name);
    let searches = searches(world, groups, &by_name, &candidates);
    let exhausted = vec![false; groups.len()];
    let mut table = Table { by_name, candidates, taken: BTreeMap::new(), searches, exhausted };
    let mut counts = vec![0; groups.len()];
    let mut placed = Vec::with_capacity(seekers.len());
    for group in seekers {
        let is_placed = !table.exhausted[*group] && table.augment(world, groups, *group);
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

/// The nodes of each zone, by name.
type Zones = Vec<(Option<Arc<str>>, Vec<usize>)>;

/// Where the search for a free node of a group continues. All nodes before are taken or not fit.
enum Search {
    /// The position in the nodes of the group.
    ByName(usize),
    /// With spreading over zones: the position in each zone. Groups with many nodes share the zones of all nodes.
    ByZone { zones: Rc<Zones>, next: Vec<usize> },
}

/// The start of the search for each group.
fn searches(
    world: &World,
    groups: &[Group],
    by_name: &[usize],
    candidates: &[Option<Vec<usize>>],
) -> Vec<Search> {
    let zones_of = |slots: &[usize]| {
        let mut zones: BTreeMap<Option<Arc<str>>, Vec<usize>> = BTreeMap::new();
        for slot in slots {
            let zone = world.at(*slot).and_then(|(_, node)| node.zone.as_ref());
            match zones.get_mut(&zone.cloned()) {
                Some(slots) => slots.push(*slot),
                None => _ = zones.insert(zone.cloned(), vec![*slot]),
            }
        }
        Rc::new(zones.into_iter().collect::<Zones>())
    };
    let mut of_all: Option<Rc<Zones>> = None;
    let search = |(group, candidates): (&Group, &Option<Vec<usize>>)| {
        if group.zones.is_none() {
            return Search::ByName(0);
        }
        let zones = match candidates {
            Some(candidates) => zones_of(candidates),
            None => Rc::clone(of_all.get_or_insert_with(|| zones_of(by_name))),
        };
        Search::ByZone { next: vec![0; zones.len()], zones }
    };
    groups.iter().zip(candidates).map(search).collect()
}

struct Table {
    /// Nodes that are not busy, by name.
    by_name: Vec<usize>,
    /// The same for each group that has few nodes.
    candidates: Vec<Option<Vec<usize>>>,
    /// The group that got each taken node.
    taken: BTreeMap<usize, usize>,
    searches: Vec<Search>,
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
        let Self { by_name, candidates, taken, searches, .. } = self;
        let first_free = |slots: &[usize], at: &mut usize| {
            while let Some(slot) = slots.get(*at) {
                if !taken.contains_key(slot) && group.fit.contains(*slot) {
                    return Some(*slot);
                }
                *at += 1;
            }
            None
        };
        match &mut searches[index] {
            Search::ByName(at) => first_free(candidates[index].as_deref().unwrap_or(by_name), at),
            Search::ByZone { zones, next } => {
                let load = |zone: &Option<Arc<str>>| {
                    group.zones.as_ref().and_then(|loads| loads.get(zone)).copied().unwrap_or(0)
                };
                let of_zone = |((zone, slots), at): (&(_, Vec<usize>), _)| {
                    let slot = first_free(slots, at)?;
                    Some((load(zone), world.at(slot).map(|(name, _)| name), slot))
                };
                zones.iter().zip(next).filter_map(of_zone).min().map(|(.., slot)| slot)
            }
        }
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
