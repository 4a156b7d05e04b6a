//! Static external addresses of Google Cloud on a fake project.

use std::time::Duration;

use drivers::google::addresses::Compute;
use drivers::{AddressDriver, DriverError, Operation, Polled, Progress, tokens};
use plan::{Holding, Provider, Scope};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::{CloudChange, Done};
use testbed::fake::{Fake, Refusal, compute};

use crate::support::{address, scope, service, vm};
use crate::{TOKEN, attach, detach, replace, restore};

const ADDRESS: &str = "203.0.113.10";
const ONE: &str = "demo/us-west1-a/one";
const TWO: &str = "demo/us-west1-a/two";

fn project() -> (Fake<compute::Compute>, Compute, Scope) {
    let mut project = compute::Compute::new("demo", TOKEN);
    project.add_instance("us-west1-a", "one");
    project.add_instance_without_address("us-west1-a", "two");
    project.add_address("us-west1", "ours", ADDRESS);
    let fake = Fake::new(project);
    let driver = Compute::new(service(&fake), "http://compute.invalid/compute/v1/", tokens::fixed(TOKEN));
    (fake, driver, scope(Provider::Gcp, "demo"))
}

#[tokio::test(start_paused = true)]
async fn an_address_replaces_the_ephemeral_one_and_moves_by_detaching_first() {
    let (fake, driver, scope) = project();
    replace(&driver, &scope, ADDRESS, ONE).await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(ONE)));
    detach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    attach(&driver, &scope, ADDRESS, TWO).await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(TWO)));
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_address_is_replaced_on_request_and_restored() {
    let (fake, driver, scope) = project();
    let own = |fake: &Fake<compute::Compute>| fake.with(|project| project.has_ephemeral("us-west1-a", "one"));
    assert_eq!(driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Occupied);
    assert_eq!(driver.restore(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Done);
    assert!(own(&fake), "something was changed");
    replace(&driver, &scope, ADDRESS, ONE).await.unwrap();
    detach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert!(!own(&fake));
    restore(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert!(own(&fake));
    let gone = vm("demo/us-west1-a/gone");
    assert_eq!(driver.restore(&scope, address(ADDRESS), &gone).await.unwrap(), Progress::Done);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_address_that_an_unanswered_request_may_remove_is_not_restored_yet() {
    let (fake, driver, scope) = project();
    fake.with(|project| project.operation_time = Duration::from_secs(40));
    fake.inject(Rule::next("instances.deleteAccessConfig", Fault::LoseReply));
    let replaced = driver.replace(&scope, address(ADDRESS), &vm(ONE)).await;
    assert!(matches!(replaced, Err(DriverError::Unavailable(_))), "{replaced:?}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let restored = driver.restore(&scope, address(ADDRESS), &vm(ONE)).await;
    assert!(matches!(restored, Err(DriverError::Conflict(_))), "{restored:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    restore(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert!(fake.with(|project| project.has_ephemeral(ZONE, "one")));
}

#[tokio::test(start_paused = true)]
async fn a_refused_creation_uses_up_no_name() {
    let (fake, driver, scope) = project();
    fake.inject(Rule::next("addresses.insert", Fault::Refuse(Refusal::Forbidden("no".into()))));
    driver.create(&scope, "us-west1", Some("pool")).await.unwrap_err();
    driver.create(&scope, "us-west1", Some("pool")).await.unwrap();
    let names = fake.ledger().asked.into_iter().filter(|asked| asked.call == "addresses.get");
    assert!(names.clone().all(|asked| asked.line.ends_with("/pool-1")), "{:?}", names.collect::<Vec<_>>());
}

const ZONE: &str = "us-west1-a";

/// A project with the address on the second interface of VM one, whose first interface has an ephemeral address,
/// and with more VMs.
fn on_second_interface() -> (Fake<compute::Compute>, Compute, Scope) {
    let (fake, driver, scope) = project();
    fake.with(|project| {
        project.add_interface(ZONE, "one");
        project.attach_to(ADDRESS, ZONE, "one", 1);
        ["three", "four"].iter().for_each(|name| project.add_instance(ZONE, name));
    });
    (fake, driver, scope)
}

/// The VMs that lost their ephemeral address.
fn vms_that_lost_ephemeral(fake: &Fake<compute::Compute>) -> Vec<String> {
    let of = |done: Done| match done.change {
        CloudChange::EphemeralRemoved { vm, .. } => Some(vm),
        _ => None,
    };
    fake.ledger().done.into_iter().filter_map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn moving_from_a_second_interface_affects_no_other_vm() {
    let (fake, driver, scope) = on_second_interface();
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(ONE)));
    // As the controller does: detach the address, then try one node after the other.
    detach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    let mut failed = Vec::new();
    for name in ["three", "four"] {
        let target = format!("demo/{ZONE}/{name}");
        match replace(&driver, &scope, ADDRESS, &target).await {
            Ok(()) => break,
            Err(error) => failed.push(error.to_string()),
        }
        restore(&driver, &scope, ADDRESS, &target).await.unwrap();
    }
    println!("ledger: {:#?}", fake.ledger().done);
    assert_eq!(vms_that_lost_ephemeral(&fake), [format!("demo/{ZONE}/three")], "failed: {failed:?}");
    let (holder, own) = fake.with(|project| (project.holder(ADDRESS), project.has_ephemeral(ZONE, "one")));
    assert_eq!(holder, Some(format!("demo/{ZONE}/three")));
    assert!(own, "the first interface of the old VM was changed");
    assert_eq!(fake.with(|project| project.interface_of(ADDRESS)).as_deref(), Some("nic0"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_keeps_its_ephemeral_address_until_the_static_is_free() {
    let (fake, driver, scope) = on_second_interface();
    for name in ["three", "four"] {
        let target = vm(&format!("demo/{ZONE}/{name}"));
        let refused = driver.replace(&scope, address(ADDRESS), &target).await.unwrap_err();
        assert!(matches!(&refused, DriverError::Conflict(why) if why.contains(ONE)), "{refused}");
    }
    assert_eq!(vms_that_lost_ephemeral(&fake), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_address_on_another_interface_of_the_target_is_reported() {
    let (fake, driver, scope) = on_second_interface();
    for _ in 0..2 {
        let refused = driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
        assert!(matches!(&refused, DriverError::Conflict(why) if why.contains("nic1")), "{refused}");
    }
    let restored = driver.restore(&scope, address(ADDRESS), &vm(ONE)).await;
    assert!(matches!(restored, Err(DriverError::Conflict(_))), "{restored:?}");
    assert_eq!(vms_that_lost_ephemeral(&fake), Vec::<String>::new());
    assert_eq!(fake.with(|project| project.interface_of(ADDRESS)).as_deref(), Some("nic1"));
}

#[tokio::test(start_paused = true)]
async fn an_ipv6_address_is_refused_and_changes_nothing() {
    let (fake, driver, scope) = project();
    let six = address("2600:1900:4000::7");
    for refused in [
        driver.attach(&scope, six, &vm(ONE)).await,
        driver.replace(&scope, six, &vm(ONE)).await,
        driver.detach(&scope, six, &vm(ONE)).await,
    ] {
        assert!(matches!(&refused, Err(DriverError::Invalid(why)) if why.contains("IPv4")), "{refused:?}");
    }
    assert!(fake.ledger().asked.is_empty(), "{:?}", fake.ledger().asked);
    fake.with(|project| project.add_address("us-west1", "six", "2600:1900:4000::7"));
    assert_eq!(driver.list(&scope).await.unwrap().get(six).holding, Holding::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_ptr_name_is_reported_before_detach_and_set_again() {
    let (fake, driver, scope) = project();
    fake.with(|project| {
        project.attach_now(ADDRESS, ZONE, "two");
        project.set_ptr(ADDRESS, Some("mail.example.com."));
    });
    let reported = driver.detach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap();
    assert_eq!(reported, Progress::Named("mail.example.com.".into()));
    assert_eq!(fake.with(|project| project.holder(ADDRESS)).as_deref(), Some(TWO), "it was detached");
    detach(&driver, &scope, ADDRESS, TWO).await.unwrap();
    assert_eq!(fake.with(|project| project.holder(ADDRESS)), None);
    let ptr = || fake.with(|project| project.ptr(ADDRESS));
    replace(&driver, &scope, ADDRESS, ONE).await.unwrap();
    assert_eq!(ptr().as_deref(), Some("mail.example.com."));

    // If a person removes the name, it stays removed.
    fake.with(|project| project.set_ptr(ADDRESS, None));
    detach(&driver, &scope, ADDRESS, ONE).await.unwrap();
    attach(&driver, &scope, ADDRESS, TWO).await.unwrap();
    assert_eq!(ptr(), None);
}

#[tokio::test(start_paused = true)]
async fn a_ptr_name_stored_by_a_previous_leader_is_set_again() {
    let (fake, driver, scope) = project();
    driver.keep_ptr(address(ADDRESS), "mail.example.com.");
    attach(&driver, &scope, ADDRESS, TWO).await.unwrap();
    assert_eq!(fake.with(|project| project.ptr(ADDRESS)).as_deref(), Some("mail.example.com."));
}

#[tokio::test(start_paused = true)]
async fn an_address_is_attached_without_a_refused_ptr_name() {
    let (fake, driver, scope) = project();
    fake.with(|project| _ = project.unverified_domains.insert("example.com".into()));
    driver.keep_ptr(address(ADDRESS), "mail.example.com.");
    attach(&driver, &scope, ADDRESS, TWO).await.unwrap();
    let (holder, ptr) = fake.with(|project| (project.holder(ADDRESS), project.ptr(ADDRESS)));
    assert_eq!((holder.as_deref(), ptr), (Some(TWO), None));
}

/// The permissions that the Python controller documents, and those that Google requires in addition for the same
/// calls.
const DOCUMENTED: [&str; 3] =
    ["compute.instances.get", "compute.instances.addAccessConfig", "compute.instances.deleteAccessConfig"];
const NEEDED: [&str; 2] = ["compute.addresses.use", "compute.subnetworks.useExternalIp"];

fn allow_only(fake: &Fake<compute::Compute>, allowed: &[&str]) {
    let denied = compute::permissions().filter(|permission| !allowed.contains(permission));
    fake.with(|project| project.denied = denied.map(ToOwned::to_owned).collect());
}

#[tokio::test(start_paused = true)]
async fn n19_the_three_permissions_alone_change_nothing_and_name_the_next() {
    let (fake, driver, scope) = project();
    allow_only(&fake, &DOCUMENTED);
    let public = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(public.to_string().contains("compute.addresses.list"), "{public}");
    let replaced = driver.replace(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
    assert!(replaced.to_string().contains("compute.addresses.list"), "{replaced}");
    let private = driver.attach(&scope, address(ADDRESS), &vm(TWO)).await.unwrap_err();
    assert!(
        matches!(&private, DriverError::Denied { permission, .. } if *permission == NEEDED[1]),
        "{private}"
    );
    assert_eq!(fake.ledger().done, []);
    assert!(fake.with(|project| project.has_ephemeral(ZONE, "one")), "the VM lost its ephemeral address");
}

#[tokio::test(start_paused = true)]
async fn n19_without_permission_to_get_operations_the_vm_shows_the_outcome() {
    let (fake, driver, scope) = project();
    allow_only(&fake, &[&DOCUMENTED[..], &NEEDED].concat());
    fake.with(|project| project.add_instance_without_address(ZONE, "three"));
    for name in ["two", "three"] {
        let target = format!("demo/{ZONE}/{name}");
        attach(&driver, &scope, ADDRESS, &target).await.unwrap();
        assert_eq!(fake.with(|project| project.holder(ADDRESS)).as_ref(), Some(&target));
        detach(&driver, &scope, ADDRESS, &target).await.unwrap();
        assert_eq!(fake.with(|project| project.holder(ADDRESS)), None);
        restore(&driver, &scope, ADDRESS, &target).await.unwrap();
        assert!(fake.with(|project| project.has_ephemeral(ZONE, name)));
    }
    assert_eq!(fake.ledger().calls()["zoneOperations.get"], 1, "a denial is remembered");
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn n19_a_change_that_its_machine_never_shows_times_out() {
    let (fake, driver, scope) = project();
    allow_only(&fake, &[&DOCUMENTED[..], &NEEDED].concat());
    fake.inject(Rule::next("instances.addAccessConfig", Fault::FailLate));
    let started = tokio::time::Instant::now();
    let failed = attach(&driver, &scope, ADDRESS, TWO).await;
    let error = failed.unwrap_err();
    assert!(error.to_string().contains("compute.zoneOperations.get"), "{error}");
    assert!((119..125).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_late_attached_address_does_not_count_as_ephemeral() {
    let (fake, driver, scope) = project();
    fake.with(|project| project.attach_now(ADDRESS, "us-west1-a", "one"));
    let restored = driver.restore(&scope, address(ADDRESS), &vm(ONE)).await;
    assert!(matches!(restored, Err(DriverError::Conflict(_))), "{restored:?}");
}

/// Starts 140 operations in two zones, 130 of them in the first. One of them will fail.
async fn start_operations(fake: &Fake<compute::Compute>, driver: &Compute, scope: &Scope) -> Vec<Operation> {
    let mut operations = Vec::new();
    for at in 0..140 {
        let zone = if at < 130 { "us-west1-a" } else { "us-west1-b" };
        let (ip, name) = (format!("198.18.0.{at}"), format!("m{at}"));
        fake.with(|project| {
            project.add_address("us-west1", &format!("a{at}"), &ip);
            project.add_instance_without_address(zone, &name);
        });
        if at == 7 {
            fake.inject(Rule::next("instances.addAccessConfig", Fault::FailLate));
        }
        let machine = vm(&format!("demo/{zone}/{name}"));
        match driver.attach(scope, address(&ip), &machine).await.unwrap() {
            Progress::Underway(operation) => operations.push(operation),
            other => panic!("{other:?}"),
        }
    }
    operations
}

#[tokio::test(start_paused = true)]
async fn operations_of_one_zone_are_polled_together() {
    let (fake, driver, scope) = project();
    let operations = start_operations(&fake, &driver, &scope).await;
    assert!(driver.poll(&operations).await.iter().all(|polled| *polled == Ok(Polled::StillUnderway)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let polled = driver.poll(&operations).await;
    assert!(matches!(&polled[7], Ok(Polled::Failed(_))), "{:?}", polled[7]);
    assert_eq!(polled.iter().filter(|polled| **polled == Ok(Polled::Ended)).count(), 139);
    let calls = fake.ledger().calls();
    assert_eq!((calls["zoneOperations.list"], calls.get("zoneOperations.get")), (2 * 4, None));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_is_not_listed_is_polled_alone() {
    let (fake, driver, scope) = project();
    let mut operations = start_operations(&fake, &driver, &scope).await;
    operations[3].id.push_str("-forgotten");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let polled = driver.poll(&operations).await;
    assert!(matches!(&polled[3], Ok(Polled::Failed(DriverError::Unavailable(_)))), "{:?}", polled[3]);
    assert_eq!(fake.ledger().calls()["zoneOperations.get"], 1);
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_list_each_operation_is_polled_alone() {
    let (fake, driver, scope) = project();
    fake.with(|project| _ = project.denied.insert("compute.zoneOperations.list".into()));
    let operations = start_operations(&fake, &driver, &scope).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    for polls in 1..3 {
        let polled = driver.poll(&operations).await;
        assert_eq!(polled.iter().filter(|polled| **polled == Ok(Polled::Ended)).count(), 139);
        let calls = fake.ledger().calls();
        assert_eq!((calls["zoneOperations.list"], calls["zoneOperations.get"]), (1, polls * 140));
    }
}

#[tokio::test(start_paused = true)]
async fn operations_are_polled_alone_if_the_list_fails_unthrottled() {
    let throttled = Fault::Refuse(Refusal::RateLimited(Duration::from_secs(9)));
    let broken = [Fault::LoseReply, Fault::Refuse(Refusal::Unavailable(503)), Fault::Truncate];
    for (fault, polls) in broken.into_iter().map(|fault| (fault, 64)).chain([(throttled, 0)]) {
        let (fake, driver, scope) = project();
        let operations = start_operations(&fake, &driver, &scope).await;
        fake.inject(Rule::next("zoneOperations.list", fault.clone()));
        let polled = driver.poll(&operations).await;
        assert_eq!(polled.iter().filter(|polled| polled.is_err()).count(), 64 - polls, "{fault:?}");
        assert_eq!(fake.ledger().calls().get("zoneOperations.get").copied().unwrap_or(0), polls, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_can_not_be_read_has_an_unknown_outcome() {
    for call in ["regionOperations.get", "addresses.get"] {
        let (fake, driver, scope) = project();
        fake.inject(Rule::next(call, Fault::Refuse(Refusal::RateLimited(Duration::from_secs(9)))));
        let made = driver.create(&scope, "us-west1", Some("pool")).await;
        assert!(matches!(made, Err(DriverError::Unavailable(_))), "{call}: {made:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_of_another_vm_is_not_taken() {
    let (fake, driver, scope) = project();
    fake.with(|project| project.attach_now(ADDRESS, "us-west1-a", "two"));
    let attached = replace(&driver, &scope, ADDRESS, ONE).await;
    assert!(matches!(attached, Err(DriverError::Conflict(_))), "{attached:?}");
    assert_eq!(fake.with(|project| project.holder(ADDRESS)).as_deref(), Some(TWO));
}

#[tokio::test(start_paused = true)]
async fn an_address_in_an_unreachable_region_is_unknown() {
    let (fake, driver, scope) = project();
    fake.with(|project| _ = project.unreachable_regions.insert("us-west1".into()));
    match driver.list(&scope).await {
        Err(DriverError::Unavailable(_)) => {}
        Ok(listing) => assert!(matches!(listing.get(address(ADDRESS)).holding, Holding::Unknown(_))),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_is_attached_in_its_own_network_tier() {
    let (fake, driver, scope) = project();
    fake.with(|project| project.add_standard_address("us-west1", "cheap", "203.0.113.55"));
    driver.list(&scope).await.unwrap();
    attach(&driver, &scope, "203.0.113.55", TWO).await.unwrap();
    assert_eq!(fake.with(|project| project.holder("203.0.113.55")).as_deref(), Some(TWO));
}

#[tokio::test(start_paused = true)]
async fn n19_without_permission_to_list_every_vm_is_read() {
    let (fake, driver, scope) = project();
    fake.with(|project| {
        project.denied.insert("compute.addresses.list".into());
        project.attach_now(ADDRESS, "us-west1-a", "two");
    });
    let refused = driver.list(&scope).await.unwrap_err();
    assert!(refused.to_string().contains("compute.addresses.list"), "{refused}");
    let addresses = [address(ADDRESS), address("203.0.113.98")].into();
    let machines = [vm(ONE), vm(TWO), vm("demo/us-west1-a/gone")].into();
    let listing = driver.list_one_by_one(&scope, &addresses, &machines).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(TWO)));
    assert_eq!(listing.get(address("203.0.113.98")).holding, Holding::Free);
    assert_eq!(listing.without.as_deref(), Some("compute.addresses.list"));
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_a_listing_are_read() {
    let (fake, driver, scope) = project();
    fake.with(|project| {
        for at in 0..1_200 {
            let ip = format!("198.18.{}.{}", at / 250, at % 250);
            project.add_address("us-west1", &format!("a{at}"), &ip);
        }
    });
    assert_eq!(driver.list(&scope).await.unwrap().addresses.len(), 1_201);
    assert_eq!(fake.ledger().calls()["addresses.aggregatedList"], 3);
}
