//! `HostPathProvisioner`: rules that its schema cannot express. Pure.

use api::hostpath::HostPathProvisioner;
use cluster::review::{Answer, Request};

use super::answer::{Cause, INVALID, refuse};
use crate::platform::hostpath::check;

/// Judges a new object or an update; `others` are the names of those that exist, for a new one.
pub(super) fn validate(request: &Request, others: &[String]) -> Answer {
    if request.object["metadata"]["deletionTimestamp"].is_string() {
        return Answer::allow();
    }
    let object: HostPathProvisioner = match serde_json::from_value(request.object.clone()) {
        Ok(object) => object,
        Err(error) => {
            return Answer::refuse(400, "BadRequest", format!("HostPathProvisioner cannot be read: {error}"));
        }
    };
    let mut problems = check::problems(&object);
    if let Some(other) = others.iter().find(|name| **name != object.metadata.name) {
        let text = format!("the cluster has the HostPathProvisioner {other}; change that one");
        problems.push(("metadata.name".to_owned(), text));
    }
    if let Some(value) = object.metadata.annotations.get(check::SIDECARS)
        && value != check::STOCK
    {
        let field = format!("metadata.annotations[{}]", check::SIDECARS);
        problems.push((field, format!("{value:?} is not {:?}", check::STOCK)));
    }
    if problems.is_empty() {
        let ignored = check::without_effect(&object.spec).into_iter();
        return ignored.fold(Answer::allow(), |answer, field| answer.warn(format!("{field} has no effect")));
    }
    let cause = |(field, text): (String, String)| Cause {
        reason: INVALID,
        message: format!("{field}: {text}"),
        field,
    };
    refuse(&problems.into_iter().map(cause).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn review(object: Value, others: &[&str]) -> Value {
        let request = Request { operation: "CREATE".to_owned(), object, ..Request::default() };
        let others: Vec<String> = others.iter().map(|name| (*name).to_owned()).collect();
        validate(&request, &others).write("u")["response"].clone()
    }

    #[test]
    fn refusals_name_the_field() {
        let good = json!({"metadata": {"name": "a"}, "spec": {"pathConfig": {"path": "/data"}}});
        assert_eq!(review(good.clone(), &["a"])["allowed"], true, "applied again");
        assert_eq!(review(good.clone(), &["b"])["status"]["details"]["causes"][0]["field"], "metadata.name");
        assert!(review(good.clone(), &[])["warnings"].is_null());
        let mut prefixed = good.clone();
        prefixed["spec"]["pathConfig"]["useNamingPrefix"] = json!(true);
        let response = review(prefixed, &[]);
        assert_eq!(response["allowed"], true);
        assert_eq!(response["warnings"], json!(["spec.pathConfig.useNamingPrefix has no effect"]));
        let mut bad = good;
        bad["spec"]["pathConfig"]["path"] = json!("data");
        let response = review(bad, &[]);
        assert_eq!(response["status"]["code"], 422);
        assert_eq!(response["status"]["details"]["causes"][0]["field"], "spec.pathConfig.path");
    }
}
