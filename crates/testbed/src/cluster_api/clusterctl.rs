//! The real clusterctl, which installs providers of Cluster API.
//!
//! In: a release of a provider, as it would be published. Out: what clusterctl would apply of it, or why it refuses it. It
//! asks no cluster and reads nothing but a folder of ours.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::tools;

/// What a provider provides.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Something beside Cluster API itself.
    Addon,
    /// Addresses.
    Ipam,
}

impl Kind {
    const fn in_configuration(self) -> &'static str {
        match self {
            Self::Addon => "AddonProvider",
            Self::Ipam => "IPAMProvider",
        }
    }

    const fn in_labels_and_flags(self) -> &'static str {
        match self {
            Self::Addon => "addon",
            Self::Ipam => "ipam",
        }
    }
}

/// A release of a provider: two files, and how they are found.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// What it provides.
    pub kind: Kind,
    /// The provider's name.
    pub name: &'a str,
    /// Such as `v0.1.0`. A release series of the metadata must have its major and minor number.
    pub version: &'a str,
    /// All objects, with a Namespace among them, and with variables in the form `${NAME:=default}`.
    pub components: &'a str,
    /// An object of kind `Metadata` in `clusterctl.cluster.x-k8s.io/v1alpha3`, whose `releaseSeries` says which contract of
    /// Cluster API each series keeps to.
    pub metadata: &'a str,
}

impl Release<'_> {
    /// What clusterctl would apply, with its labels and with the variables' values filled in.
    pub fn render(&self) -> Result<String> {
        let Self { kind, name, version, components, metadata } = self;
        let kind_word = kind.in_labels_and_flags();
        let folder = tempfile::tempdir()?;
        // A release in a folder is found only under this path: its label, its version, its files.
        let release = folder.path().join(format!("{kind_word}-{name}")).join(version);
        std::fs::create_dir_all(&release)?;
        let components_file = release.join("components.yaml");
        std::fs::write(&components_file, components)?;
        std::fs::write(release.join("metadata.yaml"), metadata)?;
        let provider = json!({"name": name, "type": kind.in_configuration(), "url": components_file});
        let configuration = folder.path().join("clusterctl.yaml");
        std::fs::write(&configuration, json!({"providers": [provider]}).to_string())?;

        let mut clusterctl = Command::new(tools::binary("clusterctl")?);
        clusterctl.args(["generate", "provider"]).arg(format!("--{kind_word}={name}:{version}"));
        clusterctl.arg("--config").arg(&configuration);
        // It would ask for newer versions of itself, and read the user's own configuration.
        clusterctl.env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true").env("HOME", folder.path());
        let output = clusterctl.env_remove("XDG_CONFIG_HOME").output()?;
        ensure!(output.status.success(), "clusterctl: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}
