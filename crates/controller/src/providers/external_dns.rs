//! The DNS driver for external-dns: the controller writes a `DNSEndpoint`, and external-dns publishes it.
//!
//! In: a set of records. Out: one `DNSEndpoint` in the namespace of the object that lists the DNS name. external-dns
//! records the ownership in the zone. A label and an annotation record the ownership in the cluster. This driver never
//! writes an endpoint without targets, because external-dns would add other targets.

use std::sync::Arc;
use std::time::Duration;

use drivers::DriverError;
use drivers::record::{RecordChange, RecordDriver};
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use plan::{PoolKey, RecordName, RecordSet};
use serde_json::{Value, json};

use crate::leadership::fence::Fence;

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const US: &str = "ip-address-controller";
const OWNER: &str = "netinfra.darkbrains.com/owner";

/// The owner of an endpoint without the controller's mark. The controller does not change this endpoint: it may have
/// more data than the driver reads.
const UNKNOWN_OWNER: &str = "unknown";

/// Writes `DNSEndpoint`s.
pub struct ExternalDns {
    client: Client,
    fence: Arc<Fence>,
}

impl ExternalDns {
    /// Creates a driver for the client's cluster.
    pub fn new(client: Client, fence: Arc<Fence>) -> Self {
        Self { client, fence }
    }

    fn api(&self, object: &PoolKey) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &object.namespace, &resource())
    }

    async fn get(&self, name: &RecordName, object: &PoolKey) -> Result<Option<DynamicObject>, DriverError> {
        self.api(object).get_opt(&endpoint_name(name, object)).await.map_err(explain)
    }

    async fn change(&self, change: &RecordChange) -> Result<(), DriverError> {
        let RecordChange { name, object, old: _, new } = change;
        let api = self.api(object);
        let found = self.get(name, object).await?;
        change.check(&found.as_ref().map(|found| set(found, name)).unwrap_or_default())?;
        if self.fence.remaining().is_none() {
            return Err(DriverError::Unavailable(
                "request not sent: the lease of this replica is no longer valid".into(),
            ));
        }
        match (found, &new.owner) {
            (Some(found), None) => {
                let (uid, version) = (found.uid(), found.resource_version());
                let preconditions = Some(Preconditions { uid, resource_version: version });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                api.delete(&found.name_any(), &params).await.map(|_| ()).map_err(explain)
            }
            (None, None) => Ok(()),
            (found, Some(owner)) => {
                let exists = found.is_some();
                let made = || DynamicObject::new(&endpoint_name(name, object), &resource()).data(json!({}));
                let mut endpoint = found.unwrap_or_else(made);
                endpoint.metadata.managed_fields = None;
                endpoint.labels_mut().insert(MANAGED_BY.into(), US.into());
                endpoint.annotations_mut().insert(OWNER.into(), owner.to_string());
                endpoint.data["spec"] = spec(name, new);
                let params = PostParams::default();
                let written = match exists {
                    true => api.replace(&endpoint.name_any(), &params, &endpoint).await,
                    false => api.create(&params, &endpoint).await,
                };
                written.map(|_| ()).map_err(explain)
            }
        }
    }
}

impl RecordDriver for ExternalDns {
    fn read<'a>(
        &'a self,
        name: &'a RecordName,
        object: &'a PoolKey,
    ) -> BoxFuture<'a, Result<RecordSet, DriverError>> {
        async {
            let found = self.get(name, object).await?;
            Ok(found.as_ref().map(|found| set(found, name)).unwrap_or_default())
        }
        .boxed()
    }

    fn write<'a>(&'a self, change: &'a RecordChange) -> BoxFuture<'a, Result<(), DriverError>> {
        self.change(change).boxed()
    }
}

fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("externaldns.k8s.io", "v1alpha1", "DNSEndpoint"))
}

/// The name of the `DNSEndpoint`. It includes the kind, because objects of two kinds may have the same name.
fn endpoint_name(name: &RecordName, object: &PoolKey) -> String {
    format!("{}-{}-{}", object.kind, object.name, name.kind.name()).to_ascii_lowercase()
}

fn spec(name: &RecordName, set: &RecordSet) -> Value {
    let targets: Vec<_> = set.values.iter().map(ToString::to_string).collect();
    let mut endpoint = json!({"dnsName": &*name.name, "recordType": name.kind.name(), "targets": targets});
    if let Some(ttl) = set.ttl {
        endpoint["recordTTL"] = ttl.into();
    }
    json!({"endpoints": [endpoint]})
}

/// The record set of a name in a `DNSEndpoint`. It has no values if the endpoint is for another name.
fn set(found: &DynamicObject, name: &RecordName) -> RecordSet {
    let endpoint = &found.data["spec"]["endpoints"][0];
    let is_meant = endpoint["dnsName"] == *name.name;
    let targets = endpoint["targets"].as_array().filter(|_| is_meant).into_iter().flatten();
    let is_ours = found.labels().get(MANAGED_BY).is_some_and(|by| by == US);
    let owner = found.annotations().get(OWNER).map(String::as_str).filter(|_| is_ours);
    RecordSet {
        values: targets.filter_map(|target| target.as_str()?.parse().ok()).collect(),
        ttl: Some(endpoint["recordTTL"].as_u64().and_then(|ttl| u32::try_from(ttl).ok()).unwrap_or(0)),
        owner: Some(owner.unwrap_or(UNKNOWN_OWNER).into()),
    }
}

fn explain(error: kube::Error) -> DriverError {
    let kube::Error::Api(status) = &error else { return DriverError::Unavailable(error.to_string()) };
    let message = status.message.clone();
    match status.code {
        404 => DriverError::NotFound(format!(
            "{message}: check that the DNSEndpoint CRD of external-dns is installed"
        )),
        409 | 412 => DriverError::Conflict(message),
        403 => DriverError::Denied { permission: "dnsendpoints.externaldns.k8s.io".into(), message },
        429 => DriverError::RateLimited { retry_after: Duration::from_secs(1), message },
        400..500 => DriverError::Invalid(message),
        _ => DriverError::Unavailable(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leadership::clock::{Clock, SystemClock};
    use kube::client::Body;
    use plan::{DnsProvider, RecordKind};
    use std::sync::Mutex;

    /// A driver for a cluster without endpoints, and the requests that the cluster got.
    fn cluster() -> (ExternalDns, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (uri, method) = (request.uri(), request.method());
            to.lock().unwrap().push(format!("{method} {}?{}", uri.path(), uri.query().unwrap_or_default()));
            let (status, body) = match request.method().as_str() {
                "GET" => (
                    404,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}),
                ),
                _ => (
                    201,
                    json!({"apiVersion": "externaldns.k8s.io/v1alpha1", "kind": "DNSEndpoint", "metadata": {}}),
                ),
            };
            let body = Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(status).body(body).unwrap();
            futures::future::ready(Ok::<_, std::io::Error>(answer))
        });
        let clock = Arc::new(SystemClock);
        let fence = Fence::new(Arc::<SystemClock>::clone(&clock));
        fence.open_until(clock.since_boot() + Duration::from_secs(600));
        (ExternalDns::new(Client::new(service, "default"), fence), asked)
    }

    /// The zone and the name are only in the body of a request, so no character in them can change the path.
    #[tokio::test]
    async fn no_dns_name_changes_the_path_of_a_request() {
        let object = PoolKey { kind: "FloatingIPPool", namespace: "web".into(), name: "pool".into() };
        let long = "a".repeat(100_000);
        for text in
            ["", "..", "../../secrets/x", "a?b=c", "a#b", "%2f..%2f", "a b", "a\r\nb", "a\0b", "ünï", &long]
        {
            let (driver, asked) = cluster();
            let name = RecordName {
                provider: DnsProvider::ExternalDns,
                zone: text.into(),
                name: text.into(),
                kind: RecordKind::A,
            };
            let old = driver.read(&name, &object).await.unwrap();
            let values = ["203.0.113.7".parse().unwrap()].into();
            let new = RecordSet { values, ttl: Some(60), owner: Some("us".into()) };
            driver.write(&RecordChange { name, object: object.clone(), old, new }).await.unwrap();
            let endpoints = "/apis/externaldns.k8s.io/v1alpha1/namespaces/web/dnsendpoints";
            let endpoint = format!("GET {endpoints}/floatingippool-pool-a?");
            let asked = asked.lock().unwrap().clone();
            assert_eq!(asked, [endpoint.clone(), endpoint, format!("POST {endpoints}?")], "{text:?}");
        }
    }
}
