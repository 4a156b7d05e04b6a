//! The metadata server of a Compute Engine VM, as far as Google's authentication libraries use it.
//!
//! In: requests with the header `Metadata-Flavor: Google`, sent to the host in `GCE_METADATA_HOST`. Out: an access
//! token, the service account and its scopes, the universe domain and the project. Like the real server, it checks
//! nothing but that header. Its state never changes.

use std::time::Duration;

use ::http::{Method, Request};
use bytes::Bytes;
use serde_json::json;

use super::ledger::Ledger;
use super::limits::Limit;
use super::{Answer, Call, Machine, Refusal, Route, matches};

const FLAVOR_HEADER: &str = "metadata-flavor";
const FLAVOR: &str = "Google";
const TEXT: &str = "application/text";
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The calls of the server and their paths. The vendor has no names for them, so the names are ours.
const PATHS: &[(&str, &str)] = &[
    ("metadata.root", ""),
    ("metadata.serviceAccount", "computeMetadata/v1/instance/service-accounts/{}"),
    ("metadata.token", "computeMetadata/v1/instance/service-accounts/{}/token"),
    ("metadata.email", "computeMetadata/v1/instance/service-accounts/{}/email"),
    ("metadata.scopes", "computeMetadata/v1/instance/service-accounts/{}/scopes"),
    ("metadata.universeDomain", "computeMetadata/v1/universe/universe-domain"),
    ("metadata.projectId", "computeMetadata/v1/project/project-id"),
];

/// The names of all calls.
pub const ROUTES: &[&str] = &[
    "metadata.root",
    "metadata.serviceAccount",
    "metadata.token",
    "metadata.email",
    "metadata.scopes",
    "metadata.universeDomain",
    "metadata.projectId",
];

/// The state of one VM's metadata server.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// The email address of the service account. It does not end in `gserviceaccount.com`: for such an account,
    /// Google's libraries ask IAM on the internet for its regional access boundary.
    pub email: String,
    /// The access token that the server returns.
    pub token: String,
    /// The lifetime of the token that the server reports.
    pub token_lifetime: Duration,
    project: String,
}

impl Metadata {
    /// Creates a server that returns the given token.
    pub fn new(project: &str, token: &str) -> Self {
        Self {
            email: format!("controller@{project}.example"),
            token: token.to_owned(),
            token_lifetime: Duration::from_secs(3599),
            project: project.to_owned(),
        }
    }

    fn service_account(&self, call: &Call) -> Answer {
        if call.query.get("recursive").is_none_or(|recursive| recursive != "true") {
            return Answer::text(200, TEXT, "aliases\nemail\nidentity\nscopes\ntoken\n");
        }
        Answer::json(200, json!({ "aliases": ["default"], "email": self.email, "scopes": [SCOPE] }))
    }

    fn token(&self) -> Answer {
        let expires_in = self.token_lifetime.as_secs();
        let body = json!({ "access_token": self.token, "expires_in": expires_in, "token_type": "Bearer" });
        Answer::json(200, body)
    }
}

impl Machine for Metadata {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        if request.method() != Method::GET {
            return None;
        }
        let path = request.uri().path();
        PATHS.iter().find_map(|(name, pattern)| matches(pattern, path).map(|params| Route { name, params }))
    }

    fn limits() -> Vec<Limit> {
        Vec::new()
    }

    fn handle(&mut self, call: &Call, _now: Duration, _ledger: &mut Ledger) -> Answer {
        let account = call.route.params.first();
        if account.is_some_and(|account| account != "default" && *account != self.email) {
            return self.refuse(&Refusal::NoSuchCall);
        }
        let answer = match call.route.name {
            "metadata.root" => Answer::text(200, TEXT, "0.1/\ncomputeMetadata/\n"),
            "metadata.serviceAccount" => self.service_account(call),
            "metadata.token" => self.token(),
            "metadata.email" => Answer::text(200, TEXT, &self.email),
            "metadata.scopes" => Answer::text(200, TEXT, &format!("{SCOPE}\n")),
            "metadata.universeDomain" => Answer::text(200, TEXT, "googleapis.com"),
            "metadata.projectId" => Answer::text(200, TEXT, &self.project),
            _ => return self.refuse(&Refusal::NoSuchCall),
        };
        flavored(answer)
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        let (status, text) = match refusal {
            Refusal::NoSuchCall => (404, "The requested URL was not found on this server."),
            Refusal::Unauthorized => (403, "Missing Metadata-Flavor:Google header."),
            Refusal::Forbidden(_) => (403, "Your client does not have permission to get this URL."),
            Refusal::RateLimited(_) => (429, "Too many requests."),
            Refusal::Unavailable(status) => (*status, "The service is unavailable."),
        };
        flavored(Answer::text(status, "text/html; charset=UTF-8", text))
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        request.headers().get(FLAVOR_HEADER).is_some_and(|flavor| flavor == FLAVOR)
    }
}

/// Adds the header by which a client recognizes a metadata server.
fn flavored(mut answer: Answer) -> Answer {
    answer.headers.push((FLAVOR_HEADER, FLAVOR.to_owned()));
    answer
}

#[cfg(test)]
mod tests {
    use ::http::Response;
    use tower::Service;

    use super::super::Fake;
    use super::*;

    const DEFAULT: &str = "/computeMetadata/v1/instance/service-accounts/default";

    async fn get(path: &str, flavor: Option<&str>) -> Response<String> {
        let mut request = Request::get(format!("http://metadata{path}"));
        if let Some(flavor) = flavor {
            request = request.header("Metadata-Flavor", flavor);
        }
        let fake = Fake::new(Metadata::new("p", "secret"));
        let answer = fake.service().call(request.body(Bytes::new()).unwrap()).await.unwrap();
        answer.map(|body| String::from_utf8(body.to_vec()).unwrap())
    }

    async fn text(path: &str) -> String {
        let answer = get(path, Some("Google")).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["metadata-flavor"], "Google");
        assert_eq!(answer.headers()["content-type"], "application/text");
        answer.into_body()
    }

    #[test]
    fn routes_lists_every_path() {
        assert_eq!(PATHS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ROUTES);
    }

    #[tokio::test]
    async fn a_token_is_json_with_its_type_and_lifetime() {
        let answer = get(&format!("{DEFAULT}/token?scopes=x"), Some("Google")).await;
        assert_eq!(answer.headers()["content-type"], "application/json; charset=utf-8");
        let token: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
        assert_eq!(token, json!({ "access_token": "secret", "expires_in": 3599, "token_type": "Bearer" }));
    }

    #[tokio::test]
    async fn plain_values_are_text() {
        assert_eq!(text(&format!("{DEFAULT}/email")).await, "controller@p.example");
        assert_eq!(text(&format!("{DEFAULT}/scopes")).await, format!("{SCOPE}\n"));
        assert_eq!(text("/computeMetadata/v1/universe/universe-domain").await, "googleapis.com");
        assert_eq!(text("/computeMetadata/v1/project/project-id").await, "p");
        assert!(text("/").await.contains("computeMetadata/"));
    }

    #[tokio::test]
    async fn the_account_is_readable_as_default_and_by_email() {
        for account in ["default", "controller@p.example"] {
            let path = format!("/computeMetadata/v1/instance/service-accounts/{account}/?recursive=true");
            let answer = get(&path, Some("Google")).await;
            let account: serde_json::Value = serde_json::from_str(answer.body()).unwrap();
            assert_eq!(account["email"], "controller@p.example");
            assert_eq!(account["scopes"], json!([SCOPE]));
        }
        assert!(text(&format!("{DEFAULT}/")).await.contains("token"));
    }

    #[tokio::test]
    async fn a_request_without_the_flavor_header_is_refused() {
        for flavor in [None, Some("Other")] {
            assert_eq!(get(&format!("{DEFAULT}/token"), flavor).await.status(), 403);
        }
    }

    #[tokio::test]
    async fn an_unknown_account_or_path_is_not_found() {
        for path in
            ["/computeMetadata/v1/instance/service-accounts/other/token", "/computeMetadata/v1/nothing"]
        {
            assert_eq!(get(path, Some("Google")).await.status(), 404);
        }
    }
}
