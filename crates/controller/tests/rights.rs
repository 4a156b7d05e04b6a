//! The rights that are granted are those that the controller uses: `just e2e` runs this after all other tests.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::audit::{self, Use};

/// Everything that the rules in the manifest allow.
fn granted() -> BTreeSet<Use> {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../k8s/rbac.yaml")).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let rules = objects.iter().filter_map(|object| object["rules"].as_array()).flatten();
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in rules {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    let (group, resource) = (group.clone(), resource.clone());
                    granted.insert(Use { group, resource, verb, is_allowed: true });
                }
            }
        }
    }
    granted
}

#[test]
fn f17_the_rights_that_are_granted_are_those_that_are_used_and_nothing_is_refused() {
    let folder = PathBuf::from(std::env::var_os(audit::FOLDER).unwrap());
    let used = audit::left(&folder).unwrap();
    assert!(!used.is_empty(), "no control plane left anything in {}", folder.display());
    let granted = granted();
    // An apiserver that has just started refuses even what it knows the rules for a moment later.
    let is_granted = |refused: &Use| granted.contains(&Use { is_allowed: true, ..refused.clone() });
    let refused: Vec<_> = used.iter().filter(|used| !used.is_allowed && !is_granted(used)).collect();
    let spare: Vec<_> = granted.difference(&used).collect();
    println!(
        "{} rights granted, {} used, {} refused, {} spare",
        granted.len(),
        used.len(),
        refused.len(),
        spare.len()
    );
    assert_eq!((refused, spare), (Vec::new(), Vec::new()));
}
