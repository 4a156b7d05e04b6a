//! Leader election: how candidates acquire, renew and release the Lease, and what happens when people edit it. The
//! tests run the controller's own candidates on the simulated apiserver, in virtual time.
#![allow(clippy::unwrap_used, missing_docs, reason = "this is a test")]

use std::sync::Arc;
use std::time::Duration;

use controller::leadership::fence::Fence;
use controller::leadership::lease::{
    Candidate, EPOCH_ANNOTATION, FLIPOP_LEASE, HANDED_OVER_ANNOTATION, Options, RELEASED_ANNOTATION, RETRY,
};
use controller::metrics::{Identity, Metrics};
use plan::Epoch;
use plan::leadership::Gained;
use serde_json::{Value, json};
use sim::clouds::clouds;
use sim::edges::edges;
use sim::universe::{Process, Universe};
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(5);

/// Longer than a few requests take.
const MOMENT: Duration = Duration::from_millis(500);

const MINUTE: Duration = Duration::from_secs(60);

fn universe() -> Arc<Universe> {
    Universe::new(0, clouds())
}

/// A candidate and its fence.
fn candidate(universe: &Arc<Universe>, number: u64) -> (Candidate, Arc<Fence>) {
    candidate_for(universe, number, LEASE)
}

/// A candidate for a lease of this duration, and its fence.
fn candidate_for(universe: &Arc<Universe>, number: u64, duration: Duration) -> (Candidate, Arc<Fence>) {
    let process = Process::new(number, Arc::clone(universe), 0);
    let options = Options {
        identity: format!("p{number}"),
        lease: ("kube-system".into(), "lease".into()),
        duration,
        flipop_namespace: Some("kube-system".into()),
    };
    let metrics = Metrics::new(&Identity::default()).unwrap();
    let edges = edges(universe, &process, &metrics);
    let fence = Arc::clone(&edges.fence);
    (Candidate::new(edges.leasing, edges.watching.watches, options, edges.clock, edges.fence), fence)
}

/// A candidate that leads with an epoch, and its fence.
async fn leader(universe: &Arc<Universe>, number: u64, epoch: i64) -> (Candidate, Arc<Fence>) {
    leader_for(universe, number, epoch, LEASE).await
}

/// A candidate that leads with an epoch and a lease of this duration, and its fence.
async fn leader_for(
    universe: &Arc<Universe>,
    number: u64,
    epoch: i64,
    duration: Duration,
) -> (Candidate, Arc<Fence>) {
    let (mut candidate, fence) = candidate_for(universe, number, duration);
    candidate.win().await;
    candidate.set_epoch(Epoch(epoch)).await.unwrap();
    (candidate, fence)
}

fn lease(universe: &Universe) -> Value {
    Value::clone(&universe.api.one("leases", "kube-system", "lease").unwrap())
}

fn edit(universe: &Universe, change: impl FnOnce(&mut Value)) {
    universe.api.edit("leases", "kube-system", "lease", universe.now(), change);
}

/// How a candidate acquires the Lease, and how long that takes.
async fn acquire_timed(candidate: &mut Candidate) -> (Gained, Duration) {
    let began = Instant::now();
    (candidate.win().await, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_created_lease_has_an_unknown_previous_holder() {
    let universe = universe();
    let (mut first, fence) = candidate(&universe, 1);
    assert_eq!(fence.remaining(), None);
    let (gained, took) = acquire_timed(&mut first).await;
    assert_eq!(gained, Gained::Unknown(LEASE));
    assert!(took < MOMENT);
    let spec = &lease(&universe)["spec"];
    assert_eq!(spec["holderIdentity"], "p1");
    assert_eq!((&spec["leaseDurationSeconds"], &spec["leaseTransitions"]), (&json!(5), &json!(0)));
    assert!(spec["renewTime"].is_string() && spec["acquireTime"].is_string());
    let left = fence.remaining().unwrap();
    assert!(left <= LEASE - plan::leadership::MARGIN && left > LEASE - plan::leadership::MARGIN - MOMENT);
    assert_eq!(first.last_epoch(), Epoch(0));
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_acquired_at_once() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 7).await;
    let (mut second, _) = candidate(&universe, 2);
    let release = async {
        sleep(RETRY + MOMENT).await;
        first.release(None).await.unwrap();
        Instant::now()
    };
    let (released, (gained, _)) = tokio::join!(release, acquire_timed(&mut second));
    assert_eq!(gained, Gained::Released);
    assert!(released.elapsed() < MOMENT);
    assert_eq!(fence.remaining(), None, "the fence of the old leader is closed");
    assert_eq!(lease(&universe)["spec"]["holderIdentity"], "p2");
    assert_eq!(lease(&universe)["spec"]["leaseTransitions"], 1);
    assert_eq!(second.last_epoch(), Epoch(7));
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_taken_over_after_its_duration() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    let (gained, took) = acquire_timed(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::TakenOver);
    assert!(took >= LEASE && took < LEASE + RETRY + MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_renews_keeps_the_lease_and_an_open_fence() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    let (mut second, _) = candidate(&universe, 2);
    let looks = async {
        for _ in 0..120 {
            sleep(MOMENT).await;
            assert!(fence.remaining().is_some_and(|left| left > Duration::from_secs(2)));
        }
    };
    tokio::select! {
        () = first.keep() => panic!("the leader lost the Lease"),
        _ = second.win() => panic!("another candidate acquired the Lease"),
        () = looks => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cant_renew_stops_before_its_lease_expires() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    universe.kubernetes_storm(1, MINUTE);
    let (began, margin) = (Instant::now(), plan::leadership::MARGIN);
    // Another process may act after the lease duration and D (`TAKEOVER_SECONDS`), so the leader's own clock must close
    // the fence.
    let closes = async {
        sleep(LEASE - margin).await;
        assert_eq!(fence.remaining(), None);
    };
    tokio::join!(first.keep(), closes);
    // The leader may start the last try right before the deadline, and waits for it.
    let deadline = LEASE * 2 / 3;
    assert!(began.elapsed() >= deadline && began.elapsed() < deadline + RETRY * 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_for_long_does_not_lead_on_although_its_lease_is_free() {
    // The leader is stopped in the pause between two renewals, or while a renewal is in flight.
    let in_flight = RETRY + Duration::from_millis(1);
    for (duration, before) in [(LEASE, MOMENT), (MINUTE, MOMENT), (MINUTE, in_flight)] {
        for (stopped, leads_on) in [(10, true), (16, false)] {
            let universe = universe();
            let (mut first, fence) = leader_for(&universe, 1, 1, duration).await;
            let mut keeps = std::pin::pin!(first.keep());
            timeout(before, &mut keeps).await.unwrap_err();
            // Nothing polls the future meanwhile, as if the process had received SIGSTOP.
            sleep(Duration::from_secs(stopped)).await;
            let is_open = fence.remaining().is_some();
            assert_eq!(is_open, leads_on && duration == MINUTE, "{duration:?} {before:?} {stopped} s");
            let ends = timeout(RETRY + MOMENT, &mut keeps).await.is_ok();
            assert_eq!(ends, !leads_on, "{duration:?} {before:?} {stopped} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_long_lease_survives_an_apiserver_that_fails_for_half_a_minute() {
    let universe = universe();
    let (mut first, fence) = leader_for(&universe, 1, 1, MINUTE).await;
    universe.kubernetes_storm(1, MINUTE / 2);
    timeout(2 * MINUTE, first.keep()).await.unwrap_err();
    assert!(fence.remaining().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_at_the_next_renewal_if_the_holder_changes() {
    for holder in ["p2", ""] {
        let universe = universe();
        let (mut first, fence) = leader(&universe, 1, 1).await;
        edit(&universe, |lease| lease["spec"]["holderIdentity"] = holder.into());
        timeout(RETRY + MOMENT, first.keep()).await.unwrap();
        assert_eq!(fence.remaining(), None);
        first.release(None).await.unwrap();
        assert_eq!(lease(&universe)["spec"]["holderIdentity"], holder, "only its holder may release it");
        assert!(lease(&universe)["metadata"]["annotations"][RELEASED_ANNOTATION].is_null());
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_reverts_edits_and_keeps_other_annotations() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 7).await;
    edit(&universe, |lease| {
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        lease["metadata"]["annotations"] = json!({"note": "mine", RELEASED_ANNOTATION: "0"});
    });
    // One renewal fails with a conflict, because of the edit.
    timeout(RETRY * 2 + MOMENT, first.keep()).await.unwrap_err();
    let lease = lease(&universe);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 5);
    assert_eq!(lease["metadata"]["annotations"], json!({"note": "mine", EPOCH_ANNOTATION: "7"}));
}

#[tokio::test(start_paused = true)]
async fn an_emptied_lease_does_not_count_as_released() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 1).await;
    first.release(None).await.unwrap();
    // The earlier release must not count, even if both leaders have the same epoch, as after edits by people.
    let (_second, _) = leader(&universe, 2, 1).await;
    edit(&universe, |lease| lease["spec"]["holderIdentity"] = "".into());
    let (gained, took) = acquire_timed(&mut candidate(&universe, 3).0).await;
    assert_eq!(gained, Gained::Unknown(LEASE));
    assert!(took < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn a_shortened_lease_expires_after_the_configured_duration() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    edit(&universe, |lease| lease["spec"]["leaseDurationSeconds"] = 1.into());
    let (gained, took) = acquire_timed(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::TakenOver);
    assert!(took >= LEASE);
}

#[tokio::test(start_paused = true)]
async fn a_release_mark_does_not_count_after_another_transition() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 1).await;
    first.release(None).await.unwrap();
    // Other holders increment the transitions as client-go does, but leave the controller's annotations as they are.
    edit(&universe, |lease| lease["spec"]["leaseTransitions"] = 1.into());
    assert_eq!(candidate(&universe, 2).0.win().await, Gained::Unknown(LEASE));
}

#[tokio::test(start_paused = true)]
async fn implausible_epochs_and_transitions_are_ignored() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    edit(&universe, |lease| {
        lease["metadata"]["annotations"][EPOCH_ANNOTATION] = i64::MAX.to_string().into();
        lease["spec"]["leaseTransitions"] = i32::MAX.into();
    });
    let (mut second, _) = candidate(&universe, 2);
    assert_eq!(second.win().await, Gained::TakenOver);
    assert_eq!(second.last_epoch(), Epoch(0));
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_if_another_one_recreates_the_lease() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    universe.api.delete("leases", "kube-system", "lease", universe.now());
    let (_second, _) = leader(&universe, 2, 1).await;
    timeout(RETRY + MOMENT, first.keep()).await.unwrap();
    assert_eq!(fence.remaining(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_with_our_own_name_is_from_a_write_without_response() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    edit(&universe, |lease| lease["spec"]["holderIdentity"] = "p2".into());
    let (gained, took) = acquire_timed(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::Unknown(LEASE));
    assert!(took < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_names_the_node_until_the_next_epoch_is_set() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 1).await;
    first.release(Some(&"edge-1".into())).await.unwrap();
    let (mut second, _) = candidate(&universe, 2);
    second.win().await;
    assert!(second.was_handed_over_from(&"edge-1".into()) && !second.was_handed_over_from(&"edge-2".into()));
    timeout(MINUTE, second.keep()).await.unwrap_err();
    assert_eq!(lease(&universe)["metadata"]["annotations"][HANDED_OVER_ANNOTATION], "edge-1");
    second.set_epoch(Epoch(2)).await.unwrap();
    assert!(lease(&universe)["metadata"]["annotations"][HANDED_OVER_ANNOTATION].is_null());
    assert!(!second.was_handed_over_from(&"edge-1".into()));
}

#[tokio::test(start_paused = true)]
async fn an_epoch_write_is_retried_but_not_after_the_lease_is_lost() {
    let universe = universe();
    let (mut first, _) = candidate(&universe, 1);
    first.win().await;
    universe.kubernetes_storm(1, Duration::from_secs(2));
    first.set_epoch(Epoch(3)).await.unwrap();
    assert_eq!(lease(&universe)["metadata"]["annotations"][EPOCH_ANNOTATION], "3");
    edit(&universe, |lease| lease["spec"]["holderIdentity"] = "p2".into());
    timeout(LEASE, first.set_epoch(Epoch(4))).await.unwrap().unwrap_err();
    assert_eq!(lease(&universe)["metadata"]["annotations"][EPOCH_ANNOTATION], "3");
}

/// Creates FLIPOP's lease as FLIPOP's leader writes it.
fn flipop(universe: &Universe, holder: &str) {
    let lease = json!({
        "metadata": {"name": FLIPOP_LEASE, "namespace": "kube-system"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 9},
    });
    universe.api.create("leases", &lease, universe.now());
}

#[tokio::test(start_paused = true)]
async fn while_flipop_leads_a_candidate_waits_and_then_takes_over() {
    let universe = universe();
    let (mut before, _) = leader(&universe, 1, 1).await;
    before.release(None).await.unwrap();
    flipop(&universe, "flipop-1");
    let (gained, took) = acquire_timed(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::TakenOver, "FLIPOP does not hand over to the controller");
    assert!(took >= Duration::from_secs(9) && took < Duration::from_secs(9) + RETRY + MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flipop_lease_without_a_holder_does_not_delay_candidates() {
    let universe = universe();
    let (mut before, _) = leader(&universe, 1, 1).await;
    before.release(None).await.unwrap();
    flipop(&universe, "");
    assert_eq!(candidate(&universe, 2).0.win().await, Gained::Released);
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_when_flipop_starts_to_lead() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    flipop(&universe, "flipop-1");
    timeout(RETRY + MOMENT, first.keep()).await.unwrap();
    assert_eq!(fence.remaining(), None);
}

/// A candidate that sees no change of the Lease reads it earlier than this.
const SILENT: Duration = Duration::from_secs(8);

#[tokio::test(start_paused = true)]
async fn a_silent_or_refused_watch_hardly_delays_a_takeover() {
    for is_silent in [true, false] {
        let universe = universe();
        let (mut first, _) = leader(&universe, 1, 1).await;
        let (mut second, _) = candidate(&universe, 2);
        match is_silent {
            true => universe.silence_watches(MINUTE),
            false => universe.make_unreadable("leases", MINUTE),
        }
        let dies = async {
            let _ = timeout(MINUTE / 2, first.keep()).await;
            Instant::now()
        };
        let (died, gained) = tokio::join!(dies, second.win());
        assert_eq!(gained, Gained::TakenOver);
        let took = died.elapsed();
        assert!(took < LEASE + SILENT + MOMENT, "silent: {is_silent}, {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_is_noticed_although_the_watch_is_silent_or_refused() {
    for is_silent in [true, false] {
        let universe = universe();
        let (mut first, _) = leader(&universe, 1, 1).await;
        let (mut second, _) = candidate(&universe, 2);
        match is_silent {
            true => universe.silence_watches(MINUTE),
            false => universe.make_unreadable("leases", MINUTE),
        }
        let release = async {
            let _ = timeout(MINUTE / 4, first.keep()).await;
            first.release(None).await.unwrap();
            Instant::now()
        };
        let (released, gained) = tokio::join!(release, second.win());
        assert_eq!(gained, Gained::Released);
        let took = released.elapsed();
        let longest = if is_silent { SILENT } else { RETRY + MOMENT };
        assert!(took < longest, "silent: {is_silent}, {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_when_flipop_leads_although_the_watch_is_silent_or_refused() {
    for is_silent in [true, false] {
        let universe = universe();
        let (mut first, fence) = leader(&universe, 1, 1).await;
        match is_silent {
            true => universe.silence_watches(MINUTE * 2),
            false => universe.make_unreadable("leases", MINUTE * 2),
        }
        let _ = timeout(MINUTE / 2, first.keep()).await;
        flipop(&universe, "flipop-1");
        let longest = if is_silent { Duration::from_secs(30) } else { RETRY };
        timeout(longest + RETRY + MOMENT, first.keep()).await.unwrap();
        assert_eq!(fence.remaining(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_if_etcd_was_restored_from_a_copy() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    let copy = universe.api.backup();
    let _ = timeout(MINUTE, first.keep()).await;
    universe.api.restore(copy);
    timeout(RETRY + MOMENT, first.keep()).await.unwrap();
    assert_eq!(fence.remaining(), None);
}
