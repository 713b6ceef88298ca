//! Label selectors as text.

use std::fmt::Write;

use api::core::LabelSelector;

/// A selector as lists and the scale subresource have it: `a=b,c in (d,e),f,!g`.
pub(crate) fn selector_text(selector: &LabelSelector) -> String {
    let mut all: Vec<String> =
        selector.match_labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    for one in &selector.match_expressions {
        let (key, values) = (&one.key, one.values.join(","));
        let mut text = String::new();
        let written = match one.operator.as_str() {
            "In" => write!(text, "{key} in ({values})"),
            "NotIn" => write!(text, "{key} notin ({values})"),
            "DoesNotExist" => write!(text, "!{key}"),
            _ => write!(text, "{key}"),
        };
        if written.is_ok() {
            all.push(text);
        }
    }
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selector_is_written_as_clients_read_it() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "zone", "operator": "NotIn", "values": ["c"]},
                {"key": "x", "operator": "Exists"},
                {"key": "y", "operator": "DoesNotExist"},
            ],
        }))
        .unwrap();
        assert_eq!(selector_text(&selector), "app=web,tier in (a,b),zone notin (c),x,!y");
    }
}
