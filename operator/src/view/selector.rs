//! Label selectors: as text, and what they select.

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

/// Whether a selector selects an object, of which `label` gives the labels. An unknown operator selects nothing.
pub(crate) fn selects<'a>(selector: &LabelSelector, label: impl Fn(&str) -> Option<&'a str>) -> bool {
    let exact = selector.match_labels.iter().all(|(key, value)| label(key) == Some(value));
    exact && selector.match_expressions.iter().all(|one| meets(&one.operator, &one.values, label(&one.key)))
}

/// Whether the value of a label meets a requirement. Nothing meets one with an unknown operator.
pub(crate) fn meets(operator: &str, values: &[String], value: Option<&str>) -> bool {
    let listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    match operator {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// The defect of a selector that the API server would not accept for a list.
pub(crate) fn selector_problem(selector: &LabelSelector) -> Option<String> {
    selector.match_expressions.iter().find_map(|one| match (one.operator.as_str(), one.values.is_empty()) {
        ("In" | "NotIn", true) => Some("for 'in', 'notin' operators, values set can't be empty".to_owned()),
        ("Exists" | "DoesNotExist", false) => {
            Some("values set must be empty for exists and does not exist".to_owned())
        }
        ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => None,
        (operator, _) => Some(format!("{operator:?} is not a valid label selector operator")),
    })
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

    #[test]
    fn labels_are_selected_as_the_api_server_selects_them() {
        let label = |key: &str| (key == "app").then_some("web");
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Like"}]}), false),
        ] {
            let read: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
            assert_eq!(selects(&read, label), expected, "{selector}");
            assert_eq!(
                selector_problem(&read).is_some(),
                selector.to_string().contains("Like"),
                "{selector}"
            );
        }
        for (operator, values) in [("In", json!([])), ("NotIn", json!([])), ("Exists", json!(["web"]))] {
            let expression = json!({"key": "app", "operator": operator, "values": values});
            let read: LabelSelector =
                serde_json::from_value(json!({"matchExpressions": [expression]})).unwrap();
            assert!(selector_problem(&read).is_some(), "{operator} {values}");
        }
    }
}
