//! What all processes of a run share: the apiserver, the clouds, the weather between them, and the story of the run.

mod record;

use std::collections::BTreeMap;
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

/// When every run begins, by the true time of day.
const BEGINNING: i64 = 1_800_000_000;

/// How late a request to a cloud may arrive in bad weather.
const LATE_MAX: Duration = Duration::from_millis(1_800);

/// What all share.
pub struct Universe {
    /// Kubernetes.
    pub api: ApiServer,
    trace: Mutex<DefaultHasher>,
    /// Compute Engine.
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
    /// What arrived at the clouds.
    pub arrivals: Arrivals,
    /// Who has to be given time to recover.
    pub grace: Grace,
    /// Writes that were refused.
    pub refusals: Refusals,
}

/// How the network behaves.
struct Weather {
    rng: Rng,
    kubernetes: Storm,
    clouds: Storm,
}

/// For a while one request in so many goes wrong.
#[derive(Clone, Copy, Default)]
struct Storm {
    one_in: u64,
    until: Duration,
}

impl Storm {
    /// Another storm: what is left of this one goes on like it.
    fn brews(&mut self, one_in: u64, until: Duration) {
        *self = Self { one_in, until: self.until.max(until) };
    }
}

/// How long a request or an answer is under way at the most, where nothing is wrong.
const DELAY_MAX: Duration = Duration::from_millis(40);

/// What waits for the next change that somebody asks for.
#[derive(Default)]
struct Traps {
    /// It arrives so long after D.
    overdue: BTreeMap<Cloud, Duration>,
    /// Whoever asks for it there dies of that.
    doom: BTreeMap<Asked, Death>,
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
    /// Or has too many others to answer.
    TooMany,
    /// It is carried out, and the answer breaks off.
    Truncated,
}

impl Universe {
    /// Nothing has happened yet.
    pub fn new(seed: u64, clouds: Clouds) -> Arc<Self> {
        let Clouds { compute, ocean, zones, azure, ec2, route53 } = clouds;
        let rng = Rng::new(seed, "weather");
        let weather = Weather { rng, kubernetes: Storm::default(), clouds: Storm::default() };
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

    /// How long the run has lasted.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes note of a request that arrives, so that two runs that differ in any of them are told apart.
    pub fn trace(&self, process: u64, method: &Method, uri: &Uri, body: &[u8]) {
        (self.elapsed(), process, method, uri, body).hash(&mut *lock(&self.trace));
    }

    /// A number that stands for all of them.
    pub fn traced(&self) -> u64 {
        lock(&self.trace).finish()
    }

    /// The true time of day.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_second(BEGINNING).unwrap_or_default() + self.elapsed()
    }

    /// For so long one request in so many to Kubernetes goes wrong.
    pub fn kubernetes_storm(&self, one_in: u64, lasts: Duration) {
        lock(&self.weather).kubernetes.brews(one_in, self.elapsed() + lasts);
    }

    /// The same for the clouds.
    pub fn cloud_storm(&self, one_in: u64, lasts: Duration) {
        lock(&self.weather).clouds.brews(one_in, self.elapsed() + lasts);
    }

    /// The next change of an address at a cloud arrives so long after D.
    pub fn delay_next(&self, cloud: Cloud, late: Duration) {
        lock(&self.traps).overdue.insert(cloud, late);
    }

    /// How long after D this change arrives, if it does.
    pub fn overdue(&self, cloud: Cloud) -> Option<Duration> {
        lock(&self.traps).overdue.remove(&cloud)
    }

    /// Whoever next asks for a change there dies of it.
    pub fn doom(&self, asked: Asked, death: Death) {
        lock(&self.traps).doom.insert(asked, death);
    }

    /// Whether whoever asks for a change now dies of it.
    pub fn is_doomed(&self, asked: Asked, death: Death) -> bool {
        let doom = &mut lock(&self.traps).doom;
        let is_doomed = doom.get(&asked) == Some(&death);
        if is_doomed {
            doom.remove(&asked);
        }
        is_doomed
    }

    /// Nothing goes wrong any more.
    pub fn clear_up(&self) {
        let weather = &mut lock(&self.weather);
        (weather.kubernetes, weather.clouds) = (Storm::default(), Storm::default());
        *lock(&self.traps) = Traps::default();
    }

    /// What becomes of the next request, and how long it and its answer are under way.
    pub fn fate(&self, is_cloud: bool) -> (Fate, Duration, Duration) {
        let weather = &mut lock(&self.weather);
        let storm = if is_cloud { weather.clouds } else { weather.kubernetes };
        let rng = &mut weather.rng;
        let (mut out, mut back) = (rng.up_to(DELAY_MAX), rng.up_to(DELAY_MAX));
        if self.elapsed() >= storm.until {
            return (Fate::Well, out, back);
        }
        let fates: &[Fate] = match is_cloud {
            // Clouds have limits of their own, and cut off answers themselves.
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
        // What is late is still within D.
        if fate == Fate::Echo || (is_cloud && rng.one_in(4)) {
            out += rng.up_to(LATE_MAX);
        }
        // An answer that is late tells what was, not what is.
        if rng.one_in(4) {
            back += rng.up_to(LATE_MAX);
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

    /// Whether what is lost leaves the one who waits without a word, instead of breaking the connection off.
    pub fn is_silent(&self) -> bool {
        lock(&self.weather).rng.one_in(2)
    }

    /// How long a request waits in its client.
    pub fn in_client(&self) -> Duration {
        let rng = &mut lock(&self.weather).rng;
        // Now and then a connection has to be made first.
        let longest = if rng.one_in(4) { Duration::from_millis(300) } else { Duration::from_millis(5) };
        rng.up_to(longest)
    }

    /// The clouds that addresses are in.
    pub fn accounts(&self) -> Accounts<'_> {
        Accounts {
            project: PROJECT,
            compute: &self.compute,
            digitalocean: &self.ocean,
            azure: &self.azure,
            ec2: &self.ec2,
        }
    }

    /// Every address that somebody may hold, at whichever cloud.
    pub fn addresses(&self) -> Vec<String> {
        let reserved = (0..ADDRESSES).flat_map(|number| {
            [Cloud::Compute, Cloud::Azure, Cloud::Aws].map(|cloud| address_at(cloud, number))
        });
        reserved.chain(self.ocean.with(|ocean| ocean.reserved_ips())).collect()
    }

    /// The machine that has an address, at whichever cloud.
    pub fn holder(&self, ip: &str) -> Option<String> {
        let droplet = || self.ocean.with(|ocean| ocean.holder(ip)).map(|id| id.to_string());
        let at_azure = || self.azure.with(|azure| azure.holder(ip));
        let at_amazon = || self.ec2.with(|ec2| ec2.holder(ip));
        self.compute.with(|compute| compute.holder(ip)).or_else(droplet).or_else(at_azure).or_else(at_amazon)
    }
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
    is_dead: AtomicBool,
}

impl Process {
    /// A process that runs.
    pub fn new(number: u64, universe: Arc<Universe>, drift: i64) -> Arc<Self> {
        let (stop, skew, is_dead) = (Stop::default(), Mutex::new(0), AtomicBool::new(false));
        Arc::new(Self { number, universe, stop, skew, drift, is_dead })
    }

    /// Dies in this very moment: nothing of it goes on.
    pub async fn dies(&self) {
        self.universe.tell(&format!("p{} dies", self.number));
        self.is_dead.store(true, Ordering::SeqCst);
        self.stop.set(true);
        std::future::pending().await
    }

    /// Whether it has died.
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Lets its time of day jump.
    pub fn jump(&self, milliseconds: i64) {
        *lock(&self.skew) += milliseconds;
        self.universe.grace.misjudges(self.number);
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
