//! Reads and writes the journal, and the other facts that the controller stores in the status for the next leader.
//!
//! In: a status, or a pool. Out: the journal and the stored facts of the pool, or the journal in the form of the
//! status. Each field that this file writes, it also reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::status::{AddressState, AddressStatus, Holder, MOVES_VERSION, Move as Entry, Moves};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use plan::{
    Address, Creation, Epoch, Journal, Move, NodeName, PENDING, Pool, Reason, Target, Tick, Timestamp, VmId,
};

/// The annotation with which a person confirms that all holders lost up to this time are really lost.
pub const CONFIRM_LOSS_ANNOTATION: &str = "netinfra.darkbrains.com/confirm-loss";

/// The annotation that lists addresses, separated by commas, that the controller did not create for the object.
pub const NOT_CREATED_ANNOTATION: &str = "netinfra.darkbrains.com/not-created";

/// Reads a `Create` entry. If another process wrote it, that process may have sent a request, so `may_have_asked`
/// is true.
fn decode_creation(entry: &Entry, known: Option<&Creation>, learnt: Tick) -> Creation {
    let epoch = Epoch(entry.epoch);
    let known = known.filter(|known| known.epoch == epoch);
    let written = known.map(|known| known.written).filter(|written| *written != PENDING);
    Creation {
        tag: entry.token.as_deref().map(Into::into),
        before: entry.before.iter().filter_map(|text| text.parse().ok()).collect(),
        may_have_asked: known.is_none_or(|known| known.may_have_asked),
        epoch,
        written: written.unwrap_or(learnt),
    }
}

/// The `kind` of a journal entry for addresses that the controller creates.
pub const CREATE: &str = "Create";

/// The `kind` of a journal entry for an address that the controller releases at the provider.
pub const RELEASE: &str = "Release";

/// The `step` of a journal entry whose holder was alive when the move started.
pub const VOLUNTARY: &str = "Voluntary";

/// The `step` of a journal entry whose address had no holder, or whose holder had failed or was deleted.
pub const URGENT: &str = "Urgent";

/// The VMs that unfinished moves name.
pub(crate) fn machines_of(moves: Option<&Moves>) -> impl Iterator<Item = VmId> {
    let entries = moves.into_iter().flat_map(|moves| &moves.entries);
    entries.flat_map(|entry| [&entry.from, &entry.to]).flatten().map(|holder| VmId::from(holder.vm.as_str()))
}

/// What the status stores about one address for the next leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) state: AddressState,
    pub(crate) last_holder: Option<Holder>,
    pub(crate) previous_holders: Vec<VmId>,
    pub(crate) ptr_name: Option<Arc<str>>,
    pub(crate) lost_since: Option<Timestamp>,
    pub(crate) created: Option<bool>,
}

/// The part of an address's status that is for people and metrics. No decision uses it. While the state stays the
/// same, the next status repeats `since`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) node_name: Option<String>,
    pub(crate) reason: Reason,
    pub(crate) message: Option<String>,
    pub(crate) since: Time,
}

/// The status of one address.
pub(crate) fn encode_address(address: Address, memory: Memory, description: Description) -> AddressStatus {
    let Memory { state, last_holder, previous_holders, ptr_name, lost_since, created } = memory;
    let Description { node_name, reason, message, since } = description;
    AddressStatus {
        address: address.to_string(),
        state,
        node_name,
        last_holder,
        previous_holders: previous_holders.iter().map(ToString::to_string).collect(),
        ptr_name: ptr_name.as_deref().map(Into::into),
        reason: Some(reason.name().to_owned()),
        message,
        since: Some(since),
        lost_since: lost_since.map(whole_seconds),
        created,
    }
}

/// What the status of one address stores. None if the address can't be read.
fn decode_address(status: &AddressStatus) -> Option<(Address, Memory)> {
    // This lists every field, so it does not compile if somebody adds a field and does not read it here.
    // Fields with `_` are for users, so this function ignores them.
    let AddressStatus {
        address,
        state,
        last_holder,
        previous_holders,
        ptr_name,
        lost_since,
        created,
        node_name: _,
        reason: _,
        message: _,
        since: _,
    } = status;
    let memory = Memory {
        state: *state,
        last_holder: last_holder.clone(),
        previous_holders: previous_holders.iter().map(|vm| VmId::from(vm.as_str())).collect(),
        ptr_name: ptr_name.as_deref().map(Arc::from),
        lost_since: lost_since.as_ref().map(|time| time.0),
        created: *created,
    };
    Some((address.parse().ok()?, memory))
}

/// Copies what the status stores about the addresses into the pool.
pub(crate) fn remember(pool: &mut Pool, status: &[AddressStatus]) {
    for (address, memory) in status.iter().filter_map(decode_address) {
        // `losses_of` reads the time of a loss.
        let Memory { state, last_holder, previous_holders, ptr_name, created, lost_since: _ } = memory;
        if state == AddressState::Attached {
            pool.held.insert(address);
        }
        if let Some(Holder { vm, had_ephemeral, node_name: _ }) = last_holder {
            pool.last_holders.insert(address, VmId::from(vm.as_str()));
            if had_ephemeral == Some(true) {
                pool.replaced_ephemeral.insert(address);
            }
        }
        if !previous_holders.is_empty() {
            pool.returned.insert(address, previous_holders.into_iter().collect());
        }
        pool.ptrs.extend(ptr_name.map(|name| (address, name)));
        // Only kinds that create addresses use this field.
        if created == Some(true) && pool.creates.is_some() {
            pool.created_here.insert(address);
        }
    }
}

/// When the holders of an object's addresses were lost, according to its status.
pub(crate) fn losses_of(status: &[AddressStatus]) -> impl Iterator<Item = (Address, Timestamp)> {
    let stored = status.iter().filter(|_| !plan::sabotaged!(LossesForgotten));
    // Filtered before it is decoded: few addresses have a loss, and this runs for every event of an object.
    let lost = stored.filter(|status| status.lost_since.is_some()).filter_map(decode_address);
    lost.filter_map(|(address, memory)| Some((address, memory.lost_since?)))
}

/// When the unfinished moves started, according to the journal. A move that failed is unfinished.
pub(crate) fn moving_since(journal: &[Entry]) -> BTreeMap<Address, Timestamp> {
    let began = |entry: &Entry| Some((entry.address.as_ref()?.parse().ok()?, entry.started_at.as_ref()?.0));
    journal.iter().filter_map(began).collect()
}

/// The addresses in the annotation `not-created`.
pub(crate) fn disowned(object: &impl ResourceExt) -> BTreeSet<Address> {
    let texts = object.annotations().get(NOT_CREATED_ANNOTATION).map(String::as_str).unwrap_or_default();
    texts.split(',').filter_map(|text| text.trim().parse().ok()).collect()
}

/// The time in the annotation `confirm-loss`.
pub(crate) fn losses_confirmed(object: &impl ResourceExt) -> Option<Timestamp> {
    object.annotations().get(CONFIRM_LOSS_ANNOTATION)?.parse().ok()
}

/// Reads the journal from the status. `pool` is the pool in memory: an entry that it already has keeps its `written`
/// tick, a new entry gets `learnt`.
pub(crate) fn journal(
    pool: Option<&Pool>,
    moves: Option<&Moves>,
    learnt: Tick,
) -> (Journal, Option<Creation>) {
    let Some(moves) = moves else { return (Journal::default(), None) };
    if moves.version != MOVES_VERSION {
        return (Journal::Unreadable, None);
    }
    let known_creation = pool.and_then(|pool| pool.creation.as_ref());
    let known = match pool.map(|pool| &pool.journal) {
        Some(Journal::Known(known)) => known.clone(),
        _ => BTreeMap::new(),
    };
    let mut journal = BTreeMap::new();
    let mut creation = None;
    for entry in &moves.entries {
        let releases = match entry.kind.as_deref() {
            None => false,
            Some(RELEASE) => true,
            Some(CREATE) => {
                creation = Some(decode_creation(entry, known_creation, learnt));
                continue;
            }
            Some(_) => return (Journal::Unreadable, None),
        };
        let Some(address) = entry.address.as_deref().and_then(|text| text.parse().ok()) else {
            return (Journal::Unreadable, None);
        };
        let to = entry.to.as_ref().map(|to| Target {
            vm: to.vm.as_str().into(),
            node: to.node_name.as_deref().unwrap_or_default().into(),
        });
        let from = entry.from.as_ref().map(|from| VmId::from(from.vm.as_str()));
        let is_voluntary = entry.step == VOLUNTARY;
        let epoch = Epoch(entry.epoch);
        let had_ephemeral_before = |holder: &&Holder| holder.had_ephemeral == Some(true);
        let to_restore = [&entry.from, &entry.to].into_iter().flatten().filter(had_ephemeral_before);
        let to_restore = to_restore.map(|holder| VmId::from(holder.vm.as_str())).collect();
        let mut read = Move { from, to, to_restore, releases, is_voluntary, epoch, written: learnt };
        if let Some(before) = known.get(&address).filter(|before| before.written != PENDING) {
            let is_same = Move { written: before.written, ..read.clone() } == *before;
            read.written = if is_same { before.written } else { learnt };
        }
        journal.insert(address, read);
    }
    (Journal::Known(journal), creation)
}

/// The pool's journal in the form of the status. `present` is the journal that the status has now, `candidates` are the
/// addresses of an ambiguous creation. A journal that can't be read stays unchanged.
pub(crate) fn moves(
    pool: &Pool,
    present: Option<&Moves>,
    candidates: Option<&BTreeSet<Address>>,
    epoch: Epoch,
    now: Timestamp,
) -> Option<Moves> {
    let Journal::Known(journal) = &pool.journal else { return present.cloned() };
    if journal.is_empty() && pool.creation.is_none() {
        return None;
    }
    let known: BTreeMap<&str, &Entry> =
        present.iter().flat_map(|moves| &moves.entries).map(|entry| (entry.id.as_str(), entry)).collect();
    let entry = |(address, entry): (&Address, &Move)| {
        let id = format!("{address}-{}", entry.epoch.0);
        let started_at = known.get(id.as_str()).and_then(|known| known.started_at.clone());
        let holder = |vm: &VmId, node: Option<&NodeName>| Holder {
            vm: vm.to_string(),
            node_name: node.map(ToString::to_string),
            had_ephemeral: entry.to_restore.contains(vm).then_some(true),
        };
        Entry {
            kind: entry.releases.then(|| RELEASE.into()),
            address: Some(address.to_string()),
            from: entry.from.as_ref().map(|vm| holder(vm, None)),
            to: entry.to.as_ref().map(|to| holder(&to.vm, Some(&to.node))),
            step: if entry.is_voluntary { VOLUNTARY } else { URGENT }.into(),
            token: None,
            before: Vec::new(),
            candidates: Vec::new(),
            epoch: entry.epoch.0,
            started_at: started_at.or_else(|| Some(whole_seconds(now))),
            id,
        }
    };
    let started_at = |id: &str| known.get(id).and_then(|known| known.started_at.clone());
    let entries = journal.iter().map(entry).chain(pool.creation.as_ref().map(|entry| {
        encode_creation(entry, candidates, |id| started_at(id).or_else(|| Some(whole_seconds(now))))
    }));
    let mut entries: Vec<_> = entries.collect();
    if plan::sabotaged!(JournalCut) {
        entries.truncate(1);
    }
    Some(Moves { version: MOVES_VERSION, epoch: epoch.0, entries })
}

/// Writes a `Create` entry.
fn encode_creation(
    entry: &Creation,
    candidates: Option<&BTreeSet<Address>>,
    started_at: impl Fn(&str) -> Option<Time>,
) -> Entry {
    let texts = |addresses: &BTreeSet<Address>, most: usize| {
        addresses.iter().take(most).map(ToString::to_string).collect()
    };
    let id = format!("create-{}", entry.epoch.0);
    Entry {
        kind: Some(CREATE.into()),
        address: None,
        from: None,
        to: None,
        step: VOLUNTARY.into(),
        token: entry.tag.as_deref().map(Into::into),
        before: texts(&entry.before, usize::MAX),
        candidates: candidates.map(|candidates| texts(candidates, CANDIDATES_MAX)).unwrap_or_default(),
        epoch: entry.epoch.0,
        started_at: started_at(&id),
        id,
    }
}

/// The maximum number of candidates in the journal entry of an ambiguous creation.
const CANDIDATES_MAX: usize = 50;

/// A time in the form of the status, which has no fractions of a second.
pub(crate) fn whole_seconds(time: Timestamp) -> Time {
    Time(plan::whole_seconds(time))
}

#[cfg(test)]
mod tests {
    use plan::{PoolKey, Provider, Scope};
    use proptest::collection::{btree_map, btree_set};
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = Address> {
        any::<std::net::IpAddr>().prop_map(Address)
    }

    fn vm() -> impl Strategy<Value = VmId> {
        any::<u8>().prop_map(|number| VmId::from(format!("zone/vm-{number}").as_str()))
    }

    fn target() -> impl Strategy<Value = Target> {
        let node = any::<u8>().prop_map(|number| format!("node-{number}"));
        (vm(), node).prop_map(|(vm, node)| Target { vm, node: node.as_str().into() })
    }

    prop_compose! {
        fn entry()(
            from in proptest::option::of(vm()),
            to in proptest::option::of(target()),
            owes in any::<[bool; 2]>(),
            releases in any::<bool>(),
            is_voluntary in any::<bool>(),
            epoch in any::<i64>(),
        ) -> Move {
            let machines = [from.clone(), to.as_ref().map(|to| to.vm.clone())];
            let to_restore = machines.into_iter().zip(owes).filter(|(_, owes)| *owes);
            let to_restore = to_restore.filter_map(|(machine, _)| machine).collect();
            Move { from, to, to_restore, releases, is_voluntary, epoch: Epoch(epoch), written: Tick(7) }
        }
    }

    prop_compose! {
        fn creation()(
            tag in proptest::option::of(any::<u8>()),
            before in btree_set(address(), 0..4),
            epoch in any::<i64>(),
        ) -> Creation {
            // The entry of another process does not say whether that process has sent a request.
            let tag = tag.map(|number| format!("tag-{number}").into());
            let may_have_asked = true;
            Creation { tag, before, may_have_asked, epoch: Epoch(epoch), written: Tick(7) }
        }
    }

    fn state() -> impl Strategy<Value = AddressState> {
        prop_oneof![
            Just(AddressState::Attached),
            Just(AddressState::Moving),
            Just(AddressState::Unattached),
            Just(AddressState::Foreign),
            Just(AddressState::Conflict),
            Just(AddressState::Missing),
            Just(AddressState::Disabled),
            Just(AddressState::Unknown),
        ]
    }

    prop_compose! {
        fn memory()(
            state in state(),
            last_holder in proptest::option::of((vm(), proptest::option::of(any::<u8>()), proptest::option::of(any::<bool>()))),
            previous_holders in proptest::collection::vec(vm(), 0..4),
            ptr in proptest::option::of(any::<u8>()),
            lost_since in proptest::option::of(0_i64..4_000_000_000),
            created in proptest::option::of(any::<bool>()),
        ) -> Memory {
            Memory {
                state,
                last_holder: last_holder.map(|(vm, node, had_ephemeral)| Holder {
                    vm: vm.to_string(),
                    node_name: node.map(|number| format!("node-{number}")),
                    had_ephemeral,
                }),
                previous_holders,
                ptr_name: ptr.map(|number| format!("host-{number}.example.com.").into()),
                lost_since: lost_since.map(|second| Timestamp::from_second(second).unwrap()),
                created,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100_000, ..ProptestConfig::default() })]

        #[test]
        fn a_journal_is_read_as_it_was_written(
            entries in btree_map(address(), entry(), 0..4),
            creation in proptest::option::of(creation()),
            now in 0_i64..4_000_000_000,
        ) {
            let key = PoolKey { kind: "FloatingIPPool", namespace: "ns".into(), name: "pool".into() };
            let scope = Scope { provider: Provider::DigitalOcean, account: "".into() };
            let pool = Pool {
                journal: Journal::Known(entries),
                creation,
                ..Pool::new(key, scope, Vec::new())
            };
            let now = Timestamp::from_second(now).unwrap();
            let stored = moves(&pool, None, None, Epoch(1), now);
            let stored: Option<Moves> = stored.map(|moves| {
                serde_json::from_value(serde_json::to_value(moves).unwrap()).unwrap()
            });
            let (read, creation) = journal(None, stored.as_ref(), Tick(7));
            prop_assert_eq!(read, pool.journal);
            prop_assert_eq!(creation, pool.creation);
        }

        #[test]
        fn the_status_of_an_address_is_read_as_it_was_written(address in address(), memory in memory()) {
            let description = Description {
                node_name: None,
                reason: Reason::Settled,
                message: None,
                since: whole_seconds(Timestamp::UNIX_EPOCH),
            };
            let stored = encode_address(address, memory.clone(), description);
            let stored = serde_json::from_value(serde_json::to_value(stored).unwrap()).unwrap();
            prop_assert_eq!(decode_address(&stored), Some((address, memory)));
        }
    }
}
