//! The shared state of a run: the apiserver, the clouds, the network between them, and the event log.
//!
//! In: faults to inject, and lines for the event log. Out: the time, the fate of each request, and the holder of each
//! address. It never decides when a fault happens: `script` does.

mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::leadership::clock::Clock;
use controller::tasks::stop::Stop;
use http::{Method, Uri};
use jiff::Timestamp;
use testbed::burst::Accounts;
use testbed::fake::Fake;
use testbed::fake::azure::Azure;
use testbed::fake::cloudflare::Cloudflare;
use testbed::fake::compute::Compute;
use testbed::fake::digitalocean::DigitalOcean;
use testbed::fake::ec2::Ec2;
use testbed::fake::route53::Route53;
use tokio::time::Instant;

use crate::apiserver::ApiServer;
use crate::arrivals::Arrivals;
use crate::clouds::{Cloud, Clouds, PROJECT, address_at};
use crate::event::{Asked, Death};
use crate::grace::Grace;
use crate::lock::lock;
use crate::options::ADDRESSES;
use crate::refusals::Refusals;
use crate::rng::Rng;

/// The wall-clock time at which every run begins.
const BEGINNING: i64 = 1_800_000_000;

/// Maximum additional delay of a request or response during network faults.
const STALENESS_MAX: Duration = Duration::from_millis(1_800);

/// The shared state of a run.
pub struct Universe {
    /// The simulated apiserver.
    pub api: ApiServer,
    trace: Mutex<DefaultHasher>,
    /// Google Cloud.
    pub compute: Fake<Compute>,
    /// DigitalOcean.
    pub ocean: Fake<DigitalOcean>,
    /// Cloudflare.
    pub zones: Fake<Cloudflare>,
    /// Azure.
    pub azure: Fake<Azure>,
    /// EC2.
    pub ec2: Fake<Ec2>,
    /// Route 53.
    pub route53: Fake<Route53>,
    started: Instant,
    weather: Mutex<Weather>,
    traps: Mutex<Traps>,
    story: Mutex<Vec<String>>,
    /// The requests that arrived.
    pub arrivals: Arrivals,
    /// The NotReady nodes in their grace period.
    pub grace: Grace,
    /// Writes that the apiserver rejected.
    pub refusals: Refusals,
}

/// The state of the network.
struct Weather {
    rng: Rng,
    kubernetes: Storm,
    clouds: Storm,
    /// All watches are silent until this time.
    silent_until: Duration,
    /// The apiserver refuses to list or watch a kind until this time.
    unreadable_until: BTreeMap<&'static str, Duration>,
    /// Kinds whose next list is outdated, and how old it is.
    stale_lists: BTreeMap<&'static str, Duration>,
    /// Processes that have watched a kind. Only such a process can recognize an outdated list.
    watched: BTreeSet<(u64, &'static str)>,
}

/// A period in which one request in `one_in` fails.
#[derive(Clone, Copy, Default)]
struct Storm {
    one_in: u64,
    until: Duration,
}

impl Storm {
    /// Starts another storm. The rest of the current one continues with the new rate.
    fn brews(&mut self, one_in: u64, until: Duration) {
        *self = Self { one_in, until: self.until.max(until) };
    }
}

/// Maximum network delay of a request or response without faults.
const DELAY_MAX: Duration = Duration::from_millis(40);

/// Faults that the next change triggers.
#[derive(Default)]
struct Traps {
    /// The next change of an address at this cloud arrives late: D (`TAKEOVER_SECONDS`) plus this duration after it was
    /// sent. The controller no longer expects it then.
    overdue: BTreeMap<Cloud, Duration>,
    /// The process that sends the next change to this destination crashes.
    crash_at_next: BTreeMap<Asked, Death>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The request arrives, and its response comes back.
    Well,
    /// The request never arrives.
    RequestLost,
    /// The server executes the request, but the response is lost.
    ReplyLost,
    /// The connection breaks, but the request still arrives later.
    Echo,
    /// The server responds with 503.
    Unavailable,
    /// The server responds with 429.
    TooMany,
    /// The server executes the request, but the response is truncated.
    Truncated,
}

impl Universe {
    /// Creates the state at the start of a run.
    pub fn new(seed: u64, clouds: Clouds) -> Arc<Self> {
        let Clouds { compute, ocean, zones, azure, ec2, route53 } = clouds;
        let rng = Rng::new(seed, "weather");
        let (kubernetes, clouds) = (Storm::default(), Storm::default());
        let weather = Weather {
            rng,
            kubernetes,
            clouds,
            silent_until: Duration::ZERO,
            unreadable_until: BTreeMap::new(),
            stale_lists: BTreeMap::new(),
            watched: BTreeSet::new(),
        };
        Arc::new(Self {
            api: ApiServer::default(),
            compute,
            ocean,
            zones,
            azure,
            ec2,
            route53,
            trace: Mutex::default(),
            started: Instant::now(),
            weather: Mutex::new(weather),
            traps: Mutex::default(),
            story: Mutex::default(),
            arrivals: Arrivals::default(),
            grace: Grace::new(seed),
            refusals: Refusals::default(),
        })
    }

    /// Virtual time since the start of the run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds a request that arrives to the hash of all requests, so that two different runs have different hashes.
    pub fn trace(&self, process: u64, method: &Method, uri: &Uri, body: &[u8]) {
        (self.elapsed(), process, method, uri, body).hash(&mut *lock(&self.trace));
    }

    /// The hash of all requests so far.
    pub fn traced(&self) -> u64 {
        lock(&self.trace).finish()
    }

    /// The wall-clock time, without the errors of the processes' clocks.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_second(BEGINNING).unwrap_or_default() + self.elapsed()
    }

    /// For the duration `lasts`, makes on average one of every `one_in` requests to Kubernetes fail.
    pub fn kubernetes_storm(&self, one_in: u64, lasts: Duration) {
        lock(&self.weather).kubernetes.brews(one_in, self.elapsed() + lasts);
    }

    /// For the duration `lasts`, watches send no events.
    pub fn silence_watches(&self, lasts: Duration) {
        let weather = &mut lock(&self.weather);
        weather.silent_until = weather.silent_until.max(self.elapsed() + lasts);
    }

    /// For the duration `lasts`, the apiserver refuses to list or watch a kind.
    pub fn make_unreadable(&self, plural: &'static str, lasts: Duration) {
        lock(&self.weather).unreadable_until.insert(plural, self.elapsed() + lasts);
    }

    /// Whether the apiserver refuses to list or watch a kind.
    pub fn is_unreadable(&self, plural: &str) -> bool {
        lock(&self.weather).unreadable_until.get(plural).is_some_and(|until| self.elapsed() < *until)
    }

    /// Makes the next list of a kind this old.
    pub fn age_next_list(&self, plural: &'static str, age: Duration) {
        lock(&self.weather).stale_lists.insert(plural, age);
    }

    /// The age of the list that a process requests now; None if the list is up to date. Resets the fault.
    pub fn age_of_list(&self, process: u64, plural: &'static str) -> Option<Duration> {
        let weather = &mut lock(&self.weather);
        let can_recognize = weather.watched.contains(&(process, plural));
        can_recognize.then(|| weather.stale_lists.remove(plural)).flatten()
    }

    /// Notes that a process watches a kind.
    pub fn watches(&self, process: u64, plural: &'static str) {
        lock(&self.weather).watched.insert((process, plural));
        if plural == "nodes" {
            self.grace.watches(process, self.elapsed());
        }
    }

    /// How long the watches will still be silent; none if they are not.
    pub fn watches_are_silent_for(&self) -> Option<Duration> {
        let left = lock(&self.weather).silent_until.saturating_sub(self.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// For the duration `lasts`, makes on average one of every `one_in` requests to the clouds fail.
    pub fn cloud_storm(&self, one_in: u64, lasts: Duration) {
        lock(&self.weather).clouds.brews(one_in, self.elapsed() + lasts);
    }

    /// Makes the next change of an address at a cloud arrive later than D, by `late`.
    pub fn delay_next(&self, cloud: Cloud, late: Duration) {
        lock(&self.traps).overdue.insert(cloud, late);
    }

    /// How long after D this change arrives; None if it is not delayed. Resets the fault.
    pub fn overdue(&self, cloud: Cloud) -> Option<Duration> {
        lock(&self.traps).overdue.remove(&cloud)
    }

    /// Makes the process that sends the next change to `asked` crash.
    pub fn crash_at_next(&self, asked: Asked, death: Death) {
        lock(&self.traps).crash_at_next.insert(asked, death);
    }

    /// Whether the process must crash at this request, at the moment `death`. If so, clears the fault.
    pub fn is_doomed(&self, asked: Asked, death: Death) -> bool {
        let crash_at_next = &mut lock(&self.traps).crash_at_next;
        let is_doomed = crash_at_next.get(&asked) == Some(&death);
        if is_doomed {
            crash_at_next.remove(&asked);
        }
        is_doomed
    }

    /// Ends all network faults.
    pub fn clear_up(&self) {
        let weather = &mut lock(&self.weather);
        (weather.kubernetes, weather.clouds) = (Storm::default(), Storm::default());
        weather.silent_until = Duration::ZERO;
        weather.unreadable_until.clear();
        weather.stale_lists.clear();
        *lock(&self.traps) = Traps::default();
    }

    /// The fate of the next request, and the delays of the request and of its response.
    pub fn fate(&self, is_cloud: bool) -> (Fate, Duration, Duration) {
        let weather = &mut lock(&self.weather);
        let storm = if is_cloud { weather.clouds } else { weather.kubernetes };
        let rng = &mut weather.rng;
        let (mut out, mut back) = (rng.up_to(DELAY_MAX), rng.up_to(DELAY_MAX));
        if self.elapsed() >= storm.until {
            return (Fate::Well, out, back);
        }
        let fates: &[Fate] = match is_cloud {
            // The fake clouds have their own rate limits and truncate responses themselves.
            true => &[Fate::RequestLost, Fate::ReplyLost, Fate::Echo, Fate::Unavailable],
            false => &[
                Fate::RequestLost,
                Fate::ReplyLost,
                Fate::Echo,
                Fate::Unavailable,
                Fate::TooMany,
                Fate::Truncated,
            ],
        };
        let fate = if rng.one_in(storm.one_in) { *rng.pick(fates) } else { Fate::Well };
        // A late request still arrives within D.
        if fate == Fate::Echo || (is_cloud && rng.one_in(4)) {
            out += rng.up_to(STALENESS_MAX);
        }
        // A late response is stale.
        if rng.one_in(4) {
            back += rng.up_to(STALENESS_MAX);
        }
        (fate, out, back)
    }

    /// Adds a line to the event log.
    pub fn log(&self, text: &str) {
        let line = format!("{:>9.3} {text}", self.elapsed().as_secs_f64());
        lock(&self.story).push(line);
    }

    /// The event log.
    pub fn story(&self) -> Vec<String> {
        lock(&self.story).clone()
    }

    /// Whether the connection of a lost request stays open without data, instead of breaking. Drawn at random.
    pub fn is_silent(&self) -> bool {
        lock(&self.weather).rng.one_in(2)
    }

    /// How long a request stays in its client before it is sent.
    pub fn in_client(&self) -> Duration {
        let rng = &mut lock(&self.weather).rng;
        // Sometimes the client has to open a connection first.
        let longest = if rng.one_in(4) { Duration::from_millis(300) } else { Duration::from_millis(5) };
        rng.up_to(longest)
    }

    /// The clouds that have addresses.
    pub fn accounts(&self) -> Accounts<'_> {
        Accounts {
            project: PROJECT,
            compute: &self.compute,
            digitalocean: &self.ocean,
            azure: &self.azure,
            ec2: &self.ec2,
        }
    }

    /// All reserved addresses of all clouds.
    pub fn addresses(&self) -> Vec<String> {
        let reserved = (0..ADDRESSES).flat_map(|number| {
            [Cloud::Compute, Cloud::Azure, Cloud::Aws].map(|cloud| address_at(cloud, number))
        });
        reserved.chain(self.ocean.with(|ocean| ocean.reserved_ips())).collect()
    }

    /// The VM that holds an address.
    pub fn holder(&self, ip: &str) -> Option<String> {
        let droplet = || self.ocean.with(|ocean| ocean.holder(ip)).map(|id| id.to_string());
        let at_azure = || self.azure.with(|azure| azure.holder(ip));
        let at_amazon = || self.ec2.with(|ec2| ec2.holder(ip));
        self.compute.with(|compute| compute.holder(ip)).or_else(droplet).or_else(at_azure).or_else(at_amazon)
    }
}

/// A process of the controller. It can be stopped, and its clock can be wrong.
pub struct Process {
    /// Its number, which is unique: a restarted replica is a new process with a new number.
    pub number: u64,
    universe: Arc<Universe>,
    /// Stops all of its tasks.
    pub stop: Stop,
    /// Error of its wall clock, in milliseconds.
    skew: Mutex<i64>,
    /// How much too fast its clocks run, in parts per million.
    drift: i64,
    is_dead: AtomicBool,
}

impl Process {
    /// Creates a running process.
    pub fn new(number: u64, universe: Arc<Universe>, drift: i64) -> Arc<Self> {
        let (stop, skew, is_dead) = (Stop::default(), Mutex::new(0), AtomicBool::new(false));
        Arc::new(Self { number, universe, stop, skew, drift, is_dead })
    }

    /// Crashes now. None of its tasks continues.
    pub async fn dies(&self) {
        self.universe.log(&format!("p{} crashes", self.number));
        self.is_dead.store(true, Ordering::SeqCst);
        self.stop.set(true);
        std::future::pending().await
    }

    /// Whether it has crashed.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Changes its wall clock by this much.
    pub fn jump(&self, milliseconds: i64) {
        *lock(&self.skew) += milliseconds;
        self.universe.grace.changes_clock(self.number);
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
