//! DNS records at DigitalOcean.
//!
//! DigitalOcean has one record for each value and no transactions. So the driver changes values in place, and adds new
//! records before it deletes old ones. It creates the mark before the first value, and deletes the mark after the last
//! value. It reads a set with two calls; the second one reads the mark.
//!
//! ```text
//! call                    used for            scope of the token
//! domains.list_records    read, write         domain:read
//! domains.create_record   write               domain:create
//! domains.patch_record    write               domain:update
//! domains.delete_record   write               domain:delete
//! ```

use std::sync::Arc;

use ::http::Method;
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, PoolKey, RecordName, RecordSet};
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::{explain, list_pages};
use crate::DriverError;
use crate::http::{HttpService, JsonApi, Path, unreadable};
use crate::record::{Difference, RecordChange, RecordDriver, mark, mark_name, owner_in};
use crate::tokens::Tokens;

/// Every call this driver makes.
pub const CALLS: &[&str] =
    &["domains.list_records", "domains.create_record", "domains.patch_record", "domains.delete_record"];

/// Publishes DNS records in the domains of an account.
pub struct Records {
    api: JsonApi,
}

impl Records {
    /// Creates a driver for the account of the token.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>) -> Self {
        Self { api: JsonApi::new(service, url, tokens, explain) }
    }

    async fn list(&self, zone: &str, name: &str, kind: &str) -> Result<Vec<Record>, DriverError> {
        let call = "domains.list_records";
        let path = Path::new("v2/domains/{}/records?name={}&type={}&", &[&zone, &name, &kind]);
        list_pages(&self.api, call, &path, "domain_records").await
    }

    async fn values(&self, name: &RecordName) -> Result<Vec<(Address, Record)>, DriverError> {
        let parsed = |record: Record| {
            let value = record.data.parse();
            Ok((value.map_err(|_| unreadable("domains.list_records", &record.data))?, record))
        };
        self.list(&name.zone, &name.name, name.kind.name()).await?.into_iter().map(parsed).collect()
    }

    async fn marks(&self, name: &RecordName) -> Result<Vec<(Arc<str>, Record)>, DriverError> {
        let found = self.list(&name.zone, &mark_name(name), "TXT").await?;
        Ok(found.into_iter().filter_map(|record| Some((owner_in(&record.data)?, record))).collect())
    }

    async fn set(&self, name: &RecordName) -> Result<Found, DriverError> {
        Ok(Found { values: self.values(name).await?, marks: self.marks(name).await? })
    }

    async fn change(&self, change: &RecordChange) -> Result<(), DriverError> {
        let RecordChange { name, old: _, new, .. } = change;
        let found = self.set(name).await?;
        change.check(&found.set())?;
        let is_marked = |owner: &Arc<str>| found.marks.iter().any(|(present, _)| present == owner);
        if let Some(owner) = new.owner.as_ref().filter(|owner| !is_marked(owner)) {
            self.create(&name.zone, "TXT", &relative(&mark_name(name), &name.zone), &mark(owner), None)
                .await?;
        }
        let Difference { stays, exchanged, added, gone } = Difference::new(&found.values, &new.values);
        for record in stays {
            if new.ttl.is_some() && new.ttl != record.ttl {
                self.edit(&name.zone, record.id, json!({"type": record.kind, "ttl": new.ttl})).await?;
            }
        }
        for (record, value) in exchanged {
            let mut body = json!({"type": record.kind, "data": value.to_string()});
            if let Some(ttl) = new.ttl {
                body["ttl"] = ttl.into();
            }
            self.edit(&name.zone, record.id, body).await?;
        }
        for value in added {
            let relative = relative(&name.name, &name.zone);
            self.create(&name.zone, name.kind.name(), &relative, &value.to_string(), new.ttl).await?;
        }
        for record in gone {
            self.delete(&name.zone, record.id).await?;
        }
        if new.owner.is_none() {
            for (_, record) in &found.marks {
                self.delete(&name.zone, record.id).await?;
            }
        }
        Ok(())
    }

    async fn create(
        &self,
        zone: &str,
        kind: &str,
        name: &str,
        data: &str,
        ttl: Option<u32>,
    ) -> Result<(), DriverError> {
        let mut body = json!({"type": kind, "name": name, "data": data});
        if let Some(ttl) = ttl {
            body["ttl"] = ttl.into();
        }
        let path = Path::new("v2/domains/{}/records", &[&zone]);
        self.api.call::<Value>("domains.create_record", Method::POST, &path, Some(body)).await.map(|_| ())
    }

    async fn edit(&self, zone: &str, id: u64, body: Value) -> Result<(), DriverError> {
        let path = Path::new("v2/domains/{}/records/{}", &[&zone, &id]);
        self.api.call::<Value>("domains.patch_record", Method::PATCH, &path, Some(body)).await.map(|_| ())
    }

    async fn delete(&self, zone: &str, id: u64) -> Result<(), DriverError> {
        let path = Path::new("v2/domains/{}/records/{}", &[&zone, &id]);
        match self.api.call::<Value>("domains.delete_record", Method::DELETE, &path, None).await {
            Ok(_) | Err(DriverError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl RecordDriver for Records {
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        _: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
        async { Ok(self.set(name).await?.set()) }.boxed()
    }

    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
        self.change(change).boxed()
    }
}

/// The records of a set and its marks.
struct Found {
    values: Vec<(Address, Record)>,
    marks: Vec<(Arc<str>, Record)>,
}

impl Found {
    fn set(&self) -> RecordSet {
        RecordSet {
            values: self.values.iter().map(|(value, _)| *value).collect(),
            ttl: self.values.first().and_then(|(_, record)| record.ttl),
            owner: self.marks.first().map(|(owner, _)| Arc::clone(owner)),
        }
    }
}

/// A full name relative to its zone, as the API expects it for new records.
fn relative(name: &str, zone: &str) -> String {
    match name.strip_suffix(zone).map(|name| name.trim_end_matches('.')) {
        Some("") => "@".to_owned(),
        Some(relative) => relative.to_owned(),
        None => name.to_owned(),
    }
}

#[derive(Clone, Deserialize)]
struct Record {
    id: u64,
    #[serde(rename = "type")]
    kind: String,
    data: String,
    ttl: Option<u32>,
}
