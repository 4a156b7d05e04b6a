//! The contract tests on a fake AWS account, and on moto.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drivers::AddressDriver;
use drivers::aws::addresses::Ec2;
use drivers::http::{HttpService, with_deadline};
use drivers::network::network;
use plan::{Provider, Scope, VmId};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::CloudChange;
use testbed::fake::{Fake, ec2 as cloud};
use testbed::moto::{KEY, Moto};
use tokio::sync::OnceCell;

use crate::support::canary::AWS_SECRET;
use crate::support::{aws, scope};
use crate::{ADDRESS, AFAR, Account, Kind, ONE, OTHER, TWO};

const REGION: &str = "us-east-1";
const ELSEWHERE: &str = "eu-west-1";

const ONE_PAGE: Option<&str> = Some("EC2 lists all addresses of a region on one page");
const NEVER_FAILS_LATE: Option<&str> = Some("EC2 finishes a change before it responds");

/// Neither server returns stale reads.
const STALENESS_MAX: Duration = Duration::from_secs(1);

pub struct Ours {
    fake: Fake<cloud::Ec2>,
    driver: Ec2,
}

fn driver(service: HttpService) -> Ec2 {
    aws::ec2(with_deadline(service), AWS_SECRET, STALENESS_MAX)
}

fn region_of(machine: &str) -> &'static str {
    if machine == AFAR { ELSEWHERE } else { REGION }
}

fn call(request: Kind) -> (&'static str, &'static str) {
    match request {
        Kind::List => ("DescribeAddresses", "ec2:DescribeAddresses"),
        Kind::Attach => ("AssociateAddress", "ec2:AssociateAddress"),
        Kind::Detach => ("DisassociateAddress", "ec2:DisassociateAddress"),
        Kind::Create => ("AllocateAddress", "ec2:AllocateAddress"),
        Kind::Release => ("ReleaseAddress", "ec2:ReleaseAddress"),
    }
}

/// The n-th additional address.
fn further(at: usize) -> String {
    format!("198.18.{}.{}", at / 250, at % 250)
}

impl Account for Ours {
    const NAME: &'static str = "aws";
    const CALLS: &'static [&'static str] = drivers::aws::addresses::CALLS;
    const ONE_PAGE: Option<&'static str> = ONE_PAGE;
    const NEVER_FAILS_LATE: Option<&'static str> = NEVER_FAILS_LATE;

    async fn new() -> Self {
        let mut account = cloud::Ec2::new(KEY);
        for machine in [ONE, TWO, AFAR] {
            account.add_instance_without_address(region_of(machine), &format!("i-{machine}"));
        }
        account.add_address(REGION, ADDRESS);
        account.add_address(REGION, OTHER);
        let fake = Fake::new(account);
        let driver = driver(HttpService::new(fake.service()));
        Self { fake, driver }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.fake.ledger().calls().into_keys().collect()
    }

    fn driver(&self) -> &dyn AddressDriver {
        &self.driver
    }

    fn scope(&self) -> Scope {
        scope(Provider::Aws, REGION)
    }

    fn vm(&self, name: &str) -> VmId {
        format!("{}/i-{name}", region_of(name)).into()
    }

    fn region(&self) -> &str {
        REGION
    }

    async fn inject_fault(&self, request: Kind, fault: Fault) {
        self.fake.inject(Rule::next(call(request).0, fault));
    }

    async fn deny(&self, request: Kind) -> &'static str {
        let (_, permission) = call(request);
        self.fake.with(|account| _ = account.denied.insert(permission.into()));
        permission
    }

    async fn add_addresses(&self, count: usize) {
        self.fake.with(|account| (0..count).for_each(|at| account.add_address(REGION, &further(at))));
    }

    async fn remove_address(&self, ip: &str) {
        self.fake.with(|account| account.remove_address(ip));
    }

    async fn put_on(&self, ip: &str, machine: &str) {
        self.fake.with(|account| account.attach_now(ip, &format!("i-{machine}")));
    }

    async fn stop(&self, machine: &str) {
        self.fake.with(|account| account.stop_instance(&format!("i-{machine}")));
    }

    async fn remove(&self, machine: &str) {
        self.fake.with(|account| account.terminate_instance(&format!("i-{machine}")));
    }

    async fn holder(&self, ip: &str) -> Option<VmId> {
        self.fake.with(|account| account.holder(ip)).map(Into::into)
    }

    async fn changes(&self) -> usize {
        self.fake.ledger().done.iter().filter(|done| !matches!(done.change, CloudChange::Other(_))).count()
    }

    async fn doubled(&self) -> Vec<String> {
        self.fake.ledger().double_holders()
    }
}

/// An account on moto. All cases use one server, which is reset before each case.
pub struct OnMoto {
    moto: Moto,
    driver: Ec2,
    instances: BTreeMap<&'static str, String>,
}

static MOTO: OnceCell<Moto> = OnceCell::const_new();

/// The moto server, in real time.
pub async fn moto() -> Moto {
    let start = async || {
        let upstream = network(Arc::new(|| true), Duration::from_secs(5)).unwrap();
        Moto::start(upstream).await.unwrap()
    };
    MOTO.get_or_init(start).await.clone()
}

impl OnMoto {
    async fn ask(&self, form: &str) -> String {
        self.moto.ec2(REGION, form).await.unwrap()
    }

    /// Reads one XML element of an address.
    async fn read(&self, ip: &str, element: &str) -> String {
        let form = format!("Action=DescribeAddresses&Filter.1.Name=public-ip&Filter.1.Value.1={ip}");
        let body = self.ask(&form).await;
        let value = body.split(&format!("<{element}>")).nth(1).and_then(|rest| rest.split('<').next());
        value.unwrap_or_default().to_owned()
    }
}

impl Account for OnMoto {
    const NAME: &'static str = "aws on moto";
    const ONE_PAGE: Option<&'static str> = ONE_PAGE;
    const NEVER_FAILS_LATE: Option<&'static str> = NEVER_FAILS_LATE;

    async fn new() -> Self {
        let moto = moto().await;
        moto.reset().await.unwrap();
        let mut instances = BTreeMap::new();
        for machine in [ONE, TWO, AFAR] {
            instances.insert(machine, moto.add_instance(region_of(machine), false).await.unwrap());
        }
        let driver = driver(moto.service());
        let account = Self { moto, driver, instances };
        for ip in [ADDRESS, OTHER] {
            account.ask(&format!("Action=AllocateAddress&Domain=vpc&Address={ip}")).await;
        }
        account
    }

    fn driver(&self) -> &dyn AddressDriver {
        &self.driver
    }

    fn scope(&self) -> Scope {
        scope(Provider::Aws, REGION)
    }

    fn vm(&self, name: &str) -> VmId {
        let instance = self.instances.get(name).map_or("i-00000000000000000", String::as_str);
        format!("{}/{instance}", region_of(name)).into()
    }

    fn region(&self) -> &str {
        REGION
    }

    async fn inject_fault(&self, request: Kind, fault: Fault) {
        self.moto.inject(Rule::next(call(request).0, fault));
    }

    async fn deny(&self, request: Kind) -> &'static str {
        let (_, permission) = call(request);
        self.moto.deny(permission);
        permission
    }

    async fn add_addresses(&self, count: usize) {
        for at in 0..count {
            self.ask(&format!("Action=AllocateAddress&Domain=vpc&Address={}", further(at))).await;
        }
    }

    async fn remove_address(&self, ip: &str) {
        let allocation = self.read(ip, "allocationId").await;
        self.ask(&format!("Action=ReleaseAddress&AllocationId={allocation}")).await;
    }

    async fn put_on(&self, ip: &str, machine: &str) {
        let (allocation, instance) = (self.read(ip, "allocationId").await, &self.instances[machine]);
        self.ask(&format!("Action=AssociateAddress&AllocationId={allocation}&InstanceId={instance}")).await;
    }

    async fn stop(&self, machine: &str) {
        self.ask(&format!("Action=StopInstances&InstanceId.1={}", self.instances[machine])).await;
    }

    async fn remove(&self, machine: &str) {
        self.moto.terminate_instance(region_of(machine), &self.instances[machine]).await.unwrap();
    }

    async fn holder(&self, ip: &str) -> Option<VmId> {
        self.moto.holder(REGION, ip).await.unwrap().map(Into::into)
    }

    async fn changes(&self) -> usize {
        let calls = self.moto.calls();
        calls.iter().filter(|(call, _)| !call.starts_with("Describe")).map(|(_, count)| count).sum()
    }

    async fn doubled(&self) -> Vec<String> {
        self.moto.taking()
    }
}
