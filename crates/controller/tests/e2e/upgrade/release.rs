//! The two releases that succeed each other: 0.1.0 and the current one, with their binaries and manifests.

use std::fmt;
use std::path::PathBuf;

use testbed::tools;

use crate::rig::read;

const FOLDER: &str = "crates/controller/tests/baseline";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    Baseline,
    Current,
}

impl Release {
    pub fn other(self) -> Self {
        match self {
            Self::Baseline => Self::Current,
            Self::Current => Self::Baseline,
        }
    }

    pub fn binary(self) -> PathBuf {
        match self {
            Self::Baseline => tools::baseline().unwrap(),
            Self::Current => PathBuf::from(env!("CARGO_BIN_EXE_ip-address-controller")),
        }
    }

    /// Its three CRDs, its RBAC manifest, and its RBAC manifest for Cluster API.
    pub fn manifests(self) -> [String; 5] {
        let (crds, rbac, cluster_api) = match self {
            Self::Baseline => (
                format!("{FOLDER}/crds"),
                format!("{FOLDER}/rbac.yaml"),
                format!("{FOLDER}/cluster-api.yaml"),
            ),
            Self::Current => {
                ("crds".into(), "k8s/rbac.yaml".into(), "k8s/cluster-api/capi-vip-allocator.yaml".into())
            }
        };
        let crd = |name: &str| read(&format!("{crds}/{name}.yaml"));
        let [allocation, pool, records] = ["netipallocation", "floatingippool", "nodednsrecordset"].map(crd);
        [allocation, pool, records, read(&rbac), read(&cluster_api)]
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "0.1.0",
            Self::Current => "current",
        })
    }
}
