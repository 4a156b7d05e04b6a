//! Parses and matches label selectors in the syntax of `kubectl -l`, and matches tolerations with taints.
//!
//! kube's selectors match only maps of labels, but the index keeps the labels of nodes as lists to save memory.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Taint, Toleration};
use plan::Reason;

use super::refusal::Refusal;

/// The most characters of a label's value, and of its name without the prefix.
const VALUE_MAX: usize = 63;

/// The most characters of the prefix of a label's name.
const PREFIX_MAX: usize = 253;

/// A requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Equal(String, String),
    NotEqual(String, String),
    Exists(String),
    DoesNotExist(String),
}

impl Requirement {
    fn label(&self) -> &str {
        match self {
            Self::In(name, _)
            | Self::NotIn(name, _)
            | Self::Equal(name, _)
            | Self::NotEqual(name, _)
            | Self::Exists(name)
            | Self::DoesNotExist(name) => name,
        }
    }

    fn is_met(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(_, values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(_, values) => value.is_none_or(|value| !values.contains(value)),
            Self::Equal(_, wanted) => value == Some(wanted),
            Self::NotEqual(_, unwanted) => value != Some(unwanted),
            Self::Exists(_) => value.is_some(),
            Self::DoesNotExist(_) => value.is_none(),
        }
    }
}

/// A label selector. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

impl Selector {
    /// Selects the objects that have all of these labels.
    pub(super) fn of_labels(labels: BTreeMap<String, String>) -> Self {
        Self(labels.into_iter().map(|(name, value)| Requirement::Equal(name, value)).collect())
    }

    /// Whether it selects an object. `value_of` returns the value of a label of the object.
    pub(crate) fn selects<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| requirement.is_met(value_of(requirement.label())))
    }

    /// The labels that it uses.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Requirement::label)
    }
}

/// Parses a selector such as `app=nginx,tier!=cache,zone in (a,b),!legacy`. An empty text selects everything.
pub(crate) fn parse(text: &str) -> Result<Selector, Refusal> {
    let terms = terms(text).into_iter().filter(|term| !term.is_empty());
    let requirements = terms.map(|term| requirement(term).ok_or_else(|| refusal(text, term)));
    Ok(Selector(requirements.collect::<Result<_, _>>()?))
}

/// Splits a selector at the commas outside of parentheses.
fn terms(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_separator = |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    };
    text.split(is_separator).map(str::trim).collect()
}

fn requirement(term: &str) -> Option<Requirement> {
    if let Some((key, values)) = term.split_once(" notin ") {
        return Some(Requirement::NotIn(name(key)?, set(values)?));
    }
    if let Some((key, values)) = term.split_once(" in ") {
        return Some(Requirement::In(name(key)?, set(values)?));
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some(Requirement::NotEqual(name(key)?, self::value(value)?));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some(Requirement::Equal(name(key)?, self::value(value)?));
    }
    match term.strip_prefix('!') {
        Some(key) => Some(Requirement::DoesNotExist(name(key)?)),
        None => Some(Requirement::Exists(name(term)?)),
    }
}

fn set(values: &str) -> Option<BTreeSet<String>> {
    let inside = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    inside.split(',').map(value).collect()
}

/// The name of a label, perhaps with a DNS subdomain and a slash before it.
fn name(text: &str) -> Option<String> {
    let text = text.trim();
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let is_prefix = |prefix: &str| {
        prefix.len() <= PREFIX_MAX
            && !prefix.contains(|character: char| character.is_ascii_uppercase())
            && prefix.split('.').all(|part| is_word(part, "-"))
    };
    (prefix.is_none_or(is_prefix) && !name.is_empty() && is_value(name)).then(|| text.to_owned())
}

/// The value of a label. A value that no label can have is refused, because `!=` and `notin` would select every object.
fn value(text: &str) -> Option<String> {
    let text = text.trim();
    is_value(text).then(|| text.to_owned())
}

fn is_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= VALUE_MAX && is_word(text, "-_."))
}

/// Whether a text begins and ends with a letter or digit, and has only these and some other characters in between.
fn is_word(text: &str, others: &str) -> bool {
    let is_alphanumeric = |character: char| character.is_ascii_alphanumeric();
    text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.chars().all(|character| is_alphanumeric(character) || others.contains(character))
}

/// Whether any toleration matches a taint, by the rules of the scheduler: an empty key or effect matches all, `Exists`
/// matches every value.
pub(crate) fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let stands_for = |pattern: &Option<String>, value: &str| {
        pattern.as_deref().filter(|pattern| !pattern.is_empty()).is_none_or(|pattern| pattern == value)
    };
    let same_value =
        || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    let fits = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => same_value(),
        Some("Exists") => true,
        Some(_) => false,
    };
    fits && stands_for(&toleration.key, &taint.key) && stands_for(&toleration.effect, &taint.effect)
}

fn refusal(text: &str, term: &str) -> Refusal {
    Refusal {
        reason: Reason::InvalidSelector,
        message: format!(
            "invalid term \"{term}\" in the label selector \"{text}\": use the syntax of kubectl -l"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let value_of =
            |wanted: &str| labels.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        parse(selector).unwrap().selects(value_of)
    }

    #[test]
    fn selectors_have_the_syntax_of_kubectl() {
        let nginx = [("app", "nginx"), ("component", "controller")];
        assert!(selects("", &nginx));
        assert!(selects("app=nginx,component=controller", &nginx));
        assert!(selects("app == nginx", &nginx));
        assert!(!selects("app=nginx,component=webhook", &nginx));
        assert!(selects("component!=webhook", &nginx));
        assert!(selects("app in (nginx, envoy),component", &nginx));
        assert!(!selects("app notin (nginx,envoy)", &nginx));
        assert!(selects("tier notin (cache),tier!=cache", &nginx), "an object without the label is selected");
        assert!(!selects("tier in (cache)", &nginx) && !selects("tier=cache", &nginx));
        assert!(selects("!legacy", &nginx));
        assert!(!selects("!app", &nginx));
        assert!(selects(
            "doks.digitalocean.com/node-pool=work",
            &[("doks.digitalocean.com/node-pool", "work")]
        ));
    }

    #[test]
    fn an_invalid_selector_is_refused_and_never_selects_everything() {
        let names = ["=nginx", "a b", "!", "-app", "app/", "/app", "Example.com/app", "a.-b/app"];
        let values =
            ["app=-", "env!=\"prod\"", "env!=prod role=edge", "zone notin (a b)", "zone notin (a,$)"];
        let long = format!("env!={}", "x".repeat(64));
        for selector in [&names[..], &values[..], &["app in nginx", "app=nginx,(", &long]].concat() {
            let refusal = parse(selector).expect_err(selector);
            assert_eq!(refusal.reason, Reason::InvalidSelector);
        }
        for selector in ["env!=", "zone in (a,)", "x=y", "a.example.com/A_b.c-d==E_f.g-h", "a=1,"] {
            parse(selector).expect(selector);
        }
    }

    fn taint(key: &str, value: Option<&str>, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.map(Into::into), effect: effect.into(), ..Taint::default() }
    }

    fn toleration(json: serde_json::Value) -> Toleration {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn tolerations_match_as_in_the_scheduler() {
        let cordon = taint("node.kubernetes.io/unschedulable", None, "NoSchedule");
        let documented = toleration(
            serde_json::json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}),
        );
        assert!(tolerates(&documented, &cordon));
        assert!(!tolerates(&documented, &taint("other", None, "NoSchedule")));
        assert!(!tolerates(&documented, &taint("node.kubernetes.io/unschedulable", None, "NoExecute")));

        let valued = taint("dedicated", Some("edge"), "NoExecute");
        assert!(tolerates(&toleration(serde_json::json!({"operator": "Exists"})), &valued));
        assert!(tolerates(&toleration(serde_json::json!({"key": "dedicated", "value": "edge"})), &valued));
        assert!(!tolerates(&toleration(serde_json::json!({"key": "dedicated", "value": "core"})), &valued));
        assert!(!tolerates(&toleration(serde_json::json!({"key": "dedicated", "operator": "Gt"})), &valued));
    }
}
