//! The status of objects.

use std::collections::BTreeMap;

use api::floating_ip_pool::{IpState, IpStatus};
use api::status::{AddressState, AddressStatus, Holder, Summary};
use api::{FloatingIPPool, NetIPAllocation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use plan::{Address, Verdict};

use super::conditions::{self, Standing};
use super::{Said, Subject};

/// The parts of a status that both kinds have.
struct Common {
    addresses: Vec<AddressStatus>,
    summary: Summary,
    conditions: Vec<Condition>,
    proposed: Vec<String>,
}

/// The allocation with its new status, where that differs from the one it has.
pub(super) fn allocation(object: &NetIPAllocation, subject: Subject<'_>) -> Option<NetIPAllocation> {
    let present = object.status.clone().unwrap_or_default();
    let common = common(&subject, &present.addresses, &present.conditions, object.metadata.generation);
    let mut status = present.clone();
    status.observed_generation = object.metadata.generation;
    status.addresses = common.addresses;
    status.summary = Some(common.summary);
    status.conditions = common.conditions;
    status.proposed = common.proposed;
    (object.status.as_ref() != Some(&status))
        .then(|| NetIPAllocation { status: Some(status), ..object.clone() })
}

/// The pool with its new status, where that differs from the one it has.
pub(super) fn pool(object: &FloatingIPPool, subject: Subject<'_>) -> Option<FloatingIPPool> {
    let present = object.status.clone().unwrap_or_default();
    let common = common(&subject, &present.addresses, &present.conditions, object.metadata.generation);
    let mut status = present.clone();
    status.observed_generation = object.metadata.generation;
    status.summary = Some(common.summary);
    status.conditions = common.conditions;
    status.proposed = common.proposed;
    match &subject {
        Subject::Pool(sayings) => {
            status.ips =
                sayings.iter().map(|(address, said)| (address.to_string(), as_flipop_writes(said))).collect();
            status.error = None;
        }
        Subject::Refused(refusal) => status.error = Some(refusal.message.clone()),
    }
    status.addresses = common.addresses;
    (object.status.as_ref() != Some(&status))
        .then(|| FloatingIPPool { status: Some(status), ..object.clone() })
}

fn common(
    subject: &Subject<'_>,
    present: &[AddressStatus],
    conditions: &[Condition],
    generation: Option<i64>,
) -> Common {
    let sayings = match subject {
        Subject::Pool(sayings) => sayings,
        Subject::Refused(refusal) => {
            let conditions = conditions::conditions(
                conditions,
                Standing::Stalled,
                refusal.reason,
                &refusal.message,
                generation,
            );
            // What is remembered of the addresses stays, because it says which machines are ours.
            let summary = Summary { desired: count(present.len()), attached: 0 };
            return Common { addresses: present.to_vec(), summary, conditions, proposed: Vec::new() };
        }
    };
    let remembered: BTreeMap<&str, &AddressStatus> =
        present.iter().map(|status| (status.address.as_str(), status)).collect();
    let addresses: Vec<_> = sayings
        .iter()
        .map(|(address, said)| {
            address_status(*address, said, remembered.get(address.to_string().as_str()).copied())
        })
        .collect();
    let attached = addresses.iter().filter(|status| status.state == AddressState::Attached).count();
    let desired = addresses.iter().filter(|status| status.state != AddressState::Disabled).count();
    let worst = sayings
        .iter()
        .map(|(address, said)| (standing(said), address, said))
        .max_by_key(|(standing, ..)| *standing);
    let (standing, reason, message) = match worst {
        Some((standing @ (Standing::Reconciling | Standing::Stalled), address, said)) => {
            (standing, reason(said), format!("{address} {}", message(said)))
        }
        _ => (Standing::Ready, "Settled", format!("{attached} of {desired} addresses are on nodes")),
    };
    let would = |said: &Said<'_>| match said {
        Said::Not(Verdict::WouldStep(step)) => Some(step.clone()),
        _ => None,
    };
    Common {
        summary: Summary { desired: count(desired), attached: count(attached) },
        conditions: conditions::conditions(conditions, standing, reason, &message, generation),
        proposed: sayings.values().filter_map(would).take(100).collect(),
        addresses,
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn address_status(address: Address, said: &Said<'_>, present: Option<&AddressStatus>) -> AddressStatus {
    let (node_name, last_holder) = match said {
        Said::On(node, vm) => {
            let holder = Holder { vm: vm.0.clone(), node_name: Some(node.0.clone()), had_ephemeral: None };
            (Some(node.0.clone()), Some(holder))
        }
        _ => (None, present.and_then(|present| present.last_holder.clone())),
    };
    let state = state(said);
    let since = present.filter(|present| present.state == state).and_then(|present| present.since.clone());
    AddressStatus {
        address: address.to_string(),
        state,
        node_name,
        last_holder,
        reason: Some(reason(said).to_owned()),
        message: (state != AddressState::Attached).then(|| message(said)),
        since: since.or_else(|| Some(conditions::now())),
        created: present.and_then(|present| present.created),
    }
}

fn state(said: &Said<'_>) -> AddressState {
    match said {
        Said::On(..) => AddressState::Attached,
        Said::Off => AddressState::Unattached,
        Said::Failed(_) => AddressState::Unknown,
        Said::Not(verdict) => match verdict {
            Verdict::Settled(_) | Verdict::Lingers(..) => AddressState::Attached,
            Verdict::Stepping => AddressState::Moving,
            Verdict::NoNode => AddressState::Unattached,
            Verdict::Foreign(_) => AddressState::Foreign,
            Verdict::OwnedBy(_) => AddressState::Conflict,
            Verdict::Missing => AddressState::Missing,
            Verdict::Disabled => AddressState::Disabled,
            Verdict::Unknown(_) | Verdict::WouldStep(_) => AddressState::Unknown,
        },
    }
}

fn reason(said: &Said<'_>) -> &'static str {
    match said {
        Said::On(..) => "Settled",
        Said::Off => "NoNode",
        Said::Failed(_) => "Failed",
        Said::Not(verdict) => match verdict {
            Verdict::Settled(_) => "Settled",
            Verdict::Lingers(..) => "NoMatch",
            Verdict::Stepping => "Moving",
            Verdict::NoNode => "NoNode",
            Verdict::Foreign(_) => "Foreign",
            Verdict::OwnedBy(_) => "Conflict",
            Verdict::Missing => "Missing",
            Verdict::Disabled => "Disabled",
            Verdict::Unknown(_) => "Unknown",
            Verdict::WouldStep(_) => "Observing",
        },
    }
}

fn message(said: &Said<'_>) -> String {
    match said {
        Said::On(node, _) => format!("on {node}"),
        Said::Off => Verdict::NoNode.to_string(),
        Said::Failed(error) => format!("could not be moved: {error}"),
        Said::Not(verdict) => verdict.to_string(),
    }
}

fn standing(said: &Said<'_>) -> Standing {
    match said {
        Said::On(..) | Said::Not(Verdict::Settled(_) | Verdict::Disabled) => Standing::Ready,
        Said::Not(Verdict::Foreign(_) | Verdict::OwnedBy(_) | Verdict::Missing) => Standing::Stalled,
        Said::Off | Said::Failed(_) | Said::Not(_) => Standing::Reconciling,
    }
}

fn as_flipop_writes(said: &Said<'_>) -> IpStatus {
    let (state, node_name, error) = match said {
        Said::On(node, _) => (IpState::Active, Some(node.0.clone()), None),
        Said::Off | Said::Not(Verdict::NoNode) => (IpState::Unassigned, None, None),
        Said::Failed(error) => (IpState::Error, None, Some(error.to_string())),
        Said::Not(verdict) => match verdict {
            Verdict::Settled(node) => (IpState::Active, Some(node.0.clone()), None),
            Verdict::Lingers(_, node, _) => {
                (IpState::NoMatch, node.as_ref().map(|node| node.0.clone()), None)
            }
            Verdict::Stepping => (IpState::InProgress, None, None),
            Verdict::Disabled => (IpState::Disabled, None, None),
            other => (IpState::Error, None, Some(other.to_string())),
        },
    };
    IpStatus { state, node_name, provider_id: None, error }
}
