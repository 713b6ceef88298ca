//! Polls of cron sources at the operator's request: a port that takes the operator's certificate only.
//!
//! ```text
//!  operator ══ mutual TLS ══► this port ─► guard: may the address be reached? ─► registry: digest of the manifest
//!                                                                              └► web: entity tag, else time
//! ```
//! The process holds no credential that would help a server it is sent to, and follows no redirect to an address that
//! the guard refuses.
//!
//! Not here: when a source is polled, and what follows (the operator); sources with credentials (importer pods).

mod fetch;
mod guard;
mod registry;
mod web;

use std::sync::Arc;
use std::time::Duration;

use api::poll::{self, Request};
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serve::route::bounded;
use serve::server::{Connection, Limits, Service, reject};
use tokio::sync::Semaphore;

use super::answer::{self, Answer};

/// Limits of connections: one client polls.
pub(crate) const LIMITS: Limits = Limits {
    connections: 32,
    handshakes: 8,
    handshake_time: Duration::from_secs(5),
    head: 8 << 10,
    idle_time: Duration::from_secs(10),
    buffer: 16 << 10,
    read_ahead: 16 << 10,
    withdrawal: Duration::ZERO,
    closing: Duration::from_secs(1),
};
/// Polls at once.
const POLLS: usize = 8;
/// Longest poll.
const POLL_TIMEOUT: Duration = Duration::from_secs(25);

/// Answers polls.
pub(crate) struct Polls(Arc<Semaphore>);

impl Default for Polls {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(POLLS)))
    }
}

impl Service for Polls {
    type Body = answer::Reply;

    async fn answer(&self, request: http::Request<Incoming>, connection: &Arc<Connection>) -> Answer {
        if connection.client_name() != Some(poll::CLIENT) {
            return reject(request.into_body(), answer::text(StatusCode::FORBIDDEN, "forbidden"));
        }
        if request.method() != Method::POST || request.uri().path() != poll::PATH {
            return reject(request.into_body(), answer::text(StatusCode::NOT_FOUND, "not found"));
        }
        let _busy = connection.busy();
        let body = match bounded(request.into_body(), poll::MOST_REQUEST).await {
            Ok(body) => body,
            Err(refusal) => return answer::text(StatusCode::BAD_REQUEST, &refusal.to_string()),
        };
        let asked: Request = match serde_json::from_slice(&body) {
            Ok(asked) => asked,
            Err(error) => {
                let why = format!("the request is not that of a poll: {error}");
                return answer::text(StatusCode::BAD_REQUEST, &why);
            }
        };
        let Ok(_turn) = self.0.acquire().await else {
            return answer::text(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down; retry");
        };
        let polled = tokio::time::timeout(POLL_TIMEOUT, poll(&asked)).await.unwrap_or_else(|_| {
            poll::Answer::Failed(format!("no answer within {} s", POLL_TIMEOUT.as_secs()))
        });
        tracing::info!(url = redacted(&asked.url), ?polled, "polled");
        answer::text(StatusCode::OK, &serde_json::to_string(&polled).unwrap_or_default())
    }
}

/// A URL without user, password and query.
fn redacted(url: &str) -> String {
    let front = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = front.split_once("://").unwrap_or(("", front));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}/{path}")
}

/// Polls a source.
async fn poll(asked: &Request) -> poll::Answer {
    let polled = async {
        let client = fetch::Fetcher::new(asked)?;
        match asked.url.split_once("://").map(|(scheme, _)| scheme) {
            Some("http" | "https") => web::version(&client, asked).await,
            Some("docker") => registry::version(&client, asked).await,
            _ => Err(fetch::Problem::Failed(
                "a source is polled at http://, https:// and docker:// addresses".to_owned(),
            )),
        }
    };
    match polled.await {
        Ok(version) => poll::Answer::Version(version),
        Err(fetch::Problem::Refused(why)) => poll::Answer::Refused(why),
        Err(fetch::Problem::Failed(why)) => poll::Answer::Failed(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_secrets() {
        assert_eq!(redacted("https://user:word@host/disk?sig=1#x"), "https://host/disk");
        assert_eq!(redacted("docker://host:5000/a/b:c"), "docker://host:5000/a/b:c");
    }

    #[tokio::test]
    async fn addresses_of_the_node_and_of_services_are_refused() {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        for url in [
            "http://127.0.0.1/disk",
            "http://localhost/disk",
            "http://[::1]/disk",
            "http://169.254.169.254/latest/meta-data",
            "http://[fe80::1]/disk",
            "http://[::ffff:127.0.0.1]/disk",
            "http://0.0.0.0/disk",
            "https://10.96.0.1/disk",
            "docker://127.0.0.1:5000/disk",
            "docker://10.96.12.1/disk",
        ] {
            let asked = Request {
                url: url.to_owned(),
                services: vec!["10.96.0.0/12".to_owned()],
                ..Request::default()
            };
            let answer = poll(&asked).await;
            assert!(matches!(answer, poll::Answer::Refused(_)), "{url}: {answer:?}");
        }
        for url in ["ftp://a/b", "docker://", "http://"] {
            let answer = poll(&Request { url: url.to_owned(), ..Request::default() }).await;
            assert!(matches!(answer, poll::Answer::Failed(_)), "{url}: {answer:?}");
        }
    }
}
