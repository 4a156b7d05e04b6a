//! Which account the addresses of a pool are in.
//!
//! In: a pool, and the nodes that its selectors match. Out: the scope of the pool. The pool itself never changes here.
//!
//! The VMs in the pool's status and journal decide first, so a new node can't change the scope of a pool that already had
//! an address on a VM. This matters because anybody who can register a node also chooses its providerID.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::member::is_elsewhere;
use crate::{Address, Node, Pool, Provider, Scope, Timestamp, VmId};

/// The scope of a pool, or `None` if neither a VM nor a node determines it. If no VM does, the pool stays in its present
/// scope as long as a node is there. Each node comes with the time of its creation.
pub fn scope_of<'a>(
    provider: Provider,
    pool: &Pool,
    present: Option<&Scope>,
    of_journal: impl Iterator<Item = VmId>,
    nodes: impl Iterator<Item = (Timestamp, &'a Node)>,
) -> Option<Scope> {
    let account: Arc<str> = match provider {
        // The token determines the account.
        Provider::DigitalOcean => "".into(),
        _ => of_holders(pool, of_journal).or_else(|| of_oldest_node(provider, pool, present, nodes))?,
    };
    Some(Scope { provider, account })
}

/// The account with the most VMs that last held the pool's addresses.
fn of_holders(pool: &Pool, of_journal: impl Iterator<Item = VmId>) -> Option<Arc<str>> {
    let is_ours = |address: &Address| pool.addresses.contains(address) || pool.created_here.contains(address);
    let listed = pool.last_holders.iter().filter(|(address, _)| is_ours(address));
    let mut counts = BTreeMap::<Arc<str>, usize>::new();
    for vm in listed.map(|(_, vm)| vm.clone()).chain(of_journal) {
        if let Some((account, _)) = vm.as_str().split_once('/') {
            *counts.entry(account.into()).or_default() += 1;
        }
    }
    // On a tie, the account whose name sorts first.
    counts
        .into_iter()
        .max_by_key(|(account, count)| (*count, Reverse(Arc::clone(account))))
        .map(|(account, _)| account)
}

/// The account of a node in the pool's region and zones, or else of one elsewhere: the present account if it has such a
/// node, otherwise that of the oldest one.
fn of_oldest_node<'a>(
    provider: Provider,
    pool: &Pool,
    present: Option<&Scope>,
    nodes: impl Iterator<Item = (Timestamp, &'a Node)>,
) -> Option<Arc<str>> {
    let known = nodes.filter_map(|(created, node)| {
        let (scope, _) = node.machine.as_ref().filter(|(scope, _)| scope.provider == provider)?;
        Some((is_elsewhere(pool, node), Some(scope) != present, created, &scope.account))
    });
    known.min().map(|(.., account)| Arc::clone(account))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PoolKey, Readiness};

    #[test]
    fn i12_a_new_node_does_not_change_the_account_of_a_pool() {
        let nodes = [node("ours", 2), node("theirs", 1)];
        assert_eq!(account(&pool(&["ours"]), &nodes), Some("ours".into()));
        let nodes = [node("ours", 1), node("theirs", 2)];
        assert_eq!(account(&pool(&[]), &nodes), Some("ours".into()), "the oldest node decides");
    }

    #[test]
    fn i12_most_holders_decide_and_only_those_of_listed_addresses() {
        assert_eq!(account(&pool(&["a", "b", "b"]), &[]), Some("b".into()));
        assert_eq!(account(&pool(&["b", "a"]), &[]), Some("a".into()));
        let mut removed = pool(&["a"]);
        removed.addresses.clear();
        assert_eq!(account(&removed, &[node("b", 1)]), Some("b".into()));
    }

    #[test]
    fn i12_a_pool_that_never_had_an_address_on_a_vm_stays_where_it_is() {
        let (older, newer) = (node("older", 1), node("newer", 2));
        let stays = |nodes: &[&(Timestamp, Node)]| {
            let nodes = nodes.iter().map(|(created, node)| (*created, node));
            let present = scope("newer");
            scope_of(Provider::Gcp, &pool(&[]), Some(&present), std::iter::empty(), nodes) == Some(present)
        };
        assert!(stays(&[&older, &newer]));
        assert!(!stays(&[&older]), "no node is left there");
    }

    #[test]
    fn i12_nodes_in_the_region_decide_before_all_others() {
        let in_region = Pool { region: Some("west".into()), ..pool(&[]) };
        let at = |region: &str, (created, node): (Timestamp, Node)| {
            (created, Node { region: Some(region.into()), ..node })
        };
        let (east, west) = (at("east", node("a", 1)), at("west", node("b", 2)));
        assert_eq!(account(&in_region, &[east.clone(), west]), Some("b".into()));
        assert_eq!(account(&in_region, &[east]), Some("a".into()));
    }

    fn account(pool: &Pool, nodes: &[(Timestamp, Node)]) -> Option<Arc<str>> {
        let nodes = nodes.iter().map(|(created, node)| (*created, node));
        scope_of(Provider::Gcp, pool, None, std::iter::empty(), nodes).map(|scope| scope.account)
    }

    fn scope(account: &str) -> Scope {
        Scope { provider: Provider::Gcp, account: account.into() }
    }

    fn node(account: &str, created: i64) -> (Timestamp, Node) {
        let machine = Some((scope(account), format!("{account}/zone/vm").as_str().into()));
        (Timestamp::from_second(created).unwrap(), Node::new(machine, Readiness::Ready))
    }

    /// A pool with one address for each of these accounts, last on a VM there.
    fn pool(accounts: &[&str]) -> Pool {
        let addresses: Vec<Address> =
            (0..accounts.len()).map(|number| format!("192.0.2.{number}").parse().unwrap()).collect();
        let key = PoolKey { kind: "FloatingIPPool", namespace: "web".into(), name: "edge".into() };
        let mut pool = Pool::new(key, scope(""), addresses.clone());
        let vms = accounts.iter().map(|account| VmId::from(format!("{account}/zone/vm").as_str()));
        pool.last_holders = addresses.into_iter().zip(vms).collect();
        pool
    }
}
