//! What is specific to each address driver, on fake clouds in virtual time. What all drivers have in common is in
//! `contract/`.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use drivers::azure::addresses::Azure;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::google::addresses::Compute;
use drivers::http::HttpService;
use drivers::{AddressDriver, DriverError, Operation, Polled, Progress, Tags, tokens};
use http::Response;
use plan::{Address, Doubt, Holding, MachineState, MayBeOn, Provider, Scope};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::{CloudChange, Done};
use testbed::fake::{Fake, Refusal, compute, digitalocean};
use tower::ServiceExt;

use support::{address, finish, scope, service, vm};

const TOKEN: &str = "token";

mod at_digitalocean {
    use super::*;

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
            finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(droplet)).await)
                .await
                .unwrap();
            let listing = driver.list(&scope).await.unwrap();
            assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(droplet)));
        }
        assert_eq!(fake.ledger().calls()["reserved_ips_actions.post"], 2);
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &vm("2")).await).await.unwrap();
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
        assert!(
            another.create(&scope, "nyc3", Some("pool-1")).await.is_ok(),
            "another driver finds the project"
        );
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
        assert_eq!(
            driver.list(&scope).await.unwrap().tags,
            Tags::Complete,
            "the token may have been changed"
        );
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
            let attached = async || driver.attach(&scope, address(BYOIP), &vm(droplet)).await;
            finish(&driver, attached).await.unwrap();
            assert_eq!(listed(BYOIP).await.holding, Holding::By(vm(droplet)));
        }
        finish(&driver, async || driver.detach(&scope, address(BYOIP), &vm("2")).await).await.unwrap();
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
        let named: BTreeSet<_> =
            brought.iter().map(|ip| address(ip)).chain([address("2001:db8::1")]).collect();
        let unknown = async || {
            let listing = driver.list_with(&scope, &named).await.unwrap();
            let is_unknown =
                |address: &&Address| matches!(listing.get(**address).holding, Holding::Unknown(_));
            named.iter().filter(is_unknown).count()
        };
        assert_eq!(unknown().await, 21, "the rest has to wait for the next listing");
        assert_eq!(unknown().await, 0);
        finish(&driver, async || driver.attach(&scope, address(&brought[69]), &vm("1")).await).await.unwrap();
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
            let is_unknown =
                |address: &&Address| matches!(listing.get(**address).holding, Holding::Unknown(_));
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
        let attached =
            finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm("1")).await).await;
        assert_eq!(attached, Ok(()));
        fake.inject(Rule::next("reserved_ips_actions.post", Fault::FailLate));
        let failed = finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm("2")).await).await;
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
        assert!(
            matches!(attach("1").await, DriverError::RateLimited { retry_after, .. } if retry_after == wait)
        );
        driver.attach(&scope, address(ADDRESS), &vm("1")).await.unwrap();
        assert!(matches!(attach("2").await, DriverError::Conflict(_)), "an action is pending");
    }
}

mod at_compute_engine {
    use super::*;

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
        finish(&driver, async || driver.replace(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        let listing = driver.list(&scope).await.unwrap();
        assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(ONE)));
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(TWO)).await).await.unwrap();
        let listing = driver.list(&scope).await.unwrap();
        assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(vm(TWO)));
        assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ephemeral_address_is_replaced_on_request_and_restored() {
        let (fake, driver, scope) = project();
        let own =
            |fake: &Fake<compute::Compute>| fake.with(|project| project.has_ephemeral("us-west1-a", "one"));
        assert_eq!(driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Occupied);
        assert_eq!(driver.restore(&scope, address(ADDRESS), &vm(ONE)).await.unwrap(), Progress::Done);
        assert!(own(&fake), "something was changed");
        finish(&driver, async || driver.replace(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        assert!(!own(&fake));
        finish(&driver, async || driver.restore(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
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
        finish(&driver, async || driver.restore(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        assert!(fake.with(|project| project.has_ephemeral(ZONE, "one")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_creation_uses_up_no_name() {
        let (fake, driver, scope) = project();
        fake.inject(Rule::next("addresses.insert", Fault::Refuse(Refusal::Forbidden("no".into()))));
        driver.create(&scope, "us-west1", Some("pool")).await.unwrap_err();
        driver.create(&scope, "us-west1", Some("pool")).await.unwrap();
        let names = fake.ledger().asked.into_iter().filter(|asked| asked.call == "addresses.get");
        assert!(
            names.clone().all(|asked| asked.line.ends_with("/pool-1")),
            "{:?}",
            names.collect::<Vec<_>>()
        );
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
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        let mut failed = Vec::new();
        for name in ["three", "four"] {
            let target = vm(&format!("demo/{ZONE}/{name}"));
            match finish(&driver, async || driver.replace(&scope, address(ADDRESS), &target).await).await {
                Ok(()) => break,
                Err(error) => failed.push(error.to_string()),
            }
            finish(&driver, async || driver.restore(&scope, address(ADDRESS), &target).await).await.unwrap();
        }
        println!("ledger: {:#?}", fake.ledger().done);
        assert_eq!(vms_that_lost_ephemeral(&fake), [format!("demo/{ZONE}/three")], "failed: {failed:?}");
        let (holder, own) =
            fake.with(|project| (project.holder(ADDRESS), project.has_ephemeral(ZONE, "one")));
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
            assert!(
                matches!(&refused, Err(DriverError::Invalid(why)) if why.contains("IPv4")),
                "{refused:?}"
            );
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
        let detach = async || driver.detach(&scope, address(ADDRESS), &vm(TWO)).await;
        assert_eq!(detach().await.unwrap(), Progress::Named("mail.example.com.".into()));
        assert_eq!(fake.with(|project| project.holder(ADDRESS)).as_deref(), Some(TWO), "it was detached");
        finish(&driver, detach).await.unwrap();
        assert_eq!(fake.with(|project| project.holder(ADDRESS)), None);
        let ptr = || fake.with(|project| project.ptr(ADDRESS));
        finish(&driver, async || driver.replace(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        assert_eq!(ptr().as_deref(), Some("mail.example.com."));

        // If a person removes the name, it stays removed.
        fake.with(|project| project.set_ptr(ADDRESS, None));
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(TWO)).await).await.unwrap();
        assert_eq!(ptr(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ptr_name_stored_by_a_previous_leader_is_set_again() {
        let (fake, driver, scope) = project();
        driver.keep_ptr(address(ADDRESS), "mail.example.com.");
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(TWO)).await).await.unwrap();
        assert_eq!(fake.with(|project| project.ptr(ADDRESS)).as_deref(), Some("mail.example.com."));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_attached_without_a_refused_ptr_name() {
        let (fake, driver, scope) = project();
        fake.with(|project| _ = project.unverified_domains.insert("example.com".into()));
        driver.keep_ptr(address(ADDRESS), "mail.example.com.");
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(TWO)).await).await.unwrap();
        let (holder, ptr) = fake.with(|project| (project.holder(ADDRESS), project.ptr(ADDRESS)));
        assert_eq!((holder.as_deref(), ptr), (Some(TWO), None));
    }

    /// The permissions that the Python controller documents, and those that Google requires in addition for the same
    /// calls.
    const DOCUMENTED: [&str; 3] = [
        "compute.instances.get",
        "compute.instances.addAccessConfig",
        "compute.instances.deleteAccessConfig",
    ];
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
        let three = vm(&format!("demo/{ZONE}/three"));
        for target in [vm(TWO), three] {
            finish(&driver, async || driver.attach(&scope, address(ADDRESS), &target).await).await.unwrap();
            assert_eq!(fake.with(|project| project.holder(ADDRESS)), Some(target.to_string()));
            finish(&driver, async || driver.detach(&scope, address(ADDRESS), &target).await).await.unwrap();
            assert_eq!(fake.with(|project| project.holder(ADDRESS)), None);
            finish(&driver, async || driver.restore(&scope, address(ADDRESS), &target).await).await.unwrap();
            assert!(
                fake.with(|project| project.has_ephemeral(ZONE, target.as_str().rsplit('/').next().unwrap()))
            );
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
        let failed = finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(TWO)).await).await;
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
    async fn start_operations(
        fake: &Fake<compute::Compute>,
        driver: &Compute,
        scope: &Scope,
    ) -> Vec<Operation> {
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
            assert_eq!(
                fake.ledger().calls().get("zoneOperations.get").copied().unwrap_or(0),
                polls,
                "{fault:?}"
            );
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
        let attached =
            finish(&driver, async || driver.replace(&scope, address(ADDRESS), &vm(ONE)).await).await;
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
        let attach = async || driver.attach(&scope, address("203.0.113.55"), &vm(TWO)).await;
        finish(&driver, attach).await.unwrap();
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
}

mod at_azure {
    use super::*;
    use testbed::fake::azure;

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
        let attach =
            async || finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(ONE)).await).await;
        attach().await.unwrap_err();
        let listing = driver.list(&scope).await.unwrap();
        assert_eq!((listing.get(address(ADDRESS)).holding, holder(&fake)), (Holding::By(vm(ONE)), None));
        assert!(listing.unconfirmed.contains(&address(ADDRESS)));
        attach().await.unwrap();
        assert_eq!(holder(&fake).as_deref(), Some(ONE));
        assert!(driver.list(&scope).await.unwrap().unconfirmed.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_interface_is_written_again_although_not_primary() {
        let (fake, driver, scope) = subscription();
        fake.inject(Rule::next("NetworkInterfaces_CreateOrUpdate", Fault::FailLate));
        let attach =
            async || finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(ONE)).await).await;
        attach().await.unwrap_err();
        fake.with(|subscription| {
            subscription.add_interface("a-further-one", "one");
            subscription.make_primary("a-further-one");
        });
        assert!(driver.list(&scope).await.unwrap().unconfirmed.contains(&address(ADDRESS)));
        attach().await.unwrap();
        assert_eq!(holder(&fake).as_deref(), Some(ONE));
        attach().await.unwrap();
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
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        fake.with(|subscription| subscription.hides_interfaces = true);
        let holding = driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding;
        let Holding::Unknown(Doubt { why, may_be_on, .. }) = holding else { panic!("{holding:?}") };
        assert!(why.contains("one-nic, which Azure does not show"), "{why}");
        assert_eq!(
            may_be_on,
            MayBeOn::AllBut(std::sync::Arc::default()),
            "no VM has an interface that is shown"
        );
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
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
        let held = settable(&fake);
        let primary = &held["properties"]["ipConfigurations"][1];
        assert!(primary["properties"]["publicIPAddress"]["id"].as_str().unwrap().ends_with("/address"));
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
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
        let orphan = vm("sub/group/networkinterfaces/one-nic");
        let listing = driver.list(&scope).await.unwrap();
        assert_eq!(listing.get(address(ADDRESS)).holding, Holding::By(orphan.clone()));
        let refused = driver.detach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
        assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
        finish(&driver, async || driver.detach(&scope, address(ADDRESS), &orphan).await).await.unwrap();
        assert_eq!(driver.list(&scope).await.unwrap().get(address(ADDRESS)).holding, Holding::Free);
    }

    #[tokio::test(start_paused = true)]
    async fn the_primary_interface_gets_the_address() {
        let (fake, driver, scope) = subscription();
        fake.with(|subscription| subscription.add_interface("a-further-one", "one"));
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
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
        finish(&driver, async || driver.attach(&scope, address(ADDRESS), &vm(ONE)).await).await.unwrap();
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
        let driver =
            Azure::new(HttpService::new(accepted), "http://azure.invalid/", tokens::fixed(TOKEN), None);
        let progress = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap();
        assert!(matches!(progress, Progress::Underway(_)), "{progress:?}");
        assert_eq!(holder(&fake), None, "nothing has happened yet");
        finish(&driver, async || Ok(progress.clone())).await.unwrap();
        assert_eq!(holder(&fake).as_deref(), Some(ONE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_locked_down_group_is_reported_without_a_permission() {
        let (fake, _, scope) = subscription();
        let says = r#"{"error": {"code": "DenyAssignmentAuthorizationFailed", "message": "The client has no way."}}"#;
        let locked = service(&fake).map_response(move |answer: Response<Bytes>| {
            let is_change = answer.headers().contains_key("azure-asyncoperation");
            if is_change { Response::builder().status(403).body(Bytes::from(says)).unwrap() } else { answer }
        });
        let driver =
            Azure::new(HttpService::new(locked), "http://azure.invalid/", tokens::fixed(TOKEN), None);
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
        fake.with(|subscription| _ = subscription.locked.insert("group".into()));
        let refused = driver.attach(&scope, address(ADDRESS), &vm(ONE)).await.unwrap_err();
        assert!(matches!(&refused, DriverError::Invalid(message) if message.contains("locked")), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn i20_a_target_in_a_locked_group_is_refused_before_the_address_is_detached() {
        let (fake, driver, scope) = subscription();
        fake.with(|subscription| {
            subscription.attach_now(ADDRESS, "one");
            subscription.group = "second".into();
            subscription.add_machine("three", "westeurope");
            subscription.locked.insert("second".into());
        });
        let three = vm("sub/second/three");
        let refused = driver.check_target(&scope, address(ADDRESS), &three).await.unwrap_err();
        assert!(matches!(&refused, DriverError::Invalid(message) if message.contains("locked")), "{refused}");
        fake.with(|subscription| subscription.locked.clear());
        finish(&driver, async || driver.check_target(&scope, address(ADDRESS), &three).await).await.unwrap();
        assert_eq!(holder(&fake).as_deref(), Some(ONE));
        let is_other = |done: &Done| matches!(done.change, CloudChange::Other(_));
        assert!(!fake.ledger().done.iter().any(is_other), "the check changed the interface");
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_in_the_group_of_the_holder_needs_no_check() {
        let (fake, driver, scope) = subscription();
        fake.with(|subscription| subscription.attach_now(ADDRESS, "one"));
        let checked = driver.check_target(&scope, address(ADDRESS), &vm(TWO)).await;
        assert_eq!(checked.unwrap(), Progress::Done);
        assert!(!fake.ledger().calls().contains_key("NetworkInterfaces_CreateOrUpdate"));
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
}

mod with_an_identity_of_azure {
    use super::*;
    use drivers::azure::identity::{Identity, tokens};
    use testbed::fake::entra::Entra;

    fn tenant() -> (Fake<Entra>, Identity) {
        let fake = Fake::new(Entra::new("tenant", "client", "secret", TOKEN));
        let identity = Identity {
            tenant: "tenant".into(),
            client: Some("client".into()),
            authority: Some("https://entra.invalid".into()),
            ..Identity::default()
        };
        (fake, identity)
    }

    async fn token(fake: &Fake<Entra>, identity: Identity) -> Result<String, DriverError> {
        tokens(identity, service(fake), "https://management.azure.com/").token().await
    }

    #[tokio::test]
    async fn a_client_secret_is_exchanged_for_a_token_once() {
        let (fake, identity) = tenant();
        let identity = Identity { secret: Some("secret".into()), ..identity };
        let tokens = tokens(identity, service(&fake), "https://management.azure.com/");
        for _ in 0..2 {
            assert_eq!(tokens.token().await.unwrap(), TOKEN);
        }
        assert_eq!(fake.ledger().calls()["entra.token"], 1);
    }

    #[tokio::test]
    async fn the_pods_token_is_exchanged_for_an_azure_token() {
        let (fake, identity) = tenant();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let identity = Identity { federated_token_file: Some(file.clone()), ..identity };
        let missing = token(&fake, identity.clone()).await.unwrap_err().to_string();
        assert!(missing.contains(&file.display().to_string()), "{missing}");
        std::fs::write(&file, "secret").unwrap();
        assert_eq!(token(&fake, identity).await.unwrap(), TOKEN);
    }

    #[tokio::test]
    async fn without_either_the_managed_identity_is_used() {
        let (fake, identity) = tenant();
        assert_eq!(token(&fake, identity).await.unwrap(), TOKEN);
        assert_eq!(fake.ledger().calls()["managedIdentity.token"], 1);
        assert_eq!(token(&fake, Identity::default()).await.unwrap(), TOKEN);
    }

    #[tokio::test]
    async fn a_token_error_has_azures_message_and_not_the_secret() {
        let (fake, identity) = tenant();
        let identity = Identity { secret: Some("not-the-right-one".into()), ..identity };
        let refused = token(&fake, identity).await.unwrap_err();
        assert!(matches!(refused, DriverError::Unavailable(_)));
        let refused = format!("{refused} {refused:?}");
        assert!(refused.contains("AADSTS7000215"), "{refused}");
        assert!(!refused.contains("not-the-right-one"), "{refused}");
    }
}
