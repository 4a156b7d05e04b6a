//! The policies in docs/policies/ grant exactly what the calls of the drivers need.
#![allow(clippy::unwrap_used, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;

use drivers::{azure, digitalocean, google};

/// The entries of a policy with one entry per line.
fn granted<'a>(policy: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    policy
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix(prefix))
        .collect()
}

#[test]
fn the_google_cloud_role_grants_exactly_what_the_calls_need() {
    let policy = include_str!("../../../docs/policies/google-cloud-role.yaml");
    let needed: BTreeSet<_> = google::addresses::CALLS
        .iter()
        .flat_map(|call| testbed::fake::compute::permissions_of(call))
        .collect();
    assert_eq!(granted(policy, "- "), needed);
}

#[test]
fn the_digitalocean_scopes_are_exactly_what_the_calls_need() {
    let policy = include_str!("../../../docs/policies/digitalocean-scopes.txt");
    let calls = digitalocean::addresses::CALLS.iter().chain(digitalocean::records::CALLS);
    assert_eq!(granted(policy, ""), calls.map(|call| digitalocean::permission_of(call)).collect());
}

#[test]
fn the_azure_role_grants_exactly_what_the_calls_need() {
    let policy = include_str!("../../../docs/policies/azure-role.json");
    let policy: serde_json::Value = serde_json::from_str(policy).unwrap();
    let allowed = policy["Actions"].as_array().unwrap().iter().map(|action| action.as_str().unwrap());
    let needed = azure::addresses::CALLS.iter().flat_map(|call| testbed::fake::azure::actions_of(call));
    assert_eq!(allowed.collect::<BTreeSet<_>>(), needed.collect());
}

#[cfg(feature = "aws")]
#[test]
fn the_aws_policy_grants_exactly_what_the_calls_need() {
    let policy: serde_json::Value =
        serde_json::from_str(include_str!("../../../docs/policies/aws.json")).unwrap();
    let statements = policy["Statement"].as_array().unwrap().iter();
    let actions = statements.flat_map(|statement| statement["Action"].as_array().unwrap());
    let granted: BTreeSet<String> = actions.map(|action| action.as_str().unwrap().to_owned()).collect();
    let addresses = drivers::aws::addresses::CALLS.iter().map(|call| format!("ec2:{call}"));
    let names = drivers::aws::records::CALLS.iter().map(|call| format!("route53:{call}"));
    // A new address gets its tag when it is created, which needs this permission.
    let needed = addresses.chain(names).chain(["ec2:CreateTags".to_owned()]);
    assert_eq!(granted, needed.collect());
}
