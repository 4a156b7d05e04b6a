//! The controller's binary on a real control plane, with the nodes of the demo and fake clouds.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::Value;
use testbed::cluster::{at_some_moment, eventually, pause_after};
use testbed::control_plane::{ControlPlane, Options, free_ports};
use testbed::demo::{self, Clouds, Servers};
use testbed::objects::Objects;
use testbed::process::Process;
use testbed::spares::{Reusable, Spares};
use testbed::tools;

/// Control planes with the CRDs, RBAC and a released lease.
static SPARES: Spares<ControlPlane> = Spares::new();

/// How long to wait for what usually takes seconds. Several control planes share the machine.
pub const SOON: Duration = Duration::from_secs(180);

/// Settings of a controller that succeeds one that was killed. It waits for its own lease duration if that is longer
/// than the predecessor's, so the duration is short, but long enough to renew the lease in time on a busy machine.
pub const SUCCESSOR: [(&str, &str); 2] = [("LEASE_DURATION", "5"), ("TAKEOVER_SECONDS", "1")];

/// Settings of a controller for a DigitalOcean account with very high rate limits. FLIPOP has no such settings.
pub const UNLIMITED: [(&str, &str); 2] =
    [("DIGITALOCEAN_REQUESTS_PER_MINUTE", "100000"), ("DIGITALOCEAN_REQUESTS_PER_HOUR", "1000000")];

/// The numbers of the requests at which one part of a test kills the controller.
pub type Requests = std::iter::StepBy<std::ops::RangeFrom<usize>>;

/// How many requests apart the kills of a test are. `.ci/run` sets 3, and `just nightly` kills at every request.
pub fn kill_every() -> usize {
    std::env::var("KILL_EVERY").map_or(1, |every| every.parse().unwrap())
}

/// Runs the parts of a test in parallel, and returns the sum of their results. The test kills the controller at its
/// first request, at its second and so on, or at each [`kill_every`]th; each part gets some of these numbers. Each part
/// has its own control plane, because such a test mostly waits for leases to expire.
pub async fn in_parts(count: usize, part: impl AsyncFn(Requests) -> usize + Clone + Send + 'static) -> usize {
    let run = |first: usize| {
        let requests = (1 + first * kill_every()..).step_by(count * kill_every());
        let part = part.clone();
        tokio::task::spawn_blocking(move || tokio::runtime::Handle::current().block_on(part(requests)))
    };
    let parts: Vec<_> = (0..count).map(run).collect();
    futures::future::join_all(parts).await.into_iter().map(Result::unwrap).sum()
}

/// A control plane and fake clouds, without a controller.
pub struct Rig {
    pub client: Client,
    objects: Objects,
    pub clouds: Clouds,
    servers: Servers,
    pub kubeconfig: PathBuf,
    pub control_plane: Reusable<ControlPlane>,
}

/// A running controller.
pub struct Controller {
    pub process: Process,
    pub health_port: u16,
    pub metrics_port: u16,
}

impl Controller {
    /// Waits until the controller has killed itself or its work is done, and stops it. Returns whether it killed itself.
    pub async fn dies(mut self, longest: Duration, is_done: impl AsyncFn() -> bool) -> bool {
        let started = Instant::now();
        let mut died = false;
        while started.elapsed() < longest && !died && !is_done().await {
            died = self.process.try_wait().unwrap().is_some();
            tokio::time::sleep(pause_after(started.elapsed())).await;
        }
        // The controller may kill itself at a write that `is_done` does not check, such as an Event.
        tokio::time::sleep(Duration::from_millis(300)).await;
        died | self.process.try_wait().unwrap().is_some()
    }

    /// Sends SIGTERM and waits until the controller has exited. A leader releases its lease, so the next one does not
    /// have to wait for it.
    pub fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::TERM).unwrap();
        self.process.wait(SOON).unwrap()
    }

    /// Waits until the controller reports that it is ready.
    pub async fn until_ready(&self) {
        let url = format!("http://127.0.0.1:{}/readyz", self.health_port);
        let is_ready = async || Ok(reqwest::get(&url).await?.status().as_u16() == 200);
        let ready = eventually("the controller is ready", SOON, is_ready).await;
        ready.unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
    }

    /// Waits until the log contains this text, and returns how long that took.
    pub async fn until_log(&self, text: &str) -> Duration {
        let what = format!("the log contains {text:?}");
        let logged = eventually(&what, SOON, async || Ok(self.log().contains(text))).await;
        logged.unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// All that the controller has logged so far.
    pub fn log(&self) -> String {
        // The controller may be in the middle of a character.
        String::from_utf8_lossy(&std::fs::read(self.process.log()).unwrap()).into_owned()
    }

    /// The metrics in Prometheus' text format.
    pub async fn metrics(&self) -> reqwest::Result<String> {
        reqwest::get(format!("http://127.0.0.1:{}/metrics", self.metrics_port)).await?.text().await
    }
}

impl Rig {
    /// Returns a control plane with nodes, CRDs and RBAC, and fake clouds.
    pub async fn prepare() -> Self {
        let rig = Self::with(Options::everything()).await;
        for node in demo::nodes() {
            node.create(&rig.client).await.unwrap();
        }
        // Otherwise the node that becomes Ready first gets the first address.
        let count = demo::nodes().len();
        eventually("all nodes are Ready", SOON, async || {
            let nodes = Api::<Node>::all(rig.client.clone()).list(&ListParams::default()).await?;
            let conditions = nodes.items.into_iter().filter_map(|node| node.status?.conditions).flatten();
            let ready =
                conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
            Ok(ready.count() == count)
        })
        .await
        .unwrap();
        rig
    }

    /// Returns a control plane of these servers with CRDs and RBAC, and fake clouds. It has no nodes.
    pub async fn with(options: Options) -> Self {
        let start = async || {
            let control_plane = ControlPlane::start(options).await?;
            control_plane.install_crds().await?;
            control_plane.apply(&read("k8s/rbac.yaml"))?;
            control_plane.install_released_lease("kube-system", "ip-address-controller-leader")?;
            Ok(control_plane)
        };
        let control_plane = SPARES.acquire(options, start).await.unwrap();
        let client = control_plane.client().await.unwrap();
        let clouds = Clouds::default();
        let servers = clouds.serve(0).await.unwrap();
        let kubeconfig = control_plane.kubeconfig_for("kube-system", "ip-address-controller").unwrap();
        Self { objects: Objects::new(client.clone()), client, clouds, servers, kubeconfig, control_plane }
    }

    /// Like [`Self::prepare`], and starts a controller.
    pub async fn start() -> (Self, Controller) {
        let rig = Self::prepare().await;
        let controller = rig.controller("ip-address-controller", &[]);
        (rig, controller)
    }

    /// Starts a controller under a name, with these environment variables.
    pub fn controller(&self, name: &str, environment: &[(&str, &str)]) -> Controller {
        // Measurements use the release binary.
        let measured = std::env::var_os("CONTROLLER_BINARY").map(PathBuf::from);
        let program = measured.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_ip-address-controller")));
        self.controller_of(&program, name, environment)
    }

    /// Starts the binary of any release.
    pub fn controller_of(&self, program: &Path, name: &str, environment: &[(&str, &str)]) -> Controller {
        let ports = free_ports(2).unwrap();
        let configure = |command: &mut Command| {
            command.arg("--kubeconfig").arg(&self.kubeconfig).envs(self.servers.environment());
            command.env("HEALTH_PORT", ports[0].to_string()).env("METRICS_PORT", ports[1].to_string());
            command.env("POD_NAME", name).envs(environment.iter().copied());
            // A stack trace of an error would hide the log lines before it.
            command.env("RUST_LIB_BACKTRACE", "0");
        };
        let process = Process::start(name, program, configure, self.control_plane.folder()).unwrap();
        Controller { process, health_port: ports[0], metrics_port: ports[1] }
    }

    /// Starts FLIPOP's binary with all permissions, because its manifests don't allow it to annotate nodes.
    pub fn flipop(&self) -> Process {
        let configure = |command: &mut Command| {
            command.arg("--kubeconfig").arg(self.control_plane.kubeconfig()).arg("--metrics-bind-addr=");
            command.envs(self.servers.environment());
        };
        let program = tools::binary("flipop").unwrap();
        Process::start("flipop", &program, configure, self.control_plane.folder()).unwrap()
    }

    /// Starts a controller that kills itself at the given request, gives it work with `provoke`, and waits until a
    /// second controller has finished the work. Returns whether the first one died: it does not if the work takes fewer
    /// requests.
    pub async fn survives_kill(
        &self,
        failpoint: &str,
        object: &str,
        provoke: impl FnOnce(),
        is_done: impl Fn() -> bool,
    ) -> bool {
        let short = [("LEASE_DURATION", "3"), ("TAKEOVER_SECONDS", "1"), ("FAILPOINT", failpoint)];
        let doomed = self.controller("ip-address-controller", &short);
        provoke();
        let died = doomed.dies(Duration::from_secs(60), async || is_done()).await;
        let mut healthy = self.controller("ip-address-controller", &SUCCESSOR);
        self.with_restarts(&mut healthy, &SUCCESSOR, is_done).await.unwrap_or_else(|error| {
            panic!("{failpoint}: {error:#}\n{}\n{:#}", self.logs(), self.get(object))
        });
        healthy.stop();
        died
    }

    /// Waits until the work of a controller is done. On a busy machine, a controller with a short lease may lose it and
    /// exit. Then it starts again, as in a Deployment.
    pub async fn with_restarts(
        &self,
        controller: &mut Controller,
        environment: &[(&str, &str)],
        is_done: impl Fn() -> bool,
    ) -> anyhow::Result<Duration> {
        eventually("the work is done", SOON, async || {
            if let Some(status) = controller.process.try_wait()? {
                anyhow::ensure!(status.code() == Some(1), "the controller ended with {status}");
                *controller = self.controller("ip-address-controller", environment);
            }
            Ok(is_done())
        })
        .await
    }

    /// Runs kubectl and returns what it prints. Panics with its error output if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.control_plane.kubectl().args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {error}\n{}", self.logs());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The last lines of every controller's log.
    pub fn logs(&self) -> String {
        let files =
            std::fs::read_dir(self.control_plane.folder()).unwrap().map(|entry| entry.unwrap().path());
        let is_ours = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("ip-address");
        let tail = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines: Vec<_> = text.lines().collect();
            format!("{}:\n{}", path.display(), lines[lines.len().saturating_sub(25)..].join("\n"))
        };
        files.filter(is_ours).map(tail).collect::<Vec<_>>().join("\n")
    }

    /// An object as JSON.
    pub fn get(&self, what: &str) -> Value {
        self.objects.get(what).unwrap_or_else(|error| panic!("{what}: {error:#}\n{}", self.logs()))
    }

    /// The names of the nodes with the label `ip.ready=true`.
    pub fn ready_nodes(&self) -> Vec<String> {
        self.objects.names("nodes", "ip.ready=true").unwrap()
    }

    /// Waits until the nodes with the label `ip.ready=true` are as expected, and returns them. The controller writes labels
    /// independently of the status, so they may be later.
    pub async fn labelled(&self, is_expected: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut nodes = Vec::new();
        let waited = eventually("the nodes have the label", SOON, async || {
            nodes = self.ready_nodes();
            Ok(is_expected(&nodes))
        });
        match waited.await {
            Ok(_) => nodes,
            Err(error) => panic!("{error}: {nodes:?}\n{}", self.logs()),
        }
    }

    /// The address in a node's annotation.
    pub fn annotation(&self, node: &str) -> Option<String> {
        let node = self.get(&format!("node/{node}"));
        node["metadata"]["annotations"][api::RESERVED_IP_ANNOTATION].as_str().map(ToOwned::to_owned)
    }

    /// Waits until an object has no finalizer. The controller removes it after it has written the status.
    pub async fn without_finalizer(&self, what: &str) {
        eventually("the object has no finalizer", SOON, async || {
            Ok(self.get(what)["metadata"]["finalizers"].is_null())
        })
        .await
        .unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.logs()));
    }

    /// The VM that holds an address at Compute Engine.
    pub fn holder(&self, address: &str) -> Option<String> {
        self.clouds.compute.with(|compute| compute.holder(address))
    }

    /// The node that holds an address at Compute Engine, and its zone. Both are empty if no VM holds it.
    pub fn node_of(&self, address: &str) -> (String, String) {
        let holder = self.holder(address).unwrap_or_default();
        let mut parts = holder.split('/').skip(1);
        let zone = parts.next().unwrap_or_default().to_owned();
        (parts.next().unwrap_or_default().to_owned(), zone)
    }

    /// How many requests for a change Compute Engine got so far.
    pub fn mutations(&self) -> usize {
        self.clouds.compute.ledger().asked.iter().filter(|asked| asked.line.starts_with("POST")).count()
    }

    /// Calls `provoke` and waits until Compute Engine gets a request for a change. Returns how long both took.
    pub async fn until_mutation(&self, provoke: impl FnOnce()) -> Duration {
        let (before, started) = (self.mutations(), Instant::now());
        provoke();
        let happened = at_some_moment("the cloud gets a request for a change", SOON, async || {
            Ok(self.mutations() > before)
        });
        happened.await.unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        started.elapsed()
    }

    /// Calls `first` and deletes the node that holds 34.123.45.67. Returns how long both took, until the cloud got the
    /// first request for a change. Then waits for the end of the failover and creates the node again.
    pub async fn fail_over(&self, first: impl FnOnce()) -> Duration {
        let (node, zone) = self.node_of("34.123.45.67");
        let provoke = || {
            first();
            self.kubectl(&["delete", "node", &node]);
        };
        let took = self.until_mutation(provoke).await;
        let is_elsewhere = async || {
            let (now, _) = self.node_of("34.123.45.67");
            Ok(!now.is_empty() && now != node)
        };
        eventually("the address is on another node", SOON, is_elsewhere).await.unwrap();
        self.settled("nia/edge").await;
        demo::edge_node(&node, &zone).create(&self.client).await.unwrap();
        took
    }

    /// Waits until the object is Ready, its status is about its current generation, and its journal is empty.
    pub async fn settled(&self, what: &str) -> Duration {
        let settled = eventually("the object is settled", SOON, async || {
            let object = self.get(what);
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_ready = conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            let is_current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            Ok(is_ready && is_current && object["status"]["moves"].is_null())
        });
        settled.await.unwrap_or_else(|error| {
            panic!("{what}: {error}: {:#}\n{}", self.get(what)["status"], self.logs())
        })
    }
}

/// The resident memory of a process in MB.
pub fn resident_megabytes(process: &Process) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0 / 1e6
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The content of a file in the repository.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}
