//! Runs the real clusterctl, which installs providers of Cluster API.
//!
//! In: a provider's release, as it would be published. Out: the objects that clusterctl would apply, or its error. It
//! never contacts a cluster, and reads only a temporary folder.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::tools;

/// The type of a provider.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// An add-on provider.
    Addon,
    /// An IPAM provider.
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

/// A provider's release: its two files, and the type, name and version by which clusterctl finds them.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    /// The provider's type.
    pub kind: Kind,
    /// The provider's name.
    pub name: &'a str,
    /// The version, such as `v0.1.0`. The metadata must have a release series with its major and minor number.
    pub version: &'a str,
    /// All objects, including a Namespace. Variables have the form `${NAME:=default}`.
    pub components: &'a str,
    /// An object of kind `Metadata` in `clusterctl.cluster.x-k8s.io/v1alpha3`. Its `releaseSeries` maps each release
    /// series to a contract of Cluster API.
    pub metadata: &'a str,
}

impl Release<'_> {
    /// The objects that clusterctl would apply, with its labels and with variables replaced by their values.
    pub fn render(&self) -> Result<String> {
        let Self { kind, name, version, components, metadata } = self;
        let kind_word = kind.in_labels_and_flags();
        let folder = tempfile::tempdir()?;
        // clusterctl requires this layout for a local release: label, version, files.
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
        // Otherwise clusterctl checks online for a newer version, and reads the user's configuration.
        clusterctl.env("CLUSTERCTL_DISABLE_VERSIONCHECK", "true").env("HOME", folder.path());
        let output = clusterctl.env_remove("XDG_CONFIG_HOME").output()?;
        ensure!(
            output.status.success(),
            "clusterctl failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}
