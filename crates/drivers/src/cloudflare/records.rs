//! DNS records at Cloudflare.
//!
//! Cloudflare has one record for each value. The driver changes a whole set in one batch request, which takes effect
//! completely or not at all. The mark is the comment of each record. Records that are proxied stay proxied, and new
//! records of the set are proxied too.
//!
//! ```text
//! call                used for                      permission of the token
//! zones.list          the ID of a zone, once        Zone / Zone / Read
//! dns.records.list    read, write                   Zone / DNS / Read
//! dns.records.batch   write                         Zone / DNS / Edit
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, Method};
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, PoolKey, RecordName, RecordSet};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::DriverError;
use crate::budget::{Limit, Quota};
use crate::http::{HttpService, JsonApi, Path, Refused, unreadable};
use crate::record::{Difference, RecordChange, RecordDriver};
use crate::tokens::Tokens;

/// The default URL of the Cloudflare API. `CLOUDFLARE_API_URL` overrides it.
pub const DEFAULT_URL: &str = "https://api.cloudflare.com/client/v4";

/// Every call this driver makes.
pub const CALLS: &[&str] = &["zones.list", "dns.records.list", "dns.records.batch"];

/// The rate limit of the driver: half of what Cloudflare allows for each user, which is 1,200 requests in five minutes,
/// including those in the dashboard.
pub const REQUESTS_PER_FIVE_MINUTES: usize = 600;

/// The rate limit of a user. Cloudflare reports in each response how many requests are left.
pub fn limits(per_five_minutes: usize) -> [Limit; 1] {
    // The header `ratelimit` is `"default";r=50;t=30`, for example, and `ratelimit-policy` is `"default";q=1200;w=300`. There may
    // be several policies.
    fn quota(headers: &HeaderMap) -> Option<Quota> {
        let items = |name: &str| {
            headers.get(name).and_then(|header| header.to_str().ok()).map(|text| text.split(','))
        };
        let number = |item: &str, name: &str| -> Option<u64> {
            item.split(';').find_map(|part| part.trim().strip_prefix(name))?.parse().ok()
        };
        let name = |item: &str| item.split(';').next().map(|name| name.trim().to_owned());
        let policy = items("ratelimit-policy")?.find(|item| number(item, "w=") == Some(WINDOW.as_secs()))?;
        let state = items("ratelimit")?.find(|item| name(item) == name(policy))?;
        Some(Quota {
            left: usize::try_from(number(state, "r=")?).ok()?,
            resets: number(state, "t=").map(Duration::from_secs),
        })
    }
    [Limit::window(per_five_minutes, WINDOW).with_quota(quota)]
}

/// The window of the user's rate limit.
const WINDOW: Duration = Duration::from_secs(300);

/// The maximum number of changes in one request.
const BATCH_MAX: usize = 200;

/// The page size of a listing. The driver reads one page, and checks that it contains the total that Cloudflare
/// reports.
const PAGE_SIZE: usize = 1_000;

/// How long the ID of a zone stays valid. A domain that moves to another account has another zone there, while Cloudflare
/// still shows the old one.
const ZONE_FOR: Duration = Duration::from_secs(300);

/// The wait if a 429 has no `Retry-After`. Cloudflare blocks a user for five minutes.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(300);

/// The TTL that lets Cloudflare choose.
const AUTOMATIC: u32 = 1;

const MARK: &str = "ip-address-controller owner=";

/// Publishes DNS records in the zones that a token can edit.
pub struct Cloudflare {
    api: JsonApi,
    zones: Mutex<BTreeMap<Arc<str>, (String, Instant)>>,
}

impl Cloudflare {
    /// Creates a driver for the zones of a token.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>) -> Self {
        Self { api: JsonApi::new(service, url, tokens, explain), zones: Mutex::default() }
    }

    async fn ask<T: DeserializeOwned>(&self, name: &str, path: &Path) -> Result<Answer<T>, DriverError> {
        self.api.call(name, Method::GET, path, None).await
    }

    /// The ID of a zone. A `zone` without a dot is an ID already. The driver stores the IDs that it finds.
    async fn zone(&self, zone: &Arc<str>) -> Result<String, DriverError> {
        if !zone.contains('.') {
            return Ok(zone.to_string());
        }
        let mut zones = self.zones.lock().await;
        if let Some((id, found_at)) = zones.get(zone)
            && found_at.elapsed() < ZONE_FOR
        {
            return Ok(id.clone());
        }
        let found: Answer<Vec<Zone>> = self.ask("zones.list", &Path::new("zones?name={}", &[zone])).await?;
        let id = the_one(zone, found.result)?;
        zones.insert(Arc::clone(zone), (id.clone(), Instant::now()));
        Ok(id)
    }

    async fn list(&self, name: &RecordName) -> Result<Vec<(Address, Record)>, DriverError> {
        let call = "dns.records.list";
        let zone = self.zone(&name.zone).await?;
        let (kind, full) = (name.kind.name(), &name.name);
        let path =
            Path::new("zones/{}/dns_records?name={}&type={}&per_page={}", &[&zone, full, &kind, &PAGE_SIZE]);
        let answer: Result<Answer<Vec<Record>>, _> = self.ask(call, &path).await;
        if matches!(answer, Err(DriverError::NotFound(_) | DriverError::Denied { .. })) {
            // A zone that was deleted and created again has another ID.
            self.zones.lock().await.remove(&name.zone);
        }
        let Answer { result, result_info } = answer?;
        if result_info.is_some_and(|info| info.total_count.is_some_and(|total| total != result.len())) {
            return Err(unreadable(call, &"the response does not contain all records of the name"));
        }
        let parsed = |record: Record| {
            Ok((record.content.parse().map_err(|_| unreadable(call, &record.content))?, record))
        };
        result.into_iter().map(parsed).collect()
    }

    async fn change(&self, change: &RecordChange) -> Result<(), DriverError> {
        let RecordChange { name, new, .. } = change;
        let found = self.list(name).await?;
        change.check(&set(&found))?;
        let zone = self.zone(&name.zone).await?;
        let path = Path::new("zones/{}/dns_records/batch", &[&zone]);
        for batch in batches(name, &found, new) {
            self.api.call::<Value>("dns.records.batch", Method::POST, &path, Some(batch)).await?;
        }
        Ok(())
    }
}

impl RecordDriver for Cloudflare {
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        _: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
        async { Ok(set(&self.list(name).await?)) }.boxed()
    }

    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
        self.change(change).boxed()
    }
}

/// The ID of the only zone with a name. Active zones take precedence.
fn the_one(zone: &str, found: Vec<Zone>) -> Result<String, DriverError> {
    let (active, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|zone| zone.status.as_deref() == Some("active"));
    let mut found = if active.is_empty() { others } else { active };
    match (found.pop(), found.len()) {
        (Some(Zone { id, .. }), 0) => Ok(id),
        (Some(_), _) => {
            let message = format!(
                "the Cloudflare token can access several zones named {zone}: set `zone` to the ID of one"
            );
            Err(DriverError::Invalid(message))
        }
        (None, _) => {
            let message = format!(
                "the Cloudflare token can access no zone named {zone}: grant it Zone / Zone / Read there"
            );
            Err(DriverError::NotFound(message))
        }
    }
}

/// The batch requests that change a set to its new values. It is one request, unless there are more changes than fit;
/// then additions come before deletions.
fn batches(name: &RecordName, found: &[(Address, Record)], new: &RecordSet) -> Vec<Value> {
    let comment = new.owner.as_ref().map(|owner| format!("{MARK}{owner}"));
    let is_proxied = found.iter().any(|(_, record)| record.proxied);
    // Proxied records have no TTL of their own.
    let ttl = if is_proxied { AUTOMATIC } else { new.ttl.unwrap_or(AUTOMATIC) };
    let Difference { stays, exchanged, added, gone } = Difference::new(found, &new.values);
    let is_right =
        |record: &Record| record.comment == comment && (new.ttl.is_none() || record.ttl == Some(ttl));
    let mut changes = Vec::new();
    for record in stays.into_iter().filter(|record| !is_right(record)) {
        changes.push(("patches", json!({"id": record.id, "comment": comment, "ttl": ttl})));
    }
    for (record, value) in exchanged {
        let content = value.to_string();
        changes
            .push(("patches", json!({"id": record.id, "content": content, "comment": comment, "ttl": ttl})));
    }
    for value in added {
        changes.push((
            "posts",
            json!({
                "name": &*name.name, "type": name.kind.name(), "content": value.to_string(), "ttl": ttl,
                "proxied": is_proxied, "comment": comment,
            }),
        ));
    }
    changes.extend(gone.into_iter().map(|record| ("deletes", json!({"id": record.id}))));
    let batch = |changes: &[(&str, Value)]| {
        let mut body = json!({});
        for (what, change) in changes {
            match body[*what].as_array_mut() {
                Some(several) => several.push(change.clone()),
                None => body[*what] = json!([change]),
            }
        }
        body
    };
    changes.chunks(BATCH_MAX).map(batch).collect()
}

/// The record set and its owner. It has an owner if all of its records have the same mark. One record without a mark
/// makes the set foreign. If the marks differ, the owner is `several`.
fn set(found: &[(Address, Record)]) -> RecordSet {
    let owner_of = |record: &Record| -> Option<Arc<str>> {
        record.comment.as_deref()?.strip_prefix(MARK).map(Into::into)
    };
    let owners: Vec<_> = found.iter().map(|(_, record)| owner_of(record)).collect();
    let is_one = owners.windows(2).all(|pair| pair[0] == pair[1]);
    let owner = match is_one {
        true => owners.first().cloned().flatten(),
        false if owners.contains(&None) => None,
        false => Some("several".into()),
    };
    RecordSet {
        values: found.iter().map(|(value, _)| *value).collect(),
        // The TTL of proxied records can't be set.
        ttl: found.first().filter(|(_, record)| !record.proxied).and_then(|(_, record)| record.ttl),
        owner,
    }
}

fn explain(name: &str, refused: &Refused) -> DriverError {
    let answer = &refused.body["errors"][0];
    let message = format!("{name}: {}", answer["message"].as_str().unwrap_or("no error message"));
    let permission = match name {
        "zones.list" => "Zone / Zone / Read",
        "dns.records.list" => "Zone / DNS / Read",
        _ => "Zone / DNS / Edit",
    };
    match refused.status {
        401 | 403 => DriverError::Denied { permission: permission.into(), message },
        404 => DriverError::NotFound(message),
        409 => DriverError::Conflict(message),
        429 => {
            let retry_after = refused.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
            DriverError::RateLimited { retry_after, message }
        }
        400..500 => DriverError::Invalid(message),
        status => DriverError::Unavailable(format!("{message} (status {status})")),
    }
}

#[derive(Deserialize)]
struct Answer<T> {
    result: T,
    result_info: Option<Info>,
}

#[derive(Deserialize)]
struct Info {
    total_count: Option<usize>,
}

#[derive(Deserialize)]
struct Zone {
    id: String,
    status: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Record {
    id: String,
    content: String,
    ttl: Option<u32>,
    #[serde(default)]
    proxied: bool,
    comment: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_zones_only_a_single_active_one_is_used() {
        let zone = |id: &str, status: &str| Zone { id: id.into(), status: Some(status.into()) };
        assert_eq!(the_one("z", vec![zone("a", "moved"), zone("b", "active")]), Ok("b".into()));
        assert_eq!(the_one("z", vec![zone("a", "pending")]), Ok("a".into()));
        assert!(the_one("z", vec![zone("a", "active"), zone("b", "active")]).is_err());
        assert!(the_one("z", Vec::new()).is_err());
    }
}
