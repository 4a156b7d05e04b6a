//! `sim 2000` runs as many seeds, `sim replay 17` tells the story of one.
#![allow(clippy::print_stdout, reason = "this is what the program is for")]

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, Subcommand};
use sim::reduce::reduce;
use sim::run::run;
use sim::script::script;

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
    },
    /// Breaks the controller in every known way, and tells after how many seeds that was noticed
    Power,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Replay { seed }) => return replay(seed),
        Some(Command::Power) => return power(arguments.seeds),
        None => {}
    }
    let started = Instant::now();
    let next = AtomicU64::new(arguments.first);
    let end = arguments.first + arguments.seeds;
    // Every run has a thread to itself, so several can go on at the same time and none knows of another.
    let work = || {
        let mut sum = Sum::default();
        loop {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= end {
                return sum;
            }
            let outcome = run(seed, &script(seed));
            if arguments.fingerprints {
                println!("{seed} {:016x}", fingerprint(&outcome.story));
            }
            if let Some(first) = outcome.violations.first() {
                println!("seed {seed}: {first}");
                sum.failed += 1;
            }
            sum.attached += outcome.attached;
            sum.simulated += outcome.simulated.as_secs_f64();
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let sums: Vec<Sum> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    // A thread that is missing has panicked, and so has a run.
    let failed = sums.iter().map(|sum| sum.failed).sum::<usize>() + (threads - sums.len());
    println!(
        "{} runs, {failed} violated; {} attachments, {:.1} simulated days in {:.0} s",
        arguments.seeds,
        sums.iter().map(|sum| sum.attached).sum::<usize>(),
        sums.iter().map(|sum| sum.simulated).sum::<f64>() / 86_400.0,
        started.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What several runs came to.
#[derive(Default)]
struct Sum {
    failed: usize,
    attached: usize,
    simulated: f64,
}

fn replay(seed: u64) -> ExitCode {
    let script = script(seed);
    let outcome = run(seed, &script);
    outcome.story.iter().for_each(|line| println!("{line}"));
    let Some(first) = outcome.violations.first() else {
        println!("nothing was violated");
        return ExitCode::SUCCESS;
    };
    outcome.violations.iter().for_each(|violation| println!("{violation}"));
    println!("reduced to:");
    for (at, event) in reduce(seed, &script, first.invariant) {
        println!("{:>9.3} {event}", at.as_secs_f64());
    }
    ExitCode::FAILURE
}

/// Breaks one thing after another.
fn power(seeds: u64) -> ExitCode {
    use plan::sabotage::{self, Sabotage};
    let mut missed = 0;
    println!("| broken on purpose | first seed | found | reduced to |");
    println!("|---|---:|---|---|");
    for what in Sabotage::ALL {
        sabotage::choose(Some(what));
        let caught = (0..seeds).find_map(|seed| {
            let violation = run(seed, &script(seed)).violations.into_iter().next()?;
            Some((seed, violation))
        });
        let Some((seed, violation)) = caught else {
            println!("| {what:?} | none of {seeds} | | |");
            missed += 1;
            continue;
        };
        let story = reduce(seed, &script(seed), violation.invariant);
        let story: Vec<_> =
            story.iter().map(|(at, event)| format!("{:.0} s {event}", at.as_secs_f64())).collect();
        println!("| {what:?} | {seed} | {violation} | {} |", story.join("; "));
    }
    sabotage::choose(None);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A number that two stories share only if they are the same.
fn fingerprint(story: &[String]) -> u64 {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    story.iter().flat_map(|line| line.bytes().chain([b'\n'])).fold(0xcbf2_9ce4_8422_2325, mix)
}
