//! `objectgraph`: the objects that a machine needs, as a tree. Printed as JSON, as virtctl does.

use cluster::client::Call;
use http::Method;
use serde_json::{Map, Value, json};

use crate::error::{Result, failed};
use crate::output::{Document, render};
use crate::site::{Site, document};
use crate::target::{Target, TargetKind};

/// Asks for the graph of a VM or an instance. `optional`: with objects that it runs without; `labels`: of the objects.
///
/// # Errors
/// The cluster refuses it: the feature gate `ObjectGraph` is off, or there is no such object.
pub(crate) async fn graph(
    site: &Site,
    target: &Target,
    optional: bool,
    labels: &[(String, String)],
) -> Result<String> {
    let kind = match target.kind {
        TargetKind::Machine => "VirtualMachine",
        TargetKind::Instance => "VirtualMachineInstance",
    };
    let body = request(optional, labels).to_string();
    let call = Call::new(Method::GET, site.verb(target, "objectgraph")?).body("application/json", body);
    let answer = site.client.call(&call).await;
    let answer = answer.map_err(failed(format!("error listing object graph of {kind} {}", target.name)))?;
    render(&document(&answer)?, Document::Json)
}

/// The options of the request.
fn request(optional: bool, labels: &[(String, String)]) -> Value {
    let mut request = json!({"includeOptionalNodes": optional});
    if !labels.is_empty() {
        let labels: Map<String, Value> =
            labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        request["labelSelector"] = json!({"matchLabels": labels});
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_virtctl() {
        assert_eq!(request(true, &[]), json!({"includeOptionalNodes": true}));
        let labels = [("kubevirt.io/dependency-type".to_owned(), "storage".to_owned())];
        let selector = json!({"matchLabels": {"kubevirt.io/dependency-type": "storage"}});
        assert_eq!(
            request(false, &labels),
            json!({"includeOptionalNodes": false, "labelSelector": selector})
        );
    }
}
