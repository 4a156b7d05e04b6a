//! The controller under measurement, and what it uses: memory, files and time.

use std::process::Command;
use std::time::Duration;

use api::FloatingIPPool;
use kube::api::ListParams;
use kube::{Api, Client};
use rustix::process::Signal;
use testbed::cluster::eventually;
use testbed::control_plane::{ControlPlane, free_ports};
use testbed::demo::{Clouds, Servers};
use testbed::process::Process;

use super::cluster::{ADDRESSES_OF_A_POOL, NODES_OF_A_POOL, Size, cluster, ip};
use crate::rig::{Controller, UNLIMITED};

/// How long all objects may take to settle.
const LONG: Duration = Duration::from_secs(1_200);

/// What one replica may use when all objects have settled.
pub fn megabytes_max(size: Size) -> f64 {
    40.0 + (2_048 * size.nodes() + 512 * size.pods() + 2_048 * size.addresses()) as f64 / 1e6
}

/// The highest resident memory of a process in MB since its start or since the last call.
pub fn peak_megabytes(process: &Process) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kilobytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    std::fs::write(format!("/proc/{}/clear_refs", process.id()), "5").unwrap();
    kilobytes * 1024.0 / 1e6
}

/// How many files and sockets a process has open.
pub fn open_files(process: &Process) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count()
}

fn has_ended(process: &Process) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    // The state follows the name of the program, which is in parentheses.
    stat.rsplit(')').next().is_none_or(|rest| matches!(rest.trim_start().chars().next(), None | Some('Z')))
}

/// The controller under measurement, with its cluster and its cloud.
pub struct Measured {
    size: Size,
    pub control_plane: ControlPlane,
    pub client: Client,
    pub controller: Controller,
    clouds: (Clouds, Servers),
    pub created_in: Duration,
}

impl Measured {
    /// Starts the controller in a cluster of this size.
    pub async fn start(size: Size) -> Self {
        let (control_plane, created_in) = cluster(size).await;
        let clouds = Clouds::default();
        clouds.digitalocean.enforce_limits(false);
        clouds.digitalocean.with(|account| {
            for number in 0..size.nodes() {
                account.add_droplet(10_000 + number as u64, format!("node-{number:05}"), "nyc3");
            }
            for number in 0..size.addresses() {
                let (pool, position) = (number / ADDRESSES_OF_A_POOL, number % ADDRESSES_OF_A_POOL);
                let holder = 10_000 + pool * NODES_OF_A_POOL + position;
                account.add_reserved_ip(ip(number), "nyc3");
                account.assign_now(&ip(number), holder as u64);
            }
        });
        let served = clouds.serve(0).await.unwrap();
        let client = control_plane.client().await.unwrap();
        let controller = start(&control_plane, &served.environment());
        Self { size, control_plane, client, controller, clouds: (clouds, served), created_in }
    }

    /// Starts the controller again.
    pub async fn restart(&mut self) {
        self.controller.process.signal(Signal::TERM).unwrap();
        self.controller.process.wait(Duration::from_secs(30)).unwrap();
        self.controller = start(&self.control_plane, &self.clouds.1.environment());
        self.until_settled().await;
    }

    /// Waits until all pools are Ready, and returns how long that took. Then waits until the controller has written all
    /// labels and annotations, each of which it logs.
    pub async fn until_settled(&self) -> Duration {
        let pools: Api<FloatingIPPool> = Api::all(self.client.clone());
        let settled = eventually("all pools are Ready", LONG, async || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(
                !has_ended(&self.controller.process),
                "the controller has ended\n{}",
                self.last_log_lines()
            );
            let all = pools.list(&ListParams::default()).await?;
            let is_ready = |pool: &&FloatingIPPool| {
                let mut conditions = pool.status.iter().flat_map(|status| &status.conditions);
                conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
            };
            Ok(all.items.iter().filter(is_ready).count() == self.size.pools)
        });
        let took = settled.await.unwrap_or_else(|error| panic!("{error}\n{}", self.last_log_lines()));
        let mut logged = 0;
        while logged != self.controller.log().len() {
            logged = self.controller.log().len();
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        took
    }

    fn last_log_lines(&self) -> String {
        let log = self.controller.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// The histogram of this name for the loop of addresses: each upper bound with the number of values up to it.
    pub async fn histogram(&self, name: &str) -> Vec<(f64, f64)> {
        let text = self.controller.metrics().await.unwrap();
        let of_bucket = |line: &str| {
            let rest = line.strip_prefix(name)?.strip_prefix(r#"_bucket{loop="addresses",le=""#)?;
            let (bound, count) = rest.split_once(r#""} "#)?;
            Some((bound.replace("+Inf", "inf").parse().ok()?, count.parse().ok()?))
        };
        text.lines().filter_map(of_bucket).collect()
    }

    /// Makes changes one after the other, and returns how many of them were measured and the upper bound of the time
    /// from event to plan for 99 of 100 of them.
    pub async fn latency<F: Future<Output = kube::Result<()>>>(
        &self,
        change: impl Fn(usize) -> F,
    ) -> Latency {
        let name = "ip_address_controller_event_to_plan_seconds";
        let before = self.histogram(name).await;
        for number in 0..CHANGES {
            change(number).await.unwrap();
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        Latency::between(&before, &self.histogram(name).await)
    }
}

/// How many values a histogram got, and an upper bound for 99 of 100 of them.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub count: f64,
    pub p99_seconds_max: f64,
}

impl Latency {
    pub fn between(before: &[(f64, f64)], after: &[(f64, f64)]) -> Self {
        let known =
            |bound: f64| before.iter().find(|(other, _)| *other == bound).map_or(0.0, |(_, count)| *count);
        let new: Vec<_> = after.iter().map(|(bound, count)| (*bound, count - known(*bound))).collect();
        let count = new.last().map_or(0.0, |(_, count)| *count);
        let p99 = new.iter().find(|(_, below)| *below >= 0.99 * count).map_or(f64::NAN, |(bound, _)| *bound);
        Self { count, p99_seconds_max: p99 }
    }
}

/// The pause between two changes. Without it, each change would wait for the plan of the one before.
const PAUSE: Duration = Duration::from_millis(20);

/// How many changes of each kind are measured.
pub const CHANGES: usize = 1_000;

fn start(control_plane: &ControlPlane, clouds: &[(&str, String)]) -> Controller {
    let program = std::env::var_os("CONTROLLER_BINARY").unwrap();
    let kubeconfig = control_plane.kubeconfig_for("kube-system", "ip-address-controller").unwrap();
    let ports = free_ports(2).unwrap();
    let configure = |command: &mut Command| {
        command.arg("--kubeconfig").arg(kubeconfig).envs(clouds.iter().map(|(name, value)| (name, value)));
        command.env("HEALTH_PORT", ports[0].to_string()).env("METRICS_PORT", ports[1].to_string());
        command.env("POD_NAME", "ip-address-controller");
        // The leader must keep its Lease while the apiserver is paused.
        command.env("LEASE_DURATION", "120");
        command.envs(UNLIMITED);
    };
    let process =
        Process::start("ip-address-controller", program.as_ref(), configure, control_plane.folder()).unwrap();
    Controller { process, health_port: ports[0], metrics_port: ports[1] }
}
