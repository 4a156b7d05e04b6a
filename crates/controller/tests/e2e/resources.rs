//! The custom resources on the real apiserver: it keeps every field of the manifests that users have, and refuses specs
//! that can't work.

use std::path::Path;

use api::floating_ip_pool::{IpState, IpStatus};
use api::status::{AddressState, AddressStatus, Holder, Move, Moves};
use api::{ADDRESSES_MAX, FloatingIPPool, NetIPAllocation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::control_plane::{ControlPlane, Options};
use testbed::tools;

use crate::manifests::{allocation, pool, record_set};

/// The default limit of etcd for a request.
const OBJECT_BYTES_MAX: usize = 1_500_000;

async fn apiserver() -> ControlPlane {
    let control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    control_plane.install_crds().await.unwrap();
    control_plane
}

fn kubectl_get(control_plane: &ControlPlane, manifest: &Value) -> Value {
    let kind = manifest["kind"].as_str().unwrap();
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or("default");
    let output =
        control_plane.kubectl().args(["get", kind, name, "-n", namespace, "-o", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Collects every field of `written` that is missing or different in `read`.
fn lost(path: &str, written: &Value, read: &Value, losses: &mut Vec<String>) {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (name, value) in written {
                lost(&format!("{path}.{name}"), value, read.get(name).unwrap_or(&Value::Null), losses);
            }
        }
        (Value::Array(written), Value::Array(read)) if written.len() == read.len() => {
            for (at, (written, read)) in written.iter().zip(read).enumerate() {
                lost(&format!("{path}[{at}]"), written, read, losses);
            }
        }
        _ if written == read => {}
        _ => losses.push(format!("{path}: wrote {written}, read {read}")),
    }
}

fn assert_round_trip(control_plane: &ControlPlane, file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    control_plane.apply(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut losses = Vec::new();
    lost("", &manifest, &kubectl_get(control_plane, &manifest), &mut losses);
    assert_eq!(losses, Vec::<String>::new(), "{} lost fields", file.display());
    println!("accepted without loss: {}", file.file_name().unwrap().display());
}

#[tokio::test]
async fn n1_f1_every_documented_manifest_is_accepted_and_loses_no_field() {
    let control_plane = apiserver().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/seeds");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 10);
    for file in &files {
        assert_round_trip(&control_plane, file);
    }
}

#[tokio::test]
async fn f1_every_example_in_flipops_module_loses_no_field() {
    let control_plane = apiserver().await;
    control_plane
        .apply(r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "flipop"}}"#)
        .unwrap();
    let is_example = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        text.starts_with("apiVersion: flipop.digitalocean.com/")
    };
    let examples: Vec<_> = tools::shared_files("flipop").unwrap().into_iter().filter(is_example).collect();
    assert_eq!(examples.len(), 2, "FLIPOP's module has two examples");
    for file in &examples {
        assert_round_trip(&control_plane, file);
    }
}

#[tokio::test]
async fn n21_every_example_of_the_docs_is_accepted() {
    let control_plane = apiserver().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // The examples for Cluster API need its CRDs. They have their own folder and test.
    for file in entries.filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(&file).unwrap();
        control_plane.apply(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("accepted: {}", file.file_name().unwrap().display());
    }
}

/// The name of a rule, an object that it accepts, an object that it refuses, and a part of the error.
fn rules() -> Vec<(&'static str, Value, Value, &'static str)> {
    let many =
        |count: usize| (0..count).map(|at| format!("10.0.{}.{}", at / 256, at % 256)).collect::<Vec<_>>();
    let gcp = json!({"provider": "gcp"});
    let nia = |ips: Value, cloud: Value| allocation("probe", json!({"reservedIPs": ips, "cloud": cloud}));
    let with = |name: &str, value: Value| {
        allocation("probe", json!({"reservedIPs": [], "cloud": {"provider": "gcp"}, name: value}))
    };
    let policy = |name: &str, value: Value| with("policy", json!({name: value}));
    let digitalocean = |spec: Value| {
        let mut spec = spec;
        spec["provider"] = "digitalocean".into();
        pool("probe", spec)
    };
    let records = |zone: &str, name: &str| {
        record_set("probe", json!({"dnsRecordSet": {"zone": zone, "recordName": name}}))
    };
    vec![
        (
            "an allocation's addresses are IP addresses",
            nia(json!(["203.0.113.7", "2001:db8::7"]), gcp.clone()),
            nia(json!(["host.example.com"]), gcp.clone()),
            "must be an IPv4 or IPv6 address",
        ),
        (
            "an allocation has at most 1,000 addresses",
            nia(json!(many(ADDRESSES_MAX)), gcp.clone()),
            nia(json!(many(ADDRESSES_MAX + 1)), gcp.clone()),
            "must have at most 1000 items",
        ),
        (
            "N1: the provider is one of four",
            nia(json!([]), json!({"provider": "digitalocean"})),
            nia(json!([]), json!({"provider": "cloudflare"})),
            "supported values",
        ),
        (
            "N1: a provider is required",
            nia(json!([]), gcp.clone()),
            nia(json!([]), json!({})),
            "provider: Required value",
        ),
        (
            "zones are in the region",
            nia(json!([]), json!({"provider": "gcp", "region": "us-west1", "zones": ["us-west1-a"]})),
            nia(json!([]), json!({"provider": "gcp", "region": "us-west1", "zones": ["us-east1-b"]})),
            "every zone must be in the region",
        ),
        (
            "an empty region or zone list means no restriction",
            nia(json!([]), json!({"provider": "gcp", "region": null, "zones": null})),
            nia(json!([]), json!({"provider": "gcp", "region": 7})),
            "must be of type string",
        ),
        (
            "N2: the interval is at least 5",
            with("reconcileInterval", json!(5)),
            with("reconcileInterval", json!(4)),
            "greater than or equal to 5",
        ),
        (
            "a workload is one of three kinds",
            with("workloadRef", json!({"kind": "DaemonSet", "name": "edge"})),
            with("workloadRef", json!({"kind": "CronJob", "name": "edge"})),
            "supported values",
        ),
        (
            "a grace period is not negative",
            policy("failoverGraceSeconds", json!(0)),
            policy("failoverGraceSeconds", json!(-1)),
            "greater than or equal to 0",
        ),
        (
            "at least one move at a time",
            policy("maxConcurrentMoves", json!(1)),
            policy("maxConcurrentMoves", json!(0)),
            "greater than or equal to 1",
        ),
        (
            "minHealthy is not negative",
            policy("minHealthy", json!(0)),
            policy("minHealthy", json!(-1)),
            "greater than or equal to 0",
        ),
        (
            "mode is Active or Observe",
            policy("mode", json!("Observe")),
            policy("mode", json!("observe")),
            "supported values",
        ),
        (
            "takeover is Never or Always",
            policy("takeover", json!("Always")),
            policy("takeover", json!(true)),
            "policy.takeover",
        ),
        (
            "spread is None or Zone",
            policy("spread", json!("Zone")),
            policy("spread", json!("Node")),
            "supported values",
        ),
        (
            "onDelete is Keep or Detach",
            policy("onDelete", json!("Detach")),
            policy("onDelete", json!("Delete")),
            "supported values",
        ),
        (
            "releaseCreated is Never or WhenUnneeded",
            policy("releaseCreated", json!("WhenUnneeded")),
            policy("releaseCreated", json!("Always")),
            "supported values",
        ),
        (
            "disruptionTaints is Ignore or Leave",
            policy("disruptionTaints", json!("Leave")),
            policy("disruptionTaints", json!("Move")),
            "supported values",
        ),
        (
            "evictPods is a bool",
            policy("evictPods", json!(false)),
            policy("evictPods", json!("no")),
            "must be of type boolean",
        ),
        (
            "a pool's addresses are IP addresses",
            digitalocean(json!({"ips": ["203.0.113.7"]})),
            digitalocean(json!({"ips": ["203.0.113.777"]})),
            "must be an IPv4 or IPv6 address",
        ),
        (
            "a pool has at most 1,000 addresses",
            digitalocean(json!({"ips": many(ADDRESSES_MAX)})),
            digitalocean(json!({"ips": many(ADDRESSES_MAX + 1)})),
            "must have at most 1000 items",
        ),
        (
            "creating addresses at DigitalOcean needs a region",
            digitalocean(json!({"desiredIPs": 2, "region": "nyc3"})),
            digitalocean(json!({"desiredIPs": 2, "ips": ["203.0.113.7"]})),
            "needs a region",
        ),
        (
            "a pool that lists all desired addresses needs no region",
            digitalocean(json!({"desiredIPs": 1, "ips": ["203.0.113.7"]})),
            digitalocean(json!({"desiredIPs": 1, "ips": null})),
            "needs a region",
        ),
        (
            "F1: the cool-off may be a fraction but not negative",
            digitalocean(json!({"assignmentCoolOffSeconds": 0.5})),
            digitalocean(json!({"assignmentCoolOffSeconds": -0.5})),
            "greater than or equal to 0",
        ),
        (
            "F1: desiredIPs is between 0 and 1,000",
            digitalocean(json!({"desiredIPs": 1000, "region": "nyc3"})),
            digitalocean(json!({"desiredIPs": 1001, "region": "nyc3"})),
            "less than or equal to 1000",
        ),
        (
            "F10: a pool at a DNS-only provider is accepted; a condition reports it",
            pool("probe", json!({"provider": "cloudflare"})),
            pool("probe", json!({})),
            "provider: Required value",
        ),
        ("F9: a record set needs no provider", records("example.com", "nodes"), records("", "nodes"), "zone"),
        ("a record set needs a name", records("example.com", "@"), records("example.com", ""), "recordName"),
    ]
}

#[tokio::test]
async fn each_crd_rule_accepts_valid_and_refuses_invalid_specs() {
    let control_plane = apiserver().await;
    let client = control_plane.client().await.unwrap();
    for (what, accepted, refused, message) in rules() {
        let create = async |object: &Value| {
            let object: kube::core::DynamicObject = serde_json::from_value(object.clone()).unwrap();
            let types = object.types.clone().unwrap();
            let resource = kube::core::ApiResource::from_gvk(&(&types).try_into().unwrap());
            let api: Api<kube::core::DynamicObject> = match &object.metadata.namespace {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            api.create(&dry_run, &object).await
        };
        create(&accepted).await.unwrap_or_else(|error| panic!("{what}: refused {accepted}: {error}"));
        let error = create(&refused).await.err().unwrap_or_else(|| panic!("{what}: accepted {refused}"));
        assert!(error.to_string().contains(message), "{what}: refused, but with {error}");
        println!("accepted and refused: {what}");
    }
}

/// A VM with the longest names and IDs of any cloud: a subscription, a resource group and a name at Azure.
fn machine(at: usize) -> Holder {
    let group = "MC_a-resource-group_of-a-managed-cluster_westeurope";
    let vm = format!("00000000-0000-0000-0000-000000000000/{group}/aks-nodepool1-12345678-vmss{at:06}");
    let node_name = format!("ip-10-100-{at:04}.a-region-with-a-long-name.compute.internal");
    Holder { vm, node_name: Some(node_name), had_ephemeral: Some(true) }
}

fn full_status() -> (Vec<String>, Vec<AddressStatus>, Moves) {
    let addresses: Vec<_> =
        (0..ADDRESSES_MAX).map(|at| format!("2001:db8:1234:5678:9abc:def0:1234:{at:04x}")).collect();
    let now = Time(Timestamp::from_second(1_800_000_000).unwrap());
    let status = |(at, address): (usize, &String)| AddressStatus {
        address: address.clone(),
        state: AddressState::Moving,
        node_name: None,
        last_holder: Some(machine(at)),
        // Only AWS has previous holders, and its IDs are short.
        previous_holders: vec![format!("ap-southeast-10/i-{at:017x}"); 4],
        // Only Google Cloud has PTR names.
        ptr_name: Some(format!("mail-{at:04}.a-subdomain-with-a-long-name.example.com.")),
        reason: Some("NodeNotReady".into()),
        message: None,
        since: Some(now.clone()),
        lost_since: Some(now.clone()),
        created: Some(true),
    };
    let entry = |(at, address): (usize, &String)| Move {
        id: format!("move-{at:012x}"),
        kind: None,
        address: Some(address.clone()),
        from: Some(machine(at)),
        to: Some(machine(at + 1)),
        step: "Voluntary".into(),
        token: None,
        before: Vec::new(),
        candidates: Vec::new(),
        epoch: 1_000_000,
        started_at: Some(now.clone()),
    };
    let statuses = addresses.iter().enumerate().map(status).collect();
    let entries = addresses.iter().enumerate().map(entry).collect();
    (addresses.clone(), statuses, Moves { version: 1, epoch: 1_000_000, entries })
}

#[tokio::test]
async fn an_object_with_every_address_moving_fits_into_etcd() {
    let control_plane = apiserver().await;
    let client = control_plane.client().await.unwrap();
    let (addresses, statuses, moves) = full_status();

    let allocations: Api<NetIPAllocation> = Api::all(client.clone());
    let spec = json!({"reservedIPs": addresses, "cloud": {"provider": "azure"}});
    let mut object = NetIPAllocation::new("full", serde_json::from_value(spec).unwrap());
    object = allocations.create(&PostParams::default(), &object).await.unwrap();
    let status = object.status.get_or_insert_default();
    status.addresses = statuses.clone();
    status.moves = Some(moves.clone());
    let written = allocations.replace_status("full", &PostParams::default(), &object).await.unwrap();
    assert!(written.status == object.status, "the apiserver pruned a part of the status");
    let bytes = serde_json::to_string(&written).unwrap().len();
    println!("a NetIPAllocation with 1,000 addresses moving: {bytes} bytes");
    assert!(bytes < OBJECT_BYTES_MAX);

    let pools: Api<FloatingIPPool> = Api::namespaced(client, "default");
    let spec = json!({"provider": "azure", "ips": addresses});
    let mut object = FloatingIPPool::new("full", serde_json::from_value(spec).unwrap());
    object = pools.create(&PostParams::default(), &object).await.unwrap();
    let status = object.status.get_or_insert_default();
    for (at, address) in addresses.iter().enumerate() {
        let (state, node_name) = (IpState::InProgress, machine(at).node_name);
        status.ips.insert(address.clone(), IpStatus { state, node_name, provider_id: None, error: None });
    }
    let names = || (0..100).filter_map(|at| machine(at).node_name).collect();
    (status.assignable_nodes, status.node_errors) = (names(), names());
    status.addresses = statuses;
    status.moves = Some(moves);
    let written = pools.replace_status("full", &PostParams::default(), &object).await.unwrap();
    assert!(written.status == object.status, "the apiserver pruned a part of the status");
    let bytes = serde_json::to_string(&written).unwrap().len();
    println!("a FloatingIPPool with 1,000 addresses moving: {bytes} bytes");
    assert!(bytes < OBJECT_BYTES_MAX);
}
