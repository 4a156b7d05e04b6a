//! A network interface, read and written as a whole.
//!
//! In: the JSON of an interface from Azure. Out: the same JSON with one public address added or removed. A write
//! replaces the whole interface, so every field that is not sent back is lost: security groups, load balancer pools,
//! other IP configurations. So the driver sends the body back as it read it, with unknown fields, and changes only one
//! field.

use plan::{Address, VmId};
use serde_json::{Value, json};

use super::ids::{ResourceId, is_same};

/// The JSON of an interface.
pub(super) struct Interface(pub(super) Value);

impl Interface {
    pub(super) fn id(&self) -> &str {
        self.0["id"].as_str().unwrap_or_default()
    }

    /// The version that `If-Match` sends with a write.
    pub(super) fn etag(&self) -> Option<&str> {
        self.0["etag"].as_str()
    }

    pub(super) fn location(&self) -> Option<&str> {
        self.0["location"].as_str()
    }

    /// The VM of this interface.
    pub(super) fn machine(&self) -> Option<VmId> {
        let machine = self.0["properties"]["virtualMachine"]["id"].as_str()?;
        ResourceId::parse(machine).map(|id| id.as_holder())
    }

    /// The VM of this interface. If it has none, the interface itself.
    pub(super) fn holder(&self) -> Option<VmId> {
        self.machine().or_else(|| ResourceId::parse(self.id()).map(|id| id.as_holder()))
    }

    /// Whether this is the primary interface of its VM. If a VM has only one interface, Azure does not always set this.
    pub(super) fn is_primary(&self) -> bool {
        self.0["properties"]["primary"] == true
    }

    /// The provisioning state of the interface.
    pub(super) fn state(&self) -> State {
        State::told_by(&self.0)
    }

    /// The index of the IP configuration for an address: one of the same IP version, the primary one if there are
    /// several.
    pub(super) fn place_for(&self, address: Address) -> Option<usize> {
        let wanted = if address.0.is_ipv6() { "IPv6" } else { "IPv4" };
        let is_meant = |configuration: &Value| {
            let version = configuration["properties"]["privateIPAddressVersion"].as_str();
            version.unwrap_or("IPv4").eq_ignore_ascii_case(wanted)
        };
        let of_version = || self.configurations().iter().enumerate().filter(|(_, found)| is_meant(found));
        let primary = of_version().find(|(_, found)| found["properties"]["primary"] == true);
        primary.or_else(|| of_version().next()).map(|(at, _)| at)
    }

    /// The index of the IP configuration that has an address. `public` is the resource ID of the address.
    pub(super) fn place_of(&self, public: &str) -> Option<usize> {
        let has = |at: &usize| self.public_at(*at).is_some_and(|found| is_same(found, public));
        (0..self.configurations().len()).find(has)
    }

    /// The resource ID of the address in an IP configuration.
    pub(super) fn public_at(&self, at: usize) -> Option<&str> {
        self.configurations().get(at)?["properties"]["publicIPAddress"]["id"].as_str()
    }

    /// The resource IDs of all addresses of the interface.
    pub(super) fn public_addresses(&self) -> impl Iterator<Item = &str> {
        (0..self.configurations().len()).filter_map(|at| self.public_at(at))
    }

    /// The interface with the address `public` in one IP configuration. If `public` is `None`, the configuration has no
    /// address. Returns none if the interface has no such configuration.
    pub(super) fn with_public(mut self, at: usize, public: Option<&str>) -> Option<Value> {
        let place = format!("/properties/ipConfigurations/{at}/properties");
        let properties = self.0.pointer_mut(&place)?.as_object_mut()?;
        match public {
            Some(id) => _ = properties.insert("publicIPAddress".into(), json!({ "id": id })),
            None => _ = properties.remove("publicIPAddress"),
        }
        Some(self.0)
    }

    fn configurations(&self) -> &[Value] {
        self.0["properties"]["ipConfigurations"].as_array().map(Vec::as_slice).unwrap_or_default()
    }
}

/// The provisioning state of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Settled,
    Changing,
    /// Azure may show the requested state instead of the actual one.
    Failed,
}

impl State {
    /// The provisioning state in the JSON of a resource.
    pub(super) fn told_by(resource: &Value) -> Self {
        Self::of(resource["properties"]["provisioningState"].as_str())
    }

    pub(super) fn of(provisioning: Option<&str>) -> Self {
        match provisioning {
            Some("Failed" | "Canceled") => Self::Failed,
            None | Some("Succeeded") => Self::Settled,
            Some(_) => Self::Changing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    /// Any JSON, because Azure can add fields.
    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::from),
                btree_map("[a-zA-Z]{1,10}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    fn object() -> impl Strategy<Value = Value> {
        btree_map("[a-zA-Z]{1,10}", anything(), 0..5).prop_map(|map| map.into_iter().collect())
    }

    /// An IP configuration with any content, with or without an address.
    fn configuration() -> impl Strategy<Value = Value> {
        (object(), object(), proptest::option::of("[a-z]{3}"), any::<bool>()).prop_map(
            |(mut around, mut properties, public, primary)| {
                if let Some(name) = public {
                    properties["publicIPAddress"] = json!({"id": format!("/public/{name}"), "sku": "x"});
                }
                properties["primary"] = primary.into();
                around["properties"] = properties;
                around
            },
        )
    }

    fn interface() -> impl Strategy<Value = Value> {
        (object(), object(), vec(configuration(), 1..4)).prop_map(|(mut around, mut properties, all)| {
            properties["ipConfigurations"] = all.into();
            around["properties"] = properties;
            around
        })
    }

    /// Every value in a body with its path. Empty lists and objects count as values.
    fn leaves(at: String, body: &Value, into: &mut Vec<(String, Value)>) {
        match body {
            Value::Object(fields) if !fields.is_empty() => {
                fields.iter().for_each(|(name, inner)| leaves(format!("{at}/{name}"), inner, into));
            }
            Value::Array(items) if !items.is_empty() => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(name, inner)| leaves(format!("{at}/{name}"), inner, into));
            }
            leaf => into.push((at, leaf.clone())),
        }
    }

    proptest! {
        #[test]
        fn only_the_one_address_of_an_interface_changes(read in interface(), at in 0usize..4, puts in any::<bool>()) {
            let count = read["properties"]["ipConfigurations"].as_array().map_or(0, Vec::len);
            let at = at % count;
            let public = puts.then_some("/public/new");
            let written = Interface(read.clone()).with_public(at, public).unwrap();
            let rewritten = Interface(written.clone());
            prop_assert_eq!(rewritten.public_at(at), public);
            let field = format!("/properties/ipConfigurations/{at}/properties/publicIPAddress");
            let others = |body: &Value| {
                let mut all = Vec::new();
                leaves(String::new(), body, &mut all);
                all.retain(|(path, _)| !path.starts_with(&field));
                all
            };
            prop_assert_eq!(others(&written), others(&read));
        }
    }

    #[test]
    fn an_address_goes_into_the_primary_configuration_of_its_version() {
        let read = json!({"properties": {"ipConfigurations": [
            {"properties": {"primary": false, "privateIPAddressVersion": "IPv4"}},
            {"properties": {"primary": true}},
            {"properties": {"primary": false, "privateIPAddressVersion": "IPv6"}},
        ]}});
        let place = |address: &str| Interface(read.clone()).place_for(address.parse().unwrap());
        assert_eq!(place("203.0.113.7"), Some(1));
        assert_eq!(place("2001:db8::7"), Some(2));
        let no_ipv6 = Interface(json!({"properties": {"ipConfigurations": [{"properties": {}}]}}));
        assert_eq!(no_ipv6.place_for("2001:db8::7".parse().unwrap()), None);
        assert_eq!(no_ipv6.place_for("203.0.113.7".parse().unwrap()), Some(0));
    }
}
