//! Objects that the controller can't decode for a while, and objects whose changes the apiserver rejects.
//!
//! An undecodable object has a field of an unexpected type, as a newer CRD could allow. The controller must not write
//! such an object (I13), and must not treat it as deleted. It may retry a rejected write, but with backoff (I7).
//!
//! In: the seed, and the writes of the processes. Out: events, their effects on objects, and violations.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use crate::clouds::Cloud;
use crate::event::{Event, Thing};
use crate::objects::{node_name, pod_name};
use crate::options::{CHAOS, NODES};
use crate::rng::Rng;
use crate::universe::Universe;
use crate::vips;

/// How often one process may send rejected writes of the same version of an object within a minute.
const REFUSED_PER_MINUTE_MAX: usize = 12;

/// The field that makes an object of a kind undecodable.
fn field(plural: &str) -> (&'static str, &'static str) {
    match plural {
        "nodes" => ("status", "phase"),
        "pods" => ("status", "addresses"),
        "clusters" => ("spec", "paused"),
        _ => ("status", "observedGeneration"),
    }
}

/// A value that fits no field of the controller's types.
fn nonsense() -> Value {
    json!([["undecodable"]])
}

fn is_undecodable(plural: &str, object: &Value) -> bool {
    let (part, name) = field(plural);
    object[part][name] == nonsense()
}

impl Thing {
    /// All objects that can become undecodable or read-only.
    fn all() -> impl Iterator<Item = Self> {
        let of_cloud =
            |cloud| (0..NODES).map(move |node| Self::Node { cloud, node }).chain([Self::Owner { cloud }]);
        let clouds = Cloud::ALL.into_iter().flat_map(of_cloud);
        let pods = (0..NODES).map(|node| Self::Pod { node });
        clouds
            .chain(pods)
            .chain([Self::Names])
            .chain((0..vips::CLUSTERS).map(|cluster| Self::Cluster { cluster }))
    }

    /// The plural name of its kind, its namespace and its name.
    fn place(self) -> (&'static str, &'static str, String) {
        match self {
            Self::Node { cloud, node } => ("nodes", "", node_name(cloud, node)),
            Self::Pod { node } => ("pods", "ingress", pod_name(node)),
            Self::Owner { cloud: Cloud::Compute } => ("netipallocations", "", "edge".into()),
            Self::Owner { cloud: Cloud::Ocean } => ("floatingippools", "default", "pool".into()),
            Self::Owner { cloud: Cloud::Azure } => ("netipallocations", "", "azure".into()),
            Self::Owner { cloud: Cloud::Aws } => ("netipallocations", "", "aws".into()),
            Self::Names => ("nodednsrecordsets", "default", "nodes".into()),
            Self::Cluster { cluster } => ("clusters", vips::NAMESPACE, vips::name(cluster)),
        }
    }
}

/// Draws when objects break, and when they are repaired. If there are `troubles` (crashes, stops, failures of the
/// apiserver), about half of the objects break shortly before one of them.
pub fn script(seed: u64, troubles: &[Duration]) -> Vec<(Duration, Event)> {
    let mut rng = Rng::new(seed, "broken");
    let (all, mut events): (Vec<_>, Vec<_>) = (Thing::all().collect(), Vec::new());
    for _ in 0..rng.roll(8) {
        let begins = match troubles {
            [_, ..] if rng.one_in(2) => rng.pick(troubles).saturating_sub(rng.up_to(Duration::from_secs(20))),
            _ => rng.up_to(CHAOS),
        };
        let ends = begins + Duration::from_secs(5) + rng.up_to(Duration::from_secs(120));
        let owner = Thing::Owner { cloud: *rng.pick(&Cloud::ALL) };
        let what = if rng.one_in(3) { owner } else { *rng.pick(&all) };
        let is_refusal = rng.one_in(3);
        for (at, is_broken) in [(begins, true), (ends.min(CHAOS), false)] {
            events.push((
                at,
                match is_refusal {
                    true => Event::Refuse { what, is_refused: is_broken },
                    false => Event::Undecodable { what, is_broken },
                },
            ));
        }
    }
    events
}

/// Makes an object undecodable, or repairs it.
pub fn garble(universe: &Universe, what: Thing, is_broken: bool) {
    let (plural, namespace, name) = what.place();
    let (part, field) = field(plural);
    universe.api.edit(plural, namespace, &name, universe.now(), |object| {
        if is_broken {
            object[part][field] = nonsense();
        } else if is_undecodable(plural, object)
            && let Value::Object(fields) = &mut object[part]
        {
            fields.remove(field);
        }
    });
}

/// Makes the apiserver reject all changes of an object, or accept them again.
pub fn refuse(universe: &Universe, what: Thing, is_refused: bool) {
    let (plural, namespace, name) = what.place();
    universe.api.refuse(plural, namespace, &name, is_refused);
}

/// Repairs all objects.
pub fn heal(universe: &Universe) {
    for what in Thing::all() {
        garble(universe, what, false);
        refuse(universe, what, false);
    }
}

/// Checks a write of a process, given the object before the write and the status code of the response.
pub fn judge(
    universe: &Universe,
    process: u64,
    request: &Request<Bytes>,
    before: Option<&Value>,
    status: StatusCode,
) {
    let (Some(before), path) = (before, request.uri().path()) else { return };
    let plural = path.trim_end_matches("/status").rsplit('/').nth(1).unwrap_or_default();
    if status.is_success() && is_undecodable(plural, before) {
        universe.report_violation("I13", format!("p{process} wrote {path}, which is undecodable"));
    }
    if status != StatusCode::UNPROCESSABLE_ENTITY && status != StatusCode::INTERNAL_SERVER_ERROR {
        return;
    }
    let version = before["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    let times = universe.refusals.add((process, path.to_owned(), version), universe.elapsed());
    if times == REFUSED_PER_MINUTE_MAX + 1 {
        universe.report_violation(
            "I7",
            format!("p{process} sent {times} rejected writes of {path} within a minute"),
        );
    }
}

/// Whether a request changes an existing object other than a lease.
pub fn is_write(request: &Request<Bytes>) -> bool {
    matches!(*request.method(), Method::PUT | Method::PATCH) && !request.uri().path().contains("/leases/")
}
