//! Builds the status of objects from the plan.
//!
//! In: an object, its pool, and the plan. Out: the object with its new status, or nothing if the
//! status is already right.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::floating_ip_pool::{IpState, IpStatus};
use api::status::{AddressState, AddressStatus, Holder, Moves, RecordStatus, Summary};
use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use plan::{
    Address, ConditionType, Holding, Lacking, MisplacedPods, Plan, Pool, PoolKey, Published, Reason,
    RecordName, Timestamp, Verdict, VmId,
};

use super::state::state;
use crate::addresses::codec::{self, Description, Memory, whole_seconds};
use crate::addresses::index::Index;
use crate::addresses::object::Object;
use crate::addresses::resources::refusal::Refusal;
use crate::kubernetes::conditions;
use crate::kubernetes::limits::{self, MESSAGE_MAX, PROPOSED_MAX, VALUES_MAX, cut};

/// The maximum length of FLIPOP's lists of nodes. A cluster may have thousands of nodes, and the size of an object is
/// limited.
const NODES_MAX: usize = 100;

/// The maximum number of proposed steps in a status.
const PROPOSED_COUNT_MAX: usize = 100;

/// The parts of a status that NetIPAllocation and FloatingIPPool have in common.
struct Common {
    addresses: Vec<AddressStatus>,
    summary: Summary,
    conditions: Vec<Condition>,
    moves: Option<Moves>,
    proposed: Vec<String>,
}

/// The current status of an object.
struct Present<'a> {
    addresses: &'a [AddressStatus],
    conditions: &'a [Condition],
    moves: Option<&'a Moves>,
    generation: Option<i64>,
}

/// The object with its new status, or `None` if the status does not change or the plan has no verdicts for the object.
pub(super) fn changed(index: &Index, plan: &Plan, key: &PoolKey, now: Timestamp) -> Option<Object> {
    let tracked = index.objects.get(key)?;
    let pool = index.world.pool(key)?;
    let verdicts = plan.verdicts.get(key)?;
    let (refusal, lacking, misplaced_pods) =
        (tracked.refusal.as_ref(), plan.lacking.get(key), plan.misplaced_pods.get(key));
    let record_refusal = tracked.record_refusal.as_ref();
    let published = plan.published.get(key).map(Vec::as_slice).unwrap_or_default();
    let losses = &plan.losses;
    let builder = Builder {
        index,
        pool,
        verdicts,
        lacking,
        misplaced_pods,
        refusal,
        record_refusal,
        published,
        losses,
        now,
    };
    let changed = match &tracked.object {
        Object::Allocation(object) => {
            builder.allocation(object).map(|object| Object::Allocation(Arc::new(object)))
        }
        Object::Pool(object) => builder.pool(object).map(|object| Object::Pool(Arc::new(object))),
        Object::Records(object) => builder.records(object).map(|object| Object::Records(Arc::new(object))),
    };
    // If the CRD drops the fields that differ, another write changes nothing.
    let is_stored = |wanted: &Object| {
        wanted.keeps_journal_and_holders(&tracked.object)
            && tracked.dropped_fields.explain(&wanted.status(), &tracked.object.status())
    };
    changed.filter(|wanted| tracked.dropped_fields.is_empty() || !is_stored(wanted))
}

struct Builder<'a> {
    index: &'a Index,
    pool: &'a Pool,
    verdicts: &'a [(Address, Verdict)],
    lacking: Option<&'a Lacking>,
    misplaced_pods: Option<&'a MisplacedPods>,
    refusal: Option<&'a Refusal>,
    record_refusal: Option<&'a Refusal>,
    published: &'a [(RecordName, Published)],
    losses: &'a BTreeMap<Address, Timestamp>,
    now: Timestamp,
}

impl Builder<'_> {
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
        // The time is rounded up, so the cool-off is never shorter than `assignmentCoolOffSeconds`.
        let last = self.pool.last_assignment;
        status.last_assignment =
            last.map(|time| whole_seconds(plan::later(time, Duration::from_nanos(999_999_999))));
        if self.pool.is_tag_used {
            status.creation_tag = self.pool.creates.as_deref().map(Into::into);
        }
        status.dns = self.dns(status.dns.as_ref());
        let has_none = self.verdicts.is_empty() && self.lacking.is_none();
        let nothing =
            has_none.then(|| "the pool has no addresses: set spec.ips or spec.desiredIPs".to_owned());
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
                .map(|(address, verdict)| (address.to_string(), self.as_flipop(verdict)))
                .collect();
        }
        let is_new = object.status.as_ref() != Some(&status);
        is_new.then(|| FloatingIPPool { status: Some(status), ..object.clone() })
    }

    fn records(&self, object: &NodeDNSRecordSet) -> Option<NodeDNSRecordSet> {
        let mut status = object.status.clone().unwrap_or_default();
        let (reason, message) = match (self.refusal, self.worst_record()) {
            (Some(refusal), _) => (refusal.reason, refusal.message.clone()),
            (None, Some(worst)) => worst,
            (None, None) => {
                (Reason::Unknown, "the controller has not read the records of the DNS name yet".to_owned())
            }
        };
        status.state = Some(match reason.condition() {
            ConditionType::Ready => "active".into(),
            ConditionType::Reconciling if reason != Reason::RecordFailed => "in-progress".into(),
            ConditionType::Reconciling | ConditionType::Stalled => "error".into(),
        });
        status.error = (status.state.as_deref() == Some("error")).then(|| cut(&message, MESSAGE_MAX));
        status.observed_generation = object.metadata.generation;
        status.dns = self.dns(status.dns.as_ref());
        status.conditions = conditions::conditions(
            &status.conditions,
            reason,
            &message,
            object.metadata.generation,
            &whole_seconds(self.now),
        );
        let is_new = object.status.as_ref() != Some(&status);
        is_new.then(|| NodeDNSRecordSet { status: Some(status), ..object.clone() })
    }

    /// The DNS name in the status. It stays unchanged while the records are unknown.
    fn dns(&self, present: Option<&RecordStatus>) -> Option<RecordStatus> {
        let publication = self.pool.publication.as_ref()?;
        let present = present.filter(|present| *present.name == *publication.name);
        let mut values = Vec::new();
        for (name, state) in self.published {
            // The records belong to another object.
            if matches!(state, Published::Conflict(_)) {
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

    /// The most urgent reason among the object's DNS names, and its message.
    fn worst_record(&self) -> Option<(Reason, String)> {
        if let Some(refusal) = self.record_refusal {
            return Some((refusal.reason, refusal.message.clone()));
        }
        let reported = self.published.iter().map(|(name, state)| (state.reason(), format!("{name} {state}")));
        reported.max_by_key(|(reason, _)| reason.condition())
    }

    fn common(&self, present: &Present<'_>) -> Common {
        let remembered: BTreeMap<&str, &AddressStatus> =
            present.addresses.iter().map(|status| (status.address.as_str(), status)).collect();
        let mut addresses: Vec<_> = self
            .verdicts
            .iter()
            .map(|(address, verdict)| {
                self.address(*address, verdict, remembered.get(address.to_string().as_str()).copied())
            })
            .collect();
        let attached = addresses.iter().filter(|status| status.state == AddressState::Attached).count();
        let desired = addresses.iter().filter(|status| status.state != AddressState::Disabled).count();
        self.leave_out(&mut addresses);
        let desired = desired + self.lacking_count();
        let (reason, message) = self.worst(attached, desired);
        Common {
            summary: Summary { desired: count(desired), attached: count(attached) },
            conditions: conditions::conditions(
                present.conditions,
                reason,
                &message,
                present.generation,
                &whole_seconds(self.now),
            ),
            moves: codec::moves(
                self.pool,
                present.moves,
                self.candidates(),
                self.index.world.epoch,
                self.now,
            ),
            proposed: self.proposed(),
            addresses,
        }
    }

    /// The most urgent reason among the object's refusal, its addresses, its missing addresses, and its DNS name. The
    /// message also contains `besides`.
    fn worst(&self, attached: usize, desired: usize) -> (Reason, String) {
        let urgency = |reason: Option<Reason>| reason.map_or(ConditionType::Ready, Reason::condition);
        let worst = self.verdicts.iter().max_by_key(|(_, verdict)| verdict.reason().condition());
        let of_addresses = urgency(worst.map(|(_, verdict)| verdict.reason()));
        let lacks = self.lacking.filter(|lacking| lacking.reason().condition() >= of_addresses);
        let own = match (self.refusal, lacks, worst) {
            (Some(refusal), ..) => (refusal.reason, refusal.message.clone()),
            (None, Some(lacking), _) => (lacking.reason(), lacking.to_string()),
            (None, None, Some((address, verdict))) if of_addresses > ConditionType::Ready => {
                (verdict.reason(), format!("{address} {verdict}"))
            }
            _ => (Reason::Settled, format!("{attached} of {desired} addresses are on nodes")),
        };
        let record = self.worst_record().filter(|_| self.refusal.is_none());
        let of_others = of_addresses.max(urgency(self.lacking.map(Lacking::reason)));
        let is_worse = |(reason, _): &(Reason, String)| reason.condition() > of_others;
        let (reason, message) = record.clone().filter(is_worse).unwrap_or(own);
        let is_unreported = |(of_record, _): &(Reason, String)| {
            of_record.condition() != ConditionType::Ready && *of_record != reason
        };
        let besides = self.besides().chain(record.filter(is_unreported).map(|(_, message)| message));
        let message = besides.fold(message, |message, besides| format!("{message}; {besides}"));
        (reason, message)
    }

    /// What the message of the conditions mentions besides the reason.
    fn besides(&self) -> impl Iterator<Item = String> {
        let without = self.index.without.get(&self.pool.scope).map(|permission| {
            format!("permission {permission} is missing, so the controller can't list addresses and reads each VM instead: grant it")
        });
        let unsupported = self.index.unsupported(&self.pool.key).filter(|_| self.refusal.is_none());
        let unsupported = unsupported.map(|(node, why)| format!("node {node} can't get an address: {why}"));
        let elsewhere =
            self.index.world.node_in_other_account(&self.pool.key).filter(|_| self.refusal.is_none());
        let scope = &self.pool.scope;
        let elsewhere = elsewhere.map(|(node, other)| {
            format!("node {node} can't get an address: it is in {other}, but this object uses {scope}")
        });
        self.misplaced_pods
            .map(ToString::to_string)
            .into_iter()
            .chain(without)
            .chain(unsupported)
            .chain(elsewhere)
    }

    /// The steps that the controller would start in the mode Active.
    fn proposed(&self) -> Vec<String> {
        let would = |(_, verdict): &(Address, Verdict)| match verdict {
            Verdict::WouldStep(step) => Some(step.clone()),
            _ => None,
        };
        let would_create = match self.lacking {
            Some(lacking @ Lacking::WouldCreate(_)) => Some(lacking.to_string()),
            _ => None,
        };
        let would_publish = |(name, state): &(RecordName, Published)| match state {
            Published::Would(values) => {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                Some(format!("publish {name}: {}", values.join(", ")))
            }
            _ => None,
        };
        let steps = self.verdicts.iter().filter_map(would).chain(would_create).take(PROPOSED_COUNT_MAX - 1);
        let all = steps.chain(self.published.iter().filter_map(would_publish)).take(PROPOSED_COUNT_MAX);
        all.map(|step| cut(&step, PROPOSED_MAX)).collect()
    }

    /// Removes addresses if the status would have too many. It keeps those that the next leader needs. The planner
    /// starts nothing for addresses that are not in the status.
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

    /// One of these addresses may be the result of a creation request without a response.
    fn candidates(&self) -> Option<&BTreeSet<Address>> {
        match self.lacking {
            Some(Lacking::Ambiguous(candidates)) => Some(candidates),
            _ => None,
        }
    }

    fn address_message_max(&self) -> usize {
        limits::address_message_max(self.verdicts.len())
    }

    /// How many addresses are missing from the spec.
    fn lacking_count(&self) -> usize {
        self.lacking.map_or(0, |_| self.pool.desired.saturating_sub(self.pool.addresses.len()))
    }

    fn address(&self, address: Address, verdict: &Verdict, present: Option<&AddressStatus>) -> AddressStatus {
        // Only a VM of a node is stored as holder.
        let holder = self.index.world.fact(&self.pool.scope, address).and_then(|fact| match &fact.holding {
            Holding::By(vm) => self.index.world.node_of(vm).map(|(name, _)| Holder {
                vm: vm.to_string(),
                node_name: Some(name.to_string()),
                had_ephemeral: self.had_ephemeral_before(address, vm).then_some(true),
            }),
            _ => None,
        });
        let state = state(verdict);
        let since =
            present.filter(|present| present.state == state).and_then(|present| present.since.clone());
        let is_attached = state == AddressState::Attached;
        let node_name = holder.as_ref().filter(|_| is_attached).and_then(|holder| holder.node_name.clone());
        let is_settled = matches!(verdict, Verdict::Settled(_));
        let memory = Memory {
            state,
            last_holder: holder.or_else(|| self.remembered(address, present)),
            previous_holders: self.returned(address),
            ptr_name: self.pool.ptrs.get(&address).cloned(),
            lost_since: self.lost_since(address, verdict),
            created: present
                .and_then(|present| present.created)
                .or_else(|| self.is_created(address).then_some(true)),
        };
        let description = Description {
            node_name,
            reason: verdict.reason(),
            message: (!is_settled && state != AddressState::Moving)
                .then(|| cut(&verdict.to_string(), self.address_message_max())),
            since: since.unwrap_or_else(|| whole_seconds(self.now)),
        };
        codec::encode_address(address, memory, description)
    }

    /// When the holder of an address was lost. Only the object that owns the address reports it.
    fn lost_since(&self, address: Address, verdict: &Verdict) -> Option<Timestamp> {
        let is_other = matches!(verdict, Verdict::OwnedBy(_));
        self.losses.get(&address).copied().filter(|_| !is_other)
    }

    /// Whether the VM that holds an address had an ephemeral address before.
    fn had_ephemeral_before(&self, address: Address, vm: &plan::VmId) -> bool {
        let is_remembered = self.pool.last_holders.get(&address) == Some(vm);
        let is_journalled = self.pool.entry(address).is_some_and(|entry| entry.to_restore.contains(vm));
        is_journalled || (is_remembered && self.pool.replaced_ephemeral.contains(&address))
    }

    /// The VMs that an address was detached from and whose ephemeral addresses were restored. Stored only for providers
    /// whose reads may be stale.
    fn returned(&self, address: Address) -> Vec<VmId> {
        let may_be_late = self.index.world.stale_until.contains_key(&self.pool.scope.provider);
        let returned = self.pool.returned.get(&address).filter(|_| may_be_late);
        returned.into_iter().flatten().cloned().collect()
    }

    /// Whether the controller created an address for the object: it has the object's tag, or is the result of a
    /// request.
    fn is_created(&self, address: Address) -> bool {
        let fact = self.index.world.fact(&self.pool.scope, address);
        let tag = fact.and_then(|fact| fact.tag.as_ref());
        (tag.is_some() && tag == self.pool.creates.as_ref()) || self.pool.created_here.contains(&address)
    }

    /// The last holder of an address, according to the pool and the status.
    fn remembered(&self, address: Address, present: Option<&AddressStatus>) -> Option<Holder> {
        let known = present.and_then(|present| present.last_holder.clone());
        match self.pool.last_holders.get(&address) {
            Some(vm) if known.as_ref().is_none_or(|known| known.vm != vm.as_str()) => {
                let had_ephemeral = self.pool.replaced_ephemeral.contains(&address).then_some(true);
                Some(Holder { vm: vm.to_string(), node_name: None, had_ephemeral })
            }
            _ => known,
        }
    }

    fn as_flipop(&self, verdict: &Verdict) -> IpStatus {
        let provider_id =
            |node: &plan::NodeName| self.index.nodes.get(node)?.provider_id.as_deref().map(ToOwned::to_owned);
        let (state, node, error) = match verdict {
            Verdict::Settled(node) => (IpState::Active, Some(node), None),
            Verdict::NoMatch(..) => (IpState::NoMatch, None, None),
            Verdict::Moving(node) | Verdict::LeftToNextLeader { to: node, .. } => {
                (IpState::InProgress, node.as_ref(), None)
            }
            Verdict::Queued(node) => (IpState::InProgress, Some(node), None),
            Verdict::NoNode => (IpState::Unassigned, None, None),
            Verdict::OtherRegion(..) => {
                (IpState::Unassigned, None, Some(cut(&verdict.to_string(), self.address_message_max())))
            }
            Verdict::Disabled | Verdict::Releasing | Verdict::Unmarked | Verdict::Leaving => {
                (IpState::Disabled, None, None)
            }
            Verdict::Unsupported(_)
            | Verdict::Foreign(_)
            | Verdict::OwnedBy(_)
            | Verdict::Missing
            | Verdict::Unknown(_)
            | Verdict::Waits(_)
            | Verdict::WouldStep(_) => {
                (IpState::Error, None, Some(cut(&verdict.to_string(), self.address_message_max())))
            }
        };
        IpStatus {
            state,
            node_name: node.map(ToString::to_string),
            // Without the providerID, the object stays within the size limit even if all addresses move at once.
            provider_id: node.filter(|_| state != IpState::InProgress).and_then(provider_id),
            error,
        }
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
