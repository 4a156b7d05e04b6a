//! Compatibility with release 0.1.0: its CRDs, the names that its users rely on, and the objects that it wrote.
//!
//! The tests compare the current code with the files in `baseline/`. The README there explains how each file was made.
//! `e2e/upgrade.rs` runs the binary of that release.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "this is a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use controller::metrics::Identity;
use controller::runtime::AllMetrics;
use controller::settings::Settings;
use plan::{ConditionType, EventReason, Reason, VipReason};
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/baseline")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(folder().join(path)).unwrap()
}

/// For each CRD: its file name, the CRD of 0.1.0, and the current CRD.
fn definitions() -> Vec<(&'static str, Value, Value)> {
    let present = api::crds::all().into_iter();
    present
        .map(|(name, crd)| {
            let before: Value = serde_saphyr::from_str(&read(&format!("crds/{name}"))).unwrap();
            (name, before, serde_json::to_value(crd).unwrap())
        })
        .collect()
}

fn version(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]
}

fn schema(crd: &Value) -> &Value {
    &version(crd)["schema"]["openAPIV3Schema"]
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().into_iter().flatten().collect()
}

/// Appends every way in which the schema `now` is narrower than `before`: an object that 0.1.0 accepted or wrote might
/// no longer be valid.
fn narrowed(path: &str, before: &Value, now: &Value, found: &mut Vec<String>) {
    let mut say = |what: &str| found.push(format!("{path}: {what}"));
    for name in ["type", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"] {
        if before[name] != now[name] {
            say(&format!("{name} is {} and was {}", now[name], before[name]));
        }
    }
    for name in ["format", "pattern", "oneOf", "anyOf", "allOf", "not"] {
        if !now[name].is_null() && before[name] != now[name] {
            say(&format!("{name} is {} and was {}", now[name], before[name]));
        }
    }
    for name in ["nullable", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"] {
        if before[name] == true && now[name] != true {
            say(&format!("{name} is gone"));
        }
    }
    for (names, is_wider) in [
        (["maximum", "maxLength", "maxItems", "maxProperties"], f64::ge as fn(&f64, &f64) -> bool),
        (["minimum", "minLength", "minItems", "minProperties"], f64::le),
    ] {
        for name in names {
            let is_kept = match (now[name].as_f64(), before[name].as_f64()) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(now), Some(before)) => is_wider(&now, &before),
            };
            if !is_kept {
                say(&format!("{name} is {} and was {}", now[name], before[name]));
            }
        }
    }
    for name in list(&now["required"]) {
        if !list(&before["required"]).contains(&name) {
            say(&format!("{name} is required"));
        }
    }
    if !now["enum"].is_null() {
        for value in list(&before["enum"]) {
            if !list(&now["enum"]).contains(&value) {
                say(&format!("{value} is not allowed any more"));
            }
        }
        if before["enum"].is_null() {
            say("only some values are allowed");
        }
    }
    let rules = |schema: &Value| -> BTreeSet<String> {
        list(&schema["x-kubernetes-validations"]).iter().map(|rule| rule["rule"].to_string()).collect()
    };
    for rule in rules(now).difference(&rules(before)) {
        say(&format!("the rule {rule} is new"));
    }
    for name in ["items", "additionalProperties"] {
        match (&before[name], &now[name]) {
            (Value::Null, Value::Null) => {}
            (Value::Object(_), Value::Object(_)) => {
                narrowed(&format!("{path}[]"), &before[name], &now[name], found);
            }
            (before, now) if before == now => {}
            (before, now) => found.push(format!("{path}: {name} is {now} and was {before}")),
        }
    }
    for (name, property) in before["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match &now["properties"][name] {
            Value::Null => found.push(format!("{path} is gone")),
            now => narrowed(&path, property, now, found),
        }
    }
}

/// The names, versions, subresources and columns that a CRD had in 0.1.0 and that are missing or different now: users
/// see them in `kubectl`.
fn unlisted(before: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for name in ["group", "scope"] {
        if before["spec"][name] != now["spec"][name] {
            found.push(format!("{name} is {}", now["spec"][name]));
        }
    }
    for name in ["kind", "plural", "singular", "listKind"] {
        let (before, now) = (&before["spec"]["names"][name], &now["spec"]["names"][name]);
        if !before.is_null() && before != now {
            found.push(format!("the {name} {before} is gone"));
        }
    }
    for name in ["shortNames", "categories"] {
        let (before, now) = (&before["spec"]["names"][name], &now["spec"]["names"][name]);
        let gone = list(before).into_iter().filter(|name| !list(now).contains(name));
        found.extend(gone.map(|gone| format!("{gone} of the {name} is gone")));
    }
    for name in ["name", "served", "storage", "subresources"] {
        if version(before)[name] != version(now)[name] {
            found.push(format!("{name} of the version is {}", version(now)[name]));
        }
    }
    for column in list(&version(before)["additionalPrinterColumns"]) {
        let columns = list(&version(now)["additionalPrinterColumns"]);
        let is_same =
            |now: &Value| ["name", "type", "jsonPath"].iter().all(|name| now[*name] == column[*name]);
        if !columns.into_iter().any(is_same) {
            found.push(format!("the column {} is gone", column["name"]));
        }
    }
    found
}

#[test]
fn no_crd_is_narrower_than_in_0_1_0() {
    for (name, before, now) in definitions() {
        let mut found = unlisted(&before, &now);
        narrowed("", schema(&before), schema(&now), &mut found);
        assert_eq!(found, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn the_comparison_finds_every_way_to_narrow_a_crd() {
    let before = json!({
        "type": "object", "required": ["a"],
        "properties": {
            "a": {"type": "string", "maxLength": 5, "nullable": true},
            "b": {"type": "integer", "minimum": 1},
            "c": {"type": "string", "enum": ["x", "y"]},
            "d": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "string"}}}},
        },
    });
    let with = |pointer: &str, value: Value| {
        let mut now = before.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        now.pointer_mut(parent).unwrap()[name] = value;
        let mut found = Vec::new();
        narrowed("", &before, &now, &mut found);
        found
    };
    assert_eq!(with("/properties/new", json!({"type": "string"})), Vec::<String>::new());
    assert_eq!(with("/properties/a/maxLength", json!(6)), Vec::<String>::new());
    assert_eq!(with("/properties/c/enum", json!(["y", "x", "z"])), Vec::<String>::new());
    for (pointer, value, expected) in [
        ("/required", json!(["a", "b"]), ": \"b\" is required"),
        ("/properties/a", Value::Null, ".a is gone"),
        ("/properties/a/type", json!("integer"), ".a: type is \"integer\" and was \"string\""),
        ("/properties/a/maxLength", json!(4), ".a: maxLength is 4 and was 5"),
        ("/properties/a/minLength", json!(1), ".a: minLength is 1 and was null"),
        ("/properties/a/nullable", Value::Null, ".a: nullable is gone"),
        ("/properties/a/pattern", json!("^a$"), ".a: pattern is \"^a$\" and was null"),
        ("/properties/a/enum", json!(["x"]), ".a: only some values are allowed"),
        ("/properties/b/minimum", json!(2), ".b: minimum is 2 and was 1"),
        ("/properties/b/maximum", json!(2), ".b: maximum is 2 and was null"),
        ("/properties/c/enum", json!(["x"]), ".c: \"y\" is not allowed any more"),
        ("/properties/d/items/properties/e", Value::Null, ".d[].e is gone"),
        (
            "/properties/d/items/x-kubernetes-validations",
            json!([{"rule": "true"}]),
            ".d[]: the rule \"true\" is new",
        ),
    ] {
        assert_eq!(with(pointer, value), [expected]);
    }
}

/// Collects every enumeration in a schema with the path of its field.
fn enumerations(path: &str, schema: &Value, found: &mut Vec<(String, BTreeSet<String>)>) {
    if !schema["enum"].is_null() {
        let values = list(&schema["enum"]).iter().map(ToString::to_string).collect();
        found.push((path.to_owned(), values));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        enumerations(&format!("{path}.{name}"), property, found);
    }
    enumerations_of_elements(path, schema, found);
}

fn enumerations_of_elements(path: &str, schema: &Value, found: &mut Vec<(String, BTreeSet<String>)>) {
    for name in ["items", "additionalProperties"] {
        if schema[name].is_object() {
            enumerations(&format!("{path}[]"), &schema[name], found);
        }
    }
}

#[test]
fn enums_have_the_same_values_as_in_0_1_0() {
    let mut count = 0;
    for (name, before, now) in definitions() {
        let (mut closed, mut present) = (Vec::new(), Vec::new());
        enumerations("", schema(&before), &mut closed);
        enumerations("", schema(&now), &mut present);
        count += closed.len();
        for (path, values) in closed {
            let now = present.iter().find(|(now, _)| *now == path).map(|(_, values)| values);
            assert_eq!(
                now,
                Some(&values),
                "{name}{path}: 0.1.0 can't decode an object with another value, and then watches no object of this kind"
            );
        }
    }
    assert!(count > 10, "found only {count} enumerations");
}

#[test]
fn the_journal_has_the_version_that_0_1_0_reads() {
    assert_eq!(api::status::MOVES_VERSION, 1);
}

/// Collects the path of every field below a schema, such as `.addresses[].state`.
fn fields(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        fields(&path, property, found);
        found.insert(path);
    }
    for name in ["items", "additionalProperties"] {
        if schema[name].is_object() {
            fields(&format!("{path}[]"), &schema[name], found);
        }
    }
}

#[test]
fn status_fields_that_0_1_0_drops_are_listed_with_a_reason() {
    let mut erased = BTreeSet::new();
    for (_, before, now) in definitions() {
        let (mut known, mut present) = (BTreeSet::new(), BTreeSet::new());
        let kind = now["spec"]["names"]["kind"].as_str().unwrap().to_owned();
        fields(&kind, &schema(&before)["properties"]["status"], &mut known);
        fields(&kind, &schema(&now)["properties"]["status"], &mut present);
        erased.extend(present.difference(&known).cloned());
    }
    let text = read("erased.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let listed: BTreeSet<_> = lines
        .map(|line| {
            let (path, why) = line.split_once(": ").unwrap_or((line, ""));
            assert!(why.len() > 20, "{path} has no reason");
            path.to_owned()
        })
        .collect();
    assert_eq!(listed, erased, "list each new field in tests/baseline/erased.txt, with why its loss is safe");
}

/// Splits `name{label,label}` into the metric's name and its labels.
fn with_labels(metric: &str) -> (&str, BTreeSet<&str>) {
    let (name, labels) = metric.trim_end_matches('}').split_once('{').unwrap();
    (name, labels.split(',').collect())
}

/// Whether the current code still has a name of this kind.
fn has_name(kind: &str, name: &str, sources: &str) -> bool {
    let command = Settings::command();
    let quoted = format!("\"{name}");
    match kind {
        "flag" => command.get_arguments().any(|setting| setting.get_long() == Some(name)),
        "variable" => command.get_arguments().any(|setting| setting.get_env() == Some(name.as_ref())),
        "metric" => {
            let identity = Identity { version: "1".into(), pod: "pod".into(), cluster: None };
            let (name, labels) = with_labels(name);
            let names = AllMetrics::new(&identity).unwrap().process.names();
            let mut found = names.iter().map(|found| with_labels(found));
            found.any(|(found, present)| found == name && labels.is_subset(&present))
        }
        "condition" => ConditionType::ALL.iter().any(|found| found.name() == name),
        "reason" => Reason::ALL.iter().any(|found| found.name() == name),
        "vip-reason" => VipReason::ALL.iter().any(|found| found.name() == name),
        "text" => sources.contains(name),
        // Only the beginning is compared: an object's name or details follow it.
        "prefix" | "log" => sources.contains(&quoted),
        "event" => {
            // The list also has the actions of Events.
            EventReason::ALL.iter().any(|found| found.name() == name)
                || sources.contains(&format!("{quoted}\""))
        }
        _ => sources.contains(&format!("{quoted}\"")),
    }
}

/// The text of all code that is not a test.
fn sources() -> String {
    fn collect(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "tests" {
                    collect(&path, text);
                }
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let source = std::fs::read_to_string(&path).unwrap();
                text.push_str(source.split("#[cfg(test)]\nmod tests {").next().unwrap());
            }
        }
    }
    let mut text = String::new();
    for name in ["api", "controller", "plan"] {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        collect(&crates.join(name).join("src"), &mut text);
    }
    text
}

#[test]
fn names_that_users_of_0_1_0_rely_on_still_exist() {
    let (text, sources) = (read("names.txt"), sources());
    let names = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let names: Vec<_> = names.map(|line| line.split_once(' ').unwrap()).collect();
    let gone: Vec<_> = names.iter().filter(|(kind, name)| !has_name(kind, name, &sources)).collect();
    assert_eq!(gone, Vec::<&(&str, &str)>::new());
    for kind in ["flag", "variable", "metric", "condition", "reason", "event", "label", "annotation", "log"] {
        assert!(names.iter().any(|(found, _)| *found == kind), "no {kind} is listed");
    }
    assert!(!has_name("metric", "flipop_nodednsrecordset_records{namespace,other}", &sources));
    assert!(!has_name("reason", "Settle", &sources));
}

#[test]
fn every_documented_reason_is_used() {
    let sources = sources();
    let is_used = |list: &str, name: &str| {
        let used = format!("{list}::{name}");
        let is_whole = |at: usize| {
            let (before, after) =
                (sources[..at].chars().next_back(), sources[at + used.len()..].chars().next());
            ![before, after].iter().flatten().any(|next| next.is_alphanumeric())
        };
        sources.match_indices(&used).any(|(at, _)| is_whole(at))
    };
    let reasons = Reason::ALL.iter().map(|reason| ("Reason", reason.name()));
    let events = EventReason::ALL.iter().map(|reason| ("EventReason", reason.name()));
    let vips = VipReason::ALL.iter().map(|reason| ("VipReason", reason.name()));
    let unused: Vec<_> =
        reasons.chain(events).chain(vips).filter(|(list, name)| !is_used(list, name)).collect();
    assert_eq!(unused, Vec::<(&str, &str)>::new());
    assert!(!is_used("Reason", "Settle") && !is_used("Reason", "WriteRefused"));
}

/// Objects that 0.1.0 wrote, by the name of their file.
fn objects() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(folder().join("objects")).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let parse = |name: String| {
        let object = serde_json::from_str(&read(&format!("objects/{name}"))).unwrap();
        (name, object)
    };
    names.into_iter().map(parse).collect()
}

/// Decodes an object with the current types and encodes it again.
fn read_and_written(object: &Value) -> Value {
    fn again<K: serde::Serialize + serde::de::DeserializeOwned>(object: &Value) -> Value {
        serde_json::to_value(serde_json::from_value::<K>(object.clone()).unwrap()).unwrap()
    }
    match object["kind"].as_str().unwrap() {
        "NetIPAllocation" => again::<api::NetIPAllocation>(object),
        "FloatingIPPool" => again::<api::FloatingIPPool>(object),
        "NodeDNSRecordSet" => again::<api::NodeDNSRecordSet>(object),
        kind => panic!("unknown kind {kind}"),
    }
}

#[test]
fn objects_that_0_1_0_wrote_are_read_without_loss() {
    for (name, object) in objects() {
        let again = read_and_written(&object);
        assert_eq!(again["spec"], object["spec"], "{name}");
        assert_eq!(again["status"], object["status"], "{name}");
    }
}

/// Collects the path of every field that an object has.
fn fields_of(path: &str, value: &Value, schema: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                match &schema["properties"][name] {
                    Value::Null => {
                        fields_of(&format!("{path}[]"), value, &schema["additionalProperties"], found);
                    }
                    property => {
                        let path = format!("{path}.{name}");
                        fields_of(&path, value, property, found);
                        found.insert(path);
                    }
                }
            }
        }
        Value::Array(elements) => {
            let path = format!("{path}[]");
            elements.iter().for_each(|value| fields_of(&path, value, &schema["items"], found));
        }
        _ => {}
    }
}

#[test]
fn recorded_objects_cover_all_status_fields_and_journal_entries() {
    let (objects, mut missing) = (objects(), Vec::new());
    for (_, before, _) in definitions() {
        let kind = before["spec"]["names"]["kind"].as_str().unwrap();
        let status = &schema(&before)["properties"]["status"];
        let (mut wanted, mut found) = (BTreeSet::new(), BTreeSet::new());
        fields(kind, status, &mut wanted);
        for (_, object) in objects.iter().filter(|(_, object)| object["kind"] == kind) {
            fields_of(kind, &object["status"], status, &mut found);
        }
        missing.extend(wanted.difference(&found).cloned());
    }
    assert_eq!(missing, Vec::<String>::new());
    let entries = objects.iter().flat_map(|(_, object)| list(&object["status"]["moves"]["entries"]));
    let shapes: BTreeSet<_> = entries
        .map(|entry| {
            let kind = entry["kind"].as_str().unwrap_or("Move");
            let ends = [&entry["from"], &entry["to"]].map(|end| !end.is_null());
            format!("{kind} {} from={} to={}", entry["step"].as_str().unwrap(), ends[0], ends[1])
        })
        .collect();
    for shape in [
        "Create Voluntary from=false to=false",
        "Release Voluntary from=false to=false",
        "Move Voluntary from=true to=true",
        "Move Urgent from=true to=true",
        "Move Urgent from=false to=true",
        "Move Voluntary from=true to=false",
    ] {
        assert!(shapes.contains(shape), "no recorded object has an entry of the form {shape}: {shapes:#?}");
    }
}
