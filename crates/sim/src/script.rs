//! Generates the script of a run from its seed.
//!
//! In: a seed. Out: the events and their times. It draws all events before the run begins, so `reduce` can remove some
//! of them and run the rest again.

use std::time::Duration;

use crate::broken;
use crate::clouds::Cloud;
use crate::event::{Asked, CloudFault, Death, Event, LeaseEdit, Replica};
use crate::options::{ADDRESSES, CHAOS, NODES, REPLICAS_MAX, grace};
use crate::rng::Rng;
use crate::vips;

/// The default script: a random mix of events and faults.
pub fn script(seed: u64) -> Vec<(Duration, Event)> {
    let mut rng = Rng::new(seed, "script");
    let grace = Duration::from_secs(grace(seed));
    let mood = *rng.pick(&[Mood::Calm, Mood::Mixed, Mood::Stops, Mood::Crashes, Mood::Weather]);
    // In some runs there is no time to recover from one fault before the next.
    let count = match (mood, rng.one_in(4)) {
        (Mood::Calm, _) => 200 + rng.roll(800),
        (_, true) => 150 + rng.roll(150),
        (_, false) => 12 + rng.roll(48),
    };
    let mut events = Vec::new();
    for _ in 0..count {
        let (at, event) = (rng.up_to(CHAOS), event(&mut rng, mood));
        // The worst faults happen while the leader handles another event.
        let is_work = matches!(
            event,
            Event::NotReady { .. }
                | Event::Blackout { .. }
                | Event::Cordon { .. }
                | Event::Lost { .. }
                | Event::Removed { .. }
                | Event::Pod { .. }
                | Event::PersonMoves { .. }
                | Event::SecondInterface { .. }
                | Event::Edit { .. }
                | Event::Desire { .. }
                | Event::Unlist
                | Event::ForgeCreated
        );
        if matches!(event, Event::Desire { .. }) && rng.one_in(2) {
            // Other creations at the same time make it hardest to tell which new address is ours.
            let others = (0..4).map(|_| (at + rng.up_to(Duration::from_secs(2)), Event::ForeignCreation));
            events.extend(others);
        }
        events.push((at, event));
        let has_trouble = match mood {
            Mood::Calm => false,
            Mood::Mixed => rng.one_in(2),
            Mood::Stops | Mood::Crashes | Mood::Weather => true,
        };
        if is_work && has_trouble {
            let at = at + grace + rng.up_to(Duration::from_millis(2_500));
            let trouble = trouble(&mut rng, mood);
            if let Event::Stop { seconds, .. } = trouble
                && rng.one_in(2)
            {
                // A resumed process is most dangerous while it can't learn that it has lost the Lease.
                let storm = Event::KubernetesStorm { one_in: 1, seconds: 4 };
                events.push((at + Duration::from_secs(seconds) - Duration::from_millis(200), storm));
            }
            if matches!(trouble, Event::Overdue { .. }) && rng.one_in(2) {
                // A late request is most dangerous if another process leads when the request arrives.
                let after = Duration::from_millis(500) + rng.up_to(Duration::from_secs(2));
                events.push((at + after, Event::Crash { replica: Replica::Leader }));
            }
            events.push((at, trouble));
        }
    }
    let is_trouble = |event: &Event| {
        matches!(
            event,
            Event::Crash { .. }
                | Event::CrashAtCall { .. }
                | Event::Terminate { .. }
                | Event::Stop { .. }
                | Event::KubernetesStorm { .. }
        )
    };
    let troubles: Vec<_> = events.iter().filter(|(_, event)| is_trouble(event)).map(|(at, _)| *at).collect();
    events.extend(broken::script(seed, &troubles));
    events.extend(vips::script(seed, &troubles).into_iter().map(|(at, event)| (at, Event::Vips(event))));
    events.sort_by_key(|(at, _)| *at);
    events
}

/// The default script, and in addition every other node of each cloud becomes NotReady. Then these become Ready and the
/// others NotReady, and so on, so that as many addresses as possible move.
pub fn churn(seed: u64) -> Vec<(Duration, Event)> {
    // "tides" is the old name of this command. With another name, recorded seeds would give other runs.
    let mut rng = Rng::new(seed, "tides");
    let mut events = script(seed);
    let (mut at, mut not_ready) = (Duration::from_secs(20), 0);
    while at < CHAOS {
        for (cloud, node) in
            Cloud::ALL.into_iter().flat_map(|cloud| (0..NODES).map(move |node| (cloud, node)))
        {
            let event = match node % 2 == not_ready {
                true => Event::NotReady { cloud, node },
                false => Event::Ready { cloud, node },
            };
            events.push((at, event));
        }
        // The next change comes while some moves are finished and others are still in flight.
        at += Duration::from_secs(grace(seed) + 8) + rng.up_to(Duration::from_secs(8));
        not_ready = 1 - not_ready;
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// How often the leader is killed in a run of [`creations`].
pub const KILLS: u64 = 8;

/// The controller creates 20 addresses and another user creates addresses in the same account, while the leader is
/// killed repeatedly.
pub fn creations(seed: u64) -> Vec<(Duration, Event)> {
    let mut rng = Rng::new(seed, "creations");
    let mut at = Duration::from_secs(20);
    let mut events = vec![(at, Event::Desire { count: 20 })];
    for _ in 0..KILLS {
        // The next leader needs time to take over and to start before it is killed too.
        at += Duration::from_secs(18) + rng.up_to(Duration::from_secs(12));
        events.push((at - rng.up_to(Duration::from_secs(5)), Event::ForeignCreation));
        events.push((at, Event::Crash { replica: Replica::Leader }));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// The faults that prevail in a run while the leader works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// No faults of processes, network or clouds: only nodes and pods change.
    Calm,
    Mixed,
    Stops,
    Crashes,
    Weather,
}

/// Draws a fault that happens while the leader works.
fn trouble(rng: &mut Rng, mood: Mood) -> Event {
    let (replica, cloud) = (Replica::Leader, *rng.pick(&Cloud::ALL));
    let kind = match mood {
        Mood::Stops if !rng.one_in(4) => 2,
        Mood::Crashes if !rng.one_in(4) => *rng.pick(&[0, 9]),
        Mood::Weather if !rng.one_in(4) => *rng.pick(&[6, 6, 6, 11, 13, 14]),
        _ => rng.roll(15),
    };
    match kind {
        0 | 1 => Event::Crash { replica },
        2 | 3 => Event::Stop { replica, seconds: 8 + rng.roll(30) },
        4 => Event::Terminate { replica },
        5 => Event::KubernetesStorm { one_in: 2 + rng.roll(4), seconds: 1 + rng.roll(20) },
        6 => Event::CloudStorm { one_in: 2 + rng.roll(4), seconds: 1 + rng.roll(20) },
        7 => Event::PersonMoves {
            cloud,
            address: rng.roll(ADDRESSES),
            node: rng.one_in(2).then(|| rng.roll(NODES)),
        },
        9 | 10 => crash_at_call(rng, cloud),
        11 => Event::Overdue { cloud, seconds: 1 + rng.roll(25) },
        12 => lease_edit(rng),
        13 => silence(rng),
        14 => unreadable(rng),
        _ => cloud_fault(rng, cloud),
    }
}

fn crash_at_call(rng: &mut Rng, cloud: Cloud) -> Event {
    let cloud = Asked::Cloud(cloud);
    let asked = *rng.pick(&[cloud, cloud, cloud, Asked::Kubernetes, Asked::Kubernetes, Asked::Lease]);
    Event::CrashAtCall { asked, death: *rng.pick(&[Death::Before, Death::After]) }
}

fn lease_edit(rng: &mut Rng) -> Event {
    let give = LeaseEdit::Give { replica: rng.one_in(2).then(|| rng.roll(REPLICAS_MAX)) };
    let edits = [LeaseEdit::Empty, give, LeaseEdit::Shorten, LeaseEdit::Annotate, LeaseEdit::Strip];
    Event::EditLease { edit: *rng.pick(&edits) }
}

/// A silence of all watches. It is longer than the ten seconds for which the controller trusts a silent watch, and
/// sometimes longer than the 125 s after which a watch counts as dead.
fn silence(rng: &mut Rng) -> Event {
    Event::Silence { seconds: 12 + rng.roll(150) }
}

/// In about half of the cases, a kind is unreadable for longer than the 30 s within which a broken watch can resume.
fn unreadable(rng: &mut Rng) -> Event {
    Event::Unreadable { plural: rng.pick(&KINDS_OF_MOVES), seconds: 5 + rng.roll(60) }
}

/// Kinds that moves depend on.
const KINDS_OF_MOVES: [&str; 4] = ["nodes", "pods", "netipallocations", "floatingippools"];

fn cloud_fault(rng: &mut Rng, cloud: Cloud) -> Event {
    let faults = [
        CloudFault::LoseReply,
        CloudFault::Truncate,
        CloudFault::RateLimited,
        CloudFault::Forbidden,
        CloudFault::FailLate,
        CloudFault::Overtake,
        CloudFault::Slow,
        CloudFault::Partial,
    ];
    Event::CloudFault { cloud, fault: *rng.pick(&faults), times: 1 + rng.roll(5) }
}

fn event(rng: &mut Rng, mood: Mood) -> Event {
    let cloud = *rng.pick(&Cloud::ALL);
    let node = rng.roll(NODES);
    let replica = Replica::Number(rng.roll(REPLICAS_MAX));
    // The first 24 numbers concern nodes and pods. The others concern objects, the controller and the clouds.
    match rng.roll(if mood == Mood::Calm { 24 } else { 46 }) {
        0 if rng.one_in(4) => Event::Blackout { cloud },
        0..5 => Event::NotReady { cloud, node },
        5..8 => Event::Ready { cloud, node },
        8 => Event::Cordon { cloud, node },
        9 => Event::Uncordon { cloud, node },
        10..12 => Event::Lost { cloud, node },
        12 => Event::Removed { cloud, node },
        13..15 => Event::Returns { cloud, node },
        15..17 => Event::Pod { node, is_ready: false },
        17 => Event::Pod { node, is_ready: true },
        18..22 => Event::Mend,
        22..24 => Event::ConfirmLosses,
        24 if rng.one_in(2) => Event::SecondInterface { address: rng.roll(ADDRESSES), node },
        24 => {
            let node = rng.one_in(2).then_some(node);
            Event::PersonMoves { cloud, address: rng.roll(ADDRESSES), node }
        }
        25 if rng.one_in(3) => Event::ForgeCreated,
        25 => Event::Edit { cloud, address: rng.roll(ADDRESSES) },
        26 if rng.one_in(3) => Event::Unlist,
        26 => Event::Desire { count: rng.roll(8) },
        27 => Event::Delete { cloud },
        28 => Event::Recreate { cloud },
        29 if rng.one_in(2) => lease_edit(rng),
        29 => Event::DeleteLease,
        30 => Event::Compact,
        31 if rng.one_in(2) => Event::TakeName,
        31 => Event::ForeignCreation,
        32..34 => Event::Crash { replica },
        34 => Event::Terminate { replica },
        35 => Event::Stop { replica, seconds: 1 + rng.roll(40) },
        36 => {
            let milliseconds = i64::try_from(rng.roll(120_000)).unwrap_or(0) - 60_000;
            Event::ClockJump { replica, milliseconds }
        }
        37 => Event::KubernetesStorm { one_in: 2 + rng.roll(10), seconds: 1 + rng.roll(30) },
        38 => Event::CloudStorm { one_in: 2 + rng.roll(10), seconds: 1 + rng.roll(30) },
        39 => crash_at_call(rng, cloud),
        40 => Event::Overdue { cloud, seconds: 1 + rng.roll(25) },
        41 if rng.one_in(2) => Event::DeleteKind { cloud },
        42 => silence(rng),
        43 => unreadable(rng),
        44 => Event::StaleList { plural: rng.pick(&KINDS_OF_MOVES), seconds: 5 + rng.roll(60) },
        _ => cloud_fault(rng, cloud),
    }
}
