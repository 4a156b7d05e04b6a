//! Hostile text in every field of an object or a node, for every driver.
//!
//! Each test first runs a driver with an ordinary value on its fake cloud and records the shape of every request: host,
//! path, parameters and headers, with the value replaced by a placeholder. Then it runs the driver with hostile values.
//! If a request has another shape, it goes to another resource than intended, or contains something unintended. Another
//! test gives the drivers responses with an unexpected body.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

mod support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use drivers::NotSent;
use drivers::azure::addresses::Azure;
use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::digitalocean::records::Records;
use drivers::google::addresses::Compute;
use drivers::http::{HttpService, with_deadline};
use drivers::record::{RecordChange, RecordDriver};
use drivers::rfc2136::records::{MessageService, Rfc2136};
use drivers::{AddressDriver, DriverError, Polled, Progress, machine_of, tokens};
use hickory_proto::op::{Message, OpCode};
use hickory_proto::rr::Name;
use http::{HeaderMap, Request, Response};
use plan::{Address, DnsProvider, Provider, RecordKind, RecordName, RecordSet, Scope, VmId};
use testbed::fake::{Fake, Machine, azure, cloudflare, compute, digitalocean};
use tower::ServiceExt;

use support::{address, hello, object, scope, set};

const TOKEN: &str = "token";
const ADDRESS: &str = "203.0.113.10";
const OTHER: &str = "203.0.113.20";
const PLACEHOLDER: &str = "VALUE";
const TAG: &str = "the-tag";

/// Texts with a special meaning in a URL, a header, a form, a document or a DNS message.
fn hostile() -> Vec<String> {
    let texts = [
        "",
        ".",
        "..",
        "../x",
        "../../x",
        "a/../b",
        "a/b",
        "/a",
        "a/",
        "%2e%2e",
        "%2f..%2fx",
        "..%2f",
        "%",
        "%zz",
        "%00",
        "a?b=c",
        "?",
        "a#b",
        "#",
        "a&b=c",
        "&",
        "a=b",
        "a;b",
        "a+b",
        "+",
        "a b",
        " ",
        "a\tb",
        "a\nb",
        "a\r\nx-evil: 1\r\n\r\nGET /x HTTP/1.1",
        "a\0b",
        "a\\b",
        "\\..\\x",
        "\\046",
        "@evil.invalid",
        "evil.invalid/",
        "x@evil.invalid#",
        ":80",
        "//evil.invalid/x",
        "http://evil.invalid/",
        "ünï.example",
        "\u{202e}txt",
        "\u{ff0e}\u{ff0e}",
        "a\"b",
        "a'b",
        "<a>&lt;</a>",
        "]]>",
        "{}",
        "{a}",
        "${a}",
        "a|b",
        "a^b`c",
        "-",
        "*",
        "_",
        "a..b",
        ".a",
        "a.",
    ];
    let long = [64, 254, 70_000].map(|length| "a".repeat(length));
    texts.into_iter().map(Into::into).chain(long).chain(["../".repeat(1_000)]).collect()
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Replaces the value by a placeholder, where it stands alone or with a prefix or number that a driver adds.
fn replaced(text: &str, value: &str) -> String {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    let numbered =
        |name: &str| text.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')).is_some_and(is_number);
    match text.strip_prefix("_owner-a.") {
        _ if text == value => PLACEHOLDER.to_owned(),
        Some(marked) if marked == value => format!("_owner-a.{PLACEHOLDER}"),
        _ if numbered(value) => format!("{PLACEHOLDER}-N"),
        _ if numbered(TAG) => format!("{TAG}-N"),
        _ => text.to_owned(),
    }
}

fn pairs(text: &str, value: &str) -> Vec<String> {
    let pair = |pair: &str| {
        let (name, content) = pair.split_once('=').unwrap_or((pair, "no value"));
        let content = decoded(&content.replace('+', " "));
        // The page that a request reads does not depend on the value, so the shape does not contain it.
        let content = match name {
            "page" | "pageToken" => "any".to_owned(),
            _ => replaced(&content, value),
        };
        format!("{}={content}", decoded(name))
    };
    text.split('&').filter(|text| !text.is_empty()).map(pair).collect()
}

/// The shape of a request.
fn shape(request: &Request<Bytes>, value: &str) -> String {
    let uri = request.uri();
    // An empty part of a path does not stand for an empty value: it changes the path.
    let part = |part: &str| if part.is_empty() { String::new() } else { replaced(&decoded(part), value) };
    let path: Vec<_> = uri.path().split('/').map(part).collect();
    assert!(!path[1..].iter().any(|part| part == "." || part == ".."), "{uri} leaves its path");
    let query = pairs(uri.query().unwrap_or_default(), value);
    let mut headers: Vec<_> = request.headers().iter().map(|(name, _)| name.as_str()).collect();
    headers.sort();
    let kind = request.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let body = String::from_utf8_lossy(request.body());
    let body = match kind {
        _ if body.is_empty() => Vec::new(),
        "application/x-www-form-urlencoded" => pairs(&body, value),
        "application/json" => {
            serde_json::from_str::<serde_json::Value>(&body).unwrap();
            Vec::new()
        }
        _ => {
            let tags =
                body.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default().to_owned());
            tags.collect()
        }
    };
    let (method, host) = (request.method(), uri.authority().map(|host| host.as_str()).unwrap_or_default());
    format!("{method} {host} {path:?} {query:?} {headers:?} {body:?}")
}

type Answers = BTreeMap<String, VecDeque<(u16, HeaderMap, Bytes)>>;

/// A service that records the shape of each request, with and without the placeholder, and the response.
fn recorder<M: Machine>(fake: &Fake<M>, value: &str, answers: &Arc<Mutex<Answers>>) -> HttpService {
    let (fake, value, answers) = (fake.clone(), value.to_owned(), Arc::clone(answers));
    let send = move |request: Request<Bytes>| {
        let shapes = [shape(&request, &value), shape(&request, "no such value")];
        let (fake, answers) = (fake.clone(), Arc::clone(&answers));
        async move {
            let answer = HttpService::new(fake.service()).oneshot(request).await?;
            let (head, body) = answer.into_parts();
            for shape in BTreeSet::from(shapes) {
                let response = (head.status.as_u16(), head.headers.clone(), body.clone());
                answers.lock().unwrap().entry(shape).or_default().push_back(response);
            }
            Ok(Response::from_parts(head, body))
        }
    };
    with_deadline(HttpService::new(tower::service_fn(send)))
}

/// A service that replays the recorded responses to requests of the same shape, and records all other requests as
/// violations. If `renames` is set, the responses contain the hostile value instead of the ordinary one.
fn replayer(
    value: &str,
    answers: Answers,
    renames: Option<&'static str>,
    violations: &Arc<Mutex<Vec<String>>>,
) -> HttpService {
    let (value, violations) = (value.to_owned(), Arc::clone(violations));
    let answers = Arc::new(Mutex::new(answers));
    let send = move |request: Request<Bytes>| {
        let (answers, violations, value) = (Arc::clone(&answers), Arc::clone(&violations), value.clone());
        async move {
            let shape = shape(&request, &value);
            let mut answers = answers.lock().unwrap();
            let Some(recorded) = answers.get_mut(&shape) else {
                let line = format!("{value:?}: {} {}", request.method(), request.uri());
                violations.lock().unwrap().push(line.chars().take(300).collect());
                return Err("unexpected request".into());
            };
            let (status, headers, body) = recorded.front().cloned().unwrap();
            if recorded.len() > 1 {
                recorded.pop_front();
            }
            let body = match renames {
                Some(ordinary) => {
                    let is_json = body.starts_with(b"{");
                    let escaped = if is_json {
                        serde_json::to_string(&value).unwrap().trim_matches('"').to_owned()
                    } else {
                        value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
                    };
                    Bytes::from(String::from_utf8_lossy(&body).replace(ordinary, &escaped))
                }
                None => body,
            };
            let mut answer = Response::builder().status(status).body(body).unwrap();
            *answer.headers_mut() = headers;
            Ok(answer)
        }
    };
    with_deadline(HttpService::new(tower::service_fn(send)))
}

/// The arguments of the calls.
#[derive(Clone)]
struct About {
    scope: Scope,
    vm: VmId,
    region: String,
    tag: String,
}

/// Makes every call of an address driver, as far as possible.
async fn exercise(driver: &dyn AddressDriver, about: &About) {
    let About { scope, vm, region, tag } = about;
    let (ours, machines) = (BTreeSet::from([address(ADDRESS)]), BTreeSet::from([vm.clone()]));
    _ = driver.list(scope).await;
    _ = driver.list_one_by_one(scope, &ours, &machines).await;
    _ = driver.machines(scope).await;
    advance(driver, async || driver.attach(scope, address(ADDRESS), vm).await).await;
    advance(driver, async || driver.replace(scope, address(ADDRESS), vm).await).await;
    advance(driver, async || driver.detach(scope, address(ADDRESS), vm).await).await;
    advance(driver, async || driver.restore(scope, address(ADDRESS), vm).await).await;
    _ = driver.create(scope, region, Some(tag)).await;
    _ = driver.create(scope, region, None).await;
    advance(driver, async || driver.release(scope, address(OTHER), "tag").await).await;
}

async fn advance(driver: &dyn AddressDriver, mut step: impl AsyncFnMut() -> Result<Progress, DriverError>) {
    for _ in 0..6 {
        let operation = match step().await {
            Ok(Progress::Underway(operation)) => operation,
            Err(DriverError::NotSent(NotSent { wait })) => {
                tokio::time::sleep(wait).await;
                continue;
            }
            _ => return,
        };
        for _ in 0..20 {
            match driver.poll(std::slice::from_ref(&operation)).await.remove(0) {
                Ok(Polled::StillUnderway) => tokio::time::sleep(Duration::from_secs(1)).await,
                _ => break,
            }
        }
    }
}

/// Runs a driver with an ordinary value on its fake cloud, then with each hostile value.
async fn try_hostile<M: Machine, D>(
    fake: impl Fn() -> Fake<M>,
    driver: impl Fn(HttpService) -> D,
    ordinary: &'static str,
    renames: bool,
    values: &[String],
    run: impl AsyncFn(&D, &str),
) {
    let answers = Arc::default();
    run(&driver(recorder(&fake(), ordinary, &answers)), ordinary).await;
    let answers = answers.lock().unwrap().clone();
    assert!(!answers.is_empty(), "no request was sent with {ordinary}");
    let violations = Arc::default();
    for value in values {
        let renames = renames.then_some(ordinary);
        run(&driver(replayer(value, answers.clone(), renames, &violations)), value).await;
    }
    let violations = violations.lock().unwrap();
    assert!(violations.is_empty(), "hostile values instead of {ordinary}: {violations:#?}");
}

mod addresses {
    use super::*;

    fn project() -> Fake<compute::Compute> {
        let mut project = compute::Compute::new("the-project", TOKEN);
        project.add_instance_without_address("us-west1-a", "the-machine");
        project.add_address("us-west1", "ours", ADDRESS);
        project.add_address("us-west1", "other", OTHER);
        Fake::new(project)
    }

    fn at_google(service: HttpService) -> Compute {
        Compute::new(service, "http://compute.invalid/compute/v1/", tokens::fixed(TOKEN))
    }

    fn about_google(project: &str, zone: &str, machine: &str, region: &str, tag: &str) -> About {
        let scope = scope(Provider::Gcp, project);
        let vm = format!("{project}/{zone}/{machine}").into();
        About { scope, vm, region: region.into(), tag: tag.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn hostile_text_does_not_redirect_google_requests() {
        let ordinary = ["the-project", "us-west1-a", "the-machine", "us-west1", TAG];
        for (at, value) in ordinary.into_iter().enumerate() {
            try_hostile(project, at_google, value, false, &hostile(), async |driver, value| {
                let mut parts = ordinary;
                parts[at] = value;
                let [project, zone, machine, region, tag] = parts;
                exercise(driver, &about_google(project, zone, machine, region, tag)).await;
            })
            .await;
        }
    }

    fn subscription() -> Fake<azure::Azure> {
        let mut subscription = azure::Azure::new("the-subscription", "the-group", TOKEN);
        subscription.add_machine("the-machine", "westeurope");
        subscription.add_address("ours", "westeurope", ADDRESS);
        subscription.add_address("other", "westeurope", OTHER);
        Fake::new(subscription)
    }

    fn at_azure(service: HttpService) -> Azure {
        Azure::new(service, "http://azure.invalid", tokens::fixed(TOKEN), Some("the-group".into()))
    }

    fn about_azure(subscription: &str, machine: &str, region: &str, tag: &str) -> About {
        let scope = scope(Provider::Azure, subscription);
        let vm = format!("{subscription}/the-group/{machine}").into();
        About { scope, vm, region: region.into(), tag: tag.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn hostile_text_does_not_redirect_azure_requests() {
        let ordinary = ["the-subscription", "the-machine", "westeurope", TAG];
        for (at, value) in ordinary.into_iter().enumerate() {
            try_hostile(subscription, at_azure, value, false, &hostile(), async |driver, value| {
                let mut parts = ordinary;
                parts[at] = value;
                let [subscription, machine, region, tag] = parts;
                exercise(driver, &about_azure(subscription, machine, region, tag)).await;
            })
            .await;
        }
    }

    fn account() -> Fake<digitalocean::DigitalOcean> {
        let mut account = digitalocean::DigitalOcean::new(TOKEN);
        account.add_droplet(1, "one", "nyc3");
        account.add_reserved_ip(ADDRESS, "nyc3");
        account.add_reserved_ip(OTHER, "nyc3");
        Fake::new(account)
    }

    fn at_digitalocean(service: HttpService) -> DigitalOcean {
        DigitalOcean::new(service, "http://digitalocean.invalid/", tokens::fixed(TOKEN))
    }

    fn about_digitalocean(account: &str, droplet: &str, region: &str, tag: &str) -> About {
        let scope = scope(Provider::DigitalOcean, account);
        About { scope, vm: droplet.into(), region: region.into(), tag: tag.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn hostile_text_does_not_redirect_digitalocean_requests() {
        let ordinary = ["", "1", "nyc3", TAG];
        for (at, value) in ordinary.into_iter().enumerate() {
            try_hostile(account, at_digitalocean, value, false, &hostile(), async |driver, value| {
                let mut parts = ordinary;
                parts[at] = value;
                let [account, droplet, region, tag] = parts;
                exercise(driver, &about_digitalocean(account, droplet, region, tag)).await;
            })
            .await;
        }
    }

    #[cfg(feature = "aws")]
    mod at_amazon {
        use super::*;
        use crate::support::aws;
        use drivers::aws::addresses::Ec2;
        use testbed::fake::ec2 as cloud;
        use testbed::moto::KEY;

        pub(super) fn account() -> Fake<cloud::Ec2> {
            let mut account = cloud::Ec2::new(KEY);
            account.add_instance_without_address("us-east-1", "i-1");
            account.add_address("us-east-1", ADDRESS);
            account.add_address("us-east-1", OTHER);
            Fake::new(account)
        }

        pub(super) fn driver(service: HttpService) -> Ec2 {
            aws::ec2(service, "secret", Duration::from_secs(1))
        }

        pub(super) fn about(region: &str, instance: &str, tag: &str) -> About {
            let scope = scope(Provider::Aws, region);
            let vm = format!("{region}/{instance}").into();
            About { scope, vm, region: region.into(), tag: tag.into() }
        }

        #[tokio::test(start_paused = true)]
        async fn hostile_text_does_not_redirect_aws_requests() {
            let instances: Vec<_> = hostile().into_iter().map(|text| format!("i-{text}")).collect();
            for (at, value, values) in
                [(0, "us-east-1", hostile()), (1, "i-1", instances), (2, TAG, hostile())]
            {
                try_hostile(account, driver, value, false, &values, async |driver, value| {
                    let mut parts = ["us-east-1", "i-1", TAG];
                    parts[at] = value;
                    let [region, instance, tag] = parts;
                    exercise(driver, &about(region, instance, tag)).await;
                })
                .await;
            }
        }
    }

    /// A kubelet can set any providerID when it registers its node.
    #[tokio::test(start_paused = true)]
    async fn a_hostile_provider_id_does_not_redirect_requests() {
        let run = async |driver: &dyn AddressDriver, provider: Provider, id: &str, region: &str| {
            let Some((scope, vm)) = machine_of(id) else { return };
            assert_eq!(scope.provider, provider, "{id}");
            exercise(driver, &About { scope, vm, region: region.into(), tag: TAG.into() }).await;
        };
        try_hostile(project, at_google, "the-project", false, &hostile(), async |driver, value| {
            run(driver, Provider::Gcp, &format!("gce://{value}/us-west1-a/the-machine"), "us-west1").await;
        })
        .await;
        try_hostile(project, at_google, "the-machine", false, &hostile(), async |driver, value| {
            run(driver, Provider::Gcp, &format!("gce://the-project/us-west1-a/{value}"), "us-west1").await;
        })
        .await;
        let lower: Vec<_> = hostile().into_iter().map(|text| text.to_lowercase()).collect();
        try_hostile(subscription, at_azure, "the-subscription", false, &lower, async |driver, value| {
            let group = format!("azure:///subscriptions/{value}/resourceGroups/the-group");
            let id = format!("{group}/providers/Microsoft.Compute/virtualMachines/the-machine");
            run(driver, Provider::Azure, &id, "westeurope").await;
        })
        .await;
        try_hostile(account, at_digitalocean, "1", false, &hostile(), async |driver, value| {
            run(driver, Provider::DigitalOcean, &format!("digitalocean://{value}"), "nyc3").await;
        })
        .await;
        #[cfg(feature = "aws")]
        try_hostile(at_amazon::account, at_amazon::driver, "us", false, &hostile(), async |driver, value| {
            let id = format!("aws:///{value}-east-1a/i-1");
            run(driver, Provider::Aws, &id, &format!("{value}-east-1")).await;
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_domain_scoped_project_id_is_accepted() {
        let mut old = compute::Compute::new("example.com:old-project", TOKEN);
        old.add_address("us-west1", "ours", ADDRESS);
        let driver = at_google(HttpService::new(Fake::new(old).service()));
        let (scope, _) = machine_of("gce://example.com:old-project/us-west1-a/edge_1").unwrap();
        assert!(driver.list(&scope).await.unwrap().addresses.contains_key(&address(ADDRESS)));
    }
}

mod names {
    use super::*;

    fn named(provider: DnsProvider, zone: &str, name: &str) -> RecordName {
        RecordName { provider, zone: zone.into(), name: name.into(), kind: RecordKind::A }
    }

    /// Publishes two values, changes them, and deletes the name, as far as possible. Returns the errors.
    async fn exercise(driver: &dyn RecordDriver, name: &RecordName) -> Vec<DriverError> {
        let mut errors = Vec::new();
        for new in [set(&["203.0.113.1", "203.0.113.2"]), set(&["203.0.113.3"]), RecordSet::default()] {
            let old = match driver.read(name, &object()).await {
                Ok(old) => old,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            let change = RecordChange { name: name.clone(), object: object(), old, new };
            errors.extend(driver.write(&change).await.err());
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        errors
    }

    /// Tries hostile zones, and hostile names in an ordinary zone.
    async fn try_both<M: Machine, D: RecordDriver>(
        provider: DnsProvider,
        fake: impl Fn() -> Fake<M> + Copy,
        driver: impl Fn(HttpService) -> D + Copy,
    ) {
        try_hostile(fake, driver, "example.com", true, &hostile(), async |driver, zone| {
            exercise(driver, &named(provider, zone, "hello.example.com")).await;
        })
        .await;
        try_hostile(fake, driver, "hello.example.com", true, &hostile(), async |driver, name| {
            exercise(driver, &named(provider, "example.com", name)).await;
        })
        .await;
    }

    fn domains() -> Fake<digitalocean::DigitalOcean> {
        let mut account = digitalocean::DigitalOcean::new(TOKEN);
        account.add_domain("example.com");
        Fake::new(account)
    }

    fn at_digitalocean(service: HttpService) -> Records {
        Records::new(service, "http://digitalocean.invalid/", tokens::fixed(TOKEN))
    }

    #[tokio::test(start_paused = true)]
    async fn hostile_text_does_not_redirect_digitalocean_requests() {
        try_both(DnsProvider::DigitalOcean, domains, at_digitalocean).await;
    }

    fn zones() -> Fake<cloudflare::Cloudflare> {
        let mut account = cloudflare::Cloudflare::new(TOKEN);
        account.add_zone("example.com");
        Fake::new(account)
    }

    fn at_cloudflare(service: HttpService) -> Cloudflare {
        Cloudflare::new(service, "http://cloudflare.invalid/client/v4", tokens::fixed(TOKEN))
    }

    #[tokio::test(start_paused = true)]
    async fn hostile_text_does_not_redirect_requests_to_cloudflare() {
        // A zone without a dot is an ID, which is part of the path.
        let id: &'static str = zones().with(|account| account.add_zone("example.org")).leak();
        let with_both = || {
            let fake = zones();
            fake.with(|account| account.add_zone("example.org"));
            fake
        };
        let (names, ids): (Vec<_>, Vec<_>) = hostile().into_iter().partition(|text| text.contains('.'));
        let name = |zone: &str, name: &str| named(DnsProvider::Cloudflare, zone, name);
        try_hostile(with_both, at_cloudflare, "example.com", true, &names, async |driver, zone| {
            exercise(driver, &name(zone, "hello.example.com")).await;
        })
        .await;
        try_hostile(with_both, at_cloudflare, id, false, &ids, async |driver, zone| {
            exercise(driver, &name(zone, "hello.example.org")).await;
        })
        .await;
        let ordinary = "hello.example.com";
        try_hostile(with_both, at_cloudflare, ordinary, true, &hostile(), async |driver, text| {
            exercise(driver, &name("example.com", text)).await;
        })
        .await;
    }

    #[cfg(feature = "aws")]
    #[tokio::test(start_paused = true)]
    async fn hostile_text_does_not_redirect_route53_requests() {
        use testbed::fake::route53;
        use testbed::moto::KEY;

        let fake = || {
            let mut account = route53::Route53::new(KEY);
            account.add_zone("example.com");
            Fake::new(account)
        };
        let driver = |service| crate::support::aws::route53(service, "secret");
        try_both(DnsProvider::Route53, fake, driver).await;
    }

    #[tokio::test(start_paused = true)]
    async fn names_with_underscores_and_wildcards_are_published() {
        for name in ["*.apps.example.com", "_sip_1.example.com", "example.com", "a-b.c.example.com"] {
            let fake = domains();
            let driver = at_digitalocean(HttpService::new(fake.service()));
            assert_eq!(exercise(&driver, &named(DnsProvider::DigitalOcean, "example.com", name)).await, []);
            let states = fake.ledger().values_of(name);
            assert!(states.len() > 2 && states.last().unwrap().1.is_empty(), "{name}: {states:?}");
            let fake = zones();
            let driver = at_cloudflare(HttpService::new(fake.service()));
            assert_eq!(exercise(&driver, &named(DnsProvider::Cloudflare, "example.com", name)).await, []);
            assert!(!fake.ledger().values_of(name).is_empty(), "{name}");
        }
    }

    /// A server without records that accepts everything and stores the messages it receives.
    fn server(heard: &Arc<Mutex<Vec<Message>>>) -> Rfc2136 {
        let heard = Arc::clone(heard);
        let send = move |bytes: Bytes| {
            let heard = Arc::clone(&heard);
            async move {
                let message = Message::from_vec(&bytes)?;
                let mut answer = Message::response(message.id, message.op_code);
                answer.metadata.authoritative = true;
                heard.lock().unwrap().push(message);
                Ok(Bytes::from(answer.to_vec()?))
            }
        };
        Rfc2136::new(MessageService::new(tower::service_fn(send)), None, Arc::new(|| 1_767_225_600))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hostile_name_is_rejected_or_sent_unchanged() {
        for (is_zone, text) in hostile().into_iter().flat_map(|text| [(true, text.clone()), (false, text)]) {
            let heard = Arc::default();
            let driver = server(&heard);
            let [zone, name] = if is_zone { [&*text, "hello.example.com"] } else { ["example.com", &*text] };
            let errors = exercise(&driver, &named(DnsProvider::Rfc2136, zone, name)).await;
            let is_refused = |error: &DriverError| matches!(error, DriverError::Invalid(_));
            assert!(errors.iter().all(is_refused), "{text:?}: {errors:?}");
            let parsed = |text: &str| {
                let mut name = Name::from_ascii(text).ok()?;
                name.set_fqdn(true);
                Some(name)
            };
            for message in heard.lock().unwrap().iter() {
                let meant = [name, &*format!("_owner-a.{name}")];
                let meant: Vec<_> = meant.into_iter().filter_map(&parsed).collect();
                assert_eq!(message.queries.len(), 1, "{text:?}");
                match message.op_code {
                    OpCode::Update => {
                        assert_eq!(Some(message.queries[0].name()), parsed(zone).as_ref(), "{text:?}");
                        let mut records = message.answers.iter().chain(&message.authorities);
                        assert!(records.all(|record| meant.contains(&record.name)), "{text:?}");
                    }
                    _ => assert!(meant.contains(message.queries[0].name()), "{text:?}"),
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_too_large_for_a_dns_message_is_rejected() {
        let (heard, name) = (Arc::default(), named(DnsProvider::Rfc2136, "example.com", "hello.example.com"));
        let many: BTreeSet<_> =
            (0..5_000_u32).map(|at| Address(std::net::Ipv4Addr::from(at).into())).collect();
        let long = RecordSet { owner: Some("o".repeat(300).into()), ..set(&["203.0.113.1"]) };
        for new in [RecordSet { values: many, ..set(&[]) }, long] {
            let change =
                RecordChange { name: name.clone(), object: object(), old: RecordSet::default(), new };
            let error = server(&heard).write(&change).await.unwrap_err();
            assert!(matches!(error, DriverError::Invalid(_)), "{error}");
        }
        assert!(heard.lock().unwrap().is_empty(), "nothing was sent");
    }
}

/// A provider that gives every request this response.
fn provider(body: &'static str) -> HttpService {
    let answer = move |_: Request<Bytes>| async move {
        let answer = Response::builder().header("content-type", "application/json");
        Ok(answer.body(Bytes::from(body)).unwrap())
    };
    HttpService::new(tower::service_fn(answer))
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_no_object_is_an_error_and_stops_no_driver() {
    let (url, token) = ("http://provider.invalid", || tokens::fixed(TOKEN));
    for body in ["[]", "\"x\"", "true", "1", "null", "[[]]"] {
        let addresses: [(Provider, Box<dyn AddressDriver>); 3] = [
            (Provider::Gcp, Box::new(Compute::new(provider(body), url, token()))),
            (Provider::Azure, Box::new(Azure::new(provider(body), url, token(), None))),
            (Provider::DigitalOcean, Box::new(DigitalOcean::new(provider(body), url, token()))),
        ];
        for (provider, driver) in addresses {
            let scope = scope(provider, "account");
            assert!(driver.list(&scope).await.is_err(), "{provider}: {body}");
            assert!(driver.machines(&scope).await.is_err(), "{provider}: {body}");
        }
        let records: [(DnsProvider, Box<dyn RecordDriver>); 2] = [
            (DnsProvider::DigitalOcean, Box::new(Records::new(provider(body), url, token()))),
            (DnsProvider::Cloudflare, Box::new(Cloudflare::new(provider(body), url, token()))),
        ];
        for (provider, driver) in records {
            assert!(driver.read(&hello(provider), &object()).await.is_err(), "{provider}: {body}");
        }
    }
}
