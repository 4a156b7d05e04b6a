//! The format of the API's answers: the envelope around results and errors, times, and IDs.
//!
//! In: a result or an error. Out: an answer. This module never reads the account.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::Answer;

/// The wall clock time of the fake's first request. It is fixed, so answers are repeatable.
const FIRST_REQUEST_AT: Duration = Duration::from_secs(1_767_225_600);

/// The answer of a handler, or its error.
pub(super) type Handled = Result<Answer, Answer>;

/// Wraps a result in the vendor's envelope.
pub(super) fn success(result: Value) -> Answer {
    Answer::json(200, json!({ "success": true, "errors": [], "messages": [], "result": result }))
}

/// Wraps an error in the vendor's envelope.
pub(super) fn error(status: u16, code: u32, message: &str) -> Answer {
    let errors = json!([{ "code": code, "message": message }]);
    Answer::json(status, json!({ "success": false, "errors": errors, "messages": [], "result": null }))
}

pub(super) fn no_route() -> Answer {
    error(404, 7000, "No route for that URI")
}

/// Formats a time as the API does.
pub(super) fn moment(at: Duration) -> String {
    let since_epoch = (FIRST_REQUEST_AT + at).as_micros();
    let micros = i64::try_from(since_epoch).unwrap_or_default();
    Timestamp::from_microsecond(micros).unwrap_or_default().to_string()
}

/// Returns an ID in the API's format: 32 hexadecimal digits, different for each number, and without a visible pattern.
pub(super) fn identifier(number: u64) -> String {
    // An odd factor, so all products are different.
    const SCATTER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    format!("{:032x}", u128::from(number).wrapping_mul(SCATTER))
}
