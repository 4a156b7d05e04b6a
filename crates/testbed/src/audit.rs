//! Collects which permissions the controller uses, from the apiserver's audit log.
//!
//! In: the audit log of each control plane. Out: if the environment variable [`FOLDER`] names a folder, one file in it
//! for each control plane, written when a test ends. The file lists the kinds of requests that the controller's
//! ServiceAccounts sent. `tests/rights.rs` of the controller compares all files with the permissions that RBAC grants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

/// The environment variable that names the folder.
pub const FOLDER: &str = "AUDIT_FOLDER";

/// The audit policy: logs each request of the controller's ServiceAccounts once, and no others.
pub(crate) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users:
      - 'system:serviceaccount:kube-system:ip-address-controller'
      - 'system:serviceaccount:capi-system:capi-vip-allocator-controller-manager'
  - level: None
";

/// A kind of request, in the terms of RBAC rules, and whether the apiserver allowed it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The ServiceAccount's name.
    pub account: String,
    /// The API group, such as `apps`. Empty for the core group.
    pub group: String,
    /// The resource, such as `pods` or `pods/eviction`.
    pub resource: String,
    /// The verb, such as `list`.
    pub verb: String,
    /// The name of the object, if it is a Lease. Rules for Leases are limited to some names. Empty for other resources,
    /// and for the creation of a Lease.
    pub name: String,
    /// Whether the apiserver allowed it.
    pub is_allowed: bool,
}

/// Every kind of request in a control plane's audit log.
pub(crate) fn used(log: &Path) -> BTreeSet<Use> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| read(&serde_json::from_str(line).ok()?)).collect()
}

/// How often each request, as verb and resource or path, was sent in a period.
pub(crate) fn counted(log: &Path, from: Timestamp, until: Timestamp) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let (mut seen, mut counted) = (BTreeSet::new(), BTreeMap::new());
    for entry in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let at = entry["requestReceivedTimestamp"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
        let is_meant = at.is_some_and(|at| from <= at && at < until);
        // A watch is in the log twice: when it starts and when it ends.
        if is_meant && seen.insert(entry["auditID"].to_string()) {
            let verb = entry["verb"].as_str().unwrap_or_default();
            let what = read(&entry).map_or_else(|| entry["requestURI"].to_string(), |used| used.resource);
            *counted.entry(format!("{verb} {what}")).or_default() += 1;
        }
    }
    counted
}

fn read(entry: &Value) -> Option<Use> {
    let about = &entry["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let subresource = about["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
    let user = entry["user"]["username"].as_str()?;
    let is_named = about["resource"] == "leases" && entry["verb"] != "create";
    Some(Use {
        account: user.rsplit(':').next()?.to_owned(),
        group: text(&about["apiGroup"]),
        resource: format!("{}{subresource}", about["resource"].as_str()?),
        verb: text(&entry["verb"]),
        name: if is_named { text(&about["name"]) } else { String::new() },
        is_allowed: entry["annotations"]["authorization.k8s.io/decision"] == "allow",
    })
}

/// Writes the requests in a control plane's audit log into the folder, if [`FOLDER`] is set. Ignores write errors:
/// `tests/rights.rs` then reports permissions as unused.
pub(crate) fn leave(log: &Path, name: &str) {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let lines: Vec<_> = used(log)
        .iter()
        .map(|Use { account, group, resource, verb, name, is_allowed }| {
            format!("{verb} {resource}.{group} {is_allowed} {account} {name}")
        })
        .collect();
    let _ = std::fs::write(Path::new(&folder).join(name), lines.join("\n"));
}

/// Reads the requests that all control planes wrote into a folder.
pub fn left(folder: &Path) -> std::io::Result<BTreeSet<Use>> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        all.extend(text.lines().filter_map(|line| {
            let mut parts = line.split(' ');
            let (verb, what, allowed, account) =
                (parts.next()?, parts.next()?, parts.next()?, parts.next()?.to_owned());
            let name = parts.next().unwrap_or_default().to_owned();
            let (resource, group) = what.split_once('.')?;
            let (group, resource, verb) = (group.to_owned(), resource.to_owned(), verb.to_owned());
            Some(Use { account, group, resource, verb, name, is_allowed: allowed == "true" })
        }));
    }
    Ok(all)
}
