//! Paged listings.
//!
//! In: all items, and the `page` and `per_page` parameters of a request. Out: one page, and the totals. It never
//! refuses a request: it clamps the page size to the allowed range, and a page after the last one is empty.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::super::{Answer, Call};
use super::envelope::success;

/// The page sizes of a listing.
pub(super) struct Sizes {
    pub(super) default: usize,
    pub(super) allowed: RangeInclusive<usize>,
}

/// Returns the requested page of a listing. It renders only the items on the page.
pub(super) fn page<T>(call: &Call, sizes: &Sizes, all: Vec<T>, render: impl Fn(T) -> Value) -> Answer {
    let asked = |name: &str| call.query.get(name).and_then(|text| text.parse::<usize>().ok());
    let number = asked("page").unwrap_or(1).max(1);
    let size = asked("per_page").unwrap_or(sizes.default).clamp(*sizes.allowed.start(), *sizes.allowed.end());
    let total = all.len();
    let skipped = (number - 1).saturating_mul(size);
    let entries: Vec<Value> = all.into_iter().skip(skipped).take(size).map(render).collect();
    let info = json!({
        "page": number,
        "per_page": size,
        "count": entries.len(),
        "total_count": total,
        "total_pages": total.div_ceil(size),
    });
    let mut answer = success(Value::Array(entries));
    answer.body["result_info"] = info;
    answer
}
