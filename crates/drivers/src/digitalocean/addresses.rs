//! DigitalOcean's reserved IPs.
//!
//! A reserved IP moves with one `assign` action, whether or not a droplet holds it, and is `locked` until the action has
//! ended. One listing tells the holders of all addresses and which of them are locked, so it also polls all actions.
//!
//! ```text
//! call                       used for                              scope of the token
//! reserved_ips.list          list, poll                            reserved_ip:read
//! reserved_ips.get           whom to take it from, before detach;  reserved_ip:read
//!                            an address that is not listed
//! reserved_ips_actions.post  attach (assign), detach (unassign)    reserved_ip:update
//! droplets.list              machines                              droplet:read
//! reserved_ips.create        create                                reserved_ip:create
//! reserved_ips.delete        release                               reserved_ip:delete
//! projects.list              tags                                  project:read
//! projects.create            the first creation with a tag         project:create
//! ```
//!
//! Reserved IPs have no tags of their own, but each belongs to a project from its creation on. So a tag is the name of a
//! project. Projects are read once, and again when an address names one that is not known.
//!
//! An address that the account's owner brought along (BYOIP) is not listed. It is read by itself, if an object lists it. One that
//! does not exist is not listed either, and costs a read as well. So it is read again seldom, and few are read with one listing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ::http::Method;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use plan::{Address, Holding, MachineState, Scope, VmId};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::bodies::{Droplet, Made, One, Project, ReservedIp, Started};
use super::calls::{explain, list_pages};
use crate::error::{check_tag, not_held_by};
use crate::http::{HttpService, JsonApi, Path, unreadable};
use crate::tokens::Tokens;
use crate::{AddressDriver, DriverError, Listed, Listing, Operation, Polled, Progress, Tags, Traits};

/// Every call this driver makes.
pub const CALLS: &[&str] = &[
    "reserved_ips.list",
    "reserved_ips.get",
    "reserved_ips.create",
    "reserved_ips.delete",
    "reserved_ips_actions.post",
    "droplets.list",
    "projects.list",
    "projects.create",
];

/// What an account may do, unless DigitalOcean has raised its limit.
pub const REQUESTS_PER_MINUTE: usize = 250;

/// See [`REQUESTS_PER_MINUTE`].
pub const REQUESTS_PER_HOUR: usize = 5_000;

/// A token that may not read projects is asked again after so long, because it may have been changed.
const DENIED_FOR: Duration = Duration::from_secs(600);

/// The most addresses of which nothing is known that are read by themselves with one listing. Those that exist are always read:
/// while where one of them is remains unknown, nothing is placed in the account.
const NEW_MAX: usize = 50;

/// How many of them are read at the same time.
const UNLISTED_AT_ONCE: usize = 8;

/// An address that does not exist is read again after so long, because it may have been brought along since.
const ABSENT_FOR: Duration = Duration::from_secs(600);

/// The pause between two reads of addresses that did not exist, however many there are: a list full of typing errors must not use
/// up the calls that moves need.
const ABSENT_EVERY: Duration = Duration::from_secs(6);

/// Why an address that is not listed is unknown.
const UNREAD: &str = "DigitalOcean does not list it, and the limit on single reads per listing is reached";

/// What a project is for, in the words from which DigitalOcean lets choose.
const PURPOSE: &str = "Operational / Developer tooling";

/// Moves reserved IPs between droplets.
pub struct DigitalOcean {
    api: JsonApi,
    /// Held while projects are read or made, so that two creations don't make the same one.
    projects: Mutex<Projects>,
    /// What is known of addresses that are not listed.
    unlisted: std::sync::Mutex<Unlisted>,
}

/// Addresses that objects list and DigitalOcean does not.
#[derive(Default)]
struct Unlisted {
    /// Whether each existed when it was last read, and when that was.
    read: BTreeMap<Address, (bool, Instant)>,
    /// When one that had not existed was last read again.
    again: Option<Instant>,
}

impl Unlisted {
    /// Those of these that are to be read now: all that exist, some that were never read, and one of the others.
    fn due(&mut self, unlisted: &BTreeSet<Address>) -> Vec<Address> {
        self.read.retain(|address, _| unlisted.contains(address));
        let exists = |address: &Address| self.read.get(address).map(|(exists, _)| *exists);
        let existing = unlisted.iter().filter(|address| exists(address) == Some(true));
        let new = unlisted.iter().filter(|address| exists(address).is_none());
        let absent = self.read.iter().filter(|(_, (exists, at))| !exists && at.elapsed() >= ABSENT_FOR);
        let oldest = absent.min_by_key(|(_, (_, at))| *at).map(|(address, _)| address);
        let again = oldest.filter(|_| self.again.is_none_or(|last| last.elapsed() >= ABSENT_EVERY));
        let due: Vec<Address> = existing.chain(new.take(NEW_MAX)).chain(again).copied().collect();
        self.again = again.map(|_| Instant::now()).or(self.again);
        due
    }
}

/// What came of reading addresses that are not listed.
#[derive(Default)]
struct Unlistable {
    found: Vec<(Address, ReservedIp)>,
    unknown: Vec<(Address, Listed)>,
}

impl Unlistable {
    fn doubt(&mut self, address: Address, reason: Arc<str>) {
        let listed = Listed { holding: Holding::Unknown(reason), region: None, tag: None };
        self.unknown.push((address, listed));
    }
}

impl DigitalOcean {
    /// A driver for the account that the token belongs to.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>) -> Self {
        Self {
            api: JsonApi::new(service, url, tokens, explain),
            projects: Mutex::default(),
            unlisted: std::sync::Mutex::default(),
        }
    }

    /// All that is listed, and those of these addresses that are not listed and exist.
    async fn list_all(&self, named: &BTreeSet<Address>) -> Result<Listing, DriverError> {
        let all = self.list_reserved().await?;
        let listed: BTreeSet<_> = all.iter().map(|(address, _)| *address).collect();
        let unlisted = self.read_unlisted(&(named - &listed)).await;
        Ok(self.describe(all, unlisted).await)
    }

    /// Every reserved IP that DigitalOcean lists.
    async fn list_reserved(&self) -> Result<Vec<(Address, ReservedIp)>, DriverError> {
        let name = "reserved_ips.list";
        let mut all = Vec::new();
        for item in list_pages(&self.api, name, &Path::new("v2/reserved_ips?", &[]), "reserved_ips").await? {
            let found: ReservedIp = serde_json::from_value(item).map_err(|error| unreadable(name, &error))?;
            all.push((found.address(name)?, found));
        }
        Ok(all)
    }

    /// A listing of what was listed and of what was read.
    async fn describe(&self, mut all: Vec<(Address, ReservedIp)>, unlisted: Unlistable) -> Listing {
        let Unlistable { found, unknown } = unlisted;
        all.extend(found);
        let mut projects = self.projects.lock().await;
        let ids = all.iter().filter_map(|(_, found)| found.project_id.as_deref());
        let tags = self.know_projects(&mut projects, ids).await;
        let listed = |(address, found): (Address, ReservedIp)| {
            let region = found.region.as_ref().map(|region| region.slug.as_str().into());
            // The names that are known may be old where they can't be read any more.
            let tag = found.tag(projects.names.as_ref()).filter(|_| tags == Tags::Told);
            (address, Listed { holding: found.holding(), region, tag })
        };
        let addresses = all.into_iter().map(listed).chain(unknown).collect();
        Listing { addresses, tags, ..Listing::default() }
    }

    async fn read_each(&self, due: Vec<Address>) -> BTreeMap<Address, Result<ReservedIp, DriverError>> {
        let reads = due.into_iter().map(async |address| (address, self.read(address).await));
        stream::iter(reads).buffer_unordered(UNLISTED_AT_ONCE).collect().await
    }

    /// Reads addresses that are not listed, each by itself: those that exist, and those of which that is not known.
    async fn read_unlisted(&self, unlisted: &BTreeSet<Address>) -> Unlistable {
        let due = self.unlisted.lock().unwrap_or_else(PoisonError::into_inner).due(unlisted);
        let mut read = self.read_each(due).await;
        let mut known = self.unlisted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut result = Unlistable::default();
        for address in unlisted.iter().copied() {
            match read.remove(&address) {
                Some(Ok(reserved_ip)) => {
                    known.read.insert(address, (true, Instant::now()));
                    result.found.push((address, reserved_ip));
                }
                // Whatever DigitalOcean does not take for an address of its own is none.
                Some(Err(DriverError::NotFound(_) | DriverError::Conflict(_) | DriverError::Invalid(_))) => {
                    known.read.insert(address, (false, Instant::now()));
                }
                Some(Err(error)) => result.doubt(address, error.to_string().into()),
                None if known.read.get(&address).is_some_and(|(exists, _)| !exists) => {}
                None => result.doubt(address, UNREAD.into()),
            }
        }
        result
    }

    async fn read(&self, address: Address) -> Result<ReservedIp, DriverError> {
        let path = Path::new("v2/reserved_ips/{}", &[&address]);
        let One { reserved_ip } = self.api.call("reserved_ips.get", Method::GET, &path, None).await?;
        Ok(reserved_ip)
    }

    /// Reads the projects, unless all of these are known already.
    async fn know_projects<'a>(
        &self,
        projects: &mut Projects,
        ids: impl Iterator<Item = &'a str> + Clone,
    ) -> Tags {
        if projects.names.as_ref().is_some_and(|names| ids.clone().all(|id| names.contains_key(id))) {
            return Tags::Told;
        }
        if projects.denied.is_some_and(|at| at.elapsed() < DENIED_FOR) {
            return Tags::Unsupported;
        }
        match self.read_projects(projects).await {
            Ok(()) => {
                // One that an address names and that is not shown to us is none of ours, and not worth another look.
                let names = projects.names.get_or_insert_default();
                ids.for_each(|id| _ = names.entry(id.to_owned()).or_insert_with(|| "".into()));
                Tags::Told
            }
            Err(DriverError::Denied { .. }) => Tags::Unsupported,
            Err(error) => {
                tracing::warn!(%error, "reading projects failed, so nothing is created for now");
                Tags::Untold
            }
        }
    }

    async fn read_projects(&self, projects: &mut Projects) -> Result<(), DriverError> {
        let name = "projects.list";
        let listed = list_pages(&self.api, name, &Path::new("v2/projects?", &[]), "projects").await;
        projects.denied = matches!(listed, Err(DriverError::Denied { .. })).then(Instant::now);
        let mut names = BTreeMap::new();
        for item in listed? {
            let found: Project = serde_json::from_value(item).map_err(|error| unreadable(name, &error))?;
            names.insert(found.id, found.name.into());
        }
        projects.names = Some(names);
        Ok(())
    }

    /// The id of the project of a name, which is made where there is none. Names are unique in an account.
    async fn project(&self, wanted: &str) -> Result<String, DriverError> {
        let find = |projects: &Projects| {
            let mut names = projects.names.iter().flatten();
            names.find(|(_, name)| &***name == wanted).map(|(id, _)| id.clone())
        };
        let mut projects = self.projects.lock().await;
        if let Some(id) = find(&projects) {
            return Ok(id);
        }
        // Another process may have made it since.
        self.read_projects(&mut projects).await?;
        if let Some(id) = find(&projects) {
            return Ok(id);
        }
        let body = json!({"name": wanted, "purpose": PURPOSE, "environment": "Production"});
        let Made { project } = self
            .api
            .call("projects.create", Method::POST, &Path::new("v2/projects", &[]), Some(body))
            .await?;
        projects.names.get_or_insert_default().insert(project.id.clone(), project.name.into());
        Ok(project.id)
    }

    async fn create_one(&self, region: &str, tag: Option<&str>) -> Result<Address, DriverError> {
        let name = "reserved_ips.create";
        let mut body = json!({"region": region});
        if let Some(tag) = tag {
            body["project_id"] = self.project(tag).await?.into();
        }
        let path = Path::new("v2/reserved_ips", &[]);
        let created = self.api.call(name, Method::POST, &path, Some(body)).await;
        if matches!(created, Err(DriverError::NotFound(_) | DriverError::Invalid(_))) {
            // Its project may be gone, or have another name by now.
            self.projects.lock().await.names = None;
        }
        let One { reserved_ip } = created?;
        reserved_ip.address(name)
    }

    /// Deleting takes an address also off a droplet that holds it, so that is read right before. So are the names of the
    /// projects: a person may have renamed one since the last listing.
    async fn delete(&self, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let path = Path::new("v2/reserved_ips/{}", &[&address]);
        let reserved_ip = match self.read(address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            read => read?,
        };
        if reserved_ip.holding() != Holding::Free {
            return Err(DriverError::Conflict(format!("{address} is in use, and was not released")));
        }
        let mut projects = self.projects.lock().await;
        self.read_projects(&mut projects).await?;
        check_tag(address, reserved_ip.tag(projects.names.as_ref()).as_deref(), tag)?;
        drop(projects);
        match self.api.call::<Value>("reserved_ips.delete", Method::DELETE, &path, None).await {
            Ok(_) | Err(DriverError::NotFound(_)) => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }

    async fn list_machines(&self) -> Result<BTreeMap<VmId, MachineState>, DriverError> {
        let name = "droplets.list";
        let mut machines = BTreeMap::new();
        for item in list_pages(&self.api, name, &Path::new("v2/droplets?", &[]), "droplets").await? {
            let found: Droplet = serde_json::from_value(item).map_err(|error| unreadable(name, &error))?;
            let state = match found.status.as_deref() {
                Some("off" | "archive") => MachineState::Stopped,
                _ => MachineState::Running,
            };
            machines.insert(found.id.to_string().into(), state);
        }
        Ok(machines)
    }

    /// Unassigning does not say from whom, so who holds the address is read right before.
    async fn unassign(&self, scope: &Scope, address: Address, vm: &VmId) -> Result<Progress, DriverError> {
        match self.read(address).await?.holding() {
            Holding::By(holder) if holder == *vm => self.act(scope, address, None).await,
            Holding::By(_) => Err(not_held_by(address, vm)),
            Holding::Unknown(reason) => Err(DriverError::Conflict(format!("{address}: {reason}"))),
            Holding::Free | Holding::Missing => Ok(Progress::Done),
        }
    }

    async fn act(
        &self,
        scope: &Scope,
        address: Address,
        target: Option<&VmId>,
    ) -> Result<Progress, DriverError> {
        let name = "reserved_ips_actions.post";
        let body = match target {
            Some(vm) => {
                let droplet = vm.as_str().parse::<u64>();
                let droplet =
                    droplet.map_err(|_| DriverError::Invalid(format!("{vm} is no droplet's id")))?;
                json!({"type": "assign", "droplet_id": droplet})
            }
            None => json!({"type": "unassign"}),
        };
        let path = Path::new("v2/reserved_ips/{}/actions", &[&address]);
        let Started { action } = self.api.call(name, Method::POST, &path, Some(body)).await?;
        let id = action.id.to_string();
        let target = target.cloned();
        Ok(Progress::Underway(Operation { id, scope: scope.clone(), address, target, completes: true }))
    }

    async fn poll_all(&self, operations: &[Operation]) -> Vec<Result<Polled, DriverError>> {
        // Actions of addresses that were brought along can't be read, so the addresses tell.
        let all = match self.list_reserved().await {
            Ok(all) => all,
            Err(error) => return vec![Err(error); operations.len()],
        };
        let listed: BTreeSet<_> = all.iter().map(|(address, _)| *address).collect();
        let moving = operations.iter().map(|operation| operation.address);
        let unlisted: BTreeSet<_> = moving.filter(|address| !listed.contains(address)).collect();
        // What is known of all other addresses that are not listed stays as it is.
        let mut result = Unlistable::default();
        for (address, read) in self.read_each(unlisted.into_iter().collect()).await {
            match read {
                Ok(reserved_ip) => result.found.push((address, reserved_ip)),
                Err(DriverError::NotFound(_)) => {}
                Err(error) => result.doubt(address, error.to_string().into()),
            }
        }
        let listing = self.describe(all, result).await;
        operations.iter().map(|operation| Ok(ended(operation, &listing))).collect()
    }
}

impl AddressDriver for DigitalOcean {
    fn list<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Listing, DriverError>> {
        async { self.list_all(&BTreeSet::new()).await }.boxed()
    }

    fn list_with<'a>(
        &'a self,
        _: &'a Scope,
        addresses: &'a BTreeSet<Address>,
    ) -> BoxFuture<'a, Result<Listing, DriverError>> {
        self.list_all(addresses).boxed()
    }

    fn attach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.act(scope, address, Some(vm)).boxed()
    }

    fn detach<'a>(
        &'a self,
        scope: &'a Scope,
        address: Address,
        vm: &'a VmId,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.unassign(scope, address, vm).boxed()
    }

    fn create<'a>(
        &'a self,
        _: &'a Scope,
        region: &'a str,
        tag: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Address, DriverError>> {
        self.create_one(region, tag).boxed()
    }

    fn release<'a>(
        &'a self,
        _: &'a Scope,
        address: Address,
        tag: &'a str,
    ) -> BoxFuture<'a, Result<Progress, DriverError>> {
        self.delete(address, tag).boxed()
    }

    fn poll<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Vec<Result<Polled, DriverError>>> {
        self.poll_all(operations).boxed()
    }

    fn machines<'a>(
        &'a self,
        _: &'a Scope,
    ) -> BoxFuture<'a, Result<BTreeMap<VmId, MachineState>, DriverError>> {
        self.list_machines().boxed()
    }

    fn traits(&self) -> Traits {
        Traits { moves_in_one_call: true, late_max: Duration::ZERO }
    }
}

/// Whether an action has ended, by what the listing says of its address. An action that failed leaves the address
/// unlocked where it was.
fn ended(operation: &Operation, listing: &Listing) -> Polled {
    let wanted = operation.target.clone().map_or(Holding::Free, Holding::By);
    match listing.told(operation.address).holding {
        Holding::Unknown(_) => Polled::StillUnderway,
        Holding::Missing => {
            Polled::Failed(DriverError::NotFound(format!("reserved IP {}", operation.address)))
        }
        found if found == wanted => Polled::Ended,
        _ => {
            let message = format!("action {} on {} ended without effect", operation.id, operation.address);
            Polled::Failed(DriverError::Conflict(message))
        }
    }
}

/// What is known of projects.
#[derive(Default)]
struct Projects {
    /// Their names, by id; none before they were read.
    names: Option<BTreeMap<String, Arc<str>>>,
    /// When the token was last refused.
    denied: Option<Instant>,
}
