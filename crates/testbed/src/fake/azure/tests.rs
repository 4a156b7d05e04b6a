//! Tests of the behaviours that drivers depend on, with the requests of a driver.

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
fn routes_lists_every_call() {
    assert_eq!(routes::SPECS.iter().map(|spec| spec.name).collect::<Vec<_>>(), ROUTES);
}

#[tokio::test(start_paused = true)]
async fn a_write_drops_omitted_properties_and_records_it() {
    let fake = small_cloud();
    let mut body = interface(&fake).await;
    body["properties"].as_object_mut().unwrap().remove("networkSecurityGroup");
    assert_eq!(ask(&fake, "PUT", INTERFACE, None, body).await.0, 200);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let body = interface(&fake).await;
    assert_eq!(body["properties"].get("networkSecurityGroup"), None);
    assert!(!body["properties"]["virtualMachine"].is_null(), "only Azure sets this property");
    assert!(fake.ledger().done.iter().any(|done| done.change.to_string().contains("something else")));
}

#[tokio::test(start_paused = true)]
async fn a_write_with_a_stale_etag_is_refused() {
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
        "the write does not recreate the interface"
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_is_in_use_until_its_detach_has_ended() {
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
async fn writes_are_limited_to_a_burst_of_200_and_10_a_second() {
    let fake = small_cloud();
    let path = "subscriptions/s/resourceGroups/g/providers/Microsoft.Network/publicIPAddresses/none";
    for _ in 0..200 {
        assert_eq!(ask(&fake, "DELETE", path, None, Value::Null).await.0, 204);
    }
    assert_eq!(ask(&fake, "DELETE", path, None, Value::Null).await.0, 429);
    assert_eq!(ask(&fake, "GET", INTERFACE, None, Value::Null).await.0, 200, "reads have their own limit");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ask(&fake, "DELETE", path, None, Value::Null).await.0, 204);
}
