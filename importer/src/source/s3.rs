//! S3 sources, by the AWS SDK for requests and signatures and by our own client for connections.
//!
//! The SDK's retries, timeouts and connector are off: [`remote`] tries again from the reader's own offset, and the
//! connector here goes through the same trust and proxies as every other source. Buckets are addressed by path, as
//! stores other than AWS often know nothing else. Every read is conditional on the first ETag.
//!
//! [`remote`]: super::remote

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectError;
use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use rustls::ClientConfig;
use url::Url;

use super::blocking::Net;
use super::http::{USER_AGENT, certificate_problem, not_tls};
use super::remote::{self, Changed, Failure, Mark, Part, Reach, Remote, RemoteSource, Want};
use super::retry::Cause;
use super::tls::{self, Proxies};
use crate::error::Error;

/// Object and options.
#[derive(Clone)]
pub struct Options {
    /// `http[s]://host[:port]/bucket/key`, `https://bucket.s3.region.amazonaws.com/key` or `s3://bucket/key`.
    pub url: String,
    /// Key and secret; without them requests are not signed.
    pub keys: Option<(String, String)>,
    /// The region to sign for, if the host's name does not contain it.
    pub region: Option<String>,
    /// How the server is reached.
    pub reach: Reach,
}

impl Options {
    /// The defaults for `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), keys: None, region: None, reach: Reach::default() }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("signed", &self.keys.is_some()).finish_non_exhaustive()
    }
}

/// Opens by asking for the first byte.
///
/// # Errors
/// [`crate::Kind::Usage`] for an address that names no object, [`crate::Kind::Connect`] when the store cannot be reached or
/// refuses, [`crate::Kind::Stopped`].
pub fn open(net: &Net, options: Options) -> Result<RemoteSource, Error> {
    let reach = options.reach.clone();
    let place = Place::parse(&options.url, options.region)?;
    let s3 = S3 {
        name: format!("{}/{}/{}", place.endpoint, place.bucket, place.key),
        place,
        keys: options.keys,
        tls: tls::client_config(&options.reach.trust)?,
        proxies: options.reach.proxies,
        etag: Mutex::default(),
    };
    RemoteSource::open(net, s3, reach)
}

/// Where an object is.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    endpoint: String,
    region: String,
    bucket: String,
    key: String,
}

impl Place {
    fn parse(address: &str, region: Option<String>) -> Result<Self, Error> {
        let bad = || {
            Error::usage("the source's address is not of the form https://host/bucket/key or s3://bucket/key")
        };
        let url = Url::parse(address.trim()).map_err(|_| bad())?;
        let host = url.host_str().ok_or_else(bad)?.to_owned();
        let path = super::http::percent_decoded(url.path().trim_start_matches('/'));
        let aws = host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn");
        let (scheme, bare_bucket) = match url.scheme() {
            "http" => ("http", false),
            "https" => ("https", false),
            // `s3://host/bucket/key` is what the stock importer took; a bucket's name has no port.
            "s3" => ("https", !aws && url.port().is_none()),
            _ => return Err(bad()),
        };
        let found = aws.then(|| region_of(&host)).flatten();
        let given_region = region.or(found).unwrap_or_else(|| "us-east-1".to_owned());
        let (endpoint, bucket, key) = if bare_bucket {
            (format!("https://s3.{given_region}.amazonaws.com"), host, path)
        } else if let Some((bucket, rest)) = aws.then(|| virtual_host(&host)).flatten() {
            (format!("{scheme}://{rest}"), bucket, path)
        } else {
            let (bucket, key) = path.split_once('/').ok_or_else(bad)?;
            let port = url.port().map_or(String::new(), |port| format!(":{port}"));
            (format!("{scheme}://{host}{port}"), bucket.to_owned(), key.to_owned())
        };
        if bucket.is_empty() || key.is_empty() {
            return Err(bad());
        }
        Ok(Self { endpoint, region: given_region, bucket, key })
    }
}

/// `s3.eu-west-1.amazonaws.com`, `s3-us-west-2.amazonaws.com`, `s3.dualstack.…`: the label after s3.
fn region_of(host: &str) -> Option<String> {
    let labels: Vec<&str> = host.split('.').collect();
    let at = labels.iter().position(|l| *l == "s3" || l.starts_with("s3-"))?;
    let region = match labels[at].strip_prefix("s3-") {
        Some(region) => region,
        None => labels.iter().skip(at + 1).find(|l| **l != "dualstack")?,
    };
    // `s3.amazonaws.com` is the first region.
    (region != "amazonaws" && region.contains('-')).then(|| region.to_owned())
}

/// `bucket.s3.…amazonaws.com` as bucket and the rest.
fn virtual_host(host: &str) -> Option<(String, String)> {
    let at = host.rfind(".s3.").or_else(|| host.rfind(".s3-"))?;
    let (bucket, rest) = host.split_at(at);
    (!bucket.is_empty()).then(|| (bucket.to_owned(), rest[1..].to_owned()))
}

struct S3 {
    name: String,
    place: Place,
    keys: Option<(String, String)>,
    tls: ClientConfig,
    proxies: Proxies,
    etag: Mutex<Option<String>>,
}

impl Remote for S3 {
    type Client = Client;

    fn name(&self) -> &str {
        &self.name
    }

    fn remember(&self, mark: &Mark) {
        *self.etag.lock().unwrap_or_else(PoisonError::into_inner) = mark.strong().map(str::to_owned);
    }

    fn client(&self) -> Result<Client, Error> {
        let over = Over(tls::client(&self.tls, &self.proxies, USER_AGENT)?);
        let connector = SharedHttpConnector::new(over);
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(self.place.region.clone()))
            .endpoint_url(&self.place.endpoint)
            .force_path_style(true)
            .http_client(http_client_fn(move |_, _| connector.clone()))
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .disable_s3_express_session_auth(true);
        let config = match &self.keys {
            Some((key, secret)) => {
                config.credentials_provider(Credentials::new(key, secret, None, None, "importer"))
            }
            None => config.allow_no_auth(),
        };
        Ok(Client::from_conf(config.build()))
    }

    async fn get(&self, client: &Client, want: Want) -> Result<Part, Failure> {
        let mut request = client.get_object().bucket(&self.place.bucket).key(&self.place.key);
        if want.ranges {
            request = request.range(match want.end {
                Some(end) => format!("bytes={}-{}", want.from, end.saturating_sub(1)),
                None => format!("bytes={}-", want.from),
            });
        }
        let etag = self.etag.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = request.set_if_match(etag).send().await.map_err(|e| self.failed(e, want))?;
        let mark = Mark {
            etag: answer.e_tag().map(str::to_owned),
            modified: answer.last_modified().map(ToString::to_string),
        };
        let length = answer.content_length().and_then(|length| u64::try_from(length).ok());
        let range = answer.content_range().map(str::to_owned);
        let body = body(answer.body);
        let Some(range) = range else {
            return Ok(Part { start: 0, end: length, total: length, whole: true, mark, body });
        };
        let range = super::http::content_range(&range)
            .filter(|range| range.start == want.from && want.end.is_none_or(|end| range.end <= end));
        let Some(range) = range else {
            return Err(Failure::NoRanges("the server sends other bytes than asked for".to_owned()));
        };
        Ok(Part { start: range.start, end: Some(range.end), total: range.total, whole: false, mark, body })
    }
}

impl S3 {
    fn failed(&self, error: SdkError<GetObjectError, HttpResponse>, want: Want) -> Failure {
        let name = &self.name;
        let Some(response) = error.raw_response() else {
            let certificate = certificate_problem(&error);
            let (cause, what) = if certificate {
                (Cause::Final, format!("{name} is not trusted; give its CA certificate"))
            } else if matches!(error, SdkError::ConstructionFailure(_)) {
                (Cause::Final, format!("{name} cannot be asked for"))
            } else if not_tls(&error) {
                (Cause::Final, format!("the server of {name} does not speak TLS: is it http://?"))
            } else {
                let through = self.proxies.through(&self.place.endpoint);
                (Cause::Network, format!("no answer for {name}{through}"))
            };
            return Failure::Failed(cause, Error::connect(what, error));
        };
        let status = response.status().as_u16();
        let right_region = response.headers().get("x-amz-bucket-region").map(str::to_owned);
        let code = error.code().unwrap_or("no code").to_owned();
        let cause = match status {
            412 => return Failure::Changed(Changed::new(format!("{name} has another ETag"))),
            416 if want.ranges => {
                return Failure::NoRanges(format!("asked for a range the server answered {status} {code}"));
            }
            408 | 429 | 503 => Cause::Busy(None),
            500.. => Cause::Server,
            200..=299 => Cause::Server,
            _ => Cause::Final,
        };
        let hint = match (status, right_region) {
            (301 | 307 | 400, Some(region)) => format!(": the bucket is in region {region}; name that host"),
            (403, _) if self.keys.is_none() => ": give a key and a secret".to_owned(),
            (403, _) => ": it forbids reading this with the key given".to_owned(),
            (404, _) => ": the bucket has no object of that name, or does not exist".to_owned(),
            _ => String::new(),
        };
        Failure::Failed(cause, Error::connect(format!("{name} answered {status} {code}{hint}"), error))
    }
}

fn body(stream: ByteStream) -> remote::Body {
    Box::pin(futures_util::stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((chunk.map_err(|e| Box::new(e) as remote::BoxError), stream))
    }))
}

/// The SDK's requests over our client.
#[derive(Debug)]
struct Over(reqwest::Client);

impl HttpConnector for Over {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.0.clone();
        HttpConnectorFuture::new(async move {
            let user = |e: Box<dyn StdError + Send + Sync>| ConnectorError::user(e);
            let request = request.try_into_http1x().map_err(|e| user(e.into()))?;
            // Only reads are sent: there is never a body.
            let request = request.map(|_| reqwest::Body::default());
            let request = reqwest::Request::try_from(request).map_err(|e| user(e.without_url().into()))?;
            let response = client.execute(request).await.map_err(|e| {
                let timeout = e.is_timeout();
                let error = e.without_url().into();
                if timeout { ConnectorError::timeout(error) } else { ConnectorError::io(error) }
            })?;
            let response = http::Response::<reqwest::Body>::from(response).map(SdkBody::from_body_1_x);
            HttpResponse::try_from(response).map_err(|e| ConnectorError::other(e.into(), None))
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
            ("https://s3.eu-west-1.amazonaws.com/b/a/k.img", "https://s3.eu-west-1.amazonaws.com", "eu-west-1", "b", "a/k.img"),
            ("https://s3-us-west-2.amazonaws.com/b/k",       "https://s3-us-west-2.amazonaws.com", "us-west-2", "b", "k"),
            ("https://s3.dualstack.eu-north-1.amazonaws.com/b/k", "https://s3.dualstack.eu-north-1.amazonaws.com", "eu-north-1", "b", "k"),
            ("https://s3.amazonaws.com/b/k",                 "https://s3.amazonaws.com", "us-east-1", "b", "k"),
            ("https://my.b.s3.eu-west-1.amazonaws.com/a/k",  "https://s3.eu-west-1.amazonaws.com", "eu-west-1", "my.b", "a/k"),
            ("http://minio.example:9000/b/a%20b",            "http://minio.example:9000", "us-east-1", "b", "a b"),
            ("s3://bucket/dir/k",                            "https://s3.us-east-1.amazonaws.com", "us-east-1", "bucket", "dir/k"),
            ("s3://s3.eu-west-1.amazonaws.com/b/k",          "https://s3.eu-west-1.amazonaws.com", "eu-west-1", "b", "k"),
        ];
        for (address, endpoint, region, bucket, key) in table {
            let place = Place::parse(address, None).unwrap();
            assert_eq!(
                (&*place.endpoint, &*place.region, &*place.bucket, &*place.key),
                (endpoint, region, bucket, key),
                "{address}"
            );
        }
        let given = Place::parse("s3://bucket/k", Some("eu-west-3".to_owned())).unwrap();
        assert_eq!(given.endpoint, "https://s3.eu-west-3.amazonaws.com");
        for address in
            ["https://host/bucket", "https://host/bucket/", "https://host/", "ftp://h/b/k", "b/k", "s3://b"]
        {
            assert_eq!(
                Place::parse(address, None).err().map(|e| e.kind()),
                Some(crate::Kind::Usage),
                "{address}"
            );
        }
    }
}
