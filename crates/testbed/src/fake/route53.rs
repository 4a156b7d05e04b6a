//! The API of Amazon Route 53, as far as simple record sets in hosted zones need it.
//!
//! In: the requests of a driver or of the vendor's clients. Out: the vendor's answers and error bodies, and a ledger
//! with the full name of every record that was set or removed. Every change takes effect at once.
//!
//! The fake applies a batch as a whole. If it refuses one change, it refuses the whole batch:
//!
//! ```text
//! CREATE   a set of this name and type exists               InvalidChangeBatch
//! DELETE   no such set, or its values or TTL differ         InvalidChangeBatch
//! any      a CNAME beside another record                    InvalidChangeBatch
//! UPSERT   otherwise succeeds
//! ```
//!
//! It never helps a caller: names in answers end in a dot, and a `*` is written as `\052`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::http::Request;
use bytes::Bytes;

use super::ledger::{CloudChange, Ledger};
use super::limits::{Limit, Rate};
use super::signature::Signature;
use super::{Answer, Call, Machine, Refusal, Route, names, route_in, xml};

/// The calls: method, path and the name in [`ROUTES`].
const CALLS: [(&str, &str, &str); 3] = [
    ("GET", "2013-04-01/hostedzonesbyname", "ListHostedZonesByName"),
    ("GET", "2013-04-01/hostedzone/{}/rrset", "ListResourceRecordSets"),
    ("POST", "2013-04-01/hostedzone/{}/rrset", "ChangeResourceRecordSets"),
];

/// The names of all calls, as the vendor spells them.
pub const ROUTES: &[&str] = &names(&CALLS);

/// The rate limit over all calls.
const REQUESTS_PER_SECOND: u32 = 5;

const CONTENT_TYPE: &str = "text/xml";

/// The AWS account behind the API.
#[derive(Debug, Default)]
pub struct Route53 {
    /// The access key ID that the API accepts.
    pub key: String,
    /// Permissions that the caller lacks, such as `route53:ChangeResourceRecordSets`.
    pub denied: BTreeSet<String>,
    /// The number of zones that were ever created.
    made: usize,
    zones: BTreeMap<String, Zone>,
}

#[derive(Clone, Debug)]
struct Zone {
    name: String,
    is_private: bool,
    sets: Sets,
}

/// Record sets by name and type. A name is a list of its labels in reverse, which gives the vendor's sort order.
type Sets = BTreeMap<(Vec<String>, String), Set>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    ttl: u32,
    values: BTreeSet<String>,
}

/// The answer of a handler, or its error.
type Handled = Result<Answer, Answer>;

impl Route53 {
    /// Creates an empty account.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Adds a hosted zone and returns its ID.
    pub fn add_zone(&mut self, name: &str) -> String {
        self.add(name, false)
    }

    /// Adds a private hosted zone and returns its ID.
    pub fn add_private_zone(&mut self, name: &str) -> String {
        self.add(name, true)
    }

    fn add(&mut self, name: &str, is_private: bool) -> String {
        self.made += 1;
        let id = format!("Z{:013}", self.made);
        let mut zone = Zone { name: dotted(name), is_private, sets: BTreeMap::new() };
        for (kind, value) in
            [("NS", "ns-1.awsdns-01.org."), ("SOA", "ns-1.awsdns-01.org. x. 1 7200 900 1209600 86400")]
        {
            zone.sets
                .insert((labels(name), kind.into()), Set { ttl: 900, values: [value.to_owned()].into() });
        }
        self.zones.insert(id.clone(), zone);
        id
    }

    /// Deletes a hosted zone. If it is created again, it has another ID.
    pub fn remove_zone(&mut self, id: &str) {
        self.zones.remove(id);
    }

    /// Sets a record as a person would.
    pub fn set_record(&mut self, zone: &str, name: &str, kind: &str, ttl: u32, values: &[&str]) {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        if let Some(zone) = self.zones.get_mut(zone) {
            zone.sets.insert((labels(name), kind.into()), Set { ttl, values });
        }
    }

    /// Returns the values of a record set.
    pub fn values(&self, zone: &str, name: &str, kind: &str) -> BTreeSet<String> {
        let set = self.zones.get(zone).and_then(|zone| zone.sets.get(&(labels(name), kind.to_owned())));
        set.map(|set| set.values.clone()).unwrap_or_default()
    }

    fn dispatch(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Handled {
        let permission = format!("route53:{}", call.route.name);
        if self.denied.contains(&permission) {
            let text = format!(
                "User: arn:aws:iam::123456789012:user/controller is not authorized to perform: {permission} on resource: *"
            );
            return Err(error(403, "AccessDenied", &text));
        }
        match (call.route.name, call.route.params.as_slice()) {
            ("ListResourceRecordSets", [id]) => self.list(id, call),
            ("ChangeResourceRecordSets", [id]) => self.change(id, call, now, ledger),
            _ => Ok(self.zones_by_name(call)),
        }
    }

    fn zones_by_name(&self, call: &Call) -> Answer {
        let from = call.query.get("dnsname").map(|name| labels(name)).unwrap_or_default();
        let mut zones: Vec<_> = self.zones.iter().filter(|(_, zone)| labels(&zone.name) >= from).collect();
        zones.sort_by_key(|(_, zone)| labels(&zone.name));
        let zone = |(id, zone): (&String, &Zone)| {
            let config = xml::element("Config", &xml::text("PrivateZone", &zone.is_private.to_string()));
            let id = xml::text("Id", &format!("/hostedzone/{id}"));
            let (name, reference) = (xml::text("Name", &zone.name), xml::text("CallerReference", "fake"));
            xml::element("HostedZone", &(id + &name + &reference + &config))
        };
        let items: String = zones.into_iter().map(zone).collect();
        let body =
            xml::element("HostedZones", &items) + "<IsTruncated>false</IsTruncated><MaxItems>100</MaxItems>";
        answer("ListHostedZonesByNameResponse", &body)
    }

    fn list(&self, id: &str, call: &Call) -> Handled {
        let zone = self.zones.get(id).ok_or_else(|| no_zone(id))?;
        let from = call.query.get("name").map(|name| labels(name)).unwrap_or_default();
        let from = (from, call.query.get("type").cloned().unwrap_or_default());
        let size = call.query.get("maxitems").and_then(|text| text.parse().ok()).unwrap_or(300);
        let found: Vec<_> = zone.sets.range(from..).collect();
        let items: String = found.iter().take(size).map(|(key, set)| set_xml(key, set)).collect();
        let is_truncated = (found.len() > size).to_string();
        let body = xml::element("ResourceRecordSets", &items)
            + &xml::text("IsTruncated", &is_truncated)
            + &xml::text("MaxItems", &size.to_string());
        Ok(answer("ListResourceRecordSetsResponse", &body))
    }

    fn change(&mut self, id: &str, call: &Call, now: Duration, ledger: &mut Ledger) -> Handled {
        let zone = self.zones.get_mut(id).ok_or_else(|| no_zone(id))?;
        let body = String::from_utf8_lossy(&call.raw).into_owned();
        let mut sets = zone.sets.clone();
        for change in xml::all("Change", &body) {
            let is_inside = key_in(change).is_some_and(|(name, _)| name.starts_with(&labels(&zone.name)));
            if !is_inside {
                return Err(invalid(&format!("RRSet is not permitted in zone {}", zone.name)));
            }
            apply(&mut sets, change)?;
        }
        for key in zone.sets.keys().chain(sets.keys()).collect::<BTreeSet<_>>() {
            let values = |sets: &Sets| sets.get(key).map(|set| set.values.clone()).unwrap_or_default();
            let (before, after, name) = (values(&zone.sets), values(&sets), name_of(&key.0));
            // All changes of a batch happen at one moment. Additions come first, so the ledger never shows the name
            // without a value.
            for value in after.difference(&before) {
                ledger.did(now, CloudChange::RecordSet { name: name.clone(), value: value.clone() });
            }
            for value in before.difference(&after) {
                ledger.did(now, CloudChange::RecordRemoved { name: name.clone(), value: value.clone() });
            }
        }
        zone.sets = sets;
        let info =
            "<Id>/change/C1</Id><Status>PENDING</Status><SubmittedAt>2026-01-01T00:00:00Z</SubmittedAt>";
        Ok(answer("ChangeResourceRecordSetsResponse", &xml::element("ChangeInfo", info)))
    }
}

/// Returns a batch that has the same effect on the listed records, but never deletes and recreates a record set.
pub(crate) fn net_batch(listed: &str, batch: &str) -> Result<String, Answer> {
    let sets = xml::all("ResourceRecordSet", listed).into_iter();
    let before: Sets = sets.filter_map(|set| Some((key_in(set)?, set_in(set)))).collect();
    let mut after = before.clone();
    for change in xml::all("Change", batch) {
        apply(&mut after, change)?;
    }
    let change = |action: &str, key: &(Vec<String>, String), set: &Set| {
        xml::element("Change", &(xml::text("Action", action) + &set_xml(key, set)))
    };
    let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
    let gone = gone.map(|(key, set)| change("DELETE", key, set));
    let made = after.iter().filter(|(key, set)| before.get(*key) != Some(*set));
    let made = made.map(|(key, set)| change("UPSERT", key, set));
    let changes = xml::element("Changes", &gone.chain(made).collect::<String>());
    Ok(xml::element("ChangeResourceRecordSetsRequest", &xml::element("ChangeBatch", &changes)))
}

/// Returns a record set in the vendor's format.
fn set_xml((labels, kind): &(Vec<String>, String), set: &Set) -> String {
    let record = |value: &String| xml::element("ResourceRecord", &xml::text("Value", value));
    let records: String = set.values.iter().map(record).collect();
    let (name, kind) = (xml::text("Name", &wire_name(labels)), xml::text("Type", kind));
    let ttl = xml::text("TTL", &set.ttl.to_string());
    xml::element("ResourceRecordSet", &(name + &kind + &ttl + &xml::element("ResourceRecords", &records)))
}

fn key_in(set: &str) -> Option<(Vec<String>, String)> {
    Some((labels(&xml::first("Name", set)?), xml::first("Type", set)?))
}

fn set_in(set: &str) -> Set {
    let values = xml::all("ResourceRecord", set).into_iter().filter_map(|record| xml::first("Value", record));
    let ttl = xml::first("TTL", set).and_then(|text| text.parse().ok()).unwrap_or_default();
    Set { ttl, values: values.collect() }
}

/// Applies one change of a batch to the record sets of a zone.
pub(crate) fn apply(sets: &mut Sets, change: &str) -> Result<(), Answer> {
    let part = |name| xml::first(name, change).unwrap_or_default();
    let (action, name, kind) = (part("Action"), part("Name"), part("Type"));
    let (key, set) = ((labels(&name), kind.clone()), set_in(change));
    let refused = |why: &str| {
        let action = action.to_ascii_lowercase();
        invalid(&format!("Tried to {action} resource record set [name='{name}', type='{kind}'] but {why}"))
    };
    match (action.as_str(), sets.get(&key)) {
        ("CREATE", Some(_)) => return Err(refused("it already exists")),
        ("DELETE", None) => return Err(refused("it was not found")),
        ("DELETE", Some(found)) if *found != set => {
            return Err(refused("the values provided do not match the current values"));
        }
        ("DELETE", Some(_)) => _ = sets.remove(&key),
        ("CREATE" | "UPSERT", _) => _ = sets.insert(key.clone(), set),
        _ => return Err(error(400, "InvalidInput", "Invalid XML")),
    }
    let beside = sets.keys().filter(|(name, _)| *name == key.0);
    if beside.clone().count() > 1 && beside.into_iter().any(|(_, kind)| kind == "CNAME") {
        return Err(refused("it conflicts with other records with the same DNS name"));
    }
    Ok(())
}

impl Machine for Route53 {
    fn route(request: &Request<Bytes>) -> Option<Route> {
        route_in(&CALLS, request)
    }

    fn limits() -> Vec<Limit> {
        let rate = Rate::Bucket {
            burst: REQUESTS_PER_SECOND,
            interval: Duration::from_secs(1) / REQUESTS_PER_SECOND,
        };
        vec![Limit { counts: |_| true, rate, headers: None }]
    }

    fn handle(&mut self, call: &Call, now: Duration, ledger: &mut Ledger) -> Answer {
        self.dispatch(call, now, ledger).unwrap_or_else(|refused| refused)
    }

    fn refuse(&self, refusal: &Refusal) -> Answer {
        refused(refusal)
    }

    fn is_authorized(&self, request: &Request<Bytes>) -> bool {
        Signature::of(request.headers())
            .is_some_and(|signature| signature.key == self.key && signature.service == "route53")
    }
}

/// Returns Route 53's answer to a refused request.
pub fn refused(refusal: &Refusal) -> Answer {
    match refusal {
        Refusal::NoSuchCall => error(404, "UnknownOperationException", "There is no such operation"),
        Refusal::Unauthorized => {
            error(403, "InvalidClientTokenId", "The security token included in the request is invalid.")
        }
        Refusal::RateLimited(_) => error(400, "Throttling", "Rate exceeded"),
        Refusal::Forbidden(message) => error(403, "AccessDenied", message),
        Refusal::Unavailable(status) => error(*status, "ServiceUnavailable", "Service unavailable"),
    }
}

/// Returns the labels of a name in reverse order, without the final dot. Route 53 sorts names by their reversed labels.
fn labels(name: &str) -> Vec<String> {
    let name = name.trim_end_matches('.').replace("\\052", "*").to_ascii_lowercase();
    name.rsplit('.').map(ToOwned::to_owned).collect()
}

fn dotted(name: &str) -> String {
    format!("{}.", name.trim_end_matches('.'))
}

fn name_of(labels: &[String]) -> String {
    labels.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".")
}

/// Returns a name in the vendor's format.
fn wire_name(labels: &[String]) -> String {
    dotted(&name_of(labels)).replace('*', "\\052")
}

fn no_zone(id: &str) -> Answer {
    error(404, "NoSuchHostedZone", &format!("No hosted zone found with ID: {id}"))
}

/// Returns the error for a refused batch. The vendor lists the messages in brackets.
fn invalid(message: &str) -> Answer {
    error(400, "InvalidChangeBatch", &format!("[{message}]"))
}

/// Returns an error in the vendor's format.
fn error(status: u16, code: &str, message: &str) -> Answer {
    let error = xml::text("Type", "Sender") + &xml::text("Code", code) + &xml::text("Message", message);
    let body =
        xml::element("ErrorResponse", &(xml::element("Error", &error) + &xml::text("RequestId", "fake")));
    Answer::text(status, CONTENT_TYPE, &body)
}

fn answer(name: &str, body: &str) -> Answer {
    Answer::text(200, CONTENT_TYPE, &xml::element(name, body))
}
