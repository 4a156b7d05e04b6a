//! Tests of the behaviours that other tests rely on, with the requests of a driver.

use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::faults::{Fault, Rule};
use super::super::ledger::CloudChange;
use super::super::{Fake, Refusal};
use super::{DigitalOcean, ROUTES};

const IP: &str = "203.0.113.1";
const OTHER_IP: &str = "203.0.113.2";

/// Returns an account with two droplets in Frankfurt, one in New York, and two addresses in Frankfurt.
fn account() -> Fake<DigitalOcean> {
    let mut cloud = DigitalOcean::new("secret");
    cloud.add_droplet(1, "one", "fra1");
    cloud.add_droplet(2, "two", "fra1");
    cloud.add_droplet(3, "three", "nyc3");
    cloud.add_reserved_ip(IP, "fra1");
    cloud.add_reserved_ip(OTHER_IP, "fra1");
    cloud.add_domain("example.com");
    Fake::new(cloud)
}

async fn exchange(fake: &Fake<DigitalOcean>, line: &str, body: Value) -> Response<Bytes> {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder()
        .method(method)
        .uri(format!("/v2/{path}"))
        .header("authorization", "Bearer secret")
        .body(Bytes::from(body.to_string()))
        .unwrap();
    fake.service().oneshot(request).await.unwrap()
}

/// Sends a request such as `GET droplets/1`, and returns the status and the body.
async fn ask(fake: &Fake<DigitalOcean>, line: &str, body: Value) -> (u16, Value) {
    let response = exchange(fake, line, body).await;
    (response.status().as_u16(), serde_json::from_slice(response.body()).unwrap_or_default())
}

async fn get(fake: &Fake<DigitalOcean>, path: &str) -> (u16, Value) {
    ask(fake, &format!("GET {path}"), Value::Null).await
}

async fn assign(fake: &Fake<DigitalOcean>, ip: &str, droplet: u64) -> (u16, Value) {
    let order = json!({ "type": "assign", "droplet_id": droplet });
    ask(fake, &format!("POST reserved_ips/{ip}/actions"), order).await
}

async fn unassign(fake: &Fake<DigitalOcean>, ip: &str) -> (u16, Value) {
    ask(fake, &format!("POST reserved_ips/{ip}/actions"), json!({ "type": "unassign" })).await
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

/// Returns the changes in the ledger as text, with their times.
fn changes(fake: &Fake<DigitalOcean>) -> Vec<String> {
    let line = |at: Duration, text: String| format!("{} ms {text}", at.as_millis());
    let change = |change: &CloudChange| match change {
        CloudChange::Accepted { address, vm } => format!("accepted {address} {vm}"),
        CloudChange::Failed { address, vm } => format!("failed {address} {vm}"),
        CloudChange::Attached { address, vm } => format!("attached {address} {vm}"),
        CloudChange::Detached { address, vm } => format!("detached {address} {vm}"),
        CloudChange::Created { address } => format!("created {address}"),
        CloudChange::Released { address, .. } => format!("released {address}"),
        CloudChange::RecordSet { name, value } => format!("set {name} {value}"),
        CloudChange::RecordRemoved { name, value } => format!("removed {name} {value}"),
        CloudChange::EphemeralRemoved { address, vm } => format!("removed {address} of {vm}"),
        CloudChange::Other(text) => text.clone(),
    };
    fake.ledger().done.iter().map(|done| line(done.at, change(&done.change))).collect()
}

#[tokio::test(start_paused = true)]
async fn an_assignment_takes_effect_after_the_action_time() {
    let fake = account();
    let (status, answer) = assign(&fake, IP, 1).await;
    assert_eq!((status, &answer["action"]["status"]), (201, &json!("in-progress")));
    let (_, during) = get(&fake, &format!("reserved_ips/{IP}")).await;
    assert_eq!(during["reserved_ip"]["locked"], true);
    assert_eq!(during["reserved_ip"]["droplet"], Value::Null);

    seconds(1).await;
    let (_, after) = get(&fake, &format!("reserved_ips/{IP}")).await;
    assert_eq!(after["reserved_ip"]["locked"], false);
    assert_eq!(after["reserved_ip"]["droplet"]["id"], 1);
    let id = answer["action"]["id"].as_u64().unwrap();
    let (_, action) = get(&fake, &format!("reserved_ips/{IP}/actions/{id}")).await;
    assert_eq!(action["action"]["status"], "completed");
    assert_eq!(action["action"]["completed_at"], "2026-01-01T00:00:01Z");
    assert_eq!(changes(&fake), ["0 ms accepted 203.0.113.1 1", "1000 ms attached 203.0.113.1 1"]);
}

#[tokio::test(start_paused = true)]
async fn finished_actions_are_visible_without_another_request() {
    let fake = account();
    assign(&fake, IP, 1).await;
    assert_eq!(fake.with(|cloud| cloud.holder(IP)), None);
    seconds(5).await;
    assert_eq!(changes(&fake), ["0 ms accepted 203.0.113.1 1", "1000 ms attached 203.0.113.1 1"]);
    assert_eq!(fake.with(|cloud| cloud.holder(IP)), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_move_detaches_and_attaches_at_the_same_moment() {
    let fake = account();
    fake.with(|cloud| cloud.assign_now(IP, 1));
    assert_eq!(assign(&fake, IP, 2).await.0, 201);
    seconds(1).await;
    assert_eq!(fake.with(|cloud| cloud.holder(IP)), Some(2));
    assert_eq!(
        changes(&fake),
        [
            "0 ms attached 203.0.113.1 1",
            "0 ms accepted 203.0.113.1 2",
            "1000 ms detached 203.0.113.1 1",
            "1000 ms attached 203.0.113.1 2",
        ]
    );
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_unassignment_takes_effect_after_the_action_time() {
    let fake = account();
    fake.with(|cloud| cloud.assign_now(IP, 1));
    assert_eq!(unassign(&fake, IP).await.1["action"]["type"], "unassign_ip");
    assert_eq!(fake.with(|cloud| cloud.holder(IP)), Some(1));
    seconds(1).await;
    assert_eq!(fake.with(|cloud| cloud.holder(IP)), None);
    assert_eq!(changes(&fake).last().unwrap(), "1000 ms detached 203.0.113.1 1");
    assert_eq!(unassign(&fake, IP).await.0, 422, "an address on no droplet can't be unassigned");
}

#[tokio::test(start_paused = true)]
async fn invalid_assignments_are_refused() {
    let fake = account();
    fake.with(|cloud| cloud.assign_now(IP, 1));
    assert_eq!(assign(&fake, IP, 1).await.0, 422, "the droplet already has this address");
    assert_eq!(assign(&fake, OTHER_IP, 1).await.0, 422, "the droplet has another address");
    assert_eq!(assign(&fake, OTHER_IP, 3).await.0, 422, "the droplet is in another region");
    assert_eq!(assign(&fake, "192.0.2.9", 1).await.0, 404, "no such address");
    assert_eq!(assign(&fake, OTHER_IP, 9).await.0, 404, "no such droplet");
    assert_eq!(assign(&fake, OTHER_IP, 2).await.0, 201);
    assert_eq!(assign(&fake, OTHER_IP, 2).await.0, 422, "the address has an action pending");
    assert_eq!(assign(&fake, IP, 2).await.0, 422, "the droplet has an event pending");
    assert_eq!(ask(&fake, &format!("DELETE reserved_ips/{OTHER_IP}"), Value::Null).await.0, 422);
    let (_, body) = unassign(&fake, OTHER_IP).await;
    let message = "The floating IP already has a pending event.";
    assert_eq!(body, json!({ "id": "unprocessable_entity", "message": message }));
    assert_eq!(changes(&fake), ["0 ms attached 203.0.113.1 1", "0 ms accepted 203.0.113.2 2"]);
}

#[tokio::test(start_paused = true)]
async fn an_action_that_fails_late_changes_nothing() {
    let fake = account();
    fake.inject(Rule::next("reserved_ips_actions.post", Fault::FailLate));
    let (status, answer) = assign(&fake, IP, 1).await;
    assert_eq!((status, &answer["action"]["status"]), (201, &json!("in-progress")));
    seconds(1).await;
    let (_, action) = get(&fake, &format!("actions/{}", answer["action"]["id"])).await;
    assert_eq!(action["action"]["status"], "errored");
    assert_eq!(changes(&fake), ["0 ms accepted 203.0.113.1 1", "1000 ms failed 203.0.113.1 1"]);
    assert_eq!(assign(&fake, IP, 1).await.0, 201, "the failed action released its locks");
}

#[tokio::test(start_paused = true)]
async fn an_action_can_overtake_one_that_began_earlier() {
    let fake = account();
    assign(&fake, IP, 1).await;
    fake.inject(Rule::next("reserved_ips_actions.post", Fault::Overtake));
    let (_, answer) = assign(&fake, OTHER_IP, 2).await;
    assert_eq!(answer["action"]["status"], "completed");
    seconds(1).await;
    let attached: Vec<String> =
        changes(&fake).into_iter().filter(|change| change.contains("attached")).collect();
    assert_eq!(attached, ["0 ms attached 203.0.113.2 2", "1000 ms attached 203.0.113.1 1"]);
}

#[tokio::test(start_paused = true)]
async fn actions_take_effect_in_the_order_in_which_they_end() {
    let fake = account();
    fake.with(|cloud| cloud.action_time = Duration::from_secs(9));
    assign(&fake, IP, 1).await;
    fake.with(|cloud| cloud.action_time = Duration::from_secs(3));
    assign(&fake, OTHER_IP, 2).await;
    seconds(60).await;
    let attached = ["3000 ms attached 203.0.113.2 2", "9000 ms attached 203.0.113.1 1"];
    assert_eq!(changes(&fake)[2..], attached);
}

#[tokio::test(start_paused = true)]
async fn deleting_a_droplet_frees_its_address_and_fails_actions() {
    let fake = account();
    fake.with(|cloud| cloud.assign_now(IP, 1));
    let (_, answer) = assign(&fake, OTHER_IP, 2).await;
    fake.with(|cloud| {
        cloud.remove_droplet(1);
        cloud.remove_droplet(2);
    });
    assert_eq!(get(&fake, "droplets/1").await.0, 404);
    assert_eq!(fake.with(|cloud| cloud.holder(IP)), None);
    seconds(1).await;
    let (_, action) = get(&fake, &format!("actions/{}", answer["action"]["id"])).await;
    assert_eq!(action["action"]["status"], "errored");
    let expected =
        ["0 ms accepted 203.0.113.2 2", "0 ms detached 203.0.113.1 1", "1000 ms failed 203.0.113.2 2"];
    assert_eq!(changes(&fake)[1..], expected);
}

#[tokio::test(start_paused = true)]
async fn actions_of_a_bring_your_own_address_return_404() {
    let fake = account();
    fake.with(|cloud| cloud.bring_your_own(IP));
    let (status, answer) = assign(&fake, IP, 1).await;
    assert_eq!(status, 201);
    let id = answer["action"]["id"].as_u64().unwrap();
    assert_eq!(get(&fake, &format!("reserved_ips/{IP}/actions/{id}")).await.0, 404);
    assert_eq!(get(&fake, &format!("actions/{id}")).await.0, 404);
    seconds(1).await;
    let (_, address) = get(&fake, &format!("reserved_ips/{IP}")).await;
    assert_eq!(address["reserved_ip"]["droplet"]["id"], 1);
}

#[tokio::test(start_paused = true)]
async fn calls_of_floating_ips_and_reserved_ips_share_their_state() {
    let fake = account();
    let (status, created) = ask(&fake, "POST floating_ips", json!({ "region": "fra1" })).await;
    assert_eq!((status, &created["floating_ip"]["ip"]), (202, &json!("203.0.113.3")));
    let order = json!({ "type": "assign", "droplet_id": 1 });
    let (_, action) = ask(&fake, "POST floating_ips/203.0.113.3/actions", order).await;
    assert_eq!(action["action"]["resource_type"], "floating_ip");
    seconds(1).await;
    let (_, listed) = get(&fake, "floating_ips").await;
    assert_eq!(listed["floating_ips"].as_array().unwrap().len(), 3);
    let (_, address) = get(&fake, "reserved_ips/203.0.113.3").await;
    assert_eq!(address["reserved_ip"]["droplet"]["id"], 1);
    assert_eq!(ask(&fake, "DELETE floating_ips/203.0.113.3", Value::Null).await, (204, Value::Null));
    assert_eq!(
        changes(&fake)[3..],
        ["1000 ms detached 203.0.113.3 1", "1000 ms released 203.0.113.3"],
        "the API releases an address that a droplet holds"
    );
}

#[tokio::test(start_paused = true)]
async fn creating_an_address_for_a_droplet_also_assigns_it() {
    let fake = account();
    let (status, created) = ask(&fake, "POST reserved_ips", json!({ "droplet_id": 2 })).await;
    assert_eq!((status, &created["reserved_ip"]["locked"]), (202, &json!(true)));
    assert_eq!(created["links"]["actions"][0]["rel"], "assign_ip");
    seconds(1).await;
    let accepted =
        ["0 ms created 203.0.113.3", "0 ms accepted 203.0.113.3 2", "1000 ms attached 203.0.113.3 2"];
    assert_eq!(changes(&fake), accepted);
    let (_, droplet) = get(&fake, "droplets/2").await;
    let networks = droplet["droplet"]["networks"]["v4"].as_array().unwrap().clone();
    assert_eq!(networks.last().unwrap()["ip_address"], "203.0.113.3");
    assert_eq!(ask(&fake, "POST reserved_ips", json!({ "droplet_id": 2 })).await.0, 422);
    assert_eq!(ask(&fake, "POST reserved_ips", json!({})).await.0, 422);
    assert_eq!(ask(&fake, "POST reserved_ips", json!({ "region": "moon1" })).await.0, 422);
}

#[tokio::test(start_paused = true)]
async fn created_addresses_are_never_reused() {
    let fake = Fake::new(DigitalOcean::new("secret"));
    fake.enforce_limits(false);
    let mut seen = Vec::new();
    for _ in 0..764 {
        let (_, created) = ask(&fake, "POST reserved_ips", json!({ "region": "ams3" })).await;
        seen.push(created["reserved_ip"]["ip"].as_str().unwrap().to_owned());
        ask(&fake, &format!("DELETE reserved_ips/{}", seen[seen.len() - 1]), Value::Null).await;
    }
    let chosen = [0, 253, 254, 508, 762, 763].map(|at| seen[at].as_str());
    let expected = ["203.0.113.1", "203.0.113.254", "198.51.100.1", "192.0.2.1", "198.18.0.1", "198.18.0.2"];
    assert_eq!(chosen, expected);
}

#[tokio::test(start_paused = true)]
async fn links_lead_through_all_pages_of_a_listing() {
    let fake = Fake::new(DigitalOcean::new("secret"));
    fake.with(|cloud| (1..=45).for_each(|host| cloud.add_reserved_ip(format!("203.0.113.{host}"), "fra1")));
    let mut next = Some("https://api.digitalocean.com/v2/reserved_ips".to_owned());
    let mut sizes = Vec::new();
    while let Some(url) = next {
        let (_, page) = get(&fake, url.strip_prefix("https://api.digitalocean.com/v2/").unwrap()).await;
        assert_eq!(page["meta"]["total"], 45);
        sizes.push(page["reserved_ips"].as_array().unwrap().len());
        next = page["links"]["pages"]["next"].as_str().map(str::to_owned);
    }
    assert_eq!(sizes, [20, 20, 5]);
    let (_, all) = get(&fake, "reserved_ips?per_page=500").await;
    assert_eq!((all["reserved_ips"].as_array().unwrap().len(), &all["links"]), (45, &json!({})));
    let (_, none) = get(&fake, "reserved_ips?page=99").await;
    assert_eq!(none["reserved_ips"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_page_has_at_most_200_items() {
    let fake = Fake::new(DigitalOcean::new("secret"));
    fake.with(|cloud| (1..=201).for_each(|host| cloud.add_reserved_ip(format!("203.0.113.{host}"), "fra1")));
    let (_, page) = get(&fake, "reserved_ips?per_page=500").await;
    assert_eq!(page["reserved_ips"].as_array().unwrap().len(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_new_address_belongs_to_the_requested_project() {
    let fake = account();
    let body = json!({ "name": "pool", "purpose": "addresses" });
    let (status, created) = ask(&fake, "POST projects", body.clone()).await;
    assert_eq!(status, 201);
    assert_eq!(ask(&fake, "POST projects", body).await.0, 409, "the name is taken");
    let id = created["project"]["id"].as_str().unwrap();
    let body = json!({ "region": "fra1", "project_id": id });
    let (_, address) = ask(&fake, "POST reserved_ips", body).await;
    assert_eq!(address["reserved_ip"]["project_id"], id);
    let (_, resources) = get(&fake, &format!("projects/{id}/resources")).await;
    assert_eq!(resources["resources"][0]["urn"], "do:floatingip:203.0.113.3");
    assert_eq!(ask(&fake, &format!("DELETE projects/{id}"), Value::Null).await.0, 412, "not empty");
    ask(&fake, "DELETE reserved_ips/203.0.113.3", Value::Null).await;
    assert_eq!(ask(&fake, &format!("DELETE projects/{id}"), Value::Null).await.0, 204);
    assert_eq!(get(&fake, &format!("projects/{id}")).await.0, 404);
    let (_, default) = get(&fake, "projects/default").await;
    assert_eq!(default["project"]["is_default"], true);
}

#[tokio::test(start_paused = true)]
async fn records_are_found_by_full_name_and_changed_atomically() {
    let fake = account();
    let body = json!({ "type": "A", "name": "www", "data": "203.0.113.1", "ttl": 60 });
    let (status, created) = ask(&fake, "POST domains/example.com/records", body).await;
    assert_eq!(status, 201);
    let id = created["domain_record"]["id"].as_u64().unwrap();
    let (_, found) = get(&fake, "domains/example.com/records?name=www.example.com&type=A").await;
    assert_eq!(found["domain_records"], json!([created["domain_record"]]));
    let (_, none) = get(&fake, "domains/example.com/records?name=www&type=A").await;
    assert_eq!(none["meta"]["total"], 0);

    let path = format!("domains/example.com/records/{id}");
    ask(&fake, &format!("PUT {path}"), json!({ "type": "A", "name": "www", "data": "203.0.113.2" })).await;
    let (_, patched) = ask(&fake, &format!("PATCH {path}"), json!({ "ttl": 90 })).await;
    assert_eq!(patched["domain_record"]["data"], "203.0.113.2");
    assert_eq!(patched["domain_record"]["ttl"], 90);
    assert_eq!(ask(&fake, &format!("PATCH {path}"), json!({ "data": "x" })).await.0, 422);
    assert_eq!(ask(&fake, &format!("DELETE {path}"), Value::Null).await.0, 204);
    assert_eq!(get(&fake, &path).await.0, 404);
    assert_eq!(
        changes(&fake),
        [
            "0 ms set www.example.com 203.0.113.1",
            "0 ms set www.example.com 203.0.113.2",
            "0 ms removed www.example.com 203.0.113.1",
            "0 ms changed www.example.com",
            "0 ms removed www.example.com 203.0.113.2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn at_most_12_addresses_can_be_created_in_a_minute() {
    let fake = account();
    for _ in 0..12 {
        assert_eq!(ask(&fake, "POST reserved_ips", json!({ "region": "fra1" })).await.0, 202);
    }
    seconds(20).await;
    let refused = exchange(&fake, "POST floating_ips", json!({ "region": "fra1" })).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "40");
    assert_eq!(refused.headers()["ratelimit-remaining"], "0");
    let body: Value = serde_json::from_slice(refused.body()).unwrap();
    assert_eq!(body["id"], "too_many_requests");
    assert_eq!(get(&fake, "reserved_ips").await.0, 200, "other calls still succeed");
    seconds(40).await;
    assert_eq!(ask(&fake, "POST reserved_ips", json!({ "region": "fra1" })).await.0, 202);
}

#[tokio::test(start_paused = true)]
async fn limits_are_250_requests_a_minute_and_5000_an_hour() {
    let fake = account();
    let mut accepted = 0;
    for _ in 0..21 {
        for _ in 0..251 {
            let response = exchange(&fake, "GET droplets/1", Value::Null).await;
            accepted += usize::from(response.status() == 200);
        }
        seconds(60).await;
    }
    // Refused requests count too, so the hourly quota is used up a little before 5,000 requests succeed.
    assert_eq!(accepted, 19 * 250 + 5000 - 19 * 251);
    seconds(3600).await;
    let response = exchange(&fake, "GET droplets/1", Value::Null).await;
    assert_eq!(response.headers()["ratelimit-limit"], "5000");
    assert_eq!(response.headers()["ratelimit-remaining"], "4999");
}

#[tokio::test]
async fn refusals_have_the_vendors_bodies() {
    let fake = account();
    let unauthorized = Request::builder().uri("/v2/droplets").header("authorization", "Bearer wrong");
    let response = fake.service().oneshot(unauthorized.body(Bytes::new()).unwrap()).await.unwrap();
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(response.status(), 401);
    assert_eq!(body, json!({ "id": "unauthorized", "message": "Unable to authenticate you" }));

    assert_eq!(get(&fake, "sizes").await.1["id"], "not_found");
    let refusals = [
        (Refusal::Unavailable(500), 500, "server_error"),
        (Refusal::Unavailable(503), 503, "service_unavailable"),
        (Refusal::Forbidden("You do not have access for the attempted action.".into()), 403, "forbidden"),
    ];
    for (refusal, status, id) in refusals {
        fake.inject(Rule::next("droplets.get", Fault::Refuse(refusal)));
        let (found, body) = get(&fake, "droplets/1").await;
        assert_eq!((found, &body["id"]), (status, &json!(id)));
    }
}

#[test]
fn call_names_are_unique() {
    let mut names = ROUTES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ROUTES.len());
}
