//! Generates the CRDs in `crds/` from the types of this crate.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::{ADDRESSES_MAX, FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};

/// Every CRD with the name of its file.
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("netipallocation.yaml", NetIPAllocation::crd()),
        ("floatingippool.yaml", FloatingIPPool::crd()),
        ("nodednsrecordset.yaml", NodeDNSRecordSet::crd()),
    ]
}

/// Schema of a list of IP addresses. `maxItems` and `maxLength` bound the cost of the rule, as the apiserver requires.
pub(crate) fn addresses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": ADDRESSES_MAX,
        "items": {
            "type": "string",
            "maxLength": 45,
            "x-kubernetes-validations": [
                {"rule": "isIP(self)", "message": "must be an IPv4 or IPv6 address"},
            ],
        },
    })
}

/// The same schema, which also accepts `null`.
pub(crate) fn optional_addresses(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = addresses(generator);
    schema.insert("nullable".into(), true.into());
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// `just generate` sets `REGENERATE`. The test then writes the files instead of comparing them.
    #[test]
    fn the_crds_folder_is_generated_from_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        for (name, crd) in all() {
            let text = format!(
                "# Generated from crates/api by `just generate`; do not edit.\n{}",
                serde_saphyr::to_string(&crd).unwrap()
            );
            let path = folder.join(name);
            if std::env::var_os("REGENERATE").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == text, "crds/{name} is out of date: run `just generate`");
        }
    }

    #[test]
    fn every_field_is_documented() {
        fn undocumented(path: &str, schema: &serde_json::Value, missing: &mut Vec<String>) {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let path = format!("{path}.{name}");
                if property["description"].as_str().unwrap_or_default().is_empty() {
                    missing.push(path.clone());
                }
                undocumented(&path, property, missing);
                undocumented(&path, &property["items"], missing);
                undocumented(&path, &property["additionalProperties"], missing);
            }
        }
        for (_, crd) in all() {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
            let mut missing = Vec::new();
            undocumented("", &schema["openAPIV3Schema"], &mut missing);
            missing.retain(|path| path != ".spec" && path != ".status");
            assert_eq!(missing, Vec::<String>::new(), "{} has undocumented fields", crd.spec.names.kind);
        }
    }
}
