//! `sim 2000` runs as many seeds, `sim replay 17` tells the story of one.
#![allow(clippy::print_stdout, reason = "this is what the program is for")]

use std::process::ExitCode;
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
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Replay { seed }) = arguments.command {
        return replay(seed);
    }
    let started = Instant::now();
    let (mut failed, mut attached, mut simulated) = (Vec::new(), 0, 0.0);
    for seed in arguments.first..arguments.first + arguments.seeds {
        let outcome = run(seed, &script(seed));
        attached += outcome.attached;
        simulated += outcome.simulated.as_secs_f64();
        if arguments.fingerprints {
            println!("{seed} {:016x}", fingerprint(&outcome.story));
        }
        if let Some(first) = outcome.violations.first() {
            println!("seed {seed}: {first}");
            failed.push(seed);
        }
    }
    println!(
        "{} runs, {} violated; {attached} attachments, {:.1} simulated days in {:.0} s",
        arguments.seeds,
        failed.len(),
        simulated / 86_400.0,
        started.elapsed().as_secs_f64()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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

/// A number that two stories share only if they are the same.
fn fingerprint(story: &[String]) -> u64 {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    story.iter().flat_map(|line| line.bytes().chain([b'\n'])).fold(0xcbf2_9ce4_8422_2325, mix)
}
