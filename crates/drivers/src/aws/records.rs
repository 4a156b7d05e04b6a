//! DNS records in Amazon Route 53.
//!
//! Route 53 stores all values of a name and type in one record set. The driver marks each set that it owns with a TXT
//! record next to it. To change a set, it deletes the old set and its mark and creates the new ones in one batch. Route
//! 53 applies a batch completely or not at all, and rejects a deletion unless the values and the TTL match exactly. So
//! the batch fails if somebody else has changed the set.
//!
//! ```text
//! call                        used for                   permission
//! ListHostedZonesByName       the ID of a zone, once     route53:ListHostedZonesByName
//! ListResourceRecordSets      read: the set, its mark    route53:ListResourceRecordSets
//! ChangeResourceRecordSets    write                      route53:ChangeResourceRecordSets
//! ```
//!
//! The driver never changes an alias or a set with a routing policy. It never sends `UPSERT`, so it never overwrites a
//! set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aws_sdk_route53::Client;
use aws_sdk_route53::error::BuildError;
use aws_sdk_route53::types::{
    Change, ChangeAction, ChangeBatch, HostedZone, ResourceRecord, ResourceRecordSet, RrType,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use plan::{Address, PoolKey, RecordKind, RecordName, RecordSet};
use tokio::sync::{Mutex, OnceCell};

use super::{Aws, counting, explain};
use crate::DriverError;
use crate::budget::{Limit, budgeted};
use crate::http::{quoted, unreadable};
use crate::record::{RecordChange, RecordDriver, mark, mark_name, owner_in};

/// Every call this driver makes.
pub const CALLS: &[&str] = &["ListHostedZonesByName", "ListResourceRecordSets", "ChangeResourceRecordSets"];

/// The TTL if the object sets none. Route 53 has no default.
const TTL_DEFAULT: u32 = 300;

/// The TTL of a mark. A TXT record with another TTL is not a mark of this driver.
const MARK_TTL: i64 = 300;

/// The maximum length of a DNS name with all characters escaped.
const NAME_BYTES_MAX: usize = 1_024;

/// The rate limit of an account, for all calls together.
pub fn limits() -> Vec<Limit> {
    vec![Limit::bucket(|_| true, 5, 5)]
}

/// Publishes DNS records in the hosted zones of an account.
pub struct Route53 {
    aws: Arc<Aws>,
    limits: Vec<Limit>,
    client: OnceCell<Client>,
    zones: Mutex<BTreeMap<Arc<str>, String>>,
}

impl Route53 {
    /// Creates a driver for an account with these limits.
    pub fn new(aws: Arc<Aws>, limits: Vec<Limit>) -> Self {
        Self { aws, limits, client: OnceCell::new(), zones: Mutex::default() }
    }

    async fn client(&self) -> &Client {
        let around = |service| budgeted(service, &self.limits, counting());
        // At Route 53, every read is a GET, so no other request counts as a read.
        let client = async || Client::new(&self.aws.client(None, |_| false, around).await);
        self.client.get_or_init(client).await
    }

    /// The ID of a zone. It never changes, so it is read once.
    async fn zone(&self, zone: &Arc<str>) -> Result<String, DriverError> {
        let name = "route53:ListHostedZonesByName";
        let mut zones = self.zones.lock().await;
        if let Some(id) = zones.get(zone) {
            return Ok(id.clone());
        }
        let found = self.client().await.list_hosted_zones_by_name().dns_name(&**zone).send().await;
        let found = found.map_err(|error| explain(name, error))?;
        let is_private = |zone: &HostedZone| zone.config().is_some_and(|config| config.private_zone());
        let mut named: Vec<_> =
            found.hosted_zones().iter().filter(|found| is_same(found.name(), zone)).collect();
        // If a public and a private zone have the same name, the driver uses the public one.
        named.sort_by_key(|zone| is_private(zone));
        match named.as_slice() {
            [] => Err(DriverError::NotFound(format!("the account has no hosted zone {zone}"))),
            [one, another, ..] if is_private(one) == is_private(another) => {
                let message = format!(
                    "the controller can't choose between several hosted zones named {zone}: keep one"
                );
                Err(DriverError::Invalid(message))
            }
            [one, ..] => {
                zones.insert(Arc::clone(zone), one.id().to_owned());
                Ok(one.id().to_owned())
            }
        }
    }

    /// Finds the record set of a name and type.
    async fn find(
        &self,
        zone: &str,
        name: &str,
        kind: RrType,
    ) -> Result<Option<ResourceRecordSet>, DriverError> {
        let call = "route53:ListResourceRecordSets";
        let found = self.client().await.list_resource_record_sets().hosted_zone_id(zone);
        // The listing starts at this name and type even if there is no such set.
        let found = found.start_record_name(name).start_record_type(kind.clone()).max_items(1);
        let found = found.send().await.map_err(|error| explain(call, error))?;
        let set = found.resource_record_sets.into_iter().next();
        let set = set.filter(|set| is_same(set.name(), name) && *set.r#type() == kind);
        match set {
            Some(set) if set.alias_target().is_some() || set.set_identifier().is_some() => {
                let message =
                    format!("{name} is an alias or has a routing policy: remove that, or use another name");
                Err(DriverError::Invalid(message))
            }
            set => Ok(set),
        }
    }

    async fn set(&self, name: &RecordName) -> Result<RecordSet, DriverError> {
        check_length(name)?;
        let zone = self.zone(&name.zone).await?;
        let set = self.set_in(&zone, name).await;
        self.forget_if_gone(&name.zone, &set).await;
        set
    }

    /// Forgets the ID of a zone that was not found: a zone that was deleted and created again has another ID.
    async fn forget_if_gone<T>(&self, zone: &str, result: &Result<T, DriverError>) {
        if matches!(result, Err(DriverError::NotFound(_))) {
            self.zones.lock().await.remove(zone);
        }
    }

    async fn set_in(&self, zone: &str, name: &RecordName) -> Result<RecordSet, DriverError> {
        let call = "route53:ListResourceRecordSets";
        let Some(set) = self.find(zone, &name.name, kind(name.kind)).await? else {
            return Ok(RecordSet { owner: self.owner(zone, name).await?, ..RecordSet::default() });
        };
        let parsed = |record: &ResourceRecord| {
            record.value().parse::<Address>().map_err(|_| unreadable(call, &record.value()))
        };
        let values: BTreeSet<Address> =
            set.resource_records().iter().map(parsed).collect::<Result<_, _>>()?;
        let ttl = set.ttl().and_then(|seconds| u32::try_from(seconds).ok());
        Ok(RecordSet { values, ttl, owner: self.owner(zone, name).await? })
    }

    /// Reads the owner from the mark of a set.
    async fn owner(&self, zone: &str, name: &RecordName) -> Result<Option<Arc<str>>, DriverError> {
        let found = self.find(zone, &mark_name(name), RrType::Txt).await?;
        let found = found.filter(|found| found.ttl() == Some(MARK_TTL));
        Ok(match found.as_ref().map(ResourceRecordSet::resource_records) {
            Some([one]) => owner_in(one.value()),
            _ => None,
        })
    }

    async fn change(&self, change: &RecordChange) -> Result<(), DriverError> {
        let call = "route53:ChangeResourceRecordSets";
        check_length(&change.name)?;
        let zone = self.zone(&change.name.zone).await?;
        let batch =
            batch(change).map_err(|error| DriverError::Invalid(format!("{}: {error}", change.name)))?;
        let changed = self.client().await.change_resource_record_sets().hosted_zone_id(zone);
        let changed = changed.change_batch(batch).send().await;
        let changed = changed.map(drop).map_err(|error| explain(call, error));
        self.forget_if_gone(&change.name.zone, &changed).await;
        changed.map_err(|error| match error {
            DriverError::Conflict(answer) => {
                let message = format!(
                    "{} changed after the controller read it, or it is a CNAME: {answer}",
                    change.name
                );
                DriverError::Conflict(message)
            }
            error => error,
        })
    }
}

impl RecordDriver for Route53 {
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        _: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
        self.set(name).boxed()
    }

    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
        self.change(change).boxed()
    }
}

/// The batch that deletes a set and its mark exactly as they were read, and creates the new ones. It includes the parts
/// that stay the same, so it fails if somebody else has changed one of them.
fn batch(change: &RecordChange) -> Result<ChangeBatch, BuildError> {
    let RecordChange { name, old, new, .. } = change;
    let ttl = new.ttl.or(old.ttl).unwrap_or(TTL_DEFAULT);
    let mut batch = ChangeBatch::builder();
    for (action, RecordSet { values, owner, .. }, ttl) in
        [(ChangeAction::Delete, old, old.ttl.unwrap_or(TTL_DEFAULT)), (ChangeAction::Create, new, ttl)]
    {
        let values = values.iter().map(ToString::to_string).collect::<Vec<_>>();
        let marks = owner.iter().map(|owner| format!("\"{}\"", mark(owner))).collect::<Vec<_>>();
        for (name, kind, ttl, values) in [
            (name.name.to_string(), kind(name.kind), i64::from(ttl), values),
            (mark_name(name), RrType::Txt, MARK_TTL, marks),
        ] {
            if values.is_empty() {
                continue;
            }
            let record = |value: &String| ResourceRecord::builder().value(value).build();
            let records = values.iter().map(record).collect::<Result<_, _>>()?;
            let set = ResourceRecordSet::builder().name(name).r#type(kind).ttl(ttl);
            let set = set.set_resource_records(Some(records)).build()?;
            batch = batch.changes(Change::builder().action(action.clone()).resource_record_set(set).build()?);
        }
    }
    batch.build()
}

/// Rejects names that are too long. The SDK puts names into a URL and panics if the URL gets too long.
fn check_length(name: &RecordName) -> Result<(), DriverError> {
    match [&name.zone, &name.name].into_iter().find(|text| text.len() > NAME_BYTES_MAX) {
        Some(long) => Err(DriverError::Invalid(format!("{} is too long for a DNS name", quoted(long)))),
        None => Ok(()),
    }
}

fn kind(kind: RecordKind) -> RrType {
    match kind {
        RecordKind::A => RrType::A,
        RecordKind::Aaaa => RrType::Aaaa,
    }
}

/// Whether a name from Route 53 equals `name`. Route 53 adds a trailing dot and escapes `*` as `\052`.
fn is_same(found: &str, name: &str) -> bool {
    let found = found.replace("\\052", "*");
    found.trim_end_matches('.').eq_ignore_ascii_case(name.trim_end_matches('.'))
}
