//! A pool that creates its addresses, and functions that read its spec, its status and the account.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::fake::ledger::CloudChange;

use crate::rig::{Requests, Rig, SOON};

pub const POOL: &str = "floatingippool/made";

/// A pool that creates its addresses for nodes with this label.
pub fn pool(desired: usize, node_label: &str, policy: &str) -> String {
    format!(
        "apiVersion: flipop.digitalocean.com/v1alpha1
kind: FloatingIPPool
metadata: {{name: made, namespace: default}}
spec:
  provider: digitalocean
  region: nyc3
  desiredIPs: {desired}
  match: {{nodeLabel: '{node_label}'}}
  policy: {{{policy}}}
"
    )
}

pub fn listed(rig: &Rig) -> Vec<String> {
    let ips = rig.get(POOL)["spec"]["ips"].as_array().cloned().unwrap_or_default();
    ips.iter().map(|ip| ip.as_str().unwrap().to_owned()).collect()
}

pub fn list(rig: &Rig, ips: &[String]) {
    let patch = json!({"spec": {"ips": ips}}).to_string();
    rig.kubectl(&["patch", POOL, "--type=merge", "-p", &patch]);
}

/// The condition `Stalled` if it is true: its message names what a person has to do.
pub fn stalled(rig: &Rig) -> Option<Value> {
    let conditions = rig.get(POOL)["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_stalled = |condition: &Value| condition["type"] == "Stalled" && condition["status"] == "True";
    conditions.into_iter().find(is_stalled)
}

pub fn in_account(rig: &Rig) -> BTreeSet<String> {
    rig.clouds.digitalocean.with(|account| account.reserved_ips()).into_iter().collect()
}

/// Creates a pool that creates one address and releases surplus ones. Then adds the address `victim` to its spec, and
/// forges its status so that the pool seems to have created both. Returns the address that the pool did create.
pub async fn forge_created(rig: &Rig, victim: &str) -> String {
    rig.control_plane.apply(&pool(1, "nobody=has-this", "releaseCreated: WhenUnneeded")).unwrap();
    eventually("the pool creates its address", SOON, async || {
        Ok(listed(rig).len() == 1 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap();
    let own = listed(rig)[0].clone();
    list(rig, &[own.clone(), victim.to_owned()]);
    let addresses = || rig.get(POOL)["status"]["addresses"].as_array().cloned().unwrap_or_default();
    eventually("the status has both addresses", SOON, async || {
        Ok(addresses().iter().any(|status| status["address"] == victim))
    })
    .await
    .unwrap();
    let mut all = addresses();
    all.iter_mut().for_each(|status| status["created"] = true.into());
    let forged = json!({"status": {"addresses": all}}).to_string();
    rig.kubectl(&["patch", POOL, "--subresource=status", "--type=merge", "-p", &forged]);
    own
}

pub fn is_release(change: &CloudChange) -> bool {
    matches!(change, CloudChange::Released { .. })
}

/// Raises the desired number while a controller runs that dies at the given request. Returns whether it died.
async fn creates_when_killed_at(rig: &Rig, failpoint: &str, desired: usize) -> bool {
    let provoke = || rig.control_plane.apply(&pool(desired, "nobody=has-this", "")).unwrap();
    let is_done = || listed(rig).len() == desired && rig.get(POOL)["status"]["moves"].is_null();
    rig.survives_kill(failpoint, POOL, provoke, is_done).await
}

/// Kills the controller before and after each of these requests of a creation, until a creation takes fewer requests.
/// Returns at how many requests it was killed.
pub async fn kills_at(requests: Requests) -> usize {
    let rig = Rig::prepare().await;
    let mut foreign = in_account(&rig);
    let (mut killed, mut desired) = (0, 0);
    for number in requests {
        let mut died = false;
        for when in ["before", "after"] {
            desired += 1;
            let stranger = format!("198.51.100.{desired}");
            rig.clouds.digitalocean.with(|account| account.add_reserved_ip(&stranger, "nyc3"));
            foreign.insert(stranger);
            died |= creates_when_killed_at(&rig, &format!("kill-{when}:{number}"), desired).await;
            let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
            assert_eq!(&in_account(&rig) - &foreign, ours, "kill-{when}:{number} leaked or lost an address");
            assert!(foreign.is_subset(&in_account(&rig)), "a foreign address was released");
        }
        if !died {
            break;
        }
        killed += 1;
    }
    killed
}
