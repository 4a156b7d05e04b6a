//! Tests of `just testbed up` and `just testbed down`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::control_plane::{ControlPlane, Options};

/// The longest time that `up` may take, as a multiple of the time that its servers alone take: `up` also installs the
/// CRDs and creates six nodes. A limit in seconds would depend on the load of the machine.
const READY_RATIO_MAX: f64 = 3.0;

/// The time that the servers alone take to start.
fn servers_alone() -> Duration {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let started = Instant::now();
    let control_plane = runtime.block_on(ControlPlane::start(Options::everything())).unwrap();
    let took = started.elapsed();
    drop(control_plane);
    took
}

fn testbed(folder: &Path, action: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    let output = command.arg(action).arg("--folder").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The command lines that contain the given folder, of all processes.
fn processes_of(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let command_lines =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    command_lines.filter(|line| line.contains(folder)).collect()
}

#[test]
fn up_prints_the_next_commands_and_down_removes_everything() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().join("testbed");
    let alone = servers_alone();
    let started = Instant::now();
    let printed = testbed(&home, "up");
    let took = started.elapsed();
    let alone = servers_alone().max(alone);
    println!("testbed up was ready after {took:?}; its servers alone took {alone:?}");
    assert!(took < alone.mul_f64(READY_RATIO_MAX), "up took {took:?}, its servers alone {alone:?}");
    assert!(printed.contains("export KUBECONFIG="), "{printed}");
    let last = printed.lines().last().unwrap();
    let kubeconfig = last.strip_prefix("KUBECONFIG=").unwrap();

    let kubectl = testbed::tools::binary("kubectl").unwrap();
    let nodes = Command::new(kubectl)
        .args(["get", "nodes", "-o", "name", "--kubeconfig", kubeconfig])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(nodes.stdout).unwrap().lines().count(), 6);

    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    let authority = config["clusters"][0]["cluster"]["certificate-authority"].as_str().unwrap();
    let folder = authority.strip_suffix("/certificates/apiserver.crt").unwrap();
    assert!(processes_of(folder).len() >= 5);

    testbed(&home, "down");
    assert_eq!(processes_of(folder), Vec::<String>::new(), "a process still runs after `down`");
    assert!(!Path::new(folder).exists() && !home.exists(), "a file still exists after `down`");
    assert!(testbed(&home, "down").contains("No control plane was running"));
}
