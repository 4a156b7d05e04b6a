//! An object of one of our three kinds.

use std::sync::Arc;

use api::status::{AddressStatus, Holder, Moves, RecordStatus};
use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use crate::kubernetes::watch::version;

/// An object of one of our three kinds.
#[derive(Clone)]
pub enum Object {
    /// A NetIPAllocation.
    Allocation(Arc<NetIPAllocation>),
    /// A FloatingIPPool.
    Pool(Arc<FloatingIPPool>),
    /// A NodeDNSRecordSet.
    Records(Arc<NodeDNSRecordSet>),
}

impl Object {
    /// The `resourceVersion` as a number.
    pub fn version(&self) -> u64 {
        version(self.metadata())
    }

    /// The metadata of the object.
    pub fn metadata(&self) -> &kube::api::ObjectMeta {
        match self {
            Self::Allocation(object) => &object.metadata,
            Self::Pool(object) => &object.metadata,
            Self::Records(object) => &object.metadata,
        }
    }

    /// UID and generation. One of them changes if the spec changes, or if another object takes the name.
    pub(crate) fn identity(&self) -> (Option<&str>, Option<i64>) {
        (self.metadata().uid.as_deref(), self.metadata().generation)
    }

    /// Whether two versions of an object have the same status.
    pub(crate) fn has_same_status(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Allocation(one), Self::Allocation(other)) => one.status == other.status,
            (Self::Pool(one), Self::Pool(other)) => one.status == other.status,
            (Self::Records(one), Self::Records(other)) => one.status == other.status,
            _ => false,
        }
    }

    /// Whether two versions of an object have the same journal, and for each address the same `lastHolder` and
    /// `created`.
    pub fn keeps_journal_and_holders(&self, other: &Self) -> bool {
        fn of(status: &AddressStatus) -> (&String, Option<&Holder>, Option<bool>) {
            (&status.address, status.last_holder.as_ref(), status.created)
        }
        let is_stored = |status: &&AddressStatus| status.last_holder.is_some() || status.created.is_some();
        let (one, two) = (self.addresses().iter(), other.addresses().iter());
        self.moves() == other.moves() && one.filter(is_stored).map(of).eq(two.filter(is_stored).map(of))
    }

    /// The status as JSON.
    pub fn status(&self) -> Value {
        let status = match self {
            Self::Allocation(object) => serde_json::to_value(&object.status),
            Self::Pool(object) => serde_json::to_value(&object.status),
            Self::Records(object) => serde_json::to_value(&object.status),
        };
        status.unwrap_or_default()
    }

    /// Whether two versions of an object have the same annotations, deletion timestamp and status.
    pub(crate) fn has_same_state(&self, other: &Self) -> bool {
        let (one, two) = (self.metadata(), other.metadata());
        let is_same = one.annotations == two.annotations && one.deletion_timestamp == two.deletion_timestamp;
        is_same && self.has_same_status(other)
    }

    /// The conditions in the status.
    pub fn conditions(&self) -> &[Condition] {
        let conditions = match self {
            Self::Allocation(object) => object.status.as_ref().map(|status| &status.conditions),
            Self::Pool(object) => object.status.as_ref().map(|status| &status.conditions),
            Self::Records(object) => object.status.as_ref().map(|status| &status.conditions),
        };
        conditions.map(Vec::as_slice).unwrap_or_default()
    }

    /// The DNS name in the status.
    pub fn dns(&self) -> Option<&RecordStatus> {
        match self {
            Self::Allocation(_) => None,
            Self::Pool(object) => object.status.as_ref()?.dns.as_ref(),
            Self::Records(object) => object.status.as_ref()?.dns.as_ref(),
        }
    }

    /// The addresses in the status.
    pub(crate) fn addresses(&self) -> &[AddressStatus] {
        match self {
            Self::Allocation(object) => object.status.as_ref().map_or(&[], |status| &status.addresses),
            Self::Pool(object) => object.status.as_ref().map_or(&[], |status| &status.addresses),
            Self::Records(_) => &[],
        }
    }

    pub(crate) fn moves(&self) -> Option<&Moves> {
        match self {
            Self::Allocation(object) => object.status.as_ref()?.moves.as_ref(),
            Self::Pool(object) => object.status.as_ref()?.moves.as_ref(),
            Self::Records(_) => None,
        }
    }
}
