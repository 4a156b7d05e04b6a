//! Lists addresses and VMs of a Google Cloud project.
//!
//! In: a project, and for a listing without permission to list addresses also the VMs to read. Out: which VM holds each
//! address, and the state of each VM. If a region or zone does not answer, its addresses are unknown, never absent. A
//! listing never changes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use ::http::Method;
use futures::{StreamExt, stream};
use plan::{Address, Holding, MachineState, MayBeOn, VmId};

use super::addresses::{Compute, LABEL};
use super::bodies::{AccessConfig, AddressBody, AddressPage, InstancePage};
use super::calls::{PAGE_SIZE, did_not_answer, holding, last_part, permission_of};
use crate::http::{Path, unreadable};
use crate::{DriverError, Listed, Listing, Tags};

/// The maximum number of pages. A longer listing is treated as an error.
const PAGES_MAX: usize = 200;

/// How many VMs the driver reads concurrently if it can't list addresses.
const MACHINES_AT_ONCE: usize = 8;

impl Compute {
    pub(super) async fn list_project(&self, project: &str, filter: &str) -> Result<Listing, DriverError> {
        let mut listing = Listing { tags: Tags::Complete, ..Listing::default() };
        let addresses = self.found(project, filter, &mut listing.unreachable).await?;
        listing.unlisted_may_be_on = possible_vms(&listing.unreachable);
        for (address, found) in addresses {
            self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(found.name);
            if let Some(tier) = found.network_tier {
                self.tiers.lock().unwrap_or_else(PoisonError::into_inner).insert(address, tier);
            }
            let region = found.region.as_deref().and_then(last_part).map(Into::into);
            let tag = found.labels.get(LABEL).map(|tag| tag.as_str().into());
            listing.addresses.insert(address, Listed { holding: holding(&found.users), region, tag });
        }
        Ok(listing)
    }

    /// Lists the external addresses of a project, and adds the regions that did not answer to `unreachable`.
    pub(super) async fn found(
        &self,
        project: &str,
        filter: &str,
        unreachable: &mut Vec<String>,
    ) -> Result<Vec<(Address, AddressBody)>, DriverError> {
        let name = "addresses.aggregatedList";
        let mut addresses = Vec::new();
        let first = Path::new("projects/{}/aggregated/addresses?maxResults={}", &[&project, &PAGE_SIZE]);
        let first = if filter.is_empty() { first } else { first.and("&filter={}", &[&filter]) };
        let mut path = first.clone();
        for _ in 0..PAGES_MAX {
            let page: AddressPage = self.api.call(name, Method::GET, &path, None).await?;
            unreachable.extend(page.unreachables);
            for (scope, list) in page.items {
                if did_not_answer(list.warning.as_ref()) {
                    unreachable.push(scope);
                }
                // The controller ignores internal and IPv6 addresses. A VM can hold those in addition to an external
                // IPv4 address.
                for found in list.addresses.into_iter().filter(|found| found.address_type != "INTERNAL") {
                    let address = found.address.as_deref().and_then(|text| text.parse::<Address>().ok());
                    let address = address.filter(|address| address.0.is_ipv4());
                    addresses.extend(address.map(|address| (address, found)));
                }
            }
            match page.next_page_token {
                Some(token) if !token.is_empty() => path = first.clone().and("&pageToken={}", &[&token]),
                _ => return Ok(addresses),
            }
        }
        Err(unreadable(name, &"the listing has too many pages"))
    }

    /// Finds the holders of `addresses` by reading each VM.
    pub(super) async fn ask_machines(
        &self,
        addresses: &BTreeSet<Address>,
        machines: &BTreeSet<VmId>,
    ) -> Result<Listing, DriverError> {
        let free = |address: &Address| (*address, Listed { holding: Holding::Free, region: None, tag: None });
        let without = Some(permission_of("addresses.aggregatedList").to_owned());
        let mut listing =
            Listing { addresses: addresses.iter().map(free).collect(), without, ..Listing::default() };
        let ask = |vm: &VmId| {
            let vm = vm.clone();
            async move { (self.interfaces(&vm).await, vm) }
        };
        let mut answers = stream::iter(machines.iter().map(ask)).buffer_unordered(MACHINES_AT_ONCE);
        while let Some((interfaces, vm)) = answers.next().await {
            let interfaces = match interfaces {
                Ok(interfaces) => interfaces,
                Err(DriverError::NotFound(_)) => continue,
                Err(error) => return Err(error),
            };
            let configs = interfaces.iter().flat_map(|interface| &interface.access_configs);
            for held in configs.filter_map(AccessConfig::address) {
                if let Some(listed) = listing.addresses.get_mut(&held) {
                    listed.holding = Holding::By(vm.clone());
                }
            }
        }
        Ok(listing)
    }

    pub(super) async fn list_machines(
        &self,
        project: &str,
    ) -> Result<BTreeMap<VmId, MachineState>, DriverError> {
        let name = "instances.aggregatedList";
        let mut machines = BTreeMap::new();
        let first = Path::new("projects/{}/aggregated/instances?maxResults={}", &[&project, &PAGE_SIZE]);
        let mut path = first.clone();
        for _ in 0..PAGES_MAX {
            let page: InstancePage = self.api.call(name, Method::GET, &path, None).await?;
            let unreachable = page.items.values().any(|list| did_not_answer(list.warning.as_ref()));
            if unreachable || !page.unreachables.is_empty() {
                // If a zone did not answer, all of its VMs would seem to be deleted.
                return Err(DriverError::Unavailable(format!("{name}: not every zone answered")));
            }
            for found in page.items.into_values().flat_map(|list| list.instances) {
                let zone = last_part(&found.zone).unwrap_or_default();
                let state = match found.status.as_str() {
                    "TERMINATED" | "STOPPED" | "SUSPENDED" => MachineState::Stopped,
                    _ => MachineState::Running,
                };
                machines.insert(format!("{project}/{zone}/{}", found.name).into(), state);
            }
            match page.next_page_token {
                Some(token) if !token.is_empty() => path = first.clone().and("&pageToken={}", &[&token]),
                _ => return Ok(machines),
            }
        }
        Err(unreadable(name, &"the listing has too many pages"))
    }
}

/// The VMs that may hold an address that the listing omits, because these locations did not answer. A VM can hold only
/// addresses of its own region.
fn possible_vms(locations: &[String]) -> MayBeOn {
    let regions = locations.iter().map(|location| region_of(location)).collect::<Option<_>>();
    regions.map_or(MayBeOn::Any, MayBeOn::Regions)
}

/// The region that a location such as `regions/us-west1` names. None for any other format.
fn region_of(location: &str) -> Option<Arc<str>> {
    let (before, region) = location.rsplit_once('/')?;
    let is_region = before == "regions" || before.ends_with("/regions");
    (is_region && !region.is_empty()).then(|| region.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_a_region_narrows_where_an_address_may_be() {
        let of =
            |locations: &[&str]| possible_vms(&locations.iter().map(ToString::to_string).collect::<Vec<_>>());
        let west = MayBeOn::Regions(BTreeSet::from(["us-west1".into()]));
        assert_eq!(of(&["regions/us-west1"]), west);
        assert_eq!(of(&["projects/demo/regions/us-west1"]), west);
        for other in
            ["global", "zones/us-west1-a", "regions/", "subregions/x", "regions/us-west1/addresses", ""]
        {
            assert_eq!(of(&["regions/us-west1", other]), MayBeOn::Any, "{other}");
        }
    }
}
