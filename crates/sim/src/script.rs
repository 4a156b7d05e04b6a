//! What goes wrong in a run, drawn from its seed before it begins, so that a part of it can be left out and the rest tried
//! again.

use std::time::Duration;

use crate::broken;
use crate::clouds::Cloud;
use crate::event::{Asked, CloudFault, Death, Event, LeaseEdit, Replica};
use crate::options::{ADDRESSES, CHAOS, NODES, REPLICAS_MAX, grace};
use crate::rng::Rng;
use crate::vips;

/// When what happens.
pub fn script(seed: u64) -> Vec<(Duration, Event)> {
    let mut rng = Rng::new(seed, "script");
    let grace = Duration::from_secs(grace(seed));
    let mood = *rng.pick(&[Mood::Calm, Mood::Mixed, Mood::Stops, Mood::Crashes, Mood::Weather]);
    // In some runs there is no time to recover from one blow before the next.
    let count = match (mood, rng.one_in(4)) {
        (Mood::Calm, _) => 200 + rng.roll(800),
        (_, true) => 150 + rng.roll(150),
        (_, false) => 12 + rng.roll(48),
    };
    let mut events = Vec::new();
    for _ in 0..count {
        let (at, event) = (rng.up_to(CHAOS), event(&mut rng, mood));
        // Troubles rarely come alone, and the worst come while the first is being dealt with.
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
            // Whose a new address is can be told least while others create some too.
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
                // What was stopped and goes on is most dangerous while it can't learn that it leads no more.
                let storm = Event::KubernetesStorm { one_in: 1, seconds: 4 };
                events.push((at + Duration::from_secs(seconds) - Duration::from_millis(200), storm));
            }
            if matches!(trouble, Event::Overdue { .. }) && rng.one_in(2) {
                // What comes late is most dangerous if somebody else leads by then.
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

/// Beside everything else that goes wrong, every other node at every cloud falls ill, then those get well and the others fall
/// ill, and so on: as many addresses move as can.
pub fn churn(seed: u64) -> Vec<(Duration, Event)> {
    // The old name of this command: with another label, recorded seeds would give other runs.
    let mut rng = Rng::new(seed, "tides");
    let mut events = script(seed);
    let (mut at, mut ill) = (Duration::from_secs(20), 0);
    while at < CHAOS {
        for (cloud, node) in
            Cloud::ALL.into_iter().flat_map(|cloud| (0..NODES).map(move |node| (cloud, node)))
        {
            let event = match node % 2 == ill {
                true => Event::NotReady { cloud, node },
                false => Event::Ready { cloud, node },
            };
            events.push((at, event));
        }
        // Some moves have ended by then, and some have not.
        at += Duration::from_secs(grace(seed) + 8) + rng.up_to(Duration::from_secs(8));
        ill = 1 - ill;
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// How often the leader is killed in a run of [`creations`].
pub const KILLS: u64 = 8;

/// Twenty addresses are created, beside others who create some too, and meanwhile the leader is killed again and again.
pub fn creations(seed: u64) -> Vec<(Duration, Event)> {
    let mut rng = Rng::new(seed, "creations");
    let mut at = Duration::from_secs(20);
    let mut events = vec![(at, Event::Desire { count: 20 })];
    for _ in 0..KILLS {
        // It takes a while until somebody else leads, and he should have begun when his turn comes.
        at += Duration::from_secs(18) + rng.up_to(Duration::from_secs(12));
        events.push((at - rng.up_to(Duration::from_secs(5)), Event::ForeignCreation));
        events.push((at, Event::Crash { replica: Replica::Leader }));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// What most often goes wrong in a run while the leader is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Nothing: nodes come and go, and the controller is well.
    Calm,
    Mixed,
    Stops,
    Crashes,
    Weather,
}

/// Something that goes wrong while the leader is at work.
fn trouble(rng: &mut Rng, mood: Mood) -> Event {
    let (replica, cloud) = (Replica::Leader, *rng.pick(&Cloud::ALL));
    let kind = match mood {
        Mood::Stops if !rng.one_in(4) => 2,
        Mood::Crashes if !rng.one_in(4) => *rng.pick(&[0, 9]),
        Mood::Weather if !rng.one_in(4) => *rng.pick(&[6, 6, 6, 11]),
        _ => rng.roll(13),
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
    // The first are what happens to nodes, the others are what happens to the controller.
    match rng.roll(if mood == Mood::Calm { 24 } else { 43 }) {
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
        _ => cloud_fault(rng, cloud),
    }
}
