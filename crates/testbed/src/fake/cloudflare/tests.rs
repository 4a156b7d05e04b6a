//! Tests of the behaviours that other tests rely on, with the requests of a driver.

use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::faults::{Fault, Rule};
use super::super::{Fake, Refusal};
use super::{Cloudflare, ROUTES};

const NAME: &str = "www.example.com";

/// Returns an account with one empty zone, and the ID of the zone.
fn account() -> (Fake<Cloudflare>, String) {
    let mut cloud = Cloudflare::new("secret");
    let zone = cloud.add_zone("example.com");
    (Fake::new(cloud), zone)
}

async fn exchange(fake: &Fake<Cloudflare>, line: &str, body: Value) -> Response<Bytes> {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder()
        .method(method)
        .uri(format!("/client/v4/{path}"))
        .header("authorization", "Bearer secret")
        .body(Bytes::from(body.to_string()))
        .unwrap();
    fake.service().oneshot(request).await.unwrap()
}

/// Sends a request such as `GET zones`, and returns the status and the body.
async fn ask(fake: &Fake<Cloudflare>, line: &str, body: Value) -> (u16, Value) {
    let response = exchange(fake, line, body).await;
    (response.status().as_u16(), serde_json::from_slice(response.body()).unwrap())
}

async fn get(fake: &Fake<Cloudflare>, path: &str) -> (u16, Value) {
    ask(fake, &format!("GET {path}"), Value::Null).await
}

/// Creates a record that the fake must accept, and returns it.
async fn create(fake: &Fake<Cloudflare>, zone: &str, body: Value) -> Value {
    let (status, answer) = ask(fake, &format!("POST zones/{zone}/dns_records"), body).await;
    assert_eq!(status, 200, "{answer}");
    answer["result"].clone()
}

/// Tries to create a record that the fake must refuse, and returns the error code.
async fn refused(fake: &Fake<Cloudflare>, zone: &str, body: Value) -> u64 {
    let (status, answer) = ask(fake, &format!("POST zones/{zone}/dns_records"), body).await;
    assert_eq!(
        (status, &answer["success"], &answer["result"]),
        (400, &json!(false), &Value::Null),
        "{answer}"
    );
    answer["errors"][0]["code"].as_u64().unwrap()
}

fn address(content: &str) -> Value {
    json!({ "type": "A", "name": NAME, "content": content })
}

fn changes(fake: &Fake<Cloudflare>) -> Vec<String> {
    fake.ledger().done.iter().map(|done| done.change.to_string()).collect()
}

fn values(fake: &Fake<Cloudflare>) -> Vec<String> {
    fake.with(|cloud| cloud.values(NAME, "A"))
}

#[tokio::test(start_paused = true)]
async fn a_new_record_has_the_vendors_defaults() {
    let (fake, zone) = account();
    let record = create(&fake, &zone, address("203.0.113.1")).await;
    let id = record["id"].as_str().unwrap();
    assert_eq!(id.len(), 32);
    let expected = json!({
        "id": id, "name": NAME, "type": "A", "content": "203.0.113.1", "proxiable": true, "proxied": false,
        "ttl": 1, "settings": {}, "meta": {}, "comment": null, "tags": [],
        "created_on": "2026-01-01T00:00:00Z", "modified_on": "2026-01-01T00:00:00Z",
    });
    assert_eq!(record, expected);
    assert_eq!(get(&fake, &format!("zones/{zone}/dns_records/{id}")).await.1["result"], record);
    assert_eq!(changes(&fake), ["set record www.example.com = 203.0.113.1"]);
}

#[tokio::test(start_paused = true)]
async fn every_record_name_ends_in_the_zone_name() {
    let (fake, zone) = account();
    let names = [
        ("www", "www.example.com"),
        ("@", "example.com"),
        ("Example.com", "example.com"),
        ("a.b.example.com.", "a.b.example.com"),
        ("other.example.net", "other.example.net.example.com"),
        ("notexample.com", "notexample.com.example.com"),
    ];
    for (host, (asked, kept)) in names.into_iter().enumerate() {
        let body = json!({ "type": "A", "name": asked, "content": format!("203.0.113.{host}") });
        assert_eq!(create(&fake, &zone, body).await["name"], kept);
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_records_are_refused_with_the_vendors_codes() {
    let (fake, zone) = account();
    let with = |parts: Value| {
        let mut body = address("203.0.113.1");
        for (field, value) in parts.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    };
    let cases = [
        (json!({ "type": "SOA" }), 1004),
        (json!({ "name": "" }), 9000),
        (json!({ "content": "2001:db8::1" }), 9005),
        (json!({ "type": "AAAA" }), 9006),
        (json!({ "type": "TXT", "content": "" }), 1004),
        (json!({ "ttl": 59 }), 9021),
        (json!({ "ttl": 86_401 }), 9021),
        (json!({ "type": "TXT", "proxied": true }), 9004),
        (json!({ "content": "10.0.0.1", "proxied": true }), 9003),
        (json!({ "comment": "x".repeat(101) }), 9313),
        (json!({ "tags": ["owner:me"] }), 9300),
    ];
    for (parts, code) in cases {
        assert_eq!(refused(&fake, &zone, with(parts.clone())).await, code, "{parts}");
    }
    assert_eq!(changes(&fake), Vec::<String>::new());
    for (host, ttl) in [(1, 60), (2, 86_400)] {
        create(&fake, &zone, with(json!({ "content": format!("203.0.113.{host}"), "ttl": ttl }))).await;
    }
    create(&fake, &zone, with(json!({ "content": "203.0.113.3", "comment": "x".repeat(100) }))).await;
}

#[tokio::test(start_paused = true)]
async fn conflicting_records_of_one_name_are_refused() {
    let (fake, zone) = account();
    create(&fake, &zone, address("203.0.113.1")).await;
    create(&fake, &zone, address("203.0.113.2")).await;
    create(&fake, &zone, json!({ "type": "TXT", "name": NAME, "content": "203.0.113.1" })).await;
    let mut again = address("203.0.113.1");
    again["ttl"] = 300.into();
    assert_eq!(refused(&fake, &zone, again).await, 81_058, "a record with another TTL is still a duplicate");
    let alias = |name: &str| json!({ "type": "CNAME", "name": name, "content": "example.net" });
    assert_eq!(refused(&fake, &zone, alias(NAME)).await, 81_053);
    create(&fake, &zone, alias("alias")).await;
    let other = json!({ "type": "AAAA", "name": "alias", "content": "2001:db8::1" });
    assert_eq!(refused(&fake, &zone, other).await, 81_054);
}

#[tokio::test(start_paused = true)]
async fn a_patch_keeps_omitted_fields_and_a_put_resets_them() {
    let (fake, zone) = account();
    let mut body = address("203.0.113.1");
    (body["comment"], body["proxied"]) = ("ours".into(), true.into());
    let record = create(&fake, &zone, body).await;
    let path = format!("zones/{zone}/dns_records/{}", record["id"].as_str().unwrap());
    tokio::time::sleep(Duration::from_secs(9)).await;

    let (_, patched) = ask(&fake, &format!("PATCH {path}"), json!({ "content": "203.0.113.2" })).await;
    let patched = &patched["result"];
    assert_eq!((&patched["comment"], &patched["proxied"]), (&json!("ours"), &json!(true)));
    assert_eq!(patched["created_on"], "2026-01-01T00:00:00Z");
    assert_eq!(patched["modified_on"], "2026-01-01T00:00:09Z");
    assert_eq!(patched["comment_modified_on"], "2026-01-01T00:00:00Z");

    let (_, replaced) = ask(&fake, &format!("PUT {path}"), address("203.0.113.2")).await;
    let replaced = &replaced["result"];
    assert_eq!(replaced["id"], record["id"]);
    assert_eq!((&replaced["comment"], &replaced["proxied"]), (&Value::Null, &json!(false)));
    assert_eq!(
        changes(&fake),
        [
            "set record www.example.com = 203.0.113.1",
            "removed record www.example.com = 203.0.113.1",
            "set record www.example.com = 203.0.113.2",
            "set record www.example.com = 203.0.113.2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_proxied_record_always_has_the_automatic_ttl() {
    let (fake, zone) = account();
    let mut body = address("203.0.113.1");
    (body["ttl"], body["proxied"]) = (300.into(), true.into());
    assert_eq!(create(&fake, &zone, body).await["ttl"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_record_is_gone() {
    let (fake, zone) = account();
    let record = create(&fake, &zone, address("203.0.113.1")).await;
    let path = format!("zones/{zone}/dns_records/{}", record["id"].as_str().unwrap());
    let (status, deleted) = ask(&fake, &format!("DELETE {path}"), Value::Null).await;
    assert_eq!((status, &deleted["result"]), (200, &json!({ "id": record["id"] })));
    for line in
        [format!("GET {path}"), format!("PATCH {path}"), format!("PUT {path}"), format!("DELETE {path}")]
    {
        let (status, answer) = ask(&fake, &line, json!({ "content": "203.0.113.2" })).await;
        assert_eq!((status, &answer["errors"][0]["code"]), (404, &json!(81_044)), "{line}");
    }
    assert_eq!(changes(&fake).last().unwrap(), "removed record www.example.com = 203.0.113.1");
}

#[tokio::test(start_paused = true)]
async fn a_batch_runs_deletes_then_patches_then_puts_then_posts() {
    let (fake, zone) = account();
    let mut ids = Vec::new();
    for host in 1..=3 {
        ids.push(create(&fake, &zone, address(&format!("203.0.113.{host}"))).await["id"].clone());
    }
    // Each change needs the address that the previous one frees, so only this order succeeds.
    let batch = json!({
        "posts": [address("203.0.113.3")],
        "puts": [{ "id": ids[2], "type": "A", "name": NAME, "content": "203.0.113.2" }],
        "patches": [{ "id": ids[1], "content": "203.0.113.1" }],
        "deletes": [{ "id": ids[0] }],
    });
    let (status, answer) = ask(&fake, &format!("POST zones/{zone}/dns_records/batch"), batch).await;
    assert_eq!(status, 200, "{answer}");
    let content = |kind: &str| answer["result"][kind][0]["content"].as_str().unwrap().to_owned();
    assert_eq!(content("deletes"), "203.0.113.1");
    assert_eq!(content("patches"), "203.0.113.1");
    assert_eq!(content("puts"), "203.0.113.2");
    assert_eq!(content("posts"), "203.0.113.3");
    assert_eq!(values(&fake), ["203.0.113.1", "203.0.113.2", "203.0.113.3"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_one_bad_change_changes_nothing() {
    let (fake, zone) = account();
    let record = create(&fake, &zone, address("203.0.113.1")).await;
    let batch = json!({
        "deletes": [{ "id": record["id"] }],
        "posts": [address("203.0.113.2"), address("203.0.113.2")],
    });
    let (status, answer) = ask(&fake, &format!("POST zones/{zone}/dns_records/batch"), batch).await;
    assert_eq!((status, &answer["errors"][0]["code"]), (400, &json!(81_058)));
    assert_eq!(values(&fake), ["203.0.113.1"]);
    assert_eq!(changes(&fake), ["set record www.example.com = 203.0.113.1"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_at_most_200_changes() {
    let (fake, zone) = account();
    let posts =
        |count: u32| -> Vec<Value> { (0..count).map(|n| address(&format!("198.18.0.{n}"))).collect() };
    let line = format!("POST zones/{zone}/dns_records/batch");
    assert_eq!(ask(&fake, &line, json!({ "posts": posts(201) })).await.0, 400);
    assert_eq!(values(&fake).len(), 0);
    assert_eq!(ask(&fake, &line, json!({ "posts": posts(200) })).await.0, 200);
    assert_eq!(values(&fake).len(), 200);
}

#[tokio::test(start_paused = true)]
async fn listings_are_filtered_and_paged() {
    let (fake, zone) = account();
    for host in 0..101 {
        create(&fake, &zone, address(&format!("203.0.113.{host}"))).await;
    }
    let mut ours = address("198.51.100.1");
    (ours["name"], ours["comment"]) = ("api".into(), "Ours".into());
    create(&fake, &zone, ours).await;
    let counts = async |query: &str| {
        let (_, answer) = get(&fake, &format!("zones/{zone}/dns_records?{query}")).await;
        let info = &answer["result_info"];
        assert_eq!(answer["result"].as_array().unwrap().len() as u64, info["count"].as_u64().unwrap());
        ["count", "total_count", "total_pages"].map(|field| info[field].as_u64().unwrap())
    };
    assert_eq!(counts("").await, [100, 102, 2]);
    assert_eq!(counts("page=2").await, [2, 102, 2]);
    assert_eq!(counts("page=3").await, [0, 102, 2]);
    assert_eq!(counts("per_page=5000").await, [102, 102, 1]);
    assert_eq!(counts("name=API.example.com").await, [1, 1, 1]);
    assert_eq!(counts("name.exact=api.example.com&type=A").await, [1, 1, 1]);
    assert_eq!(counts("name.exact=api").await, [0, 0, 0], "only full names match");
    assert_eq!(counts("type=AAAA").await, [0, 0, 0]);
    assert_eq!(counts("content.startswith=203.0.113.10").await, [2, 2, 1]);
    assert_eq!(counts("comment.exact=ours").await, [1, 1, 1]);
    assert_eq!(counts("comment.present=").await, [1, 1, 1]);
    assert_eq!(counts("comment.absent=&per_page=1").await, [1, 101, 101]);
    assert_eq!(counts("nonsense=1").await, [100, 102, 2], "the API ignores an unknown filter");
}

#[tokio::test(start_paused = true)]
async fn a_zone_is_found_by_its_name() {
    let (fake, zone) = account();
    fake.with(|cloud| cloud.add_zone("example.net"));
    let (_, both) = get(&fake, "zones").await;
    assert_eq!(both["result_info"]["total_count"], 2);
    let (_, found) = get(&fake, "zones?name=example.com").await;
    assert_eq!(found["result"][0]["id"], zone.as_str());
    assert_eq!(found["result_info"]["total_count"], 1);
    let (_, none) = get(&fake, "zones?name=www.example.com").await;
    assert_eq!(none["result"], json!([]));
    let (status, unknown) = get(&fake, "zones/0123456789abcdef/dns_records").await;
    assert_eq!((status, &unknown["errors"][0]["code"]), (404, &json!(7003)));
}

#[tokio::test(start_paused = true)]
async fn manual_changes_are_in_the_ledger() {
    let (fake, _) = account();
    let id = fake.with(|cloud| cloud.add_record("example.com", "A", NAME, "192.0.2.9")).unwrap();
    assert!(fake.with(|cloud| cloud.edit_record("example.com", &id, &json!({ "proxied": true }))));
    assert_eq!(fake.with(|cloud| cloud.records(NAME, "A"))[0]["proxied"], true);
    assert_eq!(fake.with(|cloud| cloud.add_record("example.net", "A", NAME, "192.0.2.9")), None);
    assert!(!fake.with(|cloud| cloud.edit_record("example.com", "unknown", &json!({}))));
    assert_eq!(changes(&fake), ["set record www.example.com = 192.0.2.9"; 2]);
}

#[tokio::test(start_paused = true)]
async fn exceeding_the_limit_blocks_all_requests_for_5_minutes() {
    let (fake, _) = account();
    let first = exchange(&fake, "GET zones", Value::Null).await;
    assert_eq!(first.headers()["ratelimit"], r#""default";r=1199;t=300"#);
    assert_eq!(first.headers()["ratelimit-policy"], r#""default";q=1200;w=300"#);
    for _ in 1..1200 {
        assert_eq!(get(&fake, "zones").await.0, 200);
    }
    tokio::time::sleep(Duration::from_secs(299)).await;
    let refused = exchange(&fake, "GET zones", Value::Null).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "300");
    assert_eq!(refused.headers()["ratelimit"], r#""default";r=0;t=300"#);
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert_eq!(get(&fake, "zones").await.0, 429, "the refused request restarted the window");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(get(&fake, "zones").await.0, 200);
}

#[tokio::test]
async fn refusals_have_the_vendors_bodies() {
    let (fake, _) = account();
    let unauthorized = Request::builder().uri("/client/v4/zones").header("authorization", "Bearer wrong");
    let response = fake.service().oneshot(unauthorized.body(Bytes::new()).unwrap()).await.unwrap();
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(response.status(), 401);
    let errors = json!([{ "code": 10_000, "message": "Authentication error" }]);
    assert_eq!(body, json!({ "success": false, "errors": errors, "messages": [], "result": null }));

    assert_eq!(get(&fake, "accounts").await.1["errors"][0]["code"], 7000);
    let refusals = [
        (Refusal::Unavailable(503), 503, 10_013),
        (Refusal::Forbidden("Unauthorized to access requested resource".into()), 403, 9109),
    ];
    for (refusal, status, code) in refusals {
        fake.inject(Rule::next("zones.list", Fault::Refuse(refusal)));
        let (found, body) = get(&fake, "zones").await;
        assert_eq!((found, &body["errors"][0]["code"]), (status, &json!(code)));
    }
}

#[test]
fn call_names_are_unique() {
    let mut names = ROUTES.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ROUTES.len());
}
