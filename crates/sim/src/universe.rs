//! What all processes of a run share: the apiserver, the clouds, the weather between them, and the story of the run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller::clock::Clock;
use controller::tasks::stop::Stop;
use jiff::Timestamp;
use serde_json::Value;
use testbed::fake::Fake;
use testbed::fake::compute::Compute;
use testbed::fake::digitalocean::DigitalOcean;
use tokio::time::Instant;

use crate::apiserver::ApiServer;
use crate::dice::Dice;
use crate::script::ADDRESSES;

/// The token that both clouds accept.
pub const TOKEN: &str = "sim-token";

/// The project at Compute Engine.
pub const PROJECT: &str = "sim";

/// When every run begins, by the true time of day.
const BEGINNING: i64 = 1_800_000_000;

/// How late a request to a cloud may arrive in bad weather.
const LATE_MAX: Duration = Duration::from_millis(1_800);

/// What all share.
pub struct Universe {
    /// Kubernetes.
    pub api: ApiServer,
    /// Compute Engine.
    pub compute: Fake<Compute>,
    /// DigitalOcean.
    pub ocean: Fake<DigitalOcean>,
    started: Instant,
    weather: Mutex<Weather>,
    story: Mutex<Vec<String>>,
    landed: Mutex<Vec<Landed>>,
    /// When what was last changed by people or by fate.
    disturbed: Mutex<BTreeMap<String, Duration>>,
}

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct Weather {
    dice: Dice,
    /// One in so many requests to Kubernetes goes wrong; none where it is 0.
    pub kubernetes: u64,
    /// The same for the clouds.
    pub clouds: u64,
    /// How long a request or an answer may be under way.
    pub delay_max: Duration,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, and the answer comes back.
    Well,
    /// It never arrives.
    RequestLost,
    /// It is carried out, and the answer never comes.
    ReplyLost,
    /// The connection breaks off, and the request arrives all the same, a while later.
    Echo,
    /// The server is not able to answer now.
    Unavailable,
}

/// A change that arrived at a cloud.
#[derive(Clone, Debug)]
pub struct Landed {
    /// When.
    pub at: Duration,
    /// Which process sent it.
    pub process: u64,
    /// What it was.
    pub line: String,
    /// Whether a journal entry of the process's own epoch told of it when it arrived.
    pub is_journalled: bool,
    /// What it took away that was well.
    pub harm: Option<String>,
}

impl Universe {
    /// Nothing has happened yet.
    pub fn new(seed: u64, compute: Fake<Compute>, ocean: Fake<DigitalOcean>) -> Arc<Self> {
        let weather = Weather {
            dice: Dice::new(seed, "weather"),
            kubernetes: 0,
            clouds: 0,
            delay_max: Duration::from_millis(40),
        };
        Arc::new(Self {
            api: ApiServer::default(),
            compute,
            ocean,
            started: Instant::now(),
            weather: Mutex::new(weather),
            story: Mutex::default(),
            landed: Mutex::default(),
            disturbed: Mutex::default(),
        })
    }

    /// How long the run has lasted.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The true time of day.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_second(BEGINNING).unwrap_or_default() + self.elapsed()
    }

    /// Changes the weather.
    pub fn set_weather(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut lock(&self.weather));
    }

    /// What becomes of the next request, and how long it and its answer are under way.
    pub fn fate(&self, is_cloud: bool) -> (Fate, Duration, Duration) {
        let mut weather = lock(&self.weather);
        let longest = weather.delay_max;
        let (mut out, mut back) = (weather.dice.up_to(longest), weather.dice.up_to(longest));
        let chance = if is_cloud { weather.clouds } else { weather.kubernetes };
        let fate = match (chance > 0 && weather.dice.one_in(chance)).then(|| weather.dice.roll(4)) {
            None => Fate::Well,
            Some(0) => Fate::RequestLost,
            Some(1) => Fate::ReplyLost,
            Some(2) if is_cloud => Fate::Echo,
            Some(_) => Fate::Unavailable,
        };
        // What is late is still within D.
        if fate == Fate::Echo || (chance > 0 && is_cloud && weather.dice.one_in(4)) {
            out += weather.dice.up_to(LATE_MAX);
        }
        // An answer that is late tells what was, not what is.
        if chance > 0 && is_cloud && weather.dice.one_in(4) {
            back += weather.dice.up_to(LATE_MAX);
        }
        (fate, out, back)
    }

    /// Tells of something.
    pub fn tell(&self, text: &str) {
        let line = format!("{:>9.3} {text}", self.elapsed().as_secs_f64());
        lock(&self.story).push(line);
    }

    /// Everything that was told.
    pub fn story(&self) -> Vec<String> {
        lock(&self.story).clone()
    }

    /// A change of a process arrived at a cloud.
    pub fn note_landed(&self, process: u64, line: String, harm: Option<String>) {
        let is_journalled = self.is_journalled(process, &line);
        let mark = if is_journalled { "" } else { " (in no journal)" };
        self.tell(&format!("p{process} {line}{mark}"));
        lock(&self.landed).push(Landed { at: self.elapsed(), process, line, is_journalled, harm });
    }

    /// Whether some object's journal names what a change is about: its address, or one of its machines.
    fn is_journalled(&self, process: u64, line: &str) -> bool {
        let leases = self.api.all("leases");
        let holder = format!("p{process}");
        let is_ours = |lease: &&Value| lease["spec"]["holderIdentity"] == holder.as_str();
        let epoch = leases.iter().find(is_ours).and_then(|lease| {
            lease["metadata"]["annotations"][controller::lease::EPOCH_ANNOTATION]
                .as_str()?
                .parse::<i64>()
                .ok()
        });
        let path = line.split(' ').nth(1).unwrap_or_default();
        // A project is no address, and making one twice makes one.
        if path.ends_with("/v2/projects") {
            return true;
        }
        let names = |entry: &Value| {
            if epoch.is_some() && entry["epoch"].as_i64() != epoch {
                return false;
            }
            let is_creation = entry["kind"] == "Create" && path.ends_with("/v2/reserved_ips");
            let address = entry["address"].as_str().unwrap_or("none");
            let is_named = line.contains(&format!("/{address}/")) || line.contains(&format!("\"{address}\""));
            let is_released = path.ends_with(&format!("/{address}"));
            let machine = |end: &str| {
                let vm = entry[end]["vm"].as_str().unwrap_or("none/none/none");
                vm.splitn(3, '/').nth(2).is_some_and(|name| line.contains(&format!("/instances/{name}/")))
            };
            is_creation || is_named || is_released || machine("from") || machine("to")
        };
        let objects = ["netipallocations", "floatingippools"].map(|plural| self.api.all(plural));
        let entries =
            objects.iter().flatten().filter_map(|object| object["status"]["moves"]["entries"].as_array());
        entries.flatten().any(names)
    }

    /// Whether what is lost leaves the one who waits without a word, instead of breaking the connection off.
    pub fn is_silent(&self) -> bool {
        lock(&self.weather).dice.one_in(2)
    }

    /// How long a request waits in its client.
    pub fn in_client(&self) -> Duration {
        let dice = &mut lock(&self.weather).dice;
        // Now and then a connection has to be made first.
        let longest = if dice.one_in(4) { Duration::from_millis(300) } else { Duration::from_millis(5) };
        dice.up_to(longest)
    }

    /// The machine that has an address, at whichever cloud.
    pub fn holder(&self, ip: &str) -> Option<String> {
        let droplet = || self.ocean.with(|ocean| ocean.holder(ip)).map(|id| id.to_string());
        self.compute.with(|compute| compute.holder(ip)).or_else(droplet)
    }

    /// Somebody changed something just now.
    pub fn disturb(&self, what: &str) {
        lock(&self.disturbed).insert(what.to_owned(), self.elapsed());
    }

    fn is_quiet(&self, what: &str, seconds: u64) -> bool {
        let at = lock(&self.disturbed).get(what).copied();
        at.is_none_or(|at| at + Duration::from_secs(seconds) < self.elapsed())
    }

    /// What a change that is about to arrive takes away that is well: an address on a node that is Ready and has what it
    /// takes, where nobody has changed anything lately that could be a reason.
    pub fn harm(&self, line: &str, body: &str) -> Option<String> {
        let parts: Vec<&str> = line.trim_end().split('/').collect();
        let (ip, provider_id) = match parts.as_slice() {
            [.., "reserved_ips", ip, "actions"] => {
                let droplet = self.ocean.with(|ocean| ocean.holder(ip))?;
                ((*ip).to_owned(), format!("digitalocean://{droplet}"))
            }
            [.., zone, "instances", name, "deleteAccessConfig"] => {
                let vm = format!("{PROJECT}/{zone}/{name}");
                let ips = (0..ADDRESSES).map(crate::cluster::compute_address);
                let ip = self.compute.with(|compute| {
                    ips.into_iter().find(|ip| compute.holder(ip).as_deref() == Some(vm.as_str()))
                })?;
                (ip, format!("gce://{vm}"))
            }
            _ => return None,
        };
        let nodes = self.api.all("nodes");
        let node = nodes.iter().find(|node| node["spec"]["providerID"] == provider_id.as_str())?;
        let name = node["metadata"]["name"].as_str()?;
        let is_well =
            node["status"]["conditions"][0]["status"] == "True" && node["spec"]["unschedulable"] != true;
        let is_ocean = provider_id.starts_with("digitalocean");
        let has_pod = !is_ocean || self.api.all("pods").iter().any(|pod| pod["spec"]["nodeName"] == name);
        let is_quiet =
            [name, ip.as_str(), "objects", "kubernetes"].iter().all(|what| self.is_quiet(what, 60));
        let is_its_own = body.contains(&format!(":{}", provider_id.rsplit('/').next().unwrap_or_default()));
        (is_well && has_pod && is_quiet && !is_its_own).then(|| format!("{ip} was well on {name}"))
    }

    /// The changes that arrived.
    pub fn landed(&self) -> Vec<Landed> {
        lock(&self.landed).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process of the controller: it can be stopped, and its clock can be wrong.
pub struct Process {
    /// Its number; every start is another process.
    pub number: u64,
    universe: Arc<Universe>,
    /// Stops all of its tasks.
    pub stop: Stop,
    /// How far its time of day is off, in milliseconds.
    skew: Mutex<i64>,
    /// How many parts in a million its clock runs too fast.
    drift: i64,
}

impl Process {
    /// A process that runs.
    pub fn new(number: u64, universe: Arc<Universe>, drift: i64) -> Arc<Self> {
        Arc::new(Self { number, universe, stop: Stop::default(), skew: Mutex::new(0), drift })
    }

    /// Lets its time of day jump.
    pub fn jump(&self, milliseconds: i64) {
        *lock(&self.skew) += milliseconds;
    }

    fn own_time(&self) -> Duration {
        let true_time = i64::try_from(self.universe.elapsed().as_micros()).unwrap_or(i64::MAX);
        let own = true_time + true_time / 1_000_000 * self.drift;
        Duration::from_micros(own.unsigned_abs())
    }
}

impl Clock for Process {
    fn wall(&self) -> Timestamp {
        let own = Timestamp::from_second(BEGINNING).unwrap_or_default() + self.own_time();
        own.checked_add(jiff::SignedDuration::from_millis(*lock(&self.skew))).unwrap_or(own)
    }

    fn since_boot(&self) -> Duration {
        Duration::from_secs(1_000) + self.own_time()
    }
}
