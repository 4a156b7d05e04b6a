//! Pagination and errors of the DigitalOcean API.

use std::time::Duration;

use ::http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::DriverError;
use crate::budget::BACKOFF_MIN;
use crate::http::{JsonApi, Path, Refused, unreadable};

/// The default URL of the DigitalOcean API. `DIGITALOCEAN_API_URL` overrides it.
pub const DEFAULT_URL: &str = "https://api.digitalocean.com";

pub(super) const PAGE_SIZE: usize = 200;

/// The maximum number of pages. A longer listing is treated as an error.
pub(super) const PAGES_MAX: usize = 500;

/// The wait of a caller if a response has no `Retry-After`. The rate limiter delays further requests for longer.
pub(super) const RETRY_AFTER_DEFAULT: Duration = BACKOFF_MIN;

/// Reads all pages of a listing. If the listing changes between two pages, an item can get lost and would look as if it
/// did not exist. So the number of items must match the total that DigitalOcean reports. `path` must end with `?` or
/// `&`, because query parameters are appended to it. Keeps only the fields of `T`: DigitalOcean sends a whole droplet with
/// each of its addresses.
pub(super) async fn list_pages<T: DeserializeOwned>(
    api: &JsonApi,
    name: &str,
    path: &Path,
    items: &str,
) -> Result<Vec<T>, DriverError> {
    let mut all = Vec::new();
    let mut total = None;
    for page in 1..=PAGES_MAX {
        let path = path.clone().and("per_page={}&page={}", &[&PAGE_SIZE, &page]);
        let mut answer: Value = api.call(name, Method::GET, &path, None).await?;
        let Some(Value::Array(found)) = answer.get_mut(items).map(Value::take) else {
            return Err(unreadable(name, &"it has no items"));
        };
        for item in found {
            all.push(serde_json::from_value(item).map_err(|error| unreadable(name, &error))?);
        }
        let reported = answer["meta"]["total"].as_u64();
        if reported.is_none() || total.is_some_and(|total| Some(total) != reported) {
            return Err(unreadable(name, &"the listing changed between two pages"));
        }
        total = reported;
        if answer["links"]["pages"]["next"].is_null() {
            let is_whole = total == Some(all.len() as u64);
            return if is_whole {
                Ok(all)
            } else {
                Err(unreadable(name, &"the listing changed between two pages"))
            };
        }
    }
    Err(unreadable(name, &"the listing has too many pages"))
}

pub(super) fn explain(name: &str, refused: &Refused) -> DriverError {
    let answer = refused.body["message"].as_str().unwrap_or("no error message");
    let message = format!("{name}: {answer}");
    match refused.status {
        401 | 403 => DriverError::Denied { permission: permission_of(name).into(), message },
        404 => DriverError::NotFound(message),
        // DigitalOcean also returns this if the droplet already has the address. Only another read shows the cause.
        409 | 422 => DriverError::Conflict(message),
        429 => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        400..500 => DriverError::Invalid(message),
        status => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

/// The token scope that a call needs.
pub fn permission_of(name: &str) -> &'static str {
    match name {
        "reserved_ips.list" | "reserved_ips.get" | "reserved_ips_actions.get" => "reserved_ip:read",
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
