//! The Lease: who takes it, for how long it is kept, and what people can do to it. The controller's own candidates, on the
//! simulated apiserver, in virtual time.
#![allow(clippy::unwrap_used, missing_docs, reason = "this is a test")]

use std::sync::Arc;
use std::time::Duration;

use controller::leadership::fence::Fence;
use controller::leadership::lease::{
    Candidate, EPOCH_ANNOTATION, FLIPOP_LEASE, HANDED_OVER_ANNOTATION, Options, RELEASED_ANNOTATION, RETRY,
};
use plan::Epoch;
use plan::leadership::Gained;
use serde_json::{Value, json};
use sim::clouds::clouds;
use sim::edges::edges;
use sim::universe::{Process, Universe};
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(5);

/// How long a few requests take.
const MOMENT: Duration = Duration::from_millis(500);

const MINUTE: Duration = Duration::from_secs(60);

fn universe() -> Arc<Universe> {
    Universe::new(0, clouds())
}

/// A candidate, and its fence.
fn candidate(universe: &Arc<Universe>, number: u64) -> (Candidate, Arc<Fence>) {
    let process = Process::new(number, Arc::clone(universe), 0);
    let options = Options {
        identity: format!("p{number}"),
        lease: ("kube-system".into(), "lease".into()),
        duration: LEASE,
        flipop_namespace: Some("kube-system".into()),
    };
    let edges = edges(universe, &process);
    (Candidate::new(edges.leasing, options, edges.clock, Arc::clone(&edges.fence)), edges.fence)
}

/// One that leads in an epoch.
async fn leader(universe: &Arc<Universe>, number: u64, epoch: i64) -> (Candidate, Arc<Fence>) {
    let (mut candidate, fence) = candidate(universe, number);
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

/// How a candidate gains the Lease, and how long that takes.
async fn gains(candidate: &mut Candidate) -> (Gained, Duration) {
    let began = Instant::now();
    (candidate.win().await, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_there_is_made_and_nobody_knows_what_was_before() {
    let universe = universe();
    let (mut first, fence) = candidate(&universe, 1);
    assert_eq!(fence.remaining(), None);
    let (gained, took) = gains(&mut first).await;
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
async fn a_lease_that_was_given_up_in_order_is_seen_and_taken_at_once() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 7).await;
    let (mut second, _) = candidate(&universe, 2);
    let release = async {
        sleep(RETRY + MOMENT).await;
        first.release(None).await.unwrap();
        Instant::now()
    };
    let (released, (gained, _)) = tokio::join!(release, gains(&mut second));
    assert_eq!(gained, Gained::Released);
    assert!(released.elapsed() < MOMENT);
    assert_eq!(fence.remaining(), None, "whoever gave it up does nothing any more");
    assert_eq!(lease(&universe)["spec"]["holderIdentity"], "p2");
    assert_eq!(lease(&universe)["spec"]["leaseTransitions"], 1);
    assert_eq!(second.last_epoch(), Epoch(7));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_is_taken_after_its_duration_and_not_before() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    let (gained, took) = gains(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::TakenOver);
    assert!(took >= LEASE && took < LEASE + RETRY + MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_is_kept_and_its_fence_stays_open() {
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
        () = first.keep() => panic!("it is kept"),
        _ = second.win() => panic!("it is held by another"),
        () = looks => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cant_renew_ends_before_its_lease_does() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    universe.kubernetes_storm(1, MINUTE);
    let (began, margin) = (Instant::now(), plan::leadership::MARGIN);
    // Somebody else may lead a lease and D later, so what closes the fence is its own clock.
    let closes = async {
        sleep(LEASE - margin).await;
        assert_eq!(fence.remaining(), None);
    };
    tokio::join!(first.keep(), closes);
    // The last try may have begun right before its deadline, and is waited for.
    let deadline = LEASE * 2 / 3;
    assert!(began.elapsed() >= deadline && began.elapsed() < deadline + RETRY * 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_somebody_takes_ends_with_its_next_renewal() {
    for holder in ["p2", ""] {
        let universe = universe();
        let (mut first, fence) = leader(&universe, 1, 1).await;
        edit(&universe, |lease| lease["spec"]["holderIdentity"] = holder.into());
        timeout(RETRY + MOMENT, first.keep()).await.unwrap();
        assert_eq!(fence.remaining(), None);
        first.release(None).await.unwrap();
        assert_eq!(lease(&universe)["spec"]["holderIdentity"], holder, "it is not ours to give up");
        assert!(lease(&universe)["metadata"]["annotations"][RELEASED_ANNOTATION].is_null());
    }
}

#[tokio::test(start_paused = true)]
async fn what_people_change_of_a_lease_that_is_held_is_put_back_and_what_they_note_stays() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 7).await;
    edit(&universe, |lease| {
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        lease["metadata"]["annotations"] = json!({"note": "mine", RELEASED_ANNOTATION: "0"});
    });
    // One renewal is refused, because somebody wrote in between.
    timeout(RETRY * 2 + MOMENT, first.keep()).await.unwrap_err();
    let lease = lease(&universe);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 5);
    assert_eq!(lease["metadata"]["annotations"], json!({"note": "mine", EPOCH_ANNOTATION: "7"}));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_emptied_was_not_given_up_also_where_one_before_it_was() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 1).await;
    first.release(None).await.unwrap();
    // People can make two leaders have the same epoch.
    let (_second, _) = leader(&universe, 2, 1).await;
    edit(&universe, |lease| lease["spec"]["holderIdentity"] = "".into());
    let (gained, took) = gains(&mut candidate(&universe, 3).0).await;
    assert_eq!(gained, Gained::Unknown(LEASE));
    assert!(took < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_made_shorter_is_waited_out_like_ours() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    edit(&universe, |lease| lease["spec"]["leaseDurationSeconds"] = 1.into());
    let (gained, took) = gains(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::TakenOver);
    assert!(took >= LEASE);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_given_up_and_that_another_took_since_is_not_given_up() {
    let universe = universe();
    let (mut first, _) = leader(&universe, 1, 1).await;
    first.release(None).await.unwrap();
    // Others count as client-go does, and know nothing of our annotations.
    edit(&universe, |lease| lease["spec"]["leaseTransitions"] = 1.into());
    assert_eq!(candidate(&universe, 2).0.win().await, Gained::Unknown(LEASE));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_have_counted_to_is_no_epoch_and_no_transition_too_many() {
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
async fn a_leader_whose_lease_is_deleted_and_made_anew_by_another_ends() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    universe.api.delete("leases", "kube-system", "lease", universe.now());
    let (_second, _) = leader(&universe, 2, 1).await;
    timeout(RETRY + MOMENT, first.keep()).await.unwrap();
    assert_eq!(fence.remaining(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_in_our_own_name_is_one_whose_answer_was_lost() {
    let universe = universe();
    let (_first, _) = leader(&universe, 1, 1).await;
    edit(&universe, |lease| lease["spec"]["holderIdentity"] = "p2".into());
    let (gained, took) = gains(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::Unknown(LEASE));
    assert!(took < MOMENT);
}

#[tokio::test(start_paused = true)]
async fn whoever_hands_over_names_its_node_until_another_one_leads() {
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
async fn an_epoch_is_written_once_the_weather_allows_it_and_not_by_who_lost_the_lease() {
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

/// FLIPOP's lease, as its leader writes it.
fn flipop(universe: &Universe, holder: &str) {
    let lease = json!({
        "metadata": {"name": FLIPOP_LEASE, "namespace": "kube-system"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 9},
    });
    universe.api.create("leases", &lease, universe.now());
}

#[tokio::test(start_paused = true)]
async fn while_flipop_leads_we_stand_by_and_then_wait_for_what_it_may_have_sent() {
    let universe = universe();
    let (mut before, _) = leader(&universe, 1, 1).await;
    before.release(None).await.unwrap();
    flipop(&universe, "flipop-1");
    let (gained, took) = gains(&mut candidate(&universe, 2).0).await;
    assert_eq!(gained, Gained::TakenOver, "it gave nothing up to us");
    assert!(took >= Duration::from_secs(9) && took < Duration::from_secs(9) + RETRY + MOMENT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flipop_that_leads_nobody_holds_nobody_up() {
    let universe = universe();
    let (mut before, _) = leader(&universe, 1, 1).await;
    before.release(None).await.unwrap();
    flipop(&universe, "");
    assert_eq!(candidate(&universe, 2).0.win().await, Gained::Released);
}

#[tokio::test(start_paused = true)]
async fn a_leader_gives_way_to_a_flipop_that_appears() {
    let universe = universe();
    let (mut first, fence) = leader(&universe, 1, 1).await;
    flipop(&universe, "flipop-1");
    timeout(RETRY + MOMENT, first.keep()).await.unwrap();
    assert_eq!(fence.remaining(), None);
}
