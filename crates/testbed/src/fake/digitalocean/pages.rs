//! Paged listings with links to other pages.
//!
//! In: all items, and the `page` and `per_page` parameters of a request. Out: one page, the links and the total. It
//! never refuses a request: it reduces a page size over the maximum, and a page after the last one is empty.

use serde_json::{Map, Value, json};

use super::super::{Answer, Call};
use super::account::DigitalOcean;

const PER_PAGE_DEFAULT: usize = 20;
const PER_PAGE_MAX: usize = 200;

/// The bounds of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    number: usize,
    size: usize,
}

impl Page {
    fn of(call: &Call) -> Self {
        let asked = |name: &str| call.query.get(name).and_then(|text| text.parse::<usize>().ok());
        Self {
            number: asked("page").unwrap_or(1).max(1),
            size: asked("per_page").unwrap_or(PER_PAGE_DEFAULT).clamp(1, PER_PAGE_MAX),
        }
    }
}

impl DigitalOcean {
    /// Returns the requested page of a listing, under the given key. It renders only the items on the page.
    pub(super) fn page<T>(&self, call: &Call, key: &str, all: Vec<T>, render: impl Fn(T) -> Value) -> Answer {
        let page = Page::of(call);
        let total = all.len();
        let skipped = (page.number - 1).saturating_mul(page.size);
        let items: Vec<Value> = all.into_iter().skip(skipped).take(page.size).map(render).collect();
        let links = self.links(call, page, total);
        Answer::json(200, json!({ key: items, "links": links, "meta": { "total": total } }))
    }

    fn links(&self, call: &Call, page: Page, total: usize) -> Value {
        let last = total.div_ceil(page.size).max(1);
        let mut pages = Map::new();
        let mut link = |name: &str, number: usize| {
            pages.insert(name.to_owned(), self.page_url(call, number).into());
        };
        if page.number > 1 {
            link("first", 1);
            link("prev", page.number - 1);
        }
        if page.number < last {
            link("next", page.number + 1);
            link("last", last);
        }
        if pages.is_empty() { json!({}) } else { json!({ "pages": pages }) }
    }

    fn page_url(&self, call: &Call, number: usize) -> String {
        let kept = call.query.iter().filter(|(name, _)| *name != "page");
        let query: String = kept.map(|(name, value)| format!("{name}={value}&")).collect();
        format!("{}/v2/{}?{query}page={number}", self.api_url, listing_path(call))
    }
}

/// Returns the path of a listing, from its call and its parent resource.
fn listing_path(call: &Call) -> String {
    let of_parent = |collection: &str, inner: &str| {
        let parent = call.route.params.first().map_or("", String::as_str);
        format!("{collection}/{parent}/{inner}")
    };
    match call.route.name {
        "reserved_ips_actions.list" => of_parent("reserved_ips", "actions"),
        "floating_ips_actions.list" => of_parent("floating_ips", "actions"),
        "projects.list_resources" => of_parent("projects", "resources"),
        "domains.list_records" => of_parent("domains", "records"),
        name => name.split('.').next().unwrap_or_default().to_owned(),
    }
}
