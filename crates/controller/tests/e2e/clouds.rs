//! NetIPAllocations and FloatingIPPools on each of the four clouds: `just e2e clouds`.

use serde_json::{Value, json};
use testbed::cluster::{NodeFixture, eventually};
use testbed::demo::TOKEN;
use testbed::demo::{AWS_MACHINES, AZURE_MACHINES, EDGE_NODES, WORKER_NODES};
use testbed::demo::{aws_node, azure_node, edge_node, worker_node};
use testbed::fake::Fake;
use testbed::fake::http::serve;
use testbed::fake::ledger::Ledger;
use testbed::fake::sts::Sts;

use crate::manifests::{allocation, pool};
use crate::rig::{Rig, SOON};

/// A cloud with three nodes and two addresses.
struct Cloud {
    provider: &'static str,
    region: &'static str,
    addresses: [&'static str; 2],
    /// The label of its nodes.
    label: (&'static str, &'static str),
    nodes: fn() -> Vec<NodeFixture>,
    /// The node that holds an address.
    holder: fn(&Rig, &str) -> Option<String>,
    /// Destroys the VM of a node.
    destroy: fn(&Rig, &str),
    ledger: fn(&Rig) -> Ledger,
}

const GCP: Cloud = Cloud {
    provider: "gcp",
    region: "us-west1",
    addresses: ["34.123.45.67", "34.123.45.68"],
    label: ("role", "external-ip-node"),
    nodes: || EDGE_NODES.iter().map(|(name, zone)| edge_node(name, zone)).collect(),
    holder: |rig, ip| last_part(rig.clouds.compute.with(|compute| compute.holder(ip))),
    destroy: |rig, node| {
        let zone = EDGE_NODES.iter().find(|(name, _)| *name == node).unwrap().1;
        rig.clouds.compute.with(|compute| compute.remove_instance(zone, node));
    },
    ledger: |rig| rig.clouds.compute.ledger(),
};

const AWS: Cloud = Cloud {
    provider: "aws",
    region: "us-east-1",
    addresses: ["203.0.113.40", "203.0.113.41"],
    label: ("role", "aws"),
    nodes: || AWS_MACHINES.iter().map(|name| aws_node(name)).collect(),
    holder: |rig, ip| {
        let instance = last_part(rig.clouds.ec2.with(|ec2| ec2.holder(ip)))?;
        Some(instance.trim_start_matches("i-").to_owned())
    },
    destroy: |rig, node| rig.clouds.ec2.with(|ec2| ec2.terminate_instance(&format!("i-{node}"))),
    ledger: |rig| rig.clouds.ec2.ledger(),
};

const AZURE: Cloud = Cloud {
    provider: "azure",
    region: "westeurope",
    addresses: ["203.0.113.30", "203.0.113.31"],
    label: ("role", "azure"),
    nodes: || AZURE_MACHINES.iter().map(|name| azure_node(name)).collect(),
    holder: |rig, ip| last_part(rig.clouds.azure.with(|azure| azure.holder(ip))),
    destroy: |rig, node| rig.clouds.azure.with(|azure| azure.remove_machine(node)),
    ledger: |rig| rig.clouds.azure.ledger(),
};

const DIGITALOCEAN: Cloud = Cloud {
    provider: "digitalocean",
    region: "nyc3",
    addresses: ["203.0.113.10", "203.0.113.11"],
    label: ("doks.digitalocean.com/node-pool", "work"),
    nodes: || WORKER_NODES.iter().map(|(name, droplet)| worker_node(name, *droplet)).collect(),
    holder: |rig, ip| {
        let droplet = rig.clouds.digitalocean.with(|account| account.holder(ip))?;
        WORKER_NODES.iter().find(|(_, known)| *known == droplet).map(|(name, _)| (*name).to_owned())
    },
    destroy: |rig, node| {
        let droplet = WORKER_NODES.iter().find(|(name, _)| *name == node).unwrap().1;
        rig.clouds.digitalocean.with(|account| account.remove_droplet(droplet));
    },
    ledger: |rig| rig.clouds.digitalocean.ledger(),
};

fn last_part(holder: Option<String>) -> Option<String> {
    holder?.rsplit('/').next().map(ToOwned::to_owned)
}

impl Cloud {
    async fn rig(&self) -> Rig {
        let rig = Rig::with(testbed::control_plane::Options::everything()).await;
        for node in (self.nodes)() {
            node.create(&rig.client).await.unwrap();
        }
        rig
    }

    /// Waits until the first address is on a node other than this one and the object is settled.
    async fn leaves(&self, rig: &Rig, node: &str, object: &str) {
        let address = self.addresses[0];
        let has_left = async || Ok((self.holder)(rig, address).is_some_and(|holder| holder != node));
        let took = eventually("the address is on another node", SOON, has_left)
            .await
            .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get(object)["status"], rig.logs()));
        rig.settled(object).await;
        println!("{}: {object}: on another node after {:.1} s", self.provider, took.as_secs_f64());
        assert_eq!((self.ledger)(rig).double_holders(), Vec::<String>::new());
    }

    /// The controller moves the address off a cordoned node that runs no pods of the workload.
    async fn an_allocation_leaves_a_cordoned_node(&self) {
        let rig = self.rig().await;
        let _controller = rig.controller("ip-address-controller", &[]);
        let spec = json!({
            "reservedIPs": self.addresses, "cloud": {"provider": self.provider},
            "nodeSelector": {self.label.0: self.label.1},
        });
        rig.control_plane.apply(&allocation("edge", spec).to_string()).unwrap();
        rig.settled("nia/edge").await;
        rig.labelled(|nodes| nodes.len() == 2).await;
        let node = (self.holder)(&rig, self.addresses[0]).unwrap();
        rig.kubectl(&["cordon", &node]);
        self.leaves(&rig, &node, "nia/edge").await;
        rig.labelled(|nodes| !nodes.contains(&node)).await;
    }

    /// The controller creates the missing address of a pool, and moves an address off a VM that is gone.
    async fn a_pool_creates_addresses_and_leaves_a_lost_node(&self) {
        let rig = self.rig().await;
        let _controller = rig.controller("ip-address-controller", &[]);
        let spec = json!({
            "provider": self.provider, "region": self.region, "ips": [self.addresses[0]], "desiredIPs": 2,
            "match": {"nodeLabel": format!("{}={}", self.label.0, self.label.1)},
        });
        rig.control_plane.apply(&pool("pool", spec).to_string()).unwrap();
        let two_active = async || {
            let ips = rig.get("floatingippool/pool")["status"]["ips"].clone();
            let is_active = |ip: &Value| ip["state"] == "active";
            Ok(ips.as_object().is_some_and(|ips| ips.len() == 2 && ips.values().all(is_active)))
        };
        eventually("an address was created and both are on nodes", SOON, two_active)
            .await
            .unwrap_or_else(|error| panic!("{error}: {:#}\n{}", rig.get("floatingippool/pool"), rig.logs()));
        let node = (self.holder)(&rig, self.addresses[0]).unwrap();
        (self.destroy)(&rig, &node);
        rig.kubectl(&["delete", "node", &node]);
        self.leaves(&rig, &node, "floatingippool/pool").await;
    }
}

/// The tests that run on each cloud.
macro_rules! on {
    ($name:ident, $cloud:ident) => {
        mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn an_allocation_leaves_a_cordoned_node() {
                super::$cloud.an_allocation_leaves_a_cordoned_node().await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_pool_creates_addresses_and_leaves_a_lost_node() {
                super::$cloud.a_pool_creates_addresses_and_leaves_a_lost_node().await;
            }
        }
    };
}

on!(gcp, GCP);
on!(aws, AWS);
on!(azure, AZURE);
on!(digitalocean, DIGITALOCEAN);

/// The SDK finds credentials in every way that AWS provides them to pods and instances.
#[tokio::test(flavor = "multi_thread")]
async fn aws_credentials_come_from_irsa_pod_identity_or_the_instance() {
    let rig = AWS.rig().await;
    let spec =
        json!({"reservedIPs": AWS.addresses, "cloud": {"provider": "aws"}, "nodeSelector": {"role": "aws"}});
    rig.control_plane.apply(&allocation("edge", spec).to_string()).unwrap();
    let credentials = Fake::new(Sts::new(TOKEN, "proof"));
    let server = serve(&credentials, 0).await.unwrap();
    let (url, proof) = (server.url(), rig.control_plane.folder().join("proof"));
    std::fs::write(&proof, "proof").unwrap();
    let (agent, proof) = (format!("{url}/v1/credentials"), proof.display().to_string());
    let of_service_account = [
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/controller"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", &proof),
        ("AWS_ENDPOINT_URL_STS", &url),
    ];
    let of_pod_identity = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &proof),
    ];
    let of_machine = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str())];
    for (asked, way) in [
        ("AssumeRoleWithWebIdentity", &of_service_account[..]),
        ("podIdentity.credentials", &of_pod_identity),
        ("instance.credentials", &of_machine),
    ] {
        let before = rig.clouds.ec2.ledger().asked.len();
        let no_keys = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
        let controller = rig.controller("ip-address-controller", &[&no_keys, way].concat());
        let lists =
            async || Ok(rig.clouds.ec2.ledger().asked[before..].iter().any(|asked| asked.status == 200));
        let listed = eventually("addresses are listed", SOON, lists).await;
        listed.unwrap_or_else(|error| panic!("{asked}: {error}\n{}", rig.logs()));
        rig.settled("nia/edge").await;
        assert_eq!(credentials.ledger().calls().get(asked), Some(&1), "{:?}", credentials.ledger().calls());
        controller.stop();
    }
}

/// At Azure a change sends the whole interface. The fake records a change of anything but its addresses.
#[tokio::test(flavor = "multi_thread")]
async fn azure_interfaces_change_only_in_their_addresses() {
    let rig = AZURE.rig().await;
    let _controller = rig.controller("ip-address-controller", &[]);
    let spec = json!({
        "reservedIPs": AZURE.addresses, "cloud": {"provider": "azure"}, "nodeSelector": {"role": "azure"},
    });
    rig.control_plane.apply(&allocation("edge", spec).to_string()).unwrap();
    rig.settled("nia/edge").await;
    let ledger = rig.clouds.azure.ledger();
    assert!(ledger.done.iter().all(|done| !done.change.to_string().contains("something else")), "{ledger:?}");
}
