//! A `FloatingIPPool` as a pool.

use std::collections::BTreeMap;
use std::time::Duration;

use api::FloatingIPPool;
use api::selection::Match;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use plan::{NodeName, Pods, Pool, PoolKey, Provider, Tenancy};

use super::selector::parse;
use super::{Cluster, Refusal, allowed, created, last_holders, machine, parse_addresses};
use crate::watch::SlimPod;

/// How long a NotReady node keeps its address where the object does not say: as FLIPOP does, not at all.
const FAILOVER_GRACE_DEFAULT: Duration = Duration::ZERO;

/// Taints that say that a node is NotReady, which is judged by its condition and with its grace.
const READINESS_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The pool's name.
pub fn key(object: &FloatingIPPool) -> PoolKey {
    let namespace = object.namespace().unwrap_or_default();
    PoolKey { kind: "FloatingIPPool", namespace, name: object.name_any() }
}

/// The pool, or why there is none.
pub fn pool(object: &FloatingIPPool, cluster: &Cluster) -> Result<Pool, Refusal> {
    let spec = &object.spec;
    let provider = provider(&spec.provider)?;
    let addresses = parse_addresses(spec.ips.as_deref().unwrap_or_default())?;
    let status = object.status.as_ref().map(|status| status.addresses.as_slice()).unwrap_or_default();
    let last_holders = last_holders(status);
    let scope = cluster.scope(provider, &last_holders)?;
    let matches = spec.matches.clone().unwrap_or_default();
    let node_selector = parse(matches.node_label.as_deref().unwrap_or_default())?;
    let pods = pods_on_nodes(&matches, &cluster.pods)?;
    let tolerations = matches.tolerations.as_deref().unwrap_or_default();
    let members = cluster.nodes.iter().filter(|(_, node)| {
        let is_tolerated = node.spec.taints.iter().all(|taint| is_tolerated(taint, tolerations));
        let is_in_scope = machine(node).is_some_and(|(of_node, _)| of_node == scope);
        is_in_scope && is_tolerated && node_selector.matches(node.labels())
    });
    Ok(Pool {
        key: key(object),
        created: created(object),
        desired: spec.desired(),
        addresses,
        members: members
            .map(|(name, _)| (name.clone(), pods.get(name).copied().unwrap_or(Pods::Absent)))
            .collect(),
        tenancy: Tenancy::UntilDisplaced { needs_pods: matches.needs_pods() },
        region: None,
        zones: Vec::new(),
        last_holders,
        policy: allowed(spec.policy.as_ref(), FAILOVER_GRACE_DEFAULT),
        scope,
    })
}

fn provider(name: &str) -> Result<Provider, Refusal> {
    match name {
        "digitalocean" => Ok(Provider::DigitalOcean),
        "gcp" => Ok(Provider::Gcp),
        "aws" => Ok(Provider::Aws),
        "azure" => Ok(Provider::Azure),
        other => Err(Refusal {
            reason: "UnsupportedProvider",
            message: format!("{other} has no floating addresses: use digitalocean, gcp, aws or azure"),
        }),
    }
}

/// How the pool's pods fare on each node that has any.
fn pods_on_nodes(matches: &Match, pods: &[SlimPod]) -> Result<BTreeMap<NodeName, Pods>, Refusal> {
    let mut found = BTreeMap::new();
    if !matches.needs_pods() {
        return Ok(found);
    }
    let selector: Selector = parse(matches.pod_label.as_deref().unwrap_or_default())?;
    let namespace = matches.pod_namespace.as_deref().unwrap_or_default();
    for pod in pods {
        let is_elsewhere = !namespace.is_empty() && pod.namespace().as_deref() != Some(namespace);
        if is_elsewhere || !selector.matches(pod.labels()) {
            continue;
        }
        let Some(node) = pod.spec.node_name.clone() else { continue };
        let standing = found.entry(NodeName(node)).or_insert(Pods::Present);
        if is_ready(pod) {
            *standing = Pods::Ready;
        }
    }
    Ok(found)
}

fn is_ready(pod: &SlimPod) -> bool {
    let is_running = pod.status.phase.as_deref() == Some("Running");
    let is_ready = pod.status.ready().is_some_and(|ready| ready.status == "True");
    is_running && is_ready && pod.metadata.deletion_timestamp.is_none()
}

fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    READINESS_TAINTS.contains(&taint.key.as_str())
        || tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

/// As the scheduler reads a toleration: an empty key or effect stands for all, `Exists` for every value.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let stands_for = |pattern: &Option<String>, value: &str| {
        pattern.as_deref().filter(|pattern| !pattern.is_empty()).is_none_or(|pattern| pattern == value)
    };
    let same_value =
        || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    let fits = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => same_value(),
        Some("Exists") => true,
        Some(_) => false,
    };
    fits && stands_for(&toleration.key, &taint.key) && stands_for(&toleration.effect, &taint.effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: Option<&str>, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.map(Into::into), effect: effect.into(), ..Taint::default() }
    }

    fn toleration(json: serde_json::Value) -> Toleration {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn tolerations_are_read_as_the_scheduler_reads_them() {
        let cordon = taint("node.kubernetes.io/unschedulable", None, "NoSchedule");
        let documented = toleration(
            serde_json::json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}),
        );
        assert!(tolerates(&documented, &cordon));
        assert!(!tolerates(&documented, &taint("other", None, "NoSchedule")));
        assert!(!tolerates(&documented, &taint("node.kubernetes.io/unschedulable", None, "NoExecute")));

        let valued = taint("dedicated", Some("edge"), "NoExecute");
        assert!(tolerates(&toleration(serde_json::json!({"operator": "Exists"})), &valued));
        assert!(tolerates(&toleration(serde_json::json!({"key": "dedicated", "value": "edge"})), &valued));
        assert!(!tolerates(&toleration(serde_json::json!({"key": "dedicated", "value": "core"})), &valued));
        assert!(!tolerates(&toleration(serde_json::json!({"key": "dedicated", "operator": "Gt"})), &valued));
    }

    #[test]
    fn a_notready_taint_is_left_to_the_grace_period() {
        assert!(is_tolerated(&taint("node.kubernetes.io/not-ready", None, "NoExecute"), &[]));
        assert!(!is_tolerated(&taint("dedicated", None, "PreferNoSchedule"), &[]));
    }

    #[test]
    fn f10_a_provider_without_floating_addresses_is_refused_with_the_names_of_those_that_have_them() {
        assert_eq!(provider("cloudflare").unwrap_err().reason, "UnsupportedProvider");
        assert_eq!(provider("digitalocean").unwrap(), Provider::DigitalOcean);
    }
}
