//! Requests to the proxy: the token, the claim, its server. Not here: connections and their limits, the form of answers
//! (`answer`), forwarding (`forward`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::upload::service_name;
use api::upload::token::Target;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use serve::failure::Kind;
use tokio::time::Instant;

use serve::server::{Connection, Informational, Limits, Service, drain, reject};

use crate::answer::{self, Answer, Refusal, Reply};
use crate::cluster::Lookup;
use crate::connect::Own;
use crate::forward::{DRAIN_TIME, forward};
use crate::readiness::{Step, server_path, step};
use crate::routes::{Operation, operation};
use crate::token_keys::TrustedKeys;

/// Limits of connections. At its end the proxy waits for running uploads, as long as its pod may run, unless none makes
/// progress ([`stalled`]).
pub(crate) const LIMITS: Limits = Limits {
    connections: 1024,
    handshakes: 128,
    handshake_time: Duration::from_secs(5),
    head: 16 << 10,
    idle_time: Duration::from_secs(10),
    buffer: 16 << 10,
    read_ahead: 20 << 10,
    withdrawal: Duration::ZERO,
    closing: Duration::from_secs(24 * 3600),
};
/// How long a server that is not ready is waited for, and how often is looked; upstream's numbers.
const WAIT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(1);
/// How long uploads may pass nothing on before the end of the proxy stops waiting for them. A server that has received
/// everything may write the disk to its end for as long ([`serve::peer::ANSWER_TIMEOUT`]).
const STALLED: Duration = Duration::from_secs(15 * 60);

/// Shared by all requests.
pub(crate) struct Proxy<L> {
    pub(crate) lookup: L,
    pub(crate) trusted: TrustedKeys,
    pub(crate) own: Own,
    /// Bytes of uploads that were passed on, of all together.
    pub(crate) passed: Arc<AtomicU64>,
}

/// Waits until uploads have passed nothing on for [`STALLED`].
pub(crate) async fn stalled(passed: &AtomicU64) {
    let (mut before, mut since) = (passed.load(Ordering::Relaxed), Instant::now());
    while since.elapsed() < STALLED {
        tokio::time::sleep(STALLED / 60).await;
        let now = passed.load(Ordering::Relaxed);
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
}

/// A claim with a ready server.
struct Ready {
    /// The claim that the server has.
    target: Target,
    archive: bool,
}

impl<L: Lookup> Service for Proxy<L> {
    type Body = Reply;

    async fn answer(&self, request: Request<Incoming>, connection: &Arc<Connection>) -> Answer {
        let informational = connection.informational().cloned();
        let mut answer = match operation(request.method(), request.uri().path()) {
            Operation::Preflight => answer::preflight(request.headers()),
            Operation::Health => answer::text(StatusCode::OK, "OK"),
            Operation::Nothing => refuse(request, &Refusal::NotFound),
            Operation::Server => self.pass(request, connection, informational).await,
        };
        answer::open(&mut answer);
        answer
    }
}

impl<L: Lookup> Proxy<L> {
    async fn pass(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
        informational: Option<Informational>,
    ) -> Answer {
        let target = match self.admit(request.headers()) {
            Ok(target) => target,
            Err(refusal) => return refuse(request, &refusal),
        };
        // A client with a valid token is not evicted while its request runs.
        let _busy = connection.busy();
        connection.read_ahead();
        let ready = match self.ready(&target).await {
            Ok(ready) => ready,
            Err(refusal) => {
                tracing::info!(%target, ?refusal, "an upload is refused");
                return leave(request, &refusal);
            }
        };
        let path = server_path(request.uri().path(), ready.archive);
        let host = format!("{}.{}.svc", service_name(ready.target.name()), ready.target.namespace());
        let connected = async {
            let authorities = self.lookup.authorities().await?;
            self.own.connect(&host, self.own.tls(&authorities).await?).await
        };
        let stream = match connected.await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%target, error = error.chain(), "cannot connect to an upload server");
                let refusal = match error.kind() {
                    Kind::Unreachable => Refusal::Unreachable,
                    Kind::Usage | Kind::Cluster | Kind::Refused | Kind::Process => Refusal::Unprepared,
                };
                return leave(request, &refusal);
            }
        };
        let method = request.method().clone();
        tracing::debug!(%target, %method, path, "passing a request on");
        let passed = Arc::clone(&self.passed);
        let answer = forward(stream, &host, &path, request, informational, passed).await;
        let answer = answer.unwrap_or_else(|refusal| answer::refusal(&refusal));
        tracing::info!(%target, %method, path, status = answer.status().as_u16(), "answered");
        answer
    }

    /// The claim that the token is for.
    fn admit(&self, headers: &HeaderMap) -> Result<Target, Refusal> {
        let token = bearer(headers).ok_or(Refusal::NoToken)?;
        let claims = self.trusted.verify(token).map_err(Refusal::Token)?;
        claims.grant.upload_target().ok_or(Refusal::WrongClaims)
    }

    /// Waits until the claim's server is ready.
    async fn ready(&self, target: &Target) -> Result<Ready, Refusal> {
        let until = Instant::now() + WAIT;
        let not_ready = |why: String| Err(Refusal::NotReady(why));
        loop {
            let mut of = target.clone();
            let why = loop {
                let claim = match self.lookup.claim(&of).await {
                    Ok(Some(claim)) => claim,
                    Ok(None) if of == *target => {
                        let name = target.name();
                        return not_ready(format!(
                            "rejecting Upload Request for PVC {name} that doesn't exist"
                        ));
                    }
                    Ok(None) => {
                        let name = target.name();
                        return not_ready(format!(
                            "rejecting Upload Request for PVC {name}, PVC' wasn't created yet"
                        ));
                    }
                    Err(error) => {
                        tracing::warn!(%target, error = error.chain(), "cannot read the claim of an upload");
                        break "the claim cannot be read from the API server; the proxy's log has the reason";
                    }
                };
                match step(&of, &claim) {
                    Step::Go { archive } => return Ok(Ready { target: of, archive }),
                    Step::Refuse(why) => return not_ready(why),
                    Step::Wait(why) => break why,
                    // One step: what is filled by a populator's claim is that claim.
                    Step::Follow(prime) if of == *target && prime != of => of = prime,
                    Step::Follow(_) => {
                        return not_ready(format!(
                            "PVC {} has a circular populator reference; create it again",
                            target.name()
                        ));
                    }
                }
            };
            if Instant::now() + AGAIN > until {
                return not_ready(format!("PVC {}: {why}", target.name()));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

fn refuse(request: Request<Incoming>, refusal: &Refusal) -> Answer {
    reject(request.into_body(), answer::refusal(refusal))
}

/// The answer to a client with a valid token; its body is drained.
fn leave(request: Request<Incoming>, refusal: &Refusal) -> Answer {
    drain(request.into_body(), DRAIN_TIME, answer::refusal(refusal))
}

/// The token that a request shows (RFC 6750, 2.1), and nothing else.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, more) = (values.next()?.to_str().ok()?, values.next());
    let (scheme, token) = value.split_once(|c: char| c.is_ascii_whitespace())?;
    let token = token.trim_ascii_start();
    let good = |c: u8| c.is_ascii_alphanumeric() || b"-._~+/".contains(&c);
    let well = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.bytes().all(good);
    (well && more.is_none()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn uploads_are_waited_for_while_they_make_progress() {
        let passed = Arc::new(AtomicU64::new(7));
        let waiting = tokio::spawn({
            let passed = Arc::clone(&passed);
            async move { stalled(&passed).await }
        });
        for _ in 0..10 {
            tokio::time::sleep(STALLED / 2).await;
            passed.fetch_add(1, Ordering::Relaxed);
        }
        assert!(!waiting.is_finished());
        assert!(tokio::time::timeout(STALLED + STALLED / 20, waiting).await.is_ok());
    }

    #[test]
    fn tokens_are_shown_in_one_way() {
        for (values, token) in [
            (&["Bearer a.b-c_~+/9"][..], Some("a.b-c_~+/9")),
            (&["bearer  x"], Some("x")),
            (&["BEARER\tx"], Some("x")),
            (&["Bearer"], None),
            (&["Bearer "], None),
            (&["Bearer a b"], None),
            (&["Bearer a="], None),
            (&["Basic a"], None),
            (&["a"], None),
            (&["Bearer a", "Bearer b"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            assert_eq!(bearer(&headers), token, "{values:?}");
        }
    }
}
