//! `ip-address-controller`: one operator that keeps IP addresses where workloads need them.

use anyhow::Result;
use controller::logs;
use controller::settings::Settings;

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::of_this_process();
    logs::init(&settings.log_filter(), settings.log_format());
    // Two TLS providers may be linked in; rustls wants to be told which one to use.
    let _ = rustls::crypto::ring::default_provider().install_default();
    controller::runtime::run(settings).await
}
