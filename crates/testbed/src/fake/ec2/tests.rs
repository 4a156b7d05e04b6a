#![allow(clippy::unwrap_used, reason = "this is a test")]

use ::http::Request;
use bytes::Bytes;
use tower::ServiceExt;

use super::*;
use crate::fake::Fake;

const REGION: &str = "us-east-1";

fn account() -> Fake<Ec2> {
    let mut account = Ec2::new("AKID");
    account.add_instance(REGION, "i-1");
    account.add_instance_without_address(REGION, "i-2");
    account.add_address(REGION, "203.0.113.1");
    account.add_address(REGION, "203.0.113.2");
    Fake::new(account)
}

/// Returns the status and the body of the answer to a call.
async fn call(fake: &Fake<Ec2>, form: &str) -> (u16, String) {
    let signed =
        format!("AWS4-HMAC-SHA256 Credential=AKID/20260101/{REGION}/ec2/aws4_request, SignedHeaders=host");
    let request = Request::post("http://ec2.invalid/").header("authorization", signed);
    let answer = fake.service().oneshot(request.body(Bytes::from(form.to_owned())).unwrap()).await.unwrap();
    (answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).unwrap())
}

/// Returns the text of an element in the answer to a call that must succeed.
async fn text_of(fake: &Fake<Ec2>, form: &str, element: &str) -> String {
    let (status, body) = call(fake, form).await;
    assert_eq!(status, 200, "{body}");
    xml::first(element, &body).unwrap_or_default()
}

async fn code(fake: &Fake<Ec2>, form: &str) -> String {
    let (status, body) = call(fake, form).await;
    assert!(status >= 400, "{body}");
    xml::first("Code", &body).unwrap()
}

async fn allocation(fake: &Fake<Ec2>, ip: &str) -> String {
    let form = format!("Action=DescribeAddresses&Filter.1.Name=public-ip&Filter.1.Value.1={ip}");
    text_of(fake, &form, "allocationId").await
}

async fn interface(fake: &Fake<Ec2>, instance: &str) -> String {
    text_of(fake, &format!("Action=DescribeInstances&InstanceId.1={instance}"), "networkInterfaceId").await
}

async fn associate(fake: &Fake<Ec2>, ip: &str, instance: &str, reassociate: &str) -> (u16, String) {
    let (allocation, interface) = (allocation(fake, ip).await, interface(fake, instance).await);
    let form = format!(
        "Action=AssociateAddress&AllocationId={allocation}&NetworkInterfaceId={interface}{reassociate}"
    );
    call(fake, &form).await
}

#[tokio::test(start_paused = true)]
async fn associate_moves_the_address_unless_reassociation_is_off() {
    let fake = account();
    assert_eq!(associate(&fake, "203.0.113.1", "i-1", "").await.0, 200);
    let (_, refused) = associate(&fake, "203.0.113.1", "i-2", "&AllowReassociation=false").await;
    assert_eq!(xml::first("Code", &refused).unwrap(), "Resource.AlreadyAssociated");
    assert_eq!(fake.with(|account| account.holder("203.0.113.1")).unwrap(), "us-east-1/i-1");
    let again = associate(&fake, "203.0.113.1", "i-1", "&AllowReassociation=false").await;
    assert_eq!(again.0, 200, "the interface already holds the address");
    assert_eq!(associate(&fake, "203.0.113.1", "i-2", "").await.0, 200);
    assert_eq!(fake.with(|account| account.holder("203.0.113.1")).unwrap(), "us-east-1/i-2");
    assert_eq!(fake.ledger().double_holders(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn associate_silently_drops_the_interfaces_other_address() {
    let fake = account();
    fake.with(|account| account.attach_now("203.0.113.1", "i-1"));
    assert_eq!(associate(&fake, "203.0.113.2", "i-1", "&AllowReassociation=false").await.0, 200);
    assert_eq!(fake.with(|account| account.holder("203.0.113.1")), None);
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_address_returns_only_with_one_interface() {
    let fake = account();
    for (interfaces, comes_back) in [(1, true), (2, false)] {
        fake.with(|account| account.attach_now("203.0.113.1", "i-1"));
        assert!(!fake.with(|account| account.has_ephemeral("i-1")));
        if interfaces == 2 {
            fake.with(|account| account.add_interface(REGION, Some("i-1")));
        }
        fake.with(|account| account.detach_now("203.0.113.1"));
        assert_eq!(fake.with(|account| account.has_ephemeral("i-1")), comes_back);
    }
    let form = format!(
        "Action=ModifyNetworkInterfaceAttribute&NetworkInterfaceId={}&AssociatePublicIpAddress=true",
        interface(&fake, "i-1").await
    );
    assert_eq!(call(&fake, &form).await.0, 200);
    assert!(fake.with(|account| account.has_ephemeral("i-1")));
}

#[tokio::test(start_paused = true)]
async fn disassociating_twice_succeeds_but_an_unknown_id_fails() {
    let fake = account();
    let (_, body) = associate(&fake, "203.0.113.1", "i-1", "").await;
    let association = xml::first("associationId", &body).unwrap();
    for _ in 0..2 {
        assert_eq!(
            call(&fake, &format!("Action=DisassociateAddress&AssociationId={association}")).await.0,
            200
        );
    }
    let never = "Action=DisassociateAddress&AssociationId=eipassoc-0";
    assert_eq!(code(&fake, never).await, "InvalidAssociationID.NotFound");
}

#[tokio::test(start_paused = true)]
async fn release_refuses_addresses_in_use_and_allocate_sets_tags() {
    let fake = account();
    fake.with(|account| account.attach_now("203.0.113.1", "i-1"));
    let release = format!("Action=ReleaseAddress&AllocationId={}", allocation(&fake, "203.0.113.1").await);
    assert_eq!(code(&fake, &release).await, "InvalidIPAddress.InUse");
    fake.with(|account| account.detach_now("203.0.113.1"));
    assert_eq!(call(&fake, &release).await.0, 200);
    assert_eq!(code(&fake, &release).await, "InvalidAllocationID.NotFound");
    let tagged = "Action=AllocateAddress&TagSpecification.1.ResourceType=elastic-ip&TagSpecification.1.Tag.1.Key=k&TagSpecification.1.Tag.1.Value=v";
    let made = text_of(&fake, tagged, "publicIp").await;
    let form = format!("Action=DescribeAddresses&Filter.1.Name=public-ip&Filter.1.Value.1={made}");
    assert_eq!(
        (text_of(&fake, &form, "key").await, text_of(&fake, &form, "value").await),
        ("k".into(), "v".into())
    );
}

#[tokio::test(start_paused = true)]
async fn lagging_reads_return_the_old_state() {
    let fake = account();
    fake.with(|account| account.lag = Duration::from_secs(5));
    assert_eq!(associate(&fake, "203.0.113.1", "i-1", "").await.0, 200);
    let holder = async || text_of(&fake, "Action=DescribeAddresses", "instanceId").await;
    assert_eq!(holder().await, "");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(holder().await, "i-1");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_reports_whether_the_call_is_allowed() {
    let fake = account();
    let form = "Action=AllocateAddress&DryRun=true";
    assert_eq!(code(&fake, form).await, "DryRunOperation");
    fake.with(|account| _ = account.denied.insert("ec2:AllocateAddress".into()));
    assert_eq!(code(&fake, form).await, "UnauthorizedOperation");
    assert_eq!(fake.ledger().done, []);
}

#[tokio::test(start_paused = true)]
async fn each_call_has_its_own_token_bucket() {
    let fake = account();
    let mut allowed = 0;
    while call(&fake, "Action=AllocateAddress").await.0 == 200 {
        allowed += 1;
    }
    assert_eq!(allowed, 50);
    assert_eq!(call(&fake, "Action=AllocateAddress").await.0, 503);
    assert_eq!(code(&fake, "Action=AllocateAddress").await, "RequestLimitExceeded");
    assert_eq!(call(&fake, "Action=DescribeAddresses").await.0, 200);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..5 {
        assert_eq!(call(&fake, "Action=AllocateAddress").await.0, 200);
    }
}
