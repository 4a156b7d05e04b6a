//! Processes events of our objects, and the responses to our own writes, and makes pools of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::records::DnsRecordSet;
use kube::Resource;
use plan::{Address, Fact, Holding, Mode, NodeName, Pool, PoolKey, Reason, Scope};
use tokio::time::Instant;

use super::Index;
use super::nodes::candidate;
use super::tracked::{Reserved, Tracked};
use crate::addresses::codec;
use crate::addresses::create_request::CreateRequest;
use crate::addresses::dropped_fields::DroppedFields;
use crate::addresses::kind::Kind;
use crate::addresses::object::Object;
use crate::addresses::resources::parsed::Parsed;
use crate::addresses::resources::refusal::Refusal;
use crate::addresses::resources::{key_of, kind_name, node_dns_record_set};
use crate::kubernetes::decode::{Change, Decoded, Undecodable, names_of};

impl Index {
    pub(super) fn observe_objects<K: kube::Resource<DynamicType = ()> + Clone>(
        &mut self,
        kind: Kind,
        change: Change<K>,
        object: fn(K) -> Object,
    ) {
        match change.is_whole() {
            true => self.know(kind),
            false => self.heard(kind),
        }
        self.undecodable.observe(kind, &change, |object| names_of(object.meta()));
        match change {
            Change::All(all) => {
                let keys: BTreeSet<_> = all.iter().map(|one| pool_key(kind, one.meta())).collect();
                let is_gone = |key: &&PoolKey| key.kind == kind_name(kind) && !keys.contains(key);
                let gone: Vec<_> = self.objects.keys().filter(is_gone).cloned().collect();
                gone.iter().for_each(|key| self.remove_object(key));
                all.into_iter().for_each(|one| self.set_decoded(kind, one, object));
            }
            Change::Applied(applied) => self.set_decoded(kind, *applied, object),
            Change::Deleted(gone) => self.remove_object(&pool_key(kind, &gone)),
        }
        self.reserve_machines();
    }

    /// Processes an object that was read, decoded or not.
    fn set_decoded<K>(&mut self, kind: Kind, decoded: Decoded<K>, object: fn(K) -> Object) {
        let undecodable = match decoded {
            Decoded::Object(decoded) => return self.set_object(object(decoded)),
            Decoded::Undecodable(undecodable) => undecodable,
        };
        let (key, reserved) = (pool_key(kind, &undecodable.metadata), Reserved::new(&undecodable));
        let is_known = |known: &Tracked| {
            let is_same = |before: &Reserved| before.version == reserved.version;
            known.version() > reserved.version || known.undecodable.as_ref().is_some_and(is_same)
        };
        if self.objects.get(&key).is_some_and(is_known) {
            return;
        }
        let is_another =
            |known: &Tracked| known.object.metadata().uid.as_ref() != undecodable.metadata.uid.as_ref();
        if self.objects.get(&key).is_some_and(is_another) {
            self.remove_object(&key);
        }
        if !self.objects.contains_key(&key)
            && let Some(stand_in) = stand_in(kind, &undecodable)
        {
            self.objects.insert(key.clone(), Tracked::new(stand_in));
        }
        if let Some(tracked) = self.objects.get_mut(&key) {
            tracked.undecodable = Some(reserved);
        }
        self.rebuild(&key);
    }

    /// Reserves the VMs that undecodable objects name, because an unfinished move may involve them.
    fn reserve_machines(&mut self) {
        let reserved = self.objects.iter().filter(|(key, _)| key.kind != node_dns_record_set::KIND);
        let reserved = reserved.filter_map(|(_, tracked)| tracked.undecodable.as_ref());
        self.world.reserved_machines =
            reserved.flat_map(|reserved| reserved.machines.iter().cloned()).collect();
    }

    fn remove_object(&mut self, key: &PoolKey) {
        self.objects.remove(key);
        self.interest.remove(key);
        self.world.remove_pool(key);
    }

    /// Processes an object from a watch or from the response to a write. Ignores it if the cache has a newer version.
    pub fn set_object(&mut self, object: Object) {
        let key = key_of(&object);
        if self.objects.get(&key).is_some_and(|known| known.version() >= object.version()) {
            return;
        }
        // The previous leader's last status may arrive after this process has started to lead.
        for (address, since) in codec::losses_of(object.addresses()) {
            self.world.losses.entry(address).or_insert(since);
        }
        let is_another = |known: &Tracked| known.object.metadata().uid != object.metadata().uid;
        if self.objects.get(&key).is_some_and(is_another) {
            // The state of the previous object of this name does not apply to this one.
            self.remove_object(&key);
        }
        match self.objects.get_mut(&key) {
            Some(tracked) => {
                let is_same_spec = tracked.object.identity() == object.identity();
                let is_unchanged = tracked.object.has_same_state(&object);
                tracked.undecodable = None;
                tracked.object = object;
                if is_same_spec && tracked.refusal.is_none() {
                    // If only a finalizer was added or removed, pending changes of the status stay valid.
                    if !is_unchanged {
                        self.refresh(&key);
                    }
                    return;
                }
            }
            None => _ = self.objects.insert(key.clone(), Tracked::new(object)),
        }
        self.rebuild(&key);
    }

    /// Processes the response to a status write. If fields that were sent are missing, the CRD in the cluster is older
    /// than this controller. Without its journal, `lastHolder` or `created` the controller does not act on the object.
    /// It can do without the other fields. Returns a note for an Event if the dropped fields have changed.
    pub fn observe_written(&mut self, key: &PoolKey, sent: &Object, answered: Object) -> Option<String> {
        let tracked = self.objects.get_mut(key)?;
        if tracked.object.metadata().uid != answered.metadata().uid {
            return None;
        }
        let dropped = match sent.has_same_status(&answered) {
            true => DroppedFields::default(),
            false => DroppedFields::between(&sent.status(), &answered.status()),
        };
        let consequence = if !sent.keeps_journal_and_holders(&answered) {
            tracing::error!(object = %key, %dropped, "the CRD drops status fields that the controller needs: apply the CRDs of this version");
            tracked.refused_until = Some(Instant::now() + OUTDATED_RETRY);
            "the controller does not act on this object"
        } else {
            "the status lacks these fields"
        };
        let is_new = !dropped.is_empty() && tracked.dropped_fields != dropped;
        if is_new && tracked.refused_until.is_none() {
            tracing::warn!(object = %key, %dropped, "the CRD drops optional status fields: apply the CRDs of this version");
        }
        let note = format!(
            "the installed CRD is outdated and drops {dropped}, so {consequence}: apply the CRDs of this controller \
             version"
        );
        tracked.dropped_fields = dropped;
        self.set_object(answered);
        self.refresh(key);
        self.reserve_machines();
        is_new.then_some(note)
    }

    /// Retries objects whose CRD was outdated, because somebody may have updated the CRD.
    pub fn retry_outdated(&mut self) {
        let now = Instant::now();
        let is_due = |tracked: &Tracked| tracked.refused_until.is_some_and(|until| until <= now);
        let due: Vec<_> =
            self.objects.iter().filter(|(_, tracked)| is_due(tracked)).map(|(key, _)| key.clone()).collect();
        due.iter().for_each(|key| self.rebuild(key));
        self.reserve_machines();
    }

    /// Processes the response to a write of finalizers or spec. Pending changes of the status stay valid.
    pub fn observe_object_written(&mut self, key: &PoolKey, answered: Object) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        let is_newer = tracked.version() < answered.version();
        if tracked.object.metadata().uid != answered.metadata().uid || !is_newer {
            return;
        }
        let is_same_spec = tracked.object.identity() == answered.identity();
        tracked.object = answered;
        if !is_same_spec {
            self.rebuild(key);
        }
    }

    /// Processes an address that was created for a pool.
    pub fn observe_created(
        &mut self,
        key: &PoolKey,
        scope: &Scope,
        address: Address,
        request: &CreateRequest,
    ) {
        if self.uid(key) != request.uid {
            tracing::error!(object = %key, %address, "created an address for an object that is deleted: release it at the provider");
            return;
        }
        let as_of = self.tick();
        let (region, tag) = (Some(Arc::clone(&request.region)), request.tag.clone());
        self.world.set_fact(scope, address, Fact { region, tag, ..Fact::new(Holding::Free, as_of) });
        self.adopt(key, address);
    }

    /// Adds a created address to the pool until the spec of the object lists it.
    pub fn adopt(&mut self, key: &PoolKey, address: Address) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        tracked.adopted.insert(address);
        tracked.made.insert(address);
        self.amend(key, |pool| {
            pool.adopted.insert(address);
        });
    }

    /// Notes that an address was released at the provider, until the spec of the object no longer lists it.
    pub fn drop_address(&mut self, key: &PoolKey, address: Address) {
        if let Some(tracked) = self.objects.get_mut(key) {
            tracked.dropped.insert(address);
        }
    }

    /// Notes that a request for a new address failed. If `may_have_asked` is true, the request may have taken effect.
    pub fn doubt_creation(&mut self, key: &PoolKey, may_have_asked: bool) {
        let now = self.tick();
        self.amend(key, |pool| {
            if let Some(entry) = &mut pool.creation {
                entry.may_have_asked |= may_have_asked;
                // Only a listing that starts later shows whether the request took effect.
                entry.written = now;
            }
        });
    }

    fn amend(&mut self, key: &PoolKey, change: impl FnOnce(&mut Pool)) {
        if let Some(mut pool) = self.world.pool(key).cloned() {
            change(&mut pool);
            self.world.set_pool(pool);
        }
    }

    /// The addresses that the spec of an object should list, or `None` if it lists them already.
    pub fn spec_addresses(&self, key: &PoolKey) -> Option<Vec<String>> {
        let tracked = self.objects.get(key)?;
        let Object::Pool(object) = &tracked.object else { return None };
        let is_listed = tracked.adopted.is_empty() && tracked.dropped.is_empty();
        if is_listed || plan::sabotaged!(SpecForgotten) {
            return None;
        }
        let listed = object.spec.ips.clone().unwrap_or_default();
        let is_dropped = |text: &String| text.parse().is_ok_and(|address| tracked.dropped.contains(&address));
        let mut wanted: Vec<String> = listed.iter().filter(|text| !is_dropped(text)).cloned().collect();
        wanted.extend(tracked.adopted.iter().map(ToString::to_string));
        (wanted != listed).then_some(wanted)
    }

    /// Reads status and annotations of an object into its pool again. Discards journal entries in memory that were not
    /// written.
    pub fn refresh(&mut self, key: &PoolKey) {
        let Some(tracked) = self.objects.get(key) else { return };
        let Some(before) = self.world.pool(key) else { return };
        let mut pool = tracked.parsed().pool;
        pool.scope = before.scope.clone();
        pool.policy.mode = if tracked.refused_until.is_some() { Mode::Refused } else { before.policy.mode };
        self.remember(&mut pool);
        self.world.set_pool(pool);
    }

    /// Copies what the index knows about an object into its new pool: its journal, its created and adopted addresses,
    /// and PTR names that the CRD drops.
    fn remember(&mut self, pool: &mut Pool) {
        let learnt = self.tick();
        let Some(tracked) = self.objects.get(&pool.key) else { return };
        let known = self.world.pool(&pool.key);
        (pool.journal, pool.creation) = codec::journal(known, tracked.object.moves(), learnt);
        pool.adopted = tracked.adopted.clone();
        pool.created_here.extend(&tracked.made);
        // If the CRD lacks the field for PTR names, the apiserver prunes them. Keep the name of each moving address in
        // memory until its move ends.
        if tracked.dropped_fields.contain("addresses.ptrName") {
            let moving = self.world.ptrs.iter().filter(|(address, _)| pool.entry(**address).is_some());
            let names: Vec<_> = moving.map(|(address, name)| (*address, Arc::clone(name))).collect();
            pool.ptrs.extend(names);
        }
    }

    /// Rebuilds the pool of an object from the object, the nodes and the pods.
    pub(super) fn rebuild(&mut self, key: &PoolKey) {
        let present = self.world.pool(key).map(|pool| pool.scope.clone());
        self.rebuild_in(key, present);
    }

    /// Rebuilds the pool of an object. If no VM shows its account, it stays in the present scope as long as a matching node
    /// is there.
    pub(super) fn rebuild_in(&mut self, key: &PoolKey, present: Option<Scope>) {
        let Some(tracked) = self.objects.get_mut(key) else { return };
        let Parsed { mut pool, provider, selection, mut refusal, record_refusal, interval } =
            tracked.parsed();
        (tracked.selection, tracked.interval, tracked.refused_until) = (selection, interval, None);
        tracked.record_refusal = record_refusal;
        tracked.adopted.retain(|address| !pool.addresses.contains(address));
        tracked.dropped.retain(|address| pool.addresses.contains(address));
        tracked.recount(&self.pods, &self.owners);
        self.interest.set(key, tracked.selection.pods.as_ref());
        let is_counted = self.can_count(key, &self.objects[key].selection);
        let Some(tracked) = self.objects.get_mut(key) else { return };
        tracked.is_counted = is_counted;
        let members: Vec<_> =
            self.nodes.iter().map(|(name, node)| (name.clone(), tracked.membership(name, node))).collect();
        if let (None, Some(provider)) = (&refusal, provider) {
            let matching = members.iter().filter(|(_, pods)| pods.is_some());
            let of_journal = codec::machines_of(tracked.object.moves());
            let matching = matching.filter_map(|(name, _)| candidate(&self.nodes, &self.world, name));
            match plan::scope_of(provider, &pool, present.as_ref(), of_journal, matching) {
                Some(scope) => pool.scope = scope,
                None => {
                    let is_selected = |name: &NodeName| {
                        members.iter().any(|(member, pods)| member == name && pods.is_some())
                    };
                    let unsupported = self.unsupported.iter().find(|(name, _)| is_selected(name));
                    refusal = Some(match unsupported {
                        Some((node, why)) => Refusal {
                            reason: Reason::UnsupportedNode,
                            message: format!("node {node} can't get an address: {why}"),
                        },
                        None => Refusal {
                            reason: Reason::NoNodes,
                            message: format!(
                                "no matching node has a providerID of {provider}, so the account is unknown"
                            ),
                        },
                    });
                }
            }
        }
        if tracked.undecodable.is_some() {
            refusal = refusal.or_else(|| {
                Some(Refusal {
                    reason: Reason::Undecodable,
                    message: "the object can't be decoded".to_owned(),
                })
            });
        }
        if refusal.is_some() {
            pool.policy.mode = Mode::Refused;
        }
        tracked.refusal = refusal;
        self.remember(&mut pool);
        self.world.set_pool(pool);
        let Some(tracked) = self.objects.get(key) else { return };
        for (name, pods) in members {
            if let Some(node) = self.nodes.get(&name) {
                tracked.update_world(&mut self.world, key, &name, node, pods);
            }
        }
    }
}

/// The pause before the controller retries an object whose journal the CRD drops.
pub(super) const OUTDATED_RETRY: Duration = Duration::from_secs(60);

/// The key of an object's pool. Works for undecodable objects too.
fn pool_key(kind: Kind, metadata: &kube::api::ObjectMeta) -> PoolKey {
    let is_namespaced = kind != Kind::NetIPAllocations;
    let namespace = metadata.namespace.as_deref().filter(|_| is_namespaced).unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    PoolKey { kind: kind_name(kind), namespace: namespace.into(), name: name.into() }
}

/// A substitute for an object that was never decoded: its spec if that can be decoded without the status, otherwise
/// only its DNS name.
pub(super) fn stand_in(kind: Kind, undecodable: &Undecodable) -> Option<Object> {
    fn read<K: serde::de::DeserializeOwned>(
        undecodable: &Undecodable,
        spec: serde_json::Value,
    ) -> Option<Arc<K>> {
        undecodable.with_spec(None).or_else(|| undecodable.with_spec(Some(spec))).map(Arc::new)
    }
    // If the rest of `dnsRecordSet` can't be decoded, its zone and record name are enough to reserve the DNS name.
    let records = undecodable.at(&["spec", "dnsRecordSet"]).or_else(|| {
        let part = |field| undecodable.at::<String>(&["spec", "dnsRecordSet", field]);
        let (provider, zone, record_name) = (part("provider"), part("zone")?, part("recordName")?);
        Some(DnsRecordSet { provider, zone, record_name, ttl: None, adopt: None })
    });
    match kind {
        Kind::NetIPAllocations => {
            let spec = serde_json::json!({"reservedIPs": [], "cloud": {"provider": "gcp"}});
            read(undecodable, spec).map(Object::Allocation)
        }
        Kind::FloatingIPPools => {
            let spec = serde_json::json!({"provider": "", "dnsRecordSet": records});
            read(undecodable, spec).map(Object::Pool)
        }
        _ => {
            let nameless = serde_json::json!({"zone": "", "recordName": ""});
            let records = records.and_then(|records| serde_json::to_value(records).ok()).unwrap_or(nameless);
            let provider: Option<String> = undecodable.at(&["spec", "provider"]);
            let spec = serde_json::json!({"provider": provider, "dnsRecordSet": records});
            read(undecodable, spec).map(Object::Records)
        }
    }
}
