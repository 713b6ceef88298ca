//! The conversion webhook of `HyperConverged`: the API server asks it when an object is read or written in a version other
//! than the stored one.
//!
//! Not here: the conversion ([`api::hyperconverged::convert`]), and which definitions name the webhook
//! ([`crate::install`]).

use api::hyperconverged::convert;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use serve::route::{self, Call, Router};

/// Path, as the definition names it.
pub(crate) const PATH: &str = "/convert";
/// Longest review: a list of objects.
const MOST_BODY: usize = 16 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    request: Request,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired: String,
    objects: Vec<Value>,
}

/// Adds the webhook's path.
pub(super) fn routes(router: Router) -> Router {
    router.route(Method::POST, PATH, |mut call: Call| async move {
        let body = match call.bytes(MOST_BODY).await {
            Ok(body) => body,
            Err(refusal) => return refusal.answer(),
        };
        match serde_json::from_slice::<Review>(&body) {
            Ok(review) => route::json(StatusCode::OK, answer(&review).to_string()),
            Err(error) => {
                let text =
                    format!("not a ConversionReview, at line {} column {}", error.line(), error.column());
                route::text(StatusCode::BAD_REQUEST, text)
            }
        }
    })
}

/// All objects in the wanted version, or the reason why one of them is not.
fn answer(review: &Review) -> Value {
    let Request { uid, desired, objects } = &review.request;
    let converted: Result<Vec<Value>, _> = objects.iter().map(|object| convert(object, desired)).collect();
    let response = match converted {
        Ok(objects) => json!({"uid": uid, "convertedObjects": objects, "result": {"status": "Success"}}),
        Err(error) => json!({"uid": uid, "result": {"status": "Failure", "message": error.to_string()}}),
    };
    json!({"apiVersion": review.api_version, "kind": "ConversionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_answered_whole_or_with_the_reason() {
        let review = |desired: &str| {
            let object = json!({"apiVersion": "hco.kubevirt.io/v1", "metadata": {"name": "a"}, "spec": {}});
            let text = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
                "request": {"uid": "u", "desiredAPIVersion": desired, "objects": [object.clone(), object]}});
            answer(&serde_json::from_value(text).unwrap())["response"].clone()
        };
        let response = review("hco.kubevirt.io/v1beta1");
        assert_eq!((&response["uid"], &response["result"]["status"]), (&json!("u"), &json!("Success")));
        assert_eq!(response["convertedObjects"][1]["apiVersion"], "hco.kubevirt.io/v1beta1");
        let response = review("hco.kubevirt.io/v2");
        assert_eq!(response["result"]["status"], "Failure");
        assert!(response["result"]["message"].as_str().unwrap().contains("v2"));
    }
}
