//! Another release takes over while the leader has work in flight: `just e2e upgrade`.
//!
//! In: 200 addresses in two clouds, DNS names, and Clusters that wait for their VIPs. The test starts moves, creations,
//! DNS changes and claims, and then ends the leader. The current release succeeds release 0.1.0, and 0.1.0 succeeds the
//! current one. Half of the leaders get SIGTERM and release their lease before the successor starts. The others get
//! SIGKILL while the successor stands by. Half of the switches run with the CRDs and the ClusterRole of release 0.1.0.
//!
//! Out: a verdict for each switch, from the ledgers of the fake clouds. A switch counts only if the journals had
//! entries in several phases when the leader ended. `UPGRADES` sets how many switches must count in each direction; the
//! default is 1.

mod fleet;
mod phases;
pub mod release;

use std::collections::BTreeSet;
use std::time::Instant;

use rustix::process::Signal;

use self::fleet::Fleet;
use self::phases::{is_counted, phases, places};
use self::release::Release;
use crate::rig::SOON;

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_of_another_release_resumes_work_in_flight() {
    let wanted: usize = std::env::var("UPGRADES").map_or(1, |count| count.parse().unwrap());
    let fleet = Fleet::start().await;
    let mut release = Release::Baseline;
    let mut leader = fleet.controller(release, 0);
    println!("200 addresses settled after {:?}", fleet.settled(None, &mut leader).await);
    println!(
        "| switch | CRDs and rights | leader ended by | open entries | settled after | restarts | moves | lost | leaked | \
         moved twice | moved without need | on two machines | emptied names | wrong VIPs | forgotten | counted |\n\
         |---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    );
    let mut counted = [0, 0];
    let mut faults = Vec::new();
    let attempts_max = 6 * wanted + 10;
    for number in 0..attempts_max {
        if counted.iter().all(|count| *count >= wanted) {
            break;
        }
        let round = number / 2;
        // Four rounds cover both signals, with the CRDs of both releases, in both directions.
        let definitions = if round / 2 % 2 == 0 { release } else { release.other() };
        fleet.install(definitions);
        let is_clean = (number + round) % 2 == 0;
        let next = release.other();
        let standby = (!is_clean).then(|| fleet.controller(next, number + 1));
        if let Some(standby) = &standby {
            standby.controller.until_ready().await;
        }
        fleet.settled(None, &mut leader).await;
        let wave = fleet.wave(number).await;
        // On a busy machine the successor may already have taken over.
        let is_switch = fleet.leads(&leader).await;
        _ = leader.controller.process.signal(if is_clean { Signal::TERM } else { Signal::KILL });
        leader.controller.process.wait(SOON).unwrap();
        let entries = fleet.open_entries().await;
        let places = places(&fleet.ledgers());
        if release == Release::Baseline {
            fleet.keep_objects().await;
        }
        let switched = Instant::now();
        leader = standby.unwrap_or_else(|| fleet.controller(next, number + 1));
        fleet.settled(Some((number, &wave)), &mut leader).await;
        let took = switched.elapsed();

        let phases = phases(&entries, &places);
        let is_counted = is_switch && is_counted(&phases);
        counted[usize::from(release == Release::Current)] += usize::from(is_counted);
        let verdict = fleet.judge(&wave).await;
        let left: BTreeSet<_> = fleet.open_entries().await.into_iter().map(|entry| entry.id).collect();
        let forgotten = entries.iter().filter(|entry| left.contains(&entry.id)).count();
        let counts: Vec<_> = verdict.faults().iter().map(|(_, found)| found.len().to_string()).collect();
        println!(
            "| {release} → {next} | {definitions} | {} | {phases:?} | {:.1} s | {} | {} | {} | {forgotten} | {} |",
            if is_clean { "SIGTERM" } else { "SIGKILL" },
            took.as_secs_f64(),
            leader.restarts,
            verdict.moves,
            counts.join(" | "),
            if is_counted { "yes" } else { "no" }
        );
        for (what, found) in verdict.faults().into_iter().filter(|(_, found)| !found.is_empty()) {
            println!("{what}: {found:?}");
            faults.push(format!("{release} → {next}: {what}: {found:?}"));
        }
        assert_eq!(forgotten, 0, "the successor left a journal entry open");
        fleet.restore(wave).await;
        release = next;
    }
    println!("{counted:?} switches with work in flight, from 0.1.0 and from the current release");
    assert_eq!(faults, Vec::<String>::new(), "{}", fleet.rig.logs());
    assert!(counted.iter().all(|count| *count >= wanted), "too few switches had enough work in flight");
}
