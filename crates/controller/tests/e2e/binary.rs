//! Starts the binary without any environment variable, and with the flags of capi-vip-allocator.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testbed::cluster::eventually;
use testbed::control_plane::{Options, free_ports};
use testbed::process::Process;

use crate::rig::{Controller, Rig, SOON};

/// Another test run on the same machine may use the default ports for this long.
const PORTS_FREE_WITHIN: Duration = Duration::from_secs(120);

/// Starts the binary with these arguments and only the environment variables that every process needs. The ports are
/// those that the arguments set, or the defaults.
fn start(rig: &Rig, name: &str, arguments: &[&str], [health_port, metrics_port]: [u16; 2]) -> Controller {
    let configure = |command: &mut Command| {
        let needed = ["PATH", "HOME"];
        for (name, _) in std::env::vars_os().filter(|(name, _)| !needed.iter().any(|needed| name == needed)) {
            command.env_remove(name);
        }
        command.arg("--kubeconfig").arg(&rig.kubeconfig).args(arguments);
    };
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ip-address-controller"));
    let process = Process::start(name, &program, configure, rig.control_plane.folder()).unwrap();
    Controller { process, health_port, metrics_port }
}

/// The HTTP status of a page, or `None` if nothing listens on the port.
async fn status(port: u16, path: &str) -> Option<u16> {
    let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await.ok()?;
    Some(answer.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn n11_v6_defaults_and_flags_of_capi_vip_allocator_work() {
    let rig = Rig::with(Options::api_only()).await;
    eventually("the default ports are free", PORTS_FREE_WITHIN, async || {
        Ok([9999, 8080].into_iter().all(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()))
    })
    .await
    .unwrap();
    let plain = start(&rig, "ip-address-controller-plain", &[], [8080, 9999]);
    plain.until_log("acquired the lease").await;
    let duration = "jsonpath={.spec.leaseDurationSeconds}";
    let lease = ["get", "lease", "ip-address-controller-leader", "-n", "kube-system", "-o", duration];
    assert_eq!(rig.kubectl(&lease), "60");
    let pages = [(8080, "/healthz"), (8080, "/readyz"), (8080, "/metrics"), (9999, "/metrics")];
    for (port, path) in pages {
        assert_eq!(status(port, path).await, Some(200), "{port}{path}");
    }
    let text = plain.metrics().await.unwrap();
    let version = format!("version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    let info = text.lines().find(|line| line.starts_with("netipallocation_controller_info{")).unwrap();
    assert!(info.contains(&version) && !info.contains("cluster="), "{info}");
    assert!(plain.stop().success());

    let ports = free_ports(3).unwrap();
    let (metrics, health) = (ports[0], ports[1]);
    let addresses = [
        format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        format!("--health-probe-bind-address=:{health}"),
    ];
    let of_zap = [
        "--zap-devel=false",
        "--zap-encoder=json",
        "--zap-log-level=debug",
        "--zap-stacktrace-level=error",
        "--zap-time-encoding=iso8601",
    ];
    let arguments = [&["-leader-elect=true", &*addresses[0], &*addresses[1]][..], &of_zap].concat();
    let with_flags = start(&rig, "ip-address-controller-flags", &arguments, [health, metrics]);
    with_flags.until_log("acquired the lease").await;
    let pages = [
        (health, "/healthz", 200),
        (health, "/readyz", 200),
        (metrics, "/metrics", 200),
        (metrics, "/healthz", 404),
    ];
    for (port, path, expected) in pages {
        assert_eq!(status(port, path).await, Some(expected), "{port}{path}");
    }
    assert_eq!(status(9999, "/metrics").await, None, "nothing may listen on the default port");
    let log = with_flags.log();
    assert!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{log}");
    assert!(with_flags.stop().success());

    let off = format!("--health-probe-bind-address=:{}", ports[2]);
    let _without_metrics =
        start(&rig, "ip-address-controller-off", &["--metrics-bind-address=0", &off], [ports[2], 0]);
    eventually("probes are answered", SOON, async || Ok(status(ports[2], "/healthz").await == Some(200)))
        .await
        .unwrap();
    assert_eq!(status(ports[2], "/metrics").await, Some(404), "metrics must be off on the probe port too");
}
