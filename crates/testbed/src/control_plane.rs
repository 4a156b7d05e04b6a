//! Runs a real Kubernetes control plane on free loopback ports.
//!
//! In: the servers that `just tools` built. Out: an apiserver with RBAC, etcd, and optionally the controller-manager,
//! the scheduler and kwok, which simulates the kubelet. All of them stop when this value is dropped or this process
//! ends.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::Process;
use crate::{audit, tools};

/// How long to wait until each server is ready.
const READY_SECONDS_MAX: u64 = 180;

const POLL_EVERY: Duration = Duration::from_millis(20);

/// Ports below the range for outgoing connections, which begins at 32768 on Linux and at 49152 elsewhere.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

const AUDIT_LOG: &str = "audit.log";

/// Which servers run in addition to the apiserver and etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The controller-manager: garbage collection, ReplicaSets, ServiceAccounts.
    pub controller_manager: bool,
    /// The node lifecycle controller, which sets conditions of nodes. Tests that set conditions disable it.
    pub node_lifecycle: bool,
    /// The scheduler.
    pub scheduler: bool,
    /// kwok, which simulates nodes and pods without VMs.
    pub kwok: bool,
}

impl Options {
    /// All servers.
    pub const fn everything() -> Self {
        Self { controller_manager: true, node_lifecycle: true, scheduler: true, kwok: true }
    }

    /// Only the apiserver and etcd, for tests that need nothing but the API.
    pub const fn api_only() -> Self {
        Self { controller_manager: false, node_lifecycle: false, scheduler: false, kwok: false }
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: clients of the apiserver first, the folder with their files last.
    kwok: Option<Process>,
    scheduler: Option<Process>,
    controller_manager: Option<Process>,
    apiserver: Process,
    etcd: Process,
    plan: Launch,
    files: TempDir,
    folder: TempDir,
}

impl AsRef<Self> for ControlPlane {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl AsMut<Self> for ControlPlane {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

/// The configuration that a server needs to start, and to start again.
#[derive(Debug)]
struct Launch {
    etcd_port: u16,
    etcd_peer_port: u16,
    apiserver_port: u16,
    admin_token: String,
    options: Options,
}

impl ControlPlane {
    /// Starts a control plane and waits until it is ready.
    pub async fn start(options: Options) -> Result<Self> {
        let (files, folder) = (new_folder()?, new_folder()?);
        let ports = free_ports(3)?;
        let plan = Launch {
            etcd_port: ports[0],
            etcd_peer_port: ports[1],
            apiserver_port: ports[2],
            admin_token: random_token()?,
            options,
        };
        write_secrets(folder.path(), &plan)?;
        let mut etcd = plan.etcd(folder.path())?;
        wait_until("etcd", &mut etcd, async || is_listening(plan.etcd_port)).await?;
        let apiserver = plan.apiserver(folder.path())?;
        let mut this = Self {
            kwok: None,
            scheduler: None,
            controller_manager: None,
            apiserver,
            etcd,
            plan,
            files,
            folder,
        };
        this.write_kubeconfig("admin", &this.plan.admin_token)?;
        this.wait_until_ready().await?;
        if options.controller_manager {
            this.controller_manager = Some(this.plan.controller_manager(this.folder.path())?);
        }
        if options.scheduler {
            this.scheduler = Some(this.plan.scheduler(this.folder.path())?);
        }
        if options.kwok {
            this.kwok = Some(this.plan.kwok(this.folder.path())?);
        }
        if let Some(controller_manager) = &mut this.controller_manager {
            // The apiserver rejects pods until the controller-manager has created the namespace's ServiceAccount.
            let client = client_of(&this.folder.path().join("admin.kubeconfig")).await?;
            let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
            let exists = async || accounts.get_opt("default").await.is_ok_and(|account| account.is_some());
            wait_until("kube-controller-manager", controller_manager, exists).await?;
        }
        Ok(this)
    }

    /// The kubeconfig of a cluster administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// The apiserver's port.
    pub fn port(&self) -> u16 {
        self.plan.apiserver_port
    }

    /// The URL of etcd.
    pub fn etcd(&self) -> String {
        format!("http://127.0.0.1:{}", self.plan.etcd_port)
    }

    /// Which servers run.
    pub const fn options(&self) -> Options {
        self.plan.options
    }

    /// A folder for logs and files of the test. It is removed at the end of the test.
    pub fn folder(&self) -> &Path {
        self.files.path()
    }

    /// A folder for logs and files of the servers. It is removed with the control plane.
    pub fn server_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Prepares the control plane for another test: records the permissions used so far, and removes the test's files.
    pub fn end_test(&mut self) -> Result<()> {
        self.record_permissions();
        self.files = new_folder()?;
        Ok(())
    }

    fn record_permissions(&self) {
        let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy();
        audit::leave(&self.folder.path().join(AUDIT_LOG), &name);
    }

    /// How often the controller sent each request, as verb and resource, in a period.
    pub fn requests(&self, from: Timestamp, until: Timestamp) -> BTreeMap<String, usize> {
        audit::counted(&self.folder.path().join(AUDIT_LOG), from, until)
    }

    /// A client with the permissions of a cluster administrator.
    pub async fn client(&self) -> Result<Client> {
        client_of(&self.kubeconfig()).await
    }

    /// Writes a kubeconfig for a ServiceAccount, with a token from the apiserver.
    pub fn kubeconfig_for(&self, namespace: &str, service_account: &str) -> Result<PathBuf> {
        let output = self
            .kubectl()
            .args(["create", "token", "--duration=24h", "-n", namespace, service_account])
            .output()?;
        ensure!(
            output.status.success(),
            "failed to create a token for {namespace}/{service_account}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.write_kubeconfig(service_account, String::from_utf8(output.stdout)?.trim())
    }

    /// A kubectl command that runs as cluster administrator.
    pub fn kubectl(&self) -> Command {
        let program = tools::binary("kubectl").unwrap_or_else(|_| PathBuf::from("kubectl"));
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.kubeconfig()).env("HOME", self.folder.path());
        command
    }

    /// Kills the apiserver and starts it again.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.kill_apiserver()?;
        self.start_apiserver().await
    }

    /// Kills the apiserver. Until it is started again, etcd alone runs.
    pub fn kill_apiserver(&mut self) -> Result<()> {
        self.apiserver.signal(Signal::KILL)?;
        self.apiserver.wait(Duration::from_secs(READY_SECONDS_MAX))?;
        Ok(())
    }

    /// Starts an apiserver that was killed.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.apiserver = self.plan.apiserver(self.folder.path())?;
        self.wait_until_ready().await
    }

    /// Suspends the apiserver with all connections open (SIGSTOP), or resumes it (SIGCONT).
    pub fn pause_apiserver(&self, is_paused: bool) -> Result<()> {
        self.apiserver.signal(if is_paused { Signal::STOP } else { Signal::CONT })
    }

    /// Kills etcd and starts it again with the same data.
    pub async fn restart_etcd(&mut self) -> Result<()> {
        self.stop_etcd()?;
        self.start_etcd().await?;
        self.wait_until_ready().await
    }

    /// Copies the data of etcd, as a backup does.
    pub async fn back_up_etcd(&mut self) -> Result<TempDir> {
        let backup = new_folder()?;
        self.back_up_etcd_to(&backup.path().join("etcd")).await?;
        Ok(backup)
    }

    /// Copies the data of etcd to a folder, which appears when it is complete.
    pub async fn back_up_etcd_to(&mut self, to: &Path) -> Result<()> {
        self.stop_etcd()?;
        let parent = to.parent().context("a folder without a parent")?;
        std::fs::create_dir_all(parent)?;
        let partial = tempfile::tempdir_in(parent)?.keep();
        copy_folder(&self.folder.path().join("etcd"), &partial.join("etcd"))?;
        std::fs::rename(partial.join("etcd"), to)?;
        std::fs::remove_dir(partial)?;
        self.start_etcd().await?;
        self.wait_until_ready().await
    }

    /// Replaces the data of etcd with an earlier copy, and starts the apiserver again.
    pub async fn restore_etcd(&mut self, backup: &Path) -> Result<()> {
        self.kill_apiserver()?;
        self.stop_etcd()?;
        let data = self.folder.path().join("etcd");
        std::fs::remove_dir_all(&data)?;
        copy_folder(backup, &data)?;
        self.start_etcd().await?;
        self.start_apiserver().await
    }

    fn stop_etcd(&mut self) -> Result<()> {
        self.etcd.signal(Signal::KILL)?;
        self.etcd.wait(Duration::from_secs(READY_SECONDS_MAX))?;
        Ok(())
    }

    async fn start_etcd(&mut self) -> Result<()> {
        self.etcd = self.plan.etcd(self.folder.path())?;
        let port = self.plan.etcd_port;
        wait_until("etcd", &mut self.etcd, async || is_listening(port)).await
    }

    /// The process IDs of all servers.
    pub fn process_ids(&self) -> Vec<i32> {
        let Self { kwok, scheduler, controller_manager, apiserver, etcd, plan: _, files: _, folder: _ } =
            self;
        let optional = [kwok, scheduler, controller_manager].into_iter().flatten();
        optional.chain([apiserver, etcd]).map(Process::id).collect()
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let client = client_of(&self.kubeconfig()).await?;
        let ready = async || {
            let request = http::Request::get("/readyz").body(Vec::new());
            match request {
                Ok(request) => client.request_text(request).await.is_ok_and(|answer| answer == "ok"),
                Err(_) => false,
            }
        };
        wait_until("kube-apiserver", &mut self.apiserver, ready).await
    }

    fn write_kubeconfig(&self, user: &str, token: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(format!("{user}.kubeconfig"));
        let authority = self.folder.path().join("certificates/apiserver.crt");
        let server = format!("https://127.0.0.1:{}", self.plan.apiserver_port);
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": authority}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        });
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.record_permissions();
    }
}

impl Launch {
    fn etcd(&self, folder: &Path) -> Result<Process> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", self.etcd_peer_port);
        let configure = |command: &mut Command| {
            command
                .arg(format!("--data-dir={}", folder.join("etcd").display()))
                .arg(format!("--listen-client-urls={client}"))
                .arg(format!("--advertise-client-urls={client}"))
                .arg(format!("--listen-peer-urls={peer}"))
                .arg(format!("--initial-advertise-peer-urls={peer}"))
                .arg(format!("--initial-cluster=default={peer}"))
                .arg("--log-level=warn")
                // Tests need not survive a power failure, so etcd need not sync its writes to disk.
                .arg("--unsafe-no-fsync");
        };
        Process::start("etcd", &tools::binary("etcd")?, configure, folder)
    }

    fn apiserver(&self, folder: &Path) -> Result<Process> {
        let configure = |command: &mut Command| {
            command
                .arg(format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port))
                .arg(format!("--cert-dir={}", folder.join("certificates").display()))
                .arg("--bind-address=127.0.0.1")
                .arg("--advertise-address=127.0.0.1")
                .arg(format!("--secure-port={}", self.apiserver_port))
                .arg("--authorization-mode=RBAC")
                .arg(format!("--token-auth-file={}", folder.join("tokens.csv").display()))
                .arg("--service-account-issuer=https://testbed.invalid")
                .arg(format!("--service-account-key-file={}", folder.join("service-account.pub").display()))
                .arg(format!(
                    "--service-account-signing-key-file={}",
                    folder.join("service-account.key").display()
                ))
                .arg("--service-cluster-ip-range=10.255.0.0/24")
                .arg("--endpoint-reconciler-type=none")
                .arg(format!("--audit-policy-file={}", folder.join("audit-policy.yaml").display()))
                .arg(format!("--audit-log-path={}", folder.join(AUDIT_LOG).display()))
                .arg("--profiling=false");
        };
        Process::start("kube-apiserver", &tools::binary("kube-apiserver")?, configure, folder)
    }

    fn controller_manager(&self, folder: &Path) -> Result<Process> {
        let kubeconfig = folder.join("admin.kubeconfig");
        let controllers = if self.options.node_lifecycle { "*" } else { "*,-node-lifecycle-controller" };
        let configure = |command: &mut Command| {
            command
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .arg(format!("--controllers={controllers}"))
                .arg(format!(
                    "--service-account-private-key-file={}",
                    folder.join("service-account.key").display()
                ))
                .arg(format!("--root-ca-file={}", folder.join("certificates/apiserver.crt").display()))
                .arg("--leader-elect=false")
                .arg("--secure-port=0")
                .arg("--kube-api-qps=200")
                .arg("--kube-api-burst=400");
        };
        let program = tools::binary("kube-controller-manager")?;
        Process::start("kube-controller-manager", &program, configure, folder)
    }

    fn scheduler(&self, folder: &Path) -> Result<Process> {
        let kubeconfig = folder.join("admin.kubeconfig");
        let configure = |command: &mut Command| {
            command
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .arg("--leader-elect=false")
                .arg("--secure-port=0")
                .arg("--kube-api-qps=200")
                .arg("--kube-api-burst=400");
        };
        Process::start("kube-scheduler", &tools::binary("kube-scheduler")?, configure, folder)
    }

    fn kwok(&self, folder: &Path) -> Result<Process> {
        let kubeconfig = folder.join("admin.kubeconfig");
        let stages = tools::shared_files("kwok")?;
        let configure = |command: &mut Command| {
            command
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .arg("--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake")
                .arg("--node-lease-duration-seconds=40")
                // Otherwise kwok uses a folder in the user's home.
                .env("HOME", folder);
            for stage in stages {
                command.arg(format!("--config={}", stage.display()));
            }
        };
        Process::start("kwok", &tools::binary("kwok")?, configure, folder)
    }
}

/// A folder that only this user may read, because it may contain an administrator's token.
fn new_folder() -> Result<TempDir> {
    let only_owner = std::fs::Permissions::from_mode(0o700);
    Ok(tempfile::Builder::new().prefix("ip-address-controller-testbed-").permissions(only_owner).tempdir()?)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            std::fs::copy(from, to)?;
        }
    }
    Ok(())
}

fn write_secrets(folder: &Path, plan: &Launch) -> Result<()> {
    let administrator = format!("{},admin,admin,\"system:masters\"\n", plan.admin_token);
    std::fs::write(folder.join("tokens.csv"), administrator)?;
    std::fs::write(folder.join("audit-policy.yaml"), audit::POLICY)?;
    let key = rcgen::KeyPair::generate()?;
    std::fs::write(folder.join("service-account.key"), key.serialize_pem())?;
    std::fs::write(folder.join("service-account.pub"), key.public_key_pem())?;
    // Without these files, the apiserver creates RSA keys, which takes half a second of CPU time.
    let certificates = folder.join("certificates");
    std::fs::create_dir(&certificates)?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    std::fs::write(certificates.join("apiserver.crt"), made.cert.pem())?;
    std::fs::write(certificates.join("apiserver.key"), made.signing_key.serialize_pem())?;
    Ok(())
}

/// Creates a client from a kubeconfig file.
pub async fn client_of(kubeconfig: &Path) -> Result<Client> {
    use_one_tls_provider();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// rustls panics if two crypto providers are linked and none is chosen, so the first call chooses one for the process.
fn use_one_tls_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Waits until a server is ready. Fails with the end of its log if it exits or is not ready in time.
pub(crate) async fn wait_until(
    name: &str,
    server: &mut Process,
    mut is_ready: impl AsyncFnMut() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(READY_SECONDS_MAX);
    loop {
        server.ensure_running()?;
        if is_ready().await {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{name} was not ready after {READY_SECONDS_MAX} s; its log ends with:\n{}",
            server.log_tail()
        );
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Whether a server listens on this loopback port.
pub(crate) fn is_listening(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Returns free loopback ports. Within this process, a port is not returned again before all others were.
///
/// The kernel never uses these ports for outgoing connections, so a port stays free until its server listens there.
/// Otherwise an outgoing connection could get the port as its own: it would block the server, or connect to itself.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Test processes that run in parallel start at distant ports.
    let first = usize::try_from(std::process::id())?.wrapping_mul(997);
    let next = |_| PORTS.clone().nth((first + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len());
    let ports: Vec<u16> = (0..PORTS.len())
        .filter_map(next)
        .filter(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok())
        .take(count)
        .collect();
    ensure!(ports.len() == count, "fewer than {count} loopback ports are free in {PORTS:?}");
    Ok(ports)
}

/// 16 random bytes, in hexadecimal.
pub(crate) fn random_token() -> Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").context("opening /dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_returns_no_port_twice_and_none_in_use() {
        let (first, second) = (free_ports(40).unwrap(), free_ports(40).unwrap());
        assert!(first.iter().all(|port| !second.contains(port) && PORTS.contains(port)));
        let next = free_ports(1).unwrap()[0] + 1;
        let _listener = TcpListener::bind(("127.0.0.1", next));
        assert!(!free_ports(3).unwrap().contains(&next), "port {next} is in use");
    }
}
