//! Runs servers as child processes that never outlive this process.
//!
//! Each server runs under a small supervisor, a shell whose standard input is a pipe from this process. The kernel
//! closes that pipe however this process ends: after the last test, by a panic or by SIGKILL. The supervisor then kills
//! the server. This needs no unsafe code. Unlike a parent-death signal, it does not depend on the thread that started
//! the server.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

const SUPERVISOR: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
echo "$server" >&4
exec 4>&-
{ read -r _ <&3; kill -KILL "$server"; } 2>/dev/null &
watcher=$!
wait "$server"
status=$?
kill "$watcher" 2>/dev/null
exit "$status"
"#;

/// How many lines of a server's log an error message shows.
const LOG_LINES_SHOWN: usize = 15;

/// A running server. Dropping this value kills the server and waits until it has exited.
#[derive(Debug)]
pub struct Process {
    name: String,
    supervisor: Child,
    server: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts a server whose output goes to `<folder>/<name>.log`.
    pub fn start(
        name: &str,
        program: &Path,
        configure: impl FnOnce(&mut Command),
        folder: &Path,
    ) -> Result<Self> {
        let mut server = Command::new(program);
        configure(&mut server);
        let log = folder.join(format!("{name}.log"));
        let output = OpenOptions::new().create(true).append(true).open(&log)?;

        let mut supervisor = Command::new("bash");
        // The shell writes the server's process ID to descriptor 4. Its own output goes to the server's log.
        supervisor.args(["-c", &format!("exec 4>&1 >>\"$0\" 2>&1\n{SUPERVISOR}")]);
        supervisor.arg(&log).arg(server.get_program()).args(server.get_args());
        for (name, value) in server.get_envs() {
            match value {
                Some(value) => supervisor.env(name, value),
                None => supervisor.env_remove(name),
            };
        }
        supervisor.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(output);
        // With its own process group the server does not get the terminal's Ctrl-C, and stops after its clients.
        supervisor.process_group(0);
        let mut supervisor = supervisor.spawn().with_context(|| format!("starting {name}"))?;

        let mut line = String::new();
        let stdout = supervisor.stdout.take().context("the supervisor has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let server = line.trim().parse().ok().and_then(Pid::from_raw);
        let server = server.with_context(|| format!("{name} did not start"))?;
        Ok(Self { name: name.to_owned(), supervisor, server, log })
    }

    /// The server's process ID.
    pub fn id(&self) -> i32 {
        self.server.as_raw_nonzero().get()
    }

    /// The path of the server's log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.server, signal).with_context(|| format!("sending a signal to {}", self.name))
    }

    /// The server's exit status, or none while it runs.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.supervisor.try_wait()?)
    }

    /// Waits for at most `longest` until the server has exited.
    pub fn wait(&mut self, longest: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + longest;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} did not exit within {longest:?}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails if the server has exited. The error contains the end of its log.
    pub fn ensure_running(&mut self) -> Result<()> {
        if let Some(status) = self.try_wait()? {
            bail!("{} exited early ({status}); its log ends with:\n{}", self.name, tail(&self.log)?);
        }
        Ok(())
    }

    /// The end of the server's log, for error messages.
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

fn tail(log: &Path) -> Result<String> {
    let lines = BufReader::new(File::open(log)?).lines().collect::<std::io::Result<Vec<_>>>()?;
    let first = lines.len().saturating_sub(LOG_LINES_SHOWN);
    Ok(lines[first..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_alive(id: i32) -> bool {
        Path::new(&format!("/proc/{id}")).exists()
    }

    #[test]
    fn dropping_a_process_kills_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let server = Process::start(
            "sleeper",
            Path::new("sleep"),
            |command| {
                command.arg("60");
            },
            folder.path(),
        )
        .unwrap();
        let id = server.id();
        assert!(is_alive(id));
        drop(server);
        assert!(!is_alive(id));
    }

    #[test]
    fn an_early_exit_is_reported_with_the_end_of_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let script = |command: &mut Command| {
            command.args(["-c", "echo out of luck; exit 3"]);
        };
        let mut server = Process::start("unlucky", Path::new("sh"), script, folder.path()).unwrap();
        assert_eq!(server.wait(Duration::from_secs(5)).unwrap().code(), Some(3));
        assert!(server.ensure_running().unwrap_err().to_string().contains("out of luck"));
    }
}
