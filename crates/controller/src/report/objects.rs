//! The status of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::floating_ip_pool::{IpState, IpStatus};
use api::status::{AddressState, AddressStatus, Holder, MOVES_VERSION, Move, Moves, RecordStatus, Summary};
use api::{FINALIZER, FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use plan::{
    Address, Astray, Creation, Holding, Journal, Lacking, Mode, Plan, Pool, PoolKey, Published, RecordName,
    Timestamp, Verdict, Waits,
};
use serde_json::{Value, json};

use super::conditions::{self, Standing};
use super::limits::{self, MESSAGE_MAX, PROPOSED_MAX, VALUES_MAX, cut};
use crate::observe::{CREATE, Index, Object, RELEASE, Refusal, URGENT, VOLUNTARY};

/// The most candidates that an ambiguous creation names in the journal.
const CANDIDATES_MAX: usize = 50;

/// The most nodes that each of FLIPOP's lists names. A cluster may have thousands, and the object must still fit.
const NODES_MAX: usize = 100;

/// The most steps that a status proposes.
const PROPOSED_COUNT_MAX: usize = 100;

/// The parts of a status that both kinds have.
struct Common {
    addresses: Vec<AddressStatus>,
    summary: Summary,
    conditions: Vec<Condition>,
    moves: Option<Moves>,
    proposed: Vec<String>,
}

/// What an object's status says now.
struct Present<'a> {
    addresses: &'a [AddressStatus],
    conditions: &'a [Condition],
    moves: Option<&'a Moves>,
    generation: Option<i64>,
}

/// The object with its new status, where that differs from the one it has. Nothing is said of an object that the plan has
/// not looked at.
pub(super) fn changed(index: &Index, plan: &Plan, key: &PoolKey, now: Timestamp) -> Option<Object> {
    let tracked = index.objects.get(key)?;
    let pool = index.world.pool(key)?;
    let verdicts = plan.verdicts.get(key)?;
    let (refusal, lacking, astray) = (tracked.refusal.as_ref(), plan.lacking.get(key), plan.astray.get(key));
    let record_refusal = tracked.record_refusal.as_ref();
    let published = plan.published.get(key).map(Vec::as_slice).unwrap_or_default();
    let losses = &plan.losses;
    let speaker =
        Speaker { index, pool, verdicts, lacking, astray, refusal, record_refusal, published, losses, now };
    let changed = match &tracked.object {
        Object::Allocation(object) => {
            speaker.allocation(object).map(|object| Object::Allocation(Arc::new(object)))
        }
        Object::Pool(object) => speaker.pool(object).map(|object| Object::Pool(Arc::new(object))),
        Object::Records(object) => speaker.records(object).map(|object| Object::Records(Arc::new(object))),
    };
    // A difference that no write can remove is not written again and again.
    let is_stored = |wanted: &Object| {
        wanted.keeps_journal_and_holders(&tracked.object)
            && tracked.dropped_fields.explain(&wanted.status(), &tracked.object.status())
    };
    changed.filter(|wanted| tracked.dropped_fields.is_empty() || !is_stored(wanted))
}

/// What an object's finalizers and spec need.
pub(super) struct Owed {
    /// The change.
    pub(super) patch: Value,
    /// Whether it comes after the status is written: a finalizer goes only once the journal is known to be empty.
    pub(super) is_last: bool,
}

/// The change that an object's finalizers and spec need, if any.
pub(super) fn owed(index: &Index, plan: &Plan, key: &PoolKey) -> Option<Owed> {
    let metadata = index.objects.get(key)?.object.metadata();
    let pool = index.world.pool(key)?;
    let listed = metadata.finalizers.as_deref().unwrap_or_default();
    let has_finalizer = listed.iter().any(|finalizer| finalizer == FINALIZER);
    let is_deleted = metadata.deletion_timestamp.is_some();
    let is_asking = index.world.in_flight.creations.contains_key(key);
    let needs_finalizer = match &pool.journal {
        // Whoever wrote it knows what it is there for.
        Journal::Unreadable => has_finalizer,
        Journal::Known(moves) => {
            let is_unfinished = !moves.is_empty() || pool.creation.is_some() || !pool.adopted.is_empty();
            let published = plan.published.get(key).map(Vec::as_slice).unwrap_or_default();
            let was_published = index.objects.get(key)?.object.dns().is_some_and(|dns| dns.owner.is_some());
            let is_published = published.iter().any(|(_, said)| !is_over(said, was_published));
            is_asking
                || needs_finalizer(pool, plan.verdicts.get(key)?, is_unfinished, is_deleted, is_published)
        }
    };
    // An object that is being deleted can't get one any more.
    let is_added = needs_finalizer && !has_finalizer && !is_deleted;
    let is_removed = has_finalizer && !needs_finalizer;
    let spec = index.spec_addresses(key);
    if !is_added && !is_removed && spec.is_none() {
        return None;
    }
    let is_last = is_removed && spec.is_none();
    let mut patch = json!({"metadata": {"resourceVersion": metadata.resource_version}});
    if is_added || is_removed {
        let others = listed.iter().map(String::as_str).filter(|finalizer| *finalizer != FINALIZER);
        let finalizers: Vec<&str> = others.chain(is_added.then_some(FINALIZER)).collect();
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    if let Some(spec) = spec {
        patch["spec"]["ips"] = json!(spec);
    }
    Some(Owed { patch, is_last })
}

/// Whether an object must not go yet, given whether something of it is unfinished and whether it is being deleted.
fn needs_finalizer(
    pool: &Pool,
    verdicts: &[(Address, Verdict)],
    is_unfinished: bool,
    is_deleted: bool,
    is_published: bool,
) -> bool {
    let is_let_go = |(_, said): &(Address, Verdict)| {
        matches!(
            said,
            Verdict::Leaving
                | Verdict::Disabled
                | Verdict::Unmarked
                | Verdict::Missing
                | Verdict::Unsupported(_)
                | Verdict::Foreign(_)
                | Verdict::OwnedBy(_)
        )
    };
    match pool.policy.mode {
        Mode::Active => is_unfinished || pool.policy.detaches_on_delete,
        Mode::Leaving => {
            let is_held = is_published || !verdicts.iter().all(is_let_go);
            is_unfinished || (pool.policy.detaches_on_delete && is_held)
        }
        Mode::Observe => is_unfinished,
        // What can't be acted on never finishes, and must not stay for ever once nobody wants it.
        Mode::Refused => is_unfinished && !is_deleted,
    }
}

/// Whether nothing is left to do with a set of records of an object that is being deleted. One that can't be read and was never
/// published holds up nothing.
fn is_over(said: &Published, was_published: bool) -> bool {
    match said {
        Published::Left
        | Published::Gone
        | Published::Conflict(_)
        | Published::NotOurs(_)
        | Published::OwnedByOther(_) => true,
        Published::Failed(_) | Published::Unread => !was_published,
        _ => false,
    }
}

struct Speaker<'a> {
    index: &'a Index,
    pool: &'a Pool,
    verdicts: &'a [(Address, Verdict)],
    lacking: Option<&'a Lacking>,
    astray: Option<&'a Astray>,
    refusal: Option<&'a Refusal>,
    record_refusal: Option<&'a Refusal>,
    published: &'a [(RecordName, Published)],
    losses: &'a BTreeMap<Address, Timestamp>,
    now: Timestamp,
}

impl Speaker<'_> {
    fn allocation(&self, object: &NetIPAllocation) -> Option<NetIPAllocation> {
        let mut status = object.status.clone().unwrap_or_default();
        let present = Present {
            addresses: &status.addresses,
            conditions: &status.conditions,
            moves: status.moves.as_ref(),
            generation: object.metadata.generation,
        };
        let common = self.common(&present);
        status.observed_generation = object.metadata.generation;
        status.addresses = common.addresses;
        status.summary = Some(common.summary);
        status.conditions = common.conditions;
        status.moves = common.moves;
        status.proposed = common.proposed;
        let is_new = object.status.as_ref() != Some(&status) || plan::sabotaged!(StatusWrittenAnyway);
        is_new.then(|| NetIPAllocation { status: Some(status), ..object.clone() })
    }

    fn pool(&self, object: &FloatingIPPool) -> Option<FloatingIPPool> {
        let mut status = object.status.clone().unwrap_or_default();
        let present = Present {
            addresses: &status.addresses,
            conditions: &status.conditions,
            moves: status.moves.as_ref(),
            generation: object.metadata.generation,
        };
        let common = self.common(&present);
        status.observed_generation = object.metadata.generation;
        status.summary = Some(common.summary);
        status.conditions = common.conditions;
        status.moves = common.moves;
        status.proposed = common.proposed;
        status.addresses = common.addresses;
        // The cool-off is at least as long as asked for, so its beginning is not rounded down.
        let last = self.pool.last_assignment;
        status.last_assignment =
            last.map(|time| whole_seconds(plan::later(time, Duration::from_nanos(999_999_999))));
        if self.pool.is_tag_used {
            status.creation_tag = self.pool.creates.as_deref().map(Into::into);
        }
        status.dns = self.dns(status.dns.as_ref());
        let has_none = self.verdicts.is_empty() && self.lacking.is_none();
        let nothing = has_none.then(|| "neither ips nor desiredIPs asks for an address".to_owned());
        status.error = self.refusal.map(|refusal| cut(&refusal.message, MESSAGE_MAX)).or(nothing);
        (status.assignable_nodes, status.node_errors) = (Vec::new(), Vec::new());
        if self.refusal.is_none() {
            let (key, world) = (&self.pool.key, &self.index.world);
            let names = |nodes: Vec<&plan::NodeName>| nodes.into_iter().map(ToString::to_string).collect();
            status.assignable_nodes = names(world.assignable(key, NODES_MAX));
            status.node_errors = names(world.refusing(key, NODES_MAX));
            status.ips = self
                .verdicts
                .iter()
                .map(|(address, said)| (address.to_string(), self.as_flipop(said)))
                .collect();
        }
        let is_new = object.status.as_ref() != Some(&status);
        is_new.then(|| FloatingIPPool { status: Some(status), ..object.clone() })
    }

    fn records(&self, object: &NodeDNSRecordSet) -> Option<NodeDNSRecordSet> {
        let mut status = object.status.clone().unwrap_or_default();
        let (standing, reason, message) = match (self.refusal, self.worst_record()) {
            (Some(refusal), _) => (Standing::Stalled, refusal.reason, refusal.message.clone()),
            (None, Some(worst)) => worst,
            (None, None) => (Standing::Reconciling, "Unknown", "nothing is known of its name yet".to_owned()),
        };
        status.state = Some(match standing {
            Standing::Ready => "active".into(),
            Standing::Reconciling if reason != "RecordFailed" => "in-progress".into(),
            Standing::Reconciling | Standing::Stalled => "error".into(),
        });
        status.error = (status.state.as_deref() == Some("error")).then(|| cut(&message, MESSAGE_MAX));
        status.observed_generation = object.metadata.generation;
        status.dns = self.dns(status.dns.as_ref());
        status.conditions = conditions::conditions(
            &status.conditions,
            standing,
            reason,
            &message,
            object.metadata.generation,
            &whole_seconds(self.now),
        );
        let is_new = object.status.as_ref() != Some(&status);
        is_new.then(|| NodeDNSRecordSet { status: Some(status), ..object.clone() })
    }

    /// What is known of the object's name in DNS. What is not known now is as it was.
    fn dns(&self, present: Option<&RecordStatus>) -> Option<RecordStatus> {
        let publication = self.pool.publication.as_ref()?;
        let present = present.filter(|present| *present.name == *publication.name);
        let mut values = Vec::new();
        for (name, said) in self.published {
            // What it holds is another object's.
            if matches!(said, Published::Conflict(_)) {
                continue;
            }
            let Some(fact) = self.index.world.records.get(name) else { return present.cloned() };
            let is_ours = fact.set.owner.is_some() && fact.set.owner == self.index.world.dns_owner;
            values.extend(fact.set.values.iter().filter(|_| is_ours).map(ToString::to_string));
        }
        values.truncate(VALUES_MAX);
        let same = present.filter(|present| present.values == values);
        let published_at = same.map_or_else(
            || (!values.is_empty()).then(|| whole_seconds(self.now)),
            |same| same.published_at.clone(),
        );
        let owner = self.index.world.dns_owner.as_ref().filter(|_| !values.is_empty());
        Some(RecordStatus {
            name: publication.name.to_string(),
            owner: owner.map(ToString::to_string),
            values,
            published_at,
        })
    }

    /// How the object's name stands where it stands worst, the word for it, and a sentence.
    fn worst_record(&self) -> Option<(Standing, &'static str, String)> {
        if let Some(refusal) = self.record_refusal {
            return Some((Standing::Stalled, refusal.reason, refusal.message.clone()));
        }
        let told = self.published.iter().map(|(name, said)| {
            let (standing, reason) = of_record(said);
            (standing, reason, format!("{name} {said}"))
        });
        told.max_by_key(|(standing, ..)| *standing)
    }

    fn common(&self, present: &Present<'_>) -> Common {
        let remembered: BTreeMap<&str, &AddressStatus> =
            present.addresses.iter().map(|status| (status.address.as_str(), status)).collect();
        let mut addresses: Vec<_> = self
            .verdicts
            .iter()
            .map(|(address, said)| {
                self.address(*address, said, remembered.get(address.to_string().as_str()).copied())
            })
            .collect();
        let attached = addresses.iter().filter(|status| status.state == AddressState::Attached).count();
        let desired = addresses.iter().filter(|status| status.state != AddressState::Disabled).count();
        self.leave_out(&mut addresses);
        let worst = self.verdicts.iter().map(|(address, said)| (standing(said), address, said));
        let worst = worst.max_by_key(|(standing, ..)| *standing);
        let desired = desired + self.lacking_count();
        let lacks = self.lacking.map(|lacking| (of_lacking(lacking), lacking));
        let worst_standing = worst.as_ref().map_or(Standing::Ready, |(standing, ..)| *standing);
        let lacks_standing = lacks.as_ref().map_or(Standing::Ready, |((standing, _), _)| *standing);
        let is_worse = |record: &(Standing, &str, String)| record.0 > worst_standing.max(lacks_standing);
        let (standing, reason, message) = match (self.refusal, worst) {
            (Some(refusal), _) => (Standing::Stalled, refusal.reason, refusal.message.clone()),
            _ if lacks.as_ref().is_some_and(|((standing, _), _)| *standing >= worst_standing) => {
                let (standing, reason) = lacks.map_or((Standing::Ready, ""), |(told, _)| told);
                (standing, reason, self.lacking.map(ToString::to_string).unwrap_or_default())
            }
            (None, Some((standing @ (Standing::Reconciling | Standing::Stalled), address, said))) => {
                (standing, reason(said), format!("{address} {said}"))
            }
            _ => (Standing::Ready, "Settled", format!("{attached} of {desired} addresses are on nodes")),
        };
        let of_worst = self.worst_record().filter(|_| self.refusal.is_none());
        let (standing, reason, message) =
            of_worst.clone().filter(is_worse).unwrap_or((standing, reason, message));
        let without = self.index.without.get(&self.pool.scope).map(|permission| {
            format!("permission {permission} is missing, so every machine is asked for its address")
        });
        let unsupported = self.index.unsupported(&self.pool.key).filter(|_| self.refusal.is_none());
        let unsupported = unsupported.map(|(node, why)| format!("node {node} can't get an address: {why}"));
        let is_told = reason == of_worst.as_ref().map_or("", |(_, reason, _)| reason);
        let name = of_worst.filter(|(standing, ..)| *standing != Standing::Ready && !is_told);
        let besides = self.astray.map(ToString::to_string).into_iter().chain(without).chain(unsupported);
        let besides = besides.chain(name.map(|(.., message)| message));
        let message = besides.fold(message, |message, besides| format!("{message}; {besides}"));
        let would = |(_, said): &(Address, Verdict)| match said {
            Verdict::WouldStep(step) => Some(step.clone()),
            _ => None,
        };
        let would_create = match self.lacking {
            Some(lacking @ Lacking::WouldCreate(_)) => Some(lacking.to_string()),
            _ => None,
        };
        let would_publish = |(name, said): &(RecordName, Published)| match said {
            Published::Would(values) => {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                Some(format!("publish {name}: {}", values.join(", ")))
            }
            _ => None,
        };
        Common {
            summary: Summary { desired: count(desired), attached: count(attached) },
            conditions: conditions::conditions(
                present.conditions,
                standing,
                reason,
                &message,
                present.generation,
                &whole_seconds(self.now),
            ),
            moves: self.moves(present.moves),
            proposed: self
                .verdicts
                .iter()
                .filter_map(would)
                .chain(would_create)
                .take(99)
                .chain(self.published.iter().filter_map(would_publish))
                .take(PROPOSED_COUNT_MAX)
                .map(|step| cut(&step, PROPOSED_MAX))
                .collect(),
            addresses,
        }
    }

    /// Leaves out addresses beyond what a status may list: those of which nothing has to be remembered. The planner begins
    /// nothing with them.
    fn leave_out(&self, addresses: &mut Vec<AddressStatus>) {
        let mut spare = addresses.len().saturating_sub(plan::ADDRESSES_MAX);
        let mut keep: Vec<_> = addresses.iter().map(|_| true).collect();
        for (status, keep) in addresses.iter().zip(&mut keep).rev() {
            let is_remembered = status.address.parse().is_ok_and(|address| self.pool.is_remembered(address));
            if spare > 0 && !is_remembered {
                (*keep, spare) = (false, spare - 1);
            }
        }
        let mut keep = keep.into_iter();
        addresses.retain(|_| keep.next().unwrap_or(true));
    }

    /// The journal, as it shall stand. One that can't be read stays as it is.
    fn moves(&self, present: Option<&Moves>) -> Option<Moves> {
        let Journal::Known(journal) = &self.pool.journal else { return present.cloned() };
        if journal.is_empty() && self.pool.creation.is_none() {
            return None;
        }
        let known: BTreeMap<&str, &Move> =
            present.iter().flat_map(|moves| &moves.entries).map(|entry| (entry.id.as_str(), entry)).collect();
        let entry = |(address, entry): (&Address, &plan::Move)| {
            let id = format!("{address}-{}", entry.epoch.0);
            let started_at = known.get(id.as_str()).and_then(|known| known.started_at.clone());
            let holder = |vm: &plan::VmId, node: Option<&plan::NodeName>| Holder {
                vm: vm.to_string(),
                node_name: node.map(ToString::to_string),
                had_ephemeral: entry.owed.contains(vm).then_some(true),
            };
            Move {
                kind: entry.releases.then(|| RELEASE.into()),
                address: Some(address.to_string()),
                from: entry.from.as_ref().map(|vm| holder(vm, None)),
                to: entry.to.as_ref().map(|to| holder(&to.vm, Some(&to.node))),
                step: if entry.is_voluntary { VOLUNTARY } else { URGENT }.into(),
                token: None,
                before: Vec::new(),
                candidates: Vec::new(),
                epoch: entry.epoch.0,
                started_at: started_at.or_else(|| Some(whole_seconds(self.now))),
                id,
            }
        };
        let started_at = |id: &str| known.get(id).and_then(|known| known.started_at.clone());
        let entries = journal.iter().map(entry).chain(self.pool.creation.as_ref().map(|entry| {
            self.creation(entry, |id| started_at(id).or_else(|| Some(whole_seconds(self.now))))
        }));
        let mut entries: Vec<_> = entries.collect();
        if plan::sabotaged!(JournalCut) {
            entries.truncate(1);
        }
        Some(Moves { version: MOVES_VERSION, epoch: self.index.world.epoch.0, entries })
    }

    /// The journal's entry for addresses that are being created.
    fn creation(&self, entry: &Creation, started_at: impl Fn(&str) -> Option<Time>) -> Move {
        let texts = |addresses: &BTreeSet<Address>, most: usize| {
            addresses.iter().take(most).map(ToString::to_string).collect()
        };
        let id = format!("create-{}", entry.epoch.0);
        Move {
            kind: Some(CREATE.into()),
            address: None,
            from: None,
            to: None,
            step: VOLUNTARY.into(),
            token: entry.tag.as_deref().map(Into::into),
            before: texts(&entry.before, usize::MAX),
            candidates: match self.lacking {
                Some(Lacking::Ambiguous(candidates)) => texts(candidates, CANDIDATES_MAX),
                _ => Vec::new(),
            },
            epoch: entry.epoch.0,
            started_at: started_at(&id),
            id,
        }
    }

    fn address_message_max(&self) -> usize {
        limits::address_message_max(self.verdicts.len())
    }

    /// How many addresses there should be beside those that are listed.
    fn lacking_count(&self) -> usize {
        self.lacking.map_or(0, |_| self.pool.desired.saturating_sub(self.pool.addresses.len()))
    }

    fn address(&self, address: Address, said: &Verdict, present: Option<&AddressStatus>) -> AddressStatus {
        // Whoever holds the address now and backs a node is a machine of ours, and is remembered as such.
        let holder = self.index.world.fact(&self.pool.scope, address).and_then(|fact| match &fact.holding {
            Holding::By(vm) => self.index.world.node_of(vm).map(|(name, _)| Holder {
                vm: vm.to_string(),
                node_name: Some(name.to_string()),
                had_ephemeral: self.had_own(address, vm).then_some(true),
            }),
            _ => None,
        });
        let state = state(said);
        let since =
            present.filter(|present| present.state == state).and_then(|present| present.since.clone());
        let is_attached = state == AddressState::Attached;
        let node_name = holder.as_ref().filter(|_| is_attached).and_then(|holder| holder.node_name.clone());
        let is_settled = matches!(said, Verdict::Settled(_));
        AddressStatus {
            address: address.to_string(),
            state,
            node_name,
            last_holder: holder.or_else(|| self.remembered(address, present)),
            previous_holders: self.returned(address),
            ptr_name: self.pool.ptrs.get(&address).map(ToString::to_string),
            reason: Some(reason(said).to_owned()),
            message: (!is_settled && state != AddressState::Moving)
                .then(|| cut(&said.to_string(), self.address_message_max())),
            since: since.or_else(|| Some(whole_seconds(self.now))),
            lost_since: self.lost_since(address, said).map(whole_seconds),
            created: present
                .and_then(|present| present.created)
                .or_else(|| self.is_created(address).then_some(true)),
        }
    }

    /// Since when the holder of an address is lost. Only the owner of the address says so.
    fn lost_since(&self, address: Address, said: &Verdict) -> Option<Timestamp> {
        let is_other = matches!(said, Verdict::OwnedBy(_));
        self.losses.get(&address).copied().filter(|_| !is_other)
    }

    /// Whether the machine that holds an address had one of its own before.
    fn had_own(&self, address: Address, vm: &plan::VmId) -> bool {
        let is_remembered = self.pool.last_holders.get(&address) == Some(vm);
        let is_journalled = self.pool.entry(address).is_some_and(|entry| entry.owed.contains(vm));
        is_journalled || (is_remembered && self.pool.lent.contains(&address))
    }

    /// The machines that an address has left and that have one of their own again, where the next leader may not be shown that.
    fn returned(&self, address: Address) -> Vec<String> {
        let may_be_late = self.index.world.late_until.contains_key(&self.pool.scope.provider);
        let returned = self.pool.returned.get(&address).filter(|_| may_be_late);
        returned.into_iter().flatten().map(ToString::to_string).collect()
    }

    /// Whether the object created an address itself: it carries the object's tag, or came from a request for it.
    fn is_created(&self, address: Address) -> bool {
        let fact = self.index.world.fact(&self.pool.scope, address);
        let tag = fact.and_then(|fact| fact.tag.as_ref());
        (tag.is_some() && tag == self.pool.creates.as_ref()) || self.pool.created_here.contains(&address)
    }

    /// The machine of ours that last held an address, as far as it is known without asking.
    fn remembered(&self, address: Address, present: Option<&AddressStatus>) -> Option<Holder> {
        let known = present.and_then(|present| present.last_holder.clone());
        match self.pool.last_holders.get(&address) {
            Some(vm) if known.as_ref().is_none_or(|known| known.vm != vm.as_str()) => {
                let had_ephemeral = self.pool.lent.contains(&address).then_some(true);
                Some(Holder { vm: vm.to_string(), node_name: None, had_ephemeral })
            }
            _ => known,
        }
    }

    fn as_flipop(&self, said: &Verdict) -> IpStatus {
        let provider_id =
            |node: &plan::NodeName| self.index.nodes.get(node).and_then(|node| node.spec.provider_id.clone());
        let (state, node, error) = match said {
            Verdict::Settled(node) => (IpState::Active, Some(node), None),
            Verdict::Lingers(..) => (IpState::NoMatch, None, None),
            Verdict::Moving(node) => (IpState::InProgress, node.as_ref(), None),
            Verdict::Queued(node) => (IpState::InProgress, Some(node), None),
            Verdict::NoNode => (IpState::Unassigned, None, None),
            Verdict::OtherRegion(..) => {
                (IpState::Unassigned, None, Some(cut(&said.to_string(), self.address_message_max())))
            }
            Verdict::Disabled | Verdict::Releasing | Verdict::Unmarked | Verdict::Leaving => {
                (IpState::Disabled, None, None)
            }
            other => (IpState::Error, None, Some(cut(&other.to_string(), self.address_message_max()))),
        };
        IpStatus {
            state,
            node_name: node.map(ToString::to_string),
            // While everything moves, the object must still fit.
            provider_id: node.filter(|_| state != IpState::InProgress).and_then(provider_id),
            error,
        }
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A time as precise as Kubernetes keeps it.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn state(said: &Verdict) -> AddressState {
    match said {
        Verdict::Settled(_) | Verdict::Lingers(..) | Verdict::Queued(_) => AddressState::Attached,
        Verdict::Moving(_) => AddressState::Moving,
        Verdict::NoNode | Verdict::OtherRegion(..) => AddressState::Unattached,
        Verdict::Foreign(_) => AddressState::Foreign,
        Verdict::OwnedBy(_) => AddressState::Conflict,
        Verdict::Missing => AddressState::Missing,
        Verdict::Disabled | Verdict::Releasing | Verdict::Unmarked => AddressState::Disabled,
        Verdict::Leaving => AddressState::Unattached,
        Verdict::Unknown(_) | Verdict::Unsupported(_) | Verdict::Waits(_) | Verdict::WouldStep(_) => {
            AddressState::Unknown
        }
    }
}

fn reason(said: &Verdict) -> &'static str {
    match said {
        Verdict::Settled(_) => "Settled",
        Verdict::Lingers(..) => "NoMatch",
        Verdict::Moving(_) => "Moving",
        Verdict::Queued(_) => "Queued",
        Verdict::NoNode => "NoNode",
        Verdict::OtherRegion(..) => "OtherRegion",
        Verdict::Unsupported(_) => "UnsupportedAddress",
        Verdict::Foreign(_) => "Foreign",
        Verdict::OwnedBy(_) => "Conflict",
        Verdict::Missing => "Missing",
        Verdict::Disabled => "Disabled",
        Verdict::Releasing => "Releasing",
        Verdict::Unmarked => "NotReleased",
        Verdict::Leaving => "Deleted",
        Verdict::Unknown(_) => "Unknown",
        Verdict::WouldStep(_) => "Observing",
        Verdict::Waits(waits) => match waits {
            Waits::ForBudget => "MaxConcurrentMoves",
            Waits::ForHealthy => "MinHealthy",
            Waits::ForCoolOff(_) => "CoolOff",
            Waits::ForConfirmation(_) => "HoldersLost",
            Waits::ForNewerController => "NewerJournal",
            Waits::ForCorrection => "Refused",
            Waits::ForRetry(_) => "Failed",
            Waits::ForRoom => "JournalFull",
        },
    }
}

/// How a pool that lacks addresses stands, and the word for it.
fn of_lacking(lacking: &Lacking) -> (Standing, &'static str) {
    match lacking {
        Lacking::Creating(_) => (Standing::Reconciling, "Creating"),
        Lacking::WouldCreate(_) => (Standing::Reconciling, "Observing"),
        Lacking::Unread => (Standing::Reconciling, "Unknown"),
        Lacking::Failed(_) => (Standing::Reconciling, "Failed"),
        Lacking::Ambiguous(_) => (Standing::Stalled, "AmbiguousCreation"),
        Lacking::Unlisted(_) => (Standing::Stalled, "UnlistedAddresses"),
        Lacking::TooMany(_) => (Standing::Stalled, "NoTags"),
        Lacking::TagsHidden => (Standing::Stalled, "NoTags"),
        Lacking::NoRegion => (Standing::Stalled, "NoRegion"),
        Lacking::Full(_) => (Standing::Stalled, "CreatedAddressesMax"),
    }
}

/// How a name in DNS stands, and the word for it.
fn of_record(said: &Published) -> (Standing, &'static str) {
    match said {
        Published::Yes(_) | Published::Left | Published::Gone => (Standing::Ready, "Published"),
        Published::Publishing => (Standing::Reconciling, "Publishing"),
        Published::Unread => (Standing::Reconciling, "Unknown"),
        Published::Failed(_) => (Standing::Reconciling, "RecordFailed"),
        Published::Conflict(_) => (Standing::Stalled, "RecordConflict"),
        Published::NotOurs(_) => (Standing::Stalled, "RecordNotOurs"),
        Published::OwnedByOther(_) => (Standing::Stalled, "RecordOwnedByOther"),
        Published::LastKept(_) => (Standing::Reconciling, "LastAddressesKept"),
        Published::Nothing => (Standing::Reconciling, "NothingToPublish"),
        Published::Would(_) => (Standing::Reconciling, "Observing"),
    }
}

fn standing(said: &Verdict) -> Standing {
    match said {
        Verdict::Settled(_) | Verdict::Disabled | Verdict::Leaving => Standing::Ready,
        Verdict::Foreign(_)
        | Verdict::OwnedBy(_)
        | Verdict::Unsupported(_)
        | Verdict::Missing
        | Verdict::Unmarked
        | Verdict::Waits(Waits::ForConfirmation(_) | Waits::ForNewerController | Waits::ForCorrection) => {
            Standing::Stalled
        }
        _ => Standing::Reconciling,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::floating_ip_pool;
    use crate::watch::{Change, Seen};
    use api::floating_ip_pool::FloatingIPPoolStatus;
    use drivers::{DriverError, Listed, Listing};
    use plan::{NodeName, Provider, RecordFact, RecordSet, Scope};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn key() -> PoolKey {
        PoolKey { kind: floating_ip_pool::KIND, namespace: "web".into(), name: "pool".into() }
    }

    fn scope() -> Scope {
        Scope { provider: Provider::DigitalOcean, account: "".into() }
    }

    /// So many Ready nodes, and a pool of which this is known beside its provider.
    fn index(nodes: usize, mut spec: Value) -> Index {
        let mut index = Index::default();
        let node = |number| {
            let ready = json!({"type": "Ready", "status": "True"});
            let node = json!({
                "metadata": {"name": format!("n{number}")},
                "spec": {"providerID": format!("digitalocean://{number}")}, "status": {"conditions": [ready]},
            });
            serde_json::from_value(node).unwrap()
        };
        index.see(Seen::Nodes(Change::All((1..=nodes).map(node).collect())));
        spec["provider"] = "digitalocean".into();
        let metadata = json!({"name": "pool", "namespace": "web", "uid": "1", "resourceVersion": "1"});
        let pool = json!({"metadata": metadata, "spec": spec});
        index.see(Seen::Pools(Change::All(vec![serde_json::from_value(pool).unwrap()])));
        index
    }

    /// The cloud tells who holds which address.
    fn listed(index: &mut Index, holders: &[(&str, Holding)]) {
        let listed = |holding: &Holding| Listed { holding: holding.clone(), region: None, tag: None };
        let addresses =
            holders.iter().map(|(address, holding)| (address.parse().unwrap(), listed(holding))).collect();
        let as_of = index.tick();
        index.see_listing(&scope(), Ok(Listing { addresses, ..Listing::default() }), as_of);
    }

    /// What is to be written of the pool, if anything.
    fn written(index: &Index) -> Option<FloatingIPPool> {
        let plan = plan::plan(&index.world, NOW);
        match changed(index, &plan, &key(), NOW)? {
            Object::Pool(object) => Some((*object).clone()),
            Object::Allocation(_) | Object::Records(_) => None,
        }
    }

    fn status(index: &Index) -> FloatingIPPoolStatus {
        written(index).unwrap().status.unwrap()
    }

    /// The apiserver has taken what was written.
    fn accept(index: &mut Index, mut object: FloatingIPPool) {
        let version: u64 = object.metadata.resource_version.unwrap_or_default().parse().unwrap_or(0);
        object.metadata.resource_version = Some((version + 1).to_string());
        index.see(Seen::Pools(Change::Applied(Box::new(object.into()))));
    }

    /// Each address with its state and, where there are any, the node, its providerID, and whether there is an error.
    fn ips(index: &Index) -> Vec<String> {
        let words = |(ip, said): (&String, &IpStatus)| {
            let error = said.error.as_ref().map(|_| "error".to_owned());
            let words =
                [Some(said.state.name().to_owned()), said.node_name.clone(), said.provider_id.clone(), error];
            format!("{ip} {}", words.into_iter().flatten().collect::<Vec<_>>().join(" "))
        };
        status(index).ips.iter().map(words).collect()
    }

    #[test]
    fn f11_each_address_has_one_of_flipops_states() {
        let three = json!(["203.0.113.1", "203.0.113.2", "203.0.113.3"]);
        let mut desired_two = index(2, json!({"ips": three, "desiredIPs": 2}));
        let free = Holding::Free;
        let one = Holding::By("1".into());
        listed(
            &mut desired_two,
            &[("203.0.113.1", one.clone()), ("203.0.113.2", free.clone()), ("203.0.113.3", free.clone())],
        );
        assert_eq!(
            ips(&desired_two),
            ["203.0.113.1 active n1 digitalocean://1", "203.0.113.2 in-progress n2", "203.0.113.3 disabled"]
        );
        let two = json!(["203.0.113.1", "203.0.113.2"]);
        let mut without_pods = index(2, json!({"ips": two, "match": {"podLabel": "app=web"}}));
        listed(&mut without_pods, &[("203.0.113.1", one), ("203.0.113.2", free)]);
        assert_eq!(ips(&without_pods), ["203.0.113.1 no-match", "203.0.113.2 unassigned"]);
        let as_of = without_pods.tick();
        let silence = DriverError::Unavailable("no answer".into());
        without_pods.see_listing(&scope(), Err(silence), as_of);
        assert_eq!(ips(&without_pods), ["203.0.113.1 error error", "203.0.113.2 error error"]);
    }

    #[test]
    fn f11_nodes_that_could_get_an_address_and_those_that_refused_one_are_named_and_then_nothing_is_written()
    {
        let mut index = index(4, json!({"ips": ["203.0.113.1"]}));
        listed(&mut index, &[("203.0.113.1", Holding::By("2".into()))]);
        index.world.avoid_machines.insert("3".into(), NOW + Duration::from_secs(60));
        let object = written(&index).unwrap();
        let said = object.status.clone().unwrap();
        assert_eq!(said.assignable_nodes, ["n1", "n4"]);
        assert_eq!(said.node_errors, ["n3"]);
        accept(&mut index, object);
        assert_eq!(written(&index), None, "a settled world costs no write");

        let as_of = index.tick();
        index.see_listing(&scope(), Err(DriverError::Unavailable("no answer".into())), as_of);
        assert_eq!(status(&index).assignable_nodes, ["n1", "n4"], "who held an address may still hold it");

        index.world.avoid_machines.clear();
        index.world.remove_node(&NodeName::from("n4"));
        assert_eq!(status(&index).assignable_nodes, ["n1", "n3"]);
        assert_eq!(status(&index).node_errors, Vec::<String>::new());
    }

    #[test]
    fn the_last_time_of_the_calendar_can_be_in_a_status() {
        let mut index = index(1, json!({"ips": ["203.0.113.1"], "assignmentCoolOffSeconds": 1e308}));
        listed(&mut index, &[("203.0.113.1", Holding::Free)]);
        let mut object = written(&index).unwrap();
        let last = serde_json::from_value(json!("9999-12-30T22:00:00.5Z")).unwrap();
        object.status.get_or_insert_default().last_assignment = Some(last);
        accept(&mut index, object);
        assert_eq!(status(&index).last_assignment.unwrap().0.as_second(), Timestamp::MAX.as_second());
    }

    #[test]
    fn f11_of_many_nodes_the_first_by_name_are_named() {
        let mut index = index(NODES_MAX + 50, json!({"ips": ["203.0.113.1"]}));
        listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
        let mut names: Vec<_> = (2..=NODES_MAX + 50).map(|number| format!("n{number}")).collect();
        names.sort();
        assert_eq!(status(&index).assignable_nodes, names[..NODES_MAX]);
    }

    #[test]
    fn the_values_of_a_name_that_another_object_has_are_not_told_as_its_own() {
        let dns = json!({"provider": "digitalocean", "zone": "example.com", "recordName": "hello"});
        let mut index = index(1, json!({"ips": ["203.0.113.1"], "dnsRecordSet": dns}));
        index.world.dns_owner = Some("us".into());
        listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
        let name = plan::plan(&index.world, NOW).published[&key()][0].0.clone();
        let values = ["203.0.113.1".parse().unwrap()].into();
        let set = RecordSet { values, ttl: Some(30), owner: Some("us".into()) };
        index.world.records.insert(name, RecordFact { set, as_of: NOW });
        assert_eq!(status(&index).dns.unwrap().values, ["203.0.113.1"]);

        let metadata = json!({"name": "a", "namespace": "web", "uid": "0", "resourceVersion": "1"});
        let spec = json!({"provider": "digitalocean", "ips": ["203.0.113.2"], "dnsRecordSet": dns});
        let other = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        index.see(Seen::Pools(Change::Applied(Box::new(other))));
        assert_eq!(status(&index).dns.unwrap().values, Vec::<String>::new());
    }

    #[test]
    fn the_time_of_a_loss_is_written_once_and_read_by_the_next_leader() {
        let mut index = index(1, json!({"ips": ["203.0.113.1"]}));
        listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
        let object = written(&index).unwrap();
        accept(&mut index, object);
        index.see(Seen::Nodes(Change::All(Vec::new())));
        let lost_at = NOW + Duration::from_millis(700);
        index.world.losses = plan::plan(&index.world, lost_at).losses;
        let object = written(&index).unwrap();
        assert_eq!(object.status.as_ref().unwrap().addresses[0].lost_since, Some(Time(NOW)));
        accept(&mut index, object);
        assert_eq!(written(&index), None, "nothing has changed, so nothing is written");
        let kept = index.world.losses.clone();
        assert_eq!(index.remembered_losses(), kept);

        // What an older version writes does not have it, so the next leader counts from its own time.
        let Object::Pool(pool) = &index.objects[&key()].object else { panic!("it is a pool") };
        let mut erased = (**pool).clone();
        erased.status.as_mut().unwrap().addresses[0].lost_since = None;
        accept(&mut index, erased);
        assert_eq!(index.remembered_losses(), BTreeMap::new());
    }

    #[test]
    fn f11_a_pool_that_is_refused_says_why_and_names_no_nodes() {
        let mut index = index(1, json!({"ips": ["203.0.113.1"], "match": {"nodeLabel": "a in b"}}));
        listed(&mut index, &[("203.0.113.1", Holding::Free)]);
        let said = status(&index);
        assert!(said.error.unwrap().contains("a in b"));
        assert_eq!(said.assignable_nodes, Vec::<String>::new());
    }

    /// What etcd takes, less what the object's metadata and managed fields need.
    const STATUS_BYTES_MAX: usize = 1_400_000;

    fn bytes(status: &FloatingIPPoolStatus) -> usize {
        serde_json::to_string(status).unwrap().len()
    }

    #[test]
    fn a_thousand_long_failures_fit_into_a_status() {
        let ips: Vec<_> = (0..1_000).map(|at| format!("203.0.{}.{}", at / 250, at % 250)).collect();
        let mut index = index(1, json!({"ips": ips}));
        let why: Arc<str> = "the cloud said no ".repeat(40).into();
        let until = NOW + Duration::from_secs(60);
        for ip in &ips {
            listed(&mut index, &[(ip, Holding::Free)]);
        }
        let holders: Vec<_> = ips.iter().map(|ip| (ip.as_str(), Holding::Free)).collect();
        listed(&mut index, &holders);
        for ip in &ips {
            let pause = plan::Pause { until, why: Arc::clone(&why) };
            index.world.avoid_addresses.insert(ip.parse().unwrap(), pause);
        }
        let said = status(&index);
        assert_eq!((said.addresses.len(), said.ips.len()), (1_000, 1_000));
        assert!(bytes(&said) < STATUS_BYTES_MAX, "{}", bytes(&said));
        let message = said.addresses[0].message.as_ref().unwrap();
        assert!(
            message.starts_with("waits: the last try failed") && message.ends_with("more characters"),
            "{message}"
        );
    }

    #[test]
    fn a_huge_selector_fits_into_a_status() {
        let index =
            index(1, json!({"ips": ["203.0.113.1"], "match": {"nodeLabel": "a in b ".repeat(30_000)}}));
        let said = status(&index);
        assert!(said.error.as_ref().unwrap().contains("more characters"));
        assert!(bytes(&said) < 50_000, "{}", bytes(&said));
    }

    #[test]
    fn a_name_with_too_many_values_names_the_first() {
        let dns = json!({"provider": "digitalocean", "zone": "example.com", "recordName": "hello"});
        let mut index = index(1, json!({"ips": ["203.0.113.1"], "dnsRecordSet": dns}));
        index.world.dns_owner = Some("us".into());
        listed(&mut index, &[("203.0.113.1", Holding::By("1".into()))]);
        let name = plan::plan(&index.world, NOW).published[&key()][0].0.clone();
        let values = (0..2_000).map(|at: u32| Address(std::net::Ipv4Addr::from(at).into())).collect();
        let set = RecordSet { values, ttl: Some(30), owner: Some("us".into()) };
        index.world.records.insert(name, RecordFact { set, as_of: NOW });
        let object = written(&index).unwrap();
        assert_eq!(object.status.as_ref().unwrap().dns.as_ref().unwrap().values.len(), VALUES_MAX);
        accept(&mut index, object);
        let again = written(&index).and_then(|object| object.status);
        assert!(again.is_none_or(|status| status.dns.unwrap().values.len() == VALUES_MAX));
    }

    #[test]
    fn a_swap_in_a_full_pool_fits_and_the_journal_is_whole() {
        let ip = |at: usize| format!("203.0.{}.{}", at / 250, at % 250);
        let holder = |at: usize| json!({"vm": at.to_string(), "nodeName": "n"});
        let entry = |at: usize| {
            json!({
                "id": ip(at), "address": ip(at), "step": "Urgent", "epoch": 1, "to": holder(at),
            })
        };
        let of_status = |at: usize| json!({"address": ip(at), "state": "Attached", "lastHolder": holder(at)});
        let moving: Vec<_> = (0..30).map(entry).collect();
        let held: Vec<_> = (0..1_000).map(of_status).collect();
        let listed: Vec<_> = (30..1_030).map(ip).collect();
        let mut index = Index::default();
        index.see(Seen::Pools(Change::All(vec![
            serde_json::from_value(json!({
                "metadata": {"name": "pool", "namespace": "web", "uid": "1", "resourceVersion": "1"},
                "spec": {"provider": "digitalocean", "ips": listed},
                "status": {"addresses": held, "moves": {"version": 1, "epoch": 1, "entries": moving}},
            }))
            .unwrap(),
        ])));
        let said = status(&index);
        assert_eq!(said.addresses.len(), plan::ADDRESSES_MAX);
        assert_eq!(said.moves.unwrap().entries.len(), 30);
        let remembered = said.addresses.iter().filter(|status| status.last_holder.is_some()).count();
        assert_eq!(remembered, 1_000, "no last holder is left out");
    }
}
