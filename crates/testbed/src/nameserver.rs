//! A real name server on loopback: BIND with one zone that accepts dynamic updates (RFC 2136) signed with TSIG.
//!
//! In: the zone's name, and the `named`, `nsupdate` and `dig` that `just tools` provided. Out: a server whose zone has
//! a few records that no controller owns, and three TSIG keys: one for each of two controllers and one for a person.
//! Every key may change the whole zone, so a test shows whether a controller leaves foreign records alone.
//!
//! The server answers only for this zone and never notifies other servers. It stops when this value is dropped or this
//! process ends.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::control_plane::{free_ports, random_token};
use crate::process::Process;
use crate::tools;

/// How long to wait for the server's first answer.
const READY_SECONDS_MAX: u64 = 20;

/// How long a query waits for its response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

const POLL_EVERY: Duration = Duration::from_millis(20);

/// A running name server.
#[derive(Debug)]
pub struct Nameserver {
    // Fields are dropped in this order: the server first, the folder with its files last.
    process: Process,
    address: SocketAddr,
    zone: String,
    controller: Key,
    other_controller: Key,
    person: Key,
    _folder: TempDir,
}

/// A TSIG key, for HMAC with SHA-256.
#[derive(Debug)]
struct Key {
    name: &'static str,
    secret: String,
}

impl Key {
    fn new(name: &'static str) -> Result<Self> {
        // 32 hexadecimal digits are also valid Base64 and need no padding.
        Ok(Self { name, secret: random_token()? })
    }
}

impl Nameserver {
    /// Starts a server for a zone, such as `example.com`, and waits until it responds.
    pub fn start(zone: &str) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ip-address-controller-nameserver-").tempdir()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_ports(1)?[0]));
        let (controller, other_controller) = (Key::new("controller")?, Key::new("other-controller")?);
        let person = Key::new("person")?;
        let keys = [&controller, &other_controller, &person];
        std::fs::write(folder.path().join("zone"), zone_file(zone))?;
        let configuration = folder.path().join("named.conf");
        std::fs::write(&configuration, configuration_of(folder.path(), address, zone, keys))?;
        let configure = |command: &mut Command| {
            // Run in the foreground, log to standard error, use one thread.
            command.args(["-g", "-4", "-n", "1", "-c"]).arg(&configuration);
        };
        let process = Process::start("named", &tools::binary("named")?, configure, folder.path())?;
        let mut this = Self {
            process,
            address,
            zone: zone.to_owned(),
            controller,
            other_controller,
            person,
            _folder: folder,
        };
        this.wait_until_ready()?;
        Ok(this)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(READY_SECONDS_MAX);
        let name = format!("ns.{}", self.zone);
        while !self.query(&name, "A").is_ok_and(|found| !found.is_empty()) {
            self.process.ensure_running()?;
            ensure!(
                Instant::now() < deadline,
                "named was not ready after {READY_SECONDS_MAX} s; its log ends with:\n{}",
                self.process.log_tail()
            );
            std::thread::sleep(POLL_EVERY);
        }
        Ok(())
    }

    /// The address on which the server listens, for UDP and TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The zone's name.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The name of the controller's TSIG key.
    pub fn key_name(&self) -> &str {
        self.controller.name
    }

    /// The secret of the controller's TSIG key, in Base64.
    pub fn secret(&self) -> &str {
        &self.controller.secret
    }

    /// The environment variables that make a controller use this server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        self.environment_with(&self.controller)
    }

    /// The environment variables for a second controller, which has its own key.
    pub fn other_environment(&self) -> Vec<(&'static str, String)> {
        self.environment_with(&self.other_controller)
    }

    fn environment_with(&self, key: &Key) -> Vec<(&'static str, String)> {
        vec![
            ("RFC2136_SERVER", self.address.to_string()),
            ("RFC2136_TSIG_KEY_NAME", key.name.to_owned()),
            ("RFC2136_TSIG_SECRET", key.secret.clone()),
        ]
    }

    /// Updates the zone with the person's key and nsupdate lines such as `update add www.example.com 60 A 192.0.2.1`.
    /// The update is atomic: if a `prereq` does not hold, nothing changes.
    pub fn nsupdate(&self, script: &str) -> Result<()> {
        let Key { name, secret } = &self.person;
        let (host, port) = (self.address.ip(), self.address.port());
        let script = format!(
            "server {host} {port}\nzone {}\nkey hmac-sha256:{name} {secret}\n{script}\nsend\n",
            self.zone
        );
        let mut command = Command::new(tools::binary("nsupdate")?);
        let mut nsupdate =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        nsupdate.stdin.take().context("nsupdate has no input")?.write_all(script.as_bytes())?;
        let output = nsupdate.wait_with_output()?;
        ensure!(output.status.success(), "nsupdate: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    /// The sorted values of a name's records of this kind: `A`, `AAAA` or `TXT`. Empty if there is no such record.
    pub fn query(&self, name: &str, kind: &str) -> Result<Vec<String>> {
        let mut values = Resolver::new(self.address)?.ask(name, kind)?;
        values.sort();
        Ok(values)
    }

    /// Every record of the zone as one line each, sorted. Leaves out the SOA record, because its serial changes.
    pub fn records(&self) -> Result<Vec<String>> {
        let transfer = self.dig(&["+noall", "+answer", &self.zone, "AXFR"])?;
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut records: Vec<_> = transfer.lines().map(words).collect();
        ensure!(records.len() > 2, "the transfer of zone {} returned no records: {transfer}", self.zone);
        records.retain(|record| !record.contains(" IN SOA "));
        records.sort();
        Ok(records)
    }

    /// The zone's serial. It grows with every update.
    pub fn serial(&self) -> Result<u32> {
        let record = self.dig(&["+short", &self.zone, "SOA"])?;
        let serial = record.split_whitespace().nth(2).and_then(|serial| serial.parse().ok());
        serial.with_context(|| format!("no serial in the SOA record of zone {}: {record}", self.zone))
    }

    fn dig(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(tools::binary("dig")?);
        command.arg(format!("@{}", self.address.ip())).args(["-p", &self.address.port().to_string()]);
        let output = command.args(arguments).output()?;
        let printed = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "dig {arguments:?} failed: {printed}");
        Ok(printed)
    }
}

/// The zone's initial records. The last number of the SOA record is the TTL of negative answers, which is short.
fn zone_file(zone: &str) -> String {
    format!(
        "$ORIGIN {zone}.
$TTL 60
@   IN SOA ns person 1 3600 600 86400 5
@   IN NS  ns
ns  IN A   127.0.0.1
www IN A   192.0.2.80
www IN TXT \"made by a person\"
"
    )
}

fn configuration_of(folder: &Path, address: SocketAddr, zone: &str, keys: [&Key; 3]) -> String {
    let key = |key: &Key| {
        format!("key \"{}\" {{ algorithm hmac-sha256; secret \"{}\"; }};\n", key.name, key.secret)
    };
    let grant = |key: &Key| format!(" grant \"{}\" zonesub any;", key.name);
    format!(
        "options {{
  directory \"{folder}\";
  listen-on port {port} {{ {host}; }};
  listen-on-v6 {{ none; }};
  pid-file none;
  lock-file none;
  session-keyfile none;
  recursion no;
  notify no;
  dnssec-validation no;
  empty-zones-enable no;
  allow-transfer {{ any; }};
}};
controls {{ }};
{keys}zone \"{zone}\" {{ type primary; file \"zone\"; update-policy {{{grants} }}; }};
",
        folder = folder.display(),
        host = address.ip(),
        port = address.port(),
        keys = keys.map(key).concat(),
        grants = keys.map(grant).concat(),
    )
}

/// Queries one server over UDP, without a cache.
#[derive(Debug)]
pub struct Resolver {
    socket: UdpSocket,
    last_id: u16,
}

impl Resolver {
    /// A resolver for the server at this address.
    pub fn new(server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { socket, last_id: 0 })
    }

    /// The values of a name's records of this kind, `A`, `AAAA` or `TXT`, in the order of the response. Empty if there
    /// is no such record.
    pub fn ask(&mut self, name: &str, kind: &str) -> Result<Vec<String>> {
        self.last_id = self.last_id.wrapping_add(1);
        self.socket.send(&question(self.last_id, name, kind)?)?;
        let mut buffer = [0; 512];
        loop {
            let length =
                self.socket.recv(&mut buffer).with_context(|| format!("querying {kind} of {name}"))?;
            // Skip late responses to earlier queries.
            if buffer[..2] == self.last_id.to_be_bytes() {
                return values(&buffer[..length]).with_context(|| format!("querying {kind} of {name}"));
            }
        }
    }
}

const KINDS: [(&str, u16); 3] = [("A", 1), ("AAAA", 28), ("TXT", 16)];
const HEADER_LENGTH: usize = 12;
const NO_SUCH_NAME: u8 = 3;

/// A DNS message with one question, in the format of RFC 1035, section 4.1.
fn question(id: u16, name: &str, kind: &str) -> Result<Vec<u8>> {
    let kind = KINDS
        .iter()
        .find(|(name, _)| *name == kind)
        .with_context(|| format!("unsupported record type {kind}: use A, AAAA or TXT"))?;
    let mut message = Vec::new();
    // ID, no flags, one question, no records.
    for number in [id, 0, 1, 0, 0, 0] {
        message.extend(number.to_be_bytes());
    }
    for label in name.trim_end_matches('.').split('.') {
        ensure!((1..64).contains(&label.len()), "{name} is not a valid DNS name");
        message.push(u8::try_from(label.len())?);
        message.extend(label.as_bytes());
    }
    message.push(0);
    // Record type, and class IN.
    for number in [kind.1, 1] {
        message.extend(number.to_be_bytes());
    }
    Ok(message)
}

/// The values in a response to one question.
fn values(message: &[u8]) -> Result<Vec<String>> {
    let (is_truncated, code) = (byte(message, 2)? & 2 != 0, byte(message, 3)? & 15);
    ensure!(!is_truncated, "the response is truncated");
    ensure!(code == 0 || code == NO_SUCH_NAME, "the server returned response code {code}");
    let answers = number(message, 6)?;
    // Skip the question: its name, type and class.
    let mut at = behind_name(message, HEADER_LENGTH)? + 4;
    let mut values = Vec::new();
    for _ in 0..answers {
        at = behind_name(message, at)?;
        let (kind, length) = (number(message, at)?, usize::from(number(message, at + 8)?));
        let data = message.get(at + 10..at + 10 + length).context("the response ends too early")?;
        values.push(value(kind, data)?);
        at += 10 + length;
    }
    Ok(values)
}

fn value(kind: u16, data: &[u8]) -> Result<String> {
    match kind {
        1 => Ok(Ipv4Addr::from(<[u8; 4]>::try_from(data)?).to_string()),
        28 => Ok(Ipv6Addr::from(<[u8; 16]>::try_from(data)?).to_string()),
        // A TXT record consists of strings, each preceded by its length.
        16 => {
            let (mut text, mut rest) = (Vec::new(), data);
            while let Some((length, behind)) = rest.split_first() {
                let (piece, behind) =
                    behind.split_at_checked(usize::from(*length)).context("a TXT string ends too early")?;
                text.extend(piece);
                rest = behind;
            }
            Ok(String::from_utf8(text)?)
        }
        _ => bail!("unexpected record of type {kind} in the response"),
    }
}

/// The position after a name. A name ends with an empty label, or with a pointer to the rest of it.
fn behind_name(message: &[u8], mut at: usize) -> Result<usize> {
    loop {
        match byte(message, at)? {
            0 => return Ok(at + 1),
            0xc0.. => return Ok(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

fn byte(message: &[u8], at: usize) -> Result<u8> {
    message.get(at).copied().context("the response ends too early")
}

fn number(message: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_be_bytes([byte(message, at)?, byte(message, at + 1)?]))
}
