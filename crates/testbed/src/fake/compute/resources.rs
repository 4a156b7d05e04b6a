//! Addresses and instances, and their JSON.
//!
//! In: the state of a resource. Out: its JSON, with the fields and formats of the discovery document. This module never
//! changes the state.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp, tz::Offset};
use serde_json::{Value, json};

const ROOT: &str = "https://www.googleapis.com/compute/v1";

/// The wall clock time of the fake's first request, 2026-01-01T00:00:00-08:00. It is fixed, so answers are repeatable.
const BEGINNING: SignedDuration = SignedDuration::from_secs(1_767_254_400);

/// The fingerprint of an empty set of labels.
const EMPTY_FINGERPRINT: &str = "42WmSpB8rSM=";

/// A reserved address.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) id: u64,
    pub(super) region: String,
    pub(super) name: String,
    pub(super) ip: String,
    pub(super) tier: String,
    pub(super) description: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) created: Duration,
}

/// A virtual machine.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) id: u64,
    pub(super) zone: String,
    pub(super) name: String,
    pub(super) is_running: bool,
    /// The access configs of the interfaces `nic0`, `nic1` and so on.
    pub(super) interfaces: Vec<Option<Access>>,
    pub(super) created: Duration,
}

/// An access config, which gives an interface an external address.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) name: String,
    pub(super) tier: String,
    /// `None` if the VM was stopped: it keeps the access config of an ephemeral address, but loses the address.
    pub(super) ip: Option<String>,
    /// The public PTR name of the address.
    pub(super) ptr: Option<String>,
}

/// Returns the path of a resource without the API's root, as error messages contain it.
pub(super) fn path(project: &str, places: &str, place: &str, collection: &str, name: &str) -> String {
    format!("projects/{project}/{places}/{place}/{collection}/{name}")
}

pub(super) fn url(path: &str) -> String {
    format!("{ROOT}/{path}")
}

pub(super) fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

/// Formats a time as the API does.
pub(super) fn timestamp(at: Duration) -> String {
    let since = SignedDuration::try_from(at).unwrap_or(SignedDuration::ZERO).saturating_add(BEGINNING);
    let moment = Timestamp::from_duration(since).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{}-08:00", Offset::constant(-8).to_datetime(moment).strftime("%Y-%m-%dT%H:%M:%S%.3f"))
}

impl Address {
    pub(super) fn path(&self, project: &str) -> String {
        path(project, "regions", &self.region, "addresses", &self.name)
    }

    /// The fingerprint that a caller must send to change the labels.
    pub(super) fn label_fingerprint(&self) -> String {
        if self.labels.is_empty() {
            return EMPTY_FINGERPRINT.to_owned();
        }
        let text: String = self.labels.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        fingerprint(&text)
    }

    pub(super) fn to_json(&self, project: &str, holder: Option<&Instance>) -> Value {
        let mut json = json!({
            "kind": "compute#address",
            "id": self.id.to_string(),
            "creationTimestamp": timestamp(self.created),
            "name": self.name,
            "description": self.description,
            "address": self.ip,
            "status": if holder.is_some() { "IN_USE" } else { "RESERVED" },
            "region": url(&format!("projects/{project}/regions/{}", self.region)),
            "networkTier": self.tier,
            "addressType": "EXTERNAL",
            "labelFingerprint": self.label_fingerprint(),
            "selfLink": url(&self.path(project)),
        });
        if let Some(holder) = holder {
            json["users"] = json!([url(&holder.path(project))]);
        }
        if !self.labels.is_empty() {
            json["labels"] = json!(self.labels);
        }
        json
    }
}

impl Instance {
    pub(super) fn path(&self, project: &str) -> String {
        path(project, "zones", &self.zone, "instances", &self.name)
    }

    /// The name of the VM in the ledger.
    pub(super) fn vm(&self, project: &str) -> String {
        format!("{project}/{}/{}", self.zone, self.name)
    }

    /// Returns the position of the interface that has this external address.
    pub(super) fn interface_with(&self, ip: &str) -> Option<usize> {
        let has_it =
            |access: &Option<Access>| access.as_ref().is_some_and(|access| access.ip.as_deref() == Some(ip));
        self.interfaces.iter().position(has_it)
    }

    /// Returns an interface in the API's format. Each interface is in its own network.
    fn interface_to_json(&self, project: &str, at: usize, access: Option<&Access>) -> Value {
        let region = region_of(&self.zone);
        let network = if at == 0 { "default".to_owned() } else { format!("network-{at}") };
        // IDs increase by one, so their low bits give each VM a different internal address.
        let [.., high, middle, low] = self.id.to_be_bytes();
        let second = (usize::from(high) + at) % 256;
        let mut interface = json!({
            "kind": "compute#networkInterface",
            "name": format!("nic{at}"),
            "network": url(&format!("projects/{project}/global/networks/{network}")),
            "subnetwork": url(&format!("projects/{project}/regions/{region}/subnetworks/{network}")),
            "networkIP": format!("10.{second}.{middle}.{low}"),
            "stackType": "IPV4_ONLY",
            "fingerprint": fingerprint(&format!("{access:?}")),
        });
        if let Some(access) = access {
            interface["accessConfigs"] = json!([access.to_json()]);
        }
        interface
    }

    pub(super) fn to_json(&self, project: &str) -> Value {
        let zone = url(&format!("projects/{project}/zones/{}", self.zone));
        let interfaces = self.interfaces.iter().enumerate();
        let interfaces: Vec<_> =
            interfaces.map(|(at, access)| self.interface_to_json(project, at, access.as_ref())).collect();
        json!({
            "kind": "compute#instance",
            "id": self.id.to_string(),
            "creationTimestamp": timestamp(self.created),
            "name": self.name,
            "status": if self.is_running { "RUNNING" } else { "TERMINATED" },
            "machineType": format!("{zone}/machineTypes/e2-medium"),
            "zone": zone,
            "networkInterfaces": interfaces,
            "labelFingerprint": EMPTY_FINGERPRINT,
            "fingerprint": fingerprint(&self.id.to_string()),
            "selfLink": url(&self.path(project)),
        })
    }
}

impl Access {
    fn to_json(&self) -> Value {
        let mut json = json!({
            "kind": "compute#accessConfig",
            "type": "ONE_TO_ONE_NAT",
            "name": self.name,
            "networkTier": self.tier,
        });
        if let Some(ip) = &self.ip {
            json["natIP"] = json!(ip);
        }
        if let Some(ptr) = &self.ptr {
            json["setPublicPtr"] = json!(true);
            json["publicPtrDomainName"] = json!(ptr);
        }
        json
    }
}

/// Returns eight bytes that depend on the text, in base64, which is the API's format of fingerprints.
fn fingerprint(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // FNV-1a, because it is short and gives the same result on every platform.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let padded = u128::from(hash) << 2;
    let digits = (0..11).rev().map(|digit| char::from(ALPHABET[(padded >> (6 * digit)) as usize & 63]));
    digits.chain(['=']).collect()
}
