//! `ip-address-controller`: one operator that keeps IP addresses where workloads need them.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use clap::Parser;
use controller::settings::Settings;
use controller::{clouds, health, rounds, watch};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let is_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_terminal)
        .with_writer(std::io::stderr)
        .init();
    // Two TLS providers may be linked in; rustls wants to be told which one to use.
    let _ = rustls::crypto::ring::default_provider().install_default();

    let client = client(&settings).await?;
    let health = health::Health::new(&settings.controller_version)?;
    let clouds = clouds::Clouds::from_settings(&settings)?;
    let watched = watch::Watched::start(&client);
    tracing::info!(version = settings.controller_version, "started");
    tokio::select! {
        ended = health.serve(settings.health_port, settings.metrics_port) => ended.context("the health server ended"),
        () = rounds::run(client, watched, clouds, &health) => Ok(()),
        () = asked_to_stop() => {
            tracing::info!("asked to stop");
            Ok(())
        }
    }
}

async fn client(settings: &Settings) -> Result<Client> {
    let config = match &settings.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await.context("neither in a cluster nor with a kubeconfig")?,
    };
    Ok(Client::try_from(config)?)
}

async fn asked_to_stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals keep their default effect, which is to end the process.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
