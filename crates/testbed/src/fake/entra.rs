//! The sources of Azure access tokens that the identity libraries use: the token endpoint of Microsoft Entra ID, and
//! the managed identity endpoint of a VM.
//!
//! In: a client secret, a federated token, or the header `Metadata: true`. Out: an access token and its lifetime. It
//! never checks what a token is used for. Its state never changes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use ::http::{Request, header};
use bytes::Bytes;
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::limits::Limit;
use super::{Answer, Call, Machine, Refusal, Route, names, percent_decoded, route_in};

/// Methods, paths, and names. The vendor has no names for them, so the names are ours.
const CALLS: [(&str, &str, &str); 3] = [
    ("GET", "{}/v2.0/.well-known/openid-configuration", "entra.openidConfiguration"),
    ("POST", "{}/oauth2/v2.0/token", "entra.token"),
    ("GET", "metadata/identity/oauth2/token", "managedIdentity.token"),
];

/// The names of all calls.
pub const ROUTES: &[&str] = &names(&CALLS);

/// The `client_assertion_type` of a federated token.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// One tenant with one identity. It can also be the managed identity of a VM.
#[derive(Clone, Debug)]
pub struct Entra {
    /// The access token that clients get.
    pub token: String,
    /// The reported lifetime of the token.
    pub token_lifetime: Duration,
    tenant: String,
    client: String,
    /// The client secret or federated token of the identity.
    secret: String,
}

impl Entra {
    /// Creates a tenant that returns the given token to the client with this secret.
    pub fn new(tenant: &str, client: &str, secret: &str, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            token_lifetime: Duration::from_secs(3599),
            tenant: tenant.to_owned(),
            client: client.to_owned(),
            secret: secret.to_owned(),
        }
    }

    fn openid_configuration(&self, call: &Call) -> Answer {
        let host = call.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let tenant = &self.tenant;
        let at = |path: &str| format!("https://{host}/{tenant}/{path}");
        Answer::json(
            200,
            json!({
                "issuer": at("v2.0"),
                "authorization_endpoint": at("oauth2/v2.0/authorize"),
                "device_authorization_endpoint": at("oauth2/v2.0/devicecode"),
                "token_endpoint": at("oauth2/v2.0/token"),
                "jwks_uri": at("discovery/v2.0/keys"),
                "response_modes_supported": ["query", "fragment", "form_post"],
                "subject_types_supported": ["pairwise"],
            }),
        )
    }

    fn exchange(&self, call: &Call) -> Answer {
        let form = form_of(&call.raw);
        let field = |name: &str| form.get(name).map_or("", String::as_str);
        if field("grant_type") != "client_credentials" || !field("scope").contains("/.default") {
            return problem(400, "invalid_request", 900_144, "The request body is not one for a token.");
        }
        if field("client_id") != self.client {
            let message = format!("Application with identifier '{}' was not found.", field("client_id"));
            return problem(400, "unauthorized_client", 700_016, &message);
        }
        let is_federated = field("client_assertion_type") == ASSERTION_TYPE;
        let proof = if is_federated { field("client_assertion") } else { field("client_secret") };
        if proof != self.secret {
            return problem(401, "invalid_client", 7_000_215, "Invalid client secret provided.");
        }
        let seconds = self.token_lifetime.as_secs();
        Answer::json(
            200,
            json!({
                "token_type": "Bearer",
                "expires_in": seconds,
                "ext_expires_in": seconds,
                "access_token": self.token,
            }),
        )
    }

    fn managed_identity_token(&self, call: &Call) -> Answer {
        let query = |name: &str| call.query.get(name).map(String::as_str);
        let Some(resource) = query("resource") else {
            return problem(400, "invalid_request", 90_014, "Required query variable 'resource' is missing");
        };
        if query("client_id").is_some_and(|client| client != self.client) {
            return problem(400, "invalid_request", 0, "Identity not found");
        }
        let seconds = self.token_lifetime.as_secs();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        // The real endpoint sends these numbers as strings.
        Answer::json(
            200,
            json!({
                "access_token": self.token,
                "client_id": self.client,
                "expires_in": seconds.to_string(),
                "expires_on": (now + seconds).to_string(),
                "ext_expires_in": seconds.to_string(),
                "not_before": now.to_string(),
                "resource": resource,
                "token_type": "Bearer",
            }),
        )
    }
}

fn problem(status: u16, error: &str, code: u32, message: &str) -> Answer {
    let description = format!("AADSTS{code}: {message}");
    Answer::json(status, json!({ "error": error, "error_description": description, "error_codes": [code] }))
}

/// Decodes the fields of a form.
fn form_of(body: &Bytes) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(body).replace('+', " ");
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (percent_decoded(name), percent_decoded(value))).collect()
}

impl Machine for Entra {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        route_in(&CALLS, request)
    }

    fn limits() -> Vec<Limit> {
        Vec::new()
    }

    fn handle(&mut self, call: &Call, _now: Duration, _ledger: &mut Ledger) -> Answer {
        if call.route.params.first().is_some_and(|tenant| *tenant != self.tenant) {
            return problem(400, "invalid_request", 90_002, "Tenant not found.");
        }
        match call.route.name {
            "entra.openidConfiguration" => self.openid_configuration(call),
            "entra.token" => self.exchange(call),
            _ => self.managed_identity_token(call),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        match refusal {
            Refusal::Unauthorized => {
                problem(400, "invalid_request", 0, "Required metadata header not specified")
            }
            Refusal::Unavailable(status) => Answer::json(*status, Value::Null),
            _ => problem(404, "invalid_request", 0, "There is no such path."),
        }
    }

    /// The managed identity endpoint requires a header that a forged request (SSRF) can't usually set.
    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let is_marked = request.headers().get("metadata").is_some_and(|value| value == "true");
        !request.uri().path().starts_with("/metadata") || is_marked
    }
}
