//! The errors of the API, in the format and the words of the real one.
//!
//! In: what is wrong. Out: the answer with its body, or the `error` inside a failed operation.

use serde_json::{Value, json};

use super::super::Answer;

/// An error that the API returns at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: u16,
    domain: &'static str,
    reason: &'static str,
    message: String,
    /// The parameter or header that caused the error, if the real API names it.
    location: Option<(&'static str, &'static str)>,
}

impl Problem {
    fn new(status: u16, reason: &'static str, message: String) -> Self {
        Self { status, domain: "global", reason, message, location: None }
    }

    /// The resource does not exist. `path` is its path without the API's root.
    pub(super) fn not_found(path: &str) -> Self {
        Self::new(404, "notFound", format!("The resource '{path}' was not found"))
    }

    /// A resource of this name already exists.
    pub(super) fn already_exists(path: &str) -> Self {
        Self::new(409, "alreadyExists", format!("The resource '{path}' already exists"))
    }

    /// The API does not accept a value.
    pub(super) fn invalid(field: &str, value: &str, why: &str) -> Self {
        Self::new(400, "invalid", format!("Invalid value for field '{field}': '{value}'. {why}"))
    }

    /// A required query parameter is missing.
    pub(super) fn required(parameter: &'static str) -> Self {
        let message = format!("Required parameter: {parameter}");
        Self { location: Some(("parameter", parameter)), ..Self::new(400, "required", message) }
    }

    /// The interface already has an access config.
    pub(super) fn second_access_config() -> Self {
        Self::new(400, "badRequest", SECOND_ACCESS_CONFIG.to_owned())
    }

    /// A VM uses the address, so it can't be released.
    pub(super) fn in_use(path: &str, user: &str) -> Self {
        let message = format!("The address resource '{path}' is already being used by '{user}'");
        Self::new(400, "resourceInUseByAnotherResource", message)
    }

    /// The labels have changed since the caller read them.
    pub(super) fn stale_labels() -> Self {
        Self::new(412, "conditionNotMet", STALE_LABELS.to_owned())
    }

    /// The caller lacks a permission.
    pub(super) fn forbidden(permission: &str, path: &str) -> Self {
        Self::new(403, "forbidden", format!("Required '{permission}' permission for '{path}'"))
    }

    /// The credentials are missing or wrong.
    pub(super) fn unauthorized() -> Self {
        let message = "Request had invalid authentication credentials. Expected OAuth 2 access token, login \
                       cookie or other valid authentication credential.";
        let location = Some(("header", "Authorization"));
        Self { location, ..Self::new(401, "authError", message.to_owned()) }
    }

    /// The caller exceeded the rate limit. The real API answers 403 here, not 429.
    pub(super) fn rate_limited(project: &str) -> Self {
        let message = format!(
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service \
             'compute.googleapis.com' for consumer '{project}'."
        );
        Self { domain: "usageLimits", ..Self::new(403, "rateLimitExceeded", message) }
    }

    /// The API, or a part of it, is unreachable.
    pub(super) fn unavailable(status: u16) -> Self {
        Self::new(status, "backendError", "Backend Error".to_owned())
    }

    /// The API has no such path.
    pub(super) fn no_such_call() -> Self {
        Self::new(404, "notFound", "Not Found".to_owned())
    }

    /// Returns the HTTP answer for this error.
    pub(super) fn answer(&self) -> Answer {
        let mut error = json!({ "message": self.message, "domain": self.domain, "reason": self.reason });
        if let Some((kind, name)) = self.location {
            error["locationType"] = json!(kind);
            error["location"] = json!(name);
        }
        let error = json!({ "code": self.status, "message": self.message, "errors": [error] });
        Answer::json(self.status, json!({ "error": error }))
    }
}

const SECOND_ACCESS_CONFIG: &str = "At most one access config currently supported.";
const STALE_LABELS: &str = "Labels fingerprint either invalid or resource labels have changed";

/// Why an accepted operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    status: u16,
    code: &'static str,
    message: String,
}

impl Failure {
    /// The resource no longer exists.
    pub(super) fn not_found(path: &str) -> Self {
        let message = format!("The resource '{path}' was not found");
        Self { status: 404, code: "RESOURCE_NOT_FOUND", message }
    }

    /// Another request has created a resource of this name in the meantime.
    pub(super) fn already_exists(path: &str) -> Self {
        let message = format!("The resource '{path}' already exists");
        Self { status: 409, code: "RESOURCE_ALREADY_EXISTS", message }
    }

    /// Another VM holds the address.
    pub(super) fn address_in_use(ip: &str) -> Self {
        let message = format!("IP '{ip}' is already being used by another resource.");
        Self { status: 409, code: "IP_IN_USE_BY_ANOTHER_RESOURCE", message }
    }

    /// A VM has started to use the address that the operation was to release.
    pub(super) fn resource_in_use(path: &str, user: &str) -> Self {
        let message = format!("The address resource '{path}' is already being used by '{user}'");
        Self { status: 400, code: "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", message }
    }

    /// The interface has got an access config in the meantime.
    pub(super) fn second_access_config() -> Self {
        Self { status: 400, code: "INVALID_USAGE", message: SECOND_ACCESS_CONFIG.to_owned() }
    }

    /// The labels have changed in the meantime.
    pub(super) fn stale_labels() -> Self {
        Self { status: 412, code: "CONDITION_NOT_MET", message: STALE_LABELS.to_owned() }
    }

    /// An internal error of the cloud.
    pub(super) fn internal() -> Self {
        let message = "Internal error. Please try again or contact Google Support.".to_owned();
        Self { status: 500, code: "INTERNAL_ERROR", message }
    }

    /// Writes the failure into an operation.
    pub(super) fn write_into(&self, operation: &mut Value) {
        operation["error"] = json!({ "errors": [{ "code": self.code, "message": self.message }] });
        operation["httpErrorStatusCode"] = json!(self.status);
        operation["httpErrorMessage"] = json!(match self.status {
            404 => "NOT FOUND",
            409 => "CONFLICT",
            412 => "PRECONDITION FAILED",
            500 => "INTERNAL SERVER ERROR",
            _ => "BAD REQUEST",
        });
    }
}
