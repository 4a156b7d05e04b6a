//! Public IP addresses of Azure on a fake subscription.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use drivers::azure::addresses::Azure;
use drivers::http::HttpService;
use drivers::{AddressDriver, DriverError, Polled, Progress, Tags, tokens};
use http::Response;
use plan::{Doubt, Holding, MachineState, MayBeOn, Provider, Scope};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::{Fake, Refusal, azure};
use tower::ServiceExt;

use crate::support::{address, finish, scope, service, vm};
use crate::{TOKEN, attach, detach};

const ADDRESS: &str = "203.0.113.20";
const ONE: &str = "sub/group/one";
const TWO: &str = "sub/group/two";

/// Two VMs and an address in one region. The subscription spells its names in different ways.
fn subscription() -> (Fake<azure::Azure>, Azure, Scope) {
    let mut subscription = azure::Azure::new("sub", "Group", TOKEN);
    subscription.add_machine("one", "westeurope");
    subscription.add_machine("two", "westeurope");
    subscription.add_address("address", "westeurope", ADDRESS);
    let fake = Fake::new(subscription);
    let driver = driver(&fake);
    (fake, driver, scope(Provider::Azure, "sub"))
}

fn driver(fake: &Fake<azure::Azure>) -> Azure {
    let tokens = tokens::fixed(TOKEN);
    Azure::new(service(fake), "http://azure.invalid/", tokens, Some("Group".into()))
}

fn holder(fake: &Fake<azure::Azure>) -> Option<String> {
    fake.with(|subscription| subscription.holder(ADDRESS))
}

#[tokio::test(start_paused = true)]
async fn an_interface_is_written_again_after_a_failed_change() {
    let (fake, driver, scope) = subscription();
    fake.inject(Rule::next("NetworkInterfaces_CreateOrUpdate", Fault::FailLate));
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap_err();
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!((listing.get(address(ADDRESS)).holding, holder(&fake)), (Holding::By(vm(ONE)), None));
    assert!(listing.unconfirmed.contains(&address(ADDRESS)));
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert_eq!(holder(&fake).as_deref(), Some(ONE));
    assert!(driver.list(&scope).await.unwrap().unconfirmed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_failed_interface_is_written_again_although_not_primary() {
    let (fake, driver, scope) = subscription();
    fake.inject(Rule::next("NetworkInterfaces_CreateOrUpdate", Fault::FailLate));
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap_err();
    fake.with(|subscription| {
        subscription.add_interface("a-further-one", "one");
        subscription.make_primary("a-further-one");
    });
    assert!(driver.list(&scope).await.unwrap().unconfirmed.contains(&address(ADDRESS)));
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert_eq!(holder(&fake).as_deref(), Some(ONE));
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    let asked = fake.ledger().asked;
    let written = asked.iter().filter(|asked| asked.line.starts_with("PUT"));
    assert_eq!(written.filter(|asked| asked.line.contains("/one-nic")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_read_operations_polling_fails() {
    let (fake, driver, scope) = subscription();
    let action = "Microsoft.Network/locations/operations/read";
    fake.with(|subscription| _ = subscription.denied.insert(action.into()));
    let Progress::Underway(operation) = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap()
    else {
        panic!("no operation was started")
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    let polled = driver.poll(&[operation]).await;
    let [Ok(Polled::Failed(error))] = polled.as_slice() else { panic!("{polled:?}") };
    assert_eq!(error.kind(), "Denied");
    assert!(error.to_string().contains(action), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_address_on_an_unlisted_interface_is_unknown() {
    let (fake, driver, scope) = subscription();
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    fake.with(|subscription| subscription.hides_interfaces = true);
    let holding = driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding;
    let Holding::Unknown(Doubt { why, may_be_on, .. }) = holding else { panic!("{holding:?}") };
    assert!(why.contains("one-nic, which Azure does not show"), "{why}");
    assert_eq!(may_be_on, MayBeOn::AllBut(std::sync::Arc::default()), "no VM has an interface that is shown");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_a_changing_interface_refers_to_is_unknown() {
    let (fake, driver, scope) = subscription();
    let without_configuration = service(&fake).map_response(|answer: Response<Bytes>| {
        answer.map(|body| {
            let mut body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            for found in body["value"].as_array_mut().into_iter().flatten() {
                found["properties"].as_object_mut().unwrap().remove("ipConfiguration");
            }
            Bytes::from(body.to_string())
        })
    });
    let reader = Azure::new(
        HttpService::new(without_configuration),
        "http://azure.invalid/",
        tokens::fixed(TOKEN),
        None,
    );
    let read = async || reader.list(&scope).await.unwrap().get(address(ADDRESS)).holding;
    assert_eq!(read().await, Holding::Free);
    driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    let holding = read().await;
    let Holding::Unknown(Doubt { may_be_on: MayBeOn::Only(machines), .. }) = holding else {
        panic!("{holding:?}")
    };
    assert_eq!(machines, BTreeSet::from([vm(ONE)]));
}

#[tokio::test(start_paused = true)]
async fn attach_and_detach_keep_all_other_fields_of_an_interface() {
    let (fake, driver, scope) = subscription();
    let settable = |fake: &Fake<azure::Azure>| {
        let mut read = fake.with(|subscription| subscription.interface("one-nic"));
        read["etag"].take();
        read["properties"]["ipConfigurations"].as_array_mut().unwrap().iter_mut().for_each(|found| {
            found["etag"].take();
        });
        read
    };
    let before = settable(&fake);
    assert!(!before["properties"]["networkSecurityGroup"]["id"].is_null());
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    let held = settable(&fake);
    let primary = &held["properties"]["ipConfigurations"][1];
    assert!(primary["properties"]["publicIPAddress"]["id"].as_str().unwrap().ends_with("/address"));
    detach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert_eq!(settable(&fake), before);
    let ledger = fake.ledger();
    assert!(ledger.done.iter().all(|done| !done.change.to_string().contains("something else")));
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_change_of_an_interface_is_not_overwritten() {
    let (fake, driver, scope) = subscription();
    driver.list(&scope).await.unwrap();
    // The other change happens between the driver's read and write of the interface.
    let racing = RacingWriter { inner: service(&fake), fake: fake.clone() };
    let tokens = tokens::fixed(TOKEN);
    let service = HttpService::new(racing);
    let racer = Azure::new(service, "http://azure.invalid/", tokens, None);
    let refused = racer.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(
        matches!(&refused, DriverError::Conflict(message) if message.contains("PreconditionFailed")),
        "{refused}"
    );
    assert_eq!(fake.with(|subscription| subscription.holder("203.0.113.21")).as_deref(), Some(ONE));
    assert_eq!(holder(&fake), None);
}

/// Attaches another address to the interface right before each write.
#[derive(Clone)]
struct RacingWriter {
    inner: HttpService,
    fake: Fake<azure::Azure>,
}

impl tower::Service<http::Request<bytes::Bytes>> for RacingWriter {
    type Response = http::Response<bytes::Bytes>;
    type Error = tower::BoxError;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<bytes::Bytes>) -> Self::Future {
        if request.method() == http::Method::PUT {
            self.fake.with(|subscription| {
                subscription.add_address("theirs", "westeurope", "203.0.113.21");
                subscription.attach_now("203.0.113.21", "one");
            });
        }
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_of_a_vm_or_load_balancer_is_not_taken() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| subscription.attach_now(ADDRESS, "two"));
    let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
    fake.with(|subscription| {
        subscription.detach_now(ADDRESS);
        subscription.give_to_balancer(ADDRESS);
    });
    let balancer = vm("sub/group/loadbalancers/lb");
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(balancer.clone()));
    let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
    let refused = driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
    let refused = driver.detach(&scope, address(ADDRESS), &balancer).await.unwrap_err();
    assert!(refused.to_string().contains("detach it there"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn another_address_of_the_vm_is_never_removed() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| {
        subscription.add_address("theirs", "westeurope", "203.0.113.21");
        subscription.attach_now("203.0.113.21", "one");
    });
    for refused in [
        driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err(),
        driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err(),
    ] {
        assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
    }
    assert_eq!(fake.with(|subscription| subscription.holder("203.0.113.21")).as_deref(), Some(ONE));
}

#[tokio::test(start_paused = true)]
async fn an_interface_without_its_vm_is_a_holder_and_can_be_detached() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| {
        subscription.attach_now(ADDRESS, "one");
        subscription.remove_machine_but_not_its_interface("one");
    });
    let orphan = "sub/group/networkinterfaces/one-nic";
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(orphan)));
    let refused = driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
    detach(&driver, &scope, ADDRESS, orphan).await.unwrap();
    assert_eq!(driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding, Holding::Free);
}

#[tokio::test(start_paused = true)]
async fn the_primary_interface_gets_the_address() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| subscription.add_interface("a-further-one", "one"));
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    let asked = fake.ledger().asked;
    let written = asked.iter().find(|asked| asked.line.starts_with("PUT")).unwrap();
    assert!(written.line.contains("/one-nic"), "{}", written.line);
}

#[tokio::test(start_paused = true)]
async fn during_a_change_the_holder_is_unknown() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| subscription.attach_now(ADDRESS, "one"));
    let Progress::Underway(_) = driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap() else {
        panic!("no operation was started")
    };
    let listing = driver.list(&scope).await.unwrap();
    assert!(matches!(listing.get(address(ADDRESS)).holding, Holding::Unknown(_)));
    for refused in [
        driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err(),
        driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap_err(),
    ] {
        assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_is_polled_no_sooner_than_retry_after() {
    let (fake, driver, scope) = subscription();
    let started = tokio::time::Instant::now();
    attach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert_eq!(fake.ledger().calls()["Operations_Get"], 1);
    assert_eq!(started.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_accepted_change_is_done_when_the_interface_shows_it() {
    let (fake, _, scope) = subscription();
    let accepted = service(&fake).map_response(|answer: Response<Bytes>| {
        let is_change = answer.headers().contains_key("azure-asyncoperation");
        if is_change { Response::builder().status(202).body(Bytes::new()).unwrap() } else { answer }
    });
    let driver = Azure::new(HttpService::new(accepted), "http://azure.invalid/", tokens::fixed(TOKEN), None);
    let progress = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    assert!(matches!(progress, Progress::Underway(_)), "{progress:?}");
    assert_eq!(holder(&fake), None, "nothing has happened yet");
    finish(&driver, async || Ok(progress.clone())).await.unwrap();
    assert_eq!(holder(&fake).as_deref(), Some(ONE));
}

#[tokio::test(start_paused = true)]
async fn a_locked_down_group_is_reported_without_a_permission() {
    let (fake, _, scope) = subscription();
    let says =
        r#"{"error": {"code": "DenyAssignmentAuthorizationFailed", "message": "The client has no way."}}"#;
    let locked = service(&fake).map_response(move |answer: Response<Bytes>| {
        let is_change = answer.headers().contains_key("azure-asyncoperation");
        if is_change { Response::builder().status(403).body(Bytes::from(says)).unwrap() } else { answer }
    });
    let driver = Azure::new(HttpService::new(locked), "http://azure.invalid/", tokens::fixed(TOKEN), None);
    let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(&refused, DriverError::Invalid(message) if message.contains("locked")), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn i20_a_deletion_without_a_link_ends_when_the_address_is_gone() {
    let (fake, driver, scope) = subscription();
    let made = driver.create(&scope, "westeurope", Some("pool-1")).await.unwrap();
    let without_link = service(&fake).map_response(|mut answer: Response<Bytes>| {
        answer.headers_mut().remove("azure-asyncoperation");
        answer
    });
    let driver =
        Azure::new(HttpService::new(without_link), "http://azure.invalid/", tokens::fixed(TOKEN), None);
    let released = driver.release(&scope, made, "pool-1").await;
    assert!(matches!(&released, Err(DriverError::Unavailable(_))), "it still exists: {released:?}");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(driver.release(&scope, made, "pool-1").await.unwrap(), Progress::Done);
}

#[tokio::test(start_paused = true)]
async fn missing_resources_and_wrong_regions_are_reported() {
    let (fake, driver, scope) = subscription();
    let refused = driver.attach(&scope, address(ADDRESS), &vm("sub/group/gone")).await.unwrap_err();
    assert!(matches!(refused, DriverError::NotFound(_)), "{refused}");
    let refused = driver.attach(&scope, address("203.0.113.99"), &vm(ONE)).await.unwrap_err();
    assert!(matches!(refused, DriverError::NotFound(_)), "{refused}");
    fake.with(|subscription| subscription.add_machine("far", "eastus"));
    let refused = driver.attach(&scope, address(ADDRESS), &vm("sub/group/far")).await.unwrap_err();
    assert!(matches!(&refused, DriverError::Invalid(message) if message.contains("eastus")), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_recreated_address_that_reuses_a_resource_id_is_not_changed() {
    let (fake, driver, scope) = subscription();
    driver.list(&scope).await.unwrap();
    fake.with(|subscription| {
        subscription.remove_address(ADDRESS);
        subscription.add_address("address", "westeurope", "203.0.113.66");
    });
    let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(refused, DriverError::NotFound(_)), "{refused}");
    assert_eq!(driver.release(&scope, address(ADDRESS), "mark").await.unwrap(), Progress::Done);
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address("203.0.113.66")).holding, Holding::Free, "it is still there");
}

#[tokio::test(start_paused = true)]
async fn the_error_names_a_missing_action_also_of_linked_resources() {
    for action in [
        "Microsoft.Network/networkInterfaces/write",
        "Microsoft.Network/publicIPAddresses/join/action",
        "Microsoft.Network/virtualNetworks/subnets/join/action",
        "Microsoft.Network/networkSecurityGroups/join/action",
        "Microsoft.Network/loadBalancers/backendAddressPools/join/action",
    ] {
        let (fake, driver, scope) = subscription();
        fake.with(|subscription| _ = subscription.denied.insert(action.into()));
        let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
        assert!(
            matches!(&refused, DriverError::Denied { permission, .. } if permission == action),
            "{action}: {refused}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_locked_resource_group_is_a_permanent_error() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| subscription.is_locked = true);
    let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(matches!(&refused, DriverError::Invalid(message) if message.contains("locked")), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn two_concurrent_creations_get_different_names() {
    let (fake, driver, scope) = subscription();
    let (one, two) = futures::join!(
        driver.create(&scope, "westeurope", Some("pool")),
        driver.create(&scope, "westeurope", Some("pool")),
    );
    assert_ne!(one.unwrap(), two.unwrap());
    assert_eq!(fake.with(|subscription| subscription.tagged("pool")), 2);
}

#[tokio::test(start_paused = true)]
async fn tags_are_incomplete_while_a_new_address_has_no_ip() {
    let (fake, driver, scope) = subscription();
    fake.inject(Rule::next("PublicIPAddresses_CreateOrUpdate", Fault::LoseReply));
    assert!(driver.create(&scope, "westeurope", Some("pool")).await.is_err());
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Incomplete);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!((listing.tags, listing.addresses.len()), (Tags::Complete, 2));
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_can_not_be_read_has_an_unknown_outcome() {
    let (fake, driver, scope) = subscription();
    let refusal = Fault::Refuse(Refusal::RateLimited(Duration::from_secs(7)));
    fake.inject(Rule::next("PublicIPAddresses_Get", refusal));
    let unknown = driver.create(&scope, "westeurope", Some("pool")).await.unwrap_err();
    assert!(matches!(unknown, DriverError::Unavailable(_)), "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_creation_is_repeated_with_the_same_name() {
    let (fake, driver, scope) = subscription();
    fake.inject(Rule::next("PublicIPAddresses_CreateOrUpdate", Fault::FailLate));
    let failed = driver.create(&scope, "westeurope", Some("pool")).await.unwrap_err();
    assert!(matches!(failed, DriverError::Invalid(_)), "{failed}");
    driver.create(&scope, "westeurope", Some("pool")).await.unwrap();
    assert_eq!(fake.with(|subscription| subscription.tagged("pool")), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unlisted_vm_with_an_interface_still_exists() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| {
        subscription.hides_machines = true;
        subscription.remove_machine("two");
    });
    let machines = driver.machines(&scope).await.unwrap();
    assert_eq!(machines.get(&vm(ONE)), Some(&MachineState::Running));
    assert_eq!(machines.get(&vm(TWO)), None);
}

#[tokio::test(start_paused = true)]
async fn a_listing_fails_if_its_second_page_fails() {
    let (fake, driver, scope) = subscription();
    fake.with(|subscription| {
        for at in 0..250 {
            subscription.add_address(&format!("a{at}"), "westeurope", &format!("198.18.0.{at}"));
        }
    });
    let fault = Fault::Refuse(Refusal::Unavailable(503));
    fake.inject(Rule { skip: 1, ..Rule::next("PublicIPAddresses_ListAll", fault) });
    assert!(matches!(driver.list(&scope).await, Err(DriverError::Unavailable(_))));
}
