//! The contract tests on a fake Google Cloud project.

use drivers::google::addresses::Compute;
use drivers::{AddressDriver, tokens};
use plan::{Provider, Scope, VmId};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::CloudChange;
use testbed::fake::{Fake, compute};

use crate::support::canary::TOKEN;
use crate::support::{scope, service};
use crate::{ADDRESS, AFAR, Account, Kind, ONE, OTHER, TWO};

const PROJECT: &str = "demo";
const REGION: &str = "us-west1";

pub struct Ours {
    fake: Fake<compute::Compute>,
    driver: Compute,
}

fn zone(machine: &str) -> &'static str {
    if machine == AFAR { "europe-west1-b" } else { "us-west1-a" }
}

impl Account for Ours {
    const NAME: &'static str = "gcp";
    const CALLS: &'static [&'static str] = drivers::google::addresses::CALLS;

    async fn new() -> Self {
        let mut project = compute::Compute::new(PROJECT, TOKEN);
        for machine in [ONE, TWO, AFAR] {
            project.add_instance_without_address(zone(machine), machine);
        }
        project.add_address(REGION, "ours", ADDRESS);
        project.add_address(REGION, "other", OTHER);
        let fake = Fake::new(project);
        let driver = Compute::new(service(&fake), "http://compute.invalid/compute/v1/", tokens::fixed(TOKEN));
        Self { fake, driver }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.fake.ledger().calls().into_keys().collect()
    }

    fn driver(&self) -> &dyn AddressDriver {
        &self.driver
    }

    fn scope(&self) -> Scope {
        scope(Provider::Gcp, PROJECT)
    }

    fn vm(&self, name: &str) -> VmId {
        format!("{PROJECT}/{}/{name}", zone(name)).into()
    }

    fn region(&self) -> &str {
        REGION
    }

    async fn inject_fault(&self, request: Kind, fault: Fault) {
        let call = match request {
            Kind::List => "addresses.aggregatedList",
            Kind::Attach => "instances.addAccessConfig",
            Kind::Detach => "instances.deleteAccessConfig",
            Kind::Create => "addresses.insert",
            Kind::Release => "addresses.delete",
        };
        self.fake.inject(Rule::next(call, fault));
    }

    async fn deny(&self, request: Kind) -> &'static str {
        let permission = match request {
            Kind::List => "compute.addresses.list",
            Kind::Attach => "compute.instances.addAccessConfig",
            Kind::Detach => "compute.instances.deleteAccessConfig",
            Kind::Create => "compute.addresses.create",
            Kind::Release => "compute.addresses.delete",
        };
        self.fake.with(|project| _ = project.denied.insert(permission.to_owned()));
        permission
    }

    async fn add_addresses(&self, count: usize) {
        self.fake.with(|project| {
            for at in 0..count {
                let ip = format!("198.18.{}.{}", at / 250, at % 250);
                project.add_address(REGION, &format!("a{at}"), &ip);
            }
        });
    }

    async fn remove_address(&self, ip: &str) {
        self.fake.with(|project| project.remove_address(ip));
    }

    async fn put_on(&self, ip: &str, machine: &str) {
        self.fake.with(|project| project.attach_now(ip, zone(machine), machine));
    }

    async fn stop(&self, machine: &str) {
        self.fake.with(|project| project.stop_instance(zone(machine), machine));
    }

    async fn remove(&self, machine: &str) {
        self.fake.with(|project| project.remove_instance(zone(machine), machine));
    }

    async fn holder(&self, ip: &str) -> Option<VmId> {
        self.fake.with(|project| project.holder(ip)).map(Into::into)
    }

    async fn changes(&self) -> usize {
        self.fake.ledger().done.iter().filter(|done| !matches!(done.change, CloudChange::Other(_))).count()
    }

    async fn doubled(&self) -> Vec<String> {
        self.fake.ledger().double_holders()
    }
}
