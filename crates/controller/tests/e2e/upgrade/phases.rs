//! How far each open journal entry has come, according to the ledgers of the fake clouds.

use std::collections::BTreeMap;

use api::status::Move;
use testbed::fake::ledger::{CloudChange, Ledger};

/// A switch counts if the journals have at least this many entries in at least this many phases.
const OPEN_MIN: usize = 10;
const PHASES_MIN: usize = 3;

/// The progress of a journal entry, according to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The cloud creates an address.
    Creating,
    /// The address is still on its old VM.
    Begun,
    /// The address is on no VM.
    Detached,
    /// The cloud has accepted the request to attach the address.
    Ordered,
    /// The address is on its new VM, but the journal entry is still open.
    Arrived,
}

/// Where an address is, according to the ledger.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub holder: Option<String>,
    pub is_ordered: bool,
}

pub fn places(ledgers: &[Ledger]) -> BTreeMap<String, Place> {
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for done in ledgers.iter().flat_map(|ledger| &ledger.done) {
        match &done.change {
            CloudChange::Accepted { address, .. } => {
                places.entry(address.clone()).or_default().is_ordered = true
            }
            CloudChange::Failed { address, .. } => {
                places.entry(address.clone()).or_default().is_ordered = false
            }
            CloudChange::Attached { address, vm } => {
                let place = Place { holder: Some(vm.clone()), is_ordered: false };
                places.insert(address.clone(), place);
            }
            CloudChange::Detached { address, .. } => places.entry(address.clone()).or_default().holder = None,
            _ => {}
        }
    }
    places
}

fn phase(entry: &Move, places: &BTreeMap<String, Place>) -> Phase {
    let Some(address) = entry.address.as_ref().filter(|_| entry.kind.as_deref() != Some("Create")) else {
        return Phase::Creating;
    };
    let place = places.get(address).cloned().unwrap_or_default();
    let is_target = |holder: &String| {
        entry.to.as_ref().is_some_and(|to| holder.rsplit('/').next() == to.vm.rsplit('/').next())
    };
    match &place.holder {
        Some(holder) if is_target(holder) => Phase::Arrived,
        _ if place.is_ordered => Phase::Ordered,
        Some(_) => Phase::Begun,
        None => Phase::Detached,
    }
}

/// How many entries are in each phase.
pub fn phases(entries: &[Move], places: &BTreeMap<String, Place>) -> BTreeMap<Phase, usize> {
    let mut phases = BTreeMap::new();
    entries.iter().for_each(|entry| *phases.entry(phase(entry, places)).or_default() += 1);
    phases
}

/// Whether enough work is in flight for a switch at this moment to count.
pub fn is_counted(phases: &BTreeMap<Phase, usize>) -> bool {
    phases.len() >= PHASES_MIN && phases.values().sum::<usize>() >= OPEN_MIN
}
