//! Writes what happened, and nothing that did not.
//!
//! In: the world, the plan, and an [`Outcome`], which only `act` can make. Out: the marks on nodes and the status of
//! objects. It compares before it writes, so a settled world costs no write, and each object is written at most once a
//! round. What is not known changes nothing: a mark stays until it is known to be wrong.

mod conditions;
mod nodes;
mod objects;

use std::collections::BTreeMap;

use api::{FloatingIPPool, NetIPAllocation};
use drivers::DriverError;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use plan::{Address, NodeName, Plan, PoolKey, Verdict, VmId, World};

use crate::act::Outcome;
use crate::observe::{Asked, Refusal, floating_ip_pool, net_ip_allocation};
use crate::watch::Watched;

/// What is to be said of one address.
#[derive(Clone, Debug)]
enum Said<'a> {
    /// It is on this node, whose machine is this.
    On(NodeName, VmId),
    /// It was taken off and is on no machine.
    Off,
    /// A step for it failed, and where it is now is not known.
    Failed(&'a DriverError),
    /// No step was taken, for this reason.
    Not(&'a Verdict),
}

/// What is to be said of each pool's addresses.
type Sayings<'a> = BTreeMap<&'a PoolKey, BTreeMap<Address, Said<'a>>>;

/// Writes all that is to be said, and fails only after everything was tried.
pub async fn publish(
    client: &Client,
    watched: &Watched,
    asked: &Asked,
    world: &World,
    plan: &Plan,
    outcome: &Outcome,
) -> Result<(), kube::Error> {
    let sayings = sayings(world, plan, outcome);
    let mut result = nodes::mark(client, watched, &sayings).await;
    for object in watched.allocations.state() {
        let key = net_ip_allocation::key(&object);
        if let Some(changed) = objects::allocation(&object, subject(&key, &sayings, asked)) {
            let api: Api<NetIPAllocation> = Api::all(client.clone());
            let written = api.replace_status(&object.name_any(), &PostParams::default(), &changed).await;
            result = result.and(written.map(drop));
        }
    }
    for object in watched.pools.state() {
        let key = floating_ip_pool::key(&object);
        if let Some(changed) = objects::pool(&object, subject(&key, &sayings, asked)) {
            let api: Api<FloatingIPPool> = Api::namespaced(client.clone(), &key.namespace);
            let written = api.replace_status(&object.name_any(), &PostParams::default(), &changed).await;
            result = result.and(written.map(drop));
        }
    }
    result
}

/// What is to be said of one object.
enum Subject<'a> {
    Pool(BTreeMap<Address, Said<'a>>),
    Refused(&'a Refusal),
}

fn subject<'a>(key: &PoolKey, sayings: &Sayings<'a>, asked: &'a Asked) -> Subject<'a> {
    match asked.refusals.get(key) {
        Some(refusal) => Subject::Refused(refusal),
        None => Subject::Pool(sayings.get(key).cloned().unwrap_or_default()),
    }
}

fn sayings<'a>(world: &'a World, plan: &'a Plan, outcome: &'a Outcome) -> Sayings<'a> {
    let mut sayings = Sayings::new();
    for ((pool, address), verdict) in &plan.verdicts {
        let machine = |node: &NodeName| world.nodes.get(node).and_then(|node| node.vm.clone());
        let said = match (outcome.of(pool, *address), verdict) {
            (Some(Err(error)), _) => Said::Failed(error),
            (Some(Ok(None)), _) => Said::Off,
            (Some(Ok(Some(node))), _) => match outcome.machine_of(pool, *address) {
                Some(vm) => Said::On(node.clone(), vm.clone()),
                None => Said::Off,
            },
            (None, Verdict::Settled(node)) => match machine(node) {
                Some(vm) => Said::On(node.clone(), vm),
                None => Said::Not(verdict),
            },
            (None, _) => Said::Not(verdict),
        };
        sayings.entry(pool).or_default().insert(*address, said);
    }
    sayings
}
