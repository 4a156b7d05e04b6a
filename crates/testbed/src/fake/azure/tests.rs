//! The behaviours that drivers depend on, asked for as a driver would.

use std::time::Duration;

use ::http::Request;
use bytes::Bytes;
use serde_json::{Value, json};
use tower::Service;

use super::super::Fake;
use super::*;

const IP: &str = "203.0.113.7";
const INTERFACE: &str =
    "subscriptions/s/resourcegroups/G/providers/microsoft.network/NETWORKINTERFACES/one-nic";

fn small_cloud() -> Fake<Azure> {
    let mut azure = Azure::new("s", "g", "secret");
    azure.add_machine("one", "westeurope");
    azure.add_machine("two", "westeurope");
    azure.add_address("address", "westeurope", IP);
    Fake::new(azure)
}

async fn ask(fake: &Fake<Azure>, method: &str, path: &str, etag: Option<&str>, body: Value) -> (u16, Value) {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://azure/{path}?api-version=2024-05-01"))
        .header("authorization", "Bearer secret");
    if let Some(etag) = etag {
        request = request.header("if-match", etag);
    }
    let request = request.body(Bytes::from(body.to_string())).unwrap();
    let answer = fake.service().call(request).await.unwrap();
    (answer.status().as_u16(), serde_json::from_slice(answer.body()).unwrap_or_default())
}

async fn interface(fake: &Fake<Azure>) -> Value {
    let (status, body) = ask(fake, "GET", INTERFACE, None, Value::Null).await;
    assert_eq!(status, 200, "{body}");
    body
}

#[test]
fn every_call_has_a_name_in_the_table_of_routes() {
    assert_eq!(routes::SPECS.iter().map(|spec| spec.name).collect::<Vec<_>>(), ROUTES);
}

#[tokio::test(start_paused = true)]
async fn what_a_write_does_not_say_is_gone_and_the_ledger_tells() {
    let fake = small_cloud();
    let mut body = interface(&fake).await;
    body["properties"].as_object_mut().unwrap().remove("networkSecurityGroup");
    assert_eq!(ask(&fake, "PUT", INTERFACE, None, body).await.0, 200);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let body = interface(&fake).await;
    assert_eq!(body["properties"].get("networkSecurityGroup"), None);
    assert!(!body["properties"]["virtualMachine"].is_null(), "this is Azure's own to say");
    assert!(fake.ledger().done.iter().any(|done| done.deed.to_string().contains("something else")));
}

#[tokio::test(start_paused = true)]
async fn a_write_of_what_was_not_read_last_is_refused() {
    let fake = small_cloud();
    let body = interface(&fake).await;
    let etag = body["etag"].as_str().unwrap();
    fake.with(|azure| azure.attach_now(IP, "one"));
    let (status, refused) = ask(&fake, "PUT", INTERFACE, Some(etag), body.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (412, &json!("PreconditionFailed")));
    assert_eq!(fake.with(|azure| azure.holder(IP)).as_deref(), Some("s/g/one"));
    fake.with(|azure| azure.remove_machine("one"));
    assert_eq!(
        ask(&fake, "PUT", INTERFACE, Some(etag), body.clone()).await.0,
        412,
        "it does not come back to life"
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_leaving_is_nobody_elses_until_it_has_left() {
    let fake = small_cloud();
    fake.with(|azure| azure.attach_now(IP, "one"));
    let mut without = interface(&fake).await;
    without["properties"]["ipConfigurations"][1]["properties"]
        .as_object_mut()
        .unwrap()
        .remove("publicIPAddress");
    assert_eq!(ask(&fake, "PUT", INTERFACE, None, without).await.0, 200);
    let other = INTERFACE.replace("one-nic", "two-nic");
    let (_, mut with) = ask(&fake, "GET", &other, None, Value::Null).await;
    let id = fake.with(|azure| azure.id("Microsoft.Network/publicIPAddresses/address"));
    with["properties"]["ipConfigurations"][1]["properties"]["publicIPAddress"] = json!({ "id": id });
    let (status, refused) = ask(&fake, "PUT", &other, None, with.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("PublicIPAddressInUse")));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(ask(&fake, "PUT", &other, None, with).await.0, 200);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(fake.with(|azure| azure.holder(IP)).as_deref(), Some("s/g/two"));
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn two_hundred_writes_at_once_and_then_ten_a_second() {
    let fake = small_cloud();
    let path = "subscriptions/s/resourceGroups/g/providers/Microsoft.Network/publicIPAddresses/none";
    for _ in 0..200 {
        assert_eq!(ask(&fake, "DELETE", path, None, Value::Null).await.0, 204);
    }
    assert_eq!(ask(&fake, "DELETE", path, None, Value::Null).await.0, 429);
    assert_eq!(ask(&fake, "GET", INTERFACE, None, Value::Null).await.0, 200, "reads have their own");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ask(&fake, "DELETE", path, None, Value::Null).await.0, 204);
}
