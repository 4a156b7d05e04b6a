//! The account behind the API: its resources, and the actions in flight.
//!
//! Out: the state that every call reads and changes, the holders of addresses, and the actions in flight. This module
//! never answers a call: see the modules for addresses, droplets, projects and domains.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::super::ledger::CloudChange;

/// The default project, for every resource that names no project.
pub(super) const DEFAULT_PROJECT_ID: &str = "00000000-0000-4000-8000-000000000001";

/// The account behind the API.
#[derive(Debug)]
pub struct DigitalOcean {
    /// The bearer token that the API accepts.
    pub token: String,
    /// How long it takes to assign or unassign an address.
    pub action_time: Duration,
    /// Of this many actions after each other, the second takes twice as long, the third three times as long, and so on.
    pub action_times: u32,
    /// The base URL of links in answers. The default is the vendor's host.
    pub api_url: String,
    /// Whether addresses are shown without their droplets, as to a token without `droplet:read`.
    pub hides_droplets: bool,
    /// Whether answers show addresses as unlocked while an action is in flight, as if they were outdated.
    pub hides_locks: bool,
    pub(super) droplets: BTreeMap<u64, Droplet>,
    pub(super) addresses: BTreeMap<String, Address>,
    /// Index of the addresses by droplet. It keeps accounts with thousands of addresses fast.
    held: BTreeMap<u64, BTreeSet<String>>,
    pub(super) actions: BTreeMap<u64, Action>,
    /// The IDs of unfinished actions.
    pub(super) pending: BTreeSet<u64>,
    pub(super) projects: BTreeMap<String, Project>,
    pub(super) domains: BTreeMap<String, Domain>,
    /// How many addresses the API has created. It never creates the same address twice.
    pub(super) created_count: u32,
    pub(super) droplet_count: u16,
    /// The number of projects that were ever created, including the default project.
    pub(super) project_count: u64,
    pub(super) record_count: u64,
    /// Manual changes that are not in the ledger yet.
    pub(super) unwritten: VecDeque<CloudChange>,
}

impl DigitalOcean {
    /// Creates an account with only the default project.
    pub fn new(token: impl Into<String>) -> Self {
        let default = Project::default_of_account();
        Self {
            token: token.into(),
            action_time: Duration::from_secs(1),
            action_times: 1,
            api_url: "https://api.digitalocean.com".to_owned(),
            hides_droplets: false,
            hides_locks: false,
            droplets: BTreeMap::new(),
            addresses: BTreeMap::new(),
            held: BTreeMap::new(),
            actions: BTreeMap::new(),
            pending: BTreeSet::new(),
            projects: BTreeMap::from([(default.id.clone(), default)]),
            domains: BTreeMap::new(),
            created_count: 0,
            droplet_count: 0,
            project_count: 1,
            record_count: 0,
            unwritten: VecDeque::new(),
        }
    }
}

/// One VM.
#[derive(Clone, Debug)]
pub(super) struct Droplet {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) region: String,
    /// Its number in the account, which determines its private and public addresses.
    pub(super) number: u16,
    pub(super) is_off: bool,
    /// Whether it has a GPU. Listings contain such droplets only on request.
    pub(super) has_gpu: bool,
}

/// One reserved address.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) region: String,
    pub(super) project: String,
    pub(super) holder: Option<u64>,
    pub(super) created_at: Duration,
    /// Whether it is a bring-your-own IP (BYOIP). The vendor's API returns 404 for an action of such an address.
    pub(super) byo: bool,
}

/// One requested change, and its status.
#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) id: u64,
    pub(super) ip: String,
    pub(super) region: String,
    pub(super) project: String,
    pub(super) order: Order,
    pub(super) started_at: Duration,
    pub(super) ends_at: Duration,
    pub(super) fails: bool,
    pub(super) status: Status,
}

/// The change that an action makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Assign the address to this droplet.
    Assign(u64),
    /// Unassign the address from the droplet that held it when the request arrived.
    Unassign(u64),
}

/// The status of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Errored,
}

/// One project.
#[derive(Clone, Debug)]
pub(super) struct Project {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) purpose: String,
    pub(super) environment: String,
    pub(super) created_at: Duration,
}

/// A DNS zone.
#[derive(Clone, Debug, Default)]
pub(super) struct Domain {
    pub(super) records: BTreeMap<u64, Record>,
}

/// One value of one DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: String,
    /// The name relative to the domain. The domain itself is `@`.
    pub(super) name: String,
    pub(super) data: String,
    pub(super) ttl: u64,
    pub(super) priority: Option<u64>,
    pub(super) port: Option<u64>,
    pub(super) weight: Option<u64>,
    pub(super) flags: Option<u64>,
    pub(super) tag: Option<String>,
}

impl Project {
    fn default_of_account() -> Self {
        Self {
            id: DEFAULT_PROJECT_ID.to_owned(),
            name: "first-project".to_owned(),
            description: "Update your project information under Settings".to_owned(),
            purpose: "Just trying out DigitalOcean".to_owned(),
            environment: "Development".to_owned(),
            created_at: Duration::ZERO,
        }
    }
}

impl Order {
    /// The droplet that the change affects.
    fn droplet(self) -> u64 {
        match self {
            Self::Assign(droplet) | Self::Unassign(droplet) => droplet,
        }
    }
}

/// Holders, and actions in flight.
impl DigitalOcean {
    /// Returns the reserved addresses that a droplet holds. The API allows one, but a manual change can add more.
    pub(super) fn held_by(&self, droplet: u64) -> impl Iterator<Item = &str> {
        self.held.get(&droplet).into_iter().flatten().map(String::as_str)
    }

    /// Sets the holder of an address, and returns the previous one.
    pub(super) fn set_holder(&mut self, ip: &str, holder: Option<u64>) -> Option<u64> {
        let address = self.addresses.get_mut(ip)?;
        let before = std::mem::replace(&mut address.holder, holder);
        if let Some(held) = before.and_then(|droplet| self.held.get_mut(&droplet)) {
            held.remove(ip);
        }
        if let Some(droplet) = holder {
            self.held.entry(droplet).or_default().insert(ip.to_owned());
        }
        before
    }

    /// Whether an action that affects a droplet is in flight.
    pub(super) fn has_pending_event(&self, droplet: u64) -> bool {
        self.pending().any(|action| action.order.droplet() == droplet)
    }

    /// Returns the unfinished actions.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Action> {
        self.pending.iter().filter_map(|id| self.actions.get(id))
    }
}
