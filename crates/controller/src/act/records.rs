//! Reads and writes sets of records.

use std::sync::Arc;

use drivers::DriverError;
use drivers::records::{RecordChange, RecordDriver};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use plan::{RecordAction, RecordSet, RecordStep};

/// The namespace whose id stands for the cluster's.
const CLUSTER: &str = "kube-system";

/// What a set of records holds after a step.
pub(super) async fn take(
    driver: Option<Arc<dyn RecordDriver>>,
    step: &RecordStep,
) -> Result<RecordSet, DriverError> {
    let RecordStep { pool, name, action } = step;
    let Some(driver) = driver else {
        let message = format!("there are no credentials for {}", name.provider);
        return Err(DriverError::Invalid(message));
    };
    let (old, new) = match action {
        RecordAction::Read => return driver.read(name, pool).await,
        RecordAction::Write { old, new } => (old.clone(), new.clone()),
        RecordAction::Remove(old) => (old.clone(), RecordSet::default()),
    };
    let change = RecordChange { name: name.clone(), object: pool.clone(), old, new };
    driver.write(&change).await?;
    let RecordChange { old, new, .. } = change;
    // Where no time to live is wanted, it stays.
    Ok(RecordSet { ttl: new.ttl.or(old.ttl), ..new })
}

/// The id of the cluster, which our mark on records carries.
pub(super) async fn cluster_id(client: Client) -> Result<String, kube::Error> {
    let namespace = Api::<Namespace>::all(client).get_metadata(CLUSTER).await?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}
