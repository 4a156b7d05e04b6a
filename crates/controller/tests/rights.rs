//! Compares the permissions that the manifests grant with those that the controller used in all other tests. `just e2e`
//! runs this last: it reads the requests that each control plane recorded in a folder.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::audit::{self, Use};

/// The manifests, and the ServiceAccount that each grants permissions to.
const MANIFESTS: [(&str, &str); 2] = [
    ("k8s/rbac.yaml", "ip-address-controller"),
    ("k8s/cluster-api/capi-vip-allocator.yaml", "capi-vip-allocator-controller-manager"),
];

/// Whether only release 0.1.0 needs a permission. It lists its Lease before it watches it, and the rules must also allow
/// that, so that going back to 0.1.0 works.
fn is_for_the_baseline(granted: &Use) -> bool {
    granted.resource == "leases" && granted.verb == "list"
}

/// Every permission that the rules in the manifests grant.
fn granted() -> BTreeSet<Use> {
    let mut granted = BTreeSet::new();
    for (path, account) in MANIFESTS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
        let rules = objects.iter().filter_map(|object| object["rules"].as_array()).flatten();
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        for rule in rules {
            let names = if rule["resourceNames"].is_null() {
                vec![String::new()]
            } else {
                texts(&rule["resourceNames"])
            };
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    // Only names of Leases are compared.
                    let names = if resource == "leases" { names.clone() } else { vec![String::new()] };
                    for (verb, name) in texts(&rule["verbs"])
                        .into_iter()
                        .flat_map(|verb| names.iter().map(move |name| (verb.clone(), name.clone())))
                    {
                        let (account, group, resource) =
                            (account.to_owned(), group.clone(), resource.clone());
                        granted.insert(Use { account, group, resource, verb, name, is_allowed: true });
                    }
                }
            }
        }
    }
    granted
}

#[test]
fn f17_granted_permissions_are_exactly_those_used() {
    let folder = PathBuf::from(std::env::var_os(audit::FOLDER).unwrap());
    let used = audit::left(&folder).unwrap();
    assert!(!used.is_empty(), "no audit logs in {}: run all e2e tests first", folder.display());
    let granted = granted();
    // A refused request counts only if no rule grants it: an apiserver refuses all until it has loaded the RBAC rules.
    let is_granted = |refused: &Use| granted.contains(&Use { is_allowed: true, ..refused.clone() });
    let refused: Vec<_> = used.iter().filter(|used| !used.is_allowed && !is_granted(used)).collect();
    let spare: Vec<_> = granted.difference(&used).filter(|spare| !is_for_the_baseline(spare)).collect();
    println!(
        "{} permissions granted, {} used, {} refused, {} unused",
        granted.len(),
        used.len(),
        refused.len(),
        spare.len()
    );
    assert_eq!((refused, spare), (Vec::new(), Vec::new()));
}
