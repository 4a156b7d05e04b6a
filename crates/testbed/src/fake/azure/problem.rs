//! The errors of the API, in the format and the words of the real one.
//!
//! In: what is wrong. Out: the answer with its body, or the `error` inside a failed operation.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::Answer;

/// An error answer, or the error inside a failed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: u16,
    code: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

impl Problem {
    fn new(status: u16, code: &'static str, message: String) -> Self {
        Self { status, code, message, retry_after: None }
    }

    pub(super) fn no_such_call(path: &str) -> Self {
        Self::new(404, "InvalidResourceType", format!("The resource type of '{path}' could not be found."))
    }

    pub(super) fn unauthorized() -> Self {
        let message = "The access token is invalid.";
        Self::new(401, "InvalidAuthenticationToken", message.to_owned())
    }

    pub(super) fn subscription_not_found(subscription: &str) -> Self {
        let message = format!("The subscription '{subscription}' could not be found.");
        Self::new(404, "SubscriptionNotFound", message)
    }

    pub(super) fn not_found(kind: &str, name: &str, group: &str) -> Self {
        let message = format!(
            "The Resource 'Microsoft.Network/{kind}/{name}' under resource group '{group}' was not found."
        );
        Self::new(404, "ResourceNotFound", message)
    }

    pub(super) fn no_such_operation(id: &str) -> Self {
        Self::new(404, "NotFound", format!("Operation {id} not found."))
    }

    pub(super) fn api_version_missing() -> Self {
        let message = "The api-version query parameter (?api-version=) is required for all requests.";
        Self::new(400, "MissingApiVersionParameter", message.to_owned())
    }

    pub(super) fn malformed(what: &str) -> Self {
        Self::new(400, "InvalidRequestFormat", format!("Cannot parse the request: {what}."))
    }

    pub(super) fn forbidden(action: &str, scope: &str) -> Self {
        let message = format!(
            "The client 'certified' with object id 'certified' does not have authorization to perform action \
             '{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please \
             refresh your credentials."
        );
        Self::new(403, "AuthorizationFailed", message)
    }

    /// The caller may make the call, but may not use a resource that the call refers to.
    pub(super) fn forbidden_link(action: &str, scope: &str, linked_action: &str, linked: &str) -> Self {
        let message = format!(
            "The client 'certified' with object id 'certified' has permission to perform action '{action}' on \
             scope '{scope}'; however, it does not have permission to perform action(s) '{linked_action}' on the \
             linked scope(s) '{linked}' (respectively) or the linked scope(s) are invalid."
        );
        Self::new(403, "LinkedAuthorizationFailed", message)
    }

    pub(super) fn locked(scope: &str, group: &str) -> Self {
        let message = format!(
            "The scope '{scope}' cannot perform write operation because following scope(s) are locked: '{group}'. \
             Please remove the lock and try again."
        );
        Self::new(409, "ScopeLocked", message)
    }

    /// The resource has changed since the caller read it.
    pub(super) fn changed_since(sent: &str, present: &str) -> Self {
        let message = format!(
            "Precondition failed. Etag provided in if-match header {sent} does not match etag {present} of resource."
        );
        Self::new(412, "PreconditionFailed", message)
    }

    pub(super) fn another_operation() -> Self {
        let message = "Another operation on this or dependent resource is in progress.";
        Self::new(409, "AnotherOperationInProgress", message.to_owned())
    }

    pub(super) fn in_use(resource: &str, public: &str, holder: &str) -> Self {
        let message = format!(
            "Resource {resource} is referencing public IP address {public} that is already allocated to resource {holder}."
        );
        Self::new(400, "PublicIPAddressInUse", message)
    }

    pub(super) fn cannot_be_deleted(public: &str, holder: &str) -> Self {
        let message = format!(
            "Public IP address {public} can not be deleted since it is still allocated to resource {holder}."
        );
        Self::new(400, "PublicIPAddressCannotBeDeleted", message)
    }

    /// The address does not exist, or is in another region.
    pub(super) fn invalid_reference(public: &str, resource: &str) -> Self {
        let message = format!(
            "Resource {public} referenced by resource {resource} was not found. Please make sure that the referenced \
             resource exists, and that both resources are in the same region."
        );
        Self::new(400, "InvalidResourceReference", message)
    }

    pub(super) fn rate_limited(wait: Duration) -> Self {
        let message = "The request is being throttled as the limit has been reached for the operation type.";
        Self { retry_after: Some(wait), ..Self::new(429, "TooManyRequests", message.to_owned()) }
    }

    pub(super) fn unavailable(status: u16) -> Self {
        let message = "The service is unavailable at this moment. Try again later.";
        Self::new(status, "ServiceUnavailable", message.to_owned())
    }

    /// An internal error of the cloud.
    pub(super) fn internal() -> Self {
        Self::new(500, "InternalServerError", "An error occurred.".to_owned())
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "code": self.code, "message": self.message, "details": [] })
    }

    pub(super) fn answer(&self) -> Answer {
        let mut answer = Answer::json(self.status, json!({ "error": self.to_json() }));
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            answer.headers.push(("retry-after", seconds.max(1).to_string()));
        }
        answer
    }
}
