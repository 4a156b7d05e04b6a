//! The manifests and the chart that install VIPs for Cluster API, and the examples for their users.

use std::process::Command;

use serde_json::{Value, json};
use testbed::cluster_api::clusterctl::{Kind, Release};
use testbed::tools;

use super::rig::Capi;
use crate::rig::{read, root};

const NAME: &str = "capi-vip-allocator-controller-manager";

/// API groups whose CRDs are not available here. The test only parses objects of these groups.
const NOT_APPLIED: [&str; 2] = ["cert-manager.io", "turtles-capi.cattle.io"];

fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn group(object: &Value) -> &str {
    object["apiVersion"].as_str().unwrap().split('/').next().unwrap()
}

/// Applies every object of a file whose CRD is installed. Returns how many objects were only parsed.
fn apply(capi: &Capi, text: &str) -> usize {
    let (read, applied): (Vec<_>, Vec<_>) =
        objects(text).into_iter().partition(|object| NOT_APPLIED.contains(&group(object)));
    applied.iter().for_each(|object| capi.apply(object));
    read.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn v9_v10_every_manifest_is_accepted_by_the_real_crds() {
    let capi = Capi::start().await;
    assert_eq!(apply(&capi, &read("k8s/cluster-api/capi-vip-allocator.yaml")), 0);
    // The Issuer and the Certificate belong to cert-manager.
    assert_eq!(apply(&capi, &read("k8s/cluster-api/capi-vip-allocator-with-runtime-extension.yaml")), 2);
    let selector = "jsonpath={.spec.selector.matchLabels}";
    let deployment = ["get", "deployment", NAME, "-n", "capi-system", "-o", selector];
    // A Deployment's selector is immutable, so it must be that of capi-vip-allocator.
    let labels = json!({"cluster.x-k8s.io/provider": "vip-allocator", "control-plane": NAME});
    assert_eq!(capi.kubectl(&deployment), labels.to_string());
    capi.kubectl(&["get", "extensionconfig", "vip-allocator"]);

    let (mut accepted, mut only_read) = (0, 0);
    for folder in ["examples/cluster-api", "crates/controller/tests/fixtures/seeds-cluster-api"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        // `old_version.rs` tests the subfolder for v1beta1.
        let mut paths: Vec<_> = entries.filter(|path| path.is_file()).collect();
        // A Cluster is accepted only after its class.
        paths.sort_by_key(|path| (!path.ends_with("clusterclass.yaml"), path.clone()));
        for path in paths {
            accepted += 1;
            only_read += apply(&capi, &std::fs::read_to_string(&path).unwrap());
            println!("accepted: {}", path.strip_prefix(root()).unwrap().display());
        }
        // Both folders have a Cluster with the same name, and Cluster API refuses a change to an incompatible class.
        capi.kubectl(&["delete", "clusters", "--all", "--timeout=180s"]);
    }
    assert_eq!((accepted, only_read), (12, 3));
}

/// What the patch `kube-vip` of an example adds to the control plane's template for a Cluster with this VIP.
fn kube_vip(example: &str, vip: &str) -> Vec<Value> {
    let class = objects(&read(&format!("examples/cluster-api/{example}"))).remove(0);
    let patches = class["spec"]["patches"].as_array().unwrap();
    let patch = patches.iter().find(|patch| patch["name"] == "kube-vip").unwrap();
    let changes = patch["definitions"][0]["jsonPatches"].as_array().unwrap();
    let value = |change: &Value| match change["valueFrom"]["template"].as_str() {
        Some(template) => objects(&template.replace("{{ .clusterVip }}", vip)).remove(0),
        None => change["value"].clone(),
    };
    changes.iter().map(value).collect()
}

#[test]
fn v10_kube_vip_gets_the_vip_with_rke2_and_with_kubeadm() {
    for example in ["clusterclass.yaml", "v1beta1/clusterclass.yaml"] {
        let file = kube_vip(example, "10.0.0.15").remove(0);
        let chart = objects(file["content"].as_str().unwrap()).remove(0);
        let values: Value = serde_saphyr::from_str(chart["spec"]["valuesContent"].as_str().unwrap()).unwrap();
        assert_eq!(values["config"]["address"], "10.0.0.15", "{example}");
    }
    let [file, command] = kube_vip("clusterclass-kubeadm.yaml", "10.0.0.15").try_into().unwrap();
    let pod: k8s_openapi::api::core::v1::Pod =
        serde_saphyr::from_str(file["content"].as_str().unwrap()).unwrap();
    let pod = serde_json::to_value(pod).unwrap();
    let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    assert!(variables.contains(&json!({"name": "address", "value": "10.0.0.15"})), "{variables:?}");
    // The command edits the kubeconfig path in the file.
    let kubeconfig = pod["spec"]["volumes"][0]["hostPath"]["path"].as_str().unwrap();
    let [command, path] = [command.as_str().unwrap(), file["path"].as_str().unwrap()];
    assert!(command.contains(&format!("path: {kubeconfig}#")) && command.contains(path), "{command}");
}

#[test]
fn v9_clusterctl_accepts_the_components() {
    let (components, metadata) =
        (read("k8s/cluster-api/components.yaml"), read("k8s/cluster-api/metadata.yaml"));
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let release = Release {
        kind: Kind::Addon,
        name: "capi-vip-allocator",
        version: &version,
        components: &components,
        metadata: &metadata,
    };
    let rendered = objects(&release.render().unwrap());
    let deployment = rendered.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let image = format!("docker.io/library/ip-address-controller:{}", env!("CARGO_PKG_VERSION"));
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["name"]), (&json!(image), &json!("manager")));
    let lease = "LEASE_NAMESPACE";
    assert!(
        !container["env"].to_string().contains(lease),
        "{lease} is set, but clusterctl may use another namespace"
    );
    assert_eq!(deployment["metadata"]["labels"]["cluster.x-k8s.io/provider"], "addon-capi-vip-allocator");

    // For a release on GitHub, clusterctl accepts only this form of URL.
    let example = &objects(&read("examples/cluster-api/capiprovider.yaml"))[0]["spec"];
    let url = format!("https://github.com/OWNER/REPOSITORY/releases/{version}/components.yaml");
    assert_eq!((&example["fetchConfig"]["url"], &example["version"]), (&json!(url), &json!(version)));
    let variables = example["variables"].as_object().unwrap();
    assert!(variables.keys().all(|name| components.contains(&format!("${{{name}:="))), "{variables:?}");
}

/// The chart's objects, rendered with these values.
fn rendered(values: &str) -> Vec<Value> {
    rendered_on(&[], values)
}

/// Like [`rendered`], for a cluster that also serves these API versions.
fn rendered_on(versions: &[&str], values: &str) -> Vec<Value> {
    let mut helm = Command::new(tools::binary("helm").unwrap());
    helm.args(["template", "any", "chart", "--set", values]);
    versions.iter().for_each(|version| _ = helm.args(["--api-versions", version]));
    let output = helm.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    objects(&String::from_utf8(output.stdout).unwrap())
}

fn rights(objects: &[Value]) -> Vec<String> {
    let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    let groups = role["rules"].as_array().unwrap().iter().map(|rule| rule["apiGroups"][0].as_str().unwrap());
    let mut groups: Vec<_> = groups.map(ToOwned::to_owned).collect();
    groups.dedup();
    groups
}

#[test]
fn v8_the_chart_can_run_vips_alone_with_only_their_permissions() {
    let alone = rendered("addresses.enabled=false,clusterApi.enabled=true");
    assert_eq!(rights(&alone), ["cluster.x-k8s.io", "ipam.cluster.x-k8s.io", "events.k8s.io"]);
    assert!(alone.iter().all(|object| object["kind"] != "CustomResourceDefinition"));
    let deployment = alone.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = json!(["--enable-addresses=false", "--enable-reconciler=true", "--default-port=6443"]);
    assert_eq!(container["args"], arguments);
    assert!(!container["env"].to_string().contains("TOKEN"), "{}", container["env"]);
}

#[test]
fn v8_the_chart_grants_access_to_clusters_only_for_vips() {
    let without = rendered("replicas=2");
    assert!(!rights(&without).iter().any(|group| group.ends_with("cluster.x-k8s.io")));
    let both = rendered("clusterApi.enabled=true");
    assert!(rights(&both).contains(&"cluster.x-k8s.io".to_owned()));
    assert!(rights(&both).contains(&"netinfra.darkbrains.com".to_owned()));
}

#[test]
fn v5_the_pod_starts_before_the_extension_certificate_exists() {
    let objects = rendered("clusterApi.enabled=true,clusterApi.runtimeExtension.enabled=true");
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let certificate = volumes.iter().find(|volume| volume["name"] == "runtime-extension").unwrap();
    assert_eq!(certificate["secret"]["optional"], true);
}

#[test]
fn v5_the_chart_names_the_ca_secret_without_cert_manager() {
    let extension = "clusterApi.runtimeExtension";
    let objects = rendered(&format!("{extension}.enabled=true,{extension}.certManager=false"));
    let config = objects.iter().find(|object| object["kind"] == "ExtensionConfig").unwrap();
    let secret = "default/capi-vip-allocator-runtime-extension-tls";
    let annotation = "runtime.cluster.x-k8s.io/inject-ca-from-secret";
    assert_eq!(config["metadata"]["annotations"][annotation], secret);
}

#[test]
fn v5_only_the_namespaces_of_cluster_api_may_call_the_hooks() {
    let objects = rendered("clusterApi.enabled=true,clusterApi.runtimeExtension.enabled=true");
    let policy = objects.iter().find(|object| object["kind"] == "NetworkPolicy").unwrap();
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    let lets_in = |rule: &&Value| rule["ports"].to_string().contains("runtime-ext");
    let from: Vec<_> = rules.iter().filter(lets_in).map(|rule| &rule["from"]).collect();
    let label = json!({"cluster.x-k8s.io/provider": "cluster-api"});
    assert_eq!(from, [&json!([{"namespaceSelector": {"matchLabels": label}}])]);
}

#[test]
fn v5_the_chart_supports_cluster_api_before_1_11() {
    let [old, new] = ["runtime.cluster.x-k8s.io/v1alpha1", "runtime.cluster.x-k8s.io/v1beta2"];
    let version = |versions: &[&str]| {
        let objects = rendered_on(versions, "clusterApi.runtimeExtension.enabled=true");
        objects.iter().find(|object| object["kind"] == "ExtensionConfig").unwrap()["apiVersion"].clone()
    };
    assert_eq!([version(&[]), version(&[old]), version(&[old, new])], [new, old, new]);
}
