//! The status of objects.

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
    Address, Astray, ConditionType, Holding, Lacking, Plan, Pool, PoolKey, Published, Reason, RecordName,
    Timestamp, Verdict,
};

use super::state::state;
use crate::addresses::codec::{self, whole_seconds};
use crate::addresses::index::Index;
use crate::addresses::object::Object;
use crate::addresses::resources::refusal::Refusal;
use crate::kubernetes::conditions;
use crate::kubernetes::limits::{self, MESSAGE_MAX, PROPOSED_MAX, VALUES_MAX, cut};

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
        let (reason, message) = match (self.refusal, self.worst_record()) {
            (Some(refusal), _) => (refusal.reason, refusal.message.clone()),
            (None, Some(worst)) => worst,
            (None, None) => (Reason::Unknown, "nothing is known of its name yet".to_owned()),
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

    /// The most urgent reason among the object's DNS names, and its message.
    fn worst_record(&self) -> Option<(Reason, String)> {
        if let Some(refusal) = self.record_refusal {
            return Some((refusal.reason, refusal.message.clone()));
        }
        let reported = self.published.iter().map(|(name, said)| (said.reason(), format!("{name} {said}")));
        reported.max_by_key(|(reason, _)| reason.condition())
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

    /// The most urgent reason among the object's refusal, its addresses, those that it lacks, and its DNS name. The message also says
    /// what else a person should know.
    fn worst(&self, attached: usize, desired: usize) -> (Reason, String) {
        let urgency = |reason: Option<Reason>| reason.map_or(ConditionType::Ready, Reason::condition);
        let worst = self.verdicts.iter().max_by_key(|(_, said)| said.reason().condition());
        let of_addresses = urgency(worst.map(|(_, said)| said.reason()));
        let lacks = self.lacking.filter(|lacking| lacking.reason().condition() >= of_addresses);
        let own = match (self.refusal, lacks, worst) {
            (Some(refusal), ..) => (refusal.reason, refusal.message.clone()),
            (None, Some(lacking), _) => (lacking.reason(), lacking.to_string()),
            (None, None, Some((address, said))) if of_addresses > ConditionType::Ready => {
                (said.reason(), format!("{address} {said}"))
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

    /// What else a person should know.
    fn besides(&self) -> impl Iterator<Item = String> {
        let without = self.index.without.get(&self.pool.scope).map(|permission| {
            format!("permission {permission} is missing, so every machine is asked for its address")
        });
        let unsupported = self.index.unsupported(&self.pool.key).filter(|_| self.refusal.is_none());
        let unsupported = unsupported.map(|(node, why)| format!("node {node} can't get an address: {why}"));
        self.astray.map(ToString::to_string).into_iter().chain(without).chain(unsupported)
    }

    /// What would be done if the object were active.
    fn proposed(&self) -> Vec<String> {
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
        let steps = self.verdicts.iter().filter_map(would).chain(would_create).take(PROPOSED_COUNT_MAX - 1);
        let all = steps.chain(self.published.iter().filter_map(would_publish)).take(PROPOSED_COUNT_MAX);
        all.map(|step| cut(&step, PROPOSED_MAX)).collect()
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

    /// The addresses of which one may be the answer to a request whose outcome is not known.
    fn candidates(&self) -> Option<&BTreeSet<Address>> {
        match self.lacking {
            Some(Lacking::Ambiguous(candidates)) => Some(candidates),
            _ => None,
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
            reason: Some(said.reason().name().to_owned()),
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
