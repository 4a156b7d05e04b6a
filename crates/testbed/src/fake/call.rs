//! Parsed requests, and the answers that a fake gives to them.
//!
//! In: an HTTP request. Out: the API call that it matches, with the variable parts of its path and its decoded
//! parameters. This module never reads a cloud's state, and never decides whether a call is allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use ::http::{HeaderMap, Request};
use bytes::Bytes;

/// One call of an API, with the variable parts of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The call's name in the vendor's documentation, such as `addresses.aggregatedList`.
    pub name: &'static str,
    /// The variable parts of the path, in order, percent-decoded.
    pub params: Vec<String>,
}

/// A request, parsed as far as every fake needs it.
#[derive(Clone, Debug)]
pub struct Call {
    /// The call that the request matches.
    pub route: Route,
    /// The decoded query parameters. A repeated parameter keeps its last value.
    pub query: BTreeMap<String, String>,
    /// The body as JSON, or null if it is not JSON.
    pub body: serde_json::Value,
    /// The unparsed body.
    pub raw: Bytes,
    /// The request's headers.
    pub headers: HeaderMap,
    /// Whether [`Fault::FailLate`](super::faults::Fault::FailLate) applies: the operation that this call starts fails
    /// at its end.
    pub fails_late: bool,
    /// Whether [`Fault::Overtake`](super::faults::Fault::Overtake) applies: the operation that this call starts ends
    /// at once, before operations that started earlier.
    pub overtakes: bool,
}

/// Why the service refuses a request before the state machine handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The API has no such call.
    NoSuchCall,
    /// The credentials are missing or wrong.
    Unauthorized,
    /// The caller exceeded a rate limit and may retry after this time.
    RateLimited(Duration),
    /// The caller lacks a permission.
    Forbidden(String),
    /// The API fails with this HTTP status code.
    Unavailable(u16),
}

pub(super) const CONTENT_TYPE: &str = "content-type";

/// The answer of a fake.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers. If they contain no content type, the service sends that of JSON.
    pub headers: Vec<(&'static str, String)>,
    /// The body. The service sends null as an empty body.
    pub body: serde_json::Value,
}

impl Answer {
    /// Returns an answer with a JSON body.
    pub fn json(status: u16, body: serde_json::Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    /// Returns an answer with a body that is not JSON, and sets its content type.
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        let headers = vec![(CONTENT_TYPE, content_type.to_owned())];
        Self { status, headers, body: serde_json::Value::String(body.to_owned()) }
    }

    /// Whether the service sends the body verbatim instead of as JSON.
    pub(super) fn is_text(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == CONTENT_TYPE)
    }
}

/// Returns the names in a table of calls.
pub(crate) const fn names<const N: usize>(calls: &[(&str, &str, &'static str); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = calls[at].2;
        at += 1;
    }
    names
}

/// Returns the first call in a table of (method, pattern, name) that matches the request.
pub(crate) fn route_in(calls: &[(&str, &str, &'static str)], request: &Request<Bytes>) -> Option<Route> {
    let mut of_method = calls.iter().filter(|(accepted, ..)| *accepted == request.method().as_str());
    let path = request.uri().path();
    of_method.find_map(|(_, pattern, name)| matches(pattern, path).map(|params| Route { name, params }))
}

/// Matches a path against a pattern such as `v2/reserved_ips/{}/actions`, and returns the variable parts.
pub fn matches(pattern: &str, path: &str) -> Option<Vec<String>> {
    let path: Vec<&str> = path.trim_matches('/').split('/').collect();
    let pattern: Vec<&str> = pattern.split('/').collect();
    if path.len() != pattern.len() {
        return None;
    }
    let mut params = Vec::new();
    for (expected, found) in pattern.into_iter().zip(path) {
        if expected == "{}" {
            params.push(percent_decoded(found));
        } else if expected != found {
            return None;
        }
    }
    Some(params)
}

pub(super) fn query_of(request: &Request<Bytes>) -> BTreeMap<String, String> {
    pairs_of(request.uri().query().unwrap_or_default())
}

/// Decodes the names and values of a query or a form. A repeated name keeps its last value.
pub fn pairs_of(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (percent_decoded(name), percent_decoded(&value.replace('+', " "))))
        .collect()
}

pub(crate) fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_returns_the_variable_parts_of_a_path() {
        assert_eq!(
            matches("v2/ips/{}/actions", "/v2/ips/203.0.113.7/actions"),
            Some(vec!["203.0.113.7".into()])
        );
        assert_eq!(matches("v2/ips/{}", "/v2/ips/a%2Fb"), Some(vec!["a/b".into()]));
        assert_eq!(matches("v2/ips/{}", "/v2/ips"), None);
    }
}
