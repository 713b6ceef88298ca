//! A guest's serial console, over a WebSocket of the API server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::platform::place::Place;

/// How long connecting, and an answer of the guest, may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// An open console.
pub(crate) struct Console<'a> {
    place: &'a Place,
    socket: WebSocketStream<TlsStream<TcpStream>>,
}

impl<'a> Console<'a> {
    /// Opens it; the error is the API server's answer.
    pub(crate) fn open(place: &'a Place, namespace: &str, name: &str) -> Result<Self, String> {
        Self::stream(place, namespace, name, "console")
    }

    /// Opens another stream of the guest, such as `vnc`.
    pub(crate) fn stream(
        place: &'a Place,
        namespace: &str,
        name: &str,
        subresource: &str,
    ) -> Result<Self, String> {
        let node = place.cluster.place();
        let host = node.node_address().to_string();
        let pki = |name: &str| std::fs::read_to_string(node.path("pki").join(name)).unwrap();
        let tls =
            serve::tls::client_config(&pki("ca.crt"), Some((&pki("admin.crt"), &pki("admin.key")))).unwrap();
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{subresource}"
        );
        let mut request = format!("wss://{host}:6443{path}").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "plain.kubevirt.io".parse().unwrap());
        let connecting = async {
            let stream = TcpStream::connect((host.as_str(), 6443)).await.unwrap();
            let name = ServerName::try_from(host.clone()).unwrap();
            let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap();
            tokio_tungstenite::client_async(request, stream).await
        };
        let connected = place.cluster.run(async { timeout(TIMEOUT, connecting).await });
        match connected {
            Ok(Ok((socket, _))) => Ok(Self { place, socket }),
            Ok(Err(Error::Http(answer))) => {
                let body = answer.body().as_deref().unwrap_or_default();
                Err(format!("{} {}", answer.status(), String::from_utf8_lossy(body)))
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        }
    }

    /// Sends a byte, and waits until the guest has sent `answer`.
    pub(crate) fn ask(&mut self, byte: u8, answer: &str) -> Result<(), String> {
        let sent = self.place.cluster.run(self.socket.send(Message::binary(vec![byte])));
        sent.map_err(|error| error.to_string())?;
        self.listen(answer)
    }

    /// Sends a text, and waits until the guest has sent `answer` and the rest of its line; all that it has sent.
    pub(crate) fn say(&mut self, text: &str, answer: &str, patience: Duration) -> Result<String, String> {
        let sent = self.place.cluster.run(self.socket.send(Message::binary(text.as_bytes().to_vec())));
        sent.map_err(|error| error.to_string())?;
        let whole = |received: &str| received.split_once(answer).is_some_and(|(_, rest)| rest.contains('\n'));
        self.read_until_whole(whole, answer, patience)
    }

    /// The next bytes that the guest sends.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<Vec<u8>, String> {
        let mut received = Vec::new();
        let listening = async {
            while received.len() < count {
                let message = self.socket.next().await.ok_or("the console was closed")?;
                received.extend(message.map_err(|error| error.to_string())?.into_data());
            }
            Ok::<_, String>(())
        };
        match self.place.cluster.run(async { timeout(TIMEOUT, listening).await }) {
            Ok(done) => done.map(|()| received),
            Err(_) => Err("the guest sends too little".to_owned()),
        }
    }

    /// Waits until the guest has sent `answer`.
    pub(crate) fn listen(&mut self, answer: &str) -> Result<(), String> {
        self.read(answer, TIMEOUT).map(drop)
    }

    /// Waits until a guest that boots has sent `answer`; all that it has sent.
    pub(crate) fn read_until(&mut self, answer: &str) -> Result<String, String> {
        self.read(answer, crate::platform::place::TIMEOUT)
    }

    fn read(&mut self, answer: &str, patience: Duration) -> Result<String, String> {
        self.read_until_whole(|received| received.contains(answer), answer, patience)
    }

    fn read_until_whole(
        &mut self,
        whole: impl Fn(&str) -> bool,
        answer: &str,
        patience: Duration,
    ) -> Result<String, String> {
        let mut received = String::new();
        let listening = async {
            while !whole(&received) {
                let message = self.socket.next().await.ok_or("the console was closed")?;
                let message = message.map_err(|error| error.to_string())?;
                received.push_str(&String::from_utf8_lossy(&message.into_data()));
            }
            Ok(())
        };
        match self.place.cluster.run(async { timeout(patience, listening).await }) {
            Ok(done) => done.map(|()| received),
            Err(_) => Err(format!("the guest has sent {received:?} and not {answer:?}")),
        }
    }
}
