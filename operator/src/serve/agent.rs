//! Requests and streams to the agent of a node: HTTP/1.1 over mutual TLS, port 8186 of its pod.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use cluster::{Client, Key, Resource, Scope};
use http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::status::Refusal;

const PODS: Resource = Resource::namespaced("", "v1", "pods");
/// Label of the agents' pods.
const LABEL: &str = "kubevirt.io=virt-handler";
/// Port of an agent.
const PORT: u16 = 8186;
/// The name in an agent's certificate.
pub(super) const NAME: &str = "virt-handler";
/// The protocol of byte streams.
const STREAM: &str = "ferrovirt-stream";
/// How long connecting, and the head of an answer, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(55);
/// Longest answer.
const MOST_ANSWER: usize = 8 << 20;

/// Connects to agents.
pub(super) struct Agents {
    client: Client,
    namespace: String,
    tls: RwLock<Option<Arc<ClientConfig>>>,
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: String,
    phase: String,
}

fn unavailable(what: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, what)
}

impl Agents {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), tls: RwLock::default() }
    }

    /// Sets the operator's client certificate and the authority of the agents.
    pub(super) fn set(&self, config: ClientConfig) {
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
    }

    /// Sends a request about an instance; gives status and body of the agent's answer.
    ///
    /// # Errors
    /// The agent cannot be reached, or refuses: with its status code and message.
    pub(super) async fn ask(
        &self,
        node: &str,
        method: Method,
        key: &Key,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Refusal> {
        let request = Request::builder().method(method).header(CONTENT_TYPE, "application/json");
        let answer = self.send(node, request, key, path, body).await?;
        let code = answer.status();
        let body = whole(node, answer).await?;
        if code.is_success() { Ok((code, body)) } else { Err(refused(node, code, &body)) }
    }

    /// Opens a stream to a guest.
    pub(super) async fn stream(
        &self,
        node: &str,
        key: &Key,
        path: &str,
    ) -> Result<TokioIo<Upgraded>, Refusal> {
        let request = Request::builder().header(CONNECTION, "Upgrade").header(UPGRADE, STREAM);
        let answer = self.send(node, request, key, path, Bytes::new()).await?;
        let code = answer.status();
        if code != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(node, code, &whole(node, answer).await?));
        }
        let upgraded = hyper::upgrade::on(answer).await;
        let upgraded = upgraded.map_err(|error| unavailable(format!("the agent of node {node}: {error}")))?;
        Ok(TokioIo::new(upgraded))
    }

    async fn send(
        &self,
        node: &str,
        request: http::request::Builder,
        key: &Key,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Refusal> {
        let broken = |error: &(dyn std::error::Error + 'static)| {
            unavailable(format!("the agent of node {node} cannot be reached: {}", error::chain(error)))
        };
        let tls = self.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
        let tls = tls.ok_or_else(|| {
            unavailable("the operator's certificate for node agents is not signed yet; retry")
        })?;
        let address = self.address(node).await?;
        let connected = async {
            let stream = TcpStream::connect((address.as_str(), PORT)).await?;
            stream.set_nodelay(true)?;
            let name = ServerName::try_from(NAME).map_err(std::io::Error::other)?;
            TlsConnector::from(tls).connect(name, stream).await
        };
        let connected = timeout(CONNECT_TIMEOUT, connected).await.map_err(|error| broken(&error))?;
        let stream = TokioIo::new(connected.map_err(|error| broken(&error))?);
        let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| broken(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "the connection to an agent broke");
            }
        });
        let (namespace, name) = (key.namespace(), key.name());
        let request = request
            .uri(format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{path}"))
            .header(HOST, NAME)
            .body(Full::new(body))
            .map_err(|error| broken(&error))?;
        let answer = timeout(ANSWER_TIMEOUT, sender.send_request(request)).await;
        answer.map_err(|error| broken(&error))?.map_err(|error| broken(&error))
    }

    /// The address of the agent of a node.
    async fn address(&self, node: &str) -> Result<String, Refusal> {
        let scope =
            Scope::all().namespace(&self.namespace).labels(LABEL).fields(&format!("spec.nodeName={node}"));
        let pods: Vec<Pod> = self.client.list(PODS, &scope).await?;
        let running =
            pods.into_iter().find(|pod| pod.status.phase == "Running" && !pod.status.pod_ip.is_empty());
        let absent = || unavailable(format!("no virt-handler pod runs on node {node}"));
        Ok(running.ok_or_else(absent)?.status.pod_ip)
    }
}

/// An agent's refusal as one of the API: the agent answers an object with a message, without the fields of a Status. A code
/// that is no error, such as a redirect, is the agent's mistake.
fn refused(node: &str, code: StatusCode, body: &[u8]) -> Refusal {
    #[derive(Deserialize)]
    struct AgentMessage {
        message: String,
    }
    let said = serde_json::from_slice::<AgentMessage>(body).map(|said| said.message);
    let text = said.unwrap_or_else(|_| format!("the agent of node {node} answers {code}"));
    let error = code.is_client_error() || code.is_server_error();
    Refusal::new(if error { code } else { StatusCode::BAD_GATEWAY }, text)
}

async fn whole(node: &str, answer: Response<Incoming>) -> Result<Bytes, Refusal> {
    let body = timeout(ANSWER_TIMEOUT, Limited::new(answer.into_body(), MOST_ANSWER).collect()).await;
    let broken = || unavailable(format!("the answer of the agent of node {node} is incomplete or too long"));
    Ok(body.map_err(|_| broken())?.map_err(|_| broken())?.to_bytes())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn refusal_of_an_agent_becomes_a_status_object() {
        for (code, body, wanted, reason, message) in [
            (409, "{\"message\": \"the guest is not paused\"}", 409, "Conflict", "the guest is not paused"),
            (503, "<html>", 503, "ServiceUnavailable", "the agent of node a answers 503 Service Unavailable"),
            (404, "", 404, "NotFound", "the agent of node a answers 404 Not Found"),
            (302, "{}", 502, "InternalError", "the agent of node a answers 302 Found"),
        ] {
            let answer = refused("a", StatusCode::from_u16(code).unwrap(), body.as_bytes()).answer();
            assert_eq!(answer.status().as_u16(), wanted);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let fields = [&body["kind"], &body["status"], &body["reason"], &body["message"], &body["code"]];
            assert_eq!(
                fields,
                [&json!("Status"), &json!("Failure"), &json!(reason), &json!(message), &json!(wanted)]
            );
        }
    }
}
