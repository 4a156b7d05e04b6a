//! Parses label selectors in the syntax of `kubectl -l`, and matches tolerations with taints.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use kube::core::{Expression, Selector};
use plan::Reason;

use super::refusal::Refusal;

/// Parses a selector such as `app=nginx,tier!=cache,zone in (a,b),!legacy`. An empty text selects everything.
pub(super) fn parse(text: &str) -> Result<Selector, Refusal> {
    let terms = terms(text).into_iter().filter(|term| !term.is_empty());
    let expressions = terms.map(|term| expression(term).ok_or_else(|| refusal(text, term)));
    Ok(expressions.collect::<Result<Vec<_>, _>>()?.into_iter().collect())
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

fn expression(term: &str) -> Option<Expression> {
    if let Some((key, values)) = term.split_once(" notin ") {
        return Some(Expression::NotIn(name(key)?, set(values)?));
    }
    if let Some((key, values)) = term.split_once(" in ") {
        return Some(Expression::In(name(key)?, set(values)?));
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some(Expression::NotEqual(name(key)?, value.trim().to_owned()));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some(Expression::Equal(name(key)?, value.trim().to_owned()));
    }
    match term.strip_prefix('!') {
        Some(key) => Some(Expression::DoesNotExist(name(key)?)),
        None => Some(Expression::Exists(name(term)?)),
    }
}

fn set(values: &str) -> Option<std::collections::BTreeSet<String>> {
    let inside = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(inside.split(',').map(|value| value.trim().to_owned()).collect())
}

/// The name of a label: only letters, digits and `-_./`.
fn name(text: &str) -> Option<String> {
    let text = text.trim();
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    (!text.is_empty() && text.chars().all(is_allowed)).then(|| text.to_owned())
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
    use kube::core::SelectorExt;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        parse(selector).unwrap().matches(&labels)
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
        assert!(selects("!legacy", &nginx));
        assert!(!selects("!app", &nginx));
        assert!(selects(
            "doks.digitalocean.com/node-pool=work",
            &[("doks.digitalocean.com/node-pool", "work")]
        ));
    }

    #[test]
    fn an_invalid_selector_is_refused_and_never_selects_everything() {
        for selector in ["=nginx", "app in nginx", "a b", "app=nginx,(", "!"] {
            let refusal = parse(selector).expect_err(selector);
            assert_eq!(refusal.reason, Reason::InvalidSelector);
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
