//! The remaining quota in the responses of the fakes.

use bytes::Bytes;
use drivers::budget::{Limit, Quota};
use drivers::http::HttpService;
use drivers::{azure, cloudflare, digitalocean};
use http::Request;
use testbed::fake::cloudflare::Cloudflare;
use testbed::fake::{Fake, azure as fake_azure, digitalocean as fake_digitalocean};
use tower::ServiceExt;

use crate::TOKEN;
use crate::support::service;

/// Sends a GET request, and returns how many requests are left according to each limit that reports it.
async fn left(service: HttpService, url: &str, limits: &[Limit]) -> Vec<usize> {
    let request = Request::get(url).header("authorization", format!("Bearer {TOKEN}")).body(Bytes::new());
    let answer = service.oneshot(request.unwrap()).await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    let reported: Vec<Quota> =
        limits.iter().filter_map(|limit| limit.quota.and_then(|quota| quota(answer.headers()))).collect();
    reported.into_iter().map(|quota| quota.left).collect()
}

#[tokio::test(start_paused = true)]
async fn the_remaining_quota_of_each_provider_is_read() {
    let fake = Fake::new(fake_digitalocean::DigitalOcean::new(TOKEN));
    let url = "http://digitalocean.invalid/v2/reserved_ips";
    assert_eq!(left(service(&fake), url, &digitalocean::addresses::limits(250, 5_000)).await, [4_999]);

    let fake = Fake::new(fake_azure::Azure::new("sub", "group", TOKEN));
    let path = "subscriptions/sub/providers/Microsoft.Network/publicIPAddresses";
    let url = format!("http://azure.invalid/{path}?api-version=2024-05-01");
    // The read does not count as a write.
    assert_eq!(left(service(&fake), &url, &azure::addresses::limits()).await, [249, 200]);

    let fake = Fake::new(Cloudflare::new(TOKEN));
    let url = "http://cloudflare.invalid/client/v4/zones";
    assert_eq!(left(service(&fake), url, &cloudflare::records::limits(600)).await, [1_199]);
}
