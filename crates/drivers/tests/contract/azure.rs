//! The contract tests on a fake Azure subscription.

use drivers::azure::addresses::Azure;
use drivers::{AddressDriver, tokens};
use plan::{Provider, Scope, VmId};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::CloudChange;
use testbed::fake::{Fake, azure};

use crate::support::canary::TOKEN;
use crate::support::{scope, service};
use crate::{ADDRESS, AFAR, Account, Kind, ONE, OTHER, TWO};

const SUBSCRIPTION: &str = "subscription";
const GROUP: &str = "Group";
const REGION: &str = "westeurope";

pub struct Ours {
    fake: Fake<azure::Azure>,
    driver: Azure,
}

impl Account for Ours {
    const NAME: &'static str = "azure";
    const CALLS: &'static [&'static str] = drivers::azure::addresses::CALLS;
    const SAYS_WHEN_TO_RETRY: bool = true;

    async fn new() -> Self {
        let mut subscription = azure::Azure::new(SUBSCRIPTION, GROUP, TOKEN);
        for (machine, region) in [(ONE, REGION), (TWO, REGION), (AFAR, "eastus")] {
            subscription.add_machine(machine, region);
        }
        subscription.add_address("ours", REGION, ADDRESS);
        subscription.add_address("other", REGION, OTHER);
        let fake = Fake::new(subscription);
        let group = Some(GROUP.to_owned());
        let driver = Azure::new(service(&fake), "http://azure.invalid", tokens::fixed(TOKEN), group);
        Self { fake, driver }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.fake.ledger().calls().into_keys().collect()
    }

    fn driver(&self) -> &dyn AddressDriver {
        &self.driver
    }

    fn scope(&self) -> Scope {
        scope(Provider::Azure, SUBSCRIPTION)
    }

    fn vm(&self, name: &str) -> VmId {
        self.fake.with(|subscription| subscription.vm(name)).into()
    }

    fn region(&self) -> &str {
        REGION
    }

    async fn inject_fault(&self, request: Kind, fault: Fault) {
        let call = match request {
            Kind::List => "PublicIPAddresses_ListAll",
            Kind::Attach | Kind::Detach => "NetworkInterfaces_CreateOrUpdate",
            Kind::Create => "PublicIPAddresses_CreateOrUpdate",
            Kind::Release => "PublicIPAddresses_Delete",
        };
        self.fake.inject(Rule::next(call, fault));
    }

    async fn deny(&self, request: Kind) -> &'static str {
        let action = match request {
            Kind::List => "Microsoft.Network/publicIPAddresses/read",
            Kind::Attach => "Microsoft.Network/publicIPAddresses/join/action",
            Kind::Detach => "Microsoft.Network/networkInterfaces/write",
            Kind::Create => "Microsoft.Network/publicIPAddresses/write",
            Kind::Release => "Microsoft.Network/publicIPAddresses/delete",
        };
        self.fake.with(|subscription| _ = subscription.denied.insert(action.to_owned()));
        action
    }

    async fn add_addresses(&self, count: usize) {
        self.fake.with(|subscription| {
            for at in 0..count {
                let ip = format!("198.18.{}.{}", at / 250, at % 250);
                subscription.add_address(&format!("a{at}"), REGION, &ip);
            }
        });
    }

    async fn remove_address(&self, ip: &str) {
        self.fake.with(|subscription| subscription.remove_address(ip));
    }

    async fn put_on(&self, ip: &str, machine: &str) {
        self.fake.with(|subscription| subscription.attach_now(ip, machine));
    }

    async fn stop(&self, machine: &str) {
        self.fake.with(|subscription| subscription.stop_machine(machine));
    }

    async fn remove(&self, machine: &str) {
        self.fake.with(|subscription| subscription.remove_machine(machine));
    }

    async fn holder(&self, ip: &str) -> Option<VmId> {
        self.fake.with(|subscription| subscription.holder(ip)).map(Into::into)
    }

    async fn changes(&self) -> usize {
        self.fake.ledger().done.iter().filter(|done| !matches!(done.change, CloudChange::Other(_))).count()
    }

    async fn doubled(&self) -> Vec<String> {
        self.fake.ledger().double_holders()
    }
}
