//! Tests that the real external-dns reads the testbed's `DNSEndpoint` CRD and writes into the real name server.

use std::time::Duration;

use testbed::cluster::eventually;
use testbed::control_plane::{ControlPlane, Options};
use testbed::external_dns::ExternalDns;
use testbed::nameserver::Nameserver;

#[tokio::test(flavor = "multi_thread")]
async fn external_dns_creates_the_records_of_a_dnsendpoint() {
    let control_plane = ControlPlane::start(Options::api_only()).await.unwrap();
    let nameserver = Nameserver::start("example.com").unwrap();
    let Some(external_dns) = ExternalDns::start(&control_plane, &nameserver).unwrap() else {
        println!("skipped: external-dns is not built; run `tools/build external-dns` (takes 10 minutes)");
        return;
    };
    control_plane
        .apply(
            "apiVersion: externaldns.k8s.io/v1alpha1
kind: DNSEndpoint
metadata: {name: hello, namespace: default}
spec:
  endpoints:
    - {dnsName: hello.example.com, recordType: A, recordTTL: 2, targets: [203.0.113.10, 203.0.113.11]}
",
        )
        .unwrap();
    eventually("the zone contains the name", Duration::from_secs(180), async || {
        Ok(nameserver.query("hello.example.com", "A")? == ["203.0.113.10", "203.0.113.11"])
    })
    .await
    .unwrap_or_else(|error| panic!("{error}\n{}", external_dns.log_tail()));
    assert_eq!(nameserver.query("www.example.com", "A").unwrap(), ["192.0.2.80"]);
}
