//! Elastic IPs of AWS on a fake account.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use drivers::aws::addresses::{self as ec2, Ec2};
use drivers::aws::{Aws, Identity};
use drivers::http::{HttpService, is_read, with_deadline};
use drivers::{AddressDriver, DriverError, NotSent, Progress, Seconds, Tags};
use http::Request;
use plan::{Holding, MachineState, Provider, Scope};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::{Fake, Refusal, ec2 as cloud};
use testbed::moto::KEY;
use tokio::time::Instant;
use tower::ServiceExt;

use crate::support::{address, scope, vm};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const REGION: &str = "us-east-1";
const ADDRESS: &str = "203.0.113.10";

/// The mark of the pool that addresses are created for.
const MARK: &str = "ip-address-controller-of-a-pool";
const ONE: &str = "us-east-1/i-1";
const TWO: &str = "us-east-1/i-2";

/// A clock that starts at 2026-01-01 and advances with tokio's virtual time.
fn clock() -> Seconds {
    let started = Instant::now();
    Arc::new(move || 1_767_225_600 + started.elapsed().as_secs())
}

fn driver_over(service: HttpService) -> Ec2 {
    let identity = Identity::Keys { id: KEY.into(), secret: SECRET.into() };
    Ec2::new(
        Arc::new(Aws::new(with_deadline(service), identity, "", clock())),
        ec2::limits(),
        ec2::STALENESS_MAX,
    )
}

/// An account with a VM with an ephemeral address, a VM without an address, and a free address.
fn account() -> (Fake<cloud::Ec2>, Ec2, Scope) {
    let mut account = cloud::Ec2::new(KEY);
    account.add_instance(REGION, "i-1");
    account.add_instance_without_address(REGION, "i-2");
    account.add_address(REGION, ADDRESS);
    let fake = Fake::new(account);
    let driver = driver_over(HttpService::new(fake.service()));
    (fake, driver, scope(Provider::Aws, REGION))
}

/// All requests that the driver sends to list, attach, detach and create addresses.
async fn trace() -> Vec<String> {
    let (fake, ..) = account();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&heard);
    let record = move |request: Request<Bytes>| {
        let (mut head, body) =
            (request.headers().clone(), String::from_utf8_lossy(request.body()).into_owned());
        // Show the signature, so that the test compares it too.
        head.values_mut().for_each(|value| value.set_sensitive(false));
        to.lock().unwrap().push(format!("{} {} {head:?} {body}", request.method(), request.uri()));
        HttpService::new(fake.service()).oneshot(request)
    };
    let driver = driver_over(HttpService::new(tower::service_fn(record)));
    let scope = scope(Provider::Aws, REGION);
    driver.list(&scope).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    driver.detach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    driver.create(&scope, REGION, Some("pool")).await.unwrap();
    heard.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn the_sdk_sends_the_same_bytes_for_the_same_calls() {
    let (once, twice) = (trace().await, trace().await);
    assert_eq!(once.len(), 7, "{once:#?}");
    assert!(once[0].contains("Signature=") && once[0].contains("20260101T000000Z"), "{}", once[0]);
    assert!(once[1].contains("20260101T000003Z"), "the SDK does not use our clock: {}", once[1]);
    assert_eq!(once, twice);
}

#[tokio::test(start_paused = true)]
async fn only_describe_calls_and_dry_runs_are_reads() {
    let (fake, ..) = account();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&heard);
    let record = move |request: Request<Bytes>| {
        to.lock().unwrap().push((String::from_utf8_lossy(request.body()).into_owned(), is_read(&request)));
        HttpService::new(fake.service()).oneshot(request)
    };
    let driver = driver_over(HttpService::new(tower::service_fn(record)));
    let scope = scope(Provider::Aws, REGION);
    driver.list(&scope).await.unwrap();
    driver.machines(&scope).await.unwrap();
    driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    let made = driver.create(&scope, REGION, Some(MARK)).await.unwrap();
    driver.list(&scope).await.unwrap();
    tokio::time::sleep(ec2::STALENESS_MAX).await;
    driver.release(&scope, made, MARK).await.unwrap();
    for (form, is_read) in heard.lock().unwrap().iter() {
        let changes_nothing = form.starts_with("Action=Describe") || form.contains("&DryRun=true");
        assert_eq!(*is_read, changes_nothing, "{form}");
    }
}

/// Another test compares the policy in docs/policies/ with the calls that the driver lists.
#[tokio::test(start_paused = true)]
async fn the_driver_makes_exactly_the_calls_that_it_lists() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.add_interface(REGION, Some("i-1")));
    driver.list(&scope).await.unwrap();
    driver.machines(&scope).await.unwrap();
    driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    driver.restore(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    let made = driver.create(&scope, REGION, Some(MARK)).await.unwrap();
    driver.list(&scope).await.unwrap();
    tokio::time::sleep(ec2::STALENESS_MAX).await;
    driver.release(&scope, made, MARK).await.unwrap();
    let made: BTreeSet<_> = fake.ledger().calls().into_keys().collect();
    assert_eq!(made, ec2::CALLS.iter().copied().collect());
}

#[tokio::test(start_paused = true)]
async fn an_address_is_attached_and_moves_by_detaching_first() {
    let (fake, driver, scope) = account();
    let holder = async || driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding;
    assert_eq!(holder().await, Holding::Free);
    assert_eq!(driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Done);
    assert_eq!(holder().await, Holding::By(vm(ONE)));
    let refused = driver.attach(&scope, address(ADDRESS), &vm(TWO)).await;
    assert!(matches!(refused, Err(DriverError::Conflict(_))), "{refused:?}");
    assert_eq!(holder().await, Holding::By(vm(ONE)), "it keeps its holder");
    assert_eq!(driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Done);
    assert_eq!(driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap(), Progress::Done);
    assert_eq!(holder().await, Holding::By(vm(TWO)));
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn no_change_is_sent_if_already_done_or_held_by_another_vm() {
    let (fake, driver, scope) = account();
    assert_eq!(driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Done);
    assert_eq!(driver.detach(&scope, address("203.0.113.99"), &vm(ONE)).await.unwrap(), Progress::Done);
    fake.with(|account| account.attach_now(ADDRESS, "i-2"));
    assert_eq!(driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap(), Progress::Done);
    let refused = driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(
        matches!(&refused, DriverError::Conflict(message) if message.contains("another VM")),
        "{refused}"
    );
    assert_eq!(fake.with(|account| account.holder(ADDRESS)).as_deref(), Some(TWO), "another VM holds it");
    let calls = fake.ledger().calls();
    assert!(calls.keys().all(|call| call.starts_with("Describe")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_address_is_replaced_on_request_and_restored() {
    let (fake, driver, scope) = account();
    let has_ephemeral = || fake.with(|account| account.has_ephemeral("i-1"));
    fake.with(|account| account.add_interface(REGION, Some("i-1")));
    assert_eq!(driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Occupied);
    assert!(has_ephemeral(), "attach changed something");
    driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    assert!(!has_ephemeral(), "EC2 assigns none to a VM with two interfaces");
    for _ in 0..2 {
        assert_eq!(driver.restore(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Done);
        assert!(has_ephemeral());
    }
    assert_eq!(fake.ledger().calls()["ModifyNetworkInterfaceAttribute"], 1);
    let gone = vm("us-east-1/i-9");
    assert_eq!(driver.restore(&scope, address(ADDRESS), &gone).await.unwrap(), Progress::Done);
}

#[tokio::test(start_paused = true)]
async fn another_elastic_ip_of_the_vm_is_never_replaced() {
    let (fake, driver, scope) = account();
    fake.with(|account| {
        account.add_address(REGION, "203.0.113.99");
        account.attach_now("203.0.113.99", "i-2");
    });
    for refused in [
        driver.attach(&scope, address(ADDRESS), &vm(TWO)).await,
        driver.replace(&scope, address(ADDRESS), &vm(TWO)).await,
    ] {
        assert!(
            matches!(&refused, Err(DriverError::Conflict(why)) if why.contains("203.0.113.99")),
            "{refused:?}"
        );
    }
    assert_eq!(fake.with(|account| account.holder("203.0.113.99")).as_deref(), Some(TWO));
}

#[tokio::test(start_paused = true)]
async fn an_address_is_attached_to_the_first_of_several_interfaces() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.add_interface(REGION, Some("i-2")));
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    assert_eq!(fake.with(|account| account.holder(ADDRESS)).as_deref(), Some(TWO));
}

#[tokio::test(start_paused = true)]
async fn an_address_on_an_interface_without_a_vm_is_held() {
    let (fake, driver, scope) = account();
    let gateway = fake.with(|account| {
        let gateway = account.add_interface(REGION, None);
        account.attach_to(ADDRESS, &gateway);
        gateway
    });
    let holding = driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding;
    assert_eq!(holding, Holding::By(vm(&format!("{REGION}/{gateway}"))));
}

#[tokio::test(start_paused = true)]
async fn an_outpost_address_without_public_ip_is_ignored() {
    let (fake, ..) = account();
    let with_one_more = move |request: Request<Bytes>| {
        let answer = HttpService::new(fake.service()).oneshot(request);
        async move {
            let (head, body) = answer.await?.into_parts();
            let of_outpost = "<item><allocationId>eipalloc-9</allocationId>\
                              <customerOwnedIp>198.18.0.9</customerOwnedIp><domain>vpc</domain></item></addressesSet>";
            let body = String::from_utf8_lossy(&body).replace("</addressesSet>", of_outpost);
            assert!(body.contains("customerOwnedIp"), "{body}");
            Ok::<_, tower::BoxError>(http::Response::from_parts(head, Bytes::from(body)))
        }
    };
    let driver = driver_over(HttpService::new(tower::service_fn(with_one_more)));
    let listing = driver.list(&scope(Provider::Aws, REGION)).await.unwrap();
    assert_eq!(listing.addresses.into_keys().collect::<Vec<_>>(), [address(ADDRESS)]);
}

#[tokio::test(start_paused = true)]
async fn a_region_lists_only_its_own_addresses() {
    let (fake, driver, scope) = account();
    let elsewhere = Scope { account: "eu-west-1".into(), ..scope.clone() };
    fake.with(|account| account.add_address("eu-west-1", "203.0.113.77"));
    assert_eq!(driver.list(&scope).await.unwrap().get(address("203.0.113.77")).holding, Holding::Missing);
    let listed = driver.list(&elsewhere).await.unwrap().get(address("203.0.113.77"));
    assert_eq!((listed.holding, listed.region.as_deref()), (Holding::Free, Some("eu-west-1")));
    let refused = driver.attach(&scope, address("203.0.113.77"), &vm(TWO)).await;
    assert!(matches!(refused, Err(DriverError::NotFound(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_address_has_its_tag_even_if_the_response_is_lost() {
    let (fake, driver, scope) = account();
    fake.inject(Rule::next("AllocateAddress", Fault::LoseReply));
    assert!(matches!(driver.create(&scope, REGION, Some("pool-1")).await, Err(DriverError::Unavailable(_))));
    let made = driver.create(&scope, REGION, Some("pool-1")).await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    let is_tagged = |listed: &&drivers::Listed| listed.tag.as_deref() == Some("pool-1");
    assert_eq!(
        listing.addresses.values().filter(is_tagged).count(),
        2,
        "including the one whose response was lost"
    );
    assert!(listing.addresses.contains_key(&made));
    let elsewhere = driver.create(&scope, "eu-west-1", None).await;
    assert!(matches!(elsewhere, Err(DriverError::Invalid(_))), "{elsewhere:?}");
}

#[tokio::test(start_paused = true)]
async fn only_a_free_address_is_released() {
    let (fake, driver, scope) = account();
    let made = driver.create(&scope, REGION, Some(MARK)).await.unwrap();
    fake.with(|account| account.attach_now(&made.to_string(), "i-2"));
    assert!(matches!(driver.release(&scope, made, MARK).await, Err(DriverError::Conflict(_))));
    driver.detach(&scope, made, &vm(TWO)).await.unwrap();
    let Err(DriverError::NotSent(NotSent { wait })) = driver.release(&scope, made, MARK).await else {
        panic!("release did not wait: the address may be on a VM, and EC2 may not show that yet");
    };
    tokio::time::sleep(wait).await;
    for _ in 0..2 {
        assert_eq!(driver.release(&scope, made, MARK).await.unwrap(), Progress::Done);
    }
    assert_eq!(driver.list(&scope).await.unwrap().get(made).holding, Holding::Missing);
}

#[tokio::test(start_paused = true)]
async fn an_address_with_a_new_allocation_id_is_found_on_retry() {
    let (fake, driver, scope) = account();
    driver.list(&scope).await.unwrap();
    fake.with(|account| account.add_address(REGION, ADDRESS));
    assert!(matches!(driver.attach(&scope, address(ADDRESS), &vm(TWO)).await, Err(DriverError::NotFound(_))));
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_running_or_stopped_or_not_listed() {
    let (fake, driver, scope) = account();
    fake.with(|account| {
        (3..2_500).for_each(|number| account.add_instance_without_address(REGION, &format!("i-{number}")));
        account.stop_instance("i-2");
        account.terminate_instance("i-3");
    });
    let machines = driver.machines(&scope).await.unwrap();
    assert_eq!(machines.get(&vm(ONE)), Some(&MachineState::Running));
    assert_eq!(machines.get(&vm(TWO)), Some(&MachineState::Stopped));
    assert_eq!(machines.get(&vm("us-east-1/i-3")), None);
    assert_eq!(machines.len(), 2_498);
    assert_eq!(fake.ledger().calls()["DescribeInstances"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_or_terminating_vm_is_not_found() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.terminate_instance("i-2"));
    for machine in [TWO, "us-east-1/i-9"] {
        let refused = driver.attach(&scope, address(ADDRESS), &vm(machine)).await;
        assert!(matches!(refused, Err(DriverError::NotFound(_))), "{refused:?}");
    }
    let refused = driver.attach(&scope, address(ADDRESS), &vm("us-east-1/eni-1")).await;
    assert!(matches!(refused, Err(DriverError::Invalid(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stale_listing_does_not_override_a_confirmed_change() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.lag = Duration::from_secs(10));
    let listed = async || driver.list(&scope).await.unwrap();
    assert_eq!(listed().await.get(address(ADDRESS)).holding, Holding::Free);
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    let made = driver.create(&scope, REGION, Some("pool-1")).await.unwrap();
    let late = listed().await;
    assert_eq!(late.get(address(ADDRESS)).holding, Holding::By(vm(TWO)));
    assert_eq!(late.get(made).tag.as_deref(), Some("pool-1"));
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(listed().await, late, "EC2 has caught up by now");
}

#[tokio::test(start_paused = true)]
async fn a_stale_read_before_a_change_is_a_conflict() {
    let (fake, driver, scope) = account();
    driver.list(&scope).await.unwrap();
    fake.with(|account| account.lag = Duration::from_secs(10));
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    let late = driver.detach(&scope, address(ADDRESS), &vm(TWO)).await;
    assert!(matches!(late, Err(DriverError::Conflict(_))), "the stale read shows it as free: {late:?}");
    tokio::time::sleep(Duration::from_secs(15)).await;
    driver.detach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    let late = driver.restore(&scope, address(ADDRESS), &vm(TWO)).await;
    assert!(matches!(late, Err(DriverError::Conflict(_))), "the stale read shows it as attached: {late:?}");
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    let holder = fake.with(|account| account.holder(ADDRESS));
    assert_eq!(holder.as_deref(), Some(TWO), "it was attached again despite the stale read");
    let made = driver.create(&scope, REGION, Some(MARK)).await.unwrap();
    let late = driver.release(&scope, made, MARK).await;
    assert!(matches!(late, Err(DriverError::Conflict(_))), "the stale read does not show it: {late:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_response_to_a_creation_tags_are_incomplete() {
    let (fake, driver, scope) = account();
    let tags = async || driver.list(&scope).await.unwrap().tags;
    fake.inject(Rule::next("AllocateAddress", Fault::LoseReply));
    assert!(driver.create(&scope, REGION, Some("pool-1")).await.is_err());
    assert_eq!(tags().await, Tags::Incomplete, "EC2 may not show the new address yet");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(tags().await, Tags::Complete);
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_truncated_response_fails_the_listing() {
    for fault in [
        Fault::LoseReply,
        Fault::LoseRequest,
        Fault::Truncate,
        Fault::Delay(Duration::from_secs(60)),
        Fault::Refuse(Refusal::Unavailable(503)),
        Fault::Refuse(Refusal::Unavailable(500)),
    ] {
        let (fake, driver, scope) = account();
        fake.inject(Rule::next("DescribeAddresses", fault.clone()));
        let listed = driver.list(&scope).await;
        assert!(matches!(listed, Err(DriverError::Unavailable(_))), "{fault:?}: {listed:?}");
        assert_eq!(fake.ledger().calls()["DescribeAddresses"], 1, "the driver does not retry");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_response_is_lost_is_found_by_reading_again() {
    let (fake, driver, scope) = account();
    fake.inject(Rule::next("AssociateAddress", Fault::LoseReply));
    let lost = driver.attach(&scope, address(ADDRESS), &vm(TWO)).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    assert_eq!(driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap(), Progress::Done);
    fake.inject(Rule::next("DisassociateAddress", Fault::LoseReply));
    assert!(driver.detach(&scope, address(ADDRESS), &vm(TWO)).await.is_err());
    assert_eq!(driver.detach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap(), Progress::Done);
    assert_eq!(fake.ledger().calls()["AssociateAddress"], 2, "one of them was a dry run");
    assert_eq!(fake.ledger().calls()["DisassociateAddress"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_ephemeral_address_counts_before_ec2_shows_it() {
    let (fake, driver, scope) = account();
    fake.with(|account| {
        account.add_interface(REGION, Some("i-1"));
        account.attach_now(ADDRESS, "i-1");
    });
    driver.list(&scope).await.unwrap();
    driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    fake.with(|account| account.lag = Duration::from_secs(10));
    driver.restore(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    let attached = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await;
    assert_eq!(attached, Ok(Progress::Occupied), "otherwise it would never be restored");
    assert_eq!(driver.replace(&scope, address(ADDRESS), &vm(ONE)).await, Ok(Progress::Done));
    driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(15)).await;
    driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
    let attached = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await;
    assert_eq!(attached, Ok(Progress::Done), "the ephemeral address was replaced");
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_attach_nothing_is_detached() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.attach_now(ADDRESS, "i-2"));
    let deny = |is_denied: bool| {
        fake.with(|account| {
            account.denied = is_denied.then(|| "ec2:AssociateAddress".into()).into_iter().collect()
        });
    };
    let detach = async || driver.detach(&scope, address(ADDRESS), &vm(TWO)).await;
    let asked = || fake.ledger().calls()["AssociateAddress"];
    deny(true);
    let refused = detach().await.unwrap_err();
    assert!(
        matches!(&refused, DriverError::Denied { permission, .. } if permission == "ec2:AssociateAddress"),
        "{refused}"
    );
    fake.inject(Rule::next("AssociateAddress", Fault::LoseReply));
    assert!(detach().await.is_err(), "a missing response is no permission");
    assert_eq!(fake.with(|account| account.holder(ADDRESS)).as_deref(), Some(TWO));
    assert!(!fake.ledger().calls().contains_key("DisassociateAddress"));
    deny(false);
    detach().await.unwrap();
    let before = asked();
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    detach().await.unwrap();
    assert_eq!(asked() - before, 1, "the dry run is valid for a while");
    deny(true);
    driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap_err();
    fake.with(|account| account.attach_now(ADDRESS, "i-2"));
    tokio::time::sleep(drivers::aws::addresses::STALENESS_MAX).await;
    assert!(detach().await.is_err(), "a denial ends the validity of the dry run");
}

#[tokio::test(start_paused = true)]
async fn the_error_names_a_missing_permission() {
    for (denied, named) in [
        ("ec2:AssociateAddress", "ec2:AssociateAddress"),
        ("ec2:DescribeInstances", "ec2:DescribeInstances"),
        ("ec2:AllocateAddress", "ec2:AllocateAddress"),
        ("ec2:CreateTags", "ec2:CreateTags"),
    ] {
        let (fake, driver, scope) = account();
        fake.with(|account| _ = account.denied.insert(denied.into()));
        let refused = match denied {
            "ec2:AllocateAddress" | "ec2:CreateTags" => {
                driver.create(&scope, REGION, Some("pool")).await.unwrap_err()
            }
            _ => driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap_err(),
        };
        assert!(
            matches!(&refused, DriverError::Denied { permission, .. } if permission == named),
            "{refused}"
        );
        assert!(
            !refused.to_string().contains("c2VjcmV0"),
            "the error contains the encoded message: {refused}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_access_key_is_denied_without_showing_the_secret() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.key = "another".into());
    let refused = driver.list(&scope).await.unwrap_err();
    assert!(matches!(refused, DriverError::Denied { .. }), "{refused}");
    assert!(!format!("{refused:?}").contains(SECRET));
}

#[tokio::test(start_paused = true)]
async fn throttling_by_aws_and_by_the_driver_are_reported() {
    let (fake, driver, scope) = account();
    let throttled = Fault::Refuse(Refusal::RateLimited(Duration::from_secs(9)));
    fake.inject(Rule::next("AssociateAddress", throttled));
    let refused = driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap_err();
    assert!(matches!(refused, DriverError::RateLimited { .. }), "{refused}");
    let create = || driver.create(&scope, REGION, None);
    let made = futures::future::join_all((0..200).map(|_| create())).await;
    let not_sent = made.iter().filter(|made| matches!(made, Err(DriverError::NotSent(_)))).count();
    let made = made.iter().filter(|made| made.is_ok()).count();
    assert_eq!(made + not_sent, 200);
    assert!((40..=60).contains(&made), "{made} went through");
    let refused = fake.ledger().asked.iter().filter(|asked| asked.status == 503).count();
    assert_eq!(refused, 1, "the fake throttled only the injected request");
}
