//! The benchmark of 1,000 addresses that fail over at once, under the real rate limits of a cloud. The simulator and
//! the tests on the real control plane share it.
//!
//! In: a fake cloud, and its ledger before and after the failover. Out: how long the failover took, which calls the
//! controller made, and the floor. The floor is the time that the required calls need at the cloud's rate limits. No
//! controller can be faster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fake::azure::Azure;
use crate::fake::compute::Compute;
use crate::fake::digitalocean::DigitalOcean;
use crate::fake::ec2::Ec2;
use crate::fake::ledger::{CloudChange, Ledger};
use crate::fake::limits::{Limit, Limits};
use crate::fake::{Fake, Machine, Route};

/// How many addresses fail over.
pub const ADDRESSES: u64 = 1_000;

/// The fake clouds that hold the addresses.
#[derive(Clone, Copy)]
pub struct Accounts<'a> {
    /// The Compute Engine project.
    pub project: &'a str,
    /// Compute Engine.
    pub compute: &'a Fake<Compute>,
    /// DigitalOcean.
    pub digitalocean: &'a Fake<DigitalOcean>,
    /// Azure.
    pub azure: &'a Fake<Azure>,
    /// EC2.
    pub ec2: &'a Fake<Ec2>,
}

/// What happens to the holders of the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// Their VMs and nodes are deleted.
    Dead,
    /// Their nodes stay healthy, but no longer match the node selector.
    Alive,
    /// One half is deleted, and the other half no longer matches.
    Mixed,
}

/// A cloud in which addresses fail over.
#[derive(Clone, Copy)]
pub struct Place {
    /// The provider's name in the API, such as `gcp`.
    pub provider: &'static str,
    /// The region of its VMs and addresses.
    pub region: &'static str,
    /// Adds a VM, and returns its `providerID`.
    pub add_machine: fn(&Accounts<'_>, u64) -> String,
    /// Deletes a VM.
    pub remove_machine: fn(&Accounts<'_>, u64),
    /// Adds an address that is attached to a VM.
    pub add_address: fn(&Accounts<'_>, &str, u64),
    /// The log of calls and changes in the cloud.
    pub ledger: fn(&Accounts<'_>) -> Ledger,
    limits: fn() -> Vec<Limit>,
    /// The calls that one move requires: first if the VM that held the address was deleted, then if it still runs.
    calls: [&'static [&'static str]; 2],
    /// The call that lists addresses, and the maximum number of addresses on a page.
    page: (&'static str, u64),
}

/// All clouds.
pub const PLACES: &[Place] = &[
    Place {
        provider: "digitalocean",
        region: "nyc3",
        add_machine: |accounts, number| {
            accounts
                .digitalocean
                .with(|ocean| ocean.add_droplet(10_000 + number, format!("m-{number}"), "nyc3"));
            format!("digitalocean://{}", 10_000 + number)
        },
        remove_machine: |accounts, number| {
            accounts.digitalocean.with(|ocean| ocean.remove_droplet(10_000 + number))
        },
        add_address: |accounts, ip, holder| {
            accounts.digitalocean.with(|ocean| {
                ocean.add_reserved_ip(ip, "nyc3");
                ocean.assign_now(ip, 10_000 + holder);
            });
        },
        ledger: |accounts| accounts.digitalocean.ledger(),
        limits: DigitalOcean::limits,
        calls: [&["reserved_ips_actions.post"], &["reserved_ips_actions.post"]],
        page: ("reserved_ips.list", 200),
    },
    Place {
        provider: "gcp",
        region: "us-west1",
        add_machine: |accounts, number| {
            let name = format!("m-{number}");
            accounts.compute.with(|compute| compute.add_instance_without_address("us-west1-a", &name));
            format!("gce://{}/us-west1-a/{name}", accounts.project)
        },
        remove_machine: |accounts, number| {
            accounts.compute.with(|compute| compute.remove_instance("us-west1-a", &format!("m-{number}")));
        },
        add_address: |accounts, ip, holder| {
            accounts.compute.with(|compute| {
                compute.add_address("us-west1", &format!("a-{holder}"), ip);
                compute.attach_now(ip, "us-west1-a", &format!("m-{holder}"));
            });
        },
        ledger: |accounts| accounts.compute.ledger(),
        limits: Compute::limits,
        calls: [
            &["instances.get", "instances.addAccessConfig"],
            &["instances.get", "instances.deleteAccessConfig", "instances.get", "instances.addAccessConfig"],
        ],
        page: ("addresses.aggregatedList", 500),
    },
    Place {
        provider: "azure",
        region: "westeurope",
        add_machine: |accounts, number| {
            accounts.azure.with(|azure| {
                let name = format!("m-{number}");
                azure.add_machine(&name, "westeurope");
                format!("azure://{}", azure.id(&format!("Microsoft.Compute/virtualMachines/{name}")))
            })
        },
        remove_machine: |accounts, number| {
            accounts.azure.with(|azure| azure.remove_machine(&format!("m-{number}")));
        },
        add_address: |accounts, ip, holder| {
            accounts.azure.with(|azure| {
                azure.add_address(&format!("a-{holder}"), "westeurope", ip);
                azure.attach_now(ip, &format!("m-{holder}"));
            });
        },
        ledger: |accounts| accounts.azure.ledger(),
        limits: Azure::limits,
        calls: [
            &[
                "PublicIPAddresses_Get",
                "NetworkInterfaces_Get",
                "NetworkInterfaces_CreateOrUpdate",
                "Operations_Get",
            ],
            &[
                "PublicIPAddresses_Get",
                "NetworkInterfaces_Get",
                "NetworkInterfaces_CreateOrUpdate",
                "Operations_Get",
                "PublicIPAddresses_Get",
                "NetworkInterfaces_Get",
                "NetworkInterfaces_CreateOrUpdate",
                "Operations_Get",
            ],
        ],
        page: ("PublicIPAddresses_ListAll", 100),
    },
    Place {
        provider: "aws",
        region: "us-east-1",
        add_machine: |accounts, number| {
            let id = format!("i-{number}");
            accounts.ec2.with(|ec2| ec2.add_instance_without_address("us-east-1", &id));
            format!("aws:///us-east-1a/{id}")
        },
        remove_machine: |accounts, number| {
            accounts.ec2.with(|ec2| ec2.terminate_instance(&format!("i-{number}")));
        },
        add_address: |accounts, ip, holder| {
            accounts.ec2.with(|ec2| {
                ec2.add_address("us-east-1", ip);
                ec2.attach_now(ip, &format!("i-{holder}"));
            });
        },
        ledger: |accounts| accounts.ec2.ledger(),
        limits: Ec2::limits,
        calls: [
            &["DescribeInstances", "AssociateAddress"],
            &["DescribeAddresses", "DisassociateAddress", "DescribeInstances", "AssociateAddress"],
        ],
        page: ("DescribeAddresses", u64::MAX),
    },
];

/// The result of a failover.
pub struct Burst {
    /// The time from the first call until the last address is on its new VM.
    pub took: Duration,
    /// The time that the required calls need at the cloud's rate limits.
    pub floor: Duration,
    /// The number of calls, by name.
    pub calls: BTreeMap<&'static str, usize>,
    /// How many calls the cloud throttled.
    pub throttled: usize,
    /// How many addresses were attached to a new VM.
    pub arrived: u64,
    /// With [`Holders::Mixed`]: how many attach requests for addresses of live holders the cloud accepted before the
    /// last one for a dead holder.
    pub overtaken: usize,
    /// The longest time for which an address of a live holder was on no VM.
    pub dark: Duration,
    /// Moments at which an address was assigned to two VMs.
    pub doubled: Vec<String>,
}

impl Holders {
    /// The numbers of the holders that are deleted.
    pub fn dead(self) -> std::ops::Range<u64> {
        match self {
            Self::Dead => 0..ADDRESSES,
            Self::Alive => 0..0,
            Self::Mixed => 0..ADDRESSES / 2,
        }
    }
}

impl Place {
    /// How many addresses were attached since `before`.
    pub fn arrived(&self, accounts: &Accounts<'_>, before: &Ledger) -> u64 {
        let done = (self.ledger)(accounts).done;
        let is_arrival = |change: &CloudChange| matches!(change, CloudChange::Attached { .. });
        done.iter().skip(before.done.len()).filter(|done| is_arrival(&done.change)).count() as u64
    }

    /// The result of the failover that happened since `before`.
    pub fn judge(&self, accounts: &Accounts<'_>, before: &Ledger, holders: Holders) -> Option<Burst> {
        let ledger = (self.ledger)(accounts);
        let asked = &ledger.asked[before.asked.len()..];
        let mut calls = BTreeMap::new();
        asked.iter().for_each(|asked| *calls.entry(asked.call).or_default() += 1);
        let last =
            ledger.done.iter().rev().find(|done| matches!(done.change, CloudChange::Attached { .. }))?;
        let dead = holders.dead();
        Some(Burst {
            took: last.at.saturating_sub(asked.first()?.at),
            floor: floor(self, dead.end - dead.start),
            throttled: asked.iter().filter(|asked| matches!(asked.status, 429 | 503)).count(),
            arrived: self.arrived(accounts, before),
            overtaken: overtaken(&ledger, before.done.len(), dead.end),
            dark: dark(&ledger, before.done.len(), dead.end),
            calls,
            doubled: ledger.double_holders(),
        })
    }
}

impl Burst {
    /// The header of the table of results.
    pub const HEAD: &'static str = "| cloud | holders | arrived | took | floor | ratio | throttled | live before dead | longest on none | calls |\n\
                                    |---|---|---:|---:|---:|---:|---:|---:|---:|---|";

    /// The row of this result in the table.
    pub fn row(&self, place: &Place, holders: Holders) -> String {
        let (took, floor) = (self.took.as_secs_f64(), self.floor.as_secs_f64());
        let calls: Vec<_> = self.calls.iter().map(|(call, count)| format!("{count} {call}")).collect();
        format!(
            "| {} | {holders:?} | {} | {took:.0} s | {floor:.0} s | {:.2} | {} | {} | {:.0} s | {} |",
            place.provider,
            self.arrived,
            took / floor,
            self.throttled,
            self.overtaken,
            self.dark.as_secs_f64(),
            calls.join(", ")
        )
    }

    /// The result as JSON.
    pub fn to_json(&self, place: &Place, holders: Holders) -> Value {
        json!({
            "cloud": place.provider, "holders": format!("{holders:?}"), "arrived": self.arrived,
            "seconds": self.took.as_secs_f64(), "floor_seconds": self.floor.as_secs_f64(), "throttled": self.throttled,
            "live_before_dead": self.overtaken, "longest_on_none_seconds": self.dark.as_secs_f64(), "doubled": self.doubled.len(),
        })
    }
}

/// The longest time for which an address of a live holder was on no VM.
fn dark(ledger: &Ledger, began: usize, dead: u64) -> Duration {
    let living: BTreeSet<String> = (dead..ADDRESSES).map(ip).collect();
    let (mut since, mut longest) = (BTreeMap::new(), Duration::ZERO);
    for done in &ledger.done[began..] {
        match &done.change {
            CloudChange::Detached { address, .. } if living.contains(address) => {
                _ = since.insert(address, done.at)
            }
            CloudChange::Attached { address, .. } => {
                let dark = since.remove(address).map(|left| done.at.saturating_sub(left));
                longest = longest.max(dark.unwrap_or_default());
            }
            _ => {}
        }
    }
    longest
}

/// How many attach requests for addresses of live holders the cloud accepted before the last one for a dead holder.
fn overtaken(ledger: &Ledger, began: usize, dead: u64) -> usize {
    let is_dead = |address: &str| (0..dead).any(|number| ip(number) == address);
    let orders: Vec<bool> = ledger.done[began..]
        .iter()
        .filter_map(|done| match &done.change {
            CloudChange::Accepted { address, .. } => Some(is_dead(address)),
            _ => None,
        })
        .collect();
    let last = orders.iter().rposition(|is_dead| *is_dead).unwrap_or(0);
    orders[..last].iter().filter(|is_dead| !**is_dead).count()
}

/// The time that the required calls need at the cloud's rate limits, if each is made as soon as all limits allow it.
/// Required are the calls of each move and two listings: one before the moves are journalled and one after.
fn floor(place: &Place, dead: u64) -> Duration {
    const TICK: Duration = Duration::from_millis(50);
    let [off_dead, off_live] = place.calls;
    let listings = 2 * (ADDRESSES.div_ceil(place.page.1));
    let mut required = BTreeMap::from([(place.page.0, listings)]);
    for (calls, moves) in [(off_dead, dead), (off_live, ADDRESSES - dead)] {
        calls.iter().for_each(|call| *required.entry(call).or_default() += moves);
    }
    let mut limits = Limits::new((place.limits)());
    let mut now = Duration::ZERO;
    loop {
        for (name, count) in &mut required {
            let route = Route { name, params: Vec::new() };
            while *count > 0 && limits.admits(&route, now) {
                *count -= 1;
            }
        }
        if required.values().all(|count| *count == 0) {
            return now;
        }
        now += TICK;
    }
}

/// The address that has this number.
pub fn ip(number: u64) -> String {
    format!("198.18.{}.{}", number / 250, number % 250 + 1)
}
