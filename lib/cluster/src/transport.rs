//! The connection: rustls with aws-lc-rs, HTTP/2 where the server offers it (HTTP/1.1 else), kept alive by pings.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::config::Config;
use crate::error::{Error, Kind, Result};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection without traffic is pinged so often, and given up without an answer, as client-go does.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes in flight in one stream and in all: a page of a list, and several watches.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The connections to one API server.
pub(crate) type Http = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Prepares connections; none is made yet.
pub(crate) fn prepare(config: &Config) -> Result<Http> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(PING_INTERVAL));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls(config)?).https_or_http();
    if let Some(name) = &config.server_name {
        let name = ServerName::try_from(name.clone()).map_err(|error| {
            Error::caused(Kind::Config, format!("the kubeconfig's tls-server-name {name} is invalid"), error)
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = builder.enable_http1().enable_http2().wrap_connector(connector);
    let mut client = Client::builder(TokioExecutor::new());
    client.timer(TokioTimer::new()).pool_timer(TokioTimer::new());
    client.http2_keep_alive_interval(PING_INTERVAL).http2_keep_alive_timeout(PING_TIMEOUT);
    client.http2_initial_stream_window_size(STREAM_WINDOW);
    client.http2_initial_connection_window_size(CONNECTION_WINDOW);
    Ok(client.build(connector))
}

/// TLS with the authority and the client certificate of `config`.
pub(crate) fn tls(config: &Config) -> Result<ClientConfig> {
    let failed = |what: &'static str| move |error| Error::caused(Kind::Config, what, error);
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &config.authority {
        for certificate in certificates(pem)? {
            roots.add(certificate).map_err(|error| {
                Error::caused(
                    Kind::Config,
                    "a certificate of the API server's authority cannot be used",
                    error,
                )
            })?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(failed("TLS cannot be set up"))?.with_root_certificates(roots);
    let Some(identity) = &config.identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(&identity.certificates)?;
    // The parser's message could quote the key.
    let key = PrivateKeyDer::from_pem_slice(&identity.key)
        .map_err(|_| Error::new(Kind::Config, "the kubeconfig's client key is not PEM"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(failed("the client certificate and its key cannot be used"))
}

/// The certificates of a PEM text, at least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read
        .map_err(|error| Error::caused(Kind::Config, "a certificate of the kubeconfig is not PEM", error))?;
    if read.is_empty() {
        return Err(Error::new(Kind::Config, "the certificate data holds no PEM certificate"));
    }
    Ok(read)
}
