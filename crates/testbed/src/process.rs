//! Servers as child processes that never outlive whoever started them.
//!
//! Each server runs under a small supervising shell whose standard input is a pipe from here. The kernel closes that
//! pipe when this process ends, in whatever way: a finished test, a panic, SIGKILL. The supervisor then kills the server.
//! This needs no unsafe code and, unlike a parent-death signal, does not depend on which thread started the server.

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

/// How much of a server's log an error message shows.
const LOG_LINES_SHOWN: usize = 15;

/// A running server. Dropping it kills the server and waits for its end.
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
        // Descriptor 4 carries the server's process id; the shell's own output is the server's log.
        supervisor.args(["-c", &format!("exec 4>&1 >>\"$0\" 2>&1\n{SUPERVISOR}")]);
        supervisor.arg(&log).arg(server.get_program()).args(server.get_args());
        for (name, value) in server.get_envs() {
            match value {
                Some(value) => supervisor.env(name, value),
                None => supervisor.env_remove(name),
            };
        }
        supervisor.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(output);
        // A group of its own keeps a terminal's Ctrl-C from the servers, so that they end after what uses them.
        supervisor.process_group(0);
        let mut supervisor = supervisor.spawn().with_context(|| format!("starting {name}"))?;

        let mut line = String::new();
        let stdout = supervisor.stdout.take().context("the supervisor has no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let server = line.trim().parse().ok().and_then(Pid::from_raw);
        let server = server.with_context(|| format!("{name} did not start"))?;
        Ok(Self { name: name.to_owned(), supervisor, server, log })
    }

    /// The server's process id.
    pub fn id(&self) -> i32 {
        self.server.as_raw_nonzero().get()
    }

    /// Where the server's output is.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.server, signal).with_context(|| format!("signalling {}", self.name))
    }

    /// Whether and how the server ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.supervisor.try_wait()?)
    }

    /// Waits until the server has ended, for at most so long.
    pub fn wait(&mut self, longest: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + longest;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {longest:?}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails, with the end of the server's log, where the server is not running any more.
    pub fn ensure_running(&mut self) -> Result<()> {
        if let Some(status) = self.try_wait()? {
            bail!("{} ended early ({status}); its log ends in:\n{}", self.name, tail(&self.log)?);
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
    fn a_dropped_server_is_gone_at_once() {
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
    fn a_server_that_ends_by_itself_is_noticed_and_its_log_shown() {
        let folder = tempfile::tempdir().unwrap();
        let script = |command: &mut Command| {
            command.args(["-c", "echo out of luck; exit 3"]);
        };
        let mut server = Process::start("unlucky", Path::new("sh"), script, folder.path()).unwrap();
        assert_eq!(server.wait(Duration::from_secs(5)).unwrap().code(), Some(3));
        assert!(server.ensure_running().unwrap_err().to_string().contains("out of luck"));
    }
}
