//! Rollback to FLIPOP: its binary works on our CRDs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testbed::cluster::{eventually, pod};
use testbed::demo;

use crate::manifests;
use crate::rig::{Rig, SOON};

/// Collects the paths of all leaves of an object.
fn leaves(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(&format!("{path}.{name}"), value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| leaves(&format!("{path}[]"), item, found)),
        _ => _ = found.insert(path.to_owned()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flipop_runs_on_our_crds_and_the_fields_that_it_drops_are_known() {
    let rig = Rig::prepare().await;
    for (name, node) in [("nginx-1", "worker-1"), ("nginx-2", "worker-2"), ("nginx-3", "worker-3")] {
        pod("default", name).label("app", "nginx").on(node).create(&rig.client).await.unwrap();
    }
    rig.clouds.digitalocean.with(|digitalocean| digitalocean.add_domain("example.com"));

    // A pool as our controller leaves it, with our fields in spec and status. One address is missing, so FLIPOP creates
    // it and writes the spec.
    let spec = json!({
        "provider": "digitalocean", "region": "nyc3", "desiredIPs": 3,
        "ips": ["203.0.113.10", "203.0.113.11"],
        "dnsRecordSet": {"recordName": "hello", "zone": "example.com", "ttl": 30, "provider": "digitalocean", "adopt": true},
        "match": {"podNamespace": "default", "podLabel": "app=nginx", "nodeLabel": "doks.digitalocean.com/node-pool=work"},
        "policy": {"mode": "Active", "failoverGraceSeconds": 10},
    });
    let mut pool = manifests::pool("ingress-pool", spec);
    rig.control_plane.apply(&pool.to_string()).unwrap();
    let moment = "2026-01-01T00:00:00Z";
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Settled", "message": "all is well", "lastTransitionTime": moment,
    });
    pool["status"] = json!({
        "observedGeneration": 1, "conditions": [condition], "summary": {"desired": 3, "attached": 2},
        "addresses": [{"address": "203.0.113.10", "state": "Attached", "lastHolder": {"vm": "1001"}}],
        "moves": {"version": 1, "epoch": 7}, "lastAssignment": moment, "dns": {"name": "hello.example.com"},
    });
    let path = rig.control_plane.folder().join("pool.json");
    std::fs::write(&path, pool.to_string()).unwrap();
    rig.kubectl(&["apply", "--server-side", "--subresource=status", "-f", path.to_str().unwrap()]);

    let get = || rig.get("floatingippool/ingress-pool");
    let mut before = BTreeSet::new();
    for part in ["spec", "status"] {
        leaves(part, &get()[part], &mut before);
    }

    let flipop = rig.flipop();
    eventually("FLIPOP has three active addresses", SOON, async || {
        let pool = get();
        let ips = pool["status"]["ips"].as_object().cloned().unwrap_or_default();
        let active = ips.values().filter(|ip| ip["state"] == "active").count();
        Ok(active == 3 && pool["spec"]["ips"].as_array().is_some_and(|ips| ips.len() == 3))
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}\n{:#}", flipop.log_tail(), get()));
    let held: Vec<_> = demo::WORKER_NODES
        .iter()
        .map(|(_, droplet)| {
            rig.clouds.digitalocean.with(|digitalocean| {
                let listed = ["203.0.113.10", "203.0.113.11"];
                listed.iter().filter(|address| digitalocean.holder(address) == Some(*droplet)).count()
            })
        })
        .collect();
    assert_eq!(held.iter().sum::<usize>(), 2, "both listed addresses must be on droplets");

    let mut after = BTreeSet::new();
    for part in ["spec", "status"] {
        leaves(part, &get()[part], &mut after);
    }
    let dropped: Vec<_> = before.difference(&after).cloned().collect();
    println!("FLIPOP's writes dropped: {dropped:#?}");
    let expected = [
        "spec.dnsRecordSet.adopt",
        "spec.policy.failoverGraceSeconds",
        "spec.policy.mode",
        "status.addresses[].address",
        "status.addresses[].lastHolder.vm",
        "status.addresses[].state",
        "status.conditions[].lastTransitionTime",
        "status.conditions[].message",
        "status.conditions[].reason",
        "status.conditions[].status",
        "status.conditions[].type",
        "status.dns.name",
        "status.lastAssignment",
        "status.moves.epoch",
        "status.moves.version",
        "status.observedGeneration",
        "status.summary.attached",
        "status.summary.desired",
    ];
    assert_eq!(dropped, expected, "FLIPOP may drop only fields that we added; list each of them here");
}
