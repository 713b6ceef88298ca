//! The output of a program in a container, as `kubectl exec` gets it: a WebSocket with the subprotocol
//! `v4.channel.k8s.io`, whose messages begin with the number of a stream.
//!
//! Not here: what is run.

use std::time::Duration;

use cluster::Client;
use futures_util::StreamExt;
use serde_json::Value;
use tokio_tungstenite::tungstenite::Message;

const PROTOCOL: &str = "v4.channel.k8s.io";
/// Streams: what the program writes, and its end, a Status.
const OUTPUT: u8 = 1;
const ERRORS: u8 = 2;
const END: u8 = 3;
/// Longest output that is kept, in bytes.
const MOST: usize = 4 << 20;
/// How long a program may run.
const TIMEOUT: Duration = Duration::from_secs(20);

/// API path of a program's run in a container. Words are of characters that a URL may have, as names of objects are.
pub(super) fn path(namespace: &str, pod: &str, container: &str, command: &[&str]) -> String {
    let words: String = command.iter().map(|word| format!("&command={word}")).collect();
    format!(
        "/api/v1/namespaces/{namespace}/pods/{pod}/exec?container={container}&stdout=true&stderr=true{words}"
    )
}

/// What a program wrote to its standard output; its errors, if it failed.
pub(super) async fn output(client: &Client, path: &str) -> Result<Vec<u8>, String> {
    match tokio::time::timeout(TIMEOUT, run(client, path)).await {
        Ok(done) => done,
        Err(_) => Err(format!("no end in {TIMEOUT:?}")),
    }
}

async fn run(client: &Client, path: &str) -> Result<Vec<u8>, String> {
    let mut socket = client.websocket(path, PROTOCOL).await.map_err(|error| error.chain().to_string())?;
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    while let Some(message) = socket.next().await {
        let message = match message.map_err(|error| error.to_string())? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        let Some((stream, bytes)) = message.split_first() else { continue };
        let kept = match *stream {
            OUTPUT => &mut output,
            ERRORS => &mut errors,
            END => return finished(bytes, output, &errors),
            _ => continue,
        };
        let room = MOST.saturating_sub(kept.len());
        kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
    Err("the connection ended before the program".to_owned())
}

/// The result by the Status of the program's end.
fn finished(status: &[u8], output: Vec<u8>, errors: &[u8]) -> Result<Vec<u8>, String> {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    if status["status"] == "Success" {
        return Ok(output);
    }
    let why = status["message"].as_str().unwrap_or("the program failed");
    Err(format!("{why}: {}", String::from_utf8_lossy(errors).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_decides_whether_a_program_succeeded() {
        let failed = br#"{"status": "Failure", "message": "command terminated with non-zero exit code"}"#;
        let error = finished(failed, b"half".to_vec(), b"no such domain\n").unwrap_err();
        assert_eq!(error, "command terminated with non-zero exit code: no such domain");
        assert_eq!(finished(br#"{"status": "Success"}"#, b"<domain/>".to_vec(), b"").unwrap(), b"<domain/>");
        assert!(finished(b"?", Vec::new(), b"").is_err());
    }
}
