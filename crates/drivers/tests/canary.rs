//! No credential gets into the log at `trace`, over real connections and with every source of credentials.
//!
//! `support/canary.rs` defines the secrets and searches the log. The contract tests use the same search.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drivers::azure::addresses::Azure;
use drivers::azure::identity::{self, Identity};
use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::digitalocean::records::Records;
use drivers::google::addresses::Compute;
use drivers::http::{HttpService, with_deadline};
use drivers::network::network;
use drivers::record::RecordDriver;
use drivers::rfc2136::records::{Key, MessageService, Rfc2136};
use drivers::{AddressDriver, DriverError, tokens};
use plan::{DnsProvider, Provider, Scope, VmId};
use testbed::fake::entra::Entra;
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::http::{Server, serve};
use testbed::fake::{Fake, Machine, Refusal, azure, cloudflare, compute, digitalocean};

use support::canary::{self, PROOF, TOKEN, tsig_secret};
use support::{address, hello, object, scope};

const ADDRESS: &str = "203.0.113.10";

/// Real network connections.
fn connections() -> HttpService {
    let _ = rustls::crypto::ring::default_provider().install_default();
    with_deadline(network(Arc::new(|| true), Duration::from_secs(5)).unwrap())
}

async fn served<M: Machine>(fake: &Fake<M>) -> Server {
    serve(fake, 0).await.unwrap()
}

/// All kinds of faulty responses.
fn faults() -> [Option<Fault>; 7] {
    let refuse = |refusal| Some(Fault::Refuse(refusal));
    [
        None,
        Some(Fault::Truncate),
        Some(Fault::LoseReply),
        refuse(Refusal::Unauthorized),
        refuse(Refusal::Forbidden("no".into())),
        refuse(Refusal::Unavailable(500)),
        refuse(Refusal::RateLimited(Duration::from_secs(1))),
    ]
}

/// Fails if the log or an error contains a secret.
fn assert_silent(errors: impl IntoIterator<Item = DriverError>) {
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(!canary::is_in(&text), "an error contains a secret: {text}");
    }
    canary::assert_silent();
}

/// Makes all kinds of calls and returns their errors.
async fn exercise(driver: &dyn AddressDriver, scope: &Scope, vm: &VmId, region: &str) -> Vec<DriverError> {
    let address = address(ADDRESS);
    [
        driver.list(scope).await.err(),
        driver.machines(scope).await.err(),
        driver.attach(scope, address, vm).await.err(),
        driver.detach(scope, address, vm).await.err(),
        driver.create(scope, region, Some("tag")).await.err(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[tokio::test]
async fn no_token_for_digitalocean_is_logged() {
    canary::watch();
    let mut account = digitalocean::DigitalOcean::new(TOKEN);
    account.add_droplet(1, "one", "nyc3");
    account.add_reserved_ip(ADDRESS, "nyc3");
    account.add_domain("example.com");
    let fake = Fake::new(account);
    let server = served(&fake).await;
    for fault in faults() {
        fake.heal();
        fault.into_iter().for_each(|fault| fake.inject(Rule::always(fault)));
        let driver = DigitalOcean::new(connections(), &server.url(), tokens::fixed(TOKEN));
        assert_silent(exercise(&driver, &scope(Provider::DigitalOcean, ""), &"1".into(), "nyc3").await);
        let driver = Records::new(connections(), &server.url(), tokens::fixed(TOKEN));
        assert_silent(driver.read(&hello(DnsProvider::DigitalOcean), &object()).await.err());
    }
}

#[tokio::test]
async fn no_token_for_google_is_logged() {
    canary::watch();
    let mut project = compute::Compute::new("demo", TOKEN);
    project.add_instance("us-west1-a", "one");
    project.add_address("us-west1", "ours", ADDRESS);
    let fake = Fake::new(project);
    let server = served(&fake).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    for fault in faults() {
        fake.heal();
        fault.into_iter().for_each(|fault| fake.inject(Rule::always(fault)));
        let url = format!("{}/compute/v1/", server.url());
        let driver = Compute::new(connections(), &url, tokens::in_file(&file));
        assert_silent(
            exercise(&driver, &scope(Provider::Gcp, "demo"), &"demo/us-west1-a/one".into(), "us-west1").await,
        );
    }
}

#[tokio::test]
async fn a_token_that_is_no_valid_header_is_not_quoted() {
    canary::watch();
    for broken in ["\n", "\0", "\r\nx: y", "ü\u{7f}"] {
        let token = format!("{TOKEN}{broken}{TOKEN}");
        let driver = DigitalOcean::new(connections(), "http://127.0.0.1:1", tokens::fixed(token.clone()));
        let errors = exercise(&driver, &scope(Provider::DigitalOcean, ""), &"1".into(), "nyc3").await;
        assert!(!errors.is_empty());
        assert_silent(errors);
        let key = Key { name: "key".into(), algorithm: "hmac-sha256".into(), secret: tokens::fixed(token) };
        assert_silent(name_server(key).read(&hello(DnsProvider::Rfc2136), &object()).await.err());
    }
}

#[tokio::test]
async fn no_secret_or_token_for_azure_is_logged() {
    canary::watch();
    let mut subscription = azure::Azure::new("subscription", "group", TOKEN);
    subscription.add_machine("one", "westeurope");
    subscription.add_address("ours", "westeurope", ADDRESS);
    let fake = Fake::new(subscription);
    let server = served(&fake).await;
    let tenant = Fake::new(Entra::new("tenant", "client", PROOF, TOKEN));
    let entra = served(&tenant).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proof");
    std::fs::write(&file, PROOF).unwrap();
    // Azure's library requires https, so this service replaces the URL.
    let to_entra = {
        let (open, authority) = (connections(), entra.address.to_string());
        let send = move |request: http::Request<Bytes>| {
            let (mut head, body) = request.into_parts();
            let path = head.uri.path_and_query().unwrap().clone();
            head.uri = format!("http://{authority}{path}").parse().unwrap();
            head.headers.remove(http::header::HOST);
            tower::ServiceExt::oneshot(open.clone(), http::Request::from_parts(head, body))
        };
        HttpService::new(tower::service_fn(send))
    };
    let application = Identity {
        tenant: "tenant".into(),
        client: Some("client".into()),
        secret: Some(PROOF.into()),
        authority: Some("https://entra.invalid".into()),
        ..Identity::default()
    };
    let federated =
        Identity { secret: None, federated_token_file: Some(file.clone()), ..application.clone() };
    let managed = Identity { secret: None, client: None, ..application.clone() };
    for identity in [application, federated, managed] {
        for fault in faults() {
            for is_entra_faulty in [true, false] {
                // After most faults, Azure's library retries the metadata service of the VM for a minute.
                let is_managed = identity.client.is_none();
                if is_managed && is_entra_faulty && !matches!(fault, None | Some(Fault::Truncate)) {
                    continue;
                }
                fake.heal();
                tenant.heal();
                let rule = fault.clone().map(Rule::always);
                match is_entra_faulty {
                    true => rule.into_iter().for_each(|rule| tenant.inject(rule)),
                    false => rule.into_iter().for_each(|rule| fake.inject(rule)),
                }
                let tokens = identity::tokens(identity.clone(), to_entra.clone(), &server.url());
                let driver = Azure::new(connections(), &server.url(), tokens, Some("group".into()));
                let vm: VmId = fake.with(|subscription| subscription.vm("one")).into();
                let scope = scope(Provider::Azure, "subscription");
                let errors = exercise(&driver, &scope, &vm, "westeurope").await;
                let is_unexpected = |error: &DriverError| !matches!(error, DriverError::Conflict(_));
                assert!(fault.is_some() || !errors.iter().any(is_unexpected), "{errors:?}");
                assert_silent(errors);
            }
        }
    }
    let asked: BTreeSet<_> = tenant.ledger().calls().into_keys().collect();
    assert!(asked.contains("entra.token") && asked.contains("managedIdentity.token"), "{asked:?}");
}

#[tokio::test]
async fn no_token_for_cloudflare_is_logged() {
    canary::watch();
    let mut account = cloudflare::Cloudflare::new(TOKEN);
    account.add_zone("example.com");
    let fake = Fake::new(account);
    let server = served(&fake).await;
    for fault in faults() {
        fake.heal();
        fault.into_iter().for_each(|fault| fake.inject(Rule::always(fault)));
        let url = format!("{}/client/v4", server.url());
        let driver = Cloudflare::new(connections(), &url, tokens::fixed(TOKEN));
        assert_silent(driver.read(&hello(DnsProvider::Cloudflare), &object()).await.err());
    }
}

/// A DNS server that returns what it receives.
fn name_server(key: Key) -> Rfc2136 {
    let echo = tower::service_fn(|message: Bytes| async move { Ok(message) });
    Rfc2136::new(MessageService::new(echo), Some(key), Arc::new(|| 1_767_225_600))
}

#[tokio::test]
async fn no_secret_of_a_tsig_key_is_logged() {
    canary::watch();
    for (algorithm, secret) in [
        ("hmac-sha256", tsig_secret()),
        ("hmac-sha512", tsig_secret()),
        ("hmac-md5", tsig_secret()),
        ("hmac-sha256", format!("{} is not base64", tsig_secret())),
    ] {
        let key = Key { name: "key".into(), algorithm: algorithm.into(), secret: tokens::fixed(secret) };
        assert_silent(name_server(key).read(&hello(DnsProvider::Rfc2136), &object()).await.err());
    }
}

#[cfg(feature = "aws")]
mod at_amazon {
    use super::*;
    use crate::support::canary::{AWS_SECRET, AWS_SESSION};
    use drivers::aws::addresses::{Ec2, limits};
    use drivers::aws::records::{self as route53, Route53};
    use drivers::aws::{self, Aws};
    use testbed::fake::ec2 as cloud;
    use testbed::fake::sts::Sts;
    use testbed::moto::KEY;
    use tower::ServiceExt;

    /// Sends requests for the instance metadata service to one server, and all others to another.
    fn routed(credentials: &Server, account: &Server) -> HttpService {
        let (open, machine, region) =
            (connections(), credentials.address.to_string(), account.address.to_string());
        let send = move |request: http::Request<Bytes>| {
            let (mut head, body) = request.into_parts();
            let is_metadata = head.uri.host() == Some("169.254.169.254");
            let authority = if is_metadata { &machine } else { &region };
            let path = head.uri.path_and_query().unwrap().clone();
            head.uri = format!("http://{authority}{path}").parse().unwrap();
            open.clone().oneshot(http::Request::from_parts(head, body))
        };
        HttpService::new(tower::service_fn(send))
    }

    #[tokio::test]
    async fn no_key_or_session_token_is_logged() {
        canary::watch();
        let mut account = cloud::Ec2::new(KEY);
        account.add_instance("us-east-1", "i-1");
        account.add_address("us-east-1", ADDRESS);
        let fake = Fake::new(account);
        let server = served(&fake).await;
        let role = Sts { secret: AWS_SECRET.into(), session: AWS_SESSION.into(), ..Sts::new(KEY, PROOF) };
        let credentials = Fake::new(role);
        let machine = served(&credentials).await;
        let now: drivers::Seconds = Arc::new(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
            since.unwrap().as_secs()
        });
        let keys = aws::Identity::Keys { id: KEY.into(), secret: AWS_SECRET.into() };
        for identity in [keys, aws::Identity::Found] {
            for fault in faults() {
                for is_of_machine in [true, false] {
                    fake.heal();
                    credentials.heal();
                    let rule = fault.clone().map(Rule::always);
                    match is_of_machine {
                        true => rule.into_iter().for_each(|rule| credentials.inject(rule)),
                        false => rule.into_iter().for_each(|rule| fake.inject(rule)),
                    }
                    let service = routed(&machine, &server);
                    let aws = Arc::new(Aws::new(service, identity.clone(), "", Arc::clone(&now)));
                    let names = Route53::new(Arc::clone(&aws), route53::limits());
                    let driver = Ec2::new(aws, limits(), Duration::from_secs(1));
                    let scope = scope(Provider::Aws, "us-east-1");
                    let errors = match &fault {
                        // Without credentials, each call takes seconds, so one call is enough.
                        Some(_) => driver.list(&scope).await.err().into_iter().collect(),
                        None => exercise(&driver, &scope, &"us-east-1/i-1".into(), "us-east-1").await,
                    };
                    assert_silent(errors);
                    assert_silent(names.read(&hello(DnsProvider::Route53), &object()).await.err());
                }
            }
        }
        let asked: BTreeSet<_> = credentials.ledger().calls().into_keys().collect();
        assert!(asked.contains("instance.credentials"), "{asked:?}");
    }
}

#[test]
fn the_search_finds_a_secret_in_every_form() {
    use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
    for before in ["", "a", "ab", "Bearer ", "user:"] {
        let text = format!("{before}{TOKEN} and more");
        let bytes = text.as_bytes();
        for form in [
            text.clone(),
            BASE64.encode(bytes),
            BASE64URL_NOPAD.encode(bytes),
            HEXLOWER.encode(bytes),
            format!("{bytes:?}"),
            format!("{:?}", Bytes::copy_from_slice(bytes)),
        ] {
            assert!(canary::is_in(&form), "{form}");
        }
    }
    assert!(canary::is_in(&tsig_secret()));
    assert!(!canary::is_in("called the provider call=reserved_ips.list status=200"));
}

/// Runs in a separate process, because its log lines would fail the other tests.
#[test]
fn a_planted_token_is_found() {
    if std::env::var_os("PLANT").is_some() {
        canary::watch();
        tracing::debug!(target: "drivers::http", "called the provider");
        assert_eq!(canary::leaks(), (2, Vec::new()));
        tracing::trace!(target: "drivers::http", authorization = format!("Bearer {TOKEN}"), "called the provider");
        let (lines, leaks) = canary::leaks();
        assert_eq!((lines, leaks.len()), (3, 1), "{leaks:?}");
        tracing::error!(target: "aws_sigv4::http_request", token = TOKEN, "not shown");
        assert_eq!(canary::leaks().0, 3, "lines of an SDK are not in the log");
        return;
    }
    let itself = std::env::current_exe().unwrap();
    let mut alone = std::process::Command::new(itself);
    let alone = alone.args(["--exact", "a_planted_token_is_found"]).env("PLANT", "1").output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stdout));
}
