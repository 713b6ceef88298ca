//! Google Cloud Storage sources, by object_store for requests and tokens and by our own client for connections.
//!
//! The crate's retries are off: [`remote`] tries again from the reader's own offset. Every read is conditional on the
//! first ETag.
//!
//! [`remote`]: super::remote

use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, RetryConfig};
use rustls::ClientConfig;
use url::Url;

use super::blocking::Net;
use super::http::{USER_AGENT, certificate_problem, not_tls, percent_decoded};
use super::remote::{self, Changed, Failure, Mark, Part, Reach, Remote, RemoteSource, Want};
use super::retry::Cause;
use super::tls::{self, Proxies};
use crate::error::{Error, Kind};

/// Object and options.
#[derive(Clone, Debug)]
pub struct Options {
    /// `gs://bucket/object`, `https://storage.googleapis.com/bucket/object`,
    /// `https://bucket.storage.googleapis.com/object`, or `https://SERVER/bucket/object` for another server that speaks the
    /// same.
    pub url: String,
    /// The service account's JSON; without it requests are anonymous.
    pub credentials: Option<PathBuf>,
    /// The server of `gs://` addresses, when it is another one, such as an emulator.
    pub server: Option<String>,
    /// How the server is reached.
    pub reach: Reach,
}

impl Options {
    /// The defaults for `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), credentials: None, server: None, reach: Reach::default() }
    }
}

/// Opens by asking for the first byte.
///
/// # Errors
/// [`Kind::Usage`] for an address that names no object or an account file of no use, [`Kind::Connect`] when the store
/// cannot be reached or refuses, [`Kind::Stopped`].
pub fn open(net: &Net, options: Options) -> Result<RemoteSource, Error> {
    let reach = options.reach.clone();
    let (bucket, object, server) = place(&options.url)?;
    let account = match &options.credentials {
        Some(path) => Some(std::fs::read_to_string(path).map_err(|e| {
            Error::with(Kind::Usage, format!("cannot read the service account {}", path.display()), e)
        })?),
        None => None,
    };
    let gcs = Gcs {
        name: format!("{}/{bucket}/{object}", server.as_deref().unwrap_or("gs:/")),
        object: Path::parse(&object).map_err(|e| {
            Error::with(Kind::Usage, format!("\"{object}\" is not the name of an object in a bucket"), e)
        })?,
        bucket,
        account,
        server: server.or(options.server),
        tls: tls::client_config(&options.reach.trust)?,
        proxies: options.reach.proxies,
        etag: Mutex::default(),
    };
    RemoteSource::open(net, gcs, reach)
}

/// Bucket and object of an address, and its server when that is not Google's.
fn place(address: &str) -> Result<(String, String, Option<String>), Error> {
    const HOST: &str = "storage.googleapis.com";
    let bad = || {
        Error::usage(
            "the source's address is not of the form gs://bucket/object or https://storage.googleapis.com/bucket/object",
        )
    };
    let url = Url::parse(address.trim()).map_err(|_| bad())?;
    let host = url.host_str().ok_or_else(bad)?;
    let path = percent_decoded(url.path().trim_start_matches('/'));
    let below = host.strip_suffix(HOST).and_then(|host| host.strip_suffix('.'));
    let (bucket, object, server) = match (url.scheme(), below) {
        ("gs", _) => (host.to_owned(), path, None),
        ("http" | "https", Some(bucket)) => (bucket.to_owned(), path, None),
        ("http" | "https", None) => {
            let (bucket, object) = path.split_once('/').ok_or_else(bad)?;
            let other = host != HOST && host != "storage.cloud.google.com";
            (bucket.to_owned(), object.to_owned(), other.then(|| url.origin().ascii_serialization()))
        }
        _ => return Err(bad()),
    };
    if bucket.is_empty() || object.is_empty() { Err(bad()) } else { Ok((bucket, object, server)) }
}

struct Gcs {
    name: String,
    bucket: String,
    object: Path,
    account: Option<String>,
    server: Option<String>,
    tls: ClientConfig,
    proxies: Proxies,
    etag: Mutex<Option<String>>,
}

/// A store on one lane, and the status of its last answer, which its errors lack.
struct Store {
    store: GoogleCloudStorage,
    status: Arc<AtomicU16>,
}

impl Remote for Gcs {
    type Client = Store;

    fn name(&self) -> &str {
        &self.name
    }

    fn remember(&self, mark: &Mark) {
        *self.etag.lock().unwrap_or_else(PoisonError::into_inner) = mark.strong().map(str::to_owned);
    }

    fn client(&self) -> Result<Store, Error> {
        let status = Arc::<AtomicU16>::default();
        let over =
            Over { client: tls::client(&self.tls, &self.proxies, USER_AGENT)?, status: status.clone() };
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(&self.bucket)
            .with_http_connector(over)
            .with_retry(once);
        builder = match &self.account {
            Some(account) => builder.with_service_account_key(account),
            None => builder.with_skip_signature(true),
        };
        if let Some(server) = &self.server {
            builder = builder.with_base_url(server);
        }
        // Its error could quote the account.
        let store = builder.build().map_err(|_| {
            Error::usage(
                "the service account's JSON is invalid: give the key file that the cloud console creates",
            )
        })?;
        Ok(Store { store, status })
    }

    async fn get(&self, client: &Store, want: Want) -> Result<Part, Failure> {
        let range = want.ranges.then_some(match want.end {
            Some(end) => GetRange::Bounded(want.from..end),
            None => GetRange::Offset(want.from),
        });
        let etag = self.etag.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let options = GetOptions { range, if_match: etag, ..GetOptions::default() };
        client.status.store(0, Ordering::Relaxed);
        let answer = client.store.get_opts(&self.object, options).await;
        let answer = answer.map_err(|e| self.failed(e, client.status.load(Ordering::Relaxed), want))?;
        let (meta, range) = (&answer.meta, answer.range.clone());
        let mark = Mark { etag: meta.e_tag.clone(), modified: Some(meta.last_modified.to_string()) };
        let (start, total) = (range.start, meta.size);
        if want.ranges && (start != want.from || want.end.is_some_and(|end| range.end > end)) {
            return Err(Failure::NoRanges("the server sends other bytes than asked for".to_owned()));
        }
        let body = answer.into_stream().map(|chunk| chunk.map_err(|e| Box::new(e) as remote::BoxError));
        Ok(Part {
            start,
            end: Some(range.end),
            total: Some(total),
            whole: !want.ranges,
            mark,
            body: Box::pin(body),
        })
    }
}

impl Gcs {
    fn failed(&self, error: object_store::Error, status: u16, want: Want) -> Failure {
        let name = &self.name;
        let (certificate, plain) = (certificate_problem(&error), not_tls(&error));
        let cause = match status {
            412 => return Failure::Changed(Changed::new(format!("{name} has another ETag"))),
            416 | 200 if want.ranges => {
                return Failure::NoRanges(format!("asked for a range the server answered {status}"));
            }
            0 if certificate || plain => Cause::Final,
            0 => Cause::Network,
            408 | 429 | 503 => Cause::Busy(None),
            400..=499 => Cause::Final,
            _ => Cause::Server,
        };
        let what = match status {
            0 if certificate => format!("the server of {name} is not trusted; give its CA certificate"),
            0 if plain => format!("the server of {name} does not speak TLS: is it http://?"),
            0 => {
                let server = self.server.as_deref().unwrap_or("https://storage.googleapis.com");
                format!("no answer for {name}{}", self.proxies.through(server))
            }
            401 | 403 if self.account.is_none() => {
                format!("{name} answered {status}: give a service account")
            }
            401 | 403 => format!("{name} answered {status}: the service account may not read this"),
            404 => format!("{name} answered 404: there is no object of that name"),
            _ => format!("{name} answered {status}"),
        };
        Failure::Failed(cause, Error::connect(what, error))
    }
}

/// The store's requests over our client.
#[derive(Clone, Debug)]
struct Over {
    client: reqwest::Client,
    status: Arc<AtomicU16>,
}

impl HttpConnector for Over {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

// The expansion by `#[async_trait]` of `async fn call(&self, …)`.
impl HttpService for Over {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let response = self.client.call(request).await?;
            self.status.store(response.status().as_u16(), Ordering::Relaxed);
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        #[rustfmt::skip]
        let table = [
            ("gs://b/a/o.img", "b", "a/o.img", None),
            ("https://storage.googleapis.com/b/a/o.img", "b", "a/o.img", None),
            ("https://b.storage.googleapis.com/a%20b", "b", "a b", None),
            ("https://storage.cloud.google.com/b/o", "b", "o", None),
            ("https://example.com/b/a/o", "b", "a/o", Some("https://example.com")),
            ("http://10.0.0.1:8080/b/o", "b", "o", Some("http://10.0.0.1:8080")),
        ];
        for (address, bucket, object, server) in table {
            let expected = (bucket.to_owned(), object.to_owned(), server.map(str::to_owned));
            assert_eq!(place(address).unwrap(), expected, "{address}");
        }
        for address in ["gs://b", "gs://b/", "https://storage.googleapis.com/b", "https://example.com/o", "x"]
        {
            assert_eq!(place(address).err().map(|e| e.kind()), Some(Kind::Usage), "{address}");
        }
    }
}
