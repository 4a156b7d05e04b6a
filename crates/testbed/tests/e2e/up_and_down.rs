//! The command that gives a person a control plane: `just testbed up` and `down`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const READY_SECONDS_MAX: u64 = 10;

fn testbed(folder: &Path, action: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    let output = command.arg(action).arg("--folder").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Processes whose command line names the given folder.
fn processes_of(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let command_lines =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    command_lines.filter(|line| line.contains(folder)).collect()
}

#[test]
fn up_is_ready_in_time_and_says_what_to_type_next_and_down_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().join("testbed");
    let started = Instant::now();
    let said = testbed(&home, "up");
    let took = started.elapsed();
    println!("testbed up was ready after {took:?}");
    assert!(took < Duration::from_secs(READY_SECONDS_MAX), "up took {took:?}");
    assert!(said.contains("export KUBECONFIG="), "{said}");
    let last = said.lines().last().unwrap();
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
    assert_eq!(processes_of(folder), Vec::<String>::new(), "a process was left behind");
    assert!(!Path::new(folder).exists() && !home.exists(), "a file was left behind");
    assert!(testbed(&home, "down").contains("No control plane was running"));
}
