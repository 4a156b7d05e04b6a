//! The clouds' drivers, and what the clouds last said.
//!
//! In: listings, and answers to our own changes. Out: facts with their age. An answer to a change corrects the facts at
//! once. A listing that failed makes its scope unknown; it never leaves old facts standing as if they were new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use drivers::compute::Compute;
use drivers::digitalocean::DigitalOcean;
use drivers::{AddressDriver, DriverError, Listing, http, tokens};
use plan::{Address, Fact, Holding, Provider, Scope};
use tokio::time::Instant;

use crate::settings::Settings;

/// The drivers and the last listing of each scope.
pub struct Clouds {
    drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>,
    listings: BTreeMap<Scope, Told>,
}

/// What a scope's last listing said.
struct Told {
    at: Instant,
    listing: Result<Listing, DriverError>,
}

/// The pause before a listing that failed is tried again.
const LISTING_RETRY: Duration = Duration::from_secs(5);

impl Told {
    /// When it is too old. One that failed told nothing, so it is repeated sooner, though never before the cloud allows.
    fn due(&self, age_max: Duration) -> Instant {
        self.at
            + match &self.listing {
                Ok(_) => age_max,
                Err(DriverError::RateLimited { retry_after, .. }) => *retry_after,
                Err(_) => age_max.min(LISTING_RETRY),
            }
    }
}

impl Clouds {
    /// The given drivers, and nothing known yet.
    pub fn new(drivers: BTreeMap<Provider, Arc<dyn AddressDriver>>) -> Self {
        Self { drivers, listings: BTreeMap::new() }
    }

    /// Drivers for every cloud that has credentials.
    pub fn from_settings(settings: &Settings) -> Result<Self> {
        let network = http::network().map_err(|error| anyhow!(error))?;
        let mut drivers: BTreeMap<Provider, Arc<dyn AddressDriver>> = BTreeMap::new();
        match tokens::google() {
            Ok(tokens) => {
                let driver = Compute::new(network.clone(), &settings.google_compute_custom_endpoint, tokens);
                drivers.insert(Provider::Gcp, Arc::new(driver));
            }
            Err(error) => tracing::warn!(%error, "Google Cloud is not available"),
        }
        let file = settings.digitalocean_access_token_file.as_ref().map(tokens::in_file);
        let fixed = || settings.digitalocean_access_token.as_ref().map(tokens::fixed);
        if let Some(tokens) = file.or_else(fixed) {
            let driver = DigitalOcean::new(network, &settings.digitalocean_api_url, tokens);
            drivers.insert(Provider::DigitalOcean, Arc::new(driver));
        }
        Ok(Self::new(drivers))
    }

    /// The driver of a provider, where there is one.
    pub fn driver(&self, provider: Provider) -> Option<Arc<dyn AddressDriver>> {
        self.drivers.get(&provider).cloned()
    }

    /// Lists the scopes whose last listing is older than they tolerate, and forgets those that nobody names any more.
    pub async fn refresh(&mut self, scopes: &BTreeMap<Scope, Duration>) {
        self.listings.retain(|scope, _| scopes.contains_key(scope));
        self.refresh_some(scopes).await;
    }

    /// Lists these scopes, where their last listing is at least so old.
    pub async fn refresh_some(&mut self, scopes: &BTreeMap<Scope, Duration>) {
        let now = Instant::now();
        let is_due = |scope: &Scope, age_max: Duration| {
            self.listings.get(scope).is_none_or(|told| told.due(age_max) <= now)
        };
        let due: BTreeSet<Scope> = scopes
            .iter()
            .filter(|(scope, age_max)| is_due(scope, **age_max))
            .map(|(scope, _)| scope.clone())
            .collect();
        let list = |scope: Scope| {
            let driver = self.drivers.get(&scope.provider).cloned();
            async move {
                let at = Instant::now();
                let listing = match driver {
                    Some(driver) => driver.list(&scope).await,
                    None => Err(DriverError::Unavailable(format!("no credentials for {}", scope.provider))),
                };
                if let Err(error) = &listing {
                    tracing::warn!(%scope, %error, "listing addresses failed");
                }
                (scope, Told { at, listing })
            }
        };
        let told = futures::future::join_all(due.into_iter().map(list)).await;
        self.listings.extend(told);
    }

    /// When the next scope wants to be listed again.
    pub fn next_refresh(&self, scopes: &BTreeMap<Scope, Duration>) -> Option<Instant> {
        scopes.iter().map(|(scope, age_max)| Some(self.listings.get(scope)?.due(*age_max))).min().flatten()
    }

    /// What is known of an address.
    pub fn fact(&self, scope: &Scope, address: Address) -> Fact<Holding> {
        match self.listings.get(scope).map(|told| &told.listing) {
            None => Fact::Unknown(format!("{scope} has not been asked yet")),
            Some(Err(error)) => Fact::Unknown(error.to_string()),
            Some(Ok(listing)) => listing.fact(address),
        }
    }

    /// Everything that the scope's last listing said, ours or not.
    pub fn listed(&self, scope: &Scope) -> impl Iterator<Item = Address> {
        let listing = self.listings.get(scope).and_then(|told| told.listing.as_ref().ok());
        listing.into_iter().flat_map(|listing| listing.addresses.keys().copied())
    }

    /// Takes note of what a change of ours has done.
    pub fn correct(&mut self, scope: &Scope, address: Address, holding: Holding) {
        if let Some(Told { listing: Ok(listing), .. }) = self.listings.get_mut(scope) {
            listing.changing.retain(|changing| *changing != address);
            listing.addresses.insert(address, holding);
        }
    }

    /// Believes nothing of a scope any more, because a change of ours there had no certain outcome.
    pub fn forget(&mut self, scope: &Scope) {
        self.listings.remove(scope);
    }
}
