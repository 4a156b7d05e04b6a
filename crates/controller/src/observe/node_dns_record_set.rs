//! A `NodeDNSRecordSet` as a pool that has no addresses, only nodes and a name.

use std::sync::Arc;
use std::time::Duration;

use api::node_dns_record_set::ADDRESS_TYPE_DEFAULT;
use api::{NodeDNSRecordSet, RESERVED_IP_ANNOTATION};
use kube::ResourceExt;
use plan::{Address, Pool, PoolKey, Provider, Scope, Source, Tenancy};

use super::publication::publication;
use super::{Front, Refusal, Who, created};
use crate::watch::SlimNode;

/// The kind's name.
pub const KIND: &str = "NodeDNSRecordSet";

/// The pool's name.
pub fn key(object: &NodeDNSRecordSet) -> PoolKey {
    PoolKey {
        kind: KIND,
        namespace: object.namespace().unwrap_or_default().into(),
        name: object.name_any().into(),
    }
}

/// Which of a node's addresses are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// Those of this type in its status.
    InStatus(&'static str),
    /// The floating one in its annotation.
    Floating,
}

impl NodeAddress {
    fn named(name: &str) -> Result<Self, Refusal> {
        match name {
            ADDRESS_TYPE_DEFAULT => Ok(Self::InStatus(ADDRESS_TYPE_DEFAULT)),
            "InternalIP" => Ok(Self::InStatus("InternalIP")),
            RESERVED_IP_ANNOTATION => Ok(Self::Floating),
            other => Err(Refusal {
                reason: "UnsupportedAddressType",
                message: format!(
                    "addressType {other} is not known: use ExternalIP, InternalIP or {RESERVED_IP_ANNOTATION}"
                ),
            }),
        }
    }

    /// Those addresses of a node.
    pub(super) fn of(self, node: &SlimNode) -> Arc<[Address]> {
        let of_status = |kind: &str| {
            let told = node.status.addresses.iter().filter(|address| address.kind == kind);
            told.filter_map(|told| told.address.parse().ok()).collect()
        };
        match self {
            Self::InStatus(kind) => of_status(kind),
            Self::Floating => {
                let told = node.annotations().get(RESERVED_IP_ANNOTATION);
                told.and_then(|told| told.parse().ok()).into_iter().collect()
            }
        }
    }
}

pub(super) fn front(object: &NodeDNSRecordSet) -> Front {
    let spec = &object.spec;
    let mut refusal = None;
    let mut refuse = |why| refusal = Some(why);
    let told = object.status.as_ref().and_then(|status| status.dns.as_ref());
    let publication = publication(&spec.dns_record_set, spec.dns_provider(), Source::Nodes, told);
    let publication = publication.map_err(&mut refuse).ok();
    let publishes = NodeAddress::named(spec.address_type()).map_err(&mut refuse).ok();
    let matches = spec.matches.clone().unwrap_or_default();
    let needs_pods = matches.needs_pods();
    let who = Who::matching(matches, publishes, refuse);
    // It is about no cloud, so this is never asked.
    let nowhere = Scope { provider: Provider::DigitalOcean, account: "".into() };
    let pool = Pool {
        created: created(object),
        tenancy: Tenancy::UntilDisplaced { needs_pods },
        publication,
        ..Pool::new(key(object), nowhere, Vec::new())
    };
    Front { pool, provider: None, who, refusal, record_refusal: None, age_max: Duration::MAX }
}
