//! Pages and errors of DigitalOcean's API.

use std::time::Duration;

use ::http::Method;
use serde_json::Value;

use crate::DriverError;
use crate::http::{JsonApi, Path, Refused, unreadable};

/// DigitalOcean's address where `DIGITALOCEAN_API_URL` does not say otherwise.
pub const DEFAULT_URL: &str = "https://api.digitalocean.com";

pub(super) const PAGE_SIZE: usize = 200;

/// A listing that has not ended after so many pages is broken, not long.
pub(super) const PAGES_MAX: usize = 500;

/// Where a 429 does not say how long to wait: the limit is counted by the minute.
pub(super) const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(60);

/// All items of a paged listing. A listing that changes while it is read may lose an item between two pages, and a lost
/// item would look like one that does not exist, so the number that the cloud tells must be there. The path ends where the
/// next parameter of the query begins.
pub(super) async fn list_pages(
    api: &JsonApi,
    name: &str,
    path: &Path,
    items: &str,
) -> Result<Vec<Value>, DriverError> {
    let mut all = Vec::new();
    let mut total = None;
    for page in 1..=PAGES_MAX {
        let path = path.clone().and("per_page={}&page={}", &[&PAGE_SIZE, &page]);
        let mut answer: Value = api.call(name, Method::GET, &path, None).await?;
        let Value::Array(found) = answer[items].take() else {
            return Err(unreadable(name, &"it has no items"));
        };
        all.extend(found);
        let told = answer["meta"]["total"].as_u64();
        if told.is_none() || total.is_some_and(|total| Some(total) != told) {
            return Err(unreadable(name, &"it changed while it was read"));
        }
        total = told;
        if answer["links"]["pages"]["next"].is_null() {
            let is_whole = total == Some(all.len() as u64);
            return if is_whole { Ok(all) } else { Err(unreadable(name, &"it changed while it was read")) };
        }
    }
    Err(unreadable(name, &"it does not end"))
}

pub(super) fn explain(name: &str, refused: &Refused) -> DriverError {
    let said = refused.body["message"].as_str().unwrap_or("no explanation");
    let message = format!("{name}: {said}");
    match refused.status {
        401 | 403 => DriverError::Denied { permission: permission_of(name).into(), message },
        404 => DriverError::NotFound(message),
        // Also the answer to assigning an address to the droplet that has it: only reading again can tell.
        409 | 422 => DriverError::Conflict(message),
        429 => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        400..500 => DriverError::Invalid(message),
        status => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

/// The scope that a token needs for a call.
pub fn permission_of(name: &str) -> &'static str {
    match name {
        "reserved_ips.list" | "reserved_ips.get" => "reserved_ip:read",
        "droplets.list" => "droplet:read",
        "reserved_ips.create" => "reserved_ip:create",
        "reserved_ips.delete" => "reserved_ip:delete",
        "projects.list" => "project:read",
        "projects.create" => "project:create",
        "domains.list_records" => "domain:read",
        "domains.create_record" => "domain:create",
        "domains.patch_record" => "domain:update",
        "domains.delete_record" => "domain:delete",
        _ => "reserved_ip:update",
    }
}
