//! What the controller did with its rights, by the apiserver's own audit log.
//!
//! Where the variable [`FOLDER`] names a folder, every control plane leaves there, when it ends, what the controller's
//! ServiceAccount asked of it. `tests/rights.rs` of the controller holds all that against what is granted.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// The variable that names the folder.
pub const FOLDER: &str = "AUDIT_FOLDER";

/// Requests of the controller alone are logged, each once.
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

/// A kind of request, as rules name it, and whether it was allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The ServiceAccount's name.
    pub account: String,
    /// Such as `apps`; empty for the core.
    pub group: String,
    /// Such as `pods` or `pods/eviction`.
    pub resource: String,
    /// Such as `list`.
    pub verb: String,
    /// Whether the apiserver let it through.
    pub is_allowed: bool,
}

/// Every kind of request in the log of a control plane.
pub(crate) fn used(log: &Path) -> BTreeSet<Use> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| read(&serde_json::from_str(line).ok()?)).collect()
}

fn read(entry: &Value) -> Option<Use> {
    let about = &entry["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let subresource = about["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
    let user = entry["user"]["username"].as_str()?;
    Some(Use {
        account: user.rsplit(':').next()?.to_owned(),
        group: text(&about["apiGroup"]),
        resource: format!("{}{subresource}", about["resource"].as_str()?),
        verb: text(&entry["verb"]),
        is_allowed: entry["annotations"]["authorization.k8s.io/decision"] == "allow",
    })
}

/// Leaves what a control plane was asked in the folder, where there is one. What can't be left is missed by whoever looks.
pub(crate) fn leave(log: &Path, name: &str) {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let lines: Vec<_> = used(log)
        .iter()
        .map(|Use { account, group, resource, verb, is_allowed }| {
            format!("{verb} {resource}.{group} {is_allowed} {account}")
        })
        .collect();
    let _ = std::fs::write(Path::new(&folder).join(name), lines.join("\n"));
}

/// What all control planes left in a folder.
pub fn left(folder: &Path) -> std::io::Result<BTreeSet<Use>> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        all.extend(text.lines().filter_map(|line| {
            let mut parts = line.split(' ');
            let (verb, what, allowed, account) =
                (parts.next()?, parts.next()?, parts.next()?, parts.next()?.to_owned());
            let (resource, group) = what.split_once('.')?;
            let (group, resource, verb) = (group.to_owned(), resource.to_owned(), verb.to_owned());
            Some(Use { account, group, resource, verb, is_allowed: allowed == "true" })
        }));
    }
    Ok(all)
}
