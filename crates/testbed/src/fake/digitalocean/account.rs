//! The account behind the API: what is in it, and what is under way.
//!
//! Out: the state that every call reads and changes, and who holds or awaits what. It never answers a call: what can be done with
//! addresses, droplets, projects and domains is in the files of these names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::super::ledger::Deed;

/// The project of everything that names none.
pub(super) const DEFAULT_PROJECT_ID: &str = "00000000-0000-4000-8000-000000000001";

/// The account behind the API.
#[derive(Debug)]
pub struct DigitalOcean {
    /// The bearer token that the API accepts.
    pub token: String,
    /// How long an assignment or its opposite takes.
    pub action_time: Duration,
    /// What the links in the answers begin with; the vendor's own host unless told otherwise.
    pub api_url: String,
    pub(super) droplets: BTreeMap<u64, Droplet>,
    pub(super) addresses: BTreeMap<String, Address>,
    pub(super) actions: BTreeMap<u64, Action>,
    /// The actions that have not ended.
    pub(super) pending: BTreeSet<u64>,
    pub(super) projects: BTreeMap<String, Project>,
    pub(super) domains: BTreeMap<String, Domain>,
    /// How many addresses the API has given out; none is given out twice.
    pub(super) created_count: u32,
    pub(super) droplet_count: u16,
    /// The default project is the first.
    pub(super) project_count: u64,
    pub(super) record_count: u64,
    /// What a person did with the console and the ledger does not know yet.
    pub(super) unwritten: VecDeque<Deed>,
}

impl DigitalOcean {
    /// An account with nothing in it but its default project.
    pub fn new(token: impl Into<String>) -> Self {
        let default = Project::default_of_account();
        Self {
            token: token.into(),
            action_time: Duration::from_secs(1),
            api_url: "https://api.digitalocean.com".to_owned(),
            droplets: BTreeMap::new(),
            addresses: BTreeMap::new(),
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

/// One virtual machine.
#[derive(Clone, Debug)]
pub(super) struct Droplet {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) region: String,
    /// Its number in the account, from which its own addresses follow.
    pub(super) number: u16,
    pub(super) is_off: bool,
}

/// One reserved address.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) region: String,
    pub(super) project: String,
    pub(super) holder: Option<u64>,
    pub(super) created_at: Duration,
    /// Whether the account's owner brought it along. The vendor can't find the actions of such an address.
    pub(super) byo: bool,
}

/// One order and what became of it.
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

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Put the address on this droplet.
    Assign(u64),
    /// Take it off the droplet that held it when the order came.
    Unassign(u64),
}

/// How far an action has come.
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

/// A zone.
#[derive(Clone, Debug, Default)]
pub(super) struct Domain {
    pub(super) records: BTreeMap<u64, Record>,
}

/// One value of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: String,
    /// Relative to the domain, which itself is `@`.
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
    /// The droplet that it concerns.
    fn droplet(self) -> u64 {
        match self {
            Self::Assign(droplet) | Self::Unassign(droplet) => droplet,
        }
    }
}

/// Who holds or awaits what.
impl DigitalOcean {
    /// The reserved addresses that a droplet has. The API allows one; a person may have done otherwise.
    pub(super) fn held_by(&self, droplet: u64) -> impl Iterator<Item = &str> {
        let held = self.addresses.iter().filter(move |(_, address)| address.holder == Some(droplet));
        held.map(|(ip, _)| ip.as_str())
    }

    /// Whether an action is under way that concerns a droplet.
    pub(super) fn has_pending_event(&self, droplet: u64) -> bool {
        self.pending().any(|action| action.order.droplet() == droplet)
    }

    /// The actions that have not ended.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Action> {
        self.pending.iter().filter_map(|id| self.actions.get(id))
    }
}
