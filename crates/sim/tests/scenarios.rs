//! Days that were written by hand: what happened once, or what people ask about. Each must end well, and one that guards against
//! something must be noticed where the guard is missing.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::time::Duration;

use plan::sabotage::{self, Sabotage};
use sim::clouds::Cloud;
use sim::event::{Asked, CloudFault, Death, Event, LeaseEdit, Replica};
use sim::run::run;

/// What a day is called, the guard that it is about, if any, and what happens in which second.
type Scenario = (&'static str, Option<Sabotage>, Vec<(u64, Event)>);

fn scenarios() -> Vec<Scenario> {
    let (compute, ocean, aws) = (Cloud::Compute, Cloud::Ocean, Cloud::Aws);
    let limited = CloudFault::RateLimited;
    vec![
        ("nothing happens", None, Vec::new()),
        (
            "a whole cloud goes dark, and comes back",
            Some(Sabotage::RecordEmptied),
            vec![(90, Event::Blackout { cloud: compute }), (150, Event::Mend)],
        ),
        (
            "a leader is stopped for longer than its lease, and a node is lost when it goes on",
            Some(Sabotage::LeaseWithoutPrecondition),
            vec![
                (440, Event::Stop { replica: Replica::Leader, seconds: 19 }),
                (485, Event::Lost { cloud: compute, node: 1 }),
            ],
        ),
        (
            "a person gives an address to a machine outside of the cluster",
            Some(Sabotage::AuthorityIgnored),
            vec![(590, Event::PersonMoves { cloud: compute, address: 2, node: None })],
        ),
        (
            "a person puts an address on a second interface of a node that is then drained",
            Some(Sabotage::WrongInterfaceDetached),
            vec![
                (90, Event::SecondInterface { address: 0, node: 4 }),
                (150, Event::Cordon { cloud: compute, node: 4 }),
            ],
        ),
        (
            "a cloud limits calls for a while",
            Some(Sabotage::UnknownReadAsFree),
            vec![(394, Event::CloudFault { cloud: ocean, fault: limited, times: 4 })],
        ),
        (
            "somebody deletes the Lease while a node is lost",
            None,
            vec![(60, Event::DeleteLease), (61, Event::Lost { cloud: aws, node: 0 })],
        ),
        (
            "somebody takes the Lease from its holder while addresses move",
            Some(Sabotage::EmptiedTakenForReleased),
            (2..6).flat_map(emptied).collect(),
        ),
        (
            "a node falls ill, and is well again before the grace is over",
            Some(Sabotage::GraceIgnored),
            vec![
                (120, Event::NotReady { cloud: compute, node: 0 }),
                (130, Event::Ready { cloud: compute, node: 0 }),
            ],
        ),
        (
            "leaders die of what they ask for the Lease",
            None,
            vec![
                (90, Event::CrashAtCall { asked: Asked::Lease, death: Death::Before }),
                (90, Event::Lost { cloud: aws, node: 0 }),
                (130, Event::CrashAtCall { asked: Asked::Lease, death: Death::After }),
                (130, Event::Lost { cloud: compute, node: 1 }),
            ],
        ),
        (
            "a tool takes addresses off the list of a pool that creates them",
            Some(Sabotage::UnlistedReplaced),
            vec![(243, Event::Unlist)],
        ),
        (
            "a forged status says that a pool created an address of somebody else",
            Some(Sabotage::ReleasedWithoutMark),
            vec![(243, Event::ForgeCreated)],
        ),
        (
            "what an old leader asked for arrives long after D, when another one has done something else",
            Some(Sabotage::ConditionForgotten),
            Cloud::ALL.into_iter().flat_map(overdue).collect(),
        ),
        (
            "what an old leader asked for arrives long after D, when nobody remembers it, and fails",
            None,
            failing_overdue(1),
        ),
        ("and so does what is asked for again", None, failing_overdue(3)),
        (
            "somebody deletes the definition of a kind, and installs it again",
            None,
            vec![
                (100, Event::DeleteKind { cloud: compute }),
                (110, Event::DeleteKind { cloud: ocean }),
                (170, Event::Recreate { cloud: compute }),
                (180, Event::Recreate { cloud: ocean }),
            ],
        ),
        (
            "leaders die right before and right after what they ask for",
            Some(Sabotage::JournalAfterCall),
            vec![
                (90, Event::CrashAtCall { asked: Asked::Cloud(compute), death: Death::Before }),
                (90, Event::Lost { cloud: compute, node: 0 }),
                (130, Event::CrashAtCall { asked: Asked::Cloud(compute), death: Death::After }),
                (130, Event::Lost { cloud: compute, node: 1 }),
                (170, Event::CrashAtCall { asked: Asked::Kubernetes, death: Death::Before }),
                (170, Event::Lost { cloud: compute, node: 2 }),
                (210, Event::CrashAtCall { asked: Asked::Kubernetes, death: Death::After }),
                (210, Event::Mend),
            ],
        ),
    ]
}

/// Addresses go off drained nodes of a cloud, one of them late, and its leader dies before it knows that.
fn overdue(cloud: Cloud) -> Vec<(u64, Event)> {
    let at = 60 * (1 + cloud as u64);
    let mut events = vec![(at, Event::Overdue { cloud, seconds: 12 })];
    events.extend((0..3).map(|node| (at, Event::Cordon { cloud, node })));
    events.push((at + 2, Event::Crash { replica: Replica::Leader }));
    events.extend((0..3).map(|node| (at + 30, Event::Uncordon { cloud, node })));
    events
}

/// An address of a lost node is to go to another one, which can't take it any more before it is asked for it again, and nor can others.
fn failing_overdue(times: u64) -> Vec<(u64, Event)> {
    let (cloud, at) = (Cloud::Azure, 80);
    let lost = [(at, Event::Overdue { cloud, seconds: 6 }), (at, Event::Lost { cloud, node: 1 })];
    let cordoned = (0..6).map(|node| (at + 1, Event::Cordon { cloud, node }));
    let fails = (at + 4, Event::CloudFault { cloud, fault: CloudFault::FailLate, times });
    let back = (0..6).map(|node| (at + 30, Event::Uncordon { cloud, node }));
    lost.into_iter().chain(cordoned).chain([fails]).chain(back).chain([(at + 150, Event::Mend)]).collect()
}

/// All nodes of a cloud but two are drained, and then somebody empties the Lease.
fn emptied(time: u64) -> Vec<(u64, Event)> {
    let (cloud, at) = (Cloud::Azure, 80 * time);
    let drained = (0..4).map(|node| (at, Event::Cordon { cloud, node }));
    let back = (0..4).map(|node| (at + 40, Event::Uncordon { cloud, node }));
    let emptied = (at, Event::EditLease { edit: LeaseEdit::Empty });
    drained.chain([emptied]).chain(back).collect()
}

/// Seeds decide what is not in the scripts: how long requests take, and who leads. A missing guard is noticed in one of so many.
const SEEDS: u64 = 12;

/// What is broken on purpose is so for the whole process, so one test goes through all of them.
#[test]
fn days_written_by_hand_end_well_and_are_noticed_where_their_guard_is_missing() {
    for (name, guard, events) in scenarios() {
        let script: Vec<_> = events.into_iter().map(|(at, event)| (Duration::from_secs(at), event)).collect();
        sabotage::choose(None);
        let outcome = run(0, &script);
        assert!(
            outcome.violations.is_empty(),
            "{name}: {:?}\n{}",
            outcome.violations,
            outcome.story.join("\n")
        );
        if let Some(guard) = guard {
            sabotage::choose(Some(guard));
            let first = (0..SEEDS).find_map(|seed| run(seed, &script).violations.into_iter().next());
            println!("{name}, with {guard:?}: {}", first.expect("it is noticed"));
        }
    }
}
