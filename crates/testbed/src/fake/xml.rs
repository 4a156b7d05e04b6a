//! Minimal XML: enough for the answers of AWS, and for the few bodies that its clients send.

/// Wraps XML in an element.
pub(crate) fn element(name: &str, inner: &str) -> String {
    format!("<{name}>{inner}</{name}>")
}

/// Wraps text in an element, and escapes it.
pub(crate) fn text(name: &str, text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    element(name, &escaped)
}

/// Wraps text in an element. Returns an empty string if there is no text.
pub(crate) fn optional(name: &str, value: Option<&str>) -> String {
    value.map(|value| text(name, value)).unwrap_or_default()
}

/// Returns the content of each element with this name, at any depth. Elements with the same name must not be nested.
pub(crate) fn all<'a>(name: &str, xml: &'a str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(open.as_str()).skip(1).filter_map(|rest| rest.split(close.as_str()).next()).collect()
}

/// Returns the items of the first list with this name. Items may contain lists of their own.
pub(crate) fn items<'a>(list: &str, xml: &'a str) -> Vec<&'a str> {
    const OPEN: &str = "<item>";
    const CLOSE: &str = "</item>";
    let Some(list) = all(list, xml).first().copied() else { return Vec::new() };
    let (mut found, mut depth, mut began) = (Vec::new(), 0_usize, 0);
    for (at, _) in list.match_indices('<') {
        let rest = &list[at..];
        if rest.starts_with(OPEN) {
            began = if depth == 0 { at + OPEN.len() } else { began };
            depth += 1;
        } else if rest.starts_with(CLOSE) {
            depth = depth.saturating_sub(1);
            found.extend((depth == 0).then(|| &list[began..at]));
        }
    }
    found
}

/// Returns the text inside the first element with this name.
pub(crate) fn first(name: &str, xml: &str) -> Option<String> {
    let escaped = *all(name, xml).first()?;
    Some(
        escaped
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#34;", "\"")
            .replace("&amp;", "&"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_items_stay_inside_their_parent_item() {
        let xml =
            "<set><item><ip>1</ip><tags><item><key>a</key></item></tags></item><item><ip>2</ip></item></set>";
        let found = items("set", xml);
        assert_eq!(found, ["<ip>1</ip><tags><item><key>a</key></item></tags>", "<ip>2</ip>"]);
        assert_eq!(first("key", found[0]).as_deref(), Some("a"));
    }
}
