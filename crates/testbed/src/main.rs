//! `testbed`: runs a control plane and fake clouds for manual experiments.
#![allow(clippy::print_stdout, reason = "this program prints the next commands for its user")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use testbed::control_plane::{ControlPlane, Options};
use tokio::signal::unix::{SignalKind, signal};

const UP_SECONDS_MAX: u64 = 120;
const DOWN_SECONDS_MAX: u64 = 30;

#[derive(Parser)]
#[command(about = "Runs a control plane and fake clouds on loopback, for manual experiments")]
struct Arguments {
    /// Directory with the state of the running control plane; by default in the user's cache
    #[arg(long, global = true)]
    folder: Option<PathBuf>,

    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Starts a control plane in the background
    Up,
    /// Stops the control plane and removes its files
    Down,
    /// Runs the fake clouds of the control plane's nodes, and prints each change in them
    Fakes {
        /// The first of seven consecutive ports
        #[arg(long, default_value_t = 7801)]
        port: u16,
    },
    /// Runs the control plane in the foreground until SIGTERM or SIGINT; `up` starts this
    #[command(hide = true)]
    Serve,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { folder, command } = Arguments::parse();
    let home = folder.map_or_else(Home::of_user, |folder| Ok(Home(folder)))?;
    match command {
        Action::Up => up(&home),
        Action::Down => down(&home),
        Action::Fakes { port } => fakes(port).await,
        Action::Serve => serve(&home).await,
    }
}

/// The folder with the pid file, the kubeconfig and the log of the running testbed.
struct Home(PathBuf);

impl Home {
    fn of_user() -> Result<Self> {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        let cache = cache.or(home).context("neither XDG_CACHE_HOME nor HOME is set")?;
        Ok(Self(cache.join("ip-address-controller/testbed")))
    }

    fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The process that runs the testbed, if it is alive.
    fn server(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.0.join("pid")).ok()?;
        text.trim().parse().ok().and_then(Pid::from_raw).filter(|pid| test_kill_process(*pid).is_ok())
    }
}

fn up(home: &Home) -> Result<()> {
    let started = Instant::now();
    if home.server().is_none() {
        std::fs::create_dir_all(&home.0)?;
        let _ = std::fs::remove_file(home.kubeconfig());
        let log = std::fs::File::create(home.log())?;
        let mut server = Command::new(std::env::current_exe()?);
        server
            .arg("serve")
            .arg("--folder")
            .arg(&home.0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // With its own process group the testbed survives when the user closes or interrupts the terminal.
        let mut server = server.process_group(0).spawn()?;
        std::fs::write(home.0.join("pid"), server.id().to_string())?;
        while !home.kubeconfig().exists() {
            if let Some(status) = server.try_wait()? {
                bail!(
                    "the testbed exited during startup ({status}):\n{}",
                    std::fs::read_to_string(home.log())?
                );
            }
            ensure!(
                started.elapsed() < Duration::from_secs(UP_SECONDS_MAX),
                "the testbed was not ready after {UP_SECONDS_MAX} s; see {}",
                home.log().display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    println!("A Kubernetes control plane is running, ready after {:.1} s.", started.elapsed().as_secs_f64());
    println!("Its nodes have no VMs; kwok keeps them Ready. The CRDs of the controller are installed.");
    println!();
    println!("Run next:");
    println!("  export KUBECONFIG={}", home.kubeconfig().display());
    println!(
        "  kubectl get nodes              (if you have no kubectl, use {})",
        testbed::tools::binary("kubectl")?.display()
    );
    println!("  just fakes                     in another terminal: the fake clouds of these nodes");
    println!("  just testbed down              when you are done");
    println!();
    println!("KUBECONFIG={}", home.kubeconfig().display());
    Ok(())
}

fn down(home: &Home) -> Result<()> {
    if let Some(server) = home.server() {
        kill_process(server, Signal::TERM)?;
        let started = Instant::now();
        while home.server().is_some() {
            ensure!(
                started.elapsed() < Duration::from_secs(DOWN_SECONDS_MAX),
                "the testbed did not stop within {DOWN_SECONDS_MAX} s"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("Stopped the control plane.");
    } else {
        println!("No control plane was running.");
    }
    match std::fs::remove_dir_all(&home.0) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

async fn fakes(port: u16) -> Result<()> {
    let clouds = testbed::demo::Clouds::default();
    let servers = clouds.serve(port).await.context("serving the fake clouds")?;
    println!("The fake clouds run until you press Ctrl-C. Run in another terminal:");
    for (name, value) in servers.environment() {
        println!("  export {name}={value}");
    }
    println!("Changes in the fake clouds:");
    let mut shown = 0;
    loop {
        let changes = clouds.changes();
        for change in &changes[shown.min(changes.len())..] {
            println!("  {change}");
        }
        shown = changes.len();
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
            result = tokio::signal::ctrl_c() => return Ok(result?),
        }
    }
}

async fn serve(home: &Home) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let control_plane = ControlPlane::start(Options::everything()).await?;
    control_plane.install_crds().await?;
    control_plane.install_released_lease("kube-system", "ip-address-controller-leader")?;
    let client = control_plane.client().await?;
    for demo in testbed::demo::nodes() {
        demo.create(&client).await?;
    }
    // `up` waits for this file. The rename makes it appear complete, and after everything else is ready.
    let partial = home.0.join("kubeconfig.partial");
    std::fs::copy(control_plane.kubeconfig(), &partial)?;
    std::fs::rename(partial, home.kubeconfig())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
