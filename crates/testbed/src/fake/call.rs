//! Requests as machines see them, and what machines answer.
//!
//! In: an HTTP request. Out: which of an API's calls it is, with the variable parts of its path and its parameters decoded. It
//! never looks at a cloud's state, and never decides whether a call is allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use ::http::{HeaderMap, Request};
use bytes::Bytes;

/// One of an API's calls, with the variable parts of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The call's name in the vendor's documentation, such as `addresses.aggregatedList`.
    pub name: &'static str,
    /// The variable parts of the path, in order, percent-decoded.
    pub params: Vec<String>,
}

/// A request, parsed as far as every machine needs it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which call it is.
    pub route: Route,
    /// The query's parameters, decoded. A repeated parameter keeps its last value.
    pub query: BTreeMap<String, String>,
    /// The body as JSON, or null where it is none.
    pub body: serde_json::Value,
    /// The body as it came.
    pub raw: Bytes,
    /// The request's headers.
    pub headers: HeaderMap,
    /// Set by a [`Fault::FailLate`](super::faults::Fault::FailLate): the operation that this call starts will fail when it ends.
    pub fails_late: bool,
    /// Set by a [`Fault::Overtake`](super::faults::Fault::Overtake): the operation that this call starts ends at once, before those begun earlier.
    pub overtakes: bool,
}

/// Why a request is refused before the machine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such call.
    NoSuchCall,
    /// No or wrong credentials.
    Unauthorized,
    /// A limit was exceeded; the caller may come back after this long.
    RateLimited(Duration),
    /// The caller lacks a permission.
    Forbidden(String),
    /// The API is having a bad day; the status code says how.
    Unavailable(u16),
}

pub(super) const CONTENT_TYPE: &str = "content-type";

/// A machine's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Headers. The content type is JSON's unless one is among them.
    pub headers: Vec<(&'static str, String)>,
    /// The body; null is sent as no body at all.
    pub body: serde_json::Value,
}

impl Answer {
    /// An answer with a JSON body.
    pub fn json(status: u16, body: serde_json::Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    /// An answer with a body that is not JSON; the content type among the headers says so.
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        let headers = vec![(CONTENT_TYPE, content_type.to_owned())];
        Self { status, headers, body: serde_json::Value::String(body.to_owned()) }
    }

    /// Whether the body is sent as it is instead of as JSON.
    pub(super) fn is_text(&self) -> bool {
        self.headers.iter().any(|(name, _)| *name == CONTENT_TYPE)
    }
}

/// The names in a table of calls.
pub(crate) const fn names<const N: usize>(calls: &[(&str, &str, &'static str); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = calls[at].2;
        at += 1;
    }
    names
}

/// The first call of a table of methods, patterns and names that a request is.
pub(crate) fn route_in(calls: &[(&str, &str, &'static str)], request: &Request<Bytes>) -> Option<Route> {
    let mut of_method = calls.iter().filter(|(accepted, ..)| *accepted == request.method().as_str());
    let path = request.uri().path();
    of_method.find_map(|(_, pattern, name)| matches(pattern, path).map(|params| Route { name, params }))
}

/// Matches a path against a pattern such as `v2/reserved_ips/{}/actions`, and gives the variable parts.
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

/// Names and values as a query or a form has them, decoded. A repeated name keeps its last value.
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
    fn a_pattern_gives_the_variable_parts_of_a_path() {
        assert_eq!(
            matches("v2/ips/{}/actions", "/v2/ips/203.0.113.7/actions"),
            Some(vec!["203.0.113.7".into()])
        );
        assert_eq!(matches("v2/ips/{}", "/v2/ips/a%2Fb"), Some(vec!["a/b".into()]));
        assert_eq!(matches("v2/ips/{}", "/v2/ips"), None);
    }
}
