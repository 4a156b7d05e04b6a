//! A node as the index keeps it.
//!
//! In: a node from the apiserver, or an undecodable one. Out: the fields that decisions need, in about a kilobyte. A
//! cluster can have 15,000 nodes, so equal labels are kept once.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::IP_READY_LABEL;
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;
use plan::{Address, NodeName, Readiness, Timestamp};

use super::labels::{LabelReader, Labels};
use super::slim::{SlimAddress, SlimNode, SlimNodeSpec, SlimStatus};
use crate::kubernetes::decode::Undecodable;

/// A type of node address that can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AddressType {
    ExternalIP,
    InternalIP,
}

impl AddressType {
    const ALL: [Self; 2] = [Self::ExternalIP, Self::InternalIP];

    /// The name in the status of a node.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ExternalIP => "ExternalIP",
            Self::InternalIP => "InternalIP",
        }
    }

    /// The type with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A node, with the fields that decisions need.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name.
    pub name: NodeName,
    /// The UID.
    pub uid: Option<Box<str>>,
    /// The `resourceVersion`.
    pub version: Option<Box<str>>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The labels.
    pub labels: Labels,
    /// The annotations that decisions need.
    pub annotations: Labels,
    /// The providerID of the node's VM.
    pub provider_id: Option<Box<str>>,
    /// Whether it is Ready.
    pub readiness: Readiness,
    /// The taints.
    pub taints: Box<[Taint]>,
    /// Whether it is cordoned.
    pub is_cordoned: bool,
    /// The addresses of the types that can be published.
    pub addresses: Box<[(AddressType, Address)]>,
    /// Whether this is a substitute for an undecodable node.
    pub is_stand_in: bool,
}

impl Node {
    /// A node that shares no labels with other nodes.
    pub fn alone(node: SlimNode) -> Self {
        NodeReader::default().read(node)
    }

    /// A node that shares no labels with other nodes.
    #[cfg(test)]
    pub(crate) fn from_json(json: serde_json::Value) -> Self {
        Self::alone(serde_json::from_value(json).unwrap())
    }

    /// The substitute for an undecodable node: the last decoded version, or else the fields that can be read. The
    /// substitute keeps the node's VM, and its readiness is unknown.
    pub(crate) fn stand_in(undecodable: &Undecodable, last: Option<&Self>) -> Self {
        let is_machine = |text: &&str| drivers::machine_of(text).is_some();
        let provider_id = undecodable.at::<String>(&["spec", "providerID"]);
        let provider_id =
            provider_id.or_else(|| undecodable.strings().find(is_machine).map(ToOwned::to_owned));
        let read = match last.filter(|last| last.uid.as_deref() == undecodable.metadata.uid.as_deref()) {
            // The providerID of a node is set once and never changes.
            Some(last) => {
                Self { provider_id: last.provider_id.clone().or(provider_id.map(Into::into)), ..last.clone() }
            }
            None => {
                let addresses = undecodable.at(&["status", "addresses"]);
                let addresses = addresses.unwrap_or_else(|| of_any_type(&undecodable.addresses()));
                Self::alone(SlimNode {
                    metadata: undecodable.metadata.clone(),
                    spec: SlimNodeSpec { provider_id, ..SlimNodeSpec::default() },
                    status: SlimStatus { addresses, ..SlimStatus::default() },
                })
            }
        };
        Self { readiness: Readiness::Unknown, is_stand_in: true, ..read }
    }

    /// Whether the node has the label `ip.ready=true`.
    pub fn is_ip_ready(&self) -> bool {
        self.labels.get(IP_READY_LABEL) == Some("true")
    }

    /// Whether both are the same version of the same node.
    pub(crate) fn is_same_version(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version && self.uid == other.uid
    }
}

/// The addresses of an undecodable node. Their types are unknown, so each gets both types. The controller adds none of
/// them to a DNS name.
fn of_any_type(addresses: &BTreeSet<IpAddr>) -> Vec<SlimAddress> {
    let of_type = |kind: AddressType, address: &IpAddr| SlimAddress {
        kind: kind.name().to_owned(),
        address: address.to_string(),
    };
    addresses.iter().flat_map(|address| AddressType::ALL.map(|kind| of_type(kind, address))).collect()
}

/// Reduces nodes to what decisions need.
#[derive(Default)]
pub struct NodeReader {
    labels: LabelReader,
}

impl NodeReader {
    /// The fields of a node that decisions need.
    pub fn read(&mut self, node: SlimNode) -> Node {
        let created = node.creation_timestamp().map(|time| time.0);
        let readiness = match node.status.ready() {
            Some(ready) if ready.status == "True" => Readiness::Ready,
            Some(ready) => {
                let since = ready.last_transition_time.as_ref().map(|time| time.0);
                Readiness::NotReadySince(since.unwrap_or(Timestamp::UNIX_EPOCH))
            }
            // A node that has never reported its status is NotReady.
            None => Readiness::NotReadySince(created.unwrap_or(Timestamp::UNIX_EPOCH)),
        };
        let address = |found: &SlimAddress| {
            Some((AddressType::named(&found.kind)?, found.address.parse::<Address>().ok()?))
        };
        Node {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            uid: node.metadata.uid.as_deref().map(Into::into),
            version: node.metadata.resource_version.as_deref().map(Into::into),
            created,
            labels: self.labels.read(node.metadata.labels.as_ref()),
            annotations: self.labels.read(node.metadata.annotations.as_ref()),
            provider_id: node.spec.provider_id.map(Into::into),
            readiness,
            taints: node.spec.taints.into(),
            is_cordoned: node.spec.unschedulable,
            addresses: node.status.addresses.iter().filter_map(address).collect(),
            is_stand_in: false,
        }
    }
}
