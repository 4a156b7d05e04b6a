//! The sources of AWS credentials that the SDKs use: the STS exchange of a service account token, the EKS Pod Identity
//! agent, and the instance metadata service of a VM.
//!
//! In: a web identity token and a role, the agent's authorization token, or a session token of the metadata service.
//! Out: temporary credentials. It never checks what the credentials are used for. Its state never changes.

use std::time::Duration;

use ::http::{Request, header};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ledger::Ledger;
use super::limits::Limit;
use super::{Answer, Call, Machine, Refusal, Route, names, pairs_of, route_in, xml};

/// Methods, paths, and names. Only the first name is the vendor's, the others are ours.
const CALLS: [(&str, &str, &str); 5] = [
    ("POST", "", "AssumeRoleWithWebIdentity"),
    ("GET", "v1/credentials", "podIdentity.credentials"),
    ("PUT", "latest/api/token", "instance.token"),
    ("GET", "latest/meta-data/iam/security-credentials", "instance.role"),
    ("GET", "latest/meta-data/iam/security-credentials/{}", "instance.credentials"),
];

/// The names of all calls.
pub const ROUTES: &[&str] = &names(&CALLS);

/// The role of the VM.
const ROLE: &str = "node";

/// One role that a service account, a pod or a VM can assume.
#[derive(Clone, Debug)]
pub struct Sts {
    /// The access key ID in the credentials that clients get.
    pub key: String,
    /// The token that a caller has to present: the web identity token, or the authorization token of the Pod Identity
    /// agent.
    pub proof: String,
    /// The reported lifetime of the credentials.
    pub lifetime: Duration,
    /// The secret access key.
    pub secret: String,
    /// Used twice: as the session token in the credentials, and as the token that the metadata service issues.
    pub session: String,
}

impl Sts {
    /// Returns this access key to callers that present this token.
    pub fn new(key: &str, proof: &str) -> Self {
        Self {
            key: key.to_owned(),
            proof: proof.to_owned(),
            lifetime: Duration::from_secs(3600),
            secret: "secret".to_owned(),
            session: "a-session".to_owned(),
        }
    }

    fn expiration(&self) -> String {
        let now = Timestamp::now().as_second();
        let lifetime = i64::try_from(self.lifetime.as_secs()).unwrap_or(0);
        Timestamp::from_second(now + lifetime).unwrap_or_default().to_string()
    }

    fn assume(&self, call: &Call) -> Answer {
        let asked = pairs_of(&String::from_utf8_lossy(&call.raw));
        let field = |name: &str| asked.get(name).map_or("", String::as_str);
        if field("Action") != "AssumeRoleWithWebIdentity" || !field("RoleArn").starts_with("arn:aws:iam::") {
            return problem(400, "ValidationError", "It is not a request for a role.");
        }
        if field("WebIdentityToken") != self.proof {
            return problem(400, "InvalidIdentityToken", "The token is not one of this issuer.");
        }
        let keys = [
            xml::text("AccessKeyId", &self.key),
            xml::text("SecretAccessKey", &self.secret),
            xml::text("SessionToken", &self.session),
            xml::text("Expiration", &self.expiration()),
        ];
        let body = format!(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
             <AssumeRoleWithWebIdentityResult><Credentials>{}</Credentials></AssumeRoleWithWebIdentityResult>\
             </AssumeRoleWithWebIdentityResponse>",
            keys.concat()
        );
        Answer::text(200, "text/xml", &body)
    }

    fn keys(&self) -> Value {
        json!({
            "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": self.key, "SecretAccessKey": self.secret,
            "Token": self.session, "Expiration": self.expiration(),
        })
    }
}

fn problem(status: u16, code: &str, message: &str) -> Answer {
    let error = format!("{}{}", xml::text("Code", code), xml::text("Message", message));
    Answer::text(status, "text/xml", &format!("<ErrorResponse><Error>{error}</Error></ErrorResponse>"))
}

impl Machine for Sts {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        route_in(&CALLS, request)
    }

    fn limits() -> Vec<Limit> {
        Vec::new()
    }

    fn handle(&mut self, call: &Call, _now: Duration, _ledger: &mut Ledger) -> Answer {
        match call.route.name {
            "AssumeRoleWithWebIdentity" => self.assume(call),
            "instance.token" => {
                let lifetime = "x-aws-ec2-metadata-token-ttl-seconds";
                let seconds = call.headers.get(lifetime).and_then(|value| value.to_str().ok()).unwrap_or("");
                let mut answer =
                    Answer::text(if seconds.is_empty() { 400 } else { 200 }, "text/plain", &self.session);
                answer.headers.extend([(lifetime, seconds.to_owned())]);
                answer
            }
            "instance.role" => Answer::text(200, "text/plain", ROLE),
            "instance.credentials" if call.route.params != [ROLE] => self.refuse(&Refusal::NoSuchCall),
            _ => Answer::json(200, self.keys()),
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        match refusal {
            Refusal::Unauthorized => Answer::text(401, "text/plain", ""),
            Refusal::Unavailable(status) => Answer::text(*status, "text/plain", ""),
            _ => Answer::text(404, "text/plain", ""),
        }
    }

    /// The metadata service requires its session token. The Pod Identity agent requires the authorization token.
    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        let is = |name: &str, value: &str| request.headers().get(name).is_some_and(|found| found == value);
        match request.uri().path() {
            path if path.starts_with("/latest/meta-data") => is("x-aws-ec2-metadata-token", &self.session),
            "/v1/credentials" => is(header::AUTHORIZATION.as_str(), &self.proof),
            _ => true,
        }
    }
}
