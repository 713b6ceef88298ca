//! Whether a VM may clone what one of its `dataVolumeTemplates` names: asked as the VM's ServiceAccount, because the
//! operator, which creates the DataVolume, may clone everything. The answer is a token on the DataVolume.
//!
//! ```text
//!  template ─► source in another namespace ─► SubjectAccessReview as the VM's account ─► token ─► admission compares it
//! ```

use cluster::{Error, Kind};
use serde_json::{Value, json};

use crate::compute::context::Context;
use crate::storage::clone::authorize::Origin;
use crate::storage::clone::token::Target;
use crate::storage::clone::{authorize, cloned, permit};
use crate::storage::names;

/// The source of a DataVolume of the VM that is a clone and needs its source.
///
/// # Errors
/// [`Kind::Input`] for a DataSource that does not exist; those of the API server.
pub(super) async fn origin(context: &Context, volume: &Value) -> cluster::Result<Option<Origin>> {
    let namespace = volume["metadata"]["namespace"].as_str().unwrap_or_default();
    match cloned::origin(&context.client, &volume["spec"], namespace).await? {
        Ok(origin) => Ok(origin),
        Err(_) if cloned::needs_no_source(volume) => Ok(None),
        Err(missing) => Err(Error::new(Kind::Input, format!("DataSource {missing} does not exist"))),
    }
}

/// Puts a token for its clone of this source on a DataVolume of the VM, if it needs one.
///
/// # Errors
/// [`Kind::Forbidden`] without a status when the VM's account may not clone the source; those of the API server.
pub(super) async fn grant(
    context: &Context,
    machine: &Value,
    volume: &mut Value,
    origin: &Origin,
) -> cluster::Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&volume["metadata"]["namespace"]), text(&volume["metadata"]["name"]));
    if origin.namespace == namespace {
        return Ok(());
    }
    let user = authorize::service_account(&namespace, account(machine));
    let target = Target { namespace: &namespace, name: &name, uid: None };
    let token = permit::token(&context.client, &context.namespace, &user, origin, target).await?;
    volume["metadata"]["annotations"][names::CLONE_TOKEN] = json!(token);
    Ok(())
}

/// Name of the ServiceAccount that a VM's guest acts as; empty for the namespace's default.
fn account(machine: &Value) -> &str {
    let spec = &machine["spec"]["template"]["spec"];
    let volumes = spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_volumes =
        || volumes.iter().find_map(|volume| volume["serviceAccount"]["serviceAccountName"].as_str());
    let named = spec["serviceAccountName"].as_str().filter(|name| !name.is_empty());
    named.or_else(of_volumes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_that_of_the_template_or_of_a_volume() {
        let of = |spec: Value| account(&json!({"spec": {"template": {"spec": spec}}})).to_owned();
        let volumes =
            json!([{"name": "a"}, {"name": "b", "serviceAccount": {"serviceAccountName": "mounted"}}]);
        assert_eq!(of(json!({})), "");
        assert_eq!(of(json!({"volumes": volumes})), "mounted");
        assert_eq!(of(json!({"volumes": volumes, "serviceAccountName": "named"})), "named");
        assert_eq!(of(json!({"volumes": volumes, "serviceAccountName": ""})), "mounted");
    }
}
