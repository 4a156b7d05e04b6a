//! The contract tests on a fake DigitalOcean account.

use drivers::digitalocean::addresses::DigitalOcean;
use drivers::{AddressDriver, tokens};
use plan::{Provider, Scope, VmId};
use testbed::fake::faults::{Fault, Rule};
use testbed::fake::ledger::CloudChange;
use testbed::fake::{Fake, Refusal, digitalocean};

use crate::support::canary::TOKEN;
use crate::support::{scope, service};
use crate::{ADDRESS, AFAR, Account, Kind, ONE, OTHER, TWO};

const REGION: &str = "nyc3";

pub struct Ours {
    fake: Fake<digitalocean::DigitalOcean>,
    driver: DigitalOcean,
}

fn droplet(machine: &str) -> u64 {
    match machine {
        ONE => 1,
        TWO => 2,
        AFAR => 3,
        _ => 99,
    }
}

fn call(request: Kind) -> &'static str {
    match request {
        Kind::List => "reserved_ips.list",
        Kind::Attach | Kind::Detach => "reserved_ips_actions.post",
        Kind::Create => "reserved_ips.create",
        Kind::Release => "reserved_ips.delete",
    }
}

impl Account for Ours {
    const NAME: &'static str = "digitalocean";
    const CALLS: &'static [&'static str] = drivers::digitalocean::addresses::CALLS;
    const SAYS_WHEN_TO_RETRY: bool = true;

    async fn new() -> Self {
        let mut account = digitalocean::DigitalOcean::new(TOKEN);
        for (machine, region) in [(ONE, REGION), (TWO, REGION), (AFAR, "ams3")] {
            account.add_droplet(droplet(machine), machine, region);
        }
        account.add_reserved_ip(ADDRESS, REGION);
        account.add_reserved_ip(OTHER, REGION);
        let fake = Fake::new(account);
        let driver = DigitalOcean::new(service(&fake), "http://digitalocean.invalid/", tokens::fixed(TOKEN));
        Self { fake, driver }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.fake.ledger().calls().into_keys().collect()
    }

    fn driver(&self) -> &dyn AddressDriver {
        &self.driver
    }

    fn scope(&self) -> Scope {
        scope(Provider::DigitalOcean, "")
    }

    fn vm(&self, name: &str) -> VmId {
        droplet(name).to_string().into()
    }

    fn region(&self) -> &str {
        REGION
    }

    async fn inject_fault(&self, request: Kind, fault: Fault) {
        self.fake.inject(Rule::next(call(request), fault));
    }

    async fn deny(&self, request: Kind) -> &'static str {
        let refusal =
            Fault::Refuse(Refusal::Forbidden("You are not authorized to perform this operation".into()));
        self.fake.inject(Rule::next(call(request), refusal));
        match request {
            Kind::List => "reserved_ip:read",
            Kind::Attach | Kind::Detach => "reserved_ip:update",
            Kind::Create => "reserved_ip:create",
            Kind::Release => "reserved_ip:delete",
        }
    }

    async fn add_addresses(&self, count: usize) {
        self.fake.with(|account| {
            for at in 0..count {
                account.add_reserved_ip(format!("198.18.{}.{}", at / 250, at % 250), REGION);
            }
        });
    }

    async fn remove_address(&self, ip: &str) {
        self.fake.with(|account| account.remove_reserved_ip(ip));
    }

    async fn put_on(&self, ip: &str, machine: &str) {
        self.fake.with(|account| account.assign_now(ip, droplet(machine)));
    }

    async fn stop(&self, machine: &str) {
        self.fake.with(|account| account.power_off(droplet(machine)));
    }

    async fn remove(&self, machine: &str) {
        self.fake.with(|account| account.remove_droplet(droplet(machine)));
    }

    async fn holder(&self, ip: &str) -> Option<VmId> {
        self.fake.with(|account| account.holder(ip)).map(|droplet| droplet.to_string().into())
    }

    async fn changes(&self) -> usize {
        self.fake.ledger().done.iter().filter(|done| !matches!(done.change, CloudChange::Other(_))).count()
    }

    async fn doubled(&self) -> Vec<String> {
        self.fake.ledger().double_holders()
    }
}
