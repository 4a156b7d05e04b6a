//! Amazon's SDK on our own transport.
//!
//! In: an [`HttpService`], an identity and a clock. Out: what the SDK's clients are made of. Each of their requests goes
//! through the service, so that the fence, the deadline and the budgets hold for it as for every other driver. The SDK signs
//! and parses; it never retries, never waits, and opens no connection of its own.

pub mod addresses;
mod machine_id;
mod recent;
pub mod records;

pub use machine_id::machine_of;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::http::{HeaderName, HeaderValue, Request, header};
use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_ec2::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_async::rt::sleep::{SharedAsyncSleep, TokioSleep};
use aws_smithy_async::time::TimeSource;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::{ConnectorError, SdkError};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use bytes::Bytes;
use tokio::sync::OnceCell;
use tower::{BoxError, ServiceExt};

use crate::http::{HttpService, ReadOnly, USER_AGENT, asked_pause, hide_secrets};
use crate::{DriverError, NotSent, Seconds};

/// Where requests are signed for that have no region, such as those about names.
pub const DEFAULT_REGION: &str = "us-east-1";

/// A refusal of one too many does not say how long to wait. Buckets get several tokens a second.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(2);

/// The id that the SDK makes up for each request and does not sign. It means nothing where nothing is tried twice.
const INVOCATION_ID: HeaderName = HeaderName::from_static("amz-sdk-invocation-id");

/// Who we are at Amazon.
#[derive(Clone)]
pub enum Identity {
    /// Whoever the SDK finds, in its own order: variables, a web identity (IRSA), a container's role (EKS Pod Identity), and
    /// last the role of the machine.
    Found,
    /// The owner of these keys.
    Keys {
        /// The access key's id.
        id: String,
        /// Its secret.
        secret: String,
    },
}

/// An account at Amazon, as far as its services share it.
pub struct Aws {
    service: HttpService,
    identity: Identity,
    region: String,
    endpoint: Option<String>,
    now: Seconds,
    shared: OnceCell<SdkConfig>,
}

impl Aws {
    /// An account over a service. The region is where requests are signed for that have none.
    pub fn new(service: HttpService, identity: Identity, region: &str, now: Seconds) -> Self {
        let region = if region.is_empty() { DEFAULT_REGION } else { region };
        Self { service, identity, region: region.to_owned(), endpoint: None, now, shared: OnceCell::new() }
    }

    /// The same account with all of its services at one address.
    pub fn at(self, endpoint: Option<&str>) -> Self {
        let endpoint = endpoint.filter(|url| !url.is_empty()).map(ToOwned::to_owned);
        Self { endpoint, ..self }
    }

    /// What a client of one service in one region is made of. Limits are counted for each such client on its own.
    pub(crate) async fn client(
        &self,
        region: Option<&str>,
        is_read: fn(&Request<Bytes>) -> bool,
        around: impl FnOnce(HttpService) -> HttpService,
    ) -> SdkConfig {
        let shared = self.shared.get_or_init(|| self.load()).await;
        let transport = Transport { service: around(self.service.clone()), is_read };
        let mut client = shared
            .to_builder()
            .http_client(transport)
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if let Some(region) = region {
            client.set_region(Region::new(region.to_owned()));
        }
        if let Some(endpoint) = &self.endpoint {
            client.set_endpoint_url(Some(endpoint.clone()));
        }
        client.build()
    }

    async fn load(&self) -> SdkConfig {
        let version = BehaviorVersion::v2026_01_12();
        let (region, clock) = (Region::new(self.region.clone()), Clock(Arc::clone(&self.now)));
        match &self.identity {
            // Whoever asks for credentials changes nothing, by whatever method.
            Identity::Found => {
                let transport = Transport { service: self.service.clone(), is_read: |_| true };
                let loader = aws_config::defaults(version).region(region).time_source(clock);
                loader.sleep_impl(TokioSleep::new()).http_client(transport).load().await
            }
            Identity::Keys { id, secret } => {
                let keys = Credentials::new(id, secret, None, None, "keys");
                SdkConfig::builder()
                    .behavior_version(version)
                    .region(region)
                    .time_source(clock)
                    .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
                    .credentials_provider(SharedCredentialsProvider::new(keys))
                    .identity_cache(IdentityCache::no_cache())
                    .build()
            }
        }
    }
}

/// The SDK's clock is ours.
struct Clock(Seconds);

impl TimeSource for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs((self.0)())).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// What the SDK takes for an HTTP client.
#[derive(Clone)]
struct Transport {
    service: HttpService,
    is_read: fn(&Request<Bytes>) -> bool,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

impl HttpClient for Transport {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let longest = settings
            .read_timeout()
            .map(|read| read.saturating_add(settings.connect_timeout().unwrap_or_default()));
        SharedHttpConnector::new(Connector { transport: self.clone(), longest })
    }
}

/// A transport, and how long the SDK waits for an answer where it has an opinion: a machine's own service is asked for a
/// moment only, because outside of Amazon it does not exist.
#[derive(Debug)]
struct Connector {
    transport: Transport,
    longest: Option<Duration>,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (Transport { service, is_read }, longest) = (self.transport.clone(), self.longest);
        HttpConnectorFuture::new(async move {
            let request = ours(request, is_read).map_err(ConnectorError::user)?;
            let answer = service.oneshot(request);
            let answer = match longest {
                None => answer.await,
                Some(longest) => tokio::time::timeout(longest, answer)
                    .await
                    .map_err(|error| ConnectorError::timeout(error.into()))?,
            };
            let answer = answer.map_err(ConnectorError::io)?;
            if is_cut(answer.body()) {
                return Err(ConnectorError::io("the answer is cut off".into()));
            }
            let answer = answer.map(SdkBody::from);
            HttpResponse::try_from(answer).map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}

/// The SDK's request as one of ours.
fn ours(request: HttpRequest, is_read: fn(&Request<Bytes>) -> bool) -> Result<Request<Bytes>, BoxError> {
    let (mut head, body) = request.try_into_http1x()?.into_parts();
    let body = body.bytes().map(Bytes::copy_from_slice).ok_or("the body is not in memory")?;
    head.headers.remove(INVOCATION_ID);
    head.headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    hide_secrets(&mut head.headers);
    let mut request = Request::from_parts(head, body);
    if is_read(&request) {
        request.extensions_mut().insert(ReadOnly);
    }
    Ok(request)
}

/// What a failed call means. The name is that of the permission it takes, such as `ec2:AssociateAddress`.
pub(crate) fn explain<E>(name: &str, error: SdkError<E, HttpResponse>) -> DriverError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let answer = error.raw_response();
    let Some(status) = answer.map(|answer| answer.status().as_u16()) else {
        return no_answer(name, &error);
    };
    let retry_after = answer.and_then(|answer| asked_pause(answer.headers().get("retry-after")?));
    let said = error.as_service_error().map(ProvideErrorMetadata::meta);
    // By Route 53's reference a refused batch has no code, but its name at the beginning.
    let body = answer.and_then(|answer| answer.body().bytes()).unwrap_or_default();
    let code = said.and_then(|said| said.code()).or_else(|| root_of(body)).unwrap_or_default();
    let text = said.and_then(|said| said.message()).unwrap_or("no explanation");
    meaning(name, status, code, text, retry_after)
}

/// Whether a document ends before its outermost element does. The SDK takes such a listing for a whole one.
fn is_cut(xml: &[u8]) -> bool {
    let Some(root) = root_of(xml) else { return false };
    let text = String::from_utf8_lossy(xml);
    let is_empty_element = text.matches('<').count() <= 2 && text.trim_end().ends_with("/>");
    !is_empty_element && !text.trim_end().ends_with(&format!("</{root}>"))
}

/// The name of a document's outermost element.
fn root_of(xml: &[u8]) -> Option<&str> {
    let mut elements =
        std::str::from_utf8(xml).ok()?.split('<').skip(1).filter(|text| !text.starts_with('?'));
    elements.next()?.split(|letter: char| !letter.is_ascii_alphanumeric()).next()
}

/// The error for a request without an answer. Errors of the SDK say what failed, and leave why to their causes.
fn no_answer(name: &str, error: &dyn std::error::Error) -> DriverError {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        if let Some(not_sent) = deeper.downcast_ref::<NotSent>() {
            return DriverError::NotSent(*not_sent);
        }
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    DriverError::Unavailable(format!("{name}: {}", without_secrets(&text)))
}

/// What Amazon says, up to where it repeats too much: what follows the first is for Amazon's own tool that decodes it, and longer than
/// everything else; after the second come the headers of the request, with the session's token.
fn without_secrets(text: &str) -> &str {
    let ends = ["Encoded authorization failure message", "The Canonical String"];
    ends.iter().fold(text, |text, end| text.split(end).next().unwrap_or(text)).trim_end()
}

fn meaning(name: &str, status: u16, code: &str, text: &str, retry_after: Option<Duration>) -> DriverError {
    let text = without_secrets(text);
    let message =
        format!("{name}: {text}{}", if code.is_empty() { String::new() } else { format!(" ({code})") });
    match (status, code) {
        (429, _)
        | (
            _,
            "RequestLimitExceeded"
            | "Throttling"
            | "ThrottlingException"
            | "RequestThrottled"
            | "PriorRequestNotComplete"
            | "SlowDown",
        ) => DriverError::RateLimited { retry_after: retry_after.unwrap_or(RETRY_AFTER_DEFAULT), message },
        (401 | 403, _) | (_, "UnauthorizedOperation" | "AuthFailure" | "AccessDenied" | "OptInRequired") => {
            let named = text.split("to perform: ").nth(1).and_then(|rest| rest.split(' ').next());
            DriverError::Denied { permission: named.unwrap_or(name).into(), message }
        }
        (404, _) => DriverError::NotFound(message),
        (_, code) if code.ends_with(".NotFound") => DriverError::NotFound(message),
        (
            _,
            "Resource.AlreadyAssociated"
            | "InvalidIPAddress.InUse"
            | "IncorrectInstanceState"
            | "IncorrectState"
            | "InvalidChangeBatch",
        ) => DriverError::Conflict(message),
        (400..500, _) => DriverError::Invalid(message),
        (status, _) => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_whole_when_its_outermost_element_is_closed() {
        let whole =
            "<?xml version=\"1.0\"?>\n<List xmlns=\"x\"><item><a/></item><item><b>1</b></item></List>\n";
        assert!(!is_cut(whole.as_bytes()));
        for length in whole.find("<List").unwrap() + 5..whole.len() - 1 {
            assert!(is_cut(&whole.as_bytes()[..length]), "{}", &whole[..length]);
        }
        assert!(!is_cut(b"<?xml version=\"1.0\"?><Done xmlns=\"x\"/>"));
        assert!(!is_cut(b"{\"Code\": \"Success\"}"), "credentials come in another form");
        assert!(!is_cut(b""));
    }

    #[test]
    fn a_refusal_without_a_code_is_named_by_its_outermost_element() {
        let refused =
            b"<?xml version=\"1.0\"?><InvalidChangeBatch xmlns=\"x\"><Messages/></InvalidChangeBatch>";
        assert_eq!(root_of(refused), Some("InvalidChangeBatch"));
    }

    #[test]
    fn a_refusal_means_what_amazon_means_by_it() {
        let kind = |status, code: &str| meaning("ec2:AssociateAddress", status, code, "text", None).kind();
        for (status, code, expected) in [
            (503, "RequestLimitExceeded", "RateLimited"),
            (400, "Throttling", "RateLimited"),
            (429, "", "RateLimited"),
            (503, "Unavailable", "Unavailable"),
            (500, "InternalError", "Unavailable"),
            (200, "", "Unavailable"),
            (403, "UnauthorizedOperation", "Denied"),
            (401, "AuthFailure", "Denied"),
            (403, "ExpiredToken", "Denied"),
            (400, "InvalidAllocationID.NotFound", "NotFound"),
            (404, "NoSuchHostedZone", "NotFound"),
            (400, "Resource.AlreadyAssociated", "Conflict"),
            (400, "InvalidChangeBatch", "Conflict"),
            (400, "AddressLimitExceeded", "Invalid"),
        ] {
            assert_eq!(kind(status, code), expected, "{status} {code}");
        }
    }

    #[test]
    fn a_refusal_does_not_repeat_the_token_that_was_sent() {
        let text = "The request signature we calculated does not match the signature you provided.\n\nThe Canonical \
                    String for this request should have been\n'POST\n/\n\nx-amz-security-token:SECRET\n'";
        let told =
            meaning("route53:ListHostedZonesByName", 403, "SignatureDoesNotMatch", text, None).to_string();
        assert!(told.contains("signature") && !told.contains("SECRET"), "{told}");
        // The same comes by way of an error about credentials.
        let told = no_answer("ec2:DescribeAddresses", &std::io::Error::other(text)).to_string();
        assert!(told.contains("signature") && !told.contains("SECRET"), "{told}");
    }
}
