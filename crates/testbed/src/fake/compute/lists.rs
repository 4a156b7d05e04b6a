//! Listings with filters, order and pages, for one scope or aggregated over all scopes.
//!
//! In: all items as JSON, and the query. Out: one page of them as a list response of the API. A listing never changes the
//! state. It reports unreachable regions or fails, and never leaves them out silently.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::problem::Problem;
use super::resources::{region_of, url};

/// The maximum and default number of items on a page.
const PAGE_MAX: usize = 500;

/// All items of one kind.
pub(super) struct Listing {
    /// The field `kind` of the response, such as `compute#addressAggregatedList`.
    pub(super) kind: &'static str,
    /// The list's path without the API's root.
    pub(super) path: String,
    /// The name of the items in the response.
    pub(super) collection: &'static str,
    pub(super) entries: Vec<Entry>,
}

/// One item and its scope, such as `regions/us-central1`.
pub(super) struct Entry {
    pub(super) scope: String,
    pub(super) item: Value,
}

struct Page {
    entries: Vec<Entry>,
    next: Option<String>,
}

impl Listing {
    /// Returns the listing of one scope.
    pub(super) fn flat(self, query: &BTreeMap<String, String>) -> Result<Value, Problem> {
        let page = page(query, self.entries)?;
        let mut list = json!({ "kind": self.kind, "id": self.path, "selfLink": url(&self.path) });
        if !page.entries.is_empty() {
            list["items"] = page.entries.into_iter().map(|entry| entry.item).collect();
        }
        if let Some(next) = page.next {
            list["nextPageToken"] = json!(next);
        }
        Ok(list)
    }

    /// Returns the aggregated listing. Every scope is on every page. A scope without items on that page has a warning.
    pub(super) fn aggregated(
        self,
        query: &BTreeMap<String, String>,
        scopes: &BTreeSet<String>,
        unreachable_regions: &BTreeSet<String>,
    ) -> Result<Value, Problem> {
        let is_unreachable = |scope: &str| unreachable_regions.contains(region_of_scope(scope));
        let (lost, reached): (Vec<&String>, Vec<&String>) =
            scopes.iter().partition(|scope| is_unreachable(scope));
        let partial = query.get("returnPartialSuccess").is_some_and(|value| value == "true");
        if !lost.is_empty() && !partial {
            return Err(Problem::unavailable(503));
        }
        let entries = self.entries.into_iter().filter(|entry| !is_unreachable(&entry.scope)).collect();
        let page = page(query, entries)?;
        let mut by_scope: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for entry in &page.entries {
            by_scope.entry(&entry.scope).or_default().push(entry.item.clone());
        }
        let items: Map<String, Value> = reached
            .into_iter()
            .map(|scope| {
                let found = by_scope.remove(scope.as_str());
                let listed =
                    found.map_or_else(|| nothing_in(scope), |found| json!({ self.collection: found }));
                (scope.clone(), listed)
            })
            .collect();
        let mut list =
            json!({ "kind": self.kind, "id": self.path, "items": items, "selfLink": url(&self.path) });
        if let Some(next) = page.next {
            list["nextPageToken"] = json!(next);
        }
        if !lost.is_empty() {
            list["unreachables"] = json!(lost);
        }
        Ok(list)
    }
}

fn nothing_in(scope: &str) -> Value {
    json!({ "warning": {
        "code": "NO_RESULTS_ON_PAGE",
        "message": format!("There are no results for scope '{scope}' on this page."),
        "data": [{ "key": "scope", "value": scope }],
    }})
}

fn region_of_scope(scope: &str) -> &str {
    match scope.split_once('/') {
        Some(("zones", zone)) => region_of(zone),
        Some((_, region)) => region,
        None => scope,
    }
}

/// Filters, sorts and cuts the entries. The page token is the sort position of the page's last item. So an item that
/// appears or disappears between two pages neither hides nor repeats other items.
fn page(query: &BTreeMap<String, String>, entries: Vec<Entry>) -> Result<Page, Problem> {
    let conditions = conditions(query.get("filter").map_or("", String::as_str))?;
    let size = page_size(query)?;
    let position = position(query.get("orderBy").map_or("", String::as_str))?;
    let after =
        query.get("pageToken").filter(|token| !token.is_empty()).map(|token| decoded(token)).transpose()?;

    let mut sorted: Vec<(String, Entry)> = entries
        .into_iter()
        .filter(|entry| conditions.iter().all(|condition| condition.holds(&entry.item)))
        .map(|entry| (position(&entry), entry))
        .filter(|(position, _)| after.as_ref().is_none_or(|after| position > after))
        .collect();
    sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
    let has_more = sorted.len() > size;
    sorted.truncate(size);
    let next = sorted.last().filter(|_| has_more).map(|(position, _)| encoded(position));
    Ok(Page { entries: sorted.into_iter().map(|(_, entry)| entry).collect(), next })
}

fn page_size(query: &BTreeMap<String, String>) -> Result<usize, Problem> {
    let Some(text) = query.get("maxResults") else { return Ok(PAGE_MAX) };
    match text.parse() {
        Ok(0) => Ok(PAGE_MAX),
        Ok(size) if size <= PAGE_MAX => Ok(size),
        _ => Err(Problem::invalid("maxResults", text, "Must be a number from 0 to 500, inclusive.")),
    }
}

/// Returns the sort position of an entry as sortable text.
fn position(order: &str) -> Result<fn(&Entry) -> String, Problem> {
    match order {
        "" | "name" => {
            Ok(|entry| format!("{}/{}", entry.scope, entry.item["name"].as_str().unwrap_or_default()))
        }
        // IDs increase over time, so the highest ID is the newest.
        "creationTimestamp desc" => Ok(|entry| {
            let id = entry.item["id"].as_str().and_then(|id| id.parse::<u64>().ok());
            format!("{:020}", u64::MAX - id.unwrap_or_default())
        }),
        _ => Err(Problem::invalid("orderBy", order, "Must be 'name' or 'creationTimestamp desc'.")),
    }
}

fn encoded(position: &str) -> String {
    position.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn decoded(token: &str) -> Result<String, Problem> {
    let invalid = || Problem::invalid("pageToken", token, "The page token is invalid.");
    let digits: Vec<char> = token.chars().collect();
    let bytes: Option<Vec<u8>> =
        digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).ok()).collect();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(invalid)
}

/// One comparison of a filter.
struct Condition {
    field: Vec<String>,
    /// The condition matches if the field has any of these values.
    values: Vec<String>,
    wants_equal: bool,
}

impl Condition {
    fn holds(&self, item: &Value) -> bool {
        let found = self.field.iter().try_fold(item, |item, part| item.get(part));
        let text = match found {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Null) | None => None,
            Some(other) => Some(other.to_string()),
        };
        let is_equal = text.is_some_and(|text| self.values.contains(&text));
        is_equal == self.wants_equal
    }
}

/// Parses a filter: equalities and inequalities that must all hold, a regular expression that is a choice of names, or
/// equalities joined by `OR`. It refuses everything else, because an ignored filter would return items that the caller
/// excluded.
fn conditions(filter: &str) -> Result<Vec<Condition>, Problem> {
    let invalid = || Problem::invalid("filter", filter, "Invalid list filter expression.");
    if let Some((field, expression)) = filter.split_once(" eq ") {
        return choice(field, expression).map(|choice| vec![choice]).ok_or_else(invalid);
    }
    if filter.contains(" OR ") {
        return alternatives(filter).map(|any| vec![any]).ok_or_else(invalid);
    }
    let separated = filter.replace(") AND (", " AND ").replace(")(", " AND ").replace(") (", " AND ");
    let terms = separated.split(" AND ").map(|term| term.trim_matches([' ', '(', ')']));
    terms.filter(|term| !term.is_empty()).map(|term| condition(term).ok_or_else(invalid)).collect()
}

/// Parses `name eq "a|b"`. A filter can't mix `eq` with `=`, and only `eq` takes regular expressions.
fn choice(field: &str, expression: &str) -> Option<Condition> {
    let names = expression.strip_prefix('"')?.strip_suffix('"')?.split('|');
    let is_plain =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let values = names.map(|name| is_plain(name).then(|| name.to_owned())).collect::<Option<_>>()?;
    (field == "name").then(|| Condition { field: vec![field.to_owned()], values, wants_equal: true })
}

/// Parses a choice of values of one field, each in parentheses: `(address=a) OR (address=b)`.
fn alternatives(filter: &str) -> Option<Condition> {
    let terms = filter.split(" OR ").map(|term| condition(term.strip_prefix('(')?.strip_suffix(')')?));
    let mut terms = terms.collect::<Option<Vec<_>>>()?.into_iter();
    let first = terms.next()?;
    terms.try_fold(first, |mut any, next| {
        let is_same = next.field == any.field && next.wants_equal && any.wants_equal;
        any.values.extend(next.values);
        is_same.then_some(any)
    })
}

fn condition(term: &str) -> Option<Condition> {
    let (field, value, wants_equal) = if let Some((field, value)) = term.split_once("!=") {
        (field, value, false)
    } else if let Some((field, value)) = term.split_once('=') {
        (field, value, true)
    } else {
        return None;
    };
    let (field, value) = (field.trim(), value.trim());
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let is_field = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    };
    // A second operator, a space or a quote inside the value belongs to a grammar that the fake does not support.
    let is_plain = !value.is_empty() && !value.contains([' ', '"', '=', '<', '>', '(', ')']);
    (is_field(field) && is_plain).then(|| Condition {
        field: field.split('.').map(str::to_owned).collect(),
        values: vec![value.to_owned()],
        wants_equal,
    })
}
