//! Measures how long the IPAM provider needs on its own, as a baseline for a controller that creates claims.
//!
//! In: a pool. Out: the time from the creation of each claim until it has its address. Does not delete the claims.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use futures::future::try_join_all;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::Value;

use super::fixtures;

/// How long to wait for all claims. The provider creates one address at a time, within its client's rate limit.
const LONGEST: Duration = Duration::from_secs(180);

/// Creates `count` claims at once, named `claim-0` and so on, and returns how long each waited for its address,
/// shortest first.
pub async fn time_to_address(
    client: &Client,
    namespace: &str,
    pool: &Value,
    count: usize,
) -> Result<Vec<Duration>> {
    let resource =
        ApiResource::from_gvk(&GroupVersionKind::gvk("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim"));
    let claims: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let create = async |number: usize| {
        let name = format!("claim-{number}");
        let claim = serde_json::from_value(fixtures::claim(namespace, &name, pool))?;
        let created = Instant::now();
        claims.create(&PostParams::default(), &claim).await?;
        anyhow::Ok((name, created))
    };
    let all_have_one = async {
        let touched = watcher(claims.clone(), watcher::Config::default()).default_backoff().touched_objects();
        let mut touched = std::pin::pin!(touched);
        let mut since = BTreeMap::new();
        while since.len() < count {
            // After an error the watcher lists all objects again.
            let Ok(claim) = touched.next().await.context("the watch ended")? else { continue };
            if !claim.data["status"]["addressRef"]["name"].is_null() {
                since.entry(claim.name_any()).or_insert_with(Instant::now);
            }
        }
        anyhow::Ok(since)
    };
    let at_once = async { tokio::try_join!(all_have_one, try_join_all((0..count).map(create))) };
    let (since, created) =
        tokio::time::timeout(LONGEST, at_once).await.context("some claims got no address in time")??;
    let mut took: Vec<_> = created
        .iter()
        .filter_map(|(name, created)| Some(since.get(name)?.duration_since(*created)))
        .collect();
    took.sort();
    Ok(took)
}
