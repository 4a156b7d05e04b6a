//! What should happen, and why the rest should not. Both print as text, and tests compare that text.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Address, NodeName, PoolKey, Scope, Timestamp, VmId, Why};

/// What should happen now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps that may be taken at the same time: no two name one address or one machine.
    pub steps: Vec<Step>,
    /// What is to be said of every address of every pool.
    pub verdicts: BTreeMap<(PoolKey, Address), Verdict>,
    /// When to ask again though nothing has changed.
    pub ask_again: Option<Timestamp>,
}

/// Something to do in a cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For whom.
    pub pool: PoolKey,
    /// Where.
    pub scope: Scope,
    /// The address.
    pub address: Address,
    /// The machine that holds it now, and the node it backs where it still backs one.
    pub from: Option<(VmId, Option<NodeName>)>,
    /// The machine that shall hold it, and its node; none only detaches.
    pub to: Option<(VmId, NodeName)>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, from, to, .. } = self;
        let from = from.as_ref().map(|(vm, node)| match node {
            Some(node) => node.to_string(),
            None => vm.to_string(),
        });
        match (from, to) {
            (None, Some((_, to))) => write!(f, "attach {address} -> {to}"),
            (Some(from), Some((_, to))) => write!(f, "move {address} {from} -> {to}"),
            (Some(from), None) => write!(f, "detach {address} from {from}"),
            (None, None) => write!(f, "nothing for {address}"),
        }
    }
}

/// What is to be said of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is on this node and stays there.
    Settled(NodeName),
    /// It is on this machine, which should not have it, and stays until another node can take it.
    Lingers(VmId, Option<NodeName>, Why),
    /// A step of this plan moves it.
    Stepping,
    /// It is on no machine of ours, and no node can take it.
    NoNode,
    /// It is on a machine that is not ours.
    Foreign(VmId),
    /// An older object owns it.
    OwnedBy(PoolKey),
    /// The cloud does not know it.
    Missing,
    /// It is beyond the desired number.
    Disabled,
    /// What the cloud says is not known.
    Unknown(String),
    /// This step would be taken if the pool were active.
    WouldStep(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled(node) => write!(f, "on {node}"),
            Self::Lingers(_, Some(node), why) => {
                write!(f, "stays on {node} until another node can take it: {why}")
            }
            Self::Lingers(vm, None, why) => write!(f, "stays on {vm} until another node can take it: {why}"),
            Self::Stepping => write!(f, "is being moved"),
            Self::NoNode => write!(f, "waits: no node can take it"),
            Self::Foreign(vm) => write!(f, "is held by {vm}, which is no node of this cluster"),
            Self::OwnedBy(pool) => write!(f, "belongs to {pool}, which is older"),
            Self::Missing => write!(f, "is not known to the cloud"),
            Self::Disabled => write!(f, "is beyond the desired number"),
            Self::Unknown(reason) => write!(f, "is left alone: {reason}"),
            Self::WouldStep(step) => write!(f, "is only observed, otherwise: {step}"),
        }
    }
}

impl fmt::Display for Plan {
    /// The steps, a line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{step}")?;
        }
        Ok(())
    }
}
