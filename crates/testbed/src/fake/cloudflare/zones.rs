//! Zones, and the transactions that change their records.
//!
//! In: changes, one or a batch of them. Out: the records that they made, and the deeds for the ledger, once all of them
//! were accepted. It never leaves a zone half changed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::{Deed, Ledger};
use super::super::{Answer, Call};
use super::pages::{Sizes, page};
use super::records::Record;
use super::{Cloudflare, Handled, error, identifier, moment, success};

const ZONE_PAGES: Sizes = Sizes { default: 20, allowed: 5..=50 };
/// The most changes in one batch on a free plan.
const BATCH_CHANGES_MAX: usize = 200;

/// A zone and its records by their identifiers.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    pub(super) name: String,
    pub(super) records: BTreeMap<String, Record>,
    /// Which of the account's zones it is, so that no two records of the account have one identifier.
    number: u64,
    /// How many records it has ever had.
    record_count: u64,
}

/// For tests and for people who try things.
impl Cloudflare {
    /// Adds a zone without records, and gives its identifier.
    pub fn add_zone(&mut self, name: impl Into<String>) -> String {
        let number = self.zones.len() as u64 + 1;
        let id = identifier(number);
        let zone = Zone { name: name.into(), records: BTreeMap::new(), number, record_count: 0 };
        self.zones.insert(id.clone(), zone);
        id
    }

    /// Adds a record as somebody else would, with the dashboard, and gives its identifier. There is none where the zone,
    /// which goes by its name here, is unknown, or where the API would refuse such a record.
    pub fn add_record(&mut self, zone: &str, kind: &str, name: &str, content: &str) -> Option<String> {
        let wish = json!({ "type": kind, "name": name, "content": content });
        let record = self.change_by_hand(zone, |zone| zone.post(&wish))?;
        record["id"].as_str().map(str::to_owned)
    }

    /// Changes a record as somebody else would, with the dashboard: `{ "proxied": true }`. Says whether it was accepted.
    pub fn edit_record(&mut self, zone: &str, id: &str, parts: &Value) -> bool {
        self.change_by_hand(zone, |zone| zone.patch(id, parts)).is_some()
    }

    /// The records of a name and type in the API's own form, in the order of their contents.
    pub fn records(&self, name: &str, kind: &str) -> Vec<Value> {
        let records = self.zones.values().flat_map(|zone| &zone.records);
        let mut found: Vec<(&String, &Record)> =
            records.filter(|(_, record)| record.name == name && record.kind == kind).collect();
        found.sort_by_key(|(_, record)| &record.content);
        found.into_iter().map(|(id, record)| record.json(id)).collect()
    }

    /// What a name resolves to, in order.
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
        self.unwritten.extend(transaction.deeds);
        Some(result)
    }
}

impl Cloudflare {
    pub(super) fn list_zones(&self, call: &Call) -> Answer {
        let name = call.query.get("name");
        let wanted =
            |(_, zone): &(&String, &Zone)| name.is_none_or(|name| zone.name.eq_ignore_ascii_case(name));
        let zones: Vec<(&String, &Zone)> = self.zones.iter().filter(wanted).collect();
        page(call, &ZONE_PAGES, zones, |(id, zone)| zone.json(id))
    }

    pub(super) fn zone(&self, id: &str) -> Result<&Zone, Answer> {
        self.zones.get(id).ok_or_else(|| {
            let path = format!("/client/v4/zones/{id}/dns_records");
            let message = format!("Could not route to {path}, perhaps your object identifier is invalid?");
            error(404, 7003, &message)
        })
    }

    /// Carries out changes to one zone, all or none.
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
        for deed in transaction.deeds {
            ledger.did(now, deed);
        }
        Ok(success(result))
    }
}

impl Zone {
    fn json(&self, id: &str) -> Value {
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

    /// A name as the API keeps it: in lower case, and ending in the zone's.
    pub(super) fn full_name(&self, name: &str) -> String {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let is_below = name.strip_suffix(self.name.as_str()).is_some_and(|rest| rest.ends_with('.'));
        match name.as_str() {
            "@" => self.name.clone(),
            "" => name,
            _ if is_below || name == self.name => name,
            _ => format!("{name}.{}", self.name),
        }
    }
}

/// Changes to a copy of a zone, which takes the zone's place once all of them were accepted.
pub(super) struct Transaction {
    zone: Zone,
    now: Duration,
    deeds: Vec<Deed>,
}

impl Transaction {
    fn of(zone: &Zone, now: Duration) -> Self {
        Self { zone: zone.clone(), now, deeds: Vec::new() }
    }

    /// Makes a record.
    pub(super) fn post(&mut self, wish: &Value) -> Result<Value, Answer> {
        let record = Record::new(self.now).edited(wish, &self.zone, self.now)?;
        self.zone.record_count += 1;
        let id = identifier((self.zone.number << 32) + self.zone.record_count);
        self.keep(&id, record)
    }

    /// Changes the parts of a record that the request names.
    pub(super) fn patch(&mut self, id: &str, parts: &Value) -> Result<Value, Answer> {
        let record = self.record(id)?.edited(parts, &self.zone, self.now)?;
        self.keep(id, record)
    }

    /// Makes another record of one. What the request does not name is as in a new record.
    pub(super) fn put(&mut self, id: &str, wish: &Value) -> Result<Value, Answer> {
        let blank = Record::new(self.record(id)?.created);
        let record = blank.edited(wish, &self.zone, self.now)?;
        self.keep(id, record)
    }

    /// Removes a record, and gives what it was.
    pub(super) fn delete(&mut self, id: &str) -> Result<Value, Answer> {
        let gone = self.record(id)?;
        let (was, deed) = (gone.json(id), gone.removed());
        self.zone.records.remove(id);
        self.deeds.push(deed);
        Ok(was)
    }

    /// Carries out many changes, in the order that the API has for them, not in that of the request.
    pub(super) fn batch(&mut self, wish: &Value) -> Result<Value, Answer> {
        let kinds = ["deletes", "patches", "puts", "posts"];
        let changes = |kind: &str| wish[kind].as_array().map_or(&[][..], Vec::as_slice);
        let count: usize = kinds.iter().map(|kind| changes(kind).len()).sum();
        if count > BATCH_CHANGES_MAX {
            // The vendor's documentation has the limit, and no code for what exceeds it.
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

    /// Puts a record in its place, if the others leave room for it.
    fn keep(&mut self, id: &str, record: Record) -> Result<Value, Answer> {
        let mut others = self.zone.records.iter().filter(|(other, _)| *other != id).map(|(_, other)| other);
        others.try_for_each(|other| record.fits_beside(other))?;
        let old = self.zone.records.get(id);
        if let Some(old) = old.filter(|old| (&old.name, &old.content) != (&record.name, &record.content)) {
            self.deeds.push(old.removed());
        }
        self.deeds.push(record.set());
        let made = record.json(id);
        self.zone.records.insert(id.to_owned(), record);
        Ok(made)
    }
}

pub(super) fn unknown_record() -> Answer {
    error(404, 81_044, "Record does not exist.")
}
