//! A client for JSON APIs over an [`HttpService`].
//!
//! In: the name, method, path and body of a call. Out: the parsed response, or a [`DriverError`] with the provider's
//! message. The client adds the token and percent-encodes every value in a path. It never retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use crate::tokens::Tokens;
use crate::{DriverError, NotSent};

/// What drivers send requests through: the network in production, a fake cloud in tests.
pub type HttpService = BoxCloneSyncService<Request<Bytes>, Response<Bytes>, BoxError>;

/// The deadline of a call. A call without a response by then has an unknown outcome.
pub const CALL_SECONDS_MAX: u64 = 10;

pub(crate) const USER_AGENT: &str = concat!("ip-address-controller/", env!("CARGO_PKG_VERSION"));

/// Marks a request that changes nothing although its method is not GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOnly;

/// Whether a request changes nothing: it is a GET, or it is marked with [`ReadOnly`]. Every other request may be a
/// change.
pub fn is_read<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET || request.extensions().get::<ReadOnly>().is_some()
}

/// Adds a deadline to every request. Time that a request waits for the rate limit does not count.
pub fn with_deadline(service: HttpService) -> HttpService {
    let send = move |request: Request<Bytes>| {
        let service = service.clone();
        async move {
            let longest = Duration::from_secs(CALL_SECONDS_MAX);
            match tokio::time::timeout(longest, service.oneshot(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(BoxError::from(format!("no response within {CALL_SECONDS_MAX} s"))),
            }
        }
    };
    BoxCloneSyncService::new(tower::service_fn(send))
}

/// Whether the body of a response contains a text.
pub(crate) fn contains(response: &Response<Bytes>, text: &str) -> bool {
    String::from_utf8_lossy(response.body()).contains(text)
}

/// Characters that are not percent-encoded, because no server gives them a meaning in a path or query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'*')
    .remove(b':')
    .remove(b'(')
    .remove(b')');

/// The maximum length of a path with its query. Servers reject longer ones.
const PATH_BYTES_MAX: usize = 16_384;

/// How many characters of a rejected value an error quotes.
const QUOTED_CHARS_MAX: usize = 64;

/// The path and query of a request.
///
/// Only the code writes `/`, `?`, `&` and `=`: they are in the template, and every value is percent-encoded. So
/// whatever text an object or a node contains, a request reaches the resource that the template names. Some values
/// can't be one part of a path: an empty one, and `.` and `..`, which servers resolve even when they are encoded. With
/// such a value, [`JsonApi`] rejects the call.
#[derive(Clone, Debug, Default)]
pub struct Path {
    text: String,
    refused: Option<String>,
}

impl Path {
    /// Fills a template such as `v2/domains/{}/records?name={}`.
    pub fn new(template: &'static str, values: &[&(dyn fmt::Display + Sync)]) -> Self {
        Self::default().and(template, values)
    }

    /// The path of a resource ID from the provider, such as `/subscriptions/s/resourceGroups/g`. Each segment of the ID
    /// is percent-encoded.
    pub fn of_id(id: &str) -> Self {
        id.trim_start_matches('/').split('/').fold(Self::default(), |path, part| {
            let template = if path.text.is_empty() { "{}" } else { "/{}" };
            path.and(template, &[&part])
        })
    }

    /// A path that is already encoded: one that was made here before, or a link from the provider.
    pub fn encoded(text: &str) -> Self {
        let path = text.split(['?', '#']).next().unwrap_or_default();
        // Links from a provider may contain `//`, which is harmless.
        let refused = path.split('/').filter(|part| !part.is_empty()).find_map(|part| {
            let part = percent_decode_str(part).decode_utf8_lossy();
            refusal(&part)
        });
        Self { text: text.to_owned(), refused }
    }

    /// Appends a template to the path.
    pub fn and(mut self, template: &'static str, values: &[&(dyn fmt::Display + Sync)]) -> Self {
        let mut pieces = template.split("{}");
        self.text.push_str(pieces.next().unwrap_or_default());
        for (piece, value) in pieces.zip(values) {
            let value = value.to_string();
            let is_in_query = self.text.contains('?');
            self.refused = self.refused.or_else(|| refusal(&value).filter(|_| !is_in_query));
            self.text.extend(utf8_percent_encode(&value, PLAIN));
            self.text.push_str(piece);
        }
        self
    }

    /// Fails if the path contains a value that is not allowed, or is too long.
    fn check(&self) -> Result<(), DriverError> {
        match &self.refused {
            Some(why) => Err(DriverError::Invalid(why.clone())),
            None if self.text.len() > PATH_BYTES_MAX => {
                let start = quoted(&self.text);
                Err(DriverError::Invalid(format!(
                    "the URL path that starts with {start} is longer than {PATH_BYTES_MAX} bytes"
                )))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A value as errors quote it: its start, without characters that would break a log line or a condition.
pub(crate) fn quoted(value: &str) -> String {
    let start: String = value.chars().take(QUOTED_CHARS_MAX).collect();
    let end = if start.len() < value.len() { "…" } else { "" };
    format!("{}{end}", start.escape_debug())
}

/// The reason why a value can't be one part of a path. `None` if it can.
fn refusal(value: &str) -> Option<String> {
    matches!(value, "" | "." | "..")
        .then(|| format!("{value:?} can't be part of a path in the provider's API"))
}

/// A JSON API at a base URL.
#[derive(Clone)]
pub struct JsonApi {
    service: HttpService,
    base: String,
    tokens: Arc<dyn Tokens>,
    explain: Explain,
}

/// Converts an error response to the named call to a [`DriverError`].
pub type Explain = fn(name: &str, refused: &Refused) -> DriverError;

/// A response with an error status.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// The response headers.
    pub headers: HeaderMap,
    /// The response body. Null if it is not JSON.
    pub body: Value,
}

impl JsonApi {
    /// Creates a client. The base URL may have a trailing slash.
    pub fn new(service: HttpService, base: &str, tokens: Arc<dyn Tokens>, explain: Explain) -> Self {
        Self { service, base: base.trim_end_matches('/').to_owned(), tokens, explain }
    }

    /// Makes one call. `name` is the name of the call in the provider's documentation. It appears in logs and errors.
    pub async fn call<T: DeserializeOwned>(
        &self,
        name: &str,
        method: Method,
        path: &Path,
        body: Option<Value>,
    ) -> Result<T, DriverError> {
        Ok(self.call_with_headers(name, method, path, HeaderMap::new(), body).await?.1)
    }

    /// Like [`call`](Self::call), with additional request headers. Also returns the response headers.
    pub async fn call_with_headers<T: DeserializeOwned>(
        &self,
        name: &str,
        method: Method,
        path: &Path,
        headers: HeaderMap,
        body: Option<Value>,
    ) -> Result<(HeaderMap, T), DriverError> {
        path.check()?;
        let answer = self.exchange(method, path, headers, body).await;
        let answer = answer.map_err(|error| no_answer(name, &error))?;
        let status = answer.status();
        tracing::debug!(call = name, status = status.as_u16(), "called the provider");
        let (head, body) = answer.into_parts();
        if !status.is_success() {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let refused = Refused { status: status.as_u16(), headers: head.headers, body };
            return Err((self.explain)(name, &refused));
        }
        // If the body of a successful response can't be parsed, the call may have taken effect, so the outcome is
        // unknown. 202 and 204 need no body.
        let needs_none = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) && body.is_empty();
        let body = if needs_none { b"null" } else { &body[..] };
        let body = serde_json::from_slice(body).map_err(|error| unreadable(name, &error))?;
        Ok((head.headers, body))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &Path,
        headers: HeaderMap,
        body: Option<Value>,
    ) -> Result<Response<Bytes>, BoxError> {
        let token =
            tokio::time::timeout(Duration::from_secs(CALL_SECONDS_MAX), self.tokens.token()).await??;
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.base))
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)?;
        request.headers_mut().extend(headers);
        hide_secrets(request.headers_mut());
        self.service.clone().oneshot(request).await
    }
}

/// Headers that carry credentials.
const SECRET_HEADERS: [&str; 5] = [
    "authorization",
    "proxy-authorization",
    "x-amz-security-token",
    "x-aws-ec2-metadata-token",
    "x-identity-header",
];

/// Marks headers with credentials as sensitive, so that printing a request shows `Sensitive` instead.
pub(crate) fn hide_secrets(headers: &mut HeaderMap) {
    for name in SECRET_HEADERS {
        if let Some(value) = headers.get_mut(name) {
            value.set_sensitive(true);
        }
    }
}

/// The error for a request without a response. A request that was not sent has changed nothing.
pub fn no_answer(name: &str, error: &BoxError) -> DriverError {
    match error.downcast_ref::<NotSent>() {
        Some(not_sent) => DriverError::NotSent(*not_sent),
        None => DriverError::Unavailable(format!("{name}: {error}")),
    }
}

/// The error for a response that the driver does not understand.
pub fn unreadable(name: &str, why: &dyn std::fmt::Display) -> DriverError {
    DriverError::Unavailable(format!("{name}: unexpected response: {why}"))
}

/// The error for a new resource that the driver requested but can't read. Whatever the cause, the resource may exist.
pub fn unseen(what: &str, error: &DriverError) -> DriverError {
    DriverError::Unavailable(format!("{what} was requested and may exist, but can't be read: {error}"))
}

impl Refused {
    /// The wait that the `Retry-After` header asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers)
    }
}

/// The maximum wait that a provider can ask for. Some callers shorten the wait further.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// A header with a number.
pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<usize> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// The wait that the `Retry-After` header of a response asks for.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    asked_pause(headers.get(header::RETRY_AFTER)?.to_str().ok()?)
}

/// Parses the value of a `Retry-After` header in seconds, limited to [`RETRY_AFTER_MAX`]. Dates are ignored: no
/// provider here sends one, and each driver has a default.
pub(crate) fn asked_pause(value: &str) -> Option<Duration> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    // A number that overflows is a very large one.
    let seconds = is_number.then(|| value.parse().unwrap_or(u64::MAX))?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_within_its_part_of_a_path() {
        let path = |value: &str| Path::new("v2/{}/records?name={}&type=A", &[&value, &value]);
        for (value, expected) in [
            ("example.com", "v2/example.com/records?name=example.com&type=A"),
            ("*.apps_1", "v2/*.apps_1/records?name=*.apps_1&type=A"),
            ("a/../b", "v2/a%2F..%2Fb/records?name=a%2F..%2Fb&type=A"),
            ("a?b#c&d=e", "v2/a%3Fb%23c%26d%3De/records?name=a%3Fb%23c%26d%3De&type=A"),
            ("%2e%2e", "v2/%252e%252e/records?name=%252e%252e&type=A"),
            ("a b\r\n\0ü", "v2/a%20b%0D%0A%00%C3%BC/records?name=a%20b%0D%0A%00%C3%BC&type=A"),
        ] {
            let path = path(value);
            assert_eq!(path.to_string(), expected);
            assert_eq!(path.check(), Ok(()), "{value:?}");
        }
        for value in ["", ".", ".."] {
            assert_eq!(path(value).check().map_err(|error| error.kind()), Err("Invalid"), "{value:?}");
            assert_eq!(Path::new("zones?name={}", &[&value]).check(), Ok(()), "{value:?} is a value");
        }
        assert!(path(&"a".repeat(PATH_BYTES_MAX)).check().is_err());
    }

    #[test]
    fn an_id_or_a_link_can_not_escape_its_path() {
        assert_eq!(Path::of_id("/subscriptions/s/a b").to_string(), "subscriptions/s/a%20b");
        assert!(Path::of_id("/subscriptions/../b").check().is_err());
        assert!(Path::of_id("/subscriptions//b").check().is_err());
        let link = "subscriptions/s/x?api-version=1&$skiptoken=a%2F..";
        assert_eq!(Path::encoded(link).to_string(), link);
        assert_eq!(Path::encoded(link).check(), Ok(()));
        for link in ["s/../b", "s/%2e%2E/b", "s/./b?c"] {
            assert!(Path::encoded(link).check().is_err(), "{link}");
        }
    }

    #[test]
    fn retry_after_is_limited_to_an_hour() {
        let asked = |value: &str| asked_pause(value).map(|pause| pause.as_secs());
        assert_eq!([asked("0"), asked("7"), asked("3600"), asked("3601")], [0, 7, 3_600, 3_600].map(Some));
        assert_eq!([asked("18446744073709551615"), asked("99999999999999999999999")], [Some(3_600); 2]);
        for junk in ["", "-1", "+1", "1.5", "1e9", "soon", "Fri, 31 Dec 9999 23:59:59 GMT", "１"] {
            assert_eq!(asked(junk), None, "{junk:?}");
        }
    }
}
