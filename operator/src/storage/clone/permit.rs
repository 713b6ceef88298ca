//! Whether a user may clone into a namespace: by rights, else by a ReferenceGrant. And the token of one that may, for
//! DataVolumes that the operator creates for others.

use cluster::access::{Access, User};
use cluster::{Client, Error, Kind};

use super::authorize::{Origin, decide, denial, needs};
use super::reference;
use super::token::{self, Target};
use crate::storage::keys;

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

/// A token for a clone into `target` that `user` may make, signed with the keys in `keys_namespace`.
///
/// # Errors
/// [`Kind::Forbidden`] without a status when the user may not clone the source; those of the API server.
pub async fn token(
    client: &Client,
    keys_namespace: &str,
    user: &User,
    origin: &Origin,
    target: Target<'_>,
) -> cluster::Result<String> {
    if !allowed(client, user, origin, target.namespace).await? {
        return Err(Error::new(Kind::Forbidden, denial(&user.username, &origin.namespace)));
    }
    let keys = keys::read(client, keys_namespace).await?;
    let token = keys.sign(&token::grant(origin, target), virt::time::now());
    token.map_err(|error| Error::caused(Kind::Unreadable, "tokens cannot be signed yet", error))
}
