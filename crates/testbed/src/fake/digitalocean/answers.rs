//! The form of the API's answers: error bodies, empty answers, and moments.
//!
//! In: what went wrong, or when something happened. Out: an answer or a part of one. It never looks at the account.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::Answer;

/// The wall clock's time at the fake's first request. It is fixed so that two runs of a test give the same answers.
const FIRST_REQUEST_AT: i64 = 1_767_225_600;

/// A handler's answer, or the refusal that takes its place.
pub(super) type Handled = Result<Answer, Answer>;

/// The vendor's error body.
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

/// The answer to a successful deletion.
pub(super) fn no_content() -> Answer {
    Answer::json(204, Value::Null)
}

/// A moment in the format of the API's answers, which has whole seconds.
pub(super) fn moment(at: Duration) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or_default();
    Timestamp::from_second(FIRST_REQUEST_AT + seconds).unwrap_or_default().to_string()
}
