//! Journal and status, both directions: what the controller remembers in objects, and how the next leader reads it.
//!
//! In: a status as it was read, or a pool as it stands. Out: the journal and the facts that a pool remembers, or the journal as a status
//! holds it. A field that is written here is read here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::status::{AddressState, AddressStatus, Holder, MOVES_VERSION, Move as Entry, Moves};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use plan::{Address, Creation, Epoch, Journal, Move, NodeName, PENDING, Pool, Target, Tick, Timestamp, VmId};

/// The annotation with which a person confirms that lost holders are really lost, up to the time that is its value.
pub const CONFIRM_LOSS_ANNOTATION: &str = "netinfra.darkbrains.com/confirm-loss";

/// The annotation with which a person says which addresses, separated by commas, were not created for an object.
pub const NOT_CREATED_ANNOTATION: &str = "netinfra.darkbrains.com/not-created";

/// An entry for addresses that are being created. Whoever wrote it may have asked the cloud since, unless that was us.
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

/// The `kind` of a journal entry for addresses that are being created.
pub const CREATE: &str = "Create";

/// The `kind` of a journal entry for an address that is given back to the cloud.
pub const RELEASE: &str = "Release";

/// The `step` of a journal entry whose holder was alive when the move began.
pub const VOLUNTARY: &str = "Voluntary";

/// The `step` of a journal entry whose holder was dead or gone, or that nobody held.
pub const URGENT: &str = "Urgent";

/// The machines that unfinished moves name.
pub(crate) fn machines_of(moves: Option<&Moves>) -> impl Iterator<Item = VmId> {
    let entries = moves.into_iter().flat_map(|moves| &moves.entries);
    entries.flat_map(|entry| [&entry.from, &entry.to]).flatten().map(|holder| VmId::from(holder.vm.as_str()))
}

/// Puts what an object's status remembers of its addresses into its pool.
pub(crate) fn remember(pool: &mut Pool, status: &[AddressStatus]) {
    for status in status {
        // Named one by one, so that a field that is written and not read here fails to compile. Those without a value only describe,
        // and `losses_of` reads the time of a loss.
        let AddressStatus {
            address,
            state,
            last_holder,
            previous_holders,
            ptr_name,
            created,
            node_name: _,
            reason: _,
            message: _,
            since: _,
            lost_since: _,
        } = status;
        let Ok(address) = address.parse::<Address>() else { continue };
        if *state == AddressState::Attached {
            pool.held.insert(address);
        }
        if let Some(Holder { vm, had_ephemeral, node_name: _ }) = last_holder {
            pool.last_holders.insert(address, VmId::from(vm.as_str()));
            if *had_ephemeral == Some(true) {
                pool.lent.insert(address);
            }
        }
        if !previous_holders.is_empty() {
            let holders = previous_holders.iter().map(|vm| VmId::from(vm.as_str()));
            pool.returned.insert(address, holders.collect());
        }
        pool.ptrs.extend(ptr_name.as_deref().map(|name| (address, Arc::from(name))));
        // Only a kind that creates addresses can have created one.
        if *created == Some(true) && pool.creates.is_some() {
            pool.created_here.insert(address);
        }
    }
}

/// When the holders of an object's addresses were lost, by its own status.
pub(crate) fn losses_of(status: &[AddressStatus]) -> impl Iterator<Item = (Address, Timestamp)> {
    let told = status.iter().filter(|_| !plan::sabotaged!(LossesForgotten));
    told.filter_map(|status| Some((status.address.parse().ok()?, status.lost_since.as_ref()?.0)))
}

/// Since when addresses are on their way, by the object's own journal. One that failed is still on its way.
pub(crate) fn moving_since(journal: &[Entry]) -> BTreeMap<Address, Timestamp> {
    let began = |entry: &Entry| Some((entry.address.as_ref()?.parse().ok()?, entry.started_at.as_ref()?.0));
    journal.iter().filter_map(began).collect()
}

/// The addresses of which a person has said that they were not created for an object.
pub(crate) fn disowned(object: &impl ResourceExt) -> BTreeSet<Address> {
    let texts = object.annotations().get(NOT_CREATED_ANNOTATION).map(String::as_str).unwrap_or_default();
    texts.split(',').filter_map(|text| text.trim().parse().ok()).collect()
}

/// The time up to which a person has confirmed losses.
pub(crate) fn losses_confirmed(object: &impl ResourceExt) -> Option<Timestamp> {
    object.annotations().get(CONFIRM_LOSS_ANNOTATION)?.parse().ok()
}

/// The journal that an object's status holds, given the pool as it is known. An entry that we knew keeps the moment at which it was
/// written.
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
        let had_own = |holder: &&Holder| holder.had_ephemeral == Some(true);
        let owed = [&entry.from, &entry.to].into_iter().flatten().filter(had_own);
        let owed = owed.map(|holder| VmId::from(holder.vm.as_str())).collect();
        let mut read = Move { from, to, owed, releases, is_voluntary, epoch, written: learnt };
        if let Some(before) = known.get(&address).filter(|before| before.written != PENDING) {
            let is_same = Move { written: before.written, ..read.clone() } == *before;
            read.written = if is_same { before.written } else { learnt };
        }
        journal.insert(address, read);
    }
    (Journal::Known(journal), creation)
}

/// A pool's journal as a status holds it, given the one that it holds now and the candidates of an ambiguous creation. One that can't be
/// read stays as it is.
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
            had_ephemeral: entry.owed.contains(vm).then_some(true),
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

/// The journal's entry for addresses that are being created.
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

/// The most candidates that an ambiguous creation names in the journal.
const CANDIDATES_MAX: usize = 50;

/// A time as a status holds it.
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
            let owed = machines.into_iter().zip(owes).filter(|(_, owes)| *owes);
            let owed = owed.filter_map(|(machine, _)| machine).collect();
            Move { from, to, owed, releases, is_voluntary, epoch: Epoch(epoch), written: Tick(7) }
        }
    }

    prop_compose! {
        fn creation()(
            tag in proptest::option::of(any::<u8>()),
            before in btree_set(address(), 0..4),
            epoch in any::<i64>(),
        ) -> Creation {
            // Whoever reads an entry of another process does not know whether that has asked.
            let tag = tag.map(|number| format!("tag-{number}").into());
            let may_have_asked = true;
            Creation { tag, before, may_have_asked, epoch: Epoch(epoch), written: Tick(7) }
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
    }
}
