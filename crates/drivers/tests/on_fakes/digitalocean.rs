//! Reserved IPs of DigitalOcean on a fake account.

use std::collections::BTreeSet;
use std::time::Duration;

use drivers::digitalocean::addresses::DigitalOcean;
use drivers::{AddressDriver, DriverError, Tags, tokens};
use plan::{Address, Holding, MachineState, Provider, Scope};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::{Fake, Refusal, digitalocean};

use crate::support::{address, scope, service, vm};
use crate::{TOKEN, attach, detach};

const ADDRESS: &str = "203.0.113.10";

fn account() -> (Fake<digitalocean::DigitalOcean>, DigitalOcean, Scope) {
    let mut account = digitalocean::DigitalOcean::new(TOKEN);
    account.add_droplet(1, "one", "nyc3");
    account.add_droplet(2, "two", "nyc3");
    account.add_reserved_ip(ADDRESS, "nyc3");
    let fake = Fake::new(account);
    let driver = DigitalOcean::new(service(&fake), "http://digitalocean.invalid/", tokens::fixed(TOKEN));
    (fake, driver, scope(Provider::DigitalOcean, ""))
}

#[tokio::test(start_paused = true)]
async fn an_address_is_attached_moved_in_one_call_and_detached() {
    let (fake, driver, scope) = account();
    for droplet in ["1", "2"] {
        attach(&driver, &scope, ADDRESS, droplet).await.unwrap();
        let listing = driver.list(&scope).await.unwrap();
        assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(droplet)));
    }
    assert_eq!(fake.ledger().calls()["reserved_ips_actions.post"], 2);
    detach(&driver, &scope, ADDRESS, "2").await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(address(ADDRESS)).holding, Holding::Free);
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_new_address_has_its_tag_even_if_the_response_is_lost() {
    let (fake, driver, scope) = account();
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Complete);
    fake.inject(Rule::next("reserved_ips.create", Fault::LoseReply));
    assert!(driver.create(&scope, "nyc3", Some("pool-1")).await.is_err());
    let made = driver.create(&scope, "nyc3", Some("pool-1")).await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    let is_tagged = |listed: &&drivers::Listed| listed.tag.as_deref() == Some("pool-1");
    assert_eq!(
        listing.addresses.values().filter(is_tagged).count(),
        2,
        "including the one whose response was lost"
    );
    assert!(listing.addresses.contains_key(&made));
    assert_eq!(fake.ledger().calls()["projects.create"], 1);
    let another = DigitalOcean::new(service(&fake), "http://digitalocean.invalid/", tokens::fixed(TOKEN));
    assert!(another.create(&scope, "nyc3", Some("pool-1")).await.is_ok(), "another driver finds the project");
    assert_eq!(fake.ledger().calls()["projects.create"], 1);
}

#[tokio::test(start_paused = true)]
async fn projects_are_read_once_and_again_for_an_unknown_one() {
    let (fake, driver, scope) = account();
    for _ in 0..3 {
        driver.list(&scope).await.unwrap();
    }
    assert_eq!(fake.ledger().calls()["projects.list"], 1);
    let other = DigitalOcean::new(service(&fake), "http://digitalocean.invalid/", tokens::fixed(TOKEN));
    let made = other.create(&scope, "nyc3", Some("pool-2")).await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.get(made).tag.as_deref(), Some("pool-2"));
}

#[tokio::test(start_paused = true)]
async fn projects_are_read_again_after_a_refused_creation() {
    let (fake, driver, scope) = account();
    driver.create(&scope, "nyc3", Some("pool-1")).await.unwrap();
    let read = fake.ledger().calls()["projects.list"];
    fake.inject(Rule::next("reserved_ips.create", Fault::Refuse(Refusal::Unavailable(404))));
    driver.create(&scope, "nyc3", Some("pool-1")).await.unwrap_err();
    driver.create(&scope, "nyc3", Some("pool-1")).await.unwrap();
    assert_eq!(fake.ledger().calls()["projects.list"], read + 1);
}

#[tokio::test(start_paused = true)]
async fn denied_projects_mean_no_tags_and_failed_ones_unknown_tags() {
    let (fake, driver, scope) = account();
    fake.inject(Rule::next("projects.list", Fault::Refuse(Refusal::Unavailable(503))));
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Incomplete);
    fake.inject(Rule::next("projects.list", Fault::Refuse(Refusal::Forbidden("no projects".into()))));
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Unsupported);
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Unsupported);
    assert_eq!(fake.ledger().calls()["projects.list"], 2, "a denial is remembered");
    assert!(driver.create(&scope, "nyc3", None).await.is_ok());
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Complete, "the token may have been changed");
}

#[tokio::test(start_paused = true)]
async fn a_tag_is_not_reported_while_projects_can_not_be_read() {
    let (fake, driver, scope) = account();
    let made = driver.create(&scope, "nyc3", Some("pool-1")).await.unwrap();
    assert_eq!(driver.list(&scope).await.unwrap().get(made).tag.as_deref(), Some("pool-1"));
    let other = DigitalOcean::new(service(&fake), "http://digitalocean.invalid/", tokens::fixed(TOKEN));
    other.create(&scope, "nyc3", Some("pool-2")).await.unwrap();
    fake.inject(Rule::next("projects.list", Fault::Refuse(Refusal::Forbidden("no projects".into()))));
    let hidden = driver.list(&scope).await.unwrap();
    assert_eq!((hidden.tags, hidden.get(made).tag), (Tags::Unsupported, None));
    fake.inject(Rule::next("projects.list", Fault::Refuse(Refusal::Forbidden("no projects".into()))));
    let released = driver.release(&scope, made, "pool-1").await;
    assert!(matches!(released, Err(DriverError::Denied { .. })), "{released:?}");
    assert!(fake.with(|account| account.reserved_ips()).contains(&made.to_string()));
}

const BYOIP: &str = "192.0.2.77";

/// An account with a BYOIP address.
fn account_with_byoip() -> (Fake<digitalocean::DigitalOcean>, DigitalOcean, Scope) {
    let (fake, driver, scope) = account();
    fake.with(|account| {
        account.add_reserved_ip(BYOIP, "nyc3");
        account.bring_your_own(BYOIP);
    });
    (fake, driver, scope)
}

#[tokio::test(start_paused = true)]
async fn f1_a_byoip_address_is_read_separately() {
    let (fake, driver, scope) = account_with_byoip();
    let named = BTreeSet::from([address(ADDRESS), address(BYOIP), address("192.0.2.99")]);
    let listed = async |ip: &str| driver.list_with(&scope, &named).await.unwrap().get(address(ip));
    assert_eq!(driver.list(&scope).await.unwrap().get(address(BYOIP)).holding, Holding::Missing);
    let free = listed(BYOIP).await;
    assert_eq!((free.holding, free.region.as_deref()), (Holding::Free, Some("nyc3")));
    assert_eq!(listed("192.0.2.99").await.holding, Holding::Missing);
    for droplet in ["1", "2"] {
        attach(&driver, &scope, BYOIP, droplet).await.unwrap();
        assert_eq!(listed(BYOIP).await.holding, Holding::By(vm(droplet)));
    }
    detach(&driver, &scope, BYOIP, "2").await.unwrap();
    assert_eq!(listed(BYOIP).await.holding, Holding::Free);
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
    for fault in [Fault::Refuse(Refusal::Unavailable(503)), Fault::LoseReply] {
        fake.inject(Rule::next("reserved_ips.get", fault));
        let listing = driver.list_with(&scope, &named).await.unwrap();
        assert!(matches!(listing.get(address(BYOIP)).holding, Holding::Unknown(_)), "its read failed");
        assert_eq!(listing.get(address(ADDRESS)).holding, Holding::Free, "the others are listed");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unexpected_error_does_not_make_a_known_byoip_address_missing() {
    let (fake, driver, scope) = account_with_byoip();
    let named = BTreeSet::from([address(BYOIP)]);
    driver.list_with(&scope, &named).await.unwrap();
    fake.inject(Rule::next("reserved_ips.get", Fault::Refuse(Refusal::Unavailable(422))));
    let listing = driver.list_with(&scope, &named).await.unwrap();
    assert!(matches!(listing.get(address(BYOIP)).holding, Holding::Unknown(_)), "{listing:?}");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_may_not_see_droplets_shows_no_free_addresses() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.assign_now(ADDRESS, 1));
    assert_eq!(driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding, Holding::By(vm("1")));
    fake.with(|account| account.hides_droplets = true);
    let forbidden = Fault::Refuse(Refusal::Forbidden("droplet:read".into()));
    fake.inject(Rule { times: usize::MAX, ..Rule::next("droplets.list", forbidden) });
    let Err(DriverError::Denied { permission, .. }) = driver.list(&scope).await else { panic!() };
    assert_eq!(permission, "droplet:read");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_somebody_takes_right_before_the_release_stays() {
    let (fake, driver, scope) = account();
    let made = driver.create(&scope, "nyc3", Some("pool-1")).await.unwrap();
    fake.inject(Rule::next("projects.list", Fault::Delay(Duration::from_secs(5))));
    let taken = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        fake.with(|account| account.assign_now(&made.to_string(), 1));
    };
    let (released, ()) = futures::join!(driver.release(&scope, made, "pool-1"), taken);
    assert!(matches!(released, Err(DriverError::Conflict(_))), "{released:?}");
    assert_eq!(driver.list(&scope).await.unwrap().get(made).holding, Holding::By(vm("1")));
}

#[tokio::test(start_paused = true)]
async fn a_running_droplet_with_a_gpu_exists() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.add_gpu_droplet(3, "three", "nyc3"));
    let machines = driver.machines(&scope).await.unwrap();
    assert_eq!(machines.get(&vm("3")), Some(&MachineState::Running));
    assert_eq!(machines.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn all_byoip_addresses_stay_known_while_one_moves() {
    let (fake, driver, scope) = account_with_byoip();
    fake.enforce_limits(false);
    let brought: Vec<String> = (0..70).map(|number| format!("192.0.2.{}", number + 100)).collect();
    fake.with(|account| {
        for ip in &brought {
            account.add_reserved_ip(ip, "nyc3");
            account.bring_your_own(ip);
        }
    });
    // DigitalOcean has no such address, and returns another error than 404.
    let named: BTreeSet<_> = brought.iter().map(|ip| address(ip)).chain([address("2001:db8::1")]).collect();
    let unknown = async || {
        let listing = driver.list_with(&scope, &named).await.unwrap();
        let is_unknown = |address: &&Address| matches!(listing.get(**address).holding, Holding::Unknown(_));
        named.iter().filter(is_unknown).count()
    };
    assert_eq!(unknown().await, 21, "the rest has to wait for the next listing");
    assert_eq!(unknown().await, 0);
    attach(&driver, &scope, &brought[69], "1").await.unwrap();
    assert_eq!(unknown().await, 0, "polling one address forgets none of the others");
}

#[tokio::test(start_paused = true)]
async fn missing_addresses_cost_few_reads() {
    let (fake, driver, scope) = account_with_byoip();
    fake.enforce_limits(false);
    let typos = (0..120).map(|number| address(&format!("192.0.2.{}", number + 100)));
    let named: BTreeSet<_> = typos.chain([address(BYOIP)]).collect();
    let reads = || fake.ledger().calls().get("reserved_ips.get").copied().unwrap_or(0);
    let first = driver.list_with(&scope, &named).await.unwrap();
    assert_eq!(reads(), 50, "the limit for one listing");
    let unknown = |listing: &drivers::Listing| {
        let is_unknown = |address: &&Address| matches!(listing.get(**address).holding, Holding::Unknown(_));
        named.iter().filter(is_unknown).count()
    };
    assert_eq!(unknown(&first), 71, "an address that was not read is unknown, not missing");
    driver.list_with(&scope, &named).await.unwrap();
    let third = driver.list_with(&scope, &named).await.unwrap();
    assert_eq!(
        (reads(), unknown(&third)),
        (121 + 2, 0),
        "each address is read once, and existing ones with every listing"
    );
    let before = reads();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        driver.list_with(&scope, &named).await.unwrap();
    }
    assert!(
        reads() - before <= 60 * 2,
        "more than one missing address per listing was read: {}",
        reads() - before
    );
    fake.with(|account| {
        account.add_reserved_ip("192.0.2.100", "nyc3");
        account.bring_your_own("192.0.2.100");
    });
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        driver.list_with(&scope, &named).await.unwrap();
    }
    let found = driver.list_with(&scope, &named).await.unwrap();
    assert_eq!(
        found.get(address("192.0.2.100")).holding,
        Holding::Free,
        "a new BYOIP address is found later"
    );
}

#[tokio::test(start_paused = true)]
async fn an_address_is_unknown_while_an_action_is_in_flight() {
    let (_, driver, scope) = account();
    driver.attach(&scope, address(ADDRESS), &vm("1")).await.unwrap();
    let listing = driver.list(&scope).await.unwrap();
    assert!(matches!(listing.get(address(ADDRESS)).holding, Holding::Unknown(_)));
}

#[tokio::test(start_paused = true)]
async fn i22_an_action_that_the_listing_does_not_show_yet_has_not_failed() {
    let (fake, driver, scope) = account();
    fake.with(|account| account.hides_locks = true);
    let attached = attach(&driver, &scope, ADDRESS, "1").await;
    assert_eq!(attached, Ok(()));
    fake.inject(Rule::next("reserved_ips_actions.post", Fault::FailLate));
    let failed = attach(&driver, &scope, ADDRESS, "2").await;
    assert!(matches!(failed, Err(DriverError::Conflict(_))), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_a_listing_are_read_with_one_call_each() {
    let (fake, driver, scope) = account();
    fake.with(|account| {
        for at in 0..450 {
            account.add_reserved_ip(format!("198.18.{}.{}", at / 250, at % 250), "nyc3");
        }
    });
    let listing = driver.list(&scope).await.unwrap();
    assert_eq!(listing.addresses.len(), 451);
    assert_eq!(fake.ledger().calls()["reserved_ips.list"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_response_after_the_deadline_is_unavailable() {
    let (fake, driver, scope) = account();
    fake.inject(Rule::next("reserved_ips.list", Fault::Delay(Duration::from_secs(60))));
    assert!(matches!(driver.list(&scope).await, Err(DriverError::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn errors_keep_their_kind() {
    let (fake, driver, scope) = account();
    let attach =
        async |droplet: &str| driver.attach(&scope, address(ADDRESS), &vm(droplet)).await.unwrap_err();
    assert!(matches!(attach("77").await, DriverError::NotFound(_)));
    assert!(matches!(attach("not-a-number").await, DriverError::Invalid(_)));
    fake.inject(Rule::next("reserved_ips_actions.post", Fault::Refuse(Refusal::Forbidden("no".into()))));
    assert!(
        matches!(attach("1").await, DriverError::Denied { permission, .. } if permission == "reserved_ip:update")
    );
    let wait = Duration::from_secs(17);
    fake.inject(Rule::next("reserved_ips_actions.post", Fault::Refuse(Refusal::RateLimited(wait))));
    assert!(matches!(attach("1").await, DriverError::RateLimited { retry_after, .. } if retry_after == wait));
    driver.attach(&scope, address(ADDRESS), &vm("1")).await.unwrap();
    assert!(matches!(attach("2").await, DriverError::Conflict(_)), "an action is pending");
}
