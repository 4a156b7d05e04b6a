//! `sim 2000` runs 2,000 seeds; its last line of output is JSON. `sim replay 17` prints the event log of seed 17.
#![allow(clippy::print_stdout, reason = "the program prints its results")]

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use plan::sabotage::{self, Sabotage};
use serde_json::json;
use sim::burst::burst;
use sim::event::Event;
use sim::reduce::reduce;
use sim::run::run;
use sim::script::{KILLS, churn, creations, script};
use testbed::burst::{Burst, Holders, PLACES, Place};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::util::SubscriberInitExt;

/// Runs spend a third of their time on allocations, on all cores at once. mimalloc is fast under this load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    /// Number of seeds to run
    #[arg(default_value_t = 200)]
    seeds: u64,

    /// First seed
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Print a hash of all events and requests of each run
    #[arg(long)]
    fingerprints: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Print the event log of one run; if it fails, also print the shortest script that still fails
    Replay {
        /// Seed to replay
        seed: u64,
        /// Kind of script to generate from the seed
        #[arg(long, value_enum, default_value_t)]
        of: ScriptKind,
        /// Add this defect to the controller. The command `power` prints the names of all defects
        #[arg(long, value_parser = defect)]
        broken: Option<Sabotage>,
        /// Print the controllers' log first, with virtual time. Takes `info` or any other RUST_LOG filter
        #[arg(long)]
        log: Option<String>,
    },
    /// Kill the leader eight times in each run while the controller creates 20 addresses and another user creates addresses in the same account
    Creations,
    /// Also make every other node NotReady in turn, so that as many addresses as possible move
    Churn,
    /// Fail over 1,000 addresses at once under the real rate limits of all clouds, or of the named ones
    Burst {
        /// Clouds to run, as in `spec.provider`; all if empty
        clouds: Vec<String>,
        /// State of the previous holders; all three in turn if not set
        #[arg(long, value_parser = ["dead", "alive", "mixed"])]
        holders: Option<String>,
    },
    /// Add each known defect to the controller, or the named ones, and print the first seed that detects it
    Power {
        /// Defects to add; all if empty
        #[arg(value_parser = defect)]
        defects: Vec<Sabotage>,
    },
}

/// Kinds of scripts.
#[derive(Clone, Copy, Default, ValueEnum)]
enum ScriptKind {
    #[default]
    Usual,
    Churn,
    Creations,
}

impl ScriptKind {
    /// The events of a seed and their times.
    fn script(self, seed: u64) -> Vec<(Duration, Event)> {
        match self {
            Self::Usual => script(seed),
            Self::Churn => churn(seed),
            Self::Creations => creations(seed),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    name_the_seed_of_a_panic();
    let kind = match arguments.command {
        Some(Command::Replay { seed, of, broken, log }) => {
            return replay(seed, &of.script(seed), broken, log.as_deref());
        }
        Some(Command::Power { defects }) => return power(arguments.seeds, defects),
        Some(Command::Burst { clouds, holders }) => return bursts(&clouds, holders.as_deref()),
        Some(Command::Creations) => {
            println!("{} kills", arguments.seeds * KILLS);
            ScriptKind::Creations
        }
        Some(Command::Churn) => ScriptKind::Churn,
        None => ScriptKind::Usual,
    };
    let started = Instant::now();
    let sum = Mutex::new(Sum::default());
    let finished = each(arguments.first..arguments.first + arguments.seeds, |seed| {
        let outcome = run(seed, &kind.script(seed));
        let fingerprint = fingerprint(&outcome.story) ^ outcome.trace;
        if arguments.fingerprints {
            println!("{seed} {fingerprint:016x}");
        }
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = outcome.violations.first() {
            println!("seed {seed}: {first}");
            sum.failed += 1;
        }
        sum.failovers += outcome.failovers;
        // Runs end in any order, so the combined hash must not depend on the order.
        sum.trace ^= fingerprint.rotate_left((seed % 64) as u32);
        sum.simulated += outcome.simulated.as_secs_f64();
        true
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} runs, {} failed; {} failovers, {:.1} simulated days in {:.0} s",
        arguments.seeds,
        sum.failed,
        sum.failovers,
        sum.simulated / 86_400.0,
        started.elapsed().as_secs_f64()
    );
    let (seeds, failovers, violations) = (arguments.seeds, sum.failovers, sum.failed);
    println!(
        "{}",
        json!({"seeds": seeds, "failovers": failovers, "violations": violations, "trace_hash": format!("{:016x}", sum.trace)})
    );
    if sum.failed == 0 && finished { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

thread_local! {
    /// The seed that this thread runs.
    static RUNNING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Prints the seed on a panic, because a panic ends the whole process.
fn name_the_seed_of_a_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(seed) = RUNNING.get() {
            println!("seed {seed} panicked");
        }
        usual(panic);
    }));
}

/// Totals of all runs.
#[derive(Default)]
struct Sum {
    failed: usize,
    failovers: usize,
    simulated: f64,
    trace: u64,
}

/// Calls `visit` for each seed in order, in several threads, until one call returns false. Each run stays in one thread
/// and shares nothing with the others. Returns whether no thread panicked.
fn each(seeds: Range<u64>, visit: impl Fn(u64) -> bool + Sync) -> bool {
    let (next, is_enough) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let work = || {
        while !is_enough.load(Ordering::SeqCst) {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= seeds.end {
                return;
            }
            RUNNING.set(Some(seed));
            if !visit(seed) {
                is_enough.store(true, Ordering::SeqCst);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().all(|thread| thread.join().is_ok())
    })
}

fn replay(seed: u64, script: &[(Duration, Event)], broken: Option<Sabotage>, log: Option<&str>) -> ExitCode {
    sabotage::choose(broken);
    RUNNING.set(Some(seed));
    let logged = log.map(|filter| {
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_timer(SimulatedTime);
        lines.with_ansi(false).finish().set_default()
    });
    let outcome = run(seed, script);
    drop(logged);
    outcome.story.iter().for_each(|line| println!("{line}"));
    let Some(first) = outcome.violations.first() else {
        println!("no invariant was violated");
        return ExitCode::SUCCESS;
    };
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
    let (left, violation) = reduce(seed, script, first.clone());
    println!("reduced to:");
    for (at, event) in left {
        println!("{:>9.3} {event}", at.as_secs_f64());
    }
    println!("{violation}");
    ExitCode::FAILURE
}

/// Prefixes log lines with the virtual time since the start of the run.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        // The first process logs a line as soon as it starts, so the first call happens at the start of the run.
        thread_local!(static START: OnceCell<tokio::time::Instant> = const { OnceCell::new() });
        let elapsed = START.with(|start| start.get_or_init(tokio::time::Instant::now).elapsed());
        write!(line, "{:>9.3}", elapsed.as_secs_f64())
    }
}

/// Parses the name of a defect.
fn defect(name: &str) -> Result<Sabotage, String> {
    let defect = Sabotage::ALL.into_iter().find(|defect| format!("{defect:?}") == name);
    defect.ok_or_else(|| format!("unknown defect; use one of {:?}", Sabotage::ALL))
}

/// Measures whether the simulator detects defects. Injects each of `defects` in turn, or every known defect if the list
/// is empty.
fn power(seeds: u64, defects: Vec<Sabotage>) -> ExitCode {
    let defects = if defects.is_empty() { Sabotage::ALL.to_vec() } else { defects };
    let mut missed = 0;
    println!("| defect | first seed | violation | shortest script |");
    println!("|---|---:|---|---|");
    for what in defects {
        sabotage::choose(Some(what));
        let caught = Mutex::new(BTreeMap::new());
        each(0..seeds, |seed| {
            let Some(violation) = run(seed, &script(seed)).violations.into_iter().next() else { return true };
            caught.lock().unwrap_or_else(PoisonError::into_inner).insert(seed, violation);
            false
        });
        let caught = caught.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some((seed, violation)) = caught.into_iter().next() else {
            println!("| {what:?} | none of {seeds} | | |");
            missed += 1;
            continue;
        };
        let (story, violation) = reduce(seed, &script(seed), violation);
        let story: Vec<_> =
            story.iter().map(|(at, event)| format!("{:.0} s {event}", at.as_secs_f64())).collect();
        println!("| {what:?} | {seed} | {violation} | {} |", story.join("; "));
    }
    sabotage::choose(None);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Fails over 1,000 addresses in each cloud, and prints a table. The last line of output is JSON.
fn bursts(clouds: &[String], only: Option<&str>) -> ExitCode {
    println!("{}", Burst::HEAD);
    let (mut rows, mut is_well) = (Vec::new(), true);
    let is_meant = |place: &&Place| clouds.is_empty() || clouds.iter().any(|cloud| cloud == place.provider);
    let of_holders =
        |holders: &Holders| only.is_none_or(|only| format!("{holders:?}").eq_ignore_ascii_case(only));
    for place in PLACES.iter().filter(is_meant) {
        for holders in [Holders::Dead, Holders::Alive, Holders::Mixed].into_iter().filter(of_holders) {
            let Some(burst) = burst(place, holders) else {
                println!("| {} | {holders:?} | did not finish | | | | | | | |", place.provider);
                is_well = false;
                continue;
            };
            println!("{}", burst.row(place, holders));
            is_well &= burst.doubled.is_empty();
            rows.push(burst.to_json(place, holders));
        }
    }
    println!("{}", json!(rows));
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A hash of an event log.
fn fingerprint(story: &[String]) -> u64 {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    story.iter().flat_map(|line| line.bytes().chain(*b"\n")).fold(0xcbf2_9ce4_8422_2325, mix)
}
