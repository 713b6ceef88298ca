//! Requests over TLS: connections and their limits, who the client is, and what each request leads to. Not here: what an
//! answer looks like (`answer`), uploads.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::names;
use api::upload::resume::{VERSION, VERSION_HEADER};
use api::upload::{CONTENT_TYPE_HEADER, CloneOf, PROGRESS_HEADER, RESOURCES, Way};
use disk_image::volume::{Error, Kind};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderName, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serve::metrics::{Kind as Metric, Page};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, Answer, Problem, Refusal};
use crate::content::Shape;
use crate::door::{Closed, Door};
use crate::feed::Fed;
use crate::interim::{Interim, Queue};
use crate::routes::{Asked, asked};
use crate::upload::Upload;
use crate::{digest, form, resume};

/// Connections at once; more wait in the kernel's backlog.
const CONNECTIONS: u32 = 256;
/// How long a handshake may take, and a request's head.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a head at most, and of a body that are read at once.
const READ_AT_ONCE: usize = 256 << 10;
/// How long the rest of a body is read that nobody wants, so that the client comes to read the answer.
const DRAIN: Duration = Duration::from_secs(30);

/// What requests need.
pub(crate) struct Server {
    pub(crate) door: Arc<Door>,
    /// Common name of the one client.
    pub(crate) client_name: String,
    /// Label of the progress metric.
    pub(crate) owner_uid: String,
}

/// What is known of a connection.
struct Connection {
    /// Its client is the one that may upload.
    known: bool,
    /// A request came over it before.
    used: AtomicBool,
    interim: Queue,
}

impl Server {
    /// Answers until `closing` says so; then no request is begun, and those there are end.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        acceptor: TlsAcceptor,
        mut closing: watch::Receiver<bool>,
    ) {
        let places = Arc::new(Semaphore::new(CONNECTIONS as usize));
        loop {
            let accepted = tokio::select! {
                _ = closing.wait_for(|closing| *closing) => break,
                accepted = async {
                    let place = places.clone().acquire_owned().await;
                    (place, listener.accept().await)
                } => accepted,
            };
            let (Ok(place), Ok((stream, _))) = accepted else {
                // Out of descriptors, say: the next one may succeed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (server, acceptor, closing) = (self.clone(), acceptor.clone(), closing.clone());
            tokio::spawn(async move {
                let _place = place;
                // Answers are small and awaited.
                let _unneeded = stream.set_nodelay(true);
                match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => {
                        let certificates = stream.get_ref().1.peer_certificates();
                        let certificate = certificates.and_then(|chain| chain.first());
                        let name = certificate.and_then(serve::client::common_name);
                        let known = name.is_some_and(|name| name == server.client_name);
                        server.converse(stream, known, closing).await;
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                    Err(_) => tracing::debug!("a handshake took too long"),
                }
            });
        }
        drop(listener);
        // All places are free when all connections have ended.
        drop(tokio::time::timeout(DRAIN, places.acquire_many(CONNECTIONS)).await);
    }

    async fn converse(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        known: bool,
        mut closing: watch::Receiver<bool>,
    ) {
        let (stream, interim) = Interim::new(stream);
        let connection = Arc::new(Connection { known, used: AtomicBool::new(false), interim });
        let respond = service_fn(move |request| {
            let (server, connection) = (self.clone(), connection.clone());
            async move { Ok::<_, Infallible>(server.respond(request, &connection).await) }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(READ_AT_ONCE)
            .serve_connection(TokioIo::new(stream), respond);
        let mut served = std::pin::pin!(served);
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            () = async { drop(closing.wait_for(|closing| *closing).await) } => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn respond(&self, request: Request<Incoming>, connection: &Connection) -> Answer {
        let first = !connection.used.swap(true, Ordering::Relaxed);
        let headers = request.headers();
        if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
            return leave(request.into_body(), answer::refusal(Refusal::Ambiguous));
        }
        let asked = asked(request.method(), request.uri().path());
        match asked {
            Asked::Nothing => return leave(request.into_body(), answer::refusal(Refusal::NotFound)),
            Asked::Health => return answer::page("OK"),
            Asked::Metrics => return answer::page(self.metrics()),
            Asked::HeadAsync => return self.head(connection.known),
            Asked::Upload(_) | Asked::Offset(_) | Asked::Append(_) | Asked::Cancel(_) => {}
        }
        if !connection.known {
            return leave(request.into_body(), answer::refusal(Refusal::Stranger));
        }
        match asked {
            Asked::Upload(way) => self.upload(way, request, first.then_some(&connection.interim)).await,
            Asked::Offset(name) => self.offset(&name).await,
            Asked::Append(name) => self.append(&name, request).await,
            Asked::Cancel(name) => self.cancel(&name).await,
            Asked::Nothing | Asked::Health | Asked::Metrics | Asked::HeadAsync => {
                answer::refusal(Refusal::NotFound)
            }
        }
    }

    /// That there are async uploads; the one client also learns how far the last upload is.
    fn head(&self, known: bool) -> Answer {
        let mut answer = answer::answer(StatusCode::OK, "");
        let last = self.door.last().filter(|_| known);
        let percent = last.map(|upload| upload.session.meter.percent_text());
        if let Some(percent) = percent.and_then(|percent| HeaderValue::try_from(percent).ok()) {
            answer.headers_mut().insert(HeaderName::from_static(PROGRESS_HEADER), percent);
        }
        answer
    }

    fn metrics(&self) -> String {
        let meter = self.door.last().map(|upload| upload.session.meter.clone()).unwrap_or_default();
        let mut page = Page::default();
        page.begin(names::IMPORT_PROGRESS, Metric::Counter, "The upload progress in percentage");
        page.sample(names::IMPORT_PROGRESS, &[(names::OWNER_LABEL, &self.owner_uid)], meter.percent_text());
        for (name, help, value) in [
            (
                "ferrovirt_upload_read_bytes_total",
                "Bytes of the upload that were read",
                meter.transfer.read(),
            ),
            (
                "ferrovirt_upload_written_bytes_total",
                "Bytes of data written to the target",
                meter.transfer.written(),
            ),
        ] {
            page.single(name, Metric::Counter, help, value);
        }
        page.text()
    }

    async fn upload(&self, way: Way, request: Request<Incoming>, interim: Option<&Queue>) -> Answer {
        let (head, mut body) = request.into_parts();
        let given = read_head(way, &head.headers, body.size_hint().exact());
        let (shape, length, begin) = match given {
            Ok(given) => given,
            Err(error) => return leave(body, answer::failed(&error)),
        };
        let upload = match self.door.enter(&shape, length, begin.is_some()).await {
            Ok(upload) => upload,
            Err(Closed::Refused(refusal)) => return leave(body, answer::refusal(refusal)),
            Err(Closed::Failed(error)) => return leave(body, answer::failed(&error)),
        };
        let _abandon = Abandon(&upload);
        let location = format!("{RESOURCES}{}", upload.name);
        if let Some(interim) = interim.filter(|_| begin.is_some()) {
            interim.push(&format!(
                "HTTP/1.1 104 Upload Resumption Supported\r\n{VERSION_HEADER}: {VERSION}\r\nlocation: {location}\r\n\r\n"
            ));
        }
        let complete = begin.is_none_or(|begin| begin.complete);
        let fed = upload.feed.send(&mut body, 0, length, complete).await;
        fed_answer(&upload, body, fed, complete, Some(&location), 0).await
    }

    async fn offset(&self, name: &str) -> Answer {
        let Some(upload) = self.door.find(name) else { return answer::refusal(Refusal::Unknown) };
        let state = upload.feed.settle().await;
        if upload.ended().is_some_and(|outcome| outcome.is_err()) {
            return answer::refusal(Refusal::Unknown);
        }
        let state = resume::state(state.offset, state.complete, state.length);
        answer::resumable(StatusCode::NO_CONTENT, state, None)
    }

    async fn append(&self, name: &str, request: Request<Incoming>) -> Answer {
        let (head, mut body) = request.into_parts();
        let Some(upload) = self.door.find(name) else {
            return leave(body, answer::refusal(Refusal::Unknown));
        };
        if !resume::is_partial(&head.headers) {
            return leave(body, answer::refusal(Refusal::NotPartial));
        }
        let append = match resume::append(&head.headers, body.size_hint().exact()) {
            Ok(append) => append,
            Err(error) => return leave(body, answer::failed(&error)),
        };
        let fed = upload.feed.send(&mut body, append.offset, append.length, append.complete).await;
        fed_answer(&upload, body, fed, append.complete, None, append.offset).await
    }

    async fn cancel(&self, name: &str) -> Answer {
        let Some(upload) = self.door.find(name) else { return answer::refusal(Refusal::Unknown) };
        upload.cancel();
        drop(upload.end().await);
        answer::answer(StatusCode::NO_CONTENT, "")
    }
}

/// What the head of a POST says: how the bytes are to be understood, how many, and whether it may be gone on with.
type Given = (Shape, Option<u64>, Option<resume::Begin>);

fn read_head(way: Way, headers: &http::HeaderMap, length: Option<u64>) -> Result<Given, Error> {
    let clone = headers.get(CONTENT_TYPE_HEADER).and_then(|value| value.to_str().ok());
    let clone = clone.and_then(CloneOf::of_header);
    let boundary = way.is_form().then(|| form::boundary(headers)).transpose()?;
    let begin = if way.is_form() { None } else { resume::begin(headers, length)? };
    let whole = begin.is_none();
    // A digest is of the body, and what is in a form or a clone's stream is something else.
    let checksum = match (way.is_form(), clone) {
        (false, None) => digest::of_headers(headers, whole)?,
        (true, _) | (false, Some(_)) => None,
    };
    let length = begin.map_or(length, |begin| begin.length);
    Ok((Shape::new(way, boundary, clone, checksum)?, length, begin))
}

/// The answer when a body was sent, or was not.
async fn fed_answer(
    upload: &Upload,
    body: Incoming,
    fed: Fed,
    complete: bool,
    location: Option<&str>,
    provided: u64,
) -> Answer {
    let state = || {
        let state = upload.feed.state();
        resume::state(state.offset, state.complete, state.length)
    };
    match fed {
        Fed::Whole if complete => ended(upload, body).await,
        Fed::Whole => {
            let status = if location.is_some() { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
            answer::resumable(status, state(), location)
        }
        Fed::Unwanted => ended(upload, body).await,
        Fed::Broken(why) => {
            tracing::warn!(why, "the connection of an upload broke");
            let what = format!("the body did not come whole: {why}");
            leave(body, answer::failed(&Error::new(Kind::Usage, what)))
        }
        Fed::Overtaken => leave(body, answer::refusal(Refusal::Overtaken)),
        Fed::Elsewhere(at) => {
            let problem = match at.complete {
                true => Problem::Complete,
                false => Problem::Offset { expected: at.offset, provided },
            };
            leave(body, answer::problem(problem, state()))
        }
        Fed::WrongLength => {
            upload.cancel();
            let error = Error::usage("the upload has another length than was said; start over");
            leave(body, answer::failed(&error))
        }
    }
}

/// The answer at the end of an upload. One that is good before its last byte has the rest read first.
async fn ended(upload: &Upload, mut body: Incoming) -> Answer {
    let outcome = upload.end().await;
    if outcome.is_err() {
        return leave(body, answer::ended(&outcome));
    }
    drop(tokio::time::timeout(DRAIN, drain(&mut body)).await);
    answer::ended(&outcome)
}

async fn drain(body: &mut Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Answers while the rest of the request still comes; it is read for a while and thrown away, since a client that is
/// cut off while it sends may not see the answer.
fn leave(mut body: Incoming, mut answer: Answer) -> Answer {
    if !body.is_end_stream() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        tokio::spawn(async move { tokio::time::timeout(DRAIN, drain(&mut body)).await });
    }
    answer
}

/// Ends an upload that cannot be gone on with, when the request that sent it is gone.
struct Abandon<'a>(&'a Upload);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if !self.0.resumable && !self.0.feed.state().complete && self.0.ended().is_none() {
            self.0.cancel();
        }
    }
}
