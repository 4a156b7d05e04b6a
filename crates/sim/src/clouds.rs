//! The clouds of a run and their initial content.
//!
//! Out: the fake clouds, each with reserved addresses and one VM outside the cluster, and their names. This file never
//! changes a cloud during a run: people (`cluster`) and the controller do.

use testbed::fake::Fake;
use testbed::fake::azure::Azure;
use testbed::fake::cloudflare::Cloudflare;
use testbed::fake::compute::Compute;
use testbed::fake::digitalocean::DigitalOcean;
use testbed::fake::ec2::Ec2;
use testbed::fake::route53::Route53;

use crate::options::ADDRESSES;

/// A cloud that has addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Cloud {
    Compute,
    Ocean,
    Azure,
    Aws,
}

impl Cloud {
    /// All clouds.
    pub const ALL: [Self; 4] = [Self::Compute, Self::Ocean, Self::Azure, Self::Aws];
}

/// The token or access key that all clouds accept.
pub const TOKEN: &str = "sim-token";

/// The project at Google Cloud.
pub const PROJECT: &str = "sim";

/// The subscription at Azure.
pub const SUBSCRIPTION: &str = "sim";
/// The resource group in [`SUBSCRIPTION`].
pub const GROUP: &str = "group";

/// The region at Google Cloud.
pub(crate) const REGION: &str = "us-west1";
/// The zones of [`REGION`].
pub(crate) const ZONES: [&str; 3] = ["us-west1-a", "us-west1-b", "us-west1-c"];

/// The region at DigitalOcean.
pub(crate) const OCEAN_REGION: &str = "nyc3";

/// The region at Azure.
pub(crate) const AZURE_REGION: &str = "westeurope";

/// The region at AWS.
pub const AWS_REGION: &str = "us-east-1";
/// The zone in [`AWS_REGION`].
pub const AWS_ZONE: &str = "us-east-1a";

/// A VM outside the cluster, at Google Cloud and Azure.
pub const STRANGER: &str = "stranger";
/// The VM outside the cluster at AWS.
pub const STRANGER_INSTANCE: &str = "i-stranger";
/// The VM outside the cluster at DigitalOcean.
pub const STRANGER_DROPLET: u64 = 9_999;

/// The DNS zone at every DNS provider.
pub const DNS_ZONE: &str = "example.com";

/// The fake clouds and DNS providers of a run.
pub struct Clouds {
    /// Google Cloud.
    pub compute: Fake<Compute>,
    /// DigitalOcean.
    pub ocean: Fake<DigitalOcean>,
    /// Cloudflare.
    pub zones: Fake<Cloudflare>,
    /// Azure.
    pub azure: Fake<Azure>,
    /// EC2.
    pub ec2: Fake<Ec2>,
    /// Route 53.
    pub route53: Fake<Route53>,
}

/// Creates the fakes with their initial content.
pub fn clouds() -> Clouds {
    let mut compute = Compute::new(PROJECT, TOKEN);
    compute.add_instance_without_address(ZONES[0], STRANGER);
    for number in 0..ADDRESSES {
        compute.add_address(REGION, &format!("address-{number}"), &compute_address(number));
    }
    let mut ocean = DigitalOcean::new(TOKEN);
    ocean.add_droplet(STRANGER_DROPLET, STRANGER, OCEAN_REGION);
    for number in 0..ADDRESSES {
        ocean.add_reserved_ip(ocean_address(number), OCEAN_REGION);
    }
    ocean.add_domain(DNS_ZONE);
    let mut zones = Cloudflare::new(TOKEN);
    zones.add_zone(DNS_ZONE);
    let mut azure = Azure::new(SUBSCRIPTION, GROUP, TOKEN);
    azure.add_machine(STRANGER, AZURE_REGION);
    for number in 0..ADDRESSES {
        azure.add_address(&azure_name(number), AZURE_REGION, &azure_address(number));
    }
    let mut ec2 = Ec2::new(TOKEN);
    ec2.add_instance_without_address(AWS_REGION, STRANGER_INSTANCE);
    (0..ADDRESSES).for_each(|number| ec2.add_address(AWS_REGION, &aws_address(number)));
    let mut route53 = Route53::new(TOKEN);
    route53.add_zone(DNS_ZONE);
    Clouds {
        compute: Fake::new(compute),
        ocean: Fake::new(ocean),
        zones: Fake::new(zones),
        azure: Fake::new(azure),
        ec2: Fake::new(ec2),
        route53: Fake::new(route53),
    }
}

/// An address at Google Cloud.
pub fn compute_address(number: u64) -> String {
    format!("10.0.0.{}", number + 1)
}

/// An address at DigitalOcean.
pub(crate) fn ocean_address(number: u64) -> String {
    format!("198.51.100.{}", number + 1)
}

/// An address at Azure.
pub fn azure_address(number: u64) -> String {
    format!("10.1.0.{}", number + 1)
}

/// The resource name of an address at Azure.
pub fn azure_name(number: u64) -> String {
    format!("address-{number}")
}

/// An address at AWS.
pub fn aws_address(number: u64) -> String {
    format!("10.2.0.{}", number + 1)
}

/// An address at a cloud.
pub(crate) fn address_at(cloud: Cloud, number: u64) -> String {
    match cloud {
        Cloud::Compute => compute_address(number),
        Cloud::Ocean => ocean_address(number),
        Cloud::Azure => azure_address(number),
        Cloud::Aws => aws_address(number),
    }
}
