//! `sim 2000` runs as many seeds, `sim replay 17` tells the story of one. The last line of the former is JSON.
#![allow(clippy::print_stdout, reason = "this is what the program is for")]

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

/// A third of a run is spent on allocations, in as many threads as there are cores, which is what this one is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Arguments {
    /// How many seeds, from the first one on
    #[arg(default_value_t = 200)]
    seeds: u64,

    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// Prints a number for each seed that stands for its whole story
    #[arg(long)]
    fingerprints: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Tells the story of one seed, and reduces it where it fails
    Replay {
        /// The seed
        seed: u64,
        /// The kind of days that it is one of
        #[arg(long, value_enum, default_value_t)]
        of: Days,
        /// Breaks the controller in this way, as the table of `power` names it
        #[arg(long, value_parser = way)]
        broken: Option<Sabotage>,
        /// Prints before the story what the controllers log, with the simulated second: `info`, or any other filter of RUST_LOG
        #[arg(long)]
        log: Option<String>,
    },
    /// Kills the leader eight times in each run while twenty addresses are created beside others'
    Creations,
    /// Lets every other node fall ill in turn, beside everything else that goes wrong, so that as many addresses move as can
    Churn,
    /// Lets a thousand addresses fail over at once, under the real limits of each cloud, or of those that are named
    Burst {
        /// The clouds, as users write them
        clouds: Vec<String>,
        /// What becomes of the holders, if not one after the other
        #[arg(long, value_parser = ["dead", "alive", "mixed"])]
        holders: Option<String>,
    },
    /// Breaks the controller in every known way, or in those that are named, and tells which seed noticed it first
    Power {
        /// The ways, as the table names them
        #[arg(value_parser = way)]
        ways: Vec<Sabotage>,
    },
}

/// Kinds of days.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Days {
    #[default]
    Usual,
    Churn,
    Creations,
}

impl Days {
    /// What happens when on the day of a seed.
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
    let days = match arguments.command {
        Some(Command::Replay { seed, of, broken, log }) => {
            return replay(seed, &of.script(seed), broken, log.as_deref());
        }
        Some(Command::Power { ways }) => return power(arguments.seeds, ways),
        Some(Command::Burst { clouds, holders }) => return rushes(&clouds, holders.as_deref()),
        Some(Command::Creations) => {
            println!("{} kills", arguments.seeds * KILLS);
            Days::Creations
        }
        Some(Command::Churn) => Days::Churn,
        None => Days::Usual,
    };
    let started = Instant::now();
    let sum = Mutex::new(Sum::default());
    let finished = each(arguments.first..arguments.first + arguments.seeds, |seed| {
        let outcome = run(seed, &days.script(seed));
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
        // The order in which runs end is chance, so what stands for all of them must not depend on it.
        sum.trace ^= fingerprint.rotate_left((seed % 64) as u32);
        sum.simulated += outcome.simulated.as_secs_f64();
        true
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} runs, {} violated; {} failovers, {:.1} simulated days in {:.0} s",
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

/// A panic ends the whole process, so it has to say of which seed it is.
fn name_the_seed_of_a_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(seed) = RUNNING.get() {
            println!("seed {seed} panicked");
        }
        usual(panic);
    }));
}

/// What several runs came to.
#[derive(Default)]
struct Sum {
    failed: usize,
    failovers: usize,
    simulated: f64,
    trace: u64,
}

/// Visits seeds in their order, several at the same time, until one visit says that it is enough. Every run has a thread to
/// itself and knows of no other. Tells whether none panicked.
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
        println!("nothing was violated");
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

/// When a line was logged: how long the run had been going on.
struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        // The first line is logged as soon as the first process starts.
        thread_local!(static START: OnceCell<tokio::time::Instant> = const { OnceCell::new() });
        let elapsed = START.with(|start| start.get_or_init(tokio::time::Instant::now).elapsed());
        write!(line, "{:>9.3}", elapsed.as_secs_f64())
    }
}

/// The way to break the controller that has this name.
fn way(name: &str) -> Result<Sabotage, String> {
    let way = Sabotage::ALL.into_iter().find(|way| format!("{way:?}") == name);
    way.ok_or_else(|| format!("it is none of {:?}", Sabotage::ALL))
}

/// Breaks one thing after another: all of them, where none is named.
fn power(seeds: u64, ways: Vec<Sabotage>) -> ExitCode {
    let ways = if ways.is_empty() { Sabotage::ALL.to_vec() } else { ways };
    let mut missed = 0;
    println!("| broken on purpose | first seed | found | reduced to |");
    println!("|---|---:|---|---|");
    for what in ways {
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

/// Lets a thousand addresses fail over in each cloud, and prints the table. The last line is JSON.
fn rushes(clouds: &[String], only: Option<&str>) -> ExitCode {
    println!("{}", Burst::HEAD);
    let (mut rows, mut is_well) = (Vec::new(), true);
    let is_meant = |place: &&Place| clouds.is_empty() || clouds.iter().any(|cloud| cloud == place.provider);
    let of_holders =
        |holders: &Holders| only.is_none_or(|only| format!("{holders:?}").eq_ignore_ascii_case(only));
    for place in PLACES.iter().filter(is_meant) {
        for holders in [Holders::Dead, Holders::Alive, Holders::Mixed].into_iter().filter(of_holders) {
            let Some(burst) = burst(place, holders) else {
                println!("| {} | {holders:?} | it never ended | | | | | | | |", place.provider);
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

/// A number that two stories share only if they are the same.
fn fingerprint(story: &[String]) -> u64 {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    story.iter().flat_map(|line| line.bytes().chain(*b"\n")).fold(0xcbf2_9ce4_8422_2325, mix)
}
