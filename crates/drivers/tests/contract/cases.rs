//! The contract: the cases that every address driver must pass.
//!
//! Each case starts with a new account: [`ADDRESS`] and [`OTHER`] are free, [`ONE`] and [`TWO`] hold no address.

use std::collections::BTreeSet;
use std::time::Duration;

use drivers::{DriverError, Tags};
use plan::{Holding, MachineState, Provider};
use testbed::fake::Refusal;
use testbed::fake::faults::Fault;

use crate::support::{address, finish};
use crate::{
    ADDRESS, AFAR, Account, Column, GONE, Kind, ONE, OTHER, Outcome, TWO, Verdict, attach, detach, outcome,
};

/// Defines the list of cases once, for the table and for running them.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        /// Runs all cases on one driver.
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
    all_pages_of_a_listing_are_read,
    a_lost_or_truncated_listing_is_an_error,
    an_address_is_attached_and_detached,
    an_address_is_moved_and_never_has_two_holders,
    a_change_that_is_already_done_changes_nothing,
    attach_takes_an_address_only_if_moves_are_one_call,
    detach_does_not_affect_another_vm,
    the_address_of_a_vm_is_never_replaced_by_another,
    an_occupied_vm_refuses_an_address_before_anything_changes,
    a_deleted_vm_is_not_found_and_holds_nothing,
    a_deleted_address_is_not_found_and_missing,
    a_vm_in_another_region_is_refused,
    one_of_two_concurrent_calls_wins,
    an_attach_whose_response_is_lost_is_resumed,
    an_attach_whose_request_is_lost_is_repeated,
    a_detach_whose_response_is_lost_is_resumed,
    a_throttled_call_is_reported_and_changes_nothing,
    the_error_names_a_missing_permission,
    a_failed_operation_is_an_error_and_can_be_repeated,
    a_new_address_has_its_tag_even_if_the_response_is_lost,
    an_address_is_released_once_and_only_if_it_is_free,
    an_address_without_the_expected_tag_is_not_released,
    a_vm_is_running_or_stopped_or_not_listed,
}

/// The mark of the pool that the addresses are created for.
const MARK: &str = "ip-address-controller-of-a-pool";

async fn listed<A: Account>(account: &A, ip: &str) -> Holding {
    account.driver().list(&account.scope()).await.unwrap().get(address(ip)).holding
}

async fn all_pages_of_a_listing_are_read<A: Account>(account: &A) -> Verdict {
    account.add_addresses(1_200).await;
    let listing = account.driver().list(&account.scope()).await.unwrap();
    assert_eq!(listing.addresses.len(), 1_202);
    assert!(listing.unreachable.is_empty());
    A::ONE_PAGE.map_or(Ok(()), Err)
}

async fn a_lost_or_truncated_listing_is_an_error<A: Account>(account: &A) -> Verdict {
    let unavailable = Fault::Refuse(Refusal::Unavailable(503));
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Truncate, unavailable] {
        account.inject_fault(Kind::List, fault.clone()).await;
        let listed = account.driver().list(&account.scope()).await;
        assert!(matches!(listed, Err(DriverError::Unavailable(_))), "{fault:?}: {listed:?}");
    }
    assert_eq!(listed(account, ADDRESS).await, Holding::Free);
    Ok(())
}

async fn an_address_is_attached_and_detached<A: Account>(account: &A) -> Verdict {
    attach(account, ADDRESS, ONE).await.unwrap();
    assert_eq!(listed(account, ADDRESS).await, Holding::By(account.vm(ONE)));
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)));
    detach(account, ADDRESS, ONE).await.unwrap();
    assert_eq!(listed(account, ADDRESS).await, Holding::Free);
    assert_eq!(account.holder(ADDRESS).await, None);
    Ok(())
}

async fn an_address_is_moved_and_never_has_two_holders<A: Account>(account: &A) -> Verdict {
    attach(account, ADDRESS, ONE).await.unwrap();
    if !account.driver().properties().moves_in_one_call {
        detach(account, ADDRESS, ONE).await.unwrap();
    }
    attach(account, ADDRESS, TWO).await.unwrap();
    assert_eq!(listed(account, ADDRESS).await, Holding::By(account.vm(TWO)));
    assert_eq!(account.doubled().await, Vec::<String>::new());
    Ok(())
}

async fn a_change_that_is_already_done_changes_nothing<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, ONE).await;
    let before = account.changes().await;
    let attached = attach(account, ADDRESS, ONE).await;
    // Some providers reject a change that is already done. The controller then lists the addresses.
    assert!(matches!(attached, Ok(()) | Err(DriverError::Conflict(_))), "{attached:?}");
    detach(account, OTHER, ONE).await.unwrap();
    assert_eq!(account.changes().await, before);
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)));
    Ok(())
}

async fn attach_takes_an_address_only_if_moves_are_one_call<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, TWO).await;
    let attached = attach(account, ADDRESS, ONE).await;
    if account.driver().properties().moves_in_one_call {
        attached.unwrap();
        assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)));
        return Err("it moves an address in one call, and the planner decides which address to move");
    }
    assert!(matches!(attached, Err(DriverError::Conflict(_))), "{attached:?}");
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(TWO)));
    Ok(())
}

async fn detach_does_not_affect_another_vm<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, TWO).await;
    let before = account.changes().await;
    let taken = detach(account, ADDRESS, ONE).await;
    // Most drivers read the address and see its holder. The driver for Google Cloud reads the VM and sees only that it
    // does not hold the address.
    let is_seen = account.scope().provider != Provider::Gcp;
    assert_eq!(matches!(taken, Err(DriverError::Conflict(_))), is_seen, "{taken:?}");
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(TWO)));
    assert_eq!(account.changes().await, before);
    Ok(())
}

async fn the_address_of_a_vm_is_never_replaced_by_another<A: Account>(account: &A) -> Verdict {
    account.put_on(OTHER, ONE).await;
    let refused = attach(account, ADDRESS, ONE).await;
    assert!(matches!(refused, Err(DriverError::Conflict(_))), "{refused:?}");
    assert_eq!(account.holder(OTHER).await, Some(account.vm(ONE)));
    assert_eq!(account.holder(ADDRESS).await, None);
    Ok(())
}

async fn an_occupied_vm_refuses_an_address_before_anything_changes<A: Account>(account: &A) -> Verdict {
    let properties = account.driver().properties();
    if !properties.refuses_occupied {
        return Err("the controller never tries a VM there that may hold an address");
    }
    account.put_on(ADDRESS, ONE).await;
    account.put_on(OTHER, TWO).await;
    let before = account.changes().await;
    let refused = attach(account, ADDRESS, TWO).await;
    assert!(matches!(refused, Err(DriverError::Conflict(_))), "{refused:?}");
    assert_eq!(account.changes().await, before);
    assert_eq!(account.holder(ADDRESS).await, Some(account.vm(ONE)), "it did not leave its VM");
    Ok(())
}

async fn a_deleted_vm_is_not_found_and_holds_nothing<A: Account>(account: &A) -> Verdict {
    let refused = attach(account, ADDRESS, GONE).await;
    assert!(matches!(refused, Err(DriverError::NotFound(_))), "{refused:?}");
    detach(account, ADDRESS, GONE).await.unwrap();
    account.put_on(ADDRESS, ONE).await;
    account.remove(ONE).await;
    detach(account, ADDRESS, ONE).await.unwrap();
    assert_eq!(listed(account, ADDRESS).await, Holding::Free);
    attach(account, ADDRESS, TWO).await.unwrap();
    Ok(())
}

async fn a_deleted_address_is_not_found_and_missing<A: Account>(account: &A) -> Verdict {
    account.remove_address(ADDRESS).await;
    let refused = attach(account, ADDRESS, ONE).await;
    let is_final = matches!(refused, Err(DriverError::NotFound(_) | DriverError::Invalid(_)));
    assert!(is_final, "{refused:?}");
    assert_eq!(listed(account, ADDRESS).await, Holding::Missing);
    Ok(())
}

async fn a_vm_in_another_region_is_refused<A: Account>(account: &A) -> Verdict {
    let refused = attach(account, ADDRESS, AFAR).await.unwrap_err();
    let is_expected =
        matches!(refused, DriverError::Invalid(_) | DriverError::Conflict(_) | DriverError::NotFound(_));
    assert!(is_expected, "{refused:?}");
    assert_eq!(account.holder(ADDRESS).await, None);
    Ok(())
}

async fn one_of_two_concurrent_calls_wins<A: Account>(account: &A) -> Verdict {
    let (one, two) = futures::join!(attach(account, ADDRESS, ONE), attach(account, ADDRESS, TWO));
    let winner = match (&one, &two) {
        (Ok(()), Err(_)) => ONE,
        (Err(_), Ok(())) => TWO,
        both => panic!("{both:?}"),
    };
    assert_eq!(listed(account, ADDRESS).await, Holding::By(account.vm(winner)));
    Ok(())
}

async fn an_attach_whose_response_is_lost_is_resumed<A: Account>(account: &A) -> Verdict {
    account.inject_fault(Kind::Attach, Fault::LoseReply).await;
    let lost = attach(account, ADDRESS, ONE).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    settles_on(account, ONE).await;
    assert_eq!(account.doubled().await, Vec::<String>::new());
    Ok(())
}

async fn an_attach_whose_request_is_lost_is_repeated<A: Account>(account: &A) -> Verdict {
    account.inject_fault(Kind::Attach, Fault::LoseRequest).await;
    let lost = attach(account, ADDRESS, ONE).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    assert_eq!(account.holder(ADDRESS).await, None);
    settles_on(account, ONE).await;
    Ok(())
}

/// Lists until the address is on `machine`, and attaches it if it is free, as the controller does.
async fn settles_on<A: Account>(account: &A, machine: &str) {
    for _ in 0..100 {
        match listed(account, ADDRESS).await {
            Holding::By(vm) => return assert_eq!(vm, account.vm(machine)),
            Holding::Free => match attach(account, ADDRESS, machine).await {
                // After a conflict, an earlier operation may still be in flight.
                Ok(()) | Err(DriverError::Conflict(_)) => {
                    tokio::time::sleep(Duration::from_millis(100)).await
                }
                Err(error) => panic!("{error}"),
            },
            Holding::Missing => panic!("the address is gone"),
            Holding::Unknown(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("the address does not settle");
}

async fn a_detach_whose_response_is_lost_is_resumed<A: Account>(account: &A) -> Verdict {
    account.put_on(ADDRESS, ONE).await;
    account.inject_fault(Kind::Detach, Fault::LoseReply).await;
    let lost = detach(account, ADDRESS, ONE).await;
    assert!(matches!(lost, Err(DriverError::Unavailable(_))), "{lost:?}");
    for _ in 0..100 {
        if listed(account, ADDRESS).await == Holding::Free {
            return detach(account, ADDRESS, ONE).await.map_err(|error| panic!("{error}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the address does not settle")
}

async fn a_throttled_call_is_reported_and_changes_nothing<A: Account>(account: &A) -> Verdict {
    account.inject_fault(Kind::Attach, Fault::Refuse(Refusal::RateLimited(Duration::from_secs(17)))).await;
    let refused = attach(account, ADDRESS, ONE).await;
    let Err(DriverError::RateLimited { retry_after, .. }) = refused else { panic!("{refused:?}") };
    if A::SAYS_WHEN_TO_RETRY {
        assert_eq!(retry_after, Duration::from_secs(17));
    }
    account.inject_fault(Kind::List, Fault::Refuse(Refusal::RateLimited(Duration::from_secs(17)))).await;
    let refused = account.driver().list(&account.scope()).await;
    assert!(matches!(refused, Err(DriverError::RateLimited { .. })), "{refused:?}");
    assert_eq!(account.changes().await, 0);
    attach(account, ADDRESS, ONE).await.unwrap();
    Ok(())
}

async fn the_error_names_a_missing_permission<A: Account>(_: &A) -> Verdict {
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

async fn a_failed_operation_is_an_error_and_can_be_repeated<A: Account>(account: &A) -> Verdict {
    if let Some(reason) = A::NEVER_FAILS_LATE {
        return Err(reason);
    }
    account.inject_fault(Kind::Attach, Fault::FailLate).await;
    assert!(attach(account, ADDRESS, ONE).await.is_err());
    assert_eq!(account.holder(ADDRESS).await, None);
    settles_on(account, ONE).await;
    Ok(())
}

async fn a_new_address_has_its_tag_even_if_the_response_is_lost<A: Account>(account: &A) -> Verdict {
    let (driver, scope, tag) = (account.driver(), account.scope(), MARK);
    assert_eq!(driver.list(&scope).await.unwrap().tags, Tags::Complete);
    account.inject_fault(Kind::Create, Fault::LoseReply).await;
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
    assert_eq!(tagged.len(), 2, "including the one whose response was lost: {tagged:?}");
    Ok(())
}

async fn an_address_is_released_once_and_only_if_it_is_free<A: Account>(account: &A) -> Verdict {
    let (driver, scope) = (account.driver(), account.scope());
    let made = driver.create(&scope, account.region(), Some(MARK)).await.unwrap();
    let ip = made.to_string();
    attach(account, &ip, ONE).await.unwrap();
    let refused = driver.release(&scope, made, MARK).await;
    assert!(matches!(refused, Err(DriverError::Conflict(_))), "{refused:?}");
    detach(account, &ip, ONE).await.unwrap();
    for _ in ["once", "again"] {
        finish(driver, async || driver.release(&scope, made, MARK).await).await.unwrap();
        assert_eq!(listed(account, &ip).await, Holding::Missing);
    }
    assert_eq!(listed(account, OTHER).await, Holding::Free);
    Ok(())
}

async fn an_address_without_the_expected_tag_is_not_released<A: Account>(account: &A) -> Verdict {
    let (driver, scope) = (account.driver(), account.scope());
    let made = driver.create(&scope, account.region(), Some(MARK)).await.unwrap();
    for (kept, mark) in [(address(ADDRESS), MARK), (made, "ip-address-controller-of-another-pool")] {
        let refused = finish(driver, async || driver.release(&scope, kept, mark).await).await;
        assert!(matches!(refused, Err(DriverError::Conflict(_))), "{kept}: {refused:?}");
        assert_eq!(listed(account, &kept.to_string()).await, Holding::Free);
    }
    Ok(())
}

async fn a_vm_is_running_or_stopped_or_not_listed<A: Account>(account: &A) -> Verdict {
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
