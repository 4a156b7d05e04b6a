//! Reads and writes DNS records.

use std::sync::Arc;

use drivers::DriverError;
use drivers::record::{RecordChange, RecordDriver};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use plan::{RecordAction, RecordSet, RecordStep};

/// The namespace whose UID identifies the cluster.
const CLUSTER: &str = "kube-system";

/// Executes a step, and returns the records after it.
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
        RecordAction::Read | RecordAction::ReadAgain => return driver.read(name, pool).await,
        RecordAction::Write { old, new } => (old.clone(), new.clone()),
        RecordAction::Remove(old) => (old.clone(), RecordSet::default()),
    };
    let change = RecordChange { name: name.clone(), object: pool.clone(), old, new };
    driver.write(&change).await?;
    let RecordChange { old, new, .. } = change;
    // If the object sets no TTL, the records keep theirs.
    Ok(RecordSet { ttl: new.ttl.or(old.ttl), ..new })
}

/// The UID of the namespace kube-system, which is the owner ID in the owner marks of DNS records.
pub(super) async fn cluster_id(client: Client) -> Result<String, kube::Error> {
    let namespace = Api::<Namespace>::all(client).get_metadata(CLUSTER).await?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use plan::{DnsProvider, PoolKey, RecordKind, RecordName};

    /// Accepts every write.
    struct Obedient;

    impl RecordDriver for Obedient {
        fn read<'a>(
            &'a self,
            _: &'a RecordName,
            _: &'a PoolKey,
        ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
            Box::pin(async { Ok(RecordSet::default()) })
        }

        fn write<'a>(&'a self, _: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn without_a_ttl_in_the_object_the_records_keep_theirs() {
        let set = |ttl| RecordSet { ttl, ..RecordSet::default() };
        let name = RecordName {
            provider: DnsProvider::Route53,
            zone: "example.com".into(),
            name: "www.example.com".into(),
            kind: RecordKind::A,
        };
        let pool = PoolKey { kind: "FloatingIPPool", namespace: "ns".into(), name: "p".into() };
        let after = async |new| {
            let action = RecordAction::Write { old: set(Some(300)), new: set(new) };
            let step = RecordStep { pool: pool.clone(), name: name.clone(), action };
            take(Some(Arc::new(Obedient)), &step).await.unwrap().ttl
        };
        assert_eq!(after(None).await, Some(300));
        assert_eq!(after(Some(60)).await, Some(60));
    }
}
