//! The DNS drivers, unchanged, on fake clouds in virtual time.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

mod support;

use std::time::Duration;

use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::records::Records;
use drivers::record::{RecordChange, RecordDriver};
use drivers::{DriverError, tokens};
use plan::{DnsProvider, RecordKind, RecordName, RecordSet};
use testbed::fake::cloudflare::Cloudflare as Zones;
use testbed::fake::digitalocean::DigitalOcean;
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::{Fake, Refusal};

use support::canary::{self, TOKEN};
use support::{hello, object, service, set};

/// Reads a record set and writes a new one.
async fn publish(driver: &dyn RecordDriver, name: &RecordName, new: RecordSet) -> Result<(), DriverError> {
    let old = driver.read(name, &object()).await?;
    driver.write(&RecordChange { name: name.clone(), object: object(), old, new }).await
}

/// What every DNS driver must do.
async fn keeps_the_contract(driver: &dyn RecordDriver, provider: DnsProvider) {
    canary::watch();
    for (kind, [one, two, three]) in [
        (RecordKind::A, ["203.0.113.1", "203.0.113.2", "203.0.113.3"]),
        (RecordKind::Aaaa, ["2001:db8::1", "2001:db8::2", "2001:db8::3"]),
    ] {
        let name = RecordName { kind, ..hello(provider) };
        let found = driver.read(&name, &object()).await.unwrap();
        assert_eq!(
            found,
            RecordSet { ttl: found.ttl, ..RecordSet::default() },
            "a set that does not exist is empty"
        );

        for values in [&[one][..], &[one, two, three], &[two, three], &[one], &[one, two]] {
            let wanted = set(values);
            publish(driver, &name, wanted.clone()).await.unwrap();
            assert_eq!(driver.read(&name, &object()).await.unwrap(), wanted);
        }

        let (old, new) = (set(&[one]), set(&[three]));
        let blind = RecordChange { name: name.clone(), object: object(), old, new };
        let refused = driver.write(&blind).await.unwrap_err();
        assert!(matches!(refused, DriverError::Conflict(_)), "the set was not as it was read: {refused}");
        assert_eq!(driver.read(&name, &object()).await.unwrap(), set(&[one, two]));

        publish(driver, &name, RecordSet::default()).await.unwrap();
        let gone = driver.read(&name, &object()).await.unwrap();
        assert!(gone.values.is_empty() && gone.owner.is_none(), "the mark is deleted too: {gone:?}");
    }
    canary::assert_silent();
}

mod at_digitalocean {
    use super::*;

    fn account() -> (Fake<DigitalOcean>, Records) {
        let mut account = DigitalOcean::new(TOKEN);
        account.add_domain("example.com");
        let fake = Fake::new(account);
        let driver = Records::new(service(&fake), "http://digitalocean.invalid/", tokens::fixed(TOKEN));
        (fake, driver)
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_is_read_and_written_as_a_whole() {
        let (_fake, driver) = account();
        keeps_the_contract(&driver, DnsProvider::DigitalOcean).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_always_has_a_value_while_all_values_change() {
        let (fake, driver) = account();
        let name = hello(DnsProvider::DigitalOcean);
        publish(&driver, &name, set(&["203.0.113.1", "203.0.113.2"])).await.unwrap();
        publish(&driver, &name, set(&["203.0.113.3"])).await.unwrap();
        let states = fake.ledger().values_of("hello.example.com");
        assert!(states.iter().all(|(_, values)| !values.is_empty()), "{states:?}");
        assert_eq!(states.last().unwrap().1.iter().collect::<Vec<_>>(), ["203.0.113.3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_names_a_missing_permission() {
        let (fake, driver) = account();
        let forbidden = Fault::Refuse(Refusal::Forbidden("no".into()));
        fake.inject(Rule::next("domains.create_record", forbidden));
        let name = hello(DnsProvider::DigitalOcean);
        let refused = publish(&driver, &name, set(&["203.0.113.1"])).await.unwrap_err();
        assert!(matches!(&refused, DriverError::Denied { permission, .. } if permission == "domain:create"));
    }
}

mod at_cloudflare {
    use super::*;

    fn account() -> (Fake<Zones>, Cloudflare) {
        let mut account = Zones::new(TOKEN);
        account.add_zone("example.com");
        let fake = Fake::new(account);
        let driver =
            Cloudflare::new(service(&fake), "http://cloudflare.invalid/client/v4", tokens::fixed(TOKEN));
        (fake, driver)
    }

    fn name() -> RecordName {
        hello(DnsProvider::Cloudflare)
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_is_read_and_written_as_a_whole() {
        let (_fake, driver) = account();
        keeps_the_contract(&driver, DnsProvider::Cloudflare).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_id_of_a_zone_is_read_again_after_a_refusal() {
        let (fake, driver) = account();
        for _ in 0..2 {
            driver.read(&name(), &object()).await.unwrap();
        }
        assert_eq!(fake.ledger().calls()["zones.list"], 1);
        for refusal in [Refusal::Unavailable(404), Refusal::Forbidden("the zone has moved".into())] {
            fake.inject(Rule::next("dns.records.list", Fault::Refuse(refusal)));
            driver.read(&name(), &object()).await.unwrap_err();
            driver.read(&name(), &object()).await.unwrap();
        }
        assert_eq!(fake.ledger().calls()["zones.list"], 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_id_of_a_zone_is_read_again_every_five_minutes() {
        let (fake, driver) = account();
        for seconds in [0, 299, 301] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            driver.read(&name(), &object()).await.unwrap();
        }
        assert_eq!(fake.ledger().calls()["zones.list"], 2, "the domain may have moved to another zone");
    }

    #[tokio::test(start_paused = true)]
    async fn two_hundred_records_are_changed_in_one_request() {
        let (fake, driver) = account();
        let values =
            |net: u8| -> Vec<String> { (1..=200).map(|host| format!("203.0.{net}.{host}")).collect() };
        let texts = |values: &[String]| set(&values.iter().map(String::as_str).collect::<Vec<_>>());
        publish(&driver, &name(), texts(&values(113))).await.unwrap();
        publish(&driver, &name(), texts(&values(114))).await.unwrap();
        assert_eq!(fake.ledger().calls()["dns.records.batch"], 2, "one for each change");
        let states = fake.ledger().values_of("hello.example.com");
        assert_eq!(states.last().unwrap().1.len(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn records_stay_proxied_and_new_ones_are_proxied_too() {
        let (fake, driver) = account();
        fake.with(|account| {
            let id = account.add_record("example.com", "A", "hello.example.com", "203.0.113.1").unwrap();
            account.edit_record("example.com", &id, &serde_json::json!({"proxied": true}));
        });
        let wanted = set(&["203.0.113.2", "203.0.113.3"]);
        publish(&driver, &name(), wanted.clone()).await.unwrap();
        let found = fake.with(|account| account.records("hello.example.com", "A"));
        assert!(found.iter().all(|record| record["proxied"] == true), "{found:?}");
        let read = driver.read(&name(), &object()).await.unwrap();
        assert_eq!((read.values, read.owner), (wanted.values, wanted.owner));
    }

    #[tokio::test(start_paused = true)]
    async fn one_record_without_a_mark_makes_the_set_foreign() {
        let (fake, driver) = account();
        publish(&driver, &name(), set(&["203.0.113.1"])).await.unwrap();
        fake.with(|account| account.add_record("example.com", "A", "hello.example.com", "203.0.113.9"));
        let found = driver.read(&name(), &object()).await.unwrap();
        assert_eq!(found.owner, None);
        assert_eq!(found.values.len(), 2);
    }
}

#[cfg(feature = "aws")]
mod at_route53 {
    use super::*;

    use std::sync::Arc;
    use std::time::Duration;

    use drivers::aws::records::Route53;
    use drivers::http::{HttpService, with_deadline};
    use drivers::network::network;
    use testbed::fake::route53;
    use testbed::moto::{KEY, Moto};

    use crate::support::aws;

    fn driver(service: HttpService) -> Route53 {
        aws::route53(service, canary::AWS_SECRET)
    }

    fn account() -> (Fake<route53::Route53>, String, Route53) {
        let mut account = route53::Route53::new(KEY);
        account.add_zone("a.example");
        let zone = account.add_zone("example.com");
        account.add_zone("z.example");
        let fake = Fake::new(account);
        let driver = driver(service(&fake));
        (fake, zone, driver)
    }

    fn name() -> RecordName {
        hello(DnsProvider::Route53)
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_is_read_and_written_as_a_whole() {
        let (_fake, _, driver) = account();
        keeps_the_contract(&driver, DnsProvider::Route53).await;
    }

    #[tokio::test]
    #[ignore = "needs Python packages: `just contract` runs it"]
    async fn a_set_is_read_and_written_as_a_whole_on_moto() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let moto = Moto::start(network(Arc::new(|| true), Duration::from_secs(5)).unwrap()).await.unwrap();
        moto.add_zone("example.com").await.unwrap();
        keeps_the_contract(&driver(with_deadline(moto.service())), DnsProvider::Route53).await;
        let called: Vec<_> = moto.calls().into_keys().collect();
        assert_eq!(called, ["ChangeResourceRecordSets", "ListHostedZonesByName", "ListResourceRecordSets"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_that_was_changed_since_the_read_is_not_overwritten() {
        let (fake, zone, driver) = account();
        publish(&driver, &name(), set(&["203.0.113.1"])).await.unwrap();
        let old = driver.read(&name(), &object()).await.unwrap();
        for (ttl, value) in [(60, "203.0.113.9"), (61, "203.0.113.1")] {
            fake.with(|account| account.set_record(&zone, "hello.example.com", "A", ttl, &[value]));
            let new = set(&["203.0.113.2"]);
            let change = RecordChange { name: name(), object: object(), old: old.clone(), new };
            let refused = driver.write(&change).await.unwrap_err();
            assert!(matches!(refused, DriverError::Conflict(_)), "{refused}");
            let left = fake.with(|account| account.values(&zone, "hello.example.com", "A"));
            assert_eq!(left.into_iter().collect::<Vec<_>>(), [value]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_always_has_a_value_while_all_values_change() {
        let (fake, _, driver) = account();
        publish(&driver, &name(), set(&["203.0.113.1", "203.0.113.2"])).await.unwrap();
        publish(&driver, &name(), set(&["203.0.113.3"])).await.unwrap();
        let states = fake.ledger().values_of("hello.example.com");
        assert!(states.iter().all(|(_, values)| !values.is_empty()), "{states:?}");
        assert_eq!(fake.ledger().calls()["ChangeResourceRecordSets"], 2, "one for each change");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_with_another_ttl_is_foreign() {
        let (fake, zone, driver) = account();
        publish(&driver, &name(), set(&["203.0.113.1"])).await.unwrap();
        let mark = "_owner-a.hello.example.com";
        let text = fake.with(|account| account.values(&zone, mark, "TXT")).pop_first().unwrap();
        fake.with(|account| account.set_record(&zone, mark, "TXT", 60, &[&text]));
        assert_eq!(driver.read(&name(), &object()).await.unwrap().owner, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_recreated_zone_is_found_at_the_second_read() {
        let (fake, zone, driver) = account();
        driver.read(&name(), &object()).await.unwrap();
        fake.with(|account| account.remove_zone(&zone));
        fake.with(|account| account.add_zone("example.com"));
        let gone = driver.read(&name(), &object()).await.unwrap_err();
        assert!(matches!(gone, DriverError::NotFound(_)), "{gone}");
        publish(&driver, &name(), set(&["203.0.113.1"])).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn wildcards_and_similar_names_are_distinguished() {
        let (_fake, _, driver) = account();
        let star = RecordName { name: "*.example.com".into(), ..name() };
        publish(&driver, &star, set(&["203.0.113.1"])).await.unwrap();
        assert_eq!(driver.read(&star, &object()).await.unwrap(), set(&["203.0.113.1"]));
        let neighbour = RecordName { name: "hell.example.com".into(), ..name() };
        publish(&driver, &name(), set(&["203.0.113.2"])).await.unwrap();
        let found = driver.read(&neighbour, &object()).await.unwrap();
        assert!(found.values.is_empty() && found.owner.is_none(), "{found:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_public_zone_is_used_and_two_public_zones_are_refused() {
        let (fake, zone, driver) = account();
        fake.with(|account| account.add_private_zone("example.com"));
        publish(&driver, &name(), set(&["203.0.113.1"])).await.unwrap();
        assert_eq!(fake.with(|account| account.values(&zone, "hello.example.com", "A")).len(), 1);
        fake.with(|account| account.add_zone("example.com"));
        // The new driver has its own rate limit, but the account's limit is partly used.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let driver = super::at_route53::driver(service(&fake));
        let refused = driver.read(&name(), &object()).await.unwrap_err();
        assert!(matches!(refused, DriverError::Invalid(_)), "{refused}");
        let unknown = RecordName { zone: "nowhere.example".into(), ..name() };
        let refused = driver.read(&unknown, &object()).await.unwrap_err();
        assert!(matches!(refused, DriverError::NotFound(_)), "{refused}");
    }

    #[tokio::test(start_paused = true)]
    async fn errors_keep_their_kind() {
        let (fake, _, driver) = account();
        fake.with(|account| _ = account.denied.insert("route53:ChangeResourceRecordSets".into()));
        let publish = async || publish(&driver, &name(), set(&["203.0.113.1"])).await.unwrap_err();
        let refused = publish().await;
        assert!(
            matches!(&refused, DriverError::Denied { permission, .. } if permission == "route53:ChangeResourceRecordSets"),
            "{refused}"
        );
        fake.with(|account| account.denied.clear());
        let throttled = Fault::Refuse(Refusal::RateLimited(Duration::from_secs(9)));
        fake.inject(Rule::next("ChangeResourceRecordSets", throttled));
        let refused = publish().await;
        assert!(matches!(refused, DriverError::RateLimited { .. }), "{refused}");
        fake.inject(Rule::next("ChangeResourceRecordSets", Fault::LoseReply));
        let refused = publish().await;
        assert!(matches!(refused, DriverError::Unavailable(_)), "{refused}");
    }
}
