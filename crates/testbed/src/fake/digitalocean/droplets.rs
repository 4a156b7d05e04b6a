//! Droplets and regions.
//!
//! Tests create and delete droplets directly. No call of this fake does.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::ledger::CloudChange;
use super::super::{Answer, Call};
use super::account::{DigitalOcean, Droplet};
use super::answers::{Handled, moment, not_found};

/// The regions by the prefix of their slugs. A number follows the prefix.
const CITIES: [(&str, &str); 11] = [
    ("ams", "Amsterdam"),
    ("atl", "Atlanta"),
    ("blr", "Bangalore"),
    ("fra", "Frankfurt"),
    ("lon", "London"),
    ("nyc", "New York"),
    ("ric", "Richmond"),
    ("sfo", "San Francisco"),
    ("sgp", "Singapore"),
    ("syd", "Sydney"),
    ("tor", "Toronto"),
];

const SIZE: &str = "s-1vcpu-1gb";

impl Droplet {
    /// The droplet's ephemeral address. It is outside the ranges of reserved addresses.
    fn public_address(&self) -> String {
        let [high, low] = self.number.to_be_bytes();
        format!("198.19.{high}.{low}")
    }

    fn private_address(&self) -> String {
        let [high, low] = self.number.to_be_bytes();
        format!("10.116.{high}.{low}")
    }
}

impl DigitalOcean {
    /// Adds a running droplet. It replaces a droplet with the same ID.
    pub fn add_droplet(&mut self, id: u64, name: impl Into<String>, region: impl Into<String>) {
        self.droplet_count += 1;
        let (name, region, number) = (name.into(), region.into(), self.droplet_count);
        let droplet = Droplet { id, name, region, number, is_off: false, has_gpu: false };
        self.droplets.insert(id, droplet);
    }

    /// Adds a running droplet with a GPU.
    pub fn add_gpu_droplet(&mut self, id: u64, name: impl Into<String>, region: impl Into<String>) {
        self.add_droplet(id, name, region);
        if let Some(droplet) = self.droplets.get_mut(&id) {
            droplet.has_gpu = true;
        }
    }

    /// Powers a droplet off. It keeps its addresses.
    pub fn power_off(&mut self, id: u64) {
        if let Some(droplet) = self.droplets.get_mut(&id) {
            droplet.is_off = true;
        }
    }

    /// Deletes a droplet. Its reserved address stays in the account without a holder.
    pub fn remove_droplet(&mut self, id: u64) {
        self.droplets.remove(&id);
        let held: Vec<String> = self.held_by(id).map(str::to_owned).collect();
        for ip in held {
            self.set_holder(&ip, None);
            self.unwritten.push_back(CloudChange::Detached { address: ip, vm: id.to_string() });
        }
    }

    pub(super) fn list_droplets(&self, call: &Call) -> Answer {
        let name = call.query.get("name");
        let has_gpu = call.query.get("type").is_some_and(|kind| kind == "gpus");
        let wanted = |droplet: &&Droplet| {
            droplet.has_gpu == has_gpu && name.is_none_or(|name| droplet.name.eq_ignore_ascii_case(name))
        };
        let droplets: Vec<&Droplet> = self.droplets.values().filter(wanted).collect();
        self.page(call, "droplets", droplets, |droplet| self.droplet_json(droplet))
    }

    pub(super) fn get_droplet(&self, id: &str) -> Handled {
        let droplet = id.parse().ok().and_then(|id: u64| self.droplets.get(&id)).ok_or_else(not_found)?;
        Ok(Answer::json(200, json!({ "droplet": self.droplet_json(droplet) })))
    }

    /// Returns a droplet with all its addresses. The reserved one comes last.
    pub(super) fn droplet_json(&self, droplet: &Droplet) -> Value {
        let mut networks = vec![
            network_json("private", &droplet.private_address(), "10.116.255.254"),
            network_json("public", &droplet.public_address(), "198.19.255.254"),
        ];
        networks.extend(self.held_by(droplet.id).map(|ip| network_json("public", ip, "")));
        json!({
            "id": droplet.id,
            "name": droplet.name,
            "memory": 1024,
            "vcpus": 1,
            "disk": 25,
            "disk_info": [{ "type": "local", "size": { "amount": 25, "unit": "gib" } }],
            "locked": self.has_pending_event(droplet.id),
            "status": if droplet.is_off { "off" } else { "active" },
            "kernel": null,
            "created_at": moment(Duration::ZERO),
            "features": ["droplet_agent", "private_networking"],
            "backup_ids": [],
            "next_backup_window": null,
            "snapshot_ids": [],
            "image": image_json(&droplet.region),
            "volume_ids": [],
            "size": size_json(&droplet.region),
            "size_slug": SIZE,
            "networks": { "v4": networks, "v6": [] },
            "region": region_json(&droplet.region),
            "tags": [],
            "vpc_uuid": "00000000-0000-4000-8000-00000000c1d8",
        })
    }

    /// Whether the account can reserve an address in a region: a real region, or one where it has droplets.
    pub(super) fn is_region(&self, slug: &str) -> bool {
        city(slug).is_some() || self.droplets.values().any(|droplet| droplet.region == slug)
    }
}

/// Returns a region as other objects contain it.
pub(super) fn region_json(slug: &str) -> Value {
    let number = slug.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let name = city(slug).map_or_else(|| slug.to_owned(), |city| format!("{city} {number}"));
    json!({
        "name": name,
        "slug": slug,
        "features": ["backups", "ipv6", "metadata", "install_agent", "storage", "image_transfer"],
        "available": true,
        "sizes": [SIZE],
    })
}

fn city(slug: &str) -> Option<&'static str> {
    CITIES.iter().find(|(code, _)| slug.starts_with(code)).map(|(_, city)| *city)
}

fn network_json(kind: &str, address: &str, gateway: &str) -> Value {
    json!({ "ip_address": address, "netmask": "255.255.0.0", "gateway": gateway, "type": kind })
}

fn image_json(region: &str) -> Value {
    json!({
        "id": 155_133_621,
        "name": "24.04 (LTS) x64",
        "distribution": "Ubuntu",
        "slug": "ubuntu-24-04-x64",
        "public": true,
        "regions": [region],
        "created_at": "2025-01-01T00:00:00Z",
        "min_disk_size": 7,
        "type": "base",
        "size_gigabytes": 2.29,
        "description": "Ubuntu 24.04 x86",
        "tags": [],
        "status": "available",
        "error_message": "",
    })
}

fn size_json(region: &str) -> Value {
    json!({
        "slug": SIZE,
        "memory": 1024,
        "vcpus": 1,
        "disk": 25,
        "transfer": 1.0,
        "price_monthly": 6.0,
        "price_hourly": 0.00893,
        "regions": [region],
        "available": true,
        "description": "Basic",
        "disk_info": [{ "type": "local", "size": { "amount": 25, "unit": "gib" } }],
    })
}
