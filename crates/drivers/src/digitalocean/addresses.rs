//! Reserved IPs of DigitalOcean.
//!
//! One `assign` action moves a reserved IP, whether or not a droplet holds it. The address is `locked` until the action
//! has ended. One listing shows the holders of all addresses and which of them are locked, so the driver polls all
//! actions with it.
//!
//! ```text
//! call                       used for                              scope of the token
//! reserved_ips.list          list, poll                            reserved_ip:read
//! reserved_ips.get           the holder, before detach; an         reserved_ip:read
//!                            unlisted address
//! reserved_ips_actions.post  attach (assign), detach (unassign)    reserved_ip:update
//! reserved_ips_actions.get   poll, if the listing shows no effect  reserved_ip:read
//! droplets.list              machines; whether the token shows     droplet:read
//!                            the droplets of addresses
//! reserved_ips.create        create                                reserved_ip:create
//! reserved_ips.delete        release                               reserved_ip:delete
//! projects.list              tags                                  project:read
//! projects.create            the first creation with a tag         project:create
//! ```
//!
//! Reserved IPs have no tags, but each belongs to a project from the moment it exists. So a tag is the name of a
//! project. The driver reads the projects once, and again if an address refers to an unknown one.
//!
//! DigitalOcean does not list bring-your-own addresses (BYOIP). If an object refers to such an address, the driver
//! reads it separately. Addresses that do not exist are not listed either, and cost a read too. So the driver rarely
//! reads them again, and limits the reads for each listing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ::http::Method;
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, StreamExt, stream};
use plan::{Address, Doubt, Holding, MachineState, Scope, VmId};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::bodies::{Droplet, Made, One, Project, ReservedIp, Started};
use super::calls::{explain, list_pages};
use crate::budget::{Limit, Quota};
use crate::error::{check_tag, not_held_by};
use crate::http::{HttpService, JsonApi, Path, number};
use crate::tokens::Tokens;
use crate::{AddressDriver, DriverError, Listed, Listing, Operation, Polled, Progress, Properties, Tags};

/// How long a poll waits for the state of one action.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

/// Every call this driver makes.
pub const CALLS: &[&str] = &[
    "reserved_ips.list",
    "reserved_ips.get",
    "reserved_ips.create",
    "reserved_ips.delete",
    "reserved_ips_actions.post",
    "reserved_ips_actions.get",
    "droplets.list",
    "projects.list",
    "projects.create",
];

/// The rate limit of an account, unless DigitalOcean has raised it.
pub const REQUESTS_PER_MINUTE: usize = 250;

/// See [`REQUESTS_PER_MINUTE`].
pub const REQUESTS_PER_HOUR: usize = 5_000;

/// The rate limits of an account. DigitalOcean reports in each response how many requests are left in the hour.
pub fn limits(per_minute: usize, per_hour: usize) -> [Limit; 2] {
    let hour = Limit::window(per_hour, Duration::from_secs(3_600))
        .with_quota(|headers| Some(Quota { left: number(headers, "ratelimit-remaining")?, resets: None }));
    [Limit::window(per_minute, Duration::from_secs(60)), hour]
}

/// How long the driver waits before it lists projects again after the token was denied. Somebody may change the token.
const DENIED_FOR: Duration = Duration::from_secs(600);

/// The maximum number of unlisted addresses that the driver reads for the first time with one listing. It always reads
/// unlisted addresses that exist: while the holder of one is unknown, any droplet may be its holder.
const NEW_MAX: usize = 50;

/// How many unlisted addresses the driver reads concurrently.
const UNLISTED_AT_ONCE: usize = 8;

/// How long the driver waits before it reads a missing address again. Somebody may have added it to the account as BYOIP,
/// which listings do not show.
const ABSENT_FOR: Duration = Duration::from_secs(600);

/// The minimum interval between two reads of missing addresses, however many there are. A list full of typing errors
/// must not use up the calls that moves need.
const ABSENT_EVERY: Duration = Duration::from_secs(6);

/// Why an unlisted address is unknown.
const UNREAD: &str = "DigitalOcean does not list this address. The controller reads such addresses separately, and will \
     read this one later";

/// The purpose of created projects, one of the values that DigitalOcean offers.
const PURPOSE: &str = "Operational / Developer tooling";

/// Moves reserved IPs between droplets.
pub struct DigitalOcean {
    api: JsonApi,
    /// Held while the driver reads or creates projects, so that two creations do not create the same project.
    projects: Mutex<Projects>,
    /// The state of unlisted addresses.
    unlisted: std::sync::Mutex<Unlisted>,
}

/// Addresses that objects refer to and that DigitalOcean does not list.
#[derive(Default)]
struct Unlisted {
    /// Whether each address existed at its last read, and the time of that read.
    read: BTreeMap<Address, (bool, Instant)>,
    /// When the driver last read a missing address again.
    again: Option<Instant>,
}

impl Unlisted {
    /// The addresses to read now: all that exist, some that were never read, and at most one of the missing ones.
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

/// The result of reading unlisted addresses.
#[derive(Default)]
struct Unlistable {
    found: Vec<(Address, ReservedIp)>,
    unknown: Vec<(Address, Listed)>,
}

impl Unlistable {
    fn doubt(&mut self, address: Address, doubt: Doubt) {
        let listed = Listed { holding: Holding::Unknown(doubt), region: None, tag: None };
        self.unknown.push((address, listed));
    }
}

impl DigitalOcean {
    /// Creates a driver for the account of the token.
    pub fn new(service: HttpService, url: &str, tokens: Arc<dyn Tokens>) -> Self {
        Self {
            api: JsonApi::new(service, url, tokens, explain),
            projects: Mutex::default(),
            unlisted: std::sync::Mutex::default(),
        }
    }

    /// Lists all addresses, and reads those of `named` that DigitalOcean does not list.
    async fn list_all(&self, named: &BTreeSet<Address>) -> Result<Listing, DriverError> {
        let all = self.list_reserved().await?;
        let listed: BTreeSet<_> = all.iter().map(|(address, _)| *address).collect();
        let unlisted = self.read_unlisted(&(named - &listed)).await;
        self.check_shows_droplets(all.iter().chain(&unlisted.found)).await?;
        Ok(self.describe(all, unlisted).await)
    }

    /// Checks that the token may see droplets, if an address looks free and none shows its droplet. Without this
    /// permission DigitalOcean shows every address without its droplet.
    async fn check_shows_droplets<'a>(
        &self,
        addresses: impl Iterator<Item = &'a (Address, ReservedIp)>,
    ) -> Result<(), DriverError> {
        let holdings: Vec<Holding> = addresses.map(|(_, found)| found.holding()).collect();
        let is_held = |holding: &Holding| matches!(holding, Holding::By(_));
        if !holdings.contains(&Holding::Free) || holdings.iter().any(is_held) {
            return Ok(());
        }
        let path = Path::new("v2/droplets?per_page=1", &[]);
        self.api.call::<Value>("droplets.list", Method::GET, &path, None).await.map(drop)
    }

    /// Reads every reserved IP that DigitalOcean lists.
    async fn list_reserved(&self) -> Result<Vec<(Address, ReservedIp)>, DriverError> {
        let name = "reserved_ips.list";
        let path = Path::new("v2/reserved_ips?", &[]);
        let listed: Vec<ReservedIp> = list_pages(&self.api, name, &path, "reserved_ips").await?;
        listed.into_iter().map(|found| Ok((found.address(name)?, found))).collect()
    }

    /// Makes a listing of the listed and the separately read addresses.
    async fn describe(&self, mut all: Vec<(Address, ReservedIp)>, unlisted: Unlistable) -> Listing {
        let Unlistable { found, unknown } = unlisted;
        all.extend(found);
        let mut projects = self.projects.lock().await;
        let ids = all.iter().filter_map(|(_, found)| found.project_id.as_deref());
        let tags = self.know_projects(&mut projects, ids).await;
        let listed = |(address, found): (Address, ReservedIp)| {
            let region = found.region.as_ref().map(|region| region.slug.as_str().into());
            // If the driver can't read the projects now, the known names may be outdated, so it reports no tags.
            let tag = found.tag(projects.names.as_ref()).filter(|_| tags == Tags::Complete);
            (address, Listed { holding: found.holding(), region, tag })
        };
        let addresses = all.into_iter().map(listed).chain(unknown).collect();
        Listing { addresses, tags, ..Listing::default() }
    }

    async fn read_each(&self, due: Vec<Address>) -> BTreeMap<Address, Result<ReservedIp, DriverError>> {
        let reads = due.into_iter().map(async |address| (address, self.read(address).await));
        stream::iter(reads).buffer_unordered(UNLISTED_AT_ONCE).collect().await
    }

    /// Reads the unlisted addresses that are due, with one call for each.
    async fn read_unlisted(&self, unlisted: &BTreeSet<Address>) -> Unlistable {
        let due = self.unlisted.lock().unwrap_or_else(PoisonError::into_inner).due(unlisted);
        let mut read = self.read_each(due).await;
        let mut known = self.unlisted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut result = Unlistable::default();
        for address in unlisted.iter().copied() {
            let existed = known.read.get(&address).is_some_and(|(exists, _)| *exists);
            match read.remove(&address) {
                Some(Ok(reserved_ip)) => {
                    known.read.insert(address, (true, Instant::now()));
                    result.found.push((address, reserved_ip));
                }
                Some(Err(DriverError::NotFound(_))) => {
                    known.read.insert(address, (false, Instant::now()));
                }
                // DigitalOcean rejects some addresses that it does not have with other errors than 404. For an address
                // that it had before, such an error is no proof.
                Some(Err(DriverError::Conflict(_) | DriverError::Invalid(_))) if !existed => {
                    known.read.insert(address, (false, Instant::now()));
                }
                Some(Err(error)) => result.doubt(address, error.to_string().into()),
                None if known.read.get(&address).is_some_and(|(exists, _)| !exists) => {}
                None => result.doubt(address, Doubt { is_unasked: true, ..UNREAD.into() }),
            }
        }
        result
    }

    async fn read(&self, address: Address) -> Result<ReservedIp, DriverError> {
        let path = Path::new("v2/reserved_ips/{}", &[&address]);
        let One { reserved_ip } = self.api.call("reserved_ips.get", Method::GET, &path, None).await?;
        Ok(reserved_ip)
    }

    /// Reads the projects, unless all of `ids` are known.
    async fn know_projects<'a>(
        &self,
        projects: &mut Projects,
        ids: impl Iterator<Item = &'a str> + Clone,
    ) -> Tags {
        if projects.names.as_ref().is_some_and(|names| ids.clone().all(|id| names.contains_key(id))) {
            return Tags::Complete;
        }
        if projects.denied.is_some_and(|at| at.elapsed() < DENIED_FOR) {
            return Tags::Unsupported;
        }
        match self.read_projects(projects).await {
            Ok(()) => {
                // An address may refer to a project that the token can't see. The controller did not create that
                // project. It gets an empty name here, so the driver does not list all projects again each time.
                let names = projects.names.get_or_insert_default();
                ids.for_each(|id| _ = names.entry(id.to_owned()).or_insert_with(|| "".into()));
                Tags::Complete
            }
            Err(DriverError::Denied { .. }) => Tags::Unsupported,
            Err(error) => {
                tracing::warn!(%error, "failed to list projects; not creating addresses");
                Tags::Incomplete
            }
        }
    }

    async fn read_projects(&self, projects: &mut Projects) -> Result<(), DriverError> {
        let name = "projects.list";
        let path = Path::new("v2/projects?", &[]);
        let listed: Result<Vec<Project>, _> = list_pages(&self.api, name, &path, "projects").await;
        projects.denied = matches!(listed, Err(DriverError::Denied { .. })).then(Instant::now);
        projects.names = Some(listed?.into_iter().map(|found| (found.id, found.name.into())).collect());
        Ok(())
    }

    /// Returns the ID of the project named `wanted`. Creates the project if it does not exist. Names are unique in an
    /// account.
    async fn project(&self, wanted: &str) -> Result<String, DriverError> {
        let find = |projects: &Projects| {
            let mut names = projects.names.iter().flatten();
            names.find(|(_, name)| &***name == wanted).map(|(id, _)| id.clone())
        };
        let mut projects = self.projects.lock().await;
        if let Some(id) = find(&projects) {
            return Ok(id);
        }
        // Another process may have created it.
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
            // The project may have been deleted or renamed.
            self.projects.lock().await.names = None;
        }
        let One { reserved_ip } = created?;
        reserved_ip.address(name)
    }

    /// Releases an address. DigitalOcean also deletes an address that a droplet holds, so the driver reads the address
    /// right before. Earlier it reads the names of the projects, because somebody may have renamed one since the last
    /// listing.
    async fn delete(&self, address: Address, tag: &str) -> Result<Progress, DriverError> {
        let path = Path::new("v2/reserved_ips/{}", &[&address]);
        let names = {
            let mut projects = self.projects.lock().await;
            self.read_projects(&mut projects).await?;
            projects.names.clone()
        };
        let found = match self.read(address).await {
            Err(DriverError::NotFound(_)) => return Ok(Progress::Done),
            read => (address, read?),
        };
        if found.1.holding() != Holding::Free {
            return Err(DriverError::Conflict(format!("{address} is in use, so it was not released")));
        }
        check_tag(address, found.1.tag(names.as_ref()).as_deref(), tag)?;
        self.check_shows_droplets([&found].into_iter()).await?;
        match self.api.call::<Value>("reserved_ips.delete", Method::DELETE, &path, None).await {
            Ok(_) | Err(DriverError::NotFound(_)) => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }

    async fn list_machines(&self) -> Result<BTreeMap<VmId, MachineState>, DriverError> {
        let name = "droplets.list";
        // DigitalOcean lists droplets with GPUs only on request.
        let paths = ["v2/droplets?", "v2/droplets?type=gpus&"].map(|path| Path::new(path, &[]));
        let mut machines = BTreeMap::new();
        let mut droplets: Vec<Droplet> = Vec::new();
        for path in paths {
            droplets.extend(list_pages::<Droplet>(&self.api, name, &path, "droplets").await?);
        }
        for found in droplets {
            let state = match found.status.as_deref() {
                Some("off" | "archive") => MachineState::Stopped,
                _ => MachineState::Running,
            };
            machines.insert(found.id.to_string().into(), state);
        }
        Ok(machines)
    }

    /// Detaches an address. The `unassign` action does not name a droplet, so the driver reads the holder right before.
    async fn unassign(&self, scope: &Scope, address: Address, vm: &VmId) -> Result<Progress, DriverError> {
        match self.read(address).await?.holding() {
            Holding::By(holder) if holder == *vm => self.act(scope, address, None).await,
            Holding::By(_) => Err(not_held_by(address, vm)),
            Holding::Unknown(doubt) => Err(DriverError::Conflict(format!("{address}: {}", doubt.why))),
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
                    droplet.map_err(|_| DriverError::Invalid(format!("{vm} is not a droplet ID")))?;
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
        // Actions of BYOIP addresses can't be read, so the driver reads the addresses.
        let all = match self.list_reserved().await {
            Ok(all) => all,
            Err(error) => return vec![Err(error); operations.len()],
        };
        let listed: BTreeSet<_> = all.iter().map(|(address, _)| *address).collect();
        let moving = operations.iter().map(|operation| operation.address);
        let unlisted: BTreeSet<_> = moving.filter(|address| !listed.contains(address)).collect();
        // `read_unlisted` would forget all other unlisted addresses, so a poll reads its addresses directly.
        let mut result = Unlistable::default();
        for (address, read) in self.read_each(unlisted.into_iter().collect()).await {
            match read {
                Ok(reserved_ip) => result.found.push((address, reserved_ip)),
                Err(DriverError::NotFound(_)) => {}
                Err(error) => result.doubt(address, error.to_string().into()),
            }
        }
        if let Err(error) = self.check_shows_droplets(all.iter().chain(&result.found)).await {
            return vec![Err(error); operations.len()];
        }
        let listing = self.describe(all, result).await;
        join_all(operations.iter().map(|operation| {
            let polled = ended(operation, listing.get(operation.address).holding);
            self.confirm_failure(operation, polled)
        }))
        .await
    }

    /// If an action seems to have failed, reads the action itself. The listing may be from before the action locked the
    /// address.
    async fn confirm_failure(&self, operation: &Operation, polled: Polled) -> Result<Polled, DriverError> {
        if !matches!(polled, Polled::Failed(DriverError::Conflict(_))) {
            return Ok(polled);
        }
        let name = "reserved_ips_actions.get";
        let path = Path::new("v2/reserved_ips/{}/actions/{}", &[&operation.address, &operation.id]);
        let reading = self.api.call(name, Method::GET, &path, None);
        match tokio::time::timeout(CONFIRM_WITHIN, reading).await {
            // The other operations of the account wait for this answer.
            Err(_elapsed) => Ok(Polled::StillUnderway),
            Ok(Ok(Started { action })) if action.status.as_deref() == Some("in-progress") => {
                Ok(Polled::StillUnderway)
            }
            // The action may have ended after the listing.
            Ok(Ok(_)) => Ok(ended(operation, self.read(operation.address).await?.holding())),
            Ok(Err(
                error @ (DriverError::Unavailable(_)
                | DriverError::RateLimited { .. }
                | DriverError::NotSent(_)),
            )) => Err(error),
            // DigitalOcean returns 404 for actions of BYOIP addresses.
            Ok(Err(_)) => Ok(polled),
        }
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

    fn properties(&self) -> Properties {
        // A droplet has at most one reserved IP: the API rejects a second one with status 422.
        Properties { moves_in_one_call: true, refuses_occupied: true, staleness_max: Duration::ZERO }
    }
}

/// Whether an action has ended, from the state of its address. After a failed action, the address is unlocked and has its
/// old holder.
fn ended(operation: &Operation, holding: Holding) -> Polled {
    let wanted = operation.target.clone().map_or(Holding::Free, Holding::By);
    match holding {
        Holding::Unknown(_) => Polled::StillUnderway,
        Holding::Missing => {
            Polled::Failed(DriverError::NotFound(format!("reserved IP {}", operation.address)))
        }
        found if found == wanted => Polled::Ended,
        _ => {
            let message = format!("action {} on {} had no effect", operation.id, operation.address);
            Polled::Failed(DriverError::Conflict(message))
        }
    }
}

/// The projects of the account.
#[derive(Default)]
struct Projects {
    /// The names by ID. `None` until they are read.
    names: Option<BTreeMap<String, Arc<str>>>,
    /// When the token was last denied.
    denied: Option<Instant>,
}
