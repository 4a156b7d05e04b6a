//! The form of the API's answers: the envelope around results and errors, moments, and identifiers.
//!
//! In: a result, or why there is none. Out: an answer. It never looks at the account.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::Answer;

/// The wall clock's time at the fake's first request. It is fixed so that two runs of a test give the same answers.
const FIRST_REQUEST_AT: Duration = Duration::from_secs(1_767_225_600);

/// A handler's answer, or the refusal that takes its place.
pub(super) type Handled = Result<Answer, Answer>;

/// The vendor's envelope around a result.
pub(super) fn success(result: Value) -> Answer {
    Answer::json(200, json!({ "success": true, "errors": [], "messages": [], "result": result }))
}

/// The vendor's envelope around an error.
pub(super) fn error(status: u16, code: u32, message: &str) -> Answer {
    let errors = json!([{ "code": code, "message": message }]);
    Answer::json(status, json!({ "success": false, "errors": errors, "messages": [], "result": null }))
}

pub(super) fn no_route() -> Answer {
    error(404, 7000, "No route for that URI")
}

/// A moment in the format of the API's answers.
pub(super) fn moment(at: Duration) -> String {
    let since_epoch = (FIRST_REQUEST_AT + at).as_micros();
    let micros = i64::try_from(since_epoch).unwrap_or_default();
    Timestamp::from_microsecond(micros).unwrap_or_default().to_string()
}

/// An identifier as the API gives them out: 32 hexadecimal digits, different for each number, that tell nothing of it.
pub(super) fn identifier(number: u64) -> String {
    // Odd, so that no two numbers have the same product.
    const SCATTER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    format!("{:032x}", u128::from(number).wrapping_mul(SCATTER))
}
