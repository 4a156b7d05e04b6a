//! `ip-address-controller`: a Kubernetes controller that keeps IP addresses on nodes. See [`controller`].

use anyhow::Result;
use controller::logs;
use controller::settings::Settings;

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::of_this_process();
    logs::init(&settings.log_filter(), settings.log_format());
    // Several crypto providers can be linked in, so rustls needs an explicit choice.
    let _ = rustls::crypto::ring::default_provider().install_default();
    controller::runtime::run(settings).await
}
