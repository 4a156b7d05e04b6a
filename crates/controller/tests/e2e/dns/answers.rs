//! What a name server answers while addresses move, and for how long an answer contains an address that is on no VM.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testbed::fake::ledger::CloudChange;
use testbed::nameserver::Resolver;

/// Consecutive equal answers of the name server.
pub struct Answers {
    pub values: Vec<String>,
    pub first: Instant,
    pub last: Instant,
    pub count: usize,
}

/// Queries a name until `stop` is set, with a pause after each answer. Returns every answer with the time of
/// its query, and the errors of queries without an answer.
pub fn ask_repeatedly(
    server: SocketAddr,
    name: &str,
    pause: Duration,
    stop: &AtomicBool,
) -> (Vec<Answers>, Vec<String>) {
    let mut resolver = Resolver::new(server).unwrap();
    let (mut noted, mut failed) = (Vec::<Answers>::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let at = Instant::now();
        let mut values = match resolver.ask(name, "A") {
            Ok(values) => values,
            Err(error) => {
                failed.push(format!("{error:#}"));
                continue;
            }
        };
        values.sort();
        match noted.last_mut().filter(|noted| noted.values == values) {
            Some(noted) => (noted.last, noted.count) = (at, noted.count + 1),
            None => noted.push(Answers { values, first: at, last: at, count: 1 }),
        }
        std::thread::sleep(pause);
    }
    (noted, failed)
}

/// The start and the end of a period. A period that still lasts has no end.
type Span = (Instant, Option<Instant>);

/// The periods during which an address was on no VM, according to the fake cloud.
fn unattached(changes: &[(Instant, CloudChange)], address: &str) -> Vec<Span> {
    let mut spans = Vec::<Span>::new();
    for (at, change) in changes {
        match change {
            CloudChange::Detached { address: of, .. } if of == address => spans.push((*at, None)),
            CloudChange::Attached { address: of, .. } if of == address => {
                if let Some((_, until @ None)) = spans.last_mut() {
                    *until = Some(*at);
                }
            }
            _ => {}
        }
    }
    spans
}

/// For each time that an address was on no VM for at least `unattached_for`: how long the name still contained it.
pub fn stale_times(
    noted: &[Answers],
    changes: &[(Instant, CloudChange)],
    addresses: &[String],
    unattached_for: Duration,
) -> Vec<Duration> {
    let mut times = Vec::new();
    for address in addresses {
        for (left, back) in unattached(changes, address) {
            if back.is_some_and(|back| back.saturating_duration_since(left) < unattached_for) {
                continue;
            }
            let mut longest = Duration::ZERO;
            for answers in noted.iter().filter(|answers| answers.values.contains(address)) {
                let last = back.map_or(answers.last, |back| back.min(answers.last));
                if answers.first <= last {
                    longest = longest.max(last.saturating_duration_since(left));
                }
            }
            times.push(longest);
        }
    }
    times
}
