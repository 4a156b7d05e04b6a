//! One JSON API behind one HTTP service: authorisation, deadline, and errors that keep what the cloud said.

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt};

use crate::DriverError;
use crate::budget::NotSent;
use crate::tokens::Tokens;

/// What drivers speak through: the network in production, a fake's state machine in tests.
pub type HttpService = BoxCloneSyncService<Request<Bytes>, Response<Bytes>, BoxError>;

/// The longest that one call may take. A call without an answer by then has an unknown outcome.
pub const CALL_SECONDS_MAX: u64 = 10;

pub(crate) const USER_AGENT: &str = concat!("ip-address-controller/", env!("CARGO_PKG_VERSION"));

/// Marks a request that changes nothing, though its method does not say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOnly;

/// Whether a request changes nothing: its method says so, or whoever made it. Everything else may be a change.
pub fn is_read<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET || request.extensions().get::<ReadOnly>().is_some()
}

/// Gives every request a deadline. What waits for its turn before it is sent does not count.
pub fn with_deadline(service: HttpService) -> HttpService {
    let send = move |request: Request<Bytes>| {
        let service = service.clone();
        async move {
            let longest = Duration::from_secs(CALL_SECONDS_MAX);
            match tokio::time::timeout(longest, service.oneshot(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(BoxError::from(format!("no answer within {CALL_SECONDS_MAX} s"))),
            }
        }
    };
    BoxCloneSyncService::new(tower::service_fn(send))
}

/// A JSON API at a base URL.
#[derive(Clone)]
pub struct JsonApi {
    service: HttpService,
    base: String,
    tokens: Arc<dyn Tokens>,
    explain: Explain,
}

/// What a vendor's refusal of the named call means.
pub type Explain = fn(name: &str, refused: &Refused) -> DriverError;

/// An answer that is not a success.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// The answer's headers.
    pub headers: HeaderMap,
    /// The answer's body; null where it was no JSON.
    pub body: Value,
}

impl JsonApi {
    /// An API at a base URL, with or without a trailing slash.
    pub fn new(service: HttpService, base: &str, tokens: Arc<dyn Tokens>, explain: Explain) -> Self {
        Self { service, base: base.trim_end_matches('/').to_owned(), tokens, explain }
    }

    /// Makes one call. `name` is the call's name in the vendor's documentation and appears in logs and errors.
    pub async fn call<T: DeserializeOwned>(
        &self,
        name: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, DriverError> {
        Ok(self.call_with_headers(name, method, path, HeaderMap::new(), body).await?.1)
    }

    /// The same with headers that say more about the call, and with those that say more about the answer.
    pub async fn call_with_headers<T: DeserializeOwned>(
        &self,
        name: &str,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Option<Value>,
    ) -> Result<(HeaderMap, T), DriverError> {
        let answer = self.exchange(method, path, headers, body).await;
        let answer = answer.map_err(|error| no_answer(name, &error))?;
        let status = answer.status();
        tracing::debug!(call = name, status = status.as_u16(), "asked the cloud");
        let (head, body) = answer.into_parts();
        if !status.is_success() {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let refused = Refused { status: status.as_u16(), headers: head.headers, body };
            return Err((self.explain)(name, &refused));
        }
        // A success whose body can't be read may have changed something, and says nothing about what is. One that needs no
        // body says nothing more than that.
        let needs_none = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) && body.is_empty();
        let body = if needs_none { b"null" } else { &body[..] };
        let body = serde_json::from_slice(body).map_err(|error| unreadable(name, &error))?;
        Ok((head.headers, body))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
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
        self.service.clone().oneshot(request).await
    }
}

/// The error for a request without an answer. One that was not even sent has changed nothing.
pub fn no_answer(name: &str, error: &BoxError) -> DriverError {
    match error.downcast_ref::<NotSent>() {
        Some(not_sent) => DriverError::NotSent(*not_sent),
        None => DriverError::Unavailable(format!("{name}: {error}")),
    }
}

/// The error for an answer that makes no sense.
pub fn unreadable(name: &str, why: &dyn std::fmt::Display) -> DriverError {
    DriverError::Unavailable(format!("{name}: the answer can't be read: {why}"))
}

/// The error for something that was asked for and can't be looked at: whatever is wrong with that, it may have been made.
pub fn unseen(what: &str, error: &DriverError) -> DriverError {
    DriverError::Unavailable(format!("{what} was asked for, and can't be looked at: {error}"))
}

impl Refused {
    /// How long the `Retry-After` header asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers)
    }
}

/// How long an answer's `Retry-After` header asks to wait.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
