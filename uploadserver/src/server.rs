//! Requests and their results, by the client's certificate. Not here: connections and their limits, the form of answers
//! (`answer`), uploads.

use std::sync::Arc;
use std::time::Duration;

use api::names;
use api::upload::resume::{VERSION, VERSION_HEADER};
use api::upload::{CLONE_SIZE_HEADER, CONTENT_TYPE_HEADER, CloneOf, PROGRESS_HEADER, RESOURCES, Way};
use bytes::Bytes;
use disk_image::volume::{Error, Kind};
use http::header::{CONTENT_ENCODING, HeaderValue};
use http::{HeaderName, Request, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use serve::metrics::{Kind as Metric, Page};
use serve::server::{Connection, Informational, Limits, Service, drain, read_to_end, reject};

use crate::admission::{Admission, AdmitError};
use crate::answer::{self, Answer, Problem, Refusal};
use crate::body_queue::SendOutcome;
use crate::decode::Shape;
use crate::routes::{Operation, operation};
use crate::upload::Upload;
use crate::{digest, form, resume};

/// Longest time for which the rest of a body is read that an upload does not need.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Limits of connections. One client uploads, and it makes few connections.
pub(crate) const LIMITS: Limits = Limits {
    connections: 64,
    handshakes: 32,
    handshake_time: Duration::from_secs(5),
    head: 16 << 10,
    idle_time: Duration::from_secs(10),
    buffer: 256 << 10,
    read_ahead: 64 << 10,
    withdrawal: Duration::ZERO,
    closing: Duration::from_secs(30),
};

/// Shared by all requests.
pub(crate) struct Server {
    pub(crate) admission: Arc<Admission>,
    /// Common name of the one client.
    pub(crate) client_name: String,
    /// Label of the progress metric.
    pub(crate) owner_uid: String,
}

impl Service for Server {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>, connection: &Arc<Connection>) -> Answer {
        let informational = connection.informational();
        // The one client's certificate.
        let known = connection.client_name() == Some(&self.client_name);
        let asked = operation(request.method(), request.uri().path());
        match asked {
            Operation::Nothing => return reject(request.into_body(), answer::refusal(Refusal::NotFound)),
            Operation::Health => return answer::page("OK"),
            Operation::Metrics => return answer::page(self.metrics()),
            Operation::HeadAsync => return self.head(known),
            Operation::Upload(_) | Operation::Offset(_) | Operation::Append(_) | Operation::Cancel(_) => {}
        }
        if !known {
            let (body, answer) = (request.into_body(), answer::refusal(Refusal::Stranger));
            // A client with a certificate of ours, but another name, gets to read why.
            return if connection.client().is_some() { leave(body, answer) } else { reject(body, answer) };
        }
        let _busy = connection.busy();
        connection.read_ahead();
        match asked {
            Operation::Upload(way) => self.upload(way, request, informational).await,
            Operation::Offset(name) => self.offset(&name).await,
            Operation::Append(name) => self.append(&name, request).await,
            Operation::Cancel(name) => self.cancel(&name).await,
            Operation::Nothing | Operation::Health | Operation::Metrics | Operation::HeadAsync => {
                answer::refusal(Refusal::NotFound)
            }
        }
    }
}

impl Server {
    /// That there are async uploads; the one client also learns how far the last upload is.
    fn head(&self, known: bool) -> Answer {
        let mut answer = answer::answer(StatusCode::OK, "");
        let last = self.admission.last().filter(|_| known);
        let percent = last.map(|upload| upload.session.meter.percent_text());
        if let Some(percent) = percent.and_then(|percent| HeaderValue::try_from(percent).ok()) {
            answer.headers_mut().insert(HeaderName::from_static(PROGRESS_HEADER), percent);
        }
        answer
    }

    fn metrics(&self) -> String {
        let meter = self.admission.last().map(|upload| upload.session.meter.clone()).unwrap_or_default();
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

    async fn upload(
        &self,
        way: Way,
        request: Request<Incoming>,
        informational: Option<&Informational>,
    ) -> Answer {
        let (head, mut body) = request.into_parts();
        let given = read_head(way, &head.headers, body.size_hint().exact());
        let (shape, length, begin) = match given {
            Ok(given) => given,
            Err(error) => return leave(body, answer::failed(&error)),
        };
        let upload = match self.admission.enter(&shape, length, begin.is_some()).await {
            Ok(upload) => upload,
            Err(AdmitError::Refused(refusal)) => return leave(body, answer::refusal(refusal)),
            Err(AdmitError::Failed(error)) => return leave(body, answer::failed(&error)),
        };
        let _abandon = Abandon(&upload);
        let location = format!("{RESOURCES}{}", upload.name);
        if let Some(informational) = informational.filter(|_| begin.is_some()) {
            informational.push(&format!(
                "HTTP/1.1 104 Upload Resumption Supported\r\n{VERSION_HEADER}: {VERSION}\r\nlocation: {location}\r\n\r\n"
            ));
        }
        let complete = begin.is_none_or(|begin| begin.complete);
        let fed = upload.feed.send(&mut body, 0, length, complete).await;
        fed_answer(&upload, body, fed, complete, Some(&location), 0).await
    }

    async fn offset(&self, name: &str) -> Answer {
        let Some(upload) = self.admission.find(name) else { return answer::refusal(Refusal::Unknown) };
        let state = upload.feed.settle().await;
        if upload.ended().is_some_and(|outcome| outcome.is_err()) {
            return answer::refusal(Refusal::Unknown);
        }
        let state = resume::state(state.offset, state.complete, state.length);
        answer::resumable(StatusCode::NO_CONTENT, state, None)
    }

    async fn append(&self, name: &str, request: Request<Incoming>) -> Answer {
        let (head, mut body) = request.into_parts();
        let Some(upload) = self.admission.find(name) else {
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
        let Some(upload) = self.admission.find(name) else { return answer::refusal(Refusal::Unknown) };
        upload.cancel();
        drop(upload.end().await);
        answer::answer(StatusCode::NO_CONTENT, "")
    }
}

/// The head of a POST: format and number of the bytes, and whether the upload can be resumed.
type UploadHead = (Shape, Option<u64>, Option<resume::Begin>);

fn read_head(way: Way, headers: &http::HeaderMap, length: Option<u64>) -> Result<UploadHead, Error> {
    resume::from_the_start(headers)?;
    coded_as_read(headers)?;
    let clone = headers.get(CONTENT_TYPE_HEADER).and_then(|value| value.to_str().ok());
    let clone = clone.and_then(CloneOf::of_header);
    let boundary = way.is_form().then(|| form::boundary(headers)).transpose()?;
    let begin = if way.is_form() { None } else { resume::begin(headers, length)? };
    let whole = begin.is_none();
    // A digest is of the body; the disk in a form or in a clone's stream has other bytes.
    let checksum = match (way.is_form(), clone) {
        (false, None) => digest::of_headers(headers, whole)?,
        (true, _) | (false, Some(_)) => None,
    };
    let length = begin.map_or(length, |begin| begin.length);
    let clone_size = clone.map(|_| clone_size(headers)).transpose()?.flatten();
    let shape = Shape { clone_size, ..Shape::new(way, boundary, clone, checksum)? };
    Ok((shape, length, begin))
}

/// Bytes of the device, as a clone's sender announces them, once.
fn clone_size(headers: &http::HeaderMap) -> Result<Option<u64>, Error> {
    let mut values = headers.get_all(CLONE_SIZE_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Error::usage(format!("{CLONE_SIZE_HEADER} is there more than once")));
    }
    let size = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let size = size.and_then(|text| text.parse().ok());
    size.map(Some)
        .ok_or_else(|| Error::usage(format!("{CLONE_SIZE_HEADER}: {value:?} is not a number of bytes")))
}

/// That a body is coded in no way but those that are undone wherever an image is read: another one would be taken for a disk.
fn coded_as_read(headers: &http::HeaderMap) -> Result<(), Error> {
    let known = |coding: &HeaderValue| {
        let text = coding.to_str().unwrap_or_default().trim().to_ascii_lowercase();
        ["identity", "gzip", "x-gzip", "zstd", "xz"].contains(&text.as_str())
    };
    match headers.get_all(CONTENT_ENCODING).iter().all(known) {
        true => Ok(()),
        false => {
            Err(Error::usage("unsupported content coding: use gzip, zstd or xz, or send the file as it is"))
        }
    }
}

/// The answer when a body was sent, or was not.
async fn fed_answer(
    upload: &Upload,
    body: Incoming,
    fed: SendOutcome,
    complete: bool,
    location: Option<&str>,
    provided: u64,
) -> Answer {
    let state = || {
        let state = upload.feed.state();
        resume::state(state.offset, state.complete, state.length)
    };
    match fed {
        SendOutcome::Whole if complete => ended(upload, body).await,
        SendOutcome::Whole => {
            let status = if location.is_some() { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
            answer::resumable(status, state(), location)
        }
        SendOutcome::Unwanted => ended(upload, body).await,
        SendOutcome::Broken(why) => {
            tracing::warn!(why, "the connection of an upload broke");
            let what = format!("the body is incomplete, send it again: {why}");
            leave(body, answer::failed(&Error::new(Kind::Usage, what)))
        }
        SendOutcome::Overtaken => leave(body, answer::refusal(Refusal::Overtaken)),
        SendOutcome::Elsewhere(at) => {
            let problem = match at.complete {
                true => Problem::Complete,
                false => Problem::Offset { expected: at.offset, provided },
            };
            leave(body, answer::problem(problem, state()))
        }
        SendOutcome::WrongLength => {
            upload.cancel();
            let error = Error::usage("the upload is longer or shorter than announced; start over");
            leave(body, answer::failed(&error))
        }
    }
}

/// The answer at the end of an upload. One that is good before its last byte has the rest read first.
async fn ended(upload: &Upload, body: Incoming) -> Answer {
    let outcome = upload.end().await;
    if outcome.is_err() {
        return leave(body, answer::ended(&outcome));
    }
    drop(tokio::time::timeout(DRAIN_TIME, read_to_end(body)).await);
    answer::ended(&outcome)
}

/// The answer to the one client; its body is drained.
fn leave(body: Incoming, answer: Answer) -> Answer {
    drain(body, DRAIN_TIME, answer)
}

/// Ends an upload that cannot be resumed, when its request is gone.
struct Abandon<'a>(&'a Upload);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if !self.0.resumable && !self.0.feed.state().complete && self.0.ended().is_none() {
            self.0.cancel();
        }
    }
}
