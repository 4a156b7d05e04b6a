//! Zones, and the transactions that change their records.
//!
//! In: one change or a batch of them. Out: the changed records, and the changes for the ledger, if all of them are
//! valid. It never applies a part of a batch.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::Answer;
use super::super::ledger::CloudChange;
use super::envelope::{error, identifier, moment};
use super::records::{Record, unknown_record};

/// The most changes in one batch on a free plan.
const BATCH_CHANGES_MAX: usize = 200;

/// A zone and its records by ID.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    pub(super) name: String,
    pub(super) records: BTreeMap<String, Record>,
    /// The number of the zone in the account. It makes record IDs unique in the account.
    pub(super) number: u64,
    /// The number of records that were ever created in it.
    pub(super) record_count: u64,
}

impl Zone {
    pub(super) fn json(&self, id: &str) -> Value {
        let created = moment(Duration::ZERO);
        json!({
            "id": id,
            "name": self.name,
            "status": "active",
            "paused": false,
            "type": "full",
            "development_mode": 0,
            "name_servers": ["ada.ns.cloudflare.com", "bob.ns.cloudflare.com"],
            "original_name_servers": null,
            "original_registrar": null,
            "original_dnshost": null,
            "created_on": created,
            "modified_on": created,
            "activated_on": created,
            "meta": { "step": 2, "custom_certificate_quota": 0, "page_rule_quota": 3, "phishing_detected": false },
            "owner": { "id": null, "type": "user", "name": null },
            "account": { "id": identifier(0x0acc_0000_0000), "name": "Addresses" },
            "permissions": ["#dns_records:edit", "#dns_records:read", "#zone:read"],
            "plan": {
                "id": identifier(0x0f1a_0000_0000),
                "name": "Free Website",
                "price": 0,
                "currency": "USD",
                "frequency": "",
                "is_subscribed": false,
                "can_subscribe": false,
                "legacy_id": "free",
                "legacy_discount": false,
                "externally_managed": false,
            },
        })
    }
}

/// Changes to a copy of a zone. The copy replaces the zone if all changes are valid.
pub(super) struct Transaction {
    pub(super) zone: Zone,
    now: Duration,
    pub(super) changes: Vec<CloudChange>,
}

impl Transaction {
    pub(super) fn of(zone: &Zone, now: Duration) -> Self {
        Self { zone: zone.clone(), now, changes: Vec::new() }
    }

    /// Creates a record.
    pub(super) fn post(&mut self, body: &Value) -> Result<Value, Answer> {
        let record = Record::new(self.now).edited(body, &self.zone.name, self.now)?;
        self.zone.record_count += 1;
        let id = identifier((self.zone.number << 32) + self.zone.record_count);
        self.keep(&id, record)
    }

    /// Changes the fields of a record that the request contains.
    pub(super) fn patch(&mut self, id: &str, parts: &Value) -> Result<Value, Answer> {
        let record = self.record(id)?.edited(parts, &self.zone.name, self.now)?;
        self.keep(id, record)
    }

    /// Replaces a record. Fields that the request omits get their default values.
    pub(super) fn put(&mut self, id: &str, body: &Value) -> Result<Value, Answer> {
        let blank = Record::new(self.record(id)?.created);
        let record = blank.edited(body, &self.zone.name, self.now)?;
        self.keep(id, record)
    }

    /// Deletes a record and returns it.
    pub(super) fn delete(&mut self, id: &str) -> Result<Value, Answer> {
        let gone = self.record(id)?;
        let (was, change) = (gone.json(id), gone.removed());
        self.zone.records.remove(id);
        self.changes.push(change);
        Ok(was)
    }

    /// Makes many changes, in the order that the API defines, not in that of the request.
    pub(super) fn batch(&mut self, body: &Value) -> Result<Value, Answer> {
        let kinds = ["deletes", "patches", "puts", "posts"];
        let changes = |kind: &str| body[kind].as_array().map_or(&[][..], Vec::as_slice);
        let count: usize = kinds.iter().map(|kind| changes(kind).len()).sum();
        if count > BATCH_CHANGES_MAX {
            // The vendor documents the limit, but no error code for exceeding it.
            let message =
                format!("A batch has at most {BATCH_CHANGES_MAX} changes, and this one has {count}.");
            return Err(error(400, 1004, &message));
        }
        let mut results = json!({});
        for kind in kinds.into_iter().filter(|kind| !changes(kind).is_empty()) {
            let made: Result<Vec<Value>, Answer> = changes(kind)
                .iter()
                .map(|change| {
                    let id = change["id"].as_str().unwrap_or_default();
                    match kind {
                        "deletes" => self.delete(id),
                        "patches" => self.patch(id, change),
                        "puts" => self.put(id, change),
                        _ => self.post(change),
                    }
                })
                .collect();
            results[kind] = Value::Array(made?);
        }
        Ok(results)
    }

    fn record(&self, id: &str) -> Result<&Record, Answer> {
        self.zone.records.get(id).ok_or_else(unknown_record)
    }

    /// Stores a record, if it does not conflict with the others.
    fn keep(&mut self, id: &str, record: Record) -> Result<Value, Answer> {
        let mut others = self.zone.records.iter().filter(|(other, _)| *other != id).map(|(_, other)| other);
        others.try_for_each(|other| record.fits_beside(other))?;
        let old = self.zone.records.get(id);
        if let Some(old) = old.filter(|old| (&old.name, &old.content) != (&record.name, &record.content)) {
            self.changes.push(old.removed());
        }
        self.changes.push(record.set());
        let made = record.json(id);
        self.zone.records.insert(id.to_owned(), record);
        Ok(made)
    }
}
