//! `docker://` sources: the disk in a container image on a registry.
//!
//! Names and documents are the oci-client crate's; requests are our own. The crate reads manifests and tokens of any length
//! into memory, hides the reason of a failed login, and cannot resume a blob where a connection broke. Here every request
//! goes through [`http`](super::http): one trust, one set of proxies, drops survived by ranges, tokens renewed whenever the
//! registry answers 401, and none sent to another host. A blob is named by its digest, so an entity tag that differs between
//! mirrors means nothing.
//!
//! Nothing is resumed by a later process: the digest holds for the whole blob only, and what an earlier process wrote
//! was never vouched for. Sources: OCI distribution-spec 1.1; distribution's "Token Authentication Specification"; the
//! file of credentials is containers-auth.json(5), docker's config.json and Kubernetes' .dockerconfigjson. Not here:
//! which file is the disk ([`layer`]), credential helpers (no program is started).

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use disk_image::Source;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use http::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, StatusCode};
use oci_client::Reference;
use rustls::ClientConfig;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use url::Url;

use super::blocking::Net;
use super::http::{self as web, Authorize, Header, Http, USER_AGENT, basic, redacted};
use super::layer::{self, Blobs, Disk};
use super::manifest::{self, DOCUMENT_MAX, Descriptor, Platform};
use super::remote::{self, Failure, Lane, Mark, Part, Reach, Remote, RemoteSource, Want};
use super::retry::Cause;
use super::tls;
use crate::error::{Error, Kind};

/// Accepted media types: images and indexes of them, not Docker's schema 1.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// Largest answer of a token server.
const TOKEN_MAX: usize = 1 << 20;
/// Largest file of credentials, as Kubernetes bounds a Secret.
const AUTH_FILE_MAX: u64 = 1 << 20;
/// How long an insecure registry may take to show whether it speaks TLS.
const PROBE: Duration = Duration::from_secs(10);

/// Image and options.
#[derive(Clone)]
pub struct Options {
    /// `docker://[host[:port]/]repository[:tag|@digest]`.
    pub image: String,
    /// For the login; counts only with a password.
    pub user: Option<String>,
    /// For the login.
    pub password: Option<String>,
    /// Credentials per registry, used when no user is given.
    pub auth_file: Option<PathBuf>,
    /// "architecture", "os/architecture" or "os/architecture/variant"; this machine's if `None`.
    pub platform: Option<String>,
    /// Largest window a compressed layer may declare, in bytes.
    pub window: u64,
    /// How the registry is reached. Insecure allows plain HTTP, too, where there is no TLS.
    pub reach: Reach,
}

impl Options {
    /// The defaults for `image`.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            user: None,
            password: None,
            auth_file: None,
            platform: None,
            window: 128 << 20,
            reach: Reach::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("user", &self.user.is_some()).finish_non_exhaustive()
    }
}

/// Opens the disk of an image on a registry.
///
/// # Errors
/// [`Kind::Usage`] for an invalid name, platform or file of credentials, [`Kind::Connect`] when the registry cannot be
/// reached or refuses, [`Kind::Refused`] when the image holds no disk, [`Kind::Digest`] when a part of it does not match its
/// digest, [`Kind::Stopped`].
pub fn open(net: &Net, options: &Options) -> Result<Disk, Error> {
    let image = reference(&options.image)?;
    let failed = |error: Error| {
        let plain = !options.reach.trust.insecure && web::not_tls(&error);
        let advice = if plain {
            " (a registry without TLS is reached with --insecure, in a pod INSECURE_TLS)"
        } else {
            ""
        };
        Error::with(error.kind(), format!("failed to pull image docker://{}{advice}", image.whole()), error)
    };
    pull(net, &image, options).map_err(failed)
}

/// The digest of the manifest, or of the index of manifests, that an image's name leads to.
///
/// # Errors
/// As [`open`].
pub(crate) fn digest(net: &Net, options: &Options) -> Result<String, Error> {
    let image = reference(&options.image)?;
    if let Some(digest) = image.digest() {
        return Ok(digest.to_owned());
    }
    let registry = Registry::new(net, &image, options)?;
    let bytes = registry.manifest(image.tag().unwrap_or("latest"))?;
    Ok(Sha256::digest(&bytes).iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

fn reference(text: &str) -> Result<Reference, Error> {
    let name = text.trim();
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    if !name.contains('/') && is_host(name) {
        return Err(Error::usage(
            "the image's name is that of a registry, without a repository on it: write docker://host[:port]/repository[:tag|@digest]",
        ));
    }
    name.parse().map_err(|_| {
        // The name is not repeated: it may contain a password.
        Error::usage(
            "the image's name is not of the form docker://host[:port]/repository[:tag|@digest]; a user and password \
             are given apart from it",
        )
    })
}

/// Whether a name without a slash is a host: Docker would take "127.0.0.1:5000" for a repository of its own registry,
/// with a tag.
fn is_host(name: &str) -> bool {
    let host = name.split([':', '@']).next().unwrap_or(name);
    host == "localhost" || host.contains('.') || name.starts_with('[')
}

fn pull(net: &Net, image: &Reference, options: &Options) -> Result<Disk, Error> {
    let platform = Platform::parse(options.platform.as_deref())?;
    let registry = Registry::new(net, image, options)?;
    let wanted = image.digest().or(image.tag()).unwrap_or("latest");
    let first = registry.manifest(wanted)?;
    if let Some(digest) = image.digest() {
        Descriptor::new(digest, 0)?.check(&first)?;
    }
    let chosen = manifest::resolve(&first, &platform, |descriptor| {
        let bytes = registry.manifest(&descriptor.digest)?;
        descriptor.check(&bytes)?;
        Ok(bytes)
    })?;
    let requested = options.platform.is_some().then_some(&platform);
    layer::find(&chosen, requested, &registry, &layer::limits(options.window), net.stop())
}

/// One repository of a registry.
struct Registry {
    net: Net,
    /// "https://host:port/v2/repository".
    base: String,
    tls: ClientConfig,
    reach: Reach,
    login: Arc<Login>,
}

impl Registry {
    fn new(net: &Net, image: &Reference, options: &Options) -> Result<Self, Error> {
        let user = match (&options.user, &options.password) {
            (Some(user), Some(password)) if !user.is_empty() && !password.is_empty() => {
                Some((user.clone(), password.clone()))
            }
            (Some(_) | None, Some(_) | None) => match &options.auth_file {
                Some(path) => AuthFile::read(path)?.find(image.registry(), image.repository())?,
                None => None,
            },
        };
        let tls = tls::client_config(&options.reach.trust)?;
        let host = image.resolve_registry();
        let scheme = if options.reach.trust.insecure { probe(net, host, &tls, options)? } else { "https" };
        let login = Login {
            tls: tls.clone(),
            reach: options.reach.clone(),
            user,
            scope: format!("repository:{}:pull", image.repository()),
            plain: scheme == "http",
            header: Mutex::default(),
        };
        Ok(Self {
            net: net.clone(),
            base: format!("{scheme}://{host}/v2/{}", image.repository()),
            tls,
            // A layer is read by one reader at a time, hashed in order.
            reach: Reach { connections: 1, ..options.reach.clone() },
            login: Arc::new(login),
        })
    }

    fn http(&self, path: &str, headers: Vec<Header>) -> Result<Http, Error> {
        let url = format!("{}/{path}", self.base);
        let options = web::Options { headers, reach: self.reach.clone(), ..web::Options::new(url) };
        Http::over(options, self.tls.clone(), Some(self.login.clone()))
    }

    /// A manifest or an index, by tag or digest.
    fn manifest(&self, name: &str) -> Result<Vec<u8>, Error> {
        let accept = Header { name: "Accept".to_owned(), value: ACCEPTED.to_owned(), secret: false };
        self.whole(self.http(&format!("manifests/{name}"), vec![accept])?)
    }

    /// All of a short answer.
    fn whole(&self, http: Http) -> Result<Vec<u8>, Error> {
        let shown = http.name().to_owned();
        let lane = Lane::new(&self.net, &http)?;
        let whole = Want { from: 0, end: None, ranges: false };
        let part = remote::first_of(&lane, &http, &self.reach, whole)?;
        let size = part.total;
        let object = RemoteSource::new(http, &self.net, self.reach.clone(), size, lane, part);
        let mut bytes = Vec::new();
        let failed = |e| Error::from(disk_image::Error::from_source(format!("cannot read {shown}"), e));
        let reader = object.open(0..u64::MAX).map_err(failed)?;
        reader.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > DOCUMENT_MAX {
            return Err(Error::new(Kind::Refused, format!("{shown} is longer than {DOCUMENT_MAX} bytes")));
        }
        Ok(bytes)
    }
}

impl Blobs for Registry {
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        let bytes = self.whole(self.http(&format!("blobs/{}", descriptor.digest), Vec::new())?)?;
        descriptor.check(&bytes)?;
        Ok(bytes)
    }

    fn blob(&self, descriptor: &Descriptor) -> Result<Arc<dyn Source>, Error> {
        let http = self.http(&format!("blobs/{}", descriptor.digest), Vec::new())?;
        let mark = Mark { etag: Some(format!("\"{}\"", descriptor.digest)), modified: None };
        let blob = Blob { http, mark, size: descriptor.size };
        let lane = Lane::new(&self.net, &blob)?;
        let part = remote::first(&lane, &blob, &self.reach)?;
        let size = Some(descriptor.size);
        Ok(Arc::new(RemoteSource::new(blob, &self.net, self.reach.clone(), size, lane, part)))
    }
}

/// Whether an insecure registry speaks TLS. When neither way works the first real request reports why.
fn probe(net: &Net, host: &str, tls: &ClientConfig, options: &Options) -> Result<&'static str, Error> {
    let failed = |e| Error::connect("cannot set up a connection", e);
    let lane = net.lane().map_err(failed)?;
    let client = tls::client(tls, &options.reach.proxies, USER_AGENT)?;
    for scheme in ["https", "http"] {
        let request = client.get(format!("{scheme}://{host}/v2/")).send();
        let answer = lane
            .block_on(async { tokio::time::timeout(PROBE, request).await })
            .map_err(|e| Error::with(Kind::Stopped, "stopped on request", e))?;
        if let Ok(Ok(_)) = answer {
            if scheme == "http" {
                tracing::warn!(host, "the registry is reached without TLS");
            }
            return Ok(scheme);
        }
    }
    Ok("https")
}

/// A blob; its digest identifies it, regardless of the server's version marks.
struct Blob {
    http: Http,
    mark: Mark,
    size: u64,
}

impl Remote for Blob {
    type Client = reqwest::Client;

    fn name(&self) -> &str {
        self.http.name()
    }

    /// Nothing to learn: its digest is its mark.
    fn remember(&self, _: &Mark) {}

    fn client(&self) -> Result<reqwest::Client, Error> {
        self.http.client()
    }

    async fn get(&self, client: &reqwest::Client, want: Want) -> Result<Part, Failure> {
        let part = self.http.get(client, want).await?;
        match part.total {
            Some(total) if total != self.size => {
                let what =
                    format!("{} has {total} bytes, but its manifest declares {}", self.name(), self.size);
                Err(Failure::Failed(Cause::Final, Error::new(Kind::Digest, what)))
            }
            Some(_) | None => Ok(Part { mark: self.mark.clone(), ..part }),
        }
    }
}

/// How to be let in: without anything, by basic authentication or by a token, as the registry asks.
struct Login {
    tls: ClientConfig,
    reach: Reach,
    user: Option<(String, String)>,
    scope: String,
    /// The registry is reached without TLS, as configured.
    plain: bool,
    header: Mutex<Option<HeaderValue>>,
}

impl Authorize for Login {
    fn has_user(&self) -> bool {
        self.user.is_some()
    }

    fn header(&self) -> Option<HeaderValue> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn renew<'a>(
        &'a self,
        client: &'a reqwest::Client,
        sent: Option<HeaderValue>,
        challenge: HeaderMap,
    ) -> LocalBoxFuture<'a, Result<bool, Failure>> {
        Box::pin(async move {
            let now = self.header();
            if now != sent && now.is_some() {
                // Another connection got the same answer and has a new one.
                return Ok(true);
            }
            let Some(new) = self.answer(client, &challenge).await? else { return Ok(false) };
            let other = now.as_ref() != Some(&new);
            *self.header.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
            Ok(other)
        })
    }
}

impl Login {
    /// The header that answers a challenge; a token is preferred to the password itself.
    async fn answer(
        &self,
        client: &reqwest::Client,
        challenge: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Failure> {
        let mut basic_will_do = false;
        for value in challenge.get_all(WWW_AUTHENTICATE) {
            let challenges = value.to_str().ok().and_then(|text| http_auth::parse_challenges(text).ok());
            for challenge in challenges.unwrap_or_default() {
                if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    let param = |name: &str| {
                        let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                        found.map(|(_, value)| value.to_unescaped())
                    };
                    let realm = param("realm").unwrap_or_default();
                    let scope = param("scope").unwrap_or_else(|| self.scope.clone());
                    return self.token(client, &realm, param("service"), &scope).await.map(Some);
                }
                basic_will_do |= challenge.scheme.eq_ignore_ascii_case("basic");
            }
        }
        match &self.user {
            Some((user, password)) if basic_will_do => {
                basic(user, password).map(Some).map_err(|error| Failure::Failed(Cause::Final, error))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// A token of the server at `realm`.
    async fn token(
        &self,
        client: &reqwest::Client,
        realm: &str,
        service: Option<String>,
        scope: &str,
    ) -> Result<HeaderValue, Failure> {
        let give_up = |error| Failure::Failed(Cause::Final, error);
        let bad = |what: &str| give_up(Error::new(Kind::Connect, what.to_owned()));
        let mut url = Url::parse(realm).map_err(|_| {
            bad("the registry names a token server by an invalid address; check the image's registry")
        })?;
        if self.user.is_some() && url.scheme() != "https" && !self.plain {
            return Err(bad(
                "the registry's token server has no TLS, and the password is not sent there; use a registry with TLS or no credentials",
            ));
        }
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = &service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", scope);
            if let Some((user, _)) = &self.user {
                query.append_pair("account", user);
            }
        }
        let (user, password) = self.user.clone().unzip();
        let options =
            web::Options { user, password, reach: self.reach.clone(), ..web::Options::new(url.as_str()) };
        let server = Http::over(options, self.tls.clone(), None).map_err(give_up)?;
        let response = server.send(client, &Method::GET, &HeaderMap::new()).await?;
        if response.status() != StatusCode::OK {
            return Err(server.status(&response));
        }
        let broken = |what: String| Failure::Failed(Cause::Server, Error::new(Kind::Connect, what));
        let mut body = response.bytes_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|e| {
                let what = format!("the answer of {} broke off", redacted(&url));
                Failure::Failed(Cause::Network, Error::connect(what, e.without_url()))
            })?;
            bytes.extend_from_slice(&chunk);
            if bytes.len() > TOKEN_MAX {
                return Err(broken(format!(
                    "{} gives a token of more than {TOKEN_MAX} bytes",
                    redacted(&url)
                )));
            }
        }
        token_header(&bytes).ok_or_else(|| broken(format!("{} gives no token", redacted(&url))))
    }
}

/// The header for a token server's answer. Its own error would quote the token.
fn token_header(answer: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let Answer { token, access_token } = serde_json::from_slice(answer).ok()?;
    let token = token.or(access_token).filter(|token| !token.is_empty())?;
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Credentials per registry.
#[derive(Deserialize)]
struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, AuthEntry>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl AuthFile {
    fn read(path: &Path) -> Result<Self, Error> {
        let failed = |e| Error::with(Kind::Usage, format!("cannot read {}", path.display()), e);
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(AUTH_FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        // The parser's own words would quote what it stumbles over.
        serde_json::from_slice(&bytes).map_err(|e| {
            Error::usage(format!(
                "{} is not a file of registry credentials (Docker's config.json): invalid at line {}",
                path.display(),
                e.line()
            ))
        })
    }

    /// User and password for a repository: the entry with the longest path that fits, an exact host before a pattern.
    fn find(&self, registry: &str, repository: &str) -> Result<Option<(String, String)>, Error> {
        let best = self
            .auths
            .iter()
            .filter_map(|(key, entry)| Some((fit(key, registry, repository)?, entry)))
            .max_by_key(|(fit, _)| *fit);
        let Some((_, entry)) = best else {
            if self.store.is_some() || self.helpers.contains_key(registry) {
                tracing::warn!(
                    registry,
                    "the file of credentials names a credential helper, which is not supported; give a user and password"
                );
            }
            return Ok(None);
        };
        entry.user(registry)
    }
}

impl AuthEntry {
    fn user(&self, registry: &str) -> Result<Option<(String, String)>, Error> {
        if let (Some(user), Some(password)) = (&self.username, &self.password) {
            return Ok(Some((user.clone(), password.clone())));
        }
        let bad = |what: &str| Error::usage(format!("the credentials for {registry} {what}"));
        match (&self.auth, &self.identitytoken) {
            (Some(auth), None) if !auth.is_empty() => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(auth.trim());
                let text = decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok());
                let text = text.ok_or_else(|| bad("are not user:password in base64"))?;
                let (user, password) =
                    text.split_once(':').ok_or_else(|| bad("are not user:password in base64"))?;
                Ok(Some((user.to_owned(), password.trim_end_matches('\0').to_owned())))
            }
            (_, Some(_)) => Err(bad("are an identity token; give a user and a password or access token")),
            (Some(_) | None, None) => Ok(None),
        }
    }
}

/// How well a key of an [`AuthFile`] fits: `None` not at all, else length of its path, and whether its host is exact.
/// Keys are "host", "host/path", or an address; "*.host" stands for one label more.
fn fit(key: &str, registry: &str, repository: &str) -> Option<(usize, bool)> {
    let key = key.split_once("://").map_or(key, |(_, rest)| rest).trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    // docker writes the protocol's version after a host.
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    let hub = |host: &str| matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io");
    let exact = host.eq_ignore_ascii_case(registry) || (hub(host) && hub(registry));
    let pattern = host.strip_prefix("*.").is_some_and(|rest| {
        registry.split_once('.').is_some_and(|(_, domain)| domain.eq_ignore_ascii_case(rest))
    });
    let below = path.is_empty()
        || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    ((exact || pattern) && below).then_some((path.len(), exact))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        #[rustfmt::skip]
        let table = [
            ("docker://quay.io/containerdisks/fedora:latest", "quay.io", "containerdisks/fedora", Some("latest")),
            ("docker://localhost:5000/a", "localhost:5000", "a", Some("latest")),
            ("docker://fedora", "docker.io", "library/fedora", Some("latest")),
            ("Docker://quay.io/a/b:1", "quay.io", "a/b", Some("1")),
        ];
        for (text, registry, repository, tag) in table {
            let found = reference(text).unwrap();
            assert_eq!(
                (found.registry(), found.repository(), found.tag()),
                (registry, repository, tag),
                "{text}"
            );
        }
        for text in
            ["docker://", "docker://user:hunter2@host/a", "docker://host/A B", "docker://host/a@sha256:0"]
        {
            let error = reference(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn credentials_are_found_by_registry_and_path() {
        let auth = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let text = format!(
            r#"{{"auths":{{
                "quay.io":{{"auth":"{}"}},
                "quay.io/team":{{"auth":"{}"}},
                "https://index.docker.io/v1/":{{"username":"hub","password":"p"}},
                "*.azurecr.io":{{"auth":"{}"}},
                "own.azurecr.io":{{"auth":"{}"}},
                "empty.io":{{}},
                "token.io":{{"auth":"{}","identitytoken":"hunter2"}},
                "bad.io":{{"auth":"hunter2!"}}
            }},"credsStore":"desktop"}}"#,
            auth("all:a:b"),
            auth("team:t"),
            auth("any:x"),
            auth("own:y"),
            auth("u:"),
        );
        let file: AuthFile = serde_json::from_str(&text).unwrap();
        #[rustfmt::skip]
        let table = [
            ("quay.io", "other/x", Some(("all", "a:b"))),
            ("quay.io", "team/x", Some(("team", "t"))),
            ("quay.io", "teams/x", Some(("all", "a:b"))),
            ("docker.io", "library/x", Some(("hub", "p"))),
            ("a.azurecr.io", "x", Some(("any", "x"))),
            ("own.azurecr.io", "x", Some(("own", "y"))),
            ("a.b.azurecr.io", "x", None),
            ("empty.io", "x", None),
            ("else.io", "x", None),
        ];
        for (registry, repository, want) in table {
            let want = want.map(|(user, password)| (user.to_owned(), password.to_owned()));
            assert_eq!(file.find(registry, repository).unwrap(), want, "{registry}/{repository}");
        }
        for registry in ["token.io", "bad.io"] {
            let error = file.find(registry, "x").unwrap_err();
            assert!(error.kind() == Kind::Usage && !error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, r#"{"auths":"hunter2"}"#).unwrap();
        let error = AuthFile::read(&path).err().unwrap();
        assert!(!crate::error::chain(&error).contains("hunter2"), "{error}");
        let options =
            Options { password: Some("hunter2".to_owned()), ..Options::new("docker://u:hunter2@h/x") };
        assert!(!format!("{options:?}").contains("hunter2"));
        assert!(token_header(br#"{"token":"a b"}"#).unwrap().is_sensitive());
        assert!(token_header(br#"{"token":"a\nb"}"#).is_none());
        assert_eq!(token_header(br#"{"access_token":"t"}"#).unwrap(), "Bearer t");
        assert!(token_header(br#"{"token":""}"#).is_none());
    }
}
