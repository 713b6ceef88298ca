//! Access to the metrics: for bearer tokens that the API server knows and allows to `get` the path `/metrics`, as with
//! upstream (TokenReview of authentication.k8s.io/v1, SubjectAccessReview of authorization.k8s.io/v1).
//!
//! Not here: what is served ([`crate::metrics`]).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::Client;
use serve::http::Verdict;
use tokio::runtime::Handle;

/// How long the API server's approval is cached.
const CACHED: Duration = Duration::from_secs(60);
/// Tokens that are remembered.
const TOKENS: usize = 64;
/// Longest token that is asked about: they are some KiB long.
const TOKEN_MAX: usize = 32 << 10;

/// Asks the API server, and remembers its yes for a while.
pub(crate) struct MetricsAuth {
    client: Client,
    handle: Handle,
    /// Tokens that are good, and until when.
    good: Mutex<HashMap<String, Instant>>,
}

impl MetricsAuth {
    /// One that asks by this client, on the runtime of its caller.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, handle: Handle::current(), good: Mutex::default() }
    }

    /// The verdict about a request with `token`. Blocks, so not on a thread of the runtime.
    pub(crate) fn authorize(&self, token: Option<&str>) -> Verdict {
        let Some(token) = token.filter(|token| !token.is_empty() && token.len() <= TOKEN_MAX) else {
            return Verdict::Unknown;
        };
        let now = Instant::now();
        let good = || self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if good().get(token).is_some_and(|until| *until > now) {
            return Verdict::Granted;
        }
        match self.handle.block_on(self.ask(token)) {
            Ok(Verdict::Granted) => {
                let mut good = good();
                good.retain(|_, until| *until > now);
                if good.len() < TOKENS {
                    good.insert(token.to_owned(), now + CACHED);
                }
                Verdict::Granted
            }
            Ok(verdict) => verdict,
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot check the token of a request for metrics");
                Verdict::Unavailable
            }
        }
    }

    async fn ask(&self, token: &str) -> cluster::Result<Verdict> {
        let Some(user) = self.client.user_of(token).await? else { return Ok(Verdict::Unknown) };
        let verdict = self.client.may_path(&user, "get", "/metrics").await?;
        Ok(if verdict.allowed { Verdict::Granted } else { Verdict::Refused })
    }
}
