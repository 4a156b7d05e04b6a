//! `ip-address-controller`: one operator that keeps IP addresses where workloads need them.

use std::io::IsTerminal;

use anyhow::Result;
use controller::settings::{LogFormat, Settings};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::of_this_process();
    // Amazon's SDK warns with whole answers, which may repeat the token that was sent. What went wrong is told all the same.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{},aws_config=error", settings.log_filter())));
    let is_terminal = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(is_terminal).with_writer(std::io::stderr);
    match settings.log_format() {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // Two TLS providers may be linked in; rustls wants to be told which one to use.
    let _ = rustls::crypto::ring::default_provider().install_default();
    controller::run::run(settings).await
}
