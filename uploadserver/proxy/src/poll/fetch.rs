//! The HTTP client of polls: every address passes the guard, those of redirects too. Not here: what is asked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::poll::Request;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, NoProxy, Proxy, RequestBuilder, Response};
use rustls::{ClientConfig, RootCertStore};
use url::{Host, Url};

use super::guard::Guard;

/// How long a server may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest chain of redirects.
const REDIRECTS: usize = 10;

/// Why there is no version.
#[derive(Debug)]
pub(super) enum Problem {
    /// The address is refused.
    Refused(String),
    /// Anything else.
    Failed(String),
}

/// An address that the guard refuses, as an error on the way through the client.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn refused(host: &str, why: &str) -> Refused {
    Refused(format!("{host} is not polled, its address is not one that sources may have: {why}"))
}

/// Names are resolved here, and refused when one of their addresses is.
struct Guarded {
    guard: Arc<Guard>,
    /// Hosts of configured proxies.
    proxies: Vec<String>,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, host) = (Arc::clone(&self.guard), name.as_str().to_owned());
        let proxy = self.proxies.contains(&host);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let refusal = found.iter().find_map(|one| guard.refusal(one.ip())).filter(|_| !proxy);
            if let Some(why) = refusal {
                return Err(refused(&host, why).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Whether a URL names an address that the guard refuses. Names are looked at when they are resolved.
fn check(url: &Url, guard: &Guard) -> Result<(), Refused> {
    let address = match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address),
        Some(Host::Ipv6(address)) => IpAddr::V6(address),
        Some(Host::Domain(_)) | None => return Ok(()),
    };
    guard.refusal(address).map_or(Ok(()), |why| Err(refused(&address.to_string(), why)))
}

/// A client for one poll.
pub(super) struct Fetcher {
    client: Client,
    guard: Arc<Guard>,
}

impl Fetcher {
    /// A client with the trust, proxies and guard of a request.
    pub(super) fn new(asked: &Request) -> Result<Self, Problem> {
        let guard = Guard::new(&asked.services, &asked.allowed).map_err(Problem::Failed)?;
        let guard = Arc::new(guard);
        let follow = Arc::clone(&guard);
        let policy = Policy::custom(move |attempt| {
            if attempt.previous().len() > REDIRECTS {
                return attempt.error("too many redirects");
            }
            match check(attempt.url(), &follow) {
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(refused),
            }
        });
        let proxies: Vec<(&str, &str)> = [("http", &asked.http_proxy), ("https", &asked.https_proxy)]
            .into_iter()
            .map(|(scheme, address)| (scheme, address.trim()))
            .filter(|(_, address)| !address.is_empty())
            .collect();
        let hosts = proxies.iter().filter_map(|(_, address)| {
            let url = Url::parse(address).or_else(|_| Url::parse(&format!("http://{address}"))).ok()?;
            url.host_str().map(str::to_owned)
        });
        let resolver = Guarded { guard: Arc::clone(&guard), proxies: hosts.collect() };
        let mut builder = Client::builder()
            .tls_backend_preconfigured(tls(asked.insecure)?)
            .http1_only()
            .redirect(policy)
            .retry(reqwest::retry::never())
            .referer(false)
            .user_agent(api::names::USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .dns_resolver(Arc::new(resolver))
            .no_proxy();
        for (scheme, address) in proxies {
            let made = if scheme == "http" { Proxy::http(address) } else { Proxy::https(address) };
            let proxy =
                made.map_err(|_| Problem::Failed(format!("the address of the {scheme} proxy is not a URL")))?;
            builder = builder.proxy(proxy.no_proxy(NoProxy::from_string(&asked.no_proxy)));
        }
        let client = builder.build().map_err(|error| failed("cannot set up the HTTP client", error))?;
        Ok(Self { client, guard })
    }

    /// A request to a URL.
    pub(super) fn request(&self, method: http::Method, url: &str) -> Result<RequestBuilder, Problem> {
        let parsed = Url::parse(url).map_err(|_| Problem::Failed("the address is not a URL".to_owned()))?;
        if !["http", "https"].contains(&parsed.scheme()) || parsed.host().is_none() {
            return Err(Problem::Failed("the address is not an http or https URL".to_owned()));
        }
        check(&parsed, &self.guard).map_err(|refused| Problem::Refused(refused.0))?;
        Ok(self.client.request(method, parsed))
    }
}

/// Sends a request.
pub(super) async fn send(request: RequestBuilder) -> Result<Response, Problem> {
    request.send().await.map_err(|error| {
        let host = error.url().and_then(Url::host_str).unwrap_or("the source").to_owned();
        failed(&format!("no answer from {host}"), error)
    })
}

/// An error of the client. It may hold a refusal; its URL may hold a secret.
fn failed(what: &str, error: reqwest::Error) -> Problem {
    let error = error.without_url();
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(one) = source {
        if let Some(refused) = one.downcast_ref::<Refused>() {
            return Problem::Refused(refused.0.clone());
        }
        source = one.source();
    }
    Problem::Failed(format!("{what}: {}", ::error::chain(&error)))
}

/// The whole body of an answer, if it is not longer than `most`.
pub(super) async fn whole(mut answer: Response, most: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| failed("the answer broke off", error))? {
        if bytes.len() + piece.len() > most {
            return Err(Problem::Failed(format!("the answer is longer than {most} bytes")));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Headers of "Key: value" lines.
pub(super) fn headers(lines: &[String]) -> Result<HeaderMap, Problem> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let pair = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::try_from(name.trim()).ok()?;
            Some((name, HeaderValue::try_from(value.trim()).ok()?))
        });
        let (name, value) =
            pair.ok_or_else(|| Problem::Failed("an extra header is not a line \"Key: value\"".to_owned()))?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn tls(insecure: bool) -> Result<ClientConfig, Problem> {
    let roots = (!insecure).then(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    });
    let config = serve::trust::client(roots);
    let mut config = config.map_err(|error| Problem::Failed(format!("cannot set up TLS: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
