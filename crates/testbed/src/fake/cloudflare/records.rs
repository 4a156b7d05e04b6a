//! DNS records. Each record holds one value of one name.
//!
//! In: the fields of a request. Out: the complete record, or the error of the first rule that it breaks. It supports
//! only record types with a single text value.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::Answer;
use super::super::ledger::CloudChange;
use super::envelope::{error, moment};

const TYPES: [&str; 7] = ["A", "AAAA", "CNAME", "MX", "NS", "PTR", "TXT"];
const PROXIABLE_TYPES: [&str; 3] = ["A", "AAAA", "CNAME"];
/// The TTL of a new record, and of every proxied one. It means "automatic".
const TTL_AUTOMATIC: u64 = 1;
const COMMENT_CHARACTERS_MAX: usize = 100;

/// One value of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: String,
    /// The full name, including the zone's name.
    pub(super) name: String,
    pub(super) content: String,
    pub(super) created: Duration,
    modified: Duration,
    ttl: u64,
    proxied: bool,
    priority: Option<u64>,
    comment: Option<String>,
    comment_modified: Duration,
    settings: Value,
}

impl Record {
    /// Returns a record with default values only.
    pub(super) fn new(created: Duration) -> Self {
        Self {
            kind: String::new(),
            name: String::new(),
            content: String::new(),
            created,
            modified: created,
            ttl: TTL_AUTOMATIC,
            proxied: false,
            priority: None,
            comment: None,
            comment_modified: created,
            settings: json!({}),
        }
    }

    /// Returns this record with the changes of a request. `zone` is the name of the zone.
    pub(super) fn edited(&self, body: &Value, zone: &str, now: Duration) -> Result<Self, Answer> {
        let tags = body["tags"].as_array().map_or(0, Vec::len);
        let text = |field: &str, old: &str| body[field].as_str().unwrap_or(old).to_owned();
        let kind = text("type", &self.kind).to_ascii_uppercase();
        let comment = match &body["comment"] {
            Value::Null => self.comment.clone(),
            comment => comment.as_str().filter(|text| !text.is_empty()).map(str::to_owned),
        };
        let proxied = body["proxied"].as_bool().unwrap_or(self.proxied);
        let ttl = body["ttl"].as_u64().unwrap_or(self.ttl);
        let record = Self {
            name: full_name(zone, &text("name", &self.name)),
            content: text("content", &self.content),
            created: self.created,
            modified: now,
            ttl: if proxied { TTL_AUTOMATIC } else { ttl },
            proxied,
            priority: body["priority"].as_u64().or(self.priority).filter(|_| kind == "MX"),
            comment_modified: if comment == self.comment { self.comment_modified } else { now },
            comment,
            settings: body.get("settings").unwrap_or(&self.settings).clone(),
            kind,
        };
        record.check(ttl, tags)?;
        Ok(record)
    }

    fn check(&self, asked_ttl: u64, tags: usize) -> Result<(), Answer> {
        let is_v4 = self.content.parse::<Ipv4Addr>().is_ok();
        let is_v6 = self.content.parse::<Ipv6Addr>().is_ok();
        let comment_length = self.comment.as_ref().map_or(0, |comment| comment.chars().count());
        let (code, message) = match self.kind.as_str() {
            kind if !TYPES.contains(&kind) => (1004, "DNS Validation Error".to_owned()),
            _ if self.name.is_empty() => (9000, "DNS name is invalid.".to_owned()),
            "A" if !is_v4 => (9005, "Content for A record must be a valid IPv4 address.".to_owned()),
            "AAAA" if !is_v6 => (9006, "Content for AAAA record must be a valid IPv6 address.".to_owned()),
            _ if self.content.is_empty() => (1004, "DNS Validation Error".to_owned()),
            _ if asked_ttl != TTL_AUTOMATIC && !(60..=86_400).contains(&asked_ttl) => {
                (9021, "TTL must be between 60 and 86400 seconds, or 1 for Automatic.".to_owned())
            }
            kind if self.proxied && !PROXIABLE_TYPES.contains(&kind) => {
                (9004, "This record type cannot be proxied.".to_owned())
            }
            _ if self.proxied && !self.is_proxiable() => {
                (9003, format!("Target {} is not allowed for a proxied record.", self.content))
            }
            _ if comment_length > COMMENT_CHARACTERS_MAX => {
                let most = COMMENT_CHARACTERS_MAX;
                (9313, format!("DNS record comment exceeds the maximum length of {most} characters."))
            }
            _ if tags > 0 => (9300, format!("DNS record has {tags} tags, exceeding the quota of 0.")),
            _ => return Ok(()),
        };
        Err(error(400, code, &message))
    }

    /// Checks that the API would accept this record in a zone that contains the other one.
    pub(super) fn fits_beside(&self, other: &Self) -> Result<(), Answer> {
        if self.name != other.name {
            return Ok(());
        }
        let (code, message) = match (self.kind.as_str(), other.kind.as_str()) {
            (kind, of_other) if kind == of_other && self.content == other.content => {
                (81_058, "An identical record already exists.")
            }
            ("A" | "AAAA", "CNAME") => (81_054, "A CNAME record with that host already exists."),
            ("CNAME", "A" | "AAAA" | "CNAME") => {
                (81_053, "An A, AAAA, or CNAME record with that host already exists.")
            }
            _ => return Ok(()),
        };
        Err(error(400, code, message))
    }

    fn is_proxiable(&self) -> bool {
        let is_public = match self.content.parse() {
            Ok(IpAddr::V4(ip)) => !(ip.is_private() || ip.is_loopback() || ip.is_link_local()),
            Ok(IpAddr::V6(ip)) => !(ip.is_unique_local() || ip.is_loopback() || ip.is_unicast_link_local()),
            Err(_) => true,
        };
        is_public && PROXIABLE_TYPES.contains(&self.kind.as_str())
    }

    pub(super) fn json(&self, id: &str) -> Value {
        let mut json = json!({
            "id": id,
            "name": self.name,
            "type": self.kind,
            "content": self.content,
            "proxiable": self.is_proxiable(),
            "proxied": self.proxied,
            "ttl": self.ttl,
            "settings": self.settings,
            "meta": {},
            "comment": self.comment,
            "tags": [],
            "created_on": moment(self.created),
            "modified_on": moment(self.modified),
        });
        if self.comment.is_some() {
            json["comment_modified_on"] = moment(self.comment_modified).into();
        }
        if let Some(priority) = self.priority {
            json["priority"] = priority.into();
        }
        json
    }

    pub(super) fn set(&self) -> CloudChange {
        CloudChange::RecordSet { name: self.name.clone(), value: self.content.clone() }
    }

    pub(super) fn removed(&self) -> CloudChange {
        CloudChange::RecordRemoved { name: self.name.clone(), value: self.content.clone() }
    }

    /// Whether the record matches the filters of a listing.
    pub(super) fn is_wanted(&self, query: &BTreeMap<String, String>) -> bool {
        let comment = self.comment.as_deref().unwrap_or_default();
        let texts = [("name", self.name.as_str()), ("content", self.content.as_str()), ("comment", comment)];
        texts.into_iter().all(|(field, text)| is_wanted(query, field, text))
            && query.get("type").is_none_or(|kind| self.kind.eq_ignore_ascii_case(kind))
            && query.get("proxied").is_none_or(|proxied| self.proxied.to_string() == *proxied)
            && !(query.contains_key("comment.present") && self.comment.is_none())
            && !(query.contains_key("comment.absent") && self.comment.is_some())
    }
}

/// Whether a text matches all filters for its field. Filters are case-insensitive.
fn is_wanted(query: &BTreeMap<String, String>, field: &str, text: &str) -> bool {
    let text = text.to_lowercase();
    let passes = |filter: String, test: fn(&str, &str) -> bool| {
        query.get(&filter).is_none_or(|wanted| test(&text, &wanted.to_lowercase()))
    };
    passes(field.to_owned(), |text, wanted| text == wanted)
        && passes(format!("{field}.exact"), |text, wanted| text == wanted)
        && passes(format!("{field}.contains"), |text, wanted| text.contains(wanted))
        && passes(format!("{field}.startswith"), |text, wanted| text.starts_with(wanted))
        && passes(format!("{field}.endswith"), |text, wanted| text.ends_with(wanted))
}

/// Normalizes a name as the API does: lower case, and with the zone's name at the end.
fn full_name(zone: &str, name: &str) -> String {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let is_below = name.strip_suffix(zone).is_some_and(|rest| rest.ends_with('.'));
    match name.as_str() {
        "@" => zone.to_owned(),
        "" => name,
        _ if is_below || name == zone => name,
        _ => format!("{name}.{zone}"),
    }
}

pub(super) fn unknown_record() -> Answer {
    error(404, 81_044, "Record does not exist.")
}
