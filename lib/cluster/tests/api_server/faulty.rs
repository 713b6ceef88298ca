//! A proxy before an API server that injects faults which the real one cannot produce on demand, and that keeps what a
//! client asks for and receives. Plain HTTP/1 on the client's side, with all rights on the API server's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cluster::Config;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

/// How long a connection to the API server may take: a server that hangs is answered for as one that is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

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

/// The API server behind a proxy.
struct Upstream {
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl Upstream {
    /// The server of a configuration with a client certificate.
    fn new(config: &Config) -> Self {
        let identity = config.identity.as_ref().unwrap();
        let certificates = |pem: &[u8]| -> Vec<CertificateDer<'static>> {
            CertificateDer::pem_slice_iter(pem).map(Result::unwrap).collect()
        };
        let mut roots = rustls::RootCertStore::empty();
        for one in certificates(config.authority.as_ref().unwrap()) {
            roots.add(one).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.unwrap().with_root_certificates(roots);
        let key = PrivateKeyDer::from_pem_slice(&identity.key).unwrap();
        let tls = tls.with_client_auth_cert(certificates(&identity.certificates), key).unwrap();
        let address = config.server.strip_prefix("https://").unwrap().to_owned();
        let (host, _) = address.rsplit_once(':').unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        Self { address, name, connector: TlsConnector::from(Arc::new(tls)) }
    }

    async fn connect(&self) -> std::io::Result<SendRequest<Incoming>> {
        let tcp = TcpStream::connect(&self.address).await?;
        let tls = self.connector.connect(self.name.clone(), tcp).await?;
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await;
        let (sender, connection) = connected.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The proxy.
#[derive(Clone)]
pub(crate) struct Faulty {
    plan: Plan,
    /// Method and path of each request, in order.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    /// Lines of the API server's answers: events of watches, and whole objects and lists.
    lines: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Its address, plain HTTP.
    pub(crate) address: String,
}

impl Faulty {
    /// Starts a proxy to the server of `config`, which has a client certificate.
    pub(crate) async fn start(config: &Config) -> Self {
        let upstream = Arc::new(Upstream::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let proxy = Self { plan: Plan::default(), asked: Arc::default(), lines: Arc::default(), address };
        let serving = proxy.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (proxy, upstream) = (serving.clone(), Arc::clone(&upstream));
                let service = service_fn(move |request| {
                    let (proxy, upstream) = (proxy.clone(), Arc::clone(&upstream));
                    async move { Ok::<_, Infallible>(proxy.answer(request, &upstream).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        proxy
    }

    /// The next request with `part` in its method and path, which a space separates, meets this fault.
    pub(crate) fn plan(&self, part: &'static str, fault: Fault) {
        self.plan.lock().unwrap().push_back((part, fault));
    }

    /// Faults that no request has met yet.
    pub(crate) fn left(&self) -> usize {
        self.plan.lock().unwrap().len()
    }

    /// The lines with `text` that the API server sent to the client.
    pub(crate) fn received(&self, text: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        let lines = lines.iter().map(|line| String::from_utf8_lossy(line));
        lines.filter(|line| line.contains(text)).map(std::borrow::Cow::into_owned).collect()
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        upstream: &Upstream,
    ) -> Response<BoxBody<Bytes, std::io::Error>> {
        let asked = format!("{} {}", request.method(), request.uri());
        self.asked.lock().unwrap().push(asked.clone());
        let fault = {
            let mut plan = self.plan.lock().unwrap();
            let place = plan.iter().position(|(part, _)| asked.contains(part));
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
        let Ok(Ok(mut sender)) = tokio::time::timeout(CONNECT_TIMEOUT, upstream.connect()).await else {
            return plain(StatusCode::BAD_GATEWAY, "no API server");
        };
        let Ok(answer) = sender.send_request(request).await else {
            return plain(StatusCode::BAD_GATEWAY, "the API server broke the connection");
        };
        let (head, mut body) = answer.into_parts();
        let (mut feed, fed) = http_body_util::channel::Channel::<Bytes, std::io::Error>::new(4);
        let lines = Arc::clone(&self.lines);
        tokio::spawn(async move {
            let until = match fault {
                Some(Fault::End(after) | Fault::Break(after)) => after,
                _ => Duration::from_secs(3600),
            };
            let mut line = Vec::new();
            let pass = async {
                while let Some(frame) = body.frame().await {
                    let Ok(data) = frame.map(|frame| frame.into_data().unwrap_or_default()) else {
                        return true;
                    };
                    line.extend_from_slice(&data);
                    if line.ends_with(b"\n") {
                        lines.lock().unwrap().push(std::mem::take(&mut line));
                    }
                    if feed.send_data(data).await.is_err() {
                        break;
                    }
                }
                false
            };
            let broken = match tokio::time::timeout(until, pass).await {
                Ok(broken) => broken,
                Err(_) => matches!(fault, Some(Fault::Break(_))),
            };
            lines.lock().unwrap().push(line);
            if broken {
                feed.abort(std::io::Error::other("the connection broke"));
            }
        });
        Response::from_parts(head, fed.boxed())
    }
}
