//! Authenticates and authorizes an aggregated request: the front proxy's certificate and headers, then a
//! SubjectAccessReview. The API server has authorized the request before; this is the second lock, for requests that do not
//! come through it.

use std::sync::{Arc, PoisonError, RwLock};

use cluster::Client;
use cluster::access::{Access, User};
use cluster::front::Front;
use http::{Method, StatusCode};
use serve::route::Call;

use super::group::GROUP;
use super::status::Refusal;

/// Judges requests.
pub(super) struct Gate {
    client: Client,
    front: RwLock<Option<Arc<Front>>>,
}

impl Gate {
    pub(super) fn new(client: Client) -> Self {
        Self { client, front: RwLock::default() }
    }

    /// Sets what identifies the front proxy.
    pub(super) fn set(&self, front: Front) {
        *self.front.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(front));
    }

    /// The user that the front proxy names.
    pub(super) fn user(&self, call: &Call) -> Result<User, Refusal> {
        let front = self.front.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(front) = front else {
            let text = "the configuration of the API server's front proxy has not been read yet; retry";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let client = call.connection().client();
        let chain: Vec<_> = client.iter().map(|client| client.certificate.clone()).collect();
        let name = call.connection().client_name();
        let user = front.user(&chain, name, &call.head.headers);
        user.map_err(|error| Refusal::new(StatusCode::UNAUTHORIZED, error.chain()))
    }

    /// Whether a user may do this.
    pub(super) async fn may(&self, user: &User, access: &Access<'_>) -> Result<bool, Refusal> {
        Ok(self.client.may(user, access).await?.allowed)
    }

    /// The permission, if the request may do what its path names: `subresource` of an object of `resource`.
    pub(super) async fn admit(
        &self,
        call: &Call,
        resource: &'static str,
        subresource: &'static str,
    ) -> Result<Permission, Refusal> {
        let permission = Permission {
            user: self.user(call)?,
            namespace: call.parameter("namespace").to_owned(),
            verb: if call.head.method == Method::GET { "get" } else { "update" },
            version: call.head.uri.path().split('/').nth(3).unwrap_or_default().to_owned(),
            resource,
            subresource,
            name: call.parameter("name").to_owned(),
        };
        if self.holds(&permission).await? {
            return Ok(permission);
        }
        Err(Refusal::new(StatusCode::FORBIDDEN, permission.denial()))
    }

    /// Whether a permission is still given.
    pub(super) async fn holds(&self, permission: &Permission) -> Result<bool, Refusal> {
        let Permission { user, namespace, verb, version, resource, subresource, name } = permission;
        self.may(user, &Access { namespace, verb, group: GROUP, version, resource, subresource, name }).await
    }
}

/// A permission of a user for a subresource of an object.
#[derive(Debug)]
pub(super) struct Permission {
    pub(super) user: User,
    namespace: String,
    verb: &'static str,
    version: String,
    resource: &'static str,
    subresource: &'static str,
    name: String,
}

impl Permission {
    /// The text of its refusal.
    fn denial(&self) -> String {
        let Self { user, namespace, verb, version: _, resource, subresource, name } = self;
        let path = match *subresource {
            "" => (*resource).to_owned(),
            _ => format!("{resource}/{subresource}"),
        };
        format!(
            "{resource}.{GROUP} {name:?} is forbidden: User {:?} cannot {verb} resource {path:?} in API group {GROUP:?} in the namespace {namespace:?}",
            user.username
        )
    }
}
