//! Authenticates and authorizes an aggregated request: the front proxy's certificate and headers, then a
//! SubjectAccessReview. The API server has authorized the request before; this is the second lock, for requests that do not
//! come through it.

use std::sync::{Arc, PoisonError, RwLock};

use cluster::Client;
use cluster::access::{Access, User};
use cluster::front::Front;
use http::{Method, StatusCode};
use serve::route::Call;

use super::discovery::GROUP;
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

    /// The user, if the request may do what its path names: `subresource` of an object of `resource`.
    pub(super) async fn admit(
        &self,
        call: &Call,
        resource: &str,
        subresource: &str,
    ) -> Result<User, Refusal> {
        let user = self.user(call)?;
        let version = call.head.uri.path().split('/').nth(3).unwrap_or_default();
        let access = Access {
            namespace: call.parameter("namespace"),
            verb: if call.head.method == Method::GET { "get" } else { "update" },
            group: GROUP,
            version,
            resource,
            subresource,
            name: call.parameter("name"),
        };
        if self.may(&user, &access).await? {
            return Ok(user);
        }
        let (verb, object) = (access.verb, access.name);
        let path =
            if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        let text = format!(
            "{resource}.{GROUP} {object:?} is forbidden: User {:?} cannot {verb} resource {path:?} in API group {GROUP:?} in the namespace {:?}",
            user.username, access.namespace
        );
        Err(Refusal::new(StatusCode::FORBIDDEN, text))
    }
}
