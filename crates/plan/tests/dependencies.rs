//! Which crate may depend on which. A dependency in the wrong direction fails here.
#![allow(clippy::unwrap_used, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;
use std::path::Path;

/// A crate, the workspace crates it may depend on, and external crates it must not depend on directly.
const RULES: &[(&str, &[&str], &[&str])] = &[
    (
        "plan",
        &[],
        &["kube", "k8s-openapi", "tokio", "futures", "reqwest", "http", "tower", "serde", "tracing"],
    ),
    ("api", &[], &["tokio", "reqwest", "http", "tower", "tracing"]),
    ("drivers", &["plan"], &["kube", "k8s-openapi"]),
    ("testbed", &["api"], &[]),
    ("controller", &["api", "drivers", "plan"], &[]),
    ("sim", &["api", "controller", "drivers", "plan", "testbed"], &[]),
];

const WORKSPACE: [&str; 6] = ["plan", "api", "drivers", "controller", "testbed", "sim"];

fn dependencies(name: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    manifest["dependencies"].as_table().unwrap().keys().cloned().collect()
}

#[test]
fn every_crate_has_a_rule() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    let found: BTreeSet<_> = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, WORKSPACE.map(String::from).into());
    assert_eq!(RULES.iter().map(|(name, ..)| *name).collect::<BTreeSet<_>>(), WORKSPACE.into());
}

#[test]
fn dependencies_point_the_right_way() {
    for (name, allowed, forbidden) in RULES {
        for dependency in dependencies(name) {
            let is_ours = WORKSPACE.contains(&dependency.as_str());
            assert!(
                !is_ours || allowed.contains(&dependency.as_str()),
                "{name} must not depend on {dependency}"
            );
            assert!(!forbidden.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
}
