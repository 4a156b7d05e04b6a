//! The controller's own binary on a real control plane, with the demonstration's nodes and fake clouds.

use std::path::{Path, PathBuf};
use std::process::Command;

use kube::Client;
use serde_json::Value;
use testbed::control_plane::{ControlPlane, Options, free_ports};
use testbed::demo::{self, Clouds, Servers};
use testbed::process::Process;

pub struct Rig {
    pub controller: Process,
    pub client: Client,
    pub clouds: Clouds,
    pub health_port: u16,
    pub metrics_port: u16,
    _servers: Servers,
    pub control_plane: ControlPlane,
}

impl Rig {
    pub async fn start() -> Self {
        let control_plane = ControlPlane::start(Options::everything()).await.unwrap();
        control_plane.install_crds().await.unwrap();
        control_plane.apply(&read("k8s/rbac.yaml")).unwrap();
        let client = control_plane.client().await.unwrap();
        for node in demo::nodes() {
            node.create(&client).await.unwrap();
        }
        let clouds = Clouds::default();
        let servers = clouds.serve(0).await.unwrap();
        let ports = free_ports(2).unwrap();
        let kubeconfig = control_plane.kubeconfig_for("kube-system", "ip-address-controller").unwrap();
        let configure = |command: &mut Command| {
            command.arg("--kubeconfig").arg(&kubeconfig).envs(servers.environment());
            command.env("HEALTH_PORT", ports[0].to_string()).env("METRICS_PORT", ports[1].to_string());
        };
        let program = Path::new(env!("CARGO_BIN_EXE_ip-address-controller"));
        let controller =
            Process::start("ip-address-controller", program, configure, control_plane.folder()).unwrap();
        Self {
            controller,
            client,
            clouds,
            health_port: ports[0],
            metrics_port: ports[1],
            _servers: servers,
            control_plane,
        }
    }

    /// What kubectl prints, or panics with what it complains of.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.control_plane.kubectl().args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {said}; the controller:\n{}",
            self.controller.log_tail()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// An object as JSON.
    pub fn get(&self, what: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", what, "-o", "json"])).unwrap()
    }

    /// The names of nodes that carry the label `ip.ready=true`.
    pub fn ready_nodes(&self) -> Vec<String> {
        let names = self.kubectl(&["get", "nodes", "-l", "ip.ready=true", "-o", "name"]);
        names.lines().map(|line| line.trim_start_matches("node/").to_owned()).collect()
    }

    /// The address that a node's annotation tells.
    pub fn annotation(&self, node: &str) -> Option<String> {
        let node = self.get(&format!("node/{node}"));
        node["metadata"]["annotations"][api::RESERVED_IP_ANNOTATION].as_str().map(ToOwned::to_owned)
    }
}

/// A file of the repository.
pub fn read(path: &str) -> String {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}
