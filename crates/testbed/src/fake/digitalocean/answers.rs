//! The format of the API's answers: error bodies, empty answers, and times.
//!
//! In: an error, or a time. Out: an answer or a part of one. This module never reads the account.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::Answer;

/// The wall clock time of the fake's first request. It is fixed, so answers are repeatable.
const FIRST_REQUEST_AT: i64 = 1_767_225_600;

/// The answer of a handler, or its error.
pub(super) type Handled = Result<Answer, Answer>;

/// Returns an error in the vendor's format.
pub(super) fn error(status: u16, id: &str, message: &str) -> Answer {
    Answer::json(status, json!({ "id": id, "message": message }))
}

pub(super) fn not_found() -> Answer {
    error(404, "not_found", "The resource you were accessing could not be found.")
}

pub(super) fn unprocessable(message: &str) -> Answer {
    error(422, "unprocessable_entity", message)
}

pub(super) fn unavailable(status: u16) -> Answer {
    match status {
        502 => error(502, "bad_gateway", "Bad gateway"),
        503 => error(503, "service_unavailable", "Service unavailable"),
        504 => error(504, "gateway_timeout", "Gateway timeout"),
        status => error(status, "server_error", "Unexpected server-side error"),
    }
}

/// Returns the answer to a successful deletion.
pub(super) fn no_content() -> Answer {
    Answer::json(204, Value::Null)
}

/// Formats a time as the API does, in whole seconds.
pub(super) fn moment(at: Duration) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or_default();
    Timestamp::from_second(FIRST_REQUEST_AT + seconds).unwrap_or_default().to_string()
}
