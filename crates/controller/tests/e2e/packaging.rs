//! What users install: the chart, and the plain manifests and the kustomize base that are rendered from it.
//! `tools/render --check` ensures that these are up to date.
//!
//! kwok simulates the kubelet, so no container runs. All other tests check what the controller does with the
//! permissions in the manifests.

use std::path::Path;
use std::process::Command;

use clap::CommandFactory;
use controller::settings::Settings;
use serde_json::{Value, json};
use testbed::cluster::{eventually, node, pod};
use testbed::control_plane::{ControlPlane, Options};
use testbed::tools;

use crate::rig::{SOON, read, root};

const DEFINITION: &str = "netipallocations.netinfra.darkbrains.com";
const INTERVAL: &str = "/openAPIV3Schema/properties/spec/properties/reconcileInterval";

/// The commands that the Python controller documents, in its order, and a part of what each prints. Its placeholders
/// are replaced by kube-system and the only node.
const COMMANDS: [(&str, &str); 12] = [
    ("kubectl apply -f crds/", "netipallocations.netinfra.darkbrains.com created"),
    ("kubectl apply -f k8s/", "deployment.apps/ip-address-controller created"),
    // Not documented: this test is faster than a person and has to wait.
    ("kubectl rollout status deployment/ip-address-controller --timeout=60s", "successfully rolled out"),
    (
        "kubectl apply -f - <crates/controller/tests/fixtures/seeds/netipallocation-quick-start.yaml",
        "created",
    ),
    ("kubectl get netipallocations", "my-app-ips"),
    ("kubectl get nodes -l ip.ready=true", ""),
    ("kubectl get nodes -l role=your-selector", ""),
    ("kubectl get lease ip-address-controller-leader -n kube-system -o yaml", "kind: Lease"),
    ("kubectl get pods -l app=ip-address-controller", "Running"),
    ("kubectl get pods -o wide | grep node-1", "ip-address-controller-"),
    ("kubectl rollout restart deployment/ip-address-controller", "restarted"),
    (
        "kubectl get pod -n kube-system -l app=ip-address-controller -o jsonpath='{.items[0].metadata.name}'",
        "ip-address-controller-",
    ),
];

/// Documented commands that can't run here, and why.
const NOT_RUN: [(&str, &str); 4] = [
    ("kubectl logs -l app=ip-address-controller", "needs a kubelet"),
    ("kubectl port-forward -n kube-system pod/… 9999:9999", "needs a kubelet"),
    ("kubectl get podmonitor -n monitoring", "needs the CRDs of the Prometheus operator"),
    ("kubectl get configmap ip-address-controller-dashboard -n monitoring", "needs Grafana"),
];

/// The commands that FLIPOP's users install with, and a part of what each prints. The guide shows the same commands.
const COMMANDS_OF_FLIPOP: [(&str, &str); 4] = [
    ("kubectl create namespace flipop", "namespace/flipop created"),
    (
        "kubectl create secret generic flipop -n flipop --from-literal=DIGITALOCEAN_ACCESS_TOKEN=…",
        "secret/flipop created",
    ),
    ("kubectl apply -n flipop -f k8s/flipop/", "deployment.apps/ip-address-controller created"),
    (
        "kubectl rollout status -n flipop deployment/ip-address-controller --timeout=60s",
        "successfully rolled out",
    ),
];

/// A control plane with one node, without our CRDs and manifests.
async fn cluster() -> ControlPlane {
    let control_plane = ControlPlane::start(Options::everything()).await.unwrap();
    let client = control_plane.client().await.unwrap();
    node("node-1").label("kubernetes.io/os", "linux").create(&client).await.unwrap();
    control_plane
}

/// Runs a command in the repository's root and returns what it prints. Panics with its output if it fails.
fn output_of(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{error}");
    out.into_owned()
}

/// Runs commands in a shell and checks that each prints the expected text.
fn run(control_plane: &ControlPlane, commands: &[(&str, &str)]) {
    let kubectl = tools::binary("kubectl").unwrap();
    let path = format!("{}:{}", kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for &(command, expected) in commands {
        let mut bash = Command::new("bash");
        bash.args(["-o", "pipefail", "-c", command]).env("PATH", &path);
        bash.env("KUBECONFIG", control_plane.kubeconfig()).env("HOME", control_plane.folder());
        let printed = output_of(&mut bash);
        assert!(printed.contains(expected), "{command}: {printed}");
        println!("ran: {command}");
    }
}

fn helm(control_plane: &ControlPlane) -> Command {
    let mut helm = Command::new(tools::binary("helm").unwrap());
    helm.env("KUBECONFIG", control_plane.kubeconfig()).env("HOME", control_plane.folder());
    helm
}

/// The chart's objects without the CRDs, rendered with these values.
fn rendered(values: &str) -> String {
    let mut helm = Command::new(tools::binary("helm").unwrap());
    output_of(helm.args(["template", "any", "chart", "--set", "crds.install=false", "--set", values]))
}

#[tokio::test]
async fn n10_n17_n18_plain_manifests_and_documented_commands_work() {
    let control_plane = cluster().await;
    // No container runs, so nothing creates the Lease. Install one as a former leader leaves it.
    control_plane.install_released_lease("kube-system", "ip-address-controller-leader").unwrap();
    output_of(control_plane.kubectl().args([
        "config",
        "set-context",
        "--current",
        "--namespace=kube-system",
    ]));
    run(&control_plane, &COMMANDS);
    for (command, reason) in NOT_RUN {
        println!("not run: {command}: {reason}");
    }
    let kubectl = |arguments: &[&str]| output_of(control_plane.kubectl().args(arguments));
    kubectl(&["get", "serviceaccount/ip-address-controller", "clusterrole/ip-address-controller"]);
    let ports = "jsonpath={range .spec.template.spec.containers[0].ports[*]}{.name}={.containerPort} {end}";
    let ports = kubectl(&["get", "deployment", "ip-address-controller", "-o", ports]);
    assert_eq!(ports.trim(), "health=8080 metrics=9999");
}

#[tokio::test]
async fn f15_the_flipop_install_has_crds_rbac_and_its_token_secret() {
    let guide = read("docs/guides/migrate-from-flipop.md");
    for (command, _) in COMMANDS_OF_FLIPOP {
        assert!(guide.contains(command), "the guide does not show: {command}");
    }
    let control_plane = cluster().await;
    run(&control_plane, &COMMANDS_OF_FLIPOP);
    let kubectl = |arguments: &[&str]| output_of(control_plane.kubectl().args(arguments));
    for documented in ["floatingippool", "nodednsrecordset"] {
        control_plane
            .apply(&read(&format!("crates/controller/tests/fixtures/seeds/{documented}.yaml")))
            .unwrap();
    }

    let who = "--as=system:serviceaccount:flipop:ip-address-controller";
    // All replicas in a cluster share one Lease, and stand by while FLIPOP leads in their namespace.
    let ours = "leases.coordination.k8s.io/ip-address-controller-leader";
    let flipops = "leases.coordination.k8s.io/floating-ip-pool-controller-leader-election";
    kubectl(&["auth", "can-i", "update", ours, "--namespace=kube-system", who]);
    kubectl(&["auth", "can-i", "get", flipops, "--namespace=flipop", who]);
    kubectl(&["auth", "can-i", "watch", flipops, "--namespace=flipop", who]);
    kubectl(&["auth", "can-i", "list", "nodednsrecordsets.flipop.digitalocean.com", "--all-namespaces", who]);
    kubectl(&["auth", "can-i", "get", "namespaces/kube-system", who]);

    let deployment = ["get", "deployment", "ip-address-controller", "-n", "flipop", "-o", "json"];
    let deployment: Value = serde_json::from_str(&kubectl(&deployment)).unwrap();
    let environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    for key in ["DIGITALOCEAN_ACCESS_TOKEN", "CLOUDFLARE_TOKEN"] {
        let variable = environment.iter().find(|variable| variable["name"] == key).unwrap();
        let source = json!({"secretKeyRef": {"name": "flipop", "key": key, "optional": true}});
        assert_eq!(variable["valueFrom"], source);
    }
}

#[test]
fn f13_each_token_is_a_variable_from_a_secret_or_a_mounted_file() {
    for (provider, variable) in [
        ("digitalocean", "DIGITALOCEAN_ACCESS_TOKEN"),
        ("cloudflare", "CLOUDFLARE_TOKEN"),
        ("rfc2136", "RFC2136_TSIG_SECRET"),
    ] {
        let as_variable = rendered(&format!("{provider}.secretName=mine"));
        let reference = format!(
            "name: {variable}
              valueFrom:
                secretKeyRef:
                  name: mine
                  key: {variable}
                  optional: true"
        );
        assert!(as_variable.contains(&reference), "{as_variable}");
        assert!(!as_variable.contains("/secrets/"), "{as_variable}");
        let as_file = rendered(&format!("{provider}.mounted=true"));
        let file = format!("name: {variable}_FILE\n              value: /secrets/{provider}/{variable}\n");
        assert!(as_file.contains(&file), "{as_file}");
        assert!(as_file.contains(&format!("mountPath: /secrets/{provider}\n")), "{as_file}");
        assert!(!as_file.contains(&format!("name: {variable}\n")), "{as_file}");
    }
}

#[test]
fn the_network_policy_allows_updates_to_the_dns_server_port() {
    let port = "- port: 5353\n";
    assert!(!rendered("settings.RFC2136_SERVER=").contains(port));
    assert!(rendered("settings.RFC2136_SERVER=ns1.example.com:5353").contains(port));
}

#[tokio::test]
async fn the_chart_runs_restricted_and_upgrades_its_crds() {
    let control_plane = cluster().await;
    let kubectl = |arguments: &[&str]| output_of(control_plane.kubectl().args(arguments));
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let metadata = json!({"name": "edge", "labels": labels});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    control_plane.apply(&namespace.to_string()).unwrap();
    let client = control_plane.client().await.unwrap();
    eventually("the namespace refuses an unrestricted pod", SOON, async || {
        let created = pod("edge", "unrestricted").create(&client).await;
        Ok(created.is_err_and(|error| error.to_string().contains("violates PodSecurity")))
    })
    .await
    .unwrap();

    println!("{}", output_of(helm(&control_plane).args(["lint", "--strict", "chart"])));
    let old = control_plane.folder().join("old-chart");
    copy_with_an_older_definition(&old);
    let install = ["install", "addresses", "--namespace", "edge", "--wait", "--timeout", "60s"];
    output_of(helm(&control_plane).args(install).arg(&old));
    let interval = || {
        let crd: Value = serde_json::from_str(&kubectl(&["get", "crd", DEFINITION, "-o", "json"])).unwrap();
        crd["spec"]["versions"][0]["schema"].pointer(INTERVAL).cloned()
    };
    assert_eq!(interval(), None);
    let pods = kubectl(&["get", "pods", "-n", "edge", "-l", "app=ip-address-controller", "-o", "name"]);
    assert_eq!(pods.lines().count(), 2, "{pods}");

    output_of(helm(&control_plane).args(["upgrade", "addresses", "chart", "--namespace", "edge"]));
    assert!(interval().is_some(), "the upgrade did not update the CRDs");
    control_plane.apply(&read("examples/netipallocation.yaml")).unwrap();
    output_of(helm(&control_plane).args(["uninstall", "addresses", "--namespace", "edge"]));
    assert!(kubectl(&["get", "nia"]).contains("edge"), "uninstalling the chart deleted the objects");
    output_of(helm(&control_plane).args(["install", "addresses", "chart", "--namespace", "edge"]));
}

/// Copies the chart with a CRD that lacks a field, like the chart of an older release.
fn copy_with_an_older_definition(into: &Path) {
    output_of(Command::new("cp").args(["--recursive", "--dereference", "chart"]).arg(into));
    let file = into.join("definitions/netipallocation.yaml");
    let mut crd: Value = serde_saphyr::from_str(&read("crds/netipallocation.yaml")).unwrap();
    let (properties, field) = INTERVAL.rsplit_once('/').unwrap();
    let properties = crd["spec"]["versions"][0]["schema"].pointer_mut(properties).unwrap();
    properties.as_object_mut().unwrap().remove(field).unwrap();
    std::fs::write(file, crd.to_string()).unwrap();
}

#[tokio::test]
async fn n20_a_kustomize_overlay_sets_image_and_namespace() {
    let control_plane = cluster().await;
    let overlay = control_plane.folder().join("overlay");
    std::fs::create_dir(&overlay).unwrap();
    std::os::unix::fs::symlink(root().join("kustomize/base"), control_plane.folder().join("base")).unwrap();
    let image = json!({"name": "ip-address-controller", "newName": "registry.invalid/ours", "newTag": "7"});
    let kustomization = json!({"resources": ["../base"], "namespace": "edge", "images": [image]});
    std::fs::write(overlay.join("kustomization.yaml"), kustomization.to_string()).unwrap();

    let manifests = output_of(control_plane.kubectl().arg("kustomize").arg(&overlay));
    assert!(!manifests.contains("namespace: kube-system"), "{manifests}");
    output_of(control_plane.kubectl().args(["create", "namespace", "edge"]));
    control_plane.apply(&manifests).unwrap();
    let deployment = ["get", "deployment", "ip-address-controller", "-n", "edge", "-o", "json"];
    let deployment: Value =
        serde_json::from_str(&output_of(control_plane.kubectl().args(deployment))).unwrap();
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "registry.invalid/ours:7");
}

#[test]
fn n20_the_image_repository_is_one_value() {
    let manifests = rendered("image.repository=registry.invalid/ours");
    let images: Vec<_> = manifests.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert_eq!(images, [format!("registry.invalid/ours:{}", env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn n11_every_setting_has_a_value_in_the_chart() {
    // These come from the pod's own fields or from a Secret.
    let not_values = [
        "POD_NAME",
        "POD_NAMESPACE",
        "NODE_NAME",
        "DIGITALOCEAN_ACCESS_TOKEN",
        "DIGITALOCEAN_ACCESS_TOKEN_FILE",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "CLOUDFLARE_TOKEN",
        "CLOUDFLARE_TOKEN_FILE",
        "RFC2136_TSIG_SECRET",
        "RFC2136_TSIG_SECRET_FILE",
    ];
    let schema: Value = serde_json::from_str(&read("chart/values.schema.json")).unwrap();
    let values: Value = serde_saphyr::from_str(&read("chart/values.yaml")).unwrap();
    let settings = Settings::command();
    for name in settings.get_arguments().filter_map(|argument| argument.get_env()?.to_str()) {
        let is_in = |settings: &Value| settings.as_object().unwrap().contains_key(name);
        let has_value = is_in(&values["settings"]) && is_in(&schema["properties"]["settings"]["properties"]);
        assert!(
            has_value || not_values.contains(&name),
            "{name} is missing in chart/values.yaml or its schema"
        );
    }
    assert!(
        rendered("settings.CLUSTER_NAME=blue").contains("name: CLUSTER_NAME\n              value: \"blue\"")
    );
}

#[test]
fn chart_and_image_have_the_version_of_the_workspace() {
    let chart: Value = serde_saphyr::from_str(&read("chart/Chart.yaml")).unwrap();
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    let toolchain = read("rust-toolchain.toml");
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    assert!(
        read("Dockerfile").contains(&format!("FROM rust:{channel}-")),
        "the Dockerfile must use the compiler in rust-toolchain.toml"
    );
}

#[test]
fn n20_the_image_has_three_files_and_the_user_of_the_manifests() {
    let dockerfile = read("Dockerfile");
    let (_, stage) = dockerfile.rsplit_once("\nFROM ").unwrap();
    let lines: Vec<Vec<&str>> = stage.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["scratch"], "the image must contain only the copied files");
    let of = |instruction: &str| -> Vec<&[&str]> {
        let is_it = |line: &&Vec<&str>| line.first() == Some(&instruction);
        lines.iter().filter(is_it).map(|line| &line[1..]).collect()
    };
    let copied: Vec<&str> =
        of("COPY").into_iter().flat_map(|words| &words[1..words.len() - 1]).copied().collect();
    assert_eq!(copied, ["/etc/ssl/certs/ca-certificates.crt", "/source/LICENSE", "/ip-address-controller"]);
    assert!(of("ADD").is_empty() && of("RUN").is_empty());
    assert_eq!(of("ENTRYPOINT"), [[r#"["/ip-address-controller"]"#]]);
    let user = of("USER")[0][0];
    let context = format!("runAsUser: {0}\n        runAsGroup: {1}\n", &user[..5], &user[6..]);
    for manifest in
        ["k8s/deployment.yaml", "k8s/flipop/deployment.yaml", "k8s/cluster-api/capi-vip-allocator.yaml"]
    {
        assert!(read(manifest).contains(&context), "{manifest} does not set the user of the image, {user}");
    }
    println!(
        "this test does not build the image, which needs a release build and buildah: `just image` builds and checks it"
    );
}

#[test]
fn n16_monitoring_files_keep_their_paths_and_names() {
    let object = |path: &str| serde_saphyr::from_str::<Value>(&read(path)).unwrap();
    let named = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        (text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    };
    let expected = |kind: &str, name: &str| (kind.to_owned(), "monitoring".to_owned(), name.to_owned());
    let monitor = object("monitoring/podmonitor.yaml");
    assert_eq!(named(&monitor), expected("PodMonitor", "ip-address-controller"));
    let endpoint = json!({"port": "metrics", "path": "/metrics", "interval": "30s"});
    assert_eq!(monitor["spec"]["podMetricsEndpoints"], json!([endpoint]));
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], json!({"app": "ip-address-controller"}));
    let of_vips = object("monitoring/podmonitor-vips.yaml");
    assert_eq!(named(&of_vips), expected("PodMonitor", "capi-vip-allocator"));
    assert_eq!(of_vips["spec"]["podMetricsEndpoints"], json!([endpoint]));
    let label = json!({"control-plane": "capi-vip-allocator-controller-manager"});
    assert_eq!(of_vips["spec"]["selector"]["matchLabels"], label);
    let rules = object("monitoring/prometheusrule.yaml");
    assert_eq!(named(&rules), expected("PrometheusRule", "ip-address-controller"));
    let dashboard = object("monitoring/grafana-dashboard-configmap.yaml");
    assert_eq!(named(&dashboard), expected("ConfigMap", "ip-address-controller-dashboard"));
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    read("monitoring/grafana-dashboard.json");
}
