//! Decisions of a namespace: whether its objects are ours, by the live webhook's selector, and the policy for an address in
//! use, by its annotation.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Kind};

/// Annotation of a namespace: its [`Policy`].
pub const POLICY: &str = "macpool.ferrovirt.io/duplicates";

/// The policy for a given address that is in use already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// It is allowed, with a warning; a collision of running guests is reported.
    #[default]
    Allow,
    /// The object is refused.
    Reject,
    /// The object gets another address: for clones and restored machines.
    Rewrite,
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "allow" => Ok(Self::Allow),
            "reject" => Ok(Self::Reject),
            "rewrite" => Ok(Self::Rewrite),
            _ => {
                let message = format!("\"{}\" is not one of allow, reject, rewrite", text.escape_debug());
                Err(Error::new(Kind::Invalid, message))
            }
        }
    }
}

/// Labels of a namespace.
pub type Labels = BTreeMap<String, String>;

/// A label selector, as Kubernetes' `metav1.LabelSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    expressions: Vec<Expression>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Expression {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// The namespace selector of one webhook of a MutatingWebhookConfiguration. Upstream's opt-out is `NotIn [ignore]` under
    /// the webhook's name as key, its opt-in `In [allocate]`; any other selector has Kubernetes' meaning.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such webhook, or its selector cannot be read.
    pub fn of_webhook(configuration: &Value, webhook: &str) -> Result<Self, Error> {
        let invalid = |what: &str| {
            Error::new(
                Kind::Invalid,
                format!("the webhook {webhook} of the MutatingWebhookConfiguration {what}"),
            )
        };
        let webhooks = configuration.get("webhooks").and_then(Value::as_array);
        let found = webhooks.into_iter().flatten().find(|one| one["name"] == webhook);
        let selector = &found.ok_or_else(|| invalid("does not exist"))?["namespaceSelector"];
        Self::read(selector).ok_or_else(|| invalid("has an invalid namespaceSelector"))
    }

    fn read(selector: &Value) -> Option<Self> {
        let mut expressions = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let values = vec![value.as_str()?.to_owned()];
            expressions.push(Expression { key: key.clone(), operator: Operator::In, values });
        }
        for one in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let operator = match one.get("operator")?.as_str()? {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                _ => return None,
            };
            let values = one.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.map(|value| Some(value.as_str()?.to_owned())).collect::<Option<_>>()?;
            expressions.push(Expression { key: one.get("key")?.as_str()?.to_owned(), operator, values });
        }
        Some(Self { expressions })
    }

    /// Whether a namespace with these labels is chosen.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.expressions.iter().all(|expression| {
            let value = labels.get(&expression.key);
            let listed = value.is_some_and(|value| expression.values.contains(value));
            match expression.operator {
                Operator::In => listed,
                Operator::NotIn => !listed,
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WEBHOOK: &str = "mutatevirtualmachines.kubemacpool.io";

    #[test]
    fn opting_in_and_out_by_the_live_selector() {
        let opt_out = json!({"matchExpressions": [
            {"key": "runlevel", "operator": "NotIn", "values": ["0", "1"]},
            {"key": WEBHOOK, "operator": "NotIn", "values": ["ignore"]},
        ]});
        let opt_in = json!({"matchExpressions": [
            {"key": "runlevel", "operator": "NotIn", "values": ["0", "1"]},
            {"key": WEBHOOK, "operator": "In", "values": ["allocate"]},
        ]});
        let opt_in_by_label = json!({"matchLabels": {WEBHOOK: "allocate"}});
        let cases = [
            (&[][..], [true, false, false, true]),
            (&[(WEBHOOK, "ignore")], [false, false, false, true]),
            (&[(WEBHOOK, "allocate")], [true, true, true, true]),
            (&[(WEBHOOK, "allocate"), ("runlevel", "0")], [false, false, true, true]),
            (&[("runlevel", "2")], [true, false, false, true]),
        ];
        let selectors = [opt_out, opt_in, opt_in_by_label, json!({})].map(|selector| {
            let configuration = json!({"webhooks": [
                {"name": "other", "namespaceSelector": {"matchLabels": {"x": "y"}}},
                {"name": WEBHOOK, "namespaceSelector": selector},
            ]});
            Selector::of_webhook(&configuration, WEBHOOK).unwrap()
        });
        for (labels, expected) in cases {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            assert_eq!(
                selectors.each_ref().map(|selector| selector.matches(&labels)),
                expected,
                "{labels:?}"
            );
        }
    }

    #[test]
    fn selectors_that_cannot_be_read() {
        for selector in [
            json!({"matchLabels": {"a": 1}}),
            json!({"matchExpressions": [{"key": "a", "operator": "Gt"}]}),
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}),
            json!({"matchExpressions": ["a"]}),
        ] {
            let configuration = json!({"webhooks": [{"name": WEBHOOK, "namespaceSelector": selector}]});
            assert!(Selector::of_webhook(&configuration, WEBHOOK).is_err(), "{selector}");
        }
        assert!(Selector::of_webhook(&json!({}), WEBHOOK).is_err());
    }

    #[test]
    fn policies_by_name() {
        for (text, policy) in
            [("allow", Policy::Allow), ("reject", Policy::Reject), ("rewrite", Policy::Rewrite)]
        {
            assert_eq!(text.parse::<Policy>().unwrap(), policy);
        }
        assert!("Reject".parse::<Policy>().is_err());
    }
}
