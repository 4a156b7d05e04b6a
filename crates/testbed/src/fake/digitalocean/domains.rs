//! Domains and their DNS records.
//!
//! In: the fields of a record, with its name relative to the domain. Out: the same fields, one object for each value,
//! and full names for the ledger. It never compares records with each other: two of them may have the same name, type
//! and value.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::{CloudChange, Ledger};
use super::super::{Answer, Call};
use super::account::{DigitalOcean, Domain, Record};
use super::answers::{Handled, no_content, not_found, unprocessable};

const TTL_DEFAULT: u64 = 1800;
const NAME_SERVERS: [&str; 3] = ["ns1.digitalocean.com", "ns2.digitalocean.com", "ns3.digitalocean.com"];
const TYPES: [&str; 8] = ["A", "AAAA", "CAA", "CNAME", "MX", "NS", "SRV", "TXT"];

impl Record {
    fn new(kind: &str, name: &str, data: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            data: data.to_owned(),
            ttl: TTL_DEFAULT,
            priority: None,
            port: None,
            weight: None,
            flags: None,
            tag: None,
        }
    }

    /// Returns this record with the changes of a request. Fields that its type does not use stay empty.
    fn edited(&self, body: &Value) -> Result<Self, Answer> {
        let text = |field: &str, old: &str| body[field].as_str().unwrap_or(old).to_owned();
        let number = |field: &str, old: Option<u64>| body[field].as_u64().or(old);
        let kind = text("type", &self.kind).to_ascii_uppercase();
        let is = |kinds: &[&str]| kinds.contains(&kind.as_str());
        let record = Self {
            name: text("name", &self.name),
            data: text("data", &self.data),
            ttl: number("ttl", None).unwrap_or(self.ttl),
            priority: number("priority", self.priority).filter(|_| is(&["MX", "SRV"])),
            port: number("port", self.port).filter(|_| is(&["SRV"])),
            weight: number("weight", self.weight).filter(|_| is(&["SRV"])),
            flags: number("flags", self.flags).filter(|_| is(&["CAA"])),
            tag: body["tag"].as_str().map(str::to_owned).or(self.tag.clone()).filter(|_| is(&["CAA"])),
            kind,
        };
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), Answer> {
        let message = match self.kind.as_str() {
            kind if !TYPES.contains(&kind) && kind != "SOA" => "Type is not included in the list",
            _ if self.name.is_empty() => "Name can't be blank",
            _ if self.data.is_empty() => "Data can't be blank",
            "A" if self.data.parse::<Ipv4Addr>().is_err() => "IP address did not match IPv4 format",
            "AAAA" if self.data.parse::<Ipv6Addr>().is_err() => "IP address did not match IPv6 format",
            _ if self.ttl < 30 => "TTL must be at least 30 seconds",
            _ => return Ok(()),
        };
        Err(unprocessable(message))
    }

    fn full_name(&self, domain: &str) -> String {
        if self.name == "@" { domain.to_owned() } else { format!("{}.{domain}", self.name) }
    }

    fn json(&self, id: u64) -> Value {
        json!({
            "id": id,
            "type": self.kind,
            "name": self.name,
            "data": self.data,
            "priority": self.priority,
            "port": self.port,
            "ttl": self.ttl,
            "weight": self.weight,
            "flags": self.flags,
            "tag": self.tag,
        })
    }

    fn set(&self, domain: &str) -> CloudChange {
        CloudChange::RecordSet { name: self.full_name(domain), value: self.data.clone() }
    }

    fn removed(&self, domain: &str) -> CloudChange {
        CloudChange::RecordRemoved { name: self.full_name(domain), value: self.data.clone() }
    }
}

/// The calls for domains, and what a person can do with the console.
impl DigitalOcean {
    /// Adds a domain with the records that DigitalOcean creates for every domain.
    pub fn add_domain(&mut self, name: impl Into<String>) {
        let mut records = vec![Record::new("SOA", "@", "1800")];
        records.extend(NAME_SERVERS.map(|server| Record::new("NS", "@", server)));
        let records = records.into_iter().map(|record| (self.next_record_id(), record)).collect();
        self.domains.insert(name.into(), Domain { records });
    }

    /// Replaces the records of a name and type, to simulate a change by a person. The name is relative to the domain.
    /// The `Ledger` does not record the change.
    pub fn replace_records(&mut self, domain: &str, kind: &str, name: &str, values: &[&str]) {
        let made: Vec<_> =
            values.iter().map(|value| (self.next_record_id(), Record::new(kind, name, value))).collect();
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.records.retain(|_, record| record.kind != kind || record.name != name);
            domain.records.extend(made);
        }
    }

    /// Returns the values of a name, which is relative to the domain.
    pub fn record_values(&self, domain: &str, kind: &str, name: &str) -> Vec<String> {
        let records = self.domains.get(domain).into_iter().flat_map(|domain| domain.records.values());
        let meant = records.filter(|record| record.kind == kind && record.name == name);
        meant.map(|record| record.data.clone()).collect()
    }

    /// Returns the full name and the value of a record.
    pub fn record_of(&self, domain: &str, id: u64) -> Option<(String, String)> {
        let record = self.domains.get(domain)?.records.get(&id)?;
        Some((record.full_name(domain), record.data.clone()))
    }

    pub(super) fn list_domains(&self, call: &Call) -> Answer {
        let domains: Vec<(&String, &Domain)> = self.domains.iter().collect();
        self.page(call, "domains", domains, |(name, domain)| domain.json(name))
    }

    pub(super) fn get_domain(&self, name: &str) -> Handled {
        let domain = self.domains.get(name).ok_or_else(not_found)?;
        Ok(Answer::json(200, json!({ "domain": domain.json(name) })))
    }

    pub(super) fn create_domain(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Handled {
        let name = call.body["name"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(unprocessable("Name can't be blank"));
        }
        if self.domains.contains_key(&name) {
            return Err(unprocessable("Name already exists"));
        }
        let apex = call.body["ip_address"].as_str().map(|ip| Record::new("A", "@", ip));
        apex.as_ref().map_or(Ok(()), Record::check)?;
        self.add_domain(name.as_str());
        ledger.did(now, CloudChange::Other(format!("created domain {name}")));
        if let Some(record) = apex {
            self.insert_record(&name, record, now, ledger)?;
        }
        // DigitalOcean writes the zone file after the answer, so the answer has none.
        let domain = json!({ "name": name, "ttl": TTL_DEFAULT, "zone_file": null });
        Ok(Answer::json(201, json!({ "domain": domain })))
    }
}

impl Domain {
    fn json(&self, name: &str) -> Value {
        let line = |record: &Record| {
            format!("{}. {} IN {} {}\n", record.full_name(name), record.ttl, record.kind, record.data)
        };
        let zone_file: String = self.records.values().map(line).collect();
        json!({ "name": name, "ttl": TTL_DEFAULT, "zone_file": format!("$ORIGIN {name}.\n{zone_file}") })
    }
}

/// The calls for records.
impl DigitalOcean {
    /// Lists records. The name filter expects full names, although answers contain relative names.
    pub(super) fn list_records(&self, name: &str, call: &Call) -> Handled {
        let domain = self.domains.get(name).ok_or_else(not_found)?;
        let (full_name, kind) = (call.query.get("name"), call.query.get("type"));
        let wanted = |(_, record): &(&u64, &Record)| {
            full_name.is_none_or(|full| record.full_name(name).eq_ignore_ascii_case(full))
                && kind.is_none_or(|kind| record.kind.eq_ignore_ascii_case(kind))
        };
        let records: Vec<(&u64, &Record)> = domain.records.iter().filter(wanted).collect();
        Ok(self.page(call, "domain_records", records, |(id, record)| record.json(*id)))
    }

    pub(super) fn get_record(&self, name: &str, id: &str) -> Handled {
        let (id, record) = self.record(name, id)?;
        Ok(Answer::json(200, json!({ "domain_record": record.json(id) })))
    }

    pub(super) fn create_record(
        &mut self,
        name: &str,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Handled {
        if !self.domains.contains_key(name) {
            return Err(not_found());
        }
        let record = Record::new("", "", "").edited(&call.body)?;
        let body = record.clone();
        let id = self.insert_record(name, record, now, ledger)?;
        Ok(Answer::json(201, json!({ "domain_record": body.json(id) })))
    }

    /// Changes the fields of a record that the request contains. The name has a value at every moment.
    pub(super) fn edit_record(
        &mut self,
        name: &str,
        id: &str,
        call: &Call,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Handled {
        let (id, old) = self.record(name, id)?;
        let (old, new) = (old.clone(), old.edited(&call.body)?);
        if (&old.name, &old.data) == (&new.name, &new.data) {
            ledger.did(now, CloudChange::Other(format!("changed {}", old.full_name(name))));
        } else {
            // The addition comes first, so the ledger never shows the name without a value.
            ledger.did(now, new.set(name));
            ledger.did(now, old.removed(name));
        }
        let answer = Answer::json(200, json!({ "domain_record": new.json(id) }));
        self.domains.get_mut(name).ok_or_else(not_found)?.records.insert(id, new);
        Ok(answer)
    }

    pub(super) fn delete_record(
        &mut self,
        name: &str,
        id: &str,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Handled {
        let (id, record) = self.record(name, id)?;
        ledger.did(now, record.removed(name));
        self.domains.get_mut(name).ok_or_else(not_found)?.records.remove(&id);
        Ok(no_content())
    }

    fn record(&self, name: &str, id: &str) -> Result<(u64, &Record), Answer> {
        let id: u64 = id.parse().map_err(|_| not_found())?;
        let record = self.domains.get(name).and_then(|domain| domain.records.get(&id));
        record.map(|record| (id, record)).ok_or_else(not_found)
    }

    fn insert_record(
        &mut self,
        name: &str,
        record: Record,
        now: Duration,
        ledger: &mut Ledger,
    ) -> Result<u64, Answer> {
        let id = self.next_record_id();
        ledger.did(now, record.set(name));
        self.domains.get_mut(name).ok_or_else(not_found)?.records.insert(id, record);
        Ok(id)
    }

    fn next_record_id(&mut self) -> u64 {
        self.record_count += 1;
        28_448_000 + self.record_count
    }
}
