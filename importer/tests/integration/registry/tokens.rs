//! A token server of our own: it signs what the registry's specification asks for.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::registry::servers::request_head;
use sources::images::{PASSWORD, USER};
use sources::registry::{Login, Tls};

/// Hands out tokens, as distribution's "Token Authentication Specification" has it.
pub(crate) struct TokenServer {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Arc<Tls>,
    pub(crate) over: Arc<AtomicBool>,
    /// The queries that came.
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    /// Seconds for which the next tokens are good; 60 when there is no more.
    pub(crate) lives: Arc<Mutex<VecDeque<i64>>>,
}

impl TokenServer {
    pub(crate) fn start(tls: &Arc<Tls>, anonymous: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            tls: tls.clone(),
            over: Arc::default(),
            seen: Arc::default(),
            lives: Arc::default(),
        };
        let (over, seen, lives) = (server.over.clone(), server.seen.clone(), server.lives.clone());
        let tls = tls.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let connection = rustls::ServerConnection::new(tls.config()).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let Some(head) = request_head(&mut stream) else { continue };
                let query = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
                seen.lock().unwrap().push(query.clone());
                let login = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
                let known = head.lines().any(|line| {
                    line.split_once(": ")
                        .is_some_and(|(k, v)| k.eq_ignore_ascii_case("authorization") && v == login)
                });
                let named = head.to_ascii_lowercase().contains("\r\nauthorization:");
                let (status, body) = if known || (anonymous && !named) {
                    let life = lives.lock().unwrap().pop_front().unwrap_or(60);
                    ("200 OK", json!({"token": token(&tls, &query, life)}).to_string())
                } else {
                    ("401 Unauthorized", "{}".to_owned())
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                drop(stream.write_all(answer.as_bytes()));
                stream.conn.send_close_notify();
                drop(stream.flush());
            }
        });
        server
    }

    /// How a registry accepts its tokens.
    pub(crate) fn login(&self) -> Login {
        Login::Token(self.address, self.tls.certs())
    }

    pub(crate) fn queries(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

/// A JWT by a server's key; the registry trusts its certificate through the CA.
fn token(tls: &Tls, query: &str, life: i64) -> String {
    let scope = query.split(['?', '&']).find_map(|part| part.strip_prefix("scope=")).unwrap_or_default();
    let scope = scope.replace("%3A", ":").replace("%2F", "/");
    let parts: Vec<&str> = scope.split(':').collect();
    let access = match parts[..] {
        [kind, name, actions] => {
            json!([{"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}])
        }
        _ => json!([]),
    };
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
    // The registry allows for a minute of wrong clocks.
    let claims = json!({
        "iss": "test", "sub": USER, "aud": "the registry", "exp": now + life - 60, "nbf": now - 600,
        "iat": now - 600, "jti": "1", "access": access,
    });
    let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(&tls.der)]});
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &tls.key.serialize_der()).unwrap();
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}
