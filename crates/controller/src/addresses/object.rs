//! One of our objects, of whatever kind.

use std::sync::Arc;

use api::status::{AddressStatus, Holder, Moves, RecordStatus};
use api::{FloatingIPPool, NetIPAllocation, NodeDNSRecordSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use crate::kubernetes::watch::version;

/// One of our objects.
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
    /// Its metadata's version, as a number.
    pub fn version(&self) -> u64 {
        version(self.metadata())
    }

    /// Its metadata.
    pub fn metadata(&self) -> &kube::api::ObjectMeta {
        match self {
            Self::Allocation(object) => &object.metadata,
            Self::Pool(object) => &object.metadata,
            Self::Records(object) => &object.metadata,
        }
    }

    /// What tells one spec from another: an object of the same name may be another object.
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

    /// Whether two versions of an object remember the same: the journal, and of each address its last holder and whether it was
    /// created.
    pub fn keeps_journal_and_holders(&self, other: &Self) -> bool {
        fn of(status: &AddressStatus) -> (&String, Option<&Holder>, Option<bool>) {
            (&status.address, status.last_holder.as_ref(), status.created)
        }
        let is_known = |status: &&AddressStatus| status.last_holder.is_some() || status.created.is_some();
        let (one, two) = (self.addresses().iter(), other.addresses().iter());
        self.moves() == other.moves() && one.filter(is_known).map(of).eq(two.filter(is_known).map(of))
    }

    /// Its status as the apiserver stores it.
    pub fn status(&self) -> Value {
        let status = match self {
            Self::Allocation(object) => serde_json::to_value(&object.status),
            Self::Pool(object) => serde_json::to_value(&object.status),
            Self::Records(object) => serde_json::to_value(&object.status),
        };
        status.unwrap_or_default()
    }

    /// Whether two versions of an object say the same but for their spec.
    pub(crate) fn has_same_news(&self, other: &Self) -> bool {
        let (one, two) = (self.metadata(), other.metadata());
        let is_same = one.annotations == two.annotations && one.deletion_timestamp == two.deletion_timestamp;
        is_same && self.has_same_status(other)
    }

    /// What its status says of it as a whole.
    pub fn conditions(&self) -> &[Condition] {
        let conditions = match self {
            Self::Allocation(object) => object.status.as_ref().map(|status| &status.conditions),
            Self::Pool(object) => object.status.as_ref().map(|status| &status.conditions),
            Self::Records(object) => object.status.as_ref().map(|status| &status.conditions),
        };
        conditions.map(Vec::as_slice).unwrap_or_default()
    }

    /// What its status says of its name in DNS.
    pub fn dns(&self) -> Option<&RecordStatus> {
        match self {
            Self::Allocation(_) => None,
            Self::Pool(object) => object.status.as_ref()?.dns.as_ref(),
            Self::Records(object) => object.status.as_ref()?.dns.as_ref(),
        }
    }

    /// What its status says of its addresses.
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
