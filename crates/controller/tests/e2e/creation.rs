//! Addresses that are asked of the cloud, and what a crash leaves of them.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testbed::cluster::eventually;
use testbed::fake::Refusal;
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::Deed;

use crate::rig::{Rig, SUCCESSOR};

const SOON: Duration = Duration::from_secs(20);
const POOL: &str = "floatingippool/made";

/// A pool that creates its addresses, for nodes with this label.
fn pool(desired: usize, node_label: &str, policy: &str) -> String {
    format!(
        "apiVersion: flipop.digitalocean.com/v1alpha1
kind: FloatingIPPool
metadata: {{name: made, namespace: default}}
spec:
  provider: digitalocean
  region: nyc3
  desiredIPs: {desired}
  match: {{nodeLabel: '{node_label}'}}
  policy: {{{policy}}}
"
    )
}

fn listed(rig: &Rig) -> Vec<String> {
    let ips = rig.get(POOL)["spec"]["ips"].as_array().cloned().unwrap_or_default();
    ips.iter().map(|ip| ip.as_str().unwrap().to_owned()).collect()
}

fn list(rig: &Rig, ips: &[String]) {
    let patch = json!({"spec": {"ips": ips}}).to_string();
    rig.kubectl(&["patch", POOL, "--type=merge", "-p", &patch]);
}

/// The condition that says what a person has to do.
fn stalled(rig: &Rig) -> Option<Value> {
    let conditions = rig.get(POOL)["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_stalled = |condition: &Value| condition["type"] == "Stalled" && condition["status"] == "True";
    conditions.into_iter().find(is_stalled)
}

pub fn in_account(rig: &Rig) -> BTreeSet<String> {
    rig.clouds.digitalocean.with(|account| account.reserved_ips()).into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_addresses_are_created_up_to_the_desired_number_and_given_back_when_that_is_asked_for() {
    let (rig, _controller) = Rig::start().await;
    let before = in_account(&rig);
    rig.control_plane.apply(&pool(5, "doks.digitalocean.com/node-pool=work", "")).unwrap();
    eventually("the spec lists five", SOON, async || Ok(listed(&rig).len() == 5)).await.unwrap();
    eventually("all nodes have one", SOON, async || {
        let status = rig.get(POOL)["status"].clone();
        Ok(status["summary"]["attached"] == 3 && status["moves"].is_null())
    })
    .await
    .unwrap();
    let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!(&in_account(&rig) - &before, ours, "exactly those that the spec lists were created");
    let object = rig.get(POOL);
    for status in object["status"]["addresses"].as_array().unwrap() {
        assert_eq!(status["created"], true, "{status:#}");
    }
    assert!(object["metadata"]["finalizers"].is_null(), "nothing is under way, so it may go at any time");

    rig.control_plane
        .apply(&pool(3, "doks.digitalocean.com/node-pool=work", "releaseCreated: WhenUnneeded"))
        .unwrap();
    eventually("the two that nobody holds are given back", SOON, async || {
        Ok(listed(&rig).len() == 3 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let kept: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!(&in_account(&rig) - &before, kept);
    assert!(before.is_subset(&in_account(&rig)), "what we did not create is never released");
}

/// Creates a pool that creates one address and releases those beyond, lists another one in it, and forges its status: whoever can write
/// that says that the pool created both. Returns the pool's own address.
pub async fn forge_created(rig: &Rig, victim: &str) -> String {
    rig.control_plane.apply(&pool(1, "nobody=has-this", "releaseCreated: WhenUnneeded")).unwrap();
    eventually("the pool creates its address", SOON, async || {
        Ok(listed(rig).len() == 1 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap();
    let own = listed(rig)[0].clone();
    list(rig, &[own.clone(), victim.to_owned()]);
    let addresses = || rig.get(POOL)["status"]["addresses"].as_array().cloned().unwrap_or_default();
    eventually("the status has both addresses", SOON, async || {
        Ok(addresses().iter().any(|status| status["address"] == victim))
    })
    .await
    .unwrap();
    let mut all = addresses();
    all.iter_mut().for_each(|status| status["created"] = true.into());
    let forged = json!({"status": {"addresses": all}}).to_string();
    rig.kubectl(&["patch", POOL, "--subresource=status", "--type=merge", "-p", &forged]);
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_status_releases_no_address() {
    let (rig, _controller) = Rig::start().await;
    let cloud = &rig.clouds.digitalocean;
    cloud.with(|account| account.add_reserved_ip("198.51.100.200", "nyc3"));
    let victim = "198.51.100.200".to_owned();
    let own = forge_created(&rig, &victim).await;
    eventually("it is reported", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let condition = stalled(&rig).unwrap();
    assert_eq!(condition["reason"], "NotReleased", "{condition:#}");
    assert!(condition["message"].as_str().unwrap().contains(&victim), "{condition:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let released: Vec<_> = cloud.ledger().done.into_iter().filter(|done| is_release(&done.deed)).collect();
    assert!(released.is_empty() && in_account(&rig).contains(&victim), "{released:?}");

    // The pool's own address goes once it is beyond the number, because the provider shows the pool's mark on it.
    list(&rig, &[victim.clone(), own.clone()]);
    eventually("its own is released", SOON, async || Ok(!in_account(&rig).contains(&own)))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    assert!(in_account(&rig).contains(&victim));
}

pub fn is_release(deed: &Deed) -> bool {
    matches!(deed, Deed::Released { .. })
}

/// Wants one address more of a controller that dies at the given request; tells whether it did.
async fn dies_at(rig: &Rig, failpoint: &str, desired: usize) -> bool {
    let provoke = || rig.control_plane.apply(&pool(desired, "nobody=has-this", "")).unwrap();
    let is_done = || listed(rig).len() == desired && rig.get(POOL)["status"]["moves"].is_null();
    rig.outlives(failpoint, POOL, provoke, is_done).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_survives_sigkill_before_and_after_every_request_beside_a_foreign_creator() {
    let rig = Rig::prepare().await;
    let mut foreign = in_account(&rig);
    let (mut requests, mut desired) = (0, 0);
    for number in 1.. {
        let mut died = false;
        for when in ["before", "after"] {
            desired += 1;
            let stranger = format!("198.51.100.{desired}");
            rig.clouds.digitalocean.with(|account| account.add_reserved_ip(&stranger, "nyc3"));
            foreign.insert(stranger);
            died |= dies_at(&rig, &format!("kill-{when}:{number}"), desired).await;
            let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
            assert_eq!(&in_account(&rig) - &foreign, ours, "kill-{when}:{number} leaked or lost an address");
            assert!(foreign.is_subset(&in_account(&rig)), "a foreign address was released");
        }
        if !died {
            break;
        }
        requests = number;
    }
    println!(
        "killed before and after each of {requests} requests of a creation: {desired} asked for, 0 leaked, 0 lost"
    );
    assert!(requests >= 5, "a creation takes more requests than {requests}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_eight_times_while_creating_twenty_addresses_beside_a_foreign_creator_none_is_leaked() {
    let rig = Rig::prepare().await;
    let cloud = &rig.clouds.digitalocean;
    // Otherwise a minute goes by for every twelve of them.
    cloud.enforce_limits(false);
    let mut foreign = in_account(&rig);
    rig.control_plane.apply(&pool(20, "nobody=has-this", "")).unwrap();
    let environment = [("LEASE_DURATION", "3"), ("TAKEOVER_SECONDS", "1")];
    for kill in 0..8_u8 {
        let mut doomed = rig.controller("ip-address-controller", &environment);
        let before = in_account(&rig).len();
        let stranger = format!("198.51.100.{}", kill + 1);
        cloud.with(|account| account.add_reserved_ip(&stranger, "nyc3"));
        foreign.insert(stranger);
        // It dies at another moment each time, once it has begun to create or has nothing left to do.
        let begun = eventually("a creation has begun", SOON, async || {
            Ok(in_account(&rig).len() > before + 1 || listed(&rig).len() == 20)
        });
        begun.await.unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
        tokio::time::sleep(Duration::from_millis(u64::from(kill) * 7)).await;
        doomed.process.signal(Signal::KILL).unwrap();
        doomed.process.wait(Duration::from_secs(5)).unwrap();
    }
    let _survivor = rig.controller("ip-address-controller", &SUCCESSOR);
    eventually("all are listed", Duration::from_secs(60), async || {
        Ok(listed(&rig).len() == 20 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
    let made = &in_account(&rig) - &foreign;
    println!("killed 8 times: {} created, {} leaked", made.len(), (&made - &ours).len());
    assert_eq!((made.len(), &made - &ours), (20, BTreeSet::new()));
    assert!(foreign.is_subset(&in_account(&rig)), "a foreign address was released");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_takes_the_list_back_makes_nobody_buy_addresses_and_is_told_of() {
    let rig = Rig::prepare().await;
    let _controller = rig.controller("ip-address-controller", &[("TAKEOVER_SECONDS", "1")]);
    rig.control_plane.apply(&pool(3, "nobody=has-this", "")).unwrap();
    eventually("all are listed, and that is over", SOON, async || {
        Ok(listed(&rig).len() == 3 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap();
    let (made, bought) = (listed(&rig), in_account(&rig));
    rig.kubectl(&["patch", POOL, "--type=merge", "-p", "{\"spec\":{\"ips\":null}}"]);
    eventually("it is reported", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let told = stalled(&rig).unwrap();
    assert_eq!(told["reason"], "UnlistedAddresses");
    assert!(made.iter().all(|ip| told["message"].as_str().unwrap().contains(ip)), "{told:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((in_account(&rig), listed(&rig)), (bought.clone(), Vec::new()), "it was not replaced");

    // Two are put back as the condition says, and one is to be replaced.
    let [kept @ .., given_up] = made.as_slice() else { panic!("none was made") };
    let annotation = format!("netinfra.darkbrains.com/not-created={given_up}");
    rig.kubectl(&["annotate", POOL, &annotation]);
    list(&rig, kept);
    eventually("a third is created", SOON, async || Ok(listed(&rig).len() == 3)).await.unwrap();
    assert!(!listed(&rig).contains(given_up));
    assert_eq!(in_account(&rig).len(), bought.len() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_not_see_projects_any_more_makes_nobody_buy_addresses() {
    let rig = Rig::prepare().await;
    let short = [("LEASE_DURATION", "3"), ("TAKEOVER_SECONDS", "1")];
    let first = rig.controller("ip-address-controller", &short);
    rig.control_plane.apply(&pool(2, "nobody=has-this", "")).unwrap();
    eventually("both are listed, and that is over", SOON, async || {
        Ok(listed(&rig).len() == 2 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap();
    drop(first);
    let bought = in_account(&rig);
    let tag = format!("ip-address-controller-{}", rig.get(POOL)["metadata"]["uid"].as_str().unwrap());
    assert_eq!(rig.get(POOL)["status"]["creationTag"], tag.as_str());

    // Whoever leads next can't see that the two are this pool's, which a tool has taken off its list meanwhile.
    let forbidden = Fault::Refuse(Refusal::Forbidden("this token may not use projects".into()));
    rig.clouds.digitalocean.inject(Rule { times: usize::MAX, ..Rule::next("projects.list", forbidden) });
    rig.kubectl(&["patch", POOL, "--type=merge", "-p", "{\"spec\":{\"ips\":null}}"]);
    let _second = rig.controller("ip-address-controller", &SUCCESSOR);
    eventually("it is reported", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    assert_eq!(stalled(&rig).unwrap()["reason"], "NoTags");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(in_account(&rig), bought, "nothing was bought");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tags_a_lost_answer_is_reported_with_its_candidates_and_resolved_by_a_person() {
    let rig = Rig::prepare().await;
    let cloud = &rig.clouds.digitalocean;
    let forbidden = Fault::Refuse(Refusal::Forbidden("this token may not use projects".into()));
    cloud.inject(Rule { times: usize::MAX, ..Rule::next("projects.list", forbidden) });
    cloud.inject(Rule { skip: 1, ..Rule::next("reserved_ips.create", Fault::LoseReply) });
    let before = in_account(&rig);
    let _controller = rig.controller("ip-address-controller", &[("TAKEOVER_SECONDS", "1")]);
    rig.control_plane.apply(&pool(3, "nobody=has-this", "")).unwrap();
    eventually("it is reported", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let told = stalled(&rig).unwrap();
    assert_eq!(told["reason"], "AmbiguousCreation");
    let made = &in_account(&rig) - &before;
    let known: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!((made.len(), known.len()), (2, 1), "the first answer came, the second was lost");
    let candidate = (&made - &known).into_iter().next().unwrap();
    assert!(told["message"].as_str().unwrap().contains(&candidate), "{told:#}");
    let entry = rig.get(POOL)["status"]["moves"]["entries"][0].clone();
    assert_eq!(entry["candidates"][0], candidate.as_str(), "{entry:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(&in_account(&rig) - &before, made, "nothing was created, adopted or released by guess");

    list(&rig, &known.into_iter().chain([candidate]).collect::<Vec<_>>());
    eventually("the third is created", SOON, async || Ok(listed(&rig).len() == 3)).await.unwrap();
    let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!(&in_account(&rig) - &before, ours);
}
