//! The operator's requests to this node over HTTPS with mutual TLS: guests' consoles as byte streams, power commands,
//! reports of their agents.
//!
//! ```text
//! operator ══ TLS, client certificate ══► routes ─┬─ console, vnc, usbredir, portforward: Upgrade, then bytes (pipe)
//!                                                └─ pause, reset, guestosinfo, …: one call to the launcher (command)
//! ```
//!
//! A client without the operator's certificate ends at the handshake or with 403. Not here: which user may do what: the
//! operator asked that before.

mod command;
mod picture;
mod pipe;
mod pointer;

pub(crate) use pipe::{Counts, Sessions};

use std::sync::Arc;

use cluster::Key;
use http::{Method, StatusCode};
use serde_json::json;
use serve::route::{Answer, Call, Router};

use crate::error::{Error, Kind};
use crate::guests::controller::Controller;

/// Connections of the operator at once. Streams have at most three quarters of them, so that power commands, freezes and
/// reports are always served.
pub(crate) const CONNECTIONS: usize = 256;
/// The name in the operator's certificate.
const OPERATOR: &str = "kubevirt.io:system:client:virt-handler";
/// Where a guest is.
const GUEST: &str = "/v1/namespaces/{ns}/virtualmachineinstances/{name}";

/// An error in HTTP's form: a status, a reason for programs, a message for users.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    reason: &'static str,
    message: String,
}

impl Refused {
    /// The guest is in another state than it has to be.
    fn conflict(message: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, reason: "Conflict", message: message.into() }
    }

    /// The request cannot be understood.
    fn bad(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    /// The agent cannot serve this now.
    fn unavailable(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            reason: "ServiceUnavailable",
            message: message.into(),
        }
    }

    /// The guest or the node failed.
    fn internal(message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", message: message.into() }
    }

    /// There is no such guest on this node.
    fn missing(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, reason: "NotFound", message: message.into() }
    }

    fn answer(self) -> Answer {
        let Self { status, reason, message } = self;
        serve::route::json(status, json!({"message": message, "reason": reason}).to_string())
    }
}

impl From<Error> for Refused {
    /// The one place where errors become HTTP's.
    fn from(error: Error) -> Self {
        let message = error.chain();
        match error.kind() {
            Kind::Content => Self::conflict(message),
            Kind::Launcher => Self::unavailable(message),
            Kind::Usage | Kind::Untrusted | Kind::Kubelet | Kind::Cluster | Kind::Stale | Kind::System => {
                Self::internal(message)
            }
        }
    }
}

/// Refuses every client other than the operator.
fn only_operator(call: &Call) -> Result<(), Refused> {
    if call.connection().client_name() == Some(OPERATOR) {
        return Ok(());
    }
    let message = format!("only a client with a certificate for {OPERATOR} is served");
    Err(Refused { status: StatusCode::FORBIDDEN, reason: "Forbidden", message })
}

/// The guest that a request is about.
fn key(call: &Call) -> Key {
    Key::new(call.parameter("ns"), call.parameter("name"))
}

/// Whether the query of a request sets a flag, as Go's ParseBool reads it.
fn flag(call: &Call, name: &str) -> bool {
    is_set(call.head.uri.query().unwrap_or_default(), name)
}

fn is_set(query: &str, name: &str) -> bool {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(one, _)| *one == name).map(|(_, value)| value).next();
    matches!(value, Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// All routes.
pub(crate) fn router(controller: &Arc<Controller>, sessions: &Sessions) -> Router {
    let mut router = Router::new().refuse_with(|_, refusal| {
        let status = refusal.status();
        let body =
            json!({"message": refusal.to_string(), "reason": status.canonical_reason().unwrap_or_default()});
        refusal.complete(serve::route::json(status, body.to_string()))
    });
    for (name, pattern) in pipe::STREAMS {
        let (controller, sessions) = (Arc::clone(controller), sessions.clone());
        router = router.get(&format!("{GUEST}/{pattern}"), move |mut call| {
            let (controller, sessions) = (Arc::clone(&controller), sessions.clone());
            async move {
                let open = async {
                    only_operator(&call)?;
                    call.set_busy();
                    pipe::open(&controller, &sessions, name, &mut call).await
                };
                open.await.unwrap_or_else(Refused::answer)
            }
        });
    }
    for (method, name) in command::COMMANDS {
        let controller = Arc::clone(controller);
        let method = if method == "GET" { Method::GET } else { Method::PUT };
        router = router.route(method, &format!("{GUEST}/{name}"), move |mut call| {
            let controller = Arc::clone(&controller);
            async move {
                let done = async {
                    only_operator(&call)?;
                    call.set_busy();
                    command::run(&controller, name, &mut call).await
                };
                done.await.unwrap_or_else(Refused::answer)
            }
        });
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_query_are_read_as_upstream_reads_them() {
        for (query, expected) in [
            ("preserveSession=true", true),
            ("a=b&preserveSession=1", true),
            ("preserveSession=false", false),
            ("preserveSession=yes", false),
            ("preserveSession", false),
            ("xpreserveSession=true", false),
            ("preserveSession=false&preserveSession=true", false),
            ("", false),
        ] {
            assert_eq!(is_set(query, "preserveSession"), expected, "{query}");
        }
    }
}
