//! Bearer tokens: fixed, from a file that the kubelet replaces, or from an exec plugin of a kubeconfig.
//! Not here: reading the kubeconfig (`config`).

use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::HeaderValue;
use serde::Deserialize;
use serde_json::json;

use crate::error::{Error, Kind, Result};

/// How long a token from a file is used before the file is read again.
const FILE_AGE: Duration = Duration::from_secs(60);
/// How long an exec plugin may run.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
/// A token is replaced so long before it expires.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);

/// An exec plugin, as kubeconfig describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exec {
    api_version: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// Our identity at the API server, in addition to a client certificate. Clones share the files' content.
#[derive(Clone)]
pub enum Credentials {
    /// No credentials in requests: anonymous, or a client certificate in the TLS handshake.
    None,
    /// A fixed token.
    Token(HeaderValue),
    /// A token that is read or made again when it ages.
    Renewed(Arc<Renewed>),
}

/// A token with a source to renew it from.
pub struct Renewed {
    source: Source,
    held: std::sync::Mutex<Option<CachedHeader>>,
    /// One renewal at a time.
    renewing: tokio::sync::Mutex<()>,
}

enum Source {
    File(PathBuf),
    Exec(Exec),
}

#[derive(Clone)]
struct CachedHeader {
    header: HeaderValue,
    until: Instant,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token",
            Self::Renewed(_) => "Renewed",
        })
    }
}

impl Credentials {
    /// A fixed bearer token.
    ///
    /// # Errors
    /// [`Kind::Config`] if it has characters that a header cannot carry.
    pub fn token(token: &str) -> Result<Self> {
        Ok(Self::Token(header(token)?))
    }

    /// A token in a file.
    pub fn file(path: PathBuf) -> Self {
        Self::renewed(Source::File(path))
    }

    /// The token that a program prints.
    pub fn exec(exec: Exec) -> Self {
        Self::renewed(Source::Exec(exec))
    }

    fn renewed(source: Source) -> Self {
        Self::Renewed(Arc::new(Renewed { source, held: None.into(), renewing: ().into() }))
    }

    /// The `Authorization` header, from a renewed source if `stale` (the API server refused the last one).
    pub(crate) async fn header(&self, stale: bool) -> Result<Option<HeaderValue>> {
        match self {
            Self::None => Ok(None),
            Self::Token(header) => Ok(Some(header.clone())),
            Self::Renewed(renewed) => renewed.header(stale).await.map(Some),
        }
    }

    /// Whether another attempt after 401 may have another token.
    pub(crate) fn renewable(&self) -> bool {
        matches!(self, Self::Renewed(_))
    }
}

impl Renewed {
    async fn header(&self, stale: bool) -> Result<HeaderValue> {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let before = held();
        if let Some(held) = &before
            && !stale
            && held.until > Instant::now()
        {
            return Ok(held.header.clone());
        }
        let _one = self.renewing.lock().await;
        if let (Some(now), before) = (held(), before)
            && before.is_none_or(|before| before.until != now.until)
            && now.until > Instant::now()
        {
            return Ok(now.header);
        }
        let renewed = match &self.source {
            Source::File(path) => {
                // A small file in memory: no thread is worth it.
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Error::caused(
                        Kind::Config,
                        format!("cannot read the token file {}", path.display()),
                        error,
                    )
                })?;
                CachedHeader { header: header(text.trim())?, until: Instant::now() + FILE_AGE }
            }
            Source::Exec(exec) => exec.run().await?,
        };
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewed.clone());
        Ok(renewed.header)
    }
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecStatus {
    token: Option<String>,
    expiration_timestamp: Option<jiff::Timestamp>,
}

impl Exec {
    async fn run(&self) -> Result<CachedHeader> {
        let failed = |text: String| Error::new(Kind::Config, format!("exec plugin {}: {text}", self.command));
        let version =
            if self.api_version.is_empty() { "client.authentication.k8s.io/v1" } else { &self.api_version };
        let info = json!({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": false}});
        let mut command = tokio::process::Command::new(&self.command);
        command.args(self.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
        command.envs(self.env.iter().flatten().map(|one| (&one.name, &one.value)));
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
        let output = tokio::time::timeout(EXEC_TIMEOUT, command.output()).await;
        let output = output.map_err(|_| failed(format!("no answer in {EXEC_TIMEOUT:?}")))?;
        let output = output.map_err(|error| failed(format!("cannot be started: {error}")))?;
        if !output.status.success() {
            return Err(failed(format!("failed ({})", output.status)));
        }
        // The parser's message would quote the output, which holds the token.
        let read: ExecCredential = serde_json::from_slice(&output.stdout)
            .map_err(|_| failed("its output is not an ExecCredential".to_owned()))?;
        let Some(ExecStatus { token: Some(token), expiration_timestamp }) = read.status else {
            return Err(failed(
                "its ExecCredential has no token; client certificates from plugins are not supported"
                    .to_owned(),
            ));
        };
        let lives = expiration_timestamp.map_or(Duration::from_secs(3600), |expiry| {
            SystemTime::from(expiry).duration_since(SystemTime::now()).unwrap_or_default()
        });
        Ok(CachedHeader {
            header: header(&token)?,
            until: Instant::now() + lives.saturating_sub(EXPIRY_MARGIN),
        })
    }
}

fn header(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
        Error::new(Kind::Config, "the token holds characters that no token has; check its file")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(credentials: &Credentials, stale: bool) -> String {
        credentials.header(stale).await.unwrap().unwrap().to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn refused_token_is_read_again_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let credentials = Credentials::file(path.clone());
        assert_eq!(text(&credentials, false).await, "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(text(&credentials, false).await, "Bearer one");
        assert_eq!(text(&credentials, true).await, "Bearer two");
        assert_eq!(text(&credentials, false).await, "Bearer two");
    }

    #[tokio::test]
    async fn exec_plugins_give_tokens_and_their_failures_show_no_secret() {
        let plugin = |script: &str| {
            let exec =
                json!({"command": "sh", "args": ["-c", script], "env": [{"name": "T", "value": "sesame"}]});
            Credentials::exec(serde_json::from_value(exec).unwrap())
        };
        let good = plugin(r#"echo "{\"status\":{\"token\":\"$T\"}}""#);
        assert_eq!(text(&good, false).await, "Bearer sesame");
        for script in ["echo sesame", "exit 3", "echo '{\"status\":{}}'"] {
            let error = plugin(script).header(false).await.unwrap_err();
            assert!(!error.chain().contains("sesame"), "{error}");
        }
    }
}
