//! Runs the real external-dns, which creates records in a name server from `DNSEndpoint` objects of a control plane.
//!
//! In: a control plane and a name server. Out: a running external-dns that synchronizes every second, or none if it is
//! not built. `just tools` does not build it, because that takes long; `tools/build external-dns` does. external-dns
//! also writes ownership records into the zone, and never deletes a name.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::control_plane::{ControlPlane, free_ports};
use crate::nameserver::Nameserver;
use crate::process::Process;
use crate::tools;

/// The CRD of `DNSEndpoint`, with the fields that the tests use.
const DEFINITION: &str = include_str!("external_dns/dnsendpoint.yaml");

/// A running external-dns.
#[derive(Debug)]
pub struct ExternalDns {
    process: Process,
}

impl ExternalDns {
    /// Installs `DNSEndpoint` and starts external-dns. Does nothing and returns none if external-dns is not built.
    pub fn start(control_plane: &ControlPlane, nameserver: &Nameserver) -> Result<Option<Self>> {
        let Some(program) = tools::binary_on_request("external-dns")? else { return Ok(None) };
        Self::install_crd(control_plane)?;
        let (address, metrics_port) = (nameserver.address(), free_ports(1)?[0]);
        let configure = |command: &mut Command| {
            command
                .arg(format!("--kubeconfig={}", control_plane.kubeconfig().display()))
                .arg(format!("--metrics-address=127.0.0.1:{metrics_port}"))
                .args(["--source=crd", "--crd-source-kind=DNSEndpoint"])
                .arg("--crd-source-apiversion=externaldns.k8s.io/v1alpha1")
                .args(["--interval=1s", "--policy=upsert-only", "--txt-owner-id=testbed"])
                .arg(format!("--domain-filter={}", nameserver.zone()))
                .args(["--provider=rfc2136", "--rfc2136-tsig-secret-alg=hmac-sha256", "--rfc2136-tsig-axfr"])
                .arg(format!("--rfc2136-host={}", address.ip()))
                .arg(format!("--rfc2136-port={}", address.port()))
                .arg(format!("--rfc2136-zone={}", nameserver.zone()))
                .arg(format!("--rfc2136-tsig-keyname={}", nameserver.key_name()))
                .arg(format!("--rfc2136-tsig-secret={}", nameserver.secret()));
        };
        let process = Process::start("external-dns", &program, configure, control_plane.folder())?;
        Ok(Some(Self { process }))
    }

    /// Installs only the CRD of `DNSEndpoint`.
    pub fn install_crd(control_plane: &ControlPlane) -> Result<()> {
        control_plane.apply(DEFINITION)?;
        let definition = "crd/dnsendpoints.externaldns.k8s.io";
        let waited =
            control_plane.kubectl().args(["wait", "--for=condition=Established", definition]).output()?;
        ensure!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
        Ok(())
    }

    /// The end of external-dns' log, for error messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}
