//! Pools that create and release addresses, also across crashes, lost responses and missing permissions.

pub mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use testbed::cluster::eventually;
use testbed::fake::Refusal;
use testbed::fake::faults::{Fault, Rule};

use self::support::{POOL, forge_created, in_account, is_release, kills_at, list, listed, pool, stalled};
use crate::rig::{Rig, SOON, SUCCESSOR, in_parts, kill_every};

#[tokio::test(flavor = "multi_thread")]
async fn f1_addresses_are_created_and_released_to_match_desired_ips() {
    let (rig, _controller) = Rig::start().await;
    let before = in_account(&rig);
    rig.control_plane.apply(&pool(5, "doks.digitalocean.com/node-pool=work", "")).unwrap();
    eventually("the spec lists five addresses", SOON, async || Ok(listed(&rig).len() == 5)).await.unwrap();
    eventually("each node has an address", SOON, async || {
        let status = rig.get(POOL)["status"].clone();
        Ok(status["summary"]["attached"] == 3 && status["moves"].is_null())
    })
    .await
    .unwrap();
    let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!(&in_account(&rig) - &before, ours, "the account must have exactly the addresses in the spec");
    let object = rig.get(POOL);
    for status in object["status"]["addresses"].as_array().unwrap() {
        assert_eq!(status["created"], true, "{status:#}");
    }
    // No move is open, so the controller removes the finalizer after it has written the status.
    rig.without_finalizer(POOL).await;

    rig.control_plane
        .apply(&pool(3, "doks.digitalocean.com/node-pool=work", "releaseCreated: WhenUnneeded"))
        .unwrap();
    eventually("the two unattached addresses are released", SOON, async || {
        Ok(listed(&rig).len() == 3 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let kept: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!(&in_account(&rig) - &before, kept);
    assert!(before.is_subset(&in_account(&rig)), "released an address that the pool did not create");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_status_releases_no_address() {
    let (rig, _controller) = Rig::start().await;
    let cloud = &rig.clouds.digitalocean;
    cloud.with(|account| account.add_reserved_ip("198.51.100.200", "nyc3"));
    let victim = "198.51.100.200".to_owned();
    let own = forge_created(&rig, &victim).await;
    eventually("the condition Stalled is true", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let condition = stalled(&rig).unwrap();
    assert_eq!(condition["reason"], "NotReleased", "{condition:#}");
    assert!(condition["message"].as_str().unwrap().contains(&victim), "{condition:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let released: Vec<_> = cloud.ledger().done.into_iter().filter(|done| is_release(&done.change)).collect();
    assert!(released.is_empty() && in_account(&rig).contains(&victim), "{released:?}");

    // The pool releases its own address when it is surplus, because the provider reports the pool's mark on it.
    list(&rig, &[victim.clone(), own.clone()]);
    eventually("the pool's own address is released", SOON, async || Ok(!in_account(&rig).contains(&own)))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    assert!(in_account(&rig).contains(&victim));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_survives_sigkill_before_and_after_every_request() {
    let requests = in_parts(3, kills_at).await;
    println!("killed before and after each of {requests} requests of a creation: 0 leaked, 0 lost");
    assert!(requests * kill_every() >= 5, "killed at only {requests} requests: a creation takes more");
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_kills_while_creating_twenty_addresses_leak_none() {
    let rig = Rig::prepare().await;
    let cloud = &rig.clouds.digitalocean;
    // The rate limit allows only twelve creations a minute.
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
        // Kill it at a different moment each time, after it has begun to create or when it has nothing left to do.
        let has_begun = || in_account(&rig).len() > before + 1 || listed(&rig).len() == 20;
        let begun = rig.with_restarts(&mut doomed, &environment, has_begun);
        begun.await.unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
        tokio::time::sleep(Duration::from_millis(u64::from(kill) * 7)).await;
        _ = doomed.process.signal(Signal::KILL);
        doomed.process.wait(SOON).unwrap();
    }
    let mut survivor = rig.controller("ip-address-controller", &SUCCESSOR);
    let are_listed = || listed(&rig).len() == 20 && rig.get(POOL)["status"]["moves"].is_null();
    rig.with_restarts(&mut survivor, &SUCCESSOR, are_listed)
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
    let made = &in_account(&rig) - &foreign;
    println!("killed 8 times: {} created, {} leaked", made.len(), (&made - &ours).len());
    assert_eq!((made.len(), &made - &ours), (20, BTreeSet::new()));
    assert!(foreign.is_subset(&in_account(&rig)), "a foreign address was released");
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_removed_from_the_spec_are_reported_and_not_replaced() {
    let rig = Rig::prepare().await;
    let _controller = rig.controller("ip-address-controller", &[("TAKEOVER_SECONDS", "1")]);
    rig.control_plane.apply(&pool(3, "nobody=has-this", "")).unwrap();
    eventually("the spec lists all addresses and no move is open", SOON, async || {
        Ok(listed(&rig).len() == 3 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap();
    let (made, bought) = (listed(&rig), in_account(&rig));
    rig.kubectl(&["patch", POOL, "--type=merge", "-p", "{\"spec\":{\"ips\":null}}"]);
    eventually("the condition Stalled is true", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let condition = stalled(&rig).unwrap();
    assert_eq!(condition["reason"], "UnlistedAddresses");
    assert!(made.iter().all(|ip| condition["message"].as_str().unwrap().contains(ip)), "{condition:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        (in_account(&rig), listed(&rig)),
        (bought.clone(), Vec::new()),
        "the controller replaced an address or its list"
    );

    // The user lists two addresses again, as the condition asks, and gives up the third.
    let [kept @ .., given_up] = made.as_slice() else { panic!("no address was created") };
    let annotation = format!("netinfra.darkbrains.com/not-created={given_up}");
    rig.kubectl(&["annotate", POOL, &annotation]);
    list(&rig, kept);
    eventually("a third address is created", SOON, async || Ok(listed(&rig).len() == 3)).await.unwrap();
    assert!(!listed(&rig).contains(given_up));
    assert_eq!(in_account(&rig).len(), bought.len() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_access_to_projects_no_address_is_created() {
    let rig = Rig::prepare().await;
    let first = rig.controller("ip-address-controller", &[]);
    rig.control_plane.apply(&pool(2, "nobody=has-this", "")).unwrap();
    eventually("the spec lists both addresses and no move is open", SOON, async || {
        Ok(listed(&rig).len() == 2 && rig.get(POOL)["status"]["moves"].is_null())
    })
    .await
    .unwrap();
    first.stop();
    let bought = in_account(&rig);
    let tag = format!("ip-address-controller-{}", rig.get(POOL)["metadata"]["uid"].as_str().unwrap());
    assert_eq!(rig.get(POOL)["status"]["creationTag"], tag.as_str());

    // A tool removes the two addresses from the spec, and the next leader can't see that they belong to this pool.
    let forbidden = Fault::Refuse(Refusal::Forbidden("this token may not use projects".into()));
    rig.clouds.digitalocean.inject(Rule { times: usize::MAX, ..Rule::next("projects.list", forbidden) });
    rig.kubectl(&["patch", POOL, "--type=merge", "-p", "{\"spec\":{\"ips\":null}}"]);
    let _second = rig.controller("ip-address-controller", &[]);
    eventually("the condition Stalled is true", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    assert_eq!(stalled(&rig).unwrap()["reason"], "NoTags");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(in_account(&rig), bought, "the controller created an address");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tags_a_person_resolves_a_lost_create_response() {
    let rig = Rig::prepare().await;
    let cloud = &rig.clouds.digitalocean;
    let forbidden = Fault::Refuse(Refusal::Forbidden("this token may not use projects".into()));
    cloud.inject(Rule { times: usize::MAX, ..Rule::next("projects.list", forbidden) });
    cloud.inject(Rule { skip: 1, ..Rule::next("reserved_ips.create", Fault::LoseReply) });
    let before = in_account(&rig);
    let _controller = rig.controller("ip-address-controller", &[("TAKEOVER_SECONDS", "1")]);
    rig.control_plane.apply(&pool(3, "nobody=has-this", "")).unwrap();
    eventually("the condition Stalled is true", SOON, async || Ok(stalled(&rig).is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(POOL), rig.logs()));
    let condition = stalled(&rig).unwrap();
    assert_eq!(condition["reason"], "AmbiguousCreation");
    let made = &in_account(&rig) - &before;
    let known: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!((made.len(), known.len()), (2, 1), "only the second response was lost");
    let candidate = (&made - &known).into_iter().next().unwrap();
    assert!(condition["message"].as_str().unwrap().contains(&candidate), "{condition:#}");
    let entry = rig.get(POOL)["status"]["moves"]["entries"][0].clone();
    assert_eq!(entry["candidates"][0], candidate.as_str(), "{entry:#}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(&in_account(&rig) - &before, made, "the controller must not guess");

    list(&rig, &known.into_iter().chain([candidate]).collect::<Vec<_>>());
    eventually("the third address is created", SOON, async || Ok(listed(&rig).len() == 3)).await.unwrap();
    let ours: BTreeSet<_> = listed(&rig).into_iter().collect();
    assert_eq!(&in_account(&rig) - &before, ours);
}
