//! `Retry-After` values of providers, up to the largest numbers and the strangest texts.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use drivers::azure::addresses::{self as azure, Azure};
use drivers::budget::{Counting, Limit, budgeted};
use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::digitalocean::records::Records;
use drivers::google::addresses::Compute;
use drivers::http::{HttpService, RETRY_AFTER_MAX};
use drivers::record::RecordDriver;
use drivers::{AddressDriver, DriverError, Operation, Polled, tokens};
use http::{Request, Response};
use plan::{DnsProvider, Provider, Scope};

use support::{address, hello, object, scope};

/// Values of `Retry-After`, and how many seconds they ask for, if any.
const ASKED: [(&str, Option<u64>); 9] = [
    ("7", Some(7)),
    ("3600", Some(3_600)),
    ("3601", Some(3_600)),
    ("18446744073709551615", Some(3_600)),
    ("340282366920938463463374607431768211456", Some(3_600)),
    ("-1", None),
    ("soon", None),
    ("", None),
    ("Fri, 31 Dec 9999 23:59:59 GMT", None),
];

/// A provider that gives every request the same response with a `Retry-After` header.
fn provider(status: u16, asked: &'static str, body: &'static str) -> HttpService {
    let answer = move |_: Request<Bytes>| async move {
        let answer = Response::builder().status(status).header("retry-after", asked);
        Ok(answer.header("content-type", "application/json").body(Bytes::from(body)).unwrap())
    };
    HttpService::new(tower::service_fn(answer))
}

/// The wait in an error.
fn pause(error: DriverError) -> Duration {
    match error {
        DriverError::RateLimited { retry_after, .. } => retry_after,
        error => panic!("{error}"),
    }
}

/// How long each driver waits if a provider asks it to.
async fn pauses(asked: &'static str) -> Vec<(&'static str, Duration)> {
    let token = || tokens::fixed("token");
    let busy = || {
        // The rate limiter pauses too.
        let limit = Limit::window(usize::MAX, Duration::MAX);
        budgeted(
            provider(429, asked, "{}"),
            &[limit, Limit::bucket(|_| true, u32::MAX, 1)],
            Counting::default(),
        )
    };
    let gcp = Compute::new(busy(), "http://provider.invalid", token());
    let azure = Azure::new(busy(), "http://provider.invalid", token(), None);
    let digitalocean = DigitalOcean::new(busy(), "http://provider.invalid", token());
    let records = Records::new(busy(), "http://provider.invalid", token());
    let cloudflare = Cloudflare::new(busy(), "http://provider.invalid", token());
    let list = async |driver: &dyn AddressDriver, scope: Scope| driver.list(&scope).await.unwrap_err();
    let read = async |driver: &dyn RecordDriver, provider: DnsProvider| {
        driver.read(&hello(provider), &object()).await.unwrap_err()
    };
    #[allow(unused_mut)]
    let mut all = vec![
        ("gcp", pause(list(&gcp, scope(Provider::Gcp, "demo")).await)),
        ("azure", pause(list(&azure, scope(Provider::Azure, "demo")).await)),
        ("digitalocean", pause(list(&digitalocean, scope(Provider::DigitalOcean, "")).await)),
        ("names at digitalocean", pause(read(&records, DnsProvider::DigitalOcean).await)),
        ("cloudflare", pause(read(&cloudflare, DnsProvider::Cloudflare).await)),
    ];
    #[cfg(feature = "aws")]
    {
        let ec2 = support::aws::ec2(busy(), "secret", Duration::MAX);
        let route53 = support::aws::route53(busy(), "secret");
        all.push(("aws", pause(list(&ec2, scope(Provider::Aws, "us-east-1")).await)));
        all.push(("route53", pause(read(&route53, DnsProvider::Route53).await)));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn every_driver_waits_at_most_an_hour() {
    for (text, seconds) in ASKED {
        for (name, pause) in pauses(text).await {
            match seconds {
                Some(seconds) => assert_eq!(pause.as_secs(), seconds, "{name}: {text}"),
                None => {
                    assert!(pause > Duration::ZERO && pause <= RETRY_AFTER_MAX, "{name}: {text}: {pause:?}")
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn polling_at_azure_survives_any_retry_after() {
    for (text, seconds) in ASKED {
        let service =
            budgeted(provider(200, text, r#"{"status": "InProgress"}"#), &azure::limits(), azure::counting());
        let driver = Azure::new(service, "http://azure.invalid", tokens::fixed("token"), None);
        let operations = [Operation {
            id: "subscriptions/s/operations/o".into(),
            scope: scope(Provider::Azure, "s"),
            address: address("203.0.113.7"),
            target: None,
            completes: true,
        }];
        for _ in 0..2 {
            let polled = driver.poll(&operations).await.remove(0);
            assert_eq!(polled, Ok(Polled::StillUnderway), "{text} {seconds:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_of_any_size_works() {
    for requests in [0, 1, 2, usize::MAX / 100, usize::MAX] {
        for window in [Duration::ZERO, Duration::from_secs(1), Duration::MAX] {
            let limits = [Limit::window(requests, window)];
            let service = budgeted(provider(200, "0", "{}"), &limits, Counting::default());
            for _ in 0..5 {
                let request = Request::get("http://provider.invalid/").body(Bytes::new()).unwrap();
                _ = tower::ServiceExt::oneshot(service.clone(), request).await;
            }
        }
    }
}
