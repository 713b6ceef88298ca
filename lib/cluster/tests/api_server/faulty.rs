//! A proxy before the API server that injects faults which the real one cannot produce on demand.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Handling of one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Answered with this status, `Retry-After` seconds and body.
    Answer(u16, Option<u32>, &'static str),
    /// The answer's body ends (as if complete) after a time.
    End(Duration),
    /// The connection breaks within the answer.
    Break(Duration),
}

/// Which requests a fault is for, and the fault.
type Plan = Arc<Mutex<VecDeque<(&'static str, Fault)>>>;

/// The proxy.
#[derive(Clone)]
pub(crate) struct Faulty {
    plan: Plan,
    /// Paths that were asked for, in order.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    /// Its address, plain HTTP.
    pub(crate) address: String,
}

impl Faulty {
    /// Starts a proxy to `upstream`, an address that takes plain HTTP/1.
    pub(crate) async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let proxy = Self { plan: Plan::default(), asked: Arc::default(), address };
        let serving = proxy.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let proxy = serving.clone();
                let service = service_fn(move |request| {
                    let proxy = proxy.clone();
                    async move { Ok::<_, Infallible>(proxy.answer(request, upstream).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        proxy
    }

    /// The next request with `part` in its path and query meets this fault.
    pub(crate) fn plan(&self, part: &'static str, fault: Fault) {
        self.plan.lock().unwrap().push_back((part, fault));
    }

    /// Faults that no request has met yet.
    pub(crate) fn left(&self) -> usize {
        self.plan.lock().unwrap().len()
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        upstream: u16,
    ) -> Response<BoxBody<Bytes, std::io::Error>> {
        let path = request.uri().to_string();
        self.asked.lock().unwrap().push(path.clone());
        let fault = {
            let mut plan = self.plan.lock().unwrap();
            let place = plan.iter().position(|(part, _)| path.contains(part));
            place.and_then(|place| plan.remove(place)).map(|(_, fault)| fault)
        };
        let plain = |code: StatusCode, text: &str| {
            let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {});
            Response::builder().status(code).body(body.boxed()).unwrap()
        };
        if let Some(Fault::Answer(code, wait, text)) = fault {
            let mut answer = plain(StatusCode::from_u16(code).unwrap(), text);
            if let Some(wait) = wait {
                answer.headers_mut().insert("retry-after", wait.into());
            }
            return answer;
        }
        let Ok(stream) = TcpStream::connect(("127.0.0.1", upstream)).await else {
            return plain(StatusCode::BAD_GATEWAY, "no upstream");
        };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Incoming>(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let Ok(answer) = sender.send_request(request).await else {
            return plain(StatusCode::BAD_GATEWAY, "upstream broke");
        };
        let (head, mut body) = answer.into_parts();
        let (mut feed, fed) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(4);
        tokio::spawn(async move {
            let until = match fault {
                Some(Fault::End(after) | Fault::Break(after)) => after,
                _ => Duration::from_secs(3600),
            };
            let pass = async {
                while let Some(Ok(frame)) = body.frame().await {
                    if let Ok(data) = frame.into_data()
                        && feed.send_data(data).await.is_err()
                    {
                        return;
                    }
                }
            };
            let cut = tokio::time::timeout(until, pass).await.is_err();
            if cut && matches!(fault, Some(Fault::Break(_))) {
                feed.abort(std::io::Error::other("broken by the test"));
            }
        });
        Response::from_parts(head, fed.boxed())
    }
}

/// Passes plain HTTP on to a TLS server, with a client certificate.
pub(crate) async fn plain(config: rustls::ClientConfig, port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap().port();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let connector = connector.clone();
            tokio::spawn(async move {
                let Ok(tcp) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
                let Ok(mut tls) = connector.connect(name, tcp).await else { return };
                let _ended = tokio::io::copy_bidirectional(&mut stream, &mut tls).await;
            });
        }
    });
    here
}
