//! The AWS drivers with an access key and a clock that stands still.

use std::sync::Arc;
use std::time::Duration;

use drivers::aws::addresses::{self, Ec2};
use drivers::aws::records::{self, Route53};
use drivers::aws::{Aws, Identity};
use drivers::http::HttpService;
use testbed::moto::KEY;

fn client(service: HttpService, secret: &str) -> Arc<Aws> {
    let identity = Identity::Keys { id: KEY.into(), secret: secret.into() };
    Arc::new(Aws::new(service, identity, "", Arc::new(|| 1_767_225_600)))
}

/// The driver for Elastic IPs.
pub fn ec2(service: HttpService, secret: &str, staleness_max: Duration) -> Ec2 {
    Ec2::new(client(service, secret), addresses::limits(), staleness_max)
}

/// The driver for DNS names.
pub fn route53(service: HttpService, secret: &str) -> Route53 {
    Route53::new(client(service, secret), records::limits())
}
