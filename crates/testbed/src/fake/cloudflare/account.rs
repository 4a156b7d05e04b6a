//! The account behind the API: its zones, the calls that read and change them, and what a person can do with the
//! dashboard.
//!
//! In: a parsed call, or a manual change. Out: an answer, and the changes for the ledger. This module never routes
//! requests, and never counts them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::{CloudChange, Ledger};
use super::super::{Answer, Call};
use super::envelope::{Handled, error, identifier, success};
use super::pages::{Sizes, page};
use super::records::{Record, unknown_record};
use super::zones::{Transaction, Zone};

/// The vendor documents a maximum page size of five million, which no test needs.
const RECORD_PAGES: Sizes = Sizes { default: 100, allowed: 1..=5_000 };

const ZONE_PAGES: Sizes = Sizes { default: 20, allowed: 5..=50 };

/// The account behind the API.
#[derive(Debug)]
pub struct Cloudflare {
    /// The bearer token that the API accepts.
    pub token: String,
    /// The zones by ID.
    zones: BTreeMap<String, Zone>,
    /// Manual changes that are not in the ledger yet.
    pub(super) unwritten: Vec<CloudChange>,
}

impl Cloudflare {
    /// Creates an account without zones.
    pub fn new(token: impl Into<String>) -> Self {
        Self { token: token.into(), zones: BTreeMap::new(), unwritten: Vec::new() }
    }
}

/// What a test, or a person with the dashboard, can do.
impl Cloudflare {
    /// Adds a zone without records and returns its ID.
    pub fn add_zone(&mut self, name: impl Into<String>) -> String {
        let number = self.zones.len() as u64 + 1;
        let id = identifier(number);
        let zone = Zone { name: name.into(), records: BTreeMap::new(), number, record_count: 0 };
        self.zones.insert(id.clone(), zone);
        id
    }

    /// Adds a record as a person would with the dashboard, and returns its ID. `zone` is the name of the zone. Returns
    /// `None` if the zone is unknown, or if the API would refuse the record.
    pub fn add_record(&mut self, zone: &str, kind: &str, name: &str, content: &str) -> Option<String> {
        let body = json!({ "type": kind, "name": name, "content": content });
        let record = self.change_by_hand(zone, |zone| zone.post(&body))?;
        record["id"].as_str().map(str::to_owned)
    }

    /// Changes a record as a person would with the dashboard, for example `{ "proxied": true }`. Returns whether the
    /// API accepted the change.
    pub fn edit_record(&mut self, zone: &str, id: &str, parts: &Value) -> bool {
        self.change_by_hand(zone, |zone| zone.patch(id, parts)).is_some()
    }

    /// Returns the records of a name and type in the API's format, sorted by content.
    pub fn records(&self, name: &str, kind: &str) -> Vec<Value> {
        let records = self.zones.values().flat_map(|zone| &zone.records);
        let mut found: Vec<(&String, &Record)> =
            records.filter(|(_, record)| record.name == name && record.kind == kind).collect();
        found.sort_by_key(|(_, record)| &record.content);
        found.into_iter().map(|(id, record)| record.json(id)).collect()
    }

    /// Returns the values of a name and type, sorted.
    pub fn values(&self, name: &str, kind: &str) -> Vec<String> {
        let content = |record: &Value| record["content"].as_str().unwrap_or_default().to_owned();
        self.records(name, kind).iter().map(content).collect()
    }

    fn change_by_hand(
        &mut self,
        name: &str,
        make: impl FnOnce(&mut Transaction) -> Result<Value, Answer>,
    ) -> Option<Value> {
        let zone = self.zones.values_mut().find(|zone| zone.name == name)?;
        let mut transaction = Transaction::of(zone, Duration::ZERO);
        let result = make(&mut transaction).ok()?;
        *zone = transaction.zone;
        self.unwritten.extend(transaction.changes);
        Some(result)
    }
}

/// The calls of the API.
impl Cloudflare {
    pub(super) fn list_zones(&self, call: &Call) -> Answer {
        let name = call.query.get("name");
        let wanted =
            |(_, zone): &(&String, &Zone)| name.is_none_or(|name| zone.name.eq_ignore_ascii_case(name));
        let zones: Vec<(&String, &Zone)> = self.zones.iter().filter(wanted).collect();
        page(call, &ZONE_PAGES, zones, |(id, zone)| zone.json(id))
    }

    fn zone(&self, id: &str) -> Result<&Zone, Answer> {
        self.zones.get(id).ok_or_else(|| {
            let path = format!("/client/v4/zones/{id}/dns_records");
            let message = format!("Could not route to {path}, perhaps your object identifier is invalid?");
            error(404, 7003, &message)
        })
    }

    /// Makes changes to one zone, either all of them or none.
    pub(super) fn change(
        &mut self,
        id: &str,
        now: Duration,
        ledger: &mut Ledger,
        make: impl FnOnce(&mut Transaction) -> Result<Value, Answer>,
    ) -> Handled {
        let mut transaction = Transaction::of(self.zone(id)?, now);
        let result = make(&mut transaction)?;
        self.zones.insert(id.to_owned(), transaction.zone);
        for change in transaction.changes {
            ledger.did(now, change);
        }
        Ok(success(result))
    }

    pub(super) fn list_records(&self, zone: &str, call: &Call) -> Handled {
        let records = self.zone(zone)?.records.iter();
        let wanted: Vec<(&String, &Record)> =
            records.filter(|(_, record)| record.is_wanted(&call.query)).collect();
        Ok(page(call, &RECORD_PAGES, wanted, |(id, record)| record.json(id)))
    }

    pub(super) fn get_record(&self, zone: &str, id: &str) -> Handled {
        let record = self.zone(zone)?.records.get(id).ok_or_else(unknown_record)?;
        Ok(success(record.json(id)))
    }
}
