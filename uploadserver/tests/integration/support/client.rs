//! An HTTP/1.1 client over TLS that sends given bytes and no more, and reads one answer after the other.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::tls;

/// One connection.
pub(crate) struct Client {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Client {
    pub(crate) fn new(stream: TcpStream, identity: Option<&(String, String)>) -> io::Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(tls::client(identity), name).map_err(io::Error::other)?;
        Ok(Self { stream: BufReader::new(StreamOwned::new(connection, stream)) })
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)?;
        self.stream.get_mut().flush()
    }

    /// Sends the head of a request; `headers` are whole lines.
    pub(crate) fn head(&mut self, method: &str, path: &str, headers: &[String]) -> io::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n");
        for line in headers {
            head.push_str(line);
            head.push_str("\r\n");
        }
        self.send((head + "\r\n").as_bytes())
    }

    /// A request with a body; what the server does not take is not sent.
    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        let mut lines: Vec<String> = headers.iter().map(|&line| line.to_owned()).collect();
        if method != "GET" && method != "HEAD" {
            lines.push(format!("Content-Length: {}", body.len()));
        }
        // The server may answer before it has everything.
        let sent = self.head(method, path, &lines).and_then(|()| self.send(body));
        self.answer_to(method).unwrap_or_else(|error| panic!("no answer: {error:?}; sent: {sent:?}"))
    }

    /// The same in chunks of this size.
    pub(crate) fn chunked(&mut self, path: &str, headers: &[&str], body: &[u8], size: usize) -> Answer {
        let mut lines: Vec<String> = headers.iter().map(|&line| line.to_owned()).collect();
        lines.push("Transfer-Encoding: chunked".to_owned());
        let mut send = || -> io::Result<()> {
            self.head("POST", path, &lines)?;
            for chunk in body.chunks(size) {
                self.send(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                self.send(chunk)?;
                self.send(b"\r\n")?;
            }
            self.send(b"0\r\n\r\n")
        };
        let sent = send();
        self.answer_to("POST").unwrap_or_else(|error| panic!("no answer: {error:?}; sent: {sent:?}"))
    }

    /// The next answer, interim ones included.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        self.answer_to("GET")
    }

    fn answer_to(&mut self, method: &str) -> io::Result<Answer> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer { status, headers, body: String::new() };
        let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        if method != "HEAD" && status >= 200 {
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body)?;
            answer.body = String::from_utf8_lossy(&body).into_owned();
        }
        Ok(answer)
    }
}

/// The body of a form with an image in the field `file`, and its content type.
pub(crate) fn form(image: &[u8]) -> (String, Vec<u8>) {
    let boundary = "------------------------d74496d66958873e";
    let part = |name: &str, data: &[u8]| {
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"disk\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        [head.as_bytes(), data, b"\r\n"].concat()
    };
    let body = [part("note", b"words"), part("file", image), format!("--{boundary}--\r\n").into_bytes()];
    (format!("Content-Type: multipart/form-data; boundary={boundary}"), body.concat())
}

/// A file's bytes.
pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}
