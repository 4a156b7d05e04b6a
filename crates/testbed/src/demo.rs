//! The nodes that `just testbed up` creates, and the fake clouds with their VMs that `just fakes` serves.

use std::net::SocketAddr;

use crate::cluster::{NodeFixture, node};
use crate::fake::azure::Azure;
use crate::fake::cloudflare::Cloudflare;
use crate::fake::compute::Compute;
use crate::fake::digitalocean::DigitalOcean;
use crate::fake::ec2::Ec2;
use crate::fake::entra::Entra;
use crate::fake::http::{Server, serve};
use crate::fake::ledger::CloudChange;
use crate::fake::metadata::Metadata;
use crate::fake::{Fake, Machine};
use tokio::time::Instant;

/// The token that all fake clouds of the demo accept.
pub const TOKEN: &str = "demo-token";

/// The Compute Engine project of the demo.
pub const PROJECT: &str = "demo";

/// The Azure subscription of the demo, and the resource group that contains all its resources.
pub const SUBSCRIPTION: (&str, &str) = ("demo", "Demo");

/// Names of the Azure VMs.
pub const AZURE_MACHINES: [&str; 3] = ["azure-1", "azure-2", "azure-3"];

/// Names of the AWS VMs. The instance ID is `i-` followed by the name.
pub const AWS_MACHINES: [&str; 3] = ["aws-1", "aws-2", "aws-3"];

/// The Cloudflare zone of the demo.
pub const ZONE: &str = "example.com";

/// Names and zones of the Compute Engine nodes.
pub const EDGE_NODES: [(&str, &str); 3] =
    [("edge-1", "us-west1-a"), ("edge-2", "us-west1-b"), ("edge-3", "us-west1-a")];

/// Names and droplet IDs of the DigitalOcean nodes.
pub const WORKER_NODES: [(&str, u64); 3] = [("worker-1", 1001), ("worker-2", 1002), ("worker-3", 1003)];

/// The nodes that the demo creates.
pub fn nodes() -> Vec<NodeFixture> {
    let edges = EDGE_NODES.into_iter().map(|(name, zone)| edge_node(name, zone));
    let workers = WORKER_NODES.into_iter().map(|(name, droplet)| worker_node(name, droplet));
    edges.chain(workers).collect()
}

/// A Compute Engine node with the label `role=external-ip-node`.
pub fn edge_node(name: &str, zone: &str) -> NodeFixture {
    node(name)
        .provider_id(&format!("gce://{PROJECT}/{zone}/{name}"))
        .label("role", "external-ip-node")
        .label("topology.kubernetes.io/region", "us-west1")
        .label("topology.kubernetes.io/zone", zone)
}

/// A DigitalOcean node with the label `doks.digitalocean.com/node-pool=work`.
pub fn worker_node(name: &str, droplet: u64) -> NodeFixture {
    node(name)
        .provider_id(&format!("digitalocean://{droplet}"))
        .label("doks.digitalocean.com/node-pool", "work")
        .label("topology.kubernetes.io/region", "nyc3")
}

/// An AWS node with the label `role=aws`, on the instance `i-NAME`. The demo itself creates no such node.
pub fn aws_node(name: &str) -> NodeFixture {
    node(name)
        .provider_id(&format!("aws:///us-east-1a/i-{name}"))
        .label("role", "aws")
        .label("topology.kubernetes.io/region", "us-east-1")
}

/// An Azure node with the label `role=azure`. The demo itself creates no such node.
pub fn azure_node(name: &str) -> NodeFixture {
    let (subscription, group) = SUBSCRIPTION;
    let group = format!("azure:///subscriptions/{subscription}/resourceGroups/{group}");
    node(name)
        .provider_id(&format!("{group}/providers/Microsoft.Compute/virtualMachines/{name}"))
        .label("role", "azure")
        .label("topology.kubernetes.io/region", "westeurope")
}

/// The fake clouds that the demo's nodes run in.
pub struct Clouds {
    /// Compute Engine, with two reserved addresses in us-west1.
    pub compute: Fake<Compute>,
    /// The metadata server that issues tokens for Compute Engine.
    pub metadata: Fake<Metadata>,
    /// DigitalOcean, with two reserved addresses in nyc3.
    pub digitalocean: Fake<DigitalOcean>,
    /// Cloudflare, with the empty zone [`ZONE`].
    pub cloudflare: Fake<Cloudflare>,
    /// EC2, with two addresses in us-east-1.
    pub ec2: Fake<Ec2>,
    /// Azure, with two addresses in westeurope.
    pub azure: Fake<Azure>,
    /// Entra ID, which issues tokens for Azure.
    pub entra: Fake<Entra>,
}

impl Default for Clouds {
    fn default() -> Self {
        let mut compute = Compute::new(PROJECT, TOKEN);
        for (name, zone) in EDGE_NODES {
            compute.add_instance(zone, name);
        }
        compute.add_address("us-west1", "edge-address-1", "34.123.45.67");
        compute.add_address("us-west1", "edge-address-2", "34.123.45.68");
        let mut digitalocean = DigitalOcean::new(TOKEN);
        for (name, droplet) in WORKER_NODES {
            digitalocean.add_droplet(droplet, name, "nyc3");
        }
        digitalocean.add_reserved_ip("203.0.113.10", "nyc3");
        digitalocean.add_reserved_ip("203.0.113.11", "nyc3");
        let mut cloudflare = Cloudflare::new(TOKEN);
        cloudflare.add_zone(ZONE);
        let mut ec2 = Ec2::new(TOKEN);
        for name in AWS_MACHINES {
            ec2.add_instance_without_address("us-east-1", &format!("i-{name}"));
        }
        ec2.add_address("us-east-1", "203.0.113.40");
        ec2.add_address("us-east-1", "203.0.113.41");
        let mut azure = Azure::new(SUBSCRIPTION.0, SUBSCRIPTION.1, TOKEN);
        AZURE_MACHINES.iter().for_each(|name| azure.add_machine(name, "westeurope"));
        azure.add_address("azure-address-1", "westeurope", "203.0.113.30");
        azure.add_address("azure-address-2", "westeurope", "203.0.113.31");
        // Azure asks clients to poll every 10 s. That is too long for manual experiments.
        azure.poll_seconds = 1;
        Self {
            compute: Fake::new(compute),
            metadata: Fake::new(Metadata::new(PROJECT, TOKEN)),
            digitalocean: Fake::new(digitalocean),
            cloudflare: Fake::new(cloudflare),
            ec2: Fake::new(ec2),
            azure: Fake::new(azure),
            entra: Fake::new(Entra::new("demo", "demo", TOKEN, TOKEN)),
        }
    }
}

impl Clouds {
    /// Serves all clouds on loopback, on consecutive ports from `first_port`, or on free ports if it is 0.
    pub async fn serve(&self, first_port: u16) -> std::io::Result<Servers> {
        let port = |offset| if first_port == 0 { 0 } else { first_port + offset };
        Ok(Servers {
            compute: serve(&self.compute, port(0)).await?,
            metadata: serve(&self.metadata, port(1)).await?,
            digitalocean: serve(&self.digitalocean, port(2)).await?,
            cloudflare: serve(&self.cloudflare, port(3)).await?,
            azure: serve(&self.azure, port(4)).await?,
            entra: serve(&self.entra, port(5)).await?,
            ec2: serve(&self.ec2, port(6)).await?,
        })
    }

    /// Every change so far in any of the clouds, as text, in order of time.
    pub fn changes(&self) -> Vec<String> {
        fn of<M: Machine>(name: &str, fake: &Fake<M>) -> Vec<(Instant, String)> {
            let in_words = |(at, change): (Instant, CloudChange)| (at, format!("{name}: {change}"));
            fake.changes().into_iter().map(in_words).collect()
        }
        let mut changes = [
            of("compute", &self.compute),
            of("digitalocean", &self.digitalocean),
            of("cloudflare", &self.cloudflare),
            of("azure", &self.azure),
            of("ec2", &self.ec2),
        ]
        .concat();
        changes.sort_by_key(|(at, _)| *at);
        changes.into_iter().map(|(_, change)| change).collect()
    }
}

/// The fake clouds on loopback.
pub struct Servers {
    compute: Server,
    metadata: Server,
    digitalocean: Server,
    cloudflare: Server,
    azure: Server,
    entra: Server,
    ec2: Server,
}

impl Servers {
    /// The environment variables that point a controller at these servers.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let host = |address: SocketAddr| address.to_string();
        vec![
            ("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", format!("{}/compute/v1/", self.compute.url())),
            ("GCE_METADATA_HOST", host(self.metadata.address)),
            ("DIGITALOCEAN_API_URL", self.digitalocean.url()),
            ("DIGITALOCEAN_ACCESS_TOKEN", TOKEN.to_owned()),
            ("CLOUDFLARE_API_URL", format!("{}/client/v4", self.cloudflare.url())),
            ("CLOUDFLARE_TOKEN", TOKEN.to_owned()),
            ("AWS_ENDPOINT_URL", self.ec2.url()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", TOKEN.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", TOKEN.to_owned()),
            ("AZURE_RESOURCE_MANAGER_ENDPOINT", self.azure.url()),
            ("AZURE_RESOURCE_GROUP", SUBSCRIPTION.1.to_owned()),
            // With this kind of managed identity (Azure App Service), the token endpoint comes from a variable. For a
            // VM's managed identity, the client library has a fixed URL.
            ("IDENTITY_ENDPOINT", format!("{}/metadata/identity/oauth2/token", self.entra.url())),
            ("IDENTITY_HEADER", TOKEN.to_owned()),
        ]
    }
}
