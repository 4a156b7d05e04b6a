//! Resets a control plane to an earlier state, so that several tests can use it one after the other.
//!
//! In: a control plane in the state to keep. Out: the same objects again, however a test has changed them. The changes
//! go to etcd directly, so no finalizer, webhook or admission check gets in the way. The apiserver reports them to its
//! watches like all other changes. Never resets CRDs: the apiserver needs too long to serve a changed one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;

/// All keys of the apiserver are between these two.
const KEYS: (&str, &str) = ("/registry/", "/registry0");

/// Keys that the apiserver and the controller-manager keep current themselves.
const KEPT_BY_SERVERS: [&str; 5] = [
    "/registry/apiregistration.k8s.io/",
    "/registry/flowschemas/",
    "/registry/leases/kube-system/apiserver-",
    "/registry/masterleases/",
    "/registry/prioritylevelconfigurations/",
];

const CRDS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// etcd accepts 128 operations in a transaction.
const OPERATIONS_MAX: usize = 100;

/// The servers have settled if no key changes for this long.
const QUIET_FOR: Duration = Duration::from_millis(300);

/// How long to wait until the servers have settled.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// The state of a control plane at some time.
#[derive(Debug)]
pub struct Checkpoint {
    objects: BTreeMap<String, Saved>,
}

/// An object in etcd, and the revision at which it had this value.
#[derive(Debug)]
struct Saved {
    revision: i64,
    value: ByteString,
}

impl Checkpoint {
    /// Waits until the servers write nothing more, and saves the state.
    pub async fn take(control_plane: &ControlPlane) -> Result<Self> {
        let etcd = Etcd::of(control_plane)?;
        let deadline = Instant::now() + SETTLED_WITHIN;
        let mut before = etcd.read(true).await?;
        loop {
            tokio::time::sleep(QUIET_FOR).await;
            let now = etcd.read(true).await?;
            if now.iter().map(KeyValue::version).eq(before.iter().map(KeyValue::version)) {
                break;
            }
            ensure!(Instant::now() < deadline, "the servers still write after {SETTLED_WITHIN:?}");
            before = now;
        }
        let saved =
            |found: KeyValue| Ok((found.name()?, Saved { revision: found.mod_revision, value: found.value }));
        Ok(Self { objects: etcd.read(false).await?.into_iter().map(saved).collect::<Result<_>>()? })
    }

    /// Resets the control plane to this state, and waits until the servers have settled. Fails if a CRD has changed.
    pub async fn restore(&mut self, control_plane: &ControlPlane) -> Result<()> {
        let etcd = Etcd::of(control_plane)?;
        let deadline = Instant::now() + SETTLED_WITHIN;
        while self.reset_once(&etcd).await? > 0 {
            ensure!(Instant::now() < deadline, "the servers still write after {SETTLED_WITHIN:?}");
            // The servers may react to the changes, such as with an Event about a deleted node.
            tokio::time::sleep(QUIET_FOR).await;
        }
        Ok(())
    }

    /// Deletes what is new, and writes back what was changed or deleted. Returns the number of changes.
    async fn reset_once(&mut self, etcd: &Etcd) -> Result<usize> {
        let mut found = BTreeMap::new();
        for object in etcd.read(true).await? {
            found.insert(object.name()?, object.mod_revision);
        }
        let is_as_saved = |name: &String, saved: &Saved| found.get(name) == Some(&saved.revision);
        let changed: Vec<String> = self
            .objects
            .iter()
            .filter(|(name, saved)| !is_as_saved(name, saved))
            .map(|(name, _)| name.clone())
            .collect();
        let new: Vec<String> = found.into_keys().filter(|name| !self.objects.contains_key(name)).collect();
        if let Some(definition) = changed.iter().chain(&new).find(|name| name.starts_with(CRDS)) {
            bail!("{definition} has changed");
        }
        let deletions = new.iter().map(|name| json!({"requestDeleteRange": {"key": encoded(name)}}));
        let writes = changed
            .iter()
            .map(|name| json!({"requestPut": {"key": encoded(name), "value": self.objects[name].value}}));
        let operations: Vec<Value> = deletions.chain(writes).collect();
        let mut revisions = Vec::new();
        for part in operations.chunks(OPERATIONS_MAX) {
            let revision = etcd.write(part).await?;
            revisions.extend(part.iter().map(|_| revision));
        }
        for (name, revision) in changed.iter().zip(revisions.split_off(new.len())) {
            if let Some(saved) = self.objects.get_mut(name) {
                saved.revision = revision;
            }
        }
        Ok(operations.len())
    }
}

/// Deletes an object by its key in etcd, and makes etcd forget all earlier versions. So an apiserver that starts later
/// can't report the deletion to a watch.
pub async fn delete_and_forget(control_plane: &ControlPlane, key: &str) -> Result<()> {
    let etcd = Etcd::of(control_plane)?;
    let revision = etcd.write(&[json!({"requestDeleteRange": {"key": encoded(key)}})]).await?;
    let _: Value = etcd.call("compaction", &json!({"revision": revision, "physical": true})).await?;
    Ok(())
}

/// etcd's HTTP gateway, which encodes keys and values in base64 and 64-bit numbers as strings.
struct Etcd {
    client: Client,
}

#[derive(Deserialize)]
struct KeyValue {
    key: ByteString,
    #[serde(default)]
    value: ByteString,
    #[serde(deserialize_with = "number")]
    mod_revision: i64,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

/// The part of every response that contains etcd's revision.
#[derive(Deserialize)]
struct Written {
    header: Header,
}

#[derive(Deserialize)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

impl KeyValue {
    fn name(&self) -> Result<String> {
        Ok(String::from_utf8(self.key.0.clone())?)
    }

    fn version(&self) -> (&ByteString, i64) {
        (&self.key, self.mod_revision)
    }
}

impl Etcd {
    fn of(control_plane: &ControlPlane) -> Result<Self> {
        Ok(Self { client: Client::try_from(Config::new(control_plane.etcd().parse()?))? })
    }

    /// Reads all objects that the servers don't keep current themselves, with or without their values.
    async fn read(&self, keys_only: bool) -> Result<Vec<KeyValue>> {
        let query = json!({"key": encoded(KEYS.0), "range_end": encoded(KEYS.1), "keys_only": keys_only});
        let mut range: Range = self.call("range", &query).await?;
        let is_kept = |key: &[u8]| KEPT_BY_SERVERS.iter().any(|prefix| key.starts_with(prefix.as_bytes()));
        range.kvs.retain(|found| !is_kept(&found.key.0));
        Ok(range.kvs)
    }

    /// Writes and deletes in one transaction, and returns its revision.
    async fn write(&self, operations: &[Value]) -> Result<i64> {
        let written: Written = self.call("txn", &json!({"success": operations})).await?;
        Ok(written.header.revision)
    }

    async fn call<T: serde::de::DeserializeOwned>(&self, method: &str, body: &Value) -> Result<T> {
        let request = http::Request::post(format!("/v3/kv/{method}")).body(serde_json::to_vec(body)?)?;
        self.client.request(request).await.with_context(|| format!("calling {method} of etcd"))
    }
}

fn encoded(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_owned())
}

fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}
