//! Whether a user may clone into a namespace: by rights, else by a ReferenceGrant.

use cluster::Client;
use cluster::access::{Access, User};

use super::authorize::{Origin, decide, needs};
use super::reference;

/// Whether a user may clone into `target_namespace`: by rights (SubjectAccessReviews), else by a ReferenceGrant.
///
/// # Errors
/// Those of the API server.
pub async fn allowed(
    client: &Client,
    user: &User,
    origin: &Origin,
    target_namespace: &str,
) -> cluster::Result<bool> {
    let needs = needs(origin, target_namespace);
    let permitted = decide(&needs, |access| async move {
        let asked = Access {
            namespace: &access.namespace,
            verb: "create",
            group: access.group,
            version: "*",
            resource: access.resource,
            subresource: access.subresource,
            name: &access.name,
        };
        Ok(client.may(user, &asked).await?.allowed)
    })
    .await?;
    Ok(permitted || reference::granted(client, origin, target_namespace).await?)
}
