//! The AWS SDK on the HTTP transport of this crate.
//!
//! In: an [`HttpService`], an identity and a clock. Out: the configuration of SDK clients. The clients send their
//! requests through the service, so the fence, the deadline and the rate limits apply as in every other driver. The SDK
//! signs requests, parses responses, and opens no connections. In a driver's call, the SDK never retries and never
//! waits. It retries only requests for credentials.

pub mod addresses;
mod machine_id;
mod recent;
pub mod records;

pub use machine_id::machine_of;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
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

use crate::budget::Counting;
use crate::http::{HttpService, ReadOnly, USER_AGENT, asked_pause, contains, hide_secrets};
use crate::{DriverError, NotSent, Seconds};

/// The region for signing requests that have no region, for example to Route 53.
pub const DEFAULT_REGION: &str = "us-east-1";

/// The wait if a throttling error has no `Retry-After`. AWS refills its token buckets several times a second.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(2);

/// The codes with which AWS reports too many requests.
const THROTTLED: [&str; 6] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "PriorRequestNotComplete",
    "SlowDown",
];

/// AWS reports too many requests with a code in the body. Each client has its own limits.
pub(crate) fn counting() -> Counting {
    let is_throttled = |response: &Response<Bytes>| {
        // Route 53 refuses a second change of a zone while the first is in flight. Other zones are not affected.
        let codes = THROTTLED.iter().filter(|code| **code != "PriorRequestNotComplete");
        let is_coded = |code: &str| contains(response, &format!("<Code>{code}</Code>"));
        let may_be = matches!(response.status().as_u16(), 400 | 503);
        response.status() == StatusCode::TOO_MANY_REQUESTS || (may_be && codes.copied().any(is_coded))
    };
    Counting { is_throttled, ..Counting::default() }
}

/// A random ID that the SDK adds to each request and does not sign. The driver removes it, because the ID serves only
/// to identify retries.
const INVOCATION_ID: HeaderName = HeaderName::from_static("amz-sdk-invocation-id");

/// The credentials for AWS.
#[derive(Clone)]
pub enum Identity {
    /// The SDK's default chain: environment variables, a web identity (IRSA), a container's role (EKS Pod Identity),
    /// then the role of the instance.
    Found,
    /// An access key.
    Keys {
        /// The ID of the access key.
        id: String,
        /// The secret of the access key.
        secret: String,
    },
}

/// What the clients of all AWS services share: connections, credentials, default region and endpoint.
pub struct Aws {
    service: HttpService,
    identity: Identity,
    region: String,
    endpoint: Option<String>,
    now: Seconds,
    shared: OnceCell<SdkConfig>,
}

impl Aws {
    /// Creates the configuration. `region` is used to sign requests that have no region; if it is empty,
    /// [`DEFAULT_REGION`] is used.
    pub fn new(service: HttpService, identity: Identity, region: &str, now: Seconds) -> Self {
        let region = if region.is_empty() { DEFAULT_REGION } else { region };
        Self { service, identity, region: region.to_owned(), endpoint: None, now, shared: OnceCell::new() }
    }

    /// Overrides the endpoint URL of all services.
    pub fn at(self, endpoint: Option<&str>) -> Self {
        let endpoint = endpoint.filter(|url| !url.is_empty()).map(ToOwned::to_owned);
        Self { endpoint, ..self }
    }

    /// The configuration of a client for one service in one region. Each client has its own rate limits.
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
            // Requests for credentials change nothing, whatever their method, so they count as reads.
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

/// Makes the SDK use the clock of this crate.
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

/// The HTTP client that the SDK uses.
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

/// A transport with the timeout that the SDK sets, if any. The SDK asks the instance metadata service with a short
/// timeout, because outside of AWS that service does not exist.
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
                return Err(ConnectorError::io("the response is truncated".into()));
            }
            let answer = answer.map(SdkBody::from);
            HttpResponse::try_from(answer).map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}

/// Converts a request of the SDK to one for the [`HttpService`].
fn ours(request: HttpRequest, is_read: fn(&Request<Bytes>) -> bool) -> Result<Request<Bytes>, BoxError> {
    let (mut head, body) = request.try_into_http1x()?.into_parts();
    let body =
        body.bytes().map(Bytes::copy_from_slice).ok_or("requests with a streamed body are not supported")?;
    head.headers.remove(INVOCATION_ID);
    head.headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    hide_secrets(&mut head.headers);
    let mut request = Request::from_parts(head, body);
    if is_read(&request) {
        request.extensions_mut().insert(ReadOnly);
    }
    Ok(request)
}

/// Converts an SDK error to a [`DriverError`]. `name` is the permission that the call needs, for example
/// `ec2:AssociateAddress`.
pub(crate) fn explain<E>(name: &str, error: SdkError<E, HttpResponse>) -> DriverError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let answer = error.raw_response();
    let Some(status) = answer.map(|answer| answer.status().as_u16()) else {
        return no_answer(name, &error);
    };
    let retry_after = answer.and_then(|answer| asked_pause(answer.headers().get("retry-after")?));
    let metadata = error.as_service_error().map(ProvideErrorMetadata::meta);
    // For a rejected change batch, Route 53 returns no error code. The root element of the body has the code as its
    // name.
    let body = answer.and_then(|answer| answer.body().bytes()).unwrap_or_default();
    let code = metadata.and_then(|metadata| metadata.code()).or_else(|| root_of(body)).unwrap_or_default();
    let text = metadata.and_then(|metadata| metadata.message()).unwrap_or("no error message");
    meaning(name, status, code, text, retry_after)
}

/// Whether an XML document ends before its root element does. The SDK would accept a truncated listing as complete.
fn is_cut(xml: &[u8]) -> bool {
    let Some(root) = root_of(xml) else { return false };
    let text = String::from_utf8_lossy(xml);
    let is_empty_element = text.matches('<').count() <= 2 && text.trim_end().ends_with("/>");
    !is_empty_element && !text.trim_end().ends_with(&format!("</{root}>"))
}

/// The name of the root element of an XML document.
fn root_of(xml: &[u8]) -> Option<&str> {
    let mut elements =
        std::str::from_utf8(xml).ok()?.split('<').skip(1).filter(|text| !text.starts_with('?'));
    elements.next()?.split(|letter: char| !letter.is_ascii_alphanumeric()).next()
}

/// The error for a request without a response. SDK errors say what failed; the reason is in the chain of their sources.
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

/// Cuts an AWS error message before the parts that must not be reported: the encoded authorization message, which is
/// long and only readable with `aws sts decode-authorization-message`, and the canonical string, which contains the
/// request headers with the session token.
fn without_secrets(text: &str) -> &str {
    let ends = ["Encoded authorization failure message", "The Canonical String"];
    ends.iter().fold(text, |text, end| text.split(end).next().unwrap_or(text)).trim_end()
}

fn meaning(name: &str, status: u16, code: &str, text: &str, retry_after: Option<Duration>) -> DriverError {
    let text = without_secrets(text);
    let message =
        format!("{name}: {text}{}", if code.is_empty() { String::new() } else { format!(" ({code})") });
    match (status, code) {
        (status, code) if status == 429 || THROTTLED.contains(&code) => {
            DriverError::RateLimited { retry_after: retry_after.unwrap_or(RETRY_AFTER_DEFAULT), message }
        }
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
    fn a_document_is_complete_if_its_root_element_is_closed() {
        let whole =
            "<?xml version=\"1.0\"?>\n<List xmlns=\"x\"><item><a/></item><item><b>1</b></item></List>\n";
        assert!(!is_cut(whole.as_bytes()));
        for length in whole.find("<List").unwrap() + 5..whole.len() - 1 {
            assert!(is_cut(&whole.as_bytes()[..length]), "{}", &whole[..length]);
        }
        assert!(!is_cut(b"<?xml version=\"1.0\"?><Done xmlns=\"x\"/>"));
        assert!(!is_cut(b"{\"Code\": \"Success\"}"), "credentials are JSON");
        assert!(!is_cut(b""));
    }

    #[test]
    fn an_error_without_a_code_takes_it_from_the_root_element() {
        let refused =
            b"<?xml version=\"1.0\"?><InvalidChangeBatch xmlns=\"x\"><Messages/></InvalidChangeBatch>";
        assert_eq!(root_of(refused), Some("InvalidChangeBatch"));
    }

    #[test]
    fn aws_error_codes_map_to_driver_errors() {
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
    fn an_error_message_does_not_contain_the_session_token() {
        let text = "The request signature we calculated does not match the signature you provided.\n\nThe Canonical \
                    String for this request should have been\n'POST\n/\n\nx-amz-security-token:SECRET\n'";
        let message =
            meaning("route53:ListHostedZonesByName", 403, "SignatureDoesNotMatch", text, None).to_string();
        assert!(message.contains("signature") && !message.contains("SECRET"), "{message}");
        // An error about credentials can contain the same text.
        let message = no_answer("ec2:DescribeAddresses", &std::io::Error::other(text)).to_string();
        assert!(message.contains("signature") && !message.contains("SECRET"), "{message}");
    }
}
