//! Test secrets, and a search for them in the log at `trace`.
//!
//! Every test that uses one of these secrets calls [`watch`] first. From then on the log of the process passes the same
//! filter as the controller's log, every line is searched, and [`leaks`] returns the lines that contain a secret.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use data_encoding::{BASE64, HEXLOWER};
use drivers::logs::may_show;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::fmt::{self, format::FmtSpan};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Part of every test secret, and of nothing else.
const MARKER: &str = "Planted7Secret";

/// A bearer token.
pub const TOKEN: &str = "Planted7Secret-bearer-token";
/// The secret of an AWS access key.
pub const AWS_SECRET: &str = "Planted7Secret/of+an/access+key";
/// An AWS session token.
pub const AWS_SESSION: &str = "Planted7Secret-session-token";
/// The credential of a service account, a pod or an application.
pub const PROOF: &str = "Planted7Secret-proof";

/// The secret of a TSIG key, in base64 as users write it.
pub fn tsig_secret() -> String {
    BASE64.encode(b"Planted7Secret of a TSIG key....")
}

/// The marker in plain text, in base64 at each offset, in hexadecimal, and as a list of bytes.
fn forms() -> &'static [String] {
    static FORMS: OnceLock<Vec<String>> = OnceLock::new();
    FORMS.get_or_init(|| {
        let in_base64 = |skipped: usize| {
            let padded = [&vec![0; skipped], MARKER.as_bytes()].concat();
            // The first and last characters also depend on the bytes around the marker.
            let text = BASE64.encode(&padded);
            text[(skipped * 8).div_ceil(6)..padded.len() * 8 / 6].to_owned()
        };
        let bytes = format!("{:?}", MARKER.as_bytes());
        let bytes = bytes.trim_matches(['[', ']']).to_owned();
        let plain = [MARKER.to_owned(), HEXLOWER.encode(MARKER.as_bytes()), bytes];
        plain.into_iter().chain((0..3).map(in_base64)).collect()
    })
}

/// Whether a text contains a test secret in any form.
pub fn is_in(text: &str) -> bool {
    forms().iter().any(|form| text.contains(form.as_str()))
}

#[derive(Default)]
struct Log {
    lines: usize,
    leaks: Vec<String>,
}

static LOG: Mutex<Log> = Mutex::new(Log { lines: 0, leaks: Vec::new() });

/// A writer that searches each line for secrets.
struct Search;

impl Write for Search {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        log.lines += 1;
        if is_in(&text) {
            log.leaks.push(text.into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs at `trace` from now on, and searches every line.
pub fn watch() {
    let lines = fmt::layer().with_ansi(false).with_span_events(FmtSpan::NEW).with_writer(|| Search);
    let lines = lines.with_filter(EnvFilter::new("trace").and(filter_fn(may_show)));
    // Another test of this process may already have done this.
    _ = tracing_subscriber::registry().with(lines).try_init();
    // Some drivers log nothing. This line shows that the search works.
    tracing::trace!(target: "drivers", "the log is searched");
}

/// The number of log lines, and the lines that contain a secret.
pub fn leaks() -> (usize, Vec<String>) {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    (log.lines, log.leaks.clone())
}

/// Fails if a line contains a secret, or if nothing was logged.
pub fn assert_silent() {
    let (lines, leaks) = leaks();
    assert!(lines > 0, "nothing was logged, so nothing was searched");
    assert!(leaks.is_empty(), "of {lines} lines these contain a secret: {leaks:#?}");
}
