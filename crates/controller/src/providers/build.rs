//! Creates the drivers of all configured providers.
//!
//! In: the settings, and the HTTP services. Out: one driver per provider. It sends no requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[cfg(feature = "aws")]
use drivers::aws::addresses::Ec2;
#[cfg(feature = "aws")]
use drivers::aws::records::Route53;
#[cfg(feature = "aws")]
use drivers::aws::{self, Aws};
use drivers::azure::addresses::Azure;
use drivers::azure::identity::{self, Identity};
use drivers::budget::{Counting, Limit, budgeted};
use drivers::cloudflare::records::Cloudflare;
use drivers::digitalocean::addresses::DigitalOcean;
use drivers::digitalocean::records::Records;
use drivers::google::addresses::Compute;
use drivers::http::HttpService;
use drivers::network::MaySend;
use drivers::record::RecordDriver;
use drivers::rfc2136::records::{self as rfc2136, Key, Rfc2136};
use drivers::tokens::{self, Tokens};
use drivers::{AddressDriver, Seconds};
use plan::{DnsProvider, Provider};

use crate::settings::{Secret, Settings};

/// The drivers of all configured providers.
#[derive(Clone, Default)]
pub struct Drivers {
    /// Drivers for addresses.
    pub addresses: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    /// Drivers for DNS records.
    pub records: BTreeMap<DnsProvider, Arc<dyn RecordDriver>>,
}

/// Creates the drivers. They send requests through `service`, which is fenced: it sends changes only while this process
/// has a valid lease. Azure's token requests change nothing, so they use `open`, which is not fenced. The RFC 2136
/// driver does not use HTTP: it checks `may_leave` before it sends an update.
pub fn drivers(
    settings: &Settings,
    service: &HttpService,
    open: &HttpService,
    may_leave: MaySend,
) -> Drivers {
    let mut drivers = Drivers::default();
    match tokens::google() {
        Ok(tokens) => {
            let minute = Duration::from_secs(60);
            let limits = [Limit::window(settings.google_requests_per_minute, minute)];
            let service = budgeted(service.clone(), &limits, ::drivers::google::addresses::counting());
            let driver = Compute::new(service, &settings.google_compute_custom_endpoint, tokens);
            drivers.addresses.insert(Provider::Gcp, Arc::new(driver));
        }
        Err(error) => {
            tracing::warn!(%error, "failed to load Google Cloud credentials, its addresses are not managed")
        }
    }
    drivers.addresses.insert(Provider::Azure, Arc::new(azure(settings, service, open)));
    let token = secret(&settings.digitalocean_access_token_file, &settings.digitalocean_access_token);
    if let Some(tokens) = token {
        let limits = ::drivers::digitalocean::addresses::limits(
            settings.digitalocean_requests_per_minute,
            settings.digitalocean_requests_per_hour,
        );
        let service = budgeted(service.clone(), &limits, Counting::default());
        let url = &settings.digitalocean_api_url;
        let records = Records::new(service.clone(), url, Arc::clone(&tokens));
        drivers.records.insert(DnsProvider::DigitalOcean, Arc::new(records));
        drivers.addresses.insert(Provider::DigitalOcean, Arc::new(DigitalOcean::new(service, url, tokens)));
    }
    if let Some(tokens) = secret(&settings.cloudflare_token_file, &settings.cloudflare_token) {
        let limits = ::drivers::cloudflare::records::limits(settings.cloudflare_requests_per_five_minutes);
        let driver = Cloudflare::new(
            budgeted(service.clone(), &limits, Counting::default()),
            &settings.cloudflare_api_url,
            tokens,
        );
        drivers.records.insert(DnsProvider::Cloudflare, Arc::new(driver));
    }
    #[cfg(feature = "aws")]
    {
        // The AWS SDK looks for credentials only at the first request, so this driver always exists.
        let aws = Aws::new(service.clone(), aws::Identity::Found, &settings.aws_region, wall_seconds());
        let aws = Arc::new(aws.at(settings.aws_endpoint_url.as_deref()));
        let part = |limits: Vec<Limit>| -> Vec<Limit> {
            limits.into_iter().map(|limit| limit.percent(settings.aws_requests_percent)).collect()
        };
        let names = Route53::new(Arc::clone(&aws), part(::drivers::aws::records::limits()));
        let limits = part(::drivers::aws::addresses::limits());
        let ec2 = Ec2::new(aws, limits, ::drivers::aws::addresses::STALENESS_MAX);
        drivers.addresses.insert(Provider::Aws, Arc::new(ec2));
        drivers.records.insert(DnsProvider::Route53, Arc::new(names));
    }
    if let Some(server) = &settings.rfc2136_server {
        let secret = secret(&settings.rfc2136_tsig_secret_file, &settings.rfc2136_tsig_secret);
        // With a key name but no secret, every message fails, so the controller never sends unsigned messages.
        let missing = || tokens::missing("RFC2136_TSIG_SECRET");
        let key = settings.rfc2136_tsig_key_name.clone().filter(|name| !name.is_empty()).map(|name| Key {
            name,
            algorithm: settings.rfc2136_tsig_algorithm.clone(),
            secret: secret.unwrap_or_else(missing),
        });
        let linger = Duration::from_secs(settings.takeover_seconds);
        let service = rfc2136::network(server, may_leave, linger);
        drivers.records.insert(DnsProvider::Rfc2136, Arc::new(Rfc2136::new(service, key, wall_seconds())));
    }
    drivers
}

/// Creates the driver for Azure. It always exists, because a managed identity needs no setting and is found only at the
/// first request.
fn azure(settings: &Settings, service: &HttpService, open: &HttpService) -> Azure {
    let given = |setting: &Option<String>| setting.clone().filter(|text| !text.is_empty());
    let identity = Identity {
        tenant: settings.azure_tenant_id.clone(),
        client: given(&settings.azure_client_id),
        secret: given(&settings.azure_client_secret.as_ref().map(|secret| secret.text().to_owned())),
        federated_token_file: settings
            .azure_federated_token_file
            .clone()
            .filter(|file| !file.as_os_str().is_empty()),
        authority: given(&settings.azure_authority_host),
    };
    let url = &settings.azure_resource_manager_endpoint;
    let tokens = identity::tokens(identity, open.clone(), url);
    let limits =
        drivers::azure::addresses::limits().map(|limit| limit.percent(settings.azure_requests_percent));
    let service = budgeted(service.clone(), &limits, drivers::azure::addresses::counting());
    Azure::new(service, url, tokens, given(&settings.azure_resource_group))
}

/// A secret from a file, which may change, or else from a variable.
fn secret(file: &Option<PathBuf>, variable: &Option<Secret>) -> Option<Arc<dyn Tokens>> {
    let text = || variable.as_ref().map(Secret::text).filter(|text| !text.is_empty());
    let fixed = || text().map(|text| tokens::fixed(text.trim()));
    file.as_ref().map(tokens::in_file).or_else(fixed)
}

/// The time for signatures, in seconds since the epoch.
fn wall_seconds() -> Seconds {
    Arc::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use drivers::DriverError;
    use plan::Scope;
    use std::collections::BTreeSet;
    use testbed::fake::{Fake, azure, digitalocean, entra};

    /// DigitalOcean's driver with these settings, for an account that accepts only this token.
    fn digitalocean(arguments: &[&str], accepted: &str) -> Arc<dyn AddressDriver> {
        let settings = Settings::try_parse_from([&["controller"], arguments].concat()).unwrap();
        let account = Fake::new(digitalocean::DigitalOcean::new(accepted));
        let service = HttpService::new(account.service());
        let drivers = drivers(&settings, &service, &service, Arc::new(|| true));
        Arc::clone(&drivers.addresses[&Provider::DigitalOcean])
    }

    fn scope() -> Scope {
        Scope { provider: Provider::DigitalOcean, account: "".into() }
    }

    #[tokio::test]
    async fn token_requests_to_azure_are_not_fenced() {
        let arguments =
            ["--azure-tenant-id=tenant", "--azure-client-id=client", "--azure-client-secret=secret"];
        let arguments =
            [&["controller", "--azure-authority-host=https://entra.invalid"], &arguments[..]].concat();
        let settings = Settings::try_parse_from(arguments).unwrap();
        let subscription = Fake::new(azure::Azure::new("s", "g", "token"));
        let tenant = Fake::new(entra::Entra::new("tenant", "client", "secret", "token"));
        let (service, open) = (HttpService::new(subscription.service()), HttpService::new(tenant.service()));
        let drivers = drivers(&settings, &service, &open, Arc::new(|| false));
        let scope = Scope { provider: Provider::Azure, account: "s".into() };
        drivers.addresses[&Provider::Azure].list(&scope).await.unwrap();
        assert_eq!(tenant.ledger().calls()["entra.token"], 1);
    }

    #[tokio::test]
    async fn f13_a_token_file_overrides_the_variable_and_is_reread() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("DIGITALOCEAN_ACCESS_TOKEN");
        std::fs::write(&file, "old\n").unwrap();
        let argument = format!("--digitalocean-access-token-file={}", file.display());
        let driver = digitalocean(&[&argument, "--digitalocean-access-token=older"], "new");
        assert!(matches!(driver.list(&scope()).await, Err(DriverError::Denied { .. })));
        // The kubelet replaces the file in the same way.
        let rotated = folder.path().join("rotated");
        std::fs::write(&rotated, "new\n").unwrap();
        std::fs::rename(rotated, &file).unwrap();
        driver.list(&scope()).await.unwrap();
        std::fs::remove_file(&file).unwrap();
        let error = driver.list(&scope()).await.unwrap_err().to_string();
        assert!(
            error.contains(&file.display().to_string()),
            "the error does not name the missing file: {error}"
        );
    }

    #[tokio::test]
    async fn f13_tokens_come_from_the_documented_variables() {
        let command = Settings::command();
        let names: BTreeSet<_> =
            command.get_arguments().filter_map(|setting| setting.get_env()?.to_str()).collect();
        for name in ["DIGITALOCEAN_ACCESS_TOKEN", "CLOUDFLARE_TOKEN"] {
            assert!(names.contains(name) && names.contains(&*format!("{name}_FILE")), "{name}");
        }
        let driver = digitalocean(&["--digitalocean-access-token=token"], "token");
        driver.list(&scope()).await.unwrap();
    }
}
