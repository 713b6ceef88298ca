//! `uploadproxy push`: sends a file to a claim through a proxy, and goes on where it was when the connection breaks
//! (draft-ietf-httpbis-resumable-upload). Not here: the file's bytes on their way (`serve::body`), how that is
//! shown (`progress`).
//!
//! ```text
//!             POST ────────────── 200 ─────────────────────────────────────────────► done
//!   start ──►  │ 104: where to go on                                                   ▲
//!              └─ broken ─► HEAD: how far? ─► PATCH from there ─► 200 ──────────────────┤
//!                             ▲                 │ broken                                │
//!                             └─────────────────┘        all of it there: wait ─────────┘
//! ```

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::upload::resume::{COMPLETE_HEADER, OFFSET_HEADER, PARTIAL, VERSION, VERSION_HEADER};
use api::upload::{RESOURCES, Way};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, LOCATION};
use http::request::Builder;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Either, Empty, Limited};
use rustls::ClientConfig;
use serve::body::Made;

use super::args::Push;
use super::cluster::{Kubernetes, Reach};
use super::error::{Error, Kind, Result};
use super::peer::{dial, push_tls, roots, secure};
use super::progress::Progress;

/// How long is waited before the next try, and how often is looked whether a server has done its work.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 << 10;

/// Uploads.
///
/// # Errors
/// When it does not come to its end.
pub(crate) async fn push(args: Push) -> Result<()> {
    let (file, length) = open(&args)?;
    let site = Site::of(&args).await?;
    let progress = Progress::start(length);
    let mut session = Session { location: None, fruitless: 0, furthest: 0 };
    loop {
        match site.attempt(&mut session, &file, length, &progress).await {
            Ok(Turn::Done) => break,
            Ok(Turn::Again(why)) => {
                // A try that brought something is no failure.
                session.fruitless =
                    if progress.furthest() > session.furthest { 0 } else { session.fruitless + 1 };
                session.furthest = progress.furthest();
                if session.fruitless > args.retries {
                    return Err(why);
                }
                tracing::warn!(why = why.chain(), "trying again");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
    progress.done();
    tracing::info!(file = %args.file.display(), pvc = %args.pvc, bytes = length, "uploaded");
    Ok(())
}

fn open(args: &Push) -> Result<(Arc<File>, u64)> {
    let unread = |e| Error::with(Kind::Usage, format!("cannot read {}", args.file.display()), e);
    let mut file = File::open(&args.file).map_err(unread)?;
    let kind = file.metadata().map_err(unread)?.file_type();
    let length = file.seek(SeekFrom::End(0)).map_err(unread)?;
    if kind.is_dir() || length == 0 {
        return Err(Error::new(Kind::Usage, format!("{} holds nothing to upload", args.file.display())));
    }
    Ok((Arc::new(file), length))
}

/// What is to be uploaded to, and how it is spoken to.
struct Site {
    host: String,
    port: u16,
    tls: Arc<ClientConfig>,
    tokens: Tokens,
}

enum Tokens {
    Given(String),
    Asked(Kubernetes, api::upload::token::Target),
}

/// Where an upload is.
struct Session {
    /// The path by which it can be gone on with.
    location: Option<String>,
    /// Tries since the last one that brought something.
    fruitless: u32,
    furthest: u64,
}

/// How a try ended.
enum Turn {
    Done,
    /// It may be worth another one.
    Again(Error),
}

impl Site {
    async fn of(args: &Push) -> Result<Self> {
        let reach = Reach { kubeconfig: args.kubeconfig.clone(), server: None };
        let cluster = match (&args.token, &args.url) {
            (Some(_), Some(_)) => None,
            (None, _) | (_, None) => Some(Kubernetes::new(&reach, "").await?),
        };
        let url = match (&args.url, &cluster) {
            (Some(url), _) => url.clone(),
            (None, Some(cluster)) => cluster.proxy_url().await?,
            (None, None) => return Err(Error::new(Kind::Usage, "--url is missing")),
        };
        let (host, port) = host_and_port(&url)?;
        let tokens = match (&args.token, cluster) {
            (Some(token), _) => Tokens::Given(token.clone()),
            (None, Some(cluster)) => Tokens::Asked(cluster, args.pvc.clone()),
            (None, None) => return Err(Error::new(Kind::Usage, "--token is missing")),
        };
        Ok(Self { host, port, tls: trust(args)?, tokens })
    }

    async fn token(&self) -> Result<String> {
        match &self.tokens {
            Tokens::Given(token) => Ok(token.clone()),
            Tokens::Asked(cluster, target) => cluster.token(target).await,
        }
    }

    /// Begins the upload, or goes on with it.
    async fn attempt(
        &self,
        session: &mut Session,
        file: &Arc<File>,
        length: u64,
        progress: &Progress,
    ) -> Result<Turn> {
        let token = match self.token().await {
            Ok(token) => token,
            Err(error) => return Ok(Turn::Again(error)),
        };
        let (method, path, offset) = match session.location.clone() {
            None => (Method::POST, format!("/v1beta1/{}", Way::Sync.word()), 0),
            Some(path) => match self.offset(&path, &token).await? {
                Found::At(offset) if offset <= length => (Method::PATCH, path, offset),
                Found::At(_) => {
                    return Err(Error::new(Kind::Refused, "the server has more than the file holds"));
                }
                Found::Whole => {
                    return Ok(Turn::Again(Error::new(Kind::Refused, "the server is not done yet")));
                }
                Found::Done => return filled(progress, length),
                Found::Lost(why) => {
                    session.location = None;
                    return Ok(Turn::Again(why));
                }
                Found::Unknown(why) => return Ok(Turn::Again(why)),
            },
        };
        let mut request = self
            .request(&method, &path, &token)
            .header(VERSION_HEADER, VERSION)
            .header(COMPLETE_HEADER, "?1");
        request = match method {
            Method::PATCH => request.header(OFFSET_HEADER, offset).header(CONTENT_TYPE, PARTIAL),
            _ => request.header(CONTENT_TYPE, "application/octet-stream"),
        };
        let body = progress.body(file.clone(), offset..length);
        let mut request = request.body(Either::Left(body)).map_err(nonsense)?;
        let told = Arc::new(Mutex::new(None));
        let hear = told.clone();
        hyper::ext::on_informational(&mut request, move |answer| {
            if let Some(path) = location(answer.headers()) {
                *hear.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
            }
        });
        let answer = self.send(request).await;
        if let Some(path) = told.lock().unwrap_or_else(PoisonError::into_inner).take() {
            session.location = Some(path);
        }
        match answer {
            Err(error) => Ok(Turn::Again(error)),
            Ok(answer) if answer.is_finished() && session.location.is_some() => filled(progress, length),
            Ok(answer) => self.judge(session, &answer),
        }
    }

    /// What an answer to a POST or PATCH means.
    fn judge(&self, session: &mut Session, answer: &Answer) -> Result<Turn> {
        let refused = Error::new(Kind::Refused, format!("the server answers {}", answer.words()));
        match answer.status {
            StatusCode::OK => Ok(Turn::Done),
            // The token may have been too old; of one that was given there is no other.
            StatusCode::UNAUTHORIZED => match self.tokens {
                Tokens::Given(_) => Err(refused),
                Tokens::Asked(..) => Ok(Turn::Again(refused)),
            },
            // Not ready, busy, away.
            StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::BAD_GATEWAY
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS => match answer.is_finished() {
                true => Err(refused),
                false => Ok(Turn::Again(refused)),
            },
            // It got more or less than we think, or nothing is left of it.
            StatusCode::CONFLICT if session.location.is_some() => Ok(Turn::Again(refused)),
            StatusCode::NOT_FOUND if session.location.is_some() => {
                session.location = None;
                Ok(Turn::Again(refused))
            }
            _ => Err(refused),
        }
    }

    /// How far the upload at `path` is.
    async fn offset(&self, path: &str, token: &str) -> Result<Found> {
        let request = self.request(&Method::HEAD, path, token).header(VERSION_HEADER, VERSION);
        let answer = match self.send(request.body(Either::Right(Empty::new())).map_err(nonsense)?).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Found::Unknown(error)),
        };
        if answer.status.is_success() {
            let text = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
            let offset = text(OFFSET_HEADER).and_then(|offset| offset.parse().ok());
            return Ok(match (text(COMPLETE_HEADER), offset) {
                (Some("?1"), _) => Found::Whole,
                (_, Some(offset)) => Found::At(offset),
                (_, None) => {
                    Found::Unknown(Error::new(Kind::Refused, "the server does not say how far it is"))
                }
            });
        }
        // An answer to HEAD has no words: the same is asked again, of the proxy.
        let path = format!("/v1beta1/{}", Way::Sync.word());
        let request = self.request(&Method::GET, &path, token);
        let why = match self.send(request.body(Either::Right(Empty::new())).map_err(nonsense)?).await {
            Ok(found) if found.is_finished() => return Ok(Found::Done),
            Ok(found) => Error::new(
                Kind::Refused,
                format!("the server answers {} and {}", answer.status, found.words()),
            ),
            Err(error) => error,
        };
        Ok(match answer.status {
            StatusCode::NOT_FOUND => Found::Lost(why),
            StatusCode::UNAUTHORIZED if matches!(self.tokens, Tokens::Given(_)) => return Err(why),
            _ => Found::Unknown(why),
        })
    }

    fn request(&self, method: &Method, path: &str, token: &str) -> Builder {
        let host = match self.port {
            443 => self.host.clone(),
            port => format!("{}:{port}", self.host),
        };
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(AUTHORIZATION, format!("Bearer {token}"))
    }

    /// Sends a request over a connection of its own.
    async fn send(&self, request: Request<Either<Made, Empty<Bytes>>>) -> Result<Answer> {
        let name = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = secure(dial((name, self.port)).await?, name, self.tls.clone()).await?;
        let broke = |e| Error::with(Kind::Unreachable, "the connection broke", e);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(broke)?;
        let connection = tokio::spawn(connection);
        let answered = async {
            let (head, body) = sender.send_request(request).await.map_err(broke)?.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await;
            // Words that do not come whole are not worth another try.
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                text: String::from_utf8_lossy(&body).trim().to_owned(),
            })
        };
        let answered = answered.await;
        connection.abort();
        answered
    }
}

/// The volume is filled, and whoever filled it has the answer: who has not sent everything was somebody else.
fn filled(progress: &Progress, length: u64) -> Result<Turn> {
    match progress.furthest() >= length {
        true => Ok(Turn::Done),
        false => Err(Error::new(Kind::Refused, "the volume was filled by somebody else meanwhile")),
    }
}

/// How far an upload is.
enum Found {
    At(u64),
    /// The server has all bytes, and works.
    Whole,
    /// The volume is filled.
    Done,
    /// There is nothing to go on with.
    Lost(Error),
    /// It may be told later.
    Unknown(Error),
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn words(&self) -> String {
        format!("{}: {}", self.status.as_u16(), self.text)
    }

    /// The volume is filled already.
    fn is_finished(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && self.text.contains("already finished uploading")
    }
}

fn nonsense(error: http::Error) -> Error {
    Error::with(Kind::Usage, "the token or the URL cannot be sent", error)
}

/// The path of an upload that an answer tells; of our paths only, since the token goes there.
fn location(headers: &HeaderMap) -> Option<String> {
    let path = headers.get(LOCATION)?.to_str().ok()?;
    path.starts_with(RESOURCES).then(|| path.to_owned())
}

/// Host and port of a URL, whose scheme may be missing.
fn host_and_port(url: &str) -> Result<(String, u16)> {
    let nonsense = || Error::new(Kind::Usage, format!("{url} is no URL of a proxy (https://HOST[:PORT])"));
    let whole = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
    let uri: http::Uri = whole.parse().map_err(|_| nonsense())?;
    match (uri.scheme_str(), uri.host(), uri.path()) {
        (Some("https"), Some(host), "/" | "") => Ok((host.to_owned(), uri.port_u16().unwrap_or(443))),
        _ => Err(nonsense()),
    }
}

/// Whom we believe.
fn trust(args: &Push) -> Result<Arc<ClientConfig>> {
    if args.insecure {
        return push_tls(None);
    }
    match &args.ca {
        Some(file) => {
            let pem = std::fs::read(file)
                .map_err(|e| Error::with(Kind::Usage, format!("cannot read {}", file.display()), e))?;
            push_tls(Some(roots(&pem)?))
        }
        None => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            push_tls(Some(roots))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_proxies() {
        for (url, expected) in [
            ("proxy.example.com", Some(("proxy.example.com", 443))),
            ("https://proxy:8443", Some(("proxy", 8443))),
            ("https://10.0.0.1:1/", Some(("10.0.0.1", 1))),
            ("[::1]:443", Some(("[::1]", 443))),
            ("http://proxy", None),
            ("https://proxy/path", None),
            ("https://", None),
            ("", None),
        ] {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(host_and_port(url).ok(), expected, "{url}");
        }
    }

    #[test]
    fn tokens_go_to_paths_of_uploads_only() {
        for (value, expected) in [
            ("/v1beta1/uploads/a", true),
            ("https://elsewhere/v1beta1/uploads/a", false),
            ("//elsewhere/v1beta1/uploads/a", false),
            ("/other", false),
        ] {
            let headers = HeaderMap::from_iter([(LOCATION, value.parse().unwrap())]);
            assert_eq!(location(&headers).is_some(), expected, "{value}");
        }
    }
}
