//! Certifies the fake clouds with the vendors' clients: `just certify`.
//!
//! The clients come from PyPI. The test fails if a fake or a driver supports a call that no vendor's client has made.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;
use std::process::Command;

use testbed::fake::azure::{self, Azure};
use testbed::fake::cloudflare::{self, Cloudflare};
use testbed::fake::compute::{self, Compute};
use testbed::fake::digitalocean::{self, DigitalOcean};
use testbed::fake::ec2::{self, Ec2};
use testbed::fake::entra::{self, Entra};
use testbed::fake::http::{Certificate, serve, serve_tls};
use testbed::fake::metadata::{self, Metadata};
use testbed::fake::route53::{self, Route53};
use testbed::fake::sts::{self, Sts};
use testbed::fake::{Fake, Machine};
use testbed::python::{certify_folder, run, with_packages};

const TOKEN: &str = "certified-token";

/// Prints the table of a script, and returns the names of the calls in it.
fn certified(script: &mut Command, calls: &[&str]) -> BTreeSet<String> {
    let table = run(script).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    let names: BTreeSet<String> = rows.iter().filter_map(|row| Some((*row.get(1)?).to_owned())).collect();
    for row in &rows {
        println!("{:<22} {:<32} {}", row[0], row[1], row[2..].join(" "));
    }
    for call in calls {
        assert!(
            names.contains(*call),
            "{call} is in the fake or a driver, but no vendor's client has made it"
        );
    }
    names
}

async fn served<M: Machine>(machine: M) -> testbed::fake::http::Server {
    serve(&Fake::new(machine), 0).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn digitaloceans_client_agrees_with_the_fake_on_every_call() {
    let mut account = DigitalOcean::new(TOKEN);
    account.add_droplet(11, "one", "fra1");
    account.add_droplet(12, "two", "fra1");
    account.add_droplet(13, "elsewhere", "nyc3");
    account.add_reserved_ip("192.0.2.77", "fra1");
    account.bring_your_own("192.0.2.77");
    let server = served(account).await;
    let mut script = Command::new(with_packages("digitalocean").unwrap());
    script.arg(certify_folder().join("digitalocean.py")).args([&server.url(), TOKEN]);
    let names = certified(&mut script, digitalocean::ROUTES);
    for call in drivers::digitalocean::addresses::CALLS.iter().chain(drivers::digitalocean::records::CALLS) {
        assert!(names.contains(*call), "the driver makes {call}, which is not certified");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cloudflares_client_agrees_with_the_fake_on_every_call() {
    let mut account = Cloudflare::new(TOKEN);
    account.add_zone("example.com");
    (1..=20).for_each(|number| drop(account.add_zone(format!("zone-{number}.example"))));
    let server = served(account).await;
    let mut script = Command::new(with_packages("cloudflare").unwrap());
    let base_url = format!("{}/client/v4", server.url());
    script.arg(certify_folder().join("cloudflare_dns.py")).args([&base_url, TOKEN]);
    let names = certified(&mut script, cloudflare::ROUTES);
    for call in drivers::cloudflare::records::CALLS {
        assert!(names.contains(*call), "the driver makes {call}, which is not certified");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn googles_clients_agree_with_the_fakes_on_every_call() {
    let mut project = Compute::new("certified", TOKEN);
    project.add_instance("us-central1-a", "vm-1");
    project.add_instance_without_address("us-central1-a", "vm-2");
    project.add_instance("us-central1-c", "vm-3");
    project.add_interface("us-central1-c", "vm-3");
    project.unverified_domains.insert("unverified.example".into());
    project.unreachable_regions.insert("europe-west4".into());
    let mut restricted = Compute::new("certified", TOKEN);
    restricted.denied = compute::permissions().map(ToOwned::to_owned).collect();
    let project = served(project).await;
    let restricted = served(restricted).await;
    let metadata_server = served(Metadata::new("certified", TOKEN)).await;
    let mut script = Command::new(with_packages("compute").unwrap());
    script.arg(certify_folder().join("compute.py"));
    script.args([project.url(), metadata_server.address.to_string(), restricted.url()]);
    let names = certified(&mut script, &[compute::ROUTES, metadata::ROUTES].concat());
    for call in drivers::google::addresses::CALLS {
        assert!(names.contains(*call), "the driver makes {call}, which is not certified");
    }
}

fn subscription() -> Azure {
    let mut subscription = Azure::new("certified", "Group", TOKEN);
    subscription.page_size = 2;
    subscription.poll_seconds = 1;
    for machine in ["one", "two", "three"] {
        subscription.add_machine(machine, "westeurope");
    }
    subscription.stop_machine("two");
    subscription.add_address("first", "westeurope", "203.0.113.1");
    subscription.add_address("second", "westeurope", "203.0.113.3");
    subscription.add_address("far", "eastus", "203.0.113.2");
    subscription
}

#[tokio::test(flavor = "multi_thread")]
async fn azures_clients_agree_with_the_fakes_on_every_call() {
    let certificate = Certificate::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("certificate.pem");
    std::fs::write(&trusted, &certificate.pem).unwrap();
    let mut restricted = subscription();
    restricted.denied =
        azure::ROUTES.iter().flat_map(|call| azure::actions_of(call)).map(ToOwned::to_owned).collect();
    let allowed = serve_tls(&Fake::new(subscription()), 0, &certificate).await.unwrap();
    let restricted = serve_tls(&Fake::new(restricted), 0, &certificate).await.unwrap();
    let tenant = Fake::new(Entra::new("tenant", "client", "secret", TOKEN));
    let tenant = serve_tls(&tenant, 0, &certificate).await.unwrap();
    let mut script = Command::new(with_packages("azure").unwrap());
    script.arg(certify_folder().join("azure_network.py"));
    script.args([allowed.url(), tenant.url(), restricted.url()]).arg(trusted);
    let names = certified(&mut script, &[azure::ROUTES, entra::ROUTES].concat());
    for call in drivers::azure::addresses::CALLS {
        assert!(names.contains(*call), "the driver makes {call}, which is not certified");
    }
}

#[cfg(feature = "aws")]
#[tokio::test(flavor = "multi_thread")]
async fn the_aws_client_agrees_with_the_fakes_on_every_call() {
    let mut account = Ec2::new(TOKEN);
    account.add_instance("us-east-1", "i-1");
    account.add_interface("us-east-1", Some("i-1"));
    account.add_instance_without_address("us-east-1", "i-2");
    account.add_address("us-east-1", "203.0.113.10");
    let mut zones = Route53::new(TOKEN);
    zones.add_zone("example.com");
    let (account, zones) = (served(account).await, served(zones).await);
    let credentials = served(Sts::new(TOKEN, "proof")).await;
    let mut script = Command::new(with_packages("aws").unwrap());
    script.arg(certify_folder().join("aws.py")).args([
        &account.url(),
        &zones.url(),
        &credentials.url(),
        TOKEN,
    ]);
    let names = certified(&mut script, &[ec2::ROUTES, route53::ROUTES, sts::ROUTES].concat());
    for call in drivers::aws::addresses::CALLS.iter().chain(drivers::aws::records::CALLS) {
        assert!(names.contains(*call), "the driver makes {call}, which is not certified");
    }
}
