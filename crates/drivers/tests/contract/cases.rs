//! The cases. Each begins with a new account: [`ADDRESS`] and [`OTHER`] are free, [`ONE`] and [`TWO`] have none.

use std::collections::BTreeSet;
use std::time::Duration;

use drivers::{DriverError, Tags};
use plan::{Holding, MachineState, Provider};
use testbed::fake::Refusal;
use testbed::fake::faults::Fault;

use crate::{
    ADDRESS, AFAR, Account, Column, GONE, Kind, ONE, OTHER, Outcome, TWO, Verdict, address, attach, detach,
    finish, outcome,
};

/// Lists the cases once: for the table, and to be run.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        /// All cases on one driver.
        pub async fn column<A: Account>() -> Column {
            let mut made = BTreeSet::new();
            let outcomes: Vec<(&'static str, Outcome)> = vec![$({
                let account = A::new().await;
                let outcome = outcome($case(&account)).await;
                made.extend(account.calls());
                (stringify!($case), outcome)
            }),+];
            Column { name: A::NAME, outcomes, made, listed: A::CALLS.iter().copied().collect() }
        }
    };
}

cases! {
    a_listing_of_several_pages_is_read_whole,
    a_listing_that_is_lost_or_cut_is_an_error_and_no_fact,
    an_address_is_attached_and_detached,
    an_address_is_moved_without_ever_being_told_to_two,
    what_is_already_so_changes_nothing,
    an_address_that_another_holds_is_not_taken_unless_the_cloud_moves_in_one_call,
    an_address_is_taken_off_none_but_the_machine_meant,
    the_address_that_a_machine_has_is_never_pushed_off,
    a_machine_that_is_gone_is_not_found_and_holds_nothing,
    an_address_that_is_gone_is_not_found_and_missing,
    a_machine_in_another_region_is_refused,
    of_two_calls_at_once_one_wins,
    an_attach_whose_answer_is_lost_is_gone_on_with,
    an_attach_that_never_arrived_is_done_again,
    a_detach_whose_answer_is_lost_is_gone_on_with,
    too_many_calls_are_told_as_such_and_change_nothing,
    a_missing_permission_is_named,
    an_operation_that_fails_late_is_an_error_and_can_be_done_again,
    a_new_address_carries_its_tag_also_when_its_answer_is_lost,
    an_address_is_released_once_and_only_while_nobody_holds_it,
    an_address_without_the_expected_mark_is_not_released,
    a_machine_is_running_stopped_or_not_named,
}

/// The mark of the pool that the addresses are created for.
const MARK: &str = "ip-address-controller-of-a-pool";

async fn told<A: Account>(account: &A, ip: &str) -> Holding {
    account.driver().list(&account.scope()).await.unwrap().told(address(ip)).holding
}

async fn a_listing_of_several_pages_is_read_whole<A: Account>(account: &A) -> Verdict {
    account.add_addresses(1_200).await;
    let listing = account.driver().list(&account.scope()).await.unwrap();
    assert_eq!(listing.addresses.len(), 1_202);
    assert!(listing.untold.is_empty());
    A::ONE_PAGE.map_or(Ok(()), Err)
}

async fn a_listing_that_is_lost_or_cut_is_an_error_and_no_fact<A: Account>(account: &A) -> Verdict {
    let unavailable = Fault::Refuse(Refusal::Unavailable(503));
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Truncate, unavailable] {
        account.strike(Kind::List, fault.clone()).await;
        let listed = account.driver().list(&account.scope()).await;
        assert!(matches!(listed, Err(DriverError::Unavailable(_))), "{fault:?}: {listed:?}");
    }
    assert_eq!(told(account, ADDRESS).await, Holding::Free);
    Ok(())
}

async fn an_address_is_attached_and_detached<A: Account>(account: &A) -> Verdict {
    attach(account, ADDRESS, ONE).await.unwrap();
    assert_eq!(told(account, ADDRESS).await, Holding::By(account.vm(ONE)));
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)));
    detach(account, ADDRESS, ONE).await.unwrap();
    assert_eq!(told(account, ADDRESS).await, Holding::Free);
    assert_eq!(account.holder(ADDRESS).await, None);
    Ok(())
}

async fn an_address_is_moved_without_ever_being_told_to_two<A: Account>(account: &A) -> Verdict {
    attach(account, ADDRESS, ONE).await.unwrap();
    if !account.driver().traits().moves_in_one_call {
        detach(account, ADDRESS, ONE).await.unwrap();
    }
    attach(account, ADDRESS, TWO).await.unwrap();
    assert_eq!(told(account, ADDRESS).await, Holding::By(account.vm(TWO)));
    assert_eq!(account.doubled().await, Vec::<String>::new());
    Ok(())
}

async fn what_is_already_so_changes_nothing<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, ONE).await;
    let before = account.changes().await;
    let attached = attach(account, ADDRESS, ONE).await;
    // A cloud that refuses what is already so leaves it to a listing to tell.
    assert!(matches!(attached, Ok(()) | Err(DriverError::Conflict(_))), "{attached:?}");
    detach(account, OTHER, ONE).await.unwrap();
    assert_eq!(account.changes().await, before);
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)));
    Ok(())
}

async fn an_address_that_another_holds_is_not_taken_unless_the_cloud_moves_in_one_call<A: Account>(
    account: &A,
) -> Verdict {
    account.put_on(ADDRESS, TWO).await;
    let attached = attach(account, ADDRESS, ONE).await;
    if account.driver().traits().moves_in_one_call {
        attached.unwrap();
        assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)));
        return Err("it moves an address in one call, and who may be asked for is the planner's to know");
    }
    assert!(matches!(attached, Err(DriverError::Conflict(_))), "{attached:?}");
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(TWO)));
    Ok(())
}

async fn an_address_is_taken_off_none_but_the_machine_meant<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, TWO).await;
    let before = account.changes().await;
    let taken = detach(account, ADDRESS, ONE).await;
    // Who looks at the address sees who has it. Who looks at the machine, as at Google Cloud, sees that it has it not.
    let is_seen = account.scope().provider != Provider::Gcp;
    assert_eq!(matches!(taken, Err(DriverError::Conflict(_))), is_seen, "{taken:?}");
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(TWO)));
    assert_eq!(account.changes().await, before);
    Ok(())
}

async fn the_address_that_a_machine_has_is_never_pushed_off<A: Account>(account: &A) -> Verdict {
    account.put_on(OTHER, ONE).await;
    let refused = attach(account, ADDRESS, ONE).await;
    assert!(matches!(refused, Err(DriverError::Conflict(_))), "{refused:?}");
    assert_eq!(account.holder(OTHER).await, Some(account.vm(ONE)));
    assert_eq!(account.holder(ADDRESS).await, None);
    Ok(())
}

async fn a_machine_that_is_gone_is_not_found_and_holds_nothing<A: Account>(account: &A) -> Verdict {
    let refused = attach(account, ADDRESS, GONE).await;
    assert!(matches!(refused, Err(DriverError::NotFound(_))), "{refused:?}");
    detach(account, ADDRESS, GONE).await.unwrap();
    account.put_on(ADDRESS, ONE).await;
    account.remove(ONE).await;
    detach(account, ADDRESS, ONE).await.unwrap();
    assert_eq!(told(account, ADDRESS).await, Holding::Free);
    attach(account, ADDRESS, TWO).await.unwrap();
    Ok(())
}

async fn an_address_that_is_gone_is_not_found_and_missing<A: Account>(account: &A) -> Verdict {
    account.remove_address(ADDRESS).await;
    let refused = attach(account, ADDRESS, ONE).await;
    let is_final = matches!(refused, Err(DriverError::NotFound(_) | DriverError::Invalid(_)));
    assert!(is_final, "{refused:?}");
    assert_eq!(told(account, ADDRESS).await, Holding::Missing);
    Ok(())
}

async fn a_machine_in_another_region_is_refused<A: Account>(account: &A) -> Verdict {
    let refused = attach(account, ADDRESS, AFAR).await.unwrap_err();
    let is_told =
        matches!(refused, DriverError::Invalid(_) | DriverError::Conflict(_) | DriverError::NotFound(_));
    assert!(is_told, "{refused:?}");
    assert_eq!(account.holder(ADDRESS).await, None);
    Ok(())
}

async fn of_two_calls_at_once_one_wins<A: Account>(account: &A) -> Verdict {
    let (one, two) = futures::join!(attach(account, ADDRESS, ONE), attach(account, ADDRESS, TWO));
    let winner = match (&one, &two) {
        (Ok(()), Err(_)) => ONE,
        (Err(_), Ok(())) => TWO,
        both => panic!("{both:?}"),
    };
    assert_eq!(told(account, ADDRESS).await, Holding::By(account.vm(winner)));
    Ok(())
}

async fn an_attach_whose_answer_is_lost_is_gone_on_with<A: Account>(account: &A) -> Verdict {
    account.strike(Kind::Attach, Fault::LoseReply).await;
    let lost = attach(account, ADDRESS, ONE).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    settles_on(account, ONE).await;
    assert_eq!(account.doubled().await, Vec::<String>::new());
    Ok(())
}

async fn an_attach_that_never_arrived_is_done_again<A: Account>(account: &A) -> Verdict {
    account.strike(Kind::Attach, Fault::LoseRequest).await;
    let lost = attach(account, ADDRESS, ONE).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    assert_eq!(account.holder(ADDRESS).await, None);
    settles_on(account, ONE).await;
    Ok(())
}

/// Lists until the address is where it shall be, and asks for it where it is free, as the controller does.
async fn settles_on<A: Account>(account: &A, machine: &str) {
    for _ in 0..100 {
        match told(account, ADDRESS).await {
            Holding::By(vm) => return assert_eq!(vm, account.vm(machine)),
            Holding::Free => match attach(account, ADDRESS, machine).await {
                // What was lost is still under way.
                Ok(()) | Err(DriverError::Conflict(_)) => {
                    tokio::time::sleep(Duration::from_millis(100)).await
                }
                Err(error) => panic!("{error}"),
            },
            Holding::Missing => panic!("the address is gone"),
            Holding::Unknown(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("it does not settle");
}

async fn a_detach_whose_answer_is_lost_is_gone_on_with<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, ONE).await;
    account.strike(Kind::Detach, Fault::LoseReply).await;
    let lost = detach(account, ADDRESS, ONE).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    for _ in 0..100 {
        if told(account, ADDRESS).await == Holding::Free {
            return detach(account, ADDRESS, ONE).await.map_err(|error| panic!("{error}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not settle")
}

async fn too_many_calls_are_told_as_such_and_change_nothing<A: Account>(account: &A) -> Verdict {
    account.strike(Kind::Attach, Fault::Refuse(Refusal::RateLimited(Duration::from_secs(17)))).await;
    let refused = attach(account, ADDRESS, ONE).await;
    let Err(DriverError::RateLimited { retry_after, .. }) = refused else { panic!("{refused:?}") };
    if A::SAYS_WHEN_TO_RETRY {
        assert_eq!(retry_after, Duration::from_secs(17));
    }
    account.strike(Kind::List, Fault::Refuse(Refusal::RateLimited(Duration::from_secs(17)))).await;
    let refused = account.driver().list(&account.scope()).await;
    assert!(matches!(refused, Err(DriverError::RateLimited { .. })), "{refused:?}");
    assert_eq!(account.changes().await, 0);
    attach(account, ADDRESS, ONE).await.unwrap();
    Ok(())
}

async fn a_missing_permission_is_named<A: Account>(_: &A) -> Verdict {
    for kind in [Kind::List, Kind::Attach, Kind::Detach, Kind::Create, Kind::Release] {
        let account = A::new().await;
        account.put_on(OTHER, TWO).await;
        let (driver, scope) = (account.driver(), account.scope());
        let made = driver.create(&scope, account.region(), Some(MARK)).await.unwrap();
        let missing = account.deny(kind).await;
        let refused = match kind {
            Kind::List => driver.list(&scope).await.map(drop),
            Kind::Attach => attach(&account, ADDRESS, ONE).await,
            Kind::Detach => detach(&account, OTHER, TWO).await,
            Kind::Create => driver.create(&scope, account.region(), None).await.map(drop),
            Kind::Release => finish(driver, async || driver.release(&scope, made, MARK).await).await,
        };
        match refused {
            Err(DriverError::Denied { permission, .. }) => assert_eq!(permission, missing),
            other => panic!("{kind:?}: {other:?}"),
        }
    }
    Ok(())
}

async fn an_operation_that_fails_late_is_an_error_and_can_be_done_again<A: Account>(account: &A) -> Verdict {
    if let Some(reason) = A::NEVER_FAILS_LATE {
        return Err(reason);
    }
    account.strike(Kind::Attach, Fault::FailLate).await;
    assert!(attach(account, ADDRESS, ONE).await.is_err());
    assert_eq!(account.holder(ADDRESS).await, None);
    settles_on(account, ONE).await;
    Ok(())
}

async fn a_new_address_carries_its_tag_also_when_its_answer_is_lost<A: Account>(account: &A) -> Verdict {
    let (driver, scope, tag) = (account.driver(), account.scope(), MARK);
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Told);
    account.strike(Kind::Create, Fault::LoseReply).await;
    let lost = driver.create(&scope, account.region(), Some(tag)).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    let made = driver.create(&scope, account.region(), Some(tag)).await.unwrap();
    let mut tagged = Vec::new();
    for _ in 0..100 {
        let listing = driver.list(&scope).await.unwrap();
        let is_ours = |(_, listed): &(_, &drivers::Listed)| listed.tag.as_deref() == Some(tag);
        tagged = listing.addresses.iter().filter(is_ours).map(|(address, _)| *address).collect();
        if tagged.len() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(tagged.contains(&made));
    assert_eq!(tagged.len(), 2, "also the one that nobody heard of: {tagged:?}");
    Ok(())
}

async fn an_address_is_released_once_and_only_while_nobody_holds_it<A: Account>(account: &A) -> Verdict {
    let (driver, scope) = (account.driver(), account.scope());
    let made = driver.create(&scope, account.region(), Some(MARK)).await.unwrap();
    let ip = made.to_string();
    attach(account, &ip, ONE).await.unwrap();
    let refused = driver.release(&scope, made, MARK).await;
    assert!(matches!(refused, Err(DriverError::Conflict(_))), "{refused:?}");
    detach(account, &ip, ONE).await.unwrap();
    for _ in ["once", "again"] {
        finish(driver, async || driver.release(&scope, made, MARK).await).await.unwrap();
        assert_eq!(told(account, &ip).await, Holding::Missing);
    }
    assert_eq!(told(account, OTHER).await, Holding::Free);
    Ok(())
}

async fn an_address_without_the_expected_mark_is_not_released<A: Account>(account: &A) -> Verdict {
    let (driver, scope) = (account.driver(), account.scope());
    let made = driver.create(&scope, account.region(), Some(MARK)).await.unwrap();
    for (kept, mark) in [(address(ADDRESS), MARK), (made, "ip-address-controller-of-another-pool")] {
        let refused = finish(driver, async || driver.release(&scope, kept, mark).await).await;
        assert!(matches!(refused, Err(DriverError::Conflict(_))), "{kept}: {refused:?}");
        assert_eq!(told(account, &kept.to_string()).await, Holding::Free);
    }
    Ok(())
}

async fn a_machine_is_running_stopped_or_not_named<A: Account>(account: &A) -> Verdict {
    account.stop(TWO).await;
    let machines = account.driver().machines(&account.scope()).await.unwrap();
    assert_eq!(machines.get(&account.vm(ONE)), Some(&MachineState::Running));
    assert_eq!(machines.get(&account.vm(TWO)), Some(&MachineState::Stopped));
    let one = account.vm(ONE);
    account.remove(ONE).await;
    let machines = account.driver().machines(&account.scope()).await.unwrap();
    assert_eq!(machines.get(&one), None);
    Ok(())
}
