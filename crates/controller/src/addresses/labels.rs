//! The labels or annotations of an object, in little memory.
//!
//! In: a map of names and values. Out: the same as a sorted list. Many nodes have the same labels, so equal labels
//! are kept once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::interner::Interner;

/// A label with its value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Label {
    name: Arc<str>,
    value: Arc<str>,
}

/// Labels or annotations, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[Arc<Label>]>);

impl Labels {
    /// The value of a label.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.shared(name).map(|value| &**value)
    }

    /// The shared copy of the value of a label.
    pub(super) fn shared(&self, name: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|label| (*label.name).cmp(name)).ok()?;
        self.0.get(at).map(|label| &label.value)
    }

    /// All labels, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|label| (&*label.name, &*label.value))
    }

    /// The names that start with a text.
    pub(super) fn names_from<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        let first = self.0.partition_point(|label| *label.name < *start);
        let names = self.0[first..].iter().map(|label| &*label.name);
        names.take_while(move |name| name.starts_with(start))
    }
}

/// Reads labels, and keeps equal ones once.
#[derive(Default)]
pub(super) struct LabelReader {
    names: Interner<str>,
    labels: Interner<Label>,
}

impl LabelReader {
    /// Reads the labels of an object.
    pub(super) fn read(&mut self, labels: Option<&BTreeMap<String, String>>) -> Labels {
        let shared = |(name, value): (&String, &String)| {
            let name = self.names.intern(name.as_str());
            self.labels.intern(Label { name, value: value.as_str().into() })
        };
        Labels(labels.into_iter().flatten().map(shared).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &mut LabelReader, labels: &[(&str, &str)]) -> Labels {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        reader.read(Some(&labels))
    }

    #[test]
    fn labels_are_found_by_name_and_by_the_start_of_their_name() {
        let all = [("b.example/x", "1"), ("a", "2"), ("b.example/y", "3"), ("b.exampleother", "4")];
        let labels = read(&mut LabelReader::default(), &all);
        assert_eq!(
            (labels.get("a"), labels.get("b.example/y"), labels.get("b")),
            (Some("2"), Some("3"), None)
        );
        assert_eq!(labels.names_from("b.example/").collect::<Vec<_>>(), ["b.example/x", "b.example/y"]);
        assert_eq!(labels.names_from("c").count(), 0);
        assert_eq!(labels.iter().next(), Some(("a", "2")));
    }

    #[test]
    fn objects_share_equal_labels() {
        let mut reader = LabelReader::default();
        let [one, two] = ["1", "2"].map(|own| read(&mut reader, &[("name", own), ("zone", "a")]));
        assert!(Arc::ptr_eq(&one.0[1], &two.0[1]));
        assert!(Arc::ptr_eq(&one.0[0].name, &two.0[0].name));
    }
}
