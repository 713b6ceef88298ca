//! Streams of a guest, such as its serial console, over a WebSocket of the API server.

use std::time::Duration;

use bytes::Bytes;
use cluster::Client;
use cluster::websocket::Socket;
use futures_util::{SinkExt, StreamExt};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::platform::place::Place;

/// How long an answer of the guest may take.
const TIMEOUT: Duration = Duration::from_secs(180);

/// An open console.
pub(crate) struct Console<'a> {
    place: &'a Place,
    socket: Socket,
}

impl<'a> Console<'a> {
    /// Opens it; the error is the API server's answer.
    pub(crate) fn open(place: &'a Place, namespace: &str, name: &str) -> Result<Self, String> {
        Self::stream(place, namespace, name, "console")
    }

    /// Opens another stream of the guest, such as `vnc`, as the administrator.
    pub(crate) fn stream(
        place: &'a Place,
        namespace: &str,
        name: &str,
        subresource: &str,
    ) -> Result<Self, String> {
        Self::stream_of(place, &place.client, namespace, name, subresource)
    }

    /// The same as the user of a client.
    pub(crate) fn stream_of(
        place: &'a Place,
        client: &Client,
        namespace: &str,
        name: &str,
        subresource: &str,
    ) -> Result<Self, String> {
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{subresource}"
        );
        let opened = place.cluster.run(client.websocket(&path, "plain.kubevirt.io"));
        let socket = opened.map_err(|error| match error.code() {
            Some(code) => format!("{code} {error}"),
            None => error.chain(),
        })?;
        Ok(Self { place, socket })
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

    /// Sends bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sent = self.place.cluster.run(self.socket.send(Message::binary(bytes.to_vec())));
        sent.map_err(|error| error.to_string())
    }

    /// The next message of the guest; an error at the end. Pings are answered.
    async fn message(socket: &mut Socket) -> Result<Bytes, String> {
        loop {
            let message = socket.next().await.ok_or("the console was closed")?;
            match message.map_err(|error| error.to_string())? {
                Message::Binary(content) => return Ok(content),
                Message::Close(_) => return Err("the console was closed".to_owned()),
                Message::Ping(_) => socket.flush().await.map_err(|error| error.to_string())?,
                Message::Text(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Waits until the server closes the stream: code and reason.
    pub(crate) fn closure(&mut self, patience: Duration) -> Result<(u16, String), String> {
        let closing = async {
            loop {
                match self.socket.next().await.ok_or("the stream broke")? {
                    Ok(Message::Close(Some(frame))) => {
                        return Ok((frame.code.into(), frame.reason.to_string()));
                    }
                    Ok(Message::Close(None)) => return Err("no reason".to_owned()),
                    Ok(Message::Ping(_)) => self.socket.flush().await.map_err(|error| error.to_string())?,
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        match self.place.cluster.run(async { timeout(patience, closing).await }) {
            Ok(closed) => closed,
            Err(_) => Err("the stream is still open".to_owned()),
        }
    }

    /// Reads that many bytes of the guest and drops them.
    pub(crate) fn drain(&mut self, count: u64, patience: Duration) -> Result<(), String> {
        let draining = async {
            let mut left = count;
            while left > 0 {
                let content = Self::message(&mut self.socket).await?;
                left = left.saturating_sub(u64::try_from(content.len()).unwrap());
            }
            Ok::<_, String>(())
        };
        match self.place.cluster.run(async { timeout(patience, draining).await }) {
            Ok(done) => done,
            Err(_) => Err("the guest sends too little".to_owned()),
        }
    }

    /// The next bytes that the guest sends.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<Vec<u8>, String> {
        let mut received = Vec::new();
        let listening = async {
            while received.len() < count {
                received.extend(Self::message(&mut self.socket).await?);
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
                received.push_str(&String::from_utf8_lossy(&Self::message(&mut self.socket).await?));
            }
            Ok(())
        };
        match self.place.cluster.run(async { timeout(patience, listening).await }) {
            Ok(done) => done.map(|()| received),
            Err(_) => Err(format!("the guest has sent {received:?} and not {answer:?}")),
        }
    }
}
