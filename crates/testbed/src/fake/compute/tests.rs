//! Tests of the behaviours that drivers depend on, with the requests of a driver.

use std::time::Duration;

use ::http::Request;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::Service;

use super::super::Fake;
use super::super::faults::{Fault, Rule};
use super::super::ledger::CloudChange;
use super::super::ranges::nth_of;
use super::project::{EPHEMERAL_RANGES, REGIONS, RESERVED_RANGES};
use super::*;

const ZONE: &str = "us-central1-a";
const IP: &str = "203.0.113.7";
const LATER: Duration = Duration::from_secs(2);

/// Returns a project with two VMs without addresses, and a reserved address.
fn small_cloud() -> Fake<Compute> {
    let mut compute = Compute::new("p", "secret");
    compute.add_instance_without_address(ZONE, "a");
    compute.add_instance_without_address(ZONE, "b");
    compute.add_address("us-central1", "one", IP);
    Fake::new(compute)
}

async fn ask(fake: &Fake<Compute>, method: &str, path: &str, body: Value) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://compute/compute/v1/projects/p/{path}"))
        .header("authorization", "Bearer secret")
        .body(Bytes::from(body.to_string()))
        .unwrap();
    let answer = fake.service().call(request).await.unwrap();
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap())
}

async fn get(fake: &Fake<Compute>, path: &str) -> Value {
    let (status, body) = ask(fake, "GET", path, Value::Null).await;
    assert_eq!(status, 200, "{body}");
    body
}

async fn refused(fake: &Fake<Compute>, method: &str, path: &str, body: Value) -> String {
    let (status, body) = ask(fake, method, path, body).await;
    assert!(status >= 400, "{body}");
    let error = &body["error"];
    assert_eq!(error["code"], status);
    assert_eq!(error["errors"][0]["message"], error["message"]);
    let (reason, message) = (&error["errors"][0]["reason"], &error["message"]);
    format!("{status} {} {}", reason.as_str().unwrap(), message.as_str().unwrap())
}

fn attach_path(instance: &str) -> String {
    format!("zones/{ZONE}/instances/{instance}/addAccessConfig?networkInterface=nic0")
}

fn detach_path(instance: &str) -> String {
    let query = "networkInterface=nic0&accessConfig=External%20NAT";
    format!("zones/{ZONE}/instances/{instance}/deleteAccessConfig?{query}")
}

async fn attach(fake: &Fake<Compute>, instance: &str) -> Value {
    let (status, operation) = ask(fake, "POST", &attach_path(instance), json!({ "natIP": IP })).await;
    assert_eq!(status, 200, "{operation}");
    operation
}

/// Reads an operation again.
async fn reread(fake: &Fake<Compute>, operation: &Value) -> Value {
    let link = operation["selfLink"].as_str().unwrap();
    get(fake, link.split_once("projects/p/").unwrap().1).await
}

fn changes(fake: &Fake<Compute>) -> Vec<(u64, CloudChange)> {
    fake.ledger().done.into_iter().map(|done| (done.at.as_millis() as u64, done.change)).collect()
}

fn holder(fake: &Fake<Compute>) -> Option<String> {
    fake.with(|compute| compute.holder(IP))
}

fn change(kind: fn(String, String) -> CloudChange, vm: &str) -> CloudChange {
    kind(IP.to_owned(), format!("p/{ZONE}/{vm}"))
}

fn accepted(address: String, vm: String) -> CloudChange {
    CloudChange::Accepted { address, vm }
}

fn attached(address: String, vm: String) -> CloudChange {
    CloudChange::Attached { address, vm }
}

fn detached(address: String, vm: String) -> CloudChange {
    CloudChange::Detached { address, vm }
}

#[test]
fn routes_lists_every_call() {
    assert_eq!(routes::SPECS.iter().map(|spec| spec.name).collect::<Vec<_>>(), ROUTES);
}

#[tokio::test(start_paused = true)]
async fn an_attach_takes_effect_when_its_operation_ends() {
    let fake = small_cloud();
    let operation = attach(&fake, "a").await;
    assert_eq!(operation["status"], "PENDING");
    assert_eq!(operation["operationType"], "addAccessConfig");
    assert_eq!(operation["insertTime"], "2026-01-01T00:00:00.000-08:00");
    assert_eq!(holder(&fake), None);

    sleep(Duration::from_millis(600)).await;
    assert_eq!(reread(&fake, &operation).await["status"], "RUNNING");
    sleep(Duration::from_millis(600)).await;
    let done = reread(&fake, &operation).await;
    assert_eq!((&done["status"], &done["progress"]), (&json!("DONE"), &json!(100)));
    assert_eq!(done["endTime"], "2026-01-01T00:00:01.000-08:00");
    assert_eq!(done.get("error"), None);

    let address = get(&fake, "regions/us-central1/addresses/one").await;
    assert_eq!(address["status"], "IN_USE");
    let user = format!("https://www.googleapis.com/compute/v1/projects/p/zones/{ZONE}/instances/a");
    assert_eq!(address["users"], json!([user]));
    let instance = get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    assert_eq!(instance["networkInterfaces"][0]["accessConfigs"][0]["natIP"], IP);
    assert_eq!(changes(&fake), [(0, change(accepted, "a")), (1000, change(attached, "a"))]);
}

#[tokio::test(start_paused = true)]
async fn the_ledger_is_complete_without_a_further_request() {
    let fake = small_cloud();
    attach(&fake, "a").await;
    sleep(LATER).await;
    assert_eq!(changes(&fake).last(), Some(&(1000, change(attached, "a"))));
    assert_eq!(holder(&fake), Some(format!("p/{ZONE}/a")));
}

#[tokio::test(start_paused = true)]
async fn a_vm_has_no_address_after_a_detach() {
    let fake = small_cloud();
    fake.with(|compute| compute.attach_now(IP, ZONE, "a"));
    let (status, operation) = ask(&fake, "POST", &detach_path("a"), Value::Null).await;
    assert_eq!((status, &operation["operationType"]), (200, &json!("deleteAccessConfig")));
    sleep(LATER).await;
    let instance = get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    assert_eq!(instance["networkInterfaces"][0].get("accessConfigs"), None);
    assert_eq!(get(&fake, "regions/us-central1/addresses/one").await["status"], "RESERVED");
    assert_eq!(changes(&fake), [(0, change(attached, "a")), (1000, change(detached, "a"))]);
}

#[tokio::test(start_paused = true)]
async fn detaching_an_unknown_access_config_does_nothing() {
    let fake = small_cloud();
    fake.with(|compute| compute.attach_now(IP, ZONE, "a"));
    let path =
        format!("zones/{ZONE}/instances/a/deleteAccessConfig?networkInterface=nic0&accessConfig=other");
    let (_, operation) = ask(&fake, "POST", &path, Value::Null).await;
    sleep(LATER).await;
    assert_eq!(reread(&fake, &operation).await["status"], "DONE");
    assert_eq!(holder(&fake), Some(format!("p/{ZONE}/a")));
}

#[tokio::test(start_paused = true)]
async fn attaching_without_an_address_assigns_an_ephemeral_one() {
    let fake = small_cloud();
    ask(&fake, "POST", &attach_path("a"), json!({ "type": "ONE_TO_ONE_NAT" })).await;
    sleep(LATER).await;
    let instance = get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    let config = &instance["networkInterfaces"][0]["accessConfigs"][0];
    assert_eq!(config["natIP"], "192.0.2.1");
    assert_eq!((&config["name"], &config["networkTier"]), (&json!("External NAT"), &json!("PREMIUM")));
    assert_eq!(
        changes(&fake),
        [(1000, CloudChange::Other(format!("attached ephemeral 192.0.2.1 to p/{ZONE}/a")))]
    );
}

#[tokio::test(start_paused = true)]
async fn each_interface_has_its_own_access_config() {
    let fake = small_cloud();
    fake.with(|compute| {
        compute.add_instance(ZONE, "wide");
        compute.add_interface(ZONE, "wide");
        compute.attach_to(IP, ZONE, "wide", 1);
        compute.set_ptr(IP, Some("mail.example.com."));
    });
    let instance = get(&fake, &format!("zones/{ZONE}/instances/wide")).await;
    let config = |at: usize| instance["networkInterfaces"][at]["accessConfigs"][0].clone();
    assert_eq!((&config(0)["natIP"], &config(1)["natIP"]), (&json!("192.0.2.1"), &json!(IP)));
    assert_eq!(config(1)["publicPtrDomainName"], "mail.example.com.");
    assert_eq!(instance["networkInterfaces"][1]["name"], "nic1");
    ask(&fake, "POST", &detach_path("wide"), Value::Null).await;
    sleep(LATER).await;
    let (address, vm) = ("192.0.2.1".to_owned(), format!("p/{ZONE}/wide"));
    assert_eq!(changes(&fake).last(), Some(&(1000, CloudChange::EphemeralRemoved { address, vm })));
    assert_eq!(fake.with(|compute| compute.interface_of(IP)).as_deref(), Some("nic1"));
    ask(&fake, "POST", &detach_path("wide").replace("nic0", "nic1"), Value::Null).await;
    sleep(LATER).await;
    assert_eq!((holder(&fake), fake.with(|compute| compute.ptr(IP))), (None, None));
    let path = attach_path("wide").replace("nic0", "nic2");
    assert!(
        refused(&fake, "POST", &path, json!({})).await.contains("Must be a valid network interface name")
    );
}

#[tokio::test(start_paused = true)]
async fn an_interface_accepts_only_one_access_config() {
    let fake = small_cloud();
    fake.with(|compute| compute.add_instance(ZONE, "busy"));
    let answer = refused(&fake, "POST", &attach_path("busy"), json!({ "natIP": IP })).await;
    assert_eq!(answer, "400 badRequest At most one access config currently supported.");
    assert_eq!(changes(&fake), []);
}

#[tokio::test(start_paused = true)]
async fn attaching_a_held_address_fails_in_the_operation() {
    let fake = small_cloud();
    fake.with(|compute| compute.attach_now(IP, ZONE, "a"));
    let operation = attach(&fake, "b").await;
    sleep(LATER).await;
    let done = reread(&fake, &operation).await;
    assert_eq!(done["status"], "DONE");
    assert_eq!(done["httpErrorStatusCode"], 409);
    assert_eq!(done["error"]["errors"][0]["code"], "IP_IN_USE_BY_ANOTHER_RESOURCE");
    assert_eq!(holder(&fake), Some(format!("p/{ZONE}/a")));
    assert!(fake.ledger().double_holders().is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_one_of_several_conflicting_attaches_succeeds() {
    let fake = small_cloud();
    fake.with(|compute| compute.add_address("us-central1", "two", "203.0.113.8"));
    attach(&fake, "a").await;
    let late = attach(&fake, "b").await;
    let (_, second) = ask(&fake, "POST", &attach_path("a"), json!({ "natIP": "203.0.113.8" })).await;
    sleep(LATER).await;
    assert_eq!(reread(&fake, &late).await["error"]["errors"][0]["code"], "IP_IN_USE_BY_ANOTHER_RESOURCE");
    assert_eq!(reread(&fake, &second).await["error"]["errors"][0]["code"], "INVALID_USAGE");
    assert_eq!(fake.ledger().double_holders().len(), 1, "one holder, but two accepted requests");
}

#[tokio::test(start_paused = true)]
async fn a_move_is_a_detach_and_then_an_attach() {
    let fake = small_cloud();
    fake.with(|compute| compute.attach_now(IP, ZONE, "a"));
    ask(&fake, "POST", &detach_path("a"), Value::Null).await;
    sleep(LATER).await;
    attach(&fake, "b").await;
    sleep(LATER).await;
    let expected = [
        (0, change(attached, "a")),
        (1000, change(detached, "a")),
        (2000, change(accepted, "b")),
        (3000, change(attached, "b")),
    ];
    assert_eq!(changes(&fake), expected);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_id_runs_only_once() {
    let fake = small_cloud();
    let path = format!("{}&requestId=6f1c1b0e-0000-4000-8000-000000000001", attach_path("a"));
    let (_, first) = ask(&fake, "POST", &path, json!({ "natIP": IP })).await;
    sleep(LATER).await;
    let (status, again) = ask(&fake, "POST", &path, json!({ "natIP": IP })).await;
    assert_eq!((status, &again["id"], &again["status"]), (200, &first["id"], &json!("DONE")));
    assert_eq!(changes(&fake), [(0, change(accepted, "a")), (1000, change(attached, "a"))]);

    let path = format!("{}&requestId=mine", attach_path("b"));
    assert!(refused(&fake, "POST", &path, json!({})).await.starts_with("400 invalid"));
}

#[tokio::test(start_paused = true)]
async fn a_late_failure_ends_the_operation_without_its_effect() {
    let fake = small_cloud();
    fake.inject(Rule::next("instances.addAccessConfig", Fault::FailLate));
    let operation = attach(&fake, "a").await;
    sleep(LATER).await;
    let done = reread(&fake, &operation).await;
    assert_eq!((&done["status"], &done["httpErrorStatusCode"]), (&json!("DONE"), &json!(500)));
    assert_eq!(done["error"]["errors"][0]["code"], "INTERNAL_ERROR");
    let failed = |address, vm| CloudChange::Failed { address, vm };
    assert_eq!(changes(&fake), [(0, change(accepted, "a")), (1000, change(failed, "a"))]);
}

#[tokio::test(start_paused = true)]
async fn an_overtaking_request_takes_effect_before_earlier_ones() {
    let fake = small_cloud();
    let slow = attach(&fake, "a").await;
    fake.inject(Rule::next("instances.addAccessConfig", Fault::Overtake));
    assert_eq!(attach(&fake, "b").await["status"], "DONE");
    sleep(LATER).await;
    assert_eq!(reread(&fake, &slow).await["error"]["errors"][0]["code"], "IP_IN_USE_BY_ANOTHER_RESOURCE");
    assert!(changes(&fake).contains(&(0, change(attached, "b"))));
}

#[tokio::test(start_paused = true)]
async fn an_operation_on_a_recreated_vm_fails() {
    let fake = small_cloud();
    let before = get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    let operation = attach(&fake, "a").await;
    fake.with(|compute| compute.recreate_instance(ZONE, "a"));
    let after = get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    assert_ne!(before["id"], after["id"]);
    sleep(LATER).await;
    assert_eq!(reread(&fake, &operation).await["error"]["errors"][0]["code"], "RESOURCE_NOT_FOUND");
    assert_eq!(holder(&fake), None);
}

#[tokio::test(start_paused = true)]
async fn attach_requires_an_address_of_the_same_region_and_tier() {
    let fake = small_cloud();
    fake.with(|compute| compute.add_address("us-east1", "far", "203.0.113.9"));
    let answer = refused(&fake, "POST", &attach_path("a"), json!({ "natIP": "203.0.113.9" })).await;
    assert_eq!(
        answer,
        "400 invalid Invalid value for field 'resource.natIP': '203.0.113.9'. The specified external IP address \
         '203.0.113.9' was not found in region 'us-central1'."
    );
    let body = json!({ "natIP": IP, "networkTier": "STANDARD" });
    assert!(
        refused(&fake, "POST", &attach_path("a"), body)
            .await
            .contains("tier of external IP address is PREMIUM")
    );
    let path = format!("zones/{ZONE}/instances/a/addAccessConfig?networkInterface=nic3");
    assert!(refused(&fake, "POST", &path, json!({})).await.starts_with("400 invalid"));
    let path = format!("zones/{ZONE}/instances/a/addAccessConfig");
    assert_eq!(
        refused(&fake, "POST", &path, json!({})).await,
        "400 required Required parameter: networkInterface"
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_is_created_labelled_and_released() {
    let fake = small_cloud();
    let body = json!({ "name": "new", "labels": { "owner": "me" }, "networkTier": "STANDARD" });
    ask(&fake, "POST", "regions/us-east1/addresses", body.clone()).await;
    sleep(LATER).await;
    let address = get(&fake, "regions/us-east1/addresses/new").await;
    assert_eq!(address["labels"], json!({ "owner": "me" }));
    assert_eq!((&address["networkTier"], &address["status"]), (&json!("STANDARD"), &json!("RESERVED")));
    assert!(
        refused(&fake, "POST", "regions/us-east1/addresses", body).await.starts_with("409 alreadyExists")
    );

    let path = "regions/us-east1/addresses/new/setLabels";
    let stale = json!({ "labels": {}, "labelFingerprint": "42WmSpB8rSM=" });
    assert!(refused(&fake, "POST", path, stale).await.starts_with("412 conditionNotMet"));
    let fresh = json!({ "labels": { "owner": "you" }, "labelFingerprint": address["labelFingerprint"] });
    ask(&fake, "POST", path, fresh).await;
    sleep(LATER).await;
    assert_eq!(get(&fake, "regions/us-east1/addresses/new").await["labels"]["owner"], "you");

    ask(&fake, "DELETE", "regions/us-east1/addresses/new", Value::Null).await;
    sleep(LATER).await;
    let answer = refused(&fake, "GET", "regions/us-east1/addresses/new", Value::Null).await;
    assert_eq!(answer, "404 notFound The resource 'projects/p/regions/us-east1/addresses/new' was not found");
    let ip = "203.0.113.1".to_owned();
    assert_eq!(changes(&fake)[0], (1000, CloudChange::Created { address: ip.clone() }));
    assert_eq!(
        changes(&fake).last().unwrap().1,
        CloudChange::Released { address: ip, marks: vec!["you".into()] }
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_is_not_released() {
    let fake = small_cloud();
    fake.with(|compute| compute.attach_now(IP, ZONE, "a"));
    let answer = refused(&fake, "DELETE", "regions/us-central1/addresses/one", Value::Null).await;
    assert!(answer.starts_with("400 resourceInUseByAnotherResource"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_list_is_paged_and_names_every_scope() {
    let fake = small_cloud();
    fake.with(|compute| {
        for n in 10..13 {
            compute.add_address("europe-west1", &format!("eu-{n}"), &format!("203.0.113.{n}"));
        }
    });
    let mut names = Vec::new();
    let mut token = String::new();
    loop {
        let page = get(&fake, &format!("aggregated/addresses?maxResults=3&pageToken={token}")).await;
        let items = page["items"].as_object().unwrap();
        assert_eq!(items.len(), REGIONS.len() + 1);
        assert_eq!(items["global"]["warning"]["code"], "NO_RESULTS_ON_PAGE");
        for scope in items.values() {
            let listed = scope["addresses"].as_array().into_iter().flatten();
            names.extend(listed.map(|address| address["name"].as_str().unwrap().to_owned()));
        }
        let Some(next) = page["nextPageToken"].as_str() else { break };
        token = next.to_owned();
    }
    assert_eq!(names, ["eu-10", "eu-11", "eu-12", "one"]);
    let path = "aggregated/addresses?maxResults=501";
    assert!(refused(&fake, "GET", path, Value::Null).await.starts_with("400 invalid"));
    let path = "aggregated/addresses?pageToken=x";
    assert!(refused(&fake, "GET", path, Value::Null).await.starts_with("400 invalid"));
}

#[tokio::test(start_paused = true)]
async fn a_list_reports_unreachable_regions_or_fails() {
    let fake = small_cloud();
    fake.with(|compute| compute.unreachable_regions.insert("us-central1".to_owned()));
    assert!(refused(&fake, "GET", "aggregated/addresses", Value::Null).await.starts_with("503"));
    let list = get(&fake, "aggregated/addresses?returnPartialSuccess=true").await;
    assert_eq!(list["unreachables"], json!(["regions/us-central1"]));
    assert_eq!(list["items"].get("regions/us-central1"), None);
    let list = get(&fake, "aggregated/instances?returnPartialSuccess=true").await;
    assert_eq!(
        list["unreachables"],
        json!(["zones/us-central1-a", "zones/us-central1-b", "zones/us-central1-c"])
    );
    assert!(refused(&fake, "GET", "regions/us-central1/addresses", Value::Null).await.starts_with("503"));
}

#[tokio::test(start_paused = true)]
async fn filters_compare_fields_and_reject_unknown_syntax() {
    let fake = small_cloud();
    let body = json!({ "name": "mine", "labels": { "owner": "me" } });
    ask(&fake, "POST", "regions/us-central1/addresses", body).await;
    sleep(LATER).await;
    for (filter, expected) in [
        ("labels.owner%3Dme", vec!["mine"]),
        ("labels.owner%20!%3D%20me", vec!["one"]),
        ("address%3D203.0.113.7", vec!["one"]),
        ("(labels.owner%3D%22me%22)(status%3DRESERVED)", vec!["mine"]),
        ("labels.owner%3Dme+AND+address%3D203.0.113.7", vec![]),
        ("name%20eq%20%22mine%7Cyours%22", vec!["mine"]),
        ("(name%3Dmine)%20OR%20(name%3Dyours)", vec!["mine"]),
    ] {
        let list = get(&fake, &format!("regions/us-central1/addresses?filter={filter}")).await;
        let items = list["items"].as_array().into_iter().flatten();
        let names: Vec<&str> = items.map(|item| item["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{filter}");
    }
    for filter in
        ["name:*", "a%3D1+OR+b%3D2", "(a%3D1)+OR+(b%3D2)", "id%3E4", "name%20eq%20x", "name%20eq%20%22m.*%22"]
    {
        let path = format!("regions/us-central1/addresses?filter={filter}");
        assert!(refused(&fake, "GET", &path, Value::Null).await.contains("Invalid list filter expression."));
    }
}

#[tokio::test(start_paused = true)]
async fn operations_are_listed_newest_first_on_request() {
    let fake = small_cloud();
    attach(&fake, "a").await;
    attach(&fake, "b").await;
    ask(&fake, "DELETE", "regions/us-central1/addresses/one", Value::Null).await;
    let path = format!("zones/{ZONE}/operations?orderBy=creationTimestamp%20desc");
    let list = get(&fake, &path).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert!(list["items"][0]["targetLink"].as_str().unwrap().ends_with("/b"));
    let all = get(&fake, "aggregated/operations").await;
    assert_eq!(all["items"]["regions/us-central1"]["operations"][0]["operationType"], "delete");
    let waited = ask(
        &fake,
        "POST",
        &format!("zones/{ZONE}/operations/{}/wait", list["items"][0]["name"].as_str().unwrap()),
        Value::Null,
    )
    .await;
    assert_eq!((waited.0, &waited.1["id"]), (200, &list["items"][0]["id"]));
}

#[tokio::test(start_paused = true)]
async fn a_403_names_the_permission_and_the_resource() {
    let fake = small_cloud();
    for (permission, method, path, resource) in [
        ("compute.addresses.list", "GET", "aggregated/addresses".to_owned(), ""),
        ("compute.instances.addAccessConfig", "POST", attach_path("a"), "/zones/us-central1-a/instances/a"),
        (
            "compute.subnetworks.useExternalIp",
            "POST",
            attach_path("a"),
            "/regions/us-central1/subnetworks/default",
        ),
        ("compute.addresses.use", "POST", attach_path("a"), "/regions/us-central1/addresses/one"),
    ] {
        fake.with(|compute| compute.denied = [permission.to_owned()].into());
        let answer = refused(&fake, method, &path, json!({ "natIP": IP })).await;
        assert_eq!(
            answer,
            format!("403 forbidden Required '{permission}' permission for 'projects/p{resource}'")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_resources_return_404() {
    let fake = small_cloud();
    for (path, resource) in [
        ("zones/us-central1-a/instances/x", "projects/p/zones/us-central1-a/instances/x"),
        ("zones/nowhere-1-a/instances", "projects/p/zones/nowhere-1-a"),
        ("zones/us-central1-a/operations/x", "projects/p/zones/us-central1-a/operations/x"),
    ] {
        let answer = refused(&fake, "GET", path, Value::Null).await;
        assert_eq!(answer, format!("404 notFound The resource '{resource}' was not found"));
    }
}

#[tokio::test(start_paused = true)]
async fn request_1501_in_a_minute_is_rate_limited() {
    let fake = small_cloud();
    for _ in 0..1500 {
        get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    }
    let (status, body) = ask(&fake, "GET", "aggregated/addresses", Value::Null).await;
    assert_eq!(status, 403);
    assert_eq!(body["error"]["errors"][0]["reason"], "rateLimitExceeded");
    assert_eq!(body["error"]["errors"][0]["domain"], "usageLimits");
    sleep(Duration::from_secs(60)).await;
    get(&fake, "aggregated/addresses").await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_is_refused() {
    let fake = Fake::new(Compute::new("p", "other"));
    assert!(refused(&fake, "GET", "aggregated/addresses", Value::Null).await.starts_with("401 authError"));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_vm_loses_only_an_ephemeral_address() {
    let fake = small_cloud();
    fake.with(|compute| {
        compute.add_instance(ZONE, "c");
        compute.attach_now(IP, ZONE, "a");
        compute.stop_instance(ZONE, "a");
        compute.stop_instance(ZONE, "c");
    });
    let config = |instance: &Value| instance["networkInterfaces"][0]["accessConfigs"][0].clone();
    let kept = get(&fake, &format!("zones/{ZONE}/instances/a")).await;
    assert_eq!((&kept["status"], &config(&kept)["natIP"]), (&json!("TERMINATED"), &json!(IP)));
    assert_eq!(config(&get(&fake, &format!("zones/{ZONE}/instances/c")).await).get("natIP"), None);
    fake.with(|compute| compute.start_instance(ZONE, "c"));
    assert!(config(&get(&fake, &format!("zones/{ZONE}/instances/c")).await)["natIP"].is_string());
}

#[test]
fn a_manual_move_records_no_double_holder() {
    let fake = small_cloud();
    fake.with(|compute| compute.attach_now(IP, ZONE, "a"));
    fake.with(|compute| compute.attach_now(IP, ZONE, "b"));
    fake.with(|compute| compute.remove_instance(ZONE, "b"));
    let moved = [change(attached, "a"), change(detached, "a"), change(attached, "b"), change(detached, "b")];
    assert_eq!(changes(&fake).into_iter().map(|(_, change)| change).collect::<Vec<_>>(), moved);
    assert_eq!(holder(&fake), None);
}

#[test]
fn an_ephemeral_address_is_never_a_reserved_one() {
    let fake = small_cloud();
    fake.with(|compute| {
        for number in 1..=20 {
            compute.add_address(REGIONS[0], &format!("taken-{number}"), &format!("192.0.2.{number}"));
        }
        compute.add_instance(ZONE, "new");
        assert!(compute.has_ephemeral(ZONE, "new"), "a reserved address is not ephemeral");
    });
}

#[test]
fn address_ranges_wrap_around_when_used_up() {
    assert_eq!(nth_of(RESERVED_RANGES, 0), "203.0.113.1");
    assert_eq!(nth_of(RESERVED_RANGES, 254), "198.51.100.1");
    assert_eq!(nth_of(RESERVED_RANGES, 508), "198.18.0.0");
    assert_eq!(nth_of(EPHEMERAL_RANGES, 254 + 65_536), "192.0.2.1");
}
