//! Address of the API server and our credentials: from a kubeconfig, or from the pod's ServiceAccount.
//!
//! Read: server, certificate-authority, tls-server-name, client certificates, tokens, token files, exec plugins. Refused
//! with an error, because ignoring them would change the parties of a connection: insecure-skip-tls-verify, proxy-url, user
//! name with password, auth-provider, impersonation.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use crate::credentials::{Credentials, Exec};
use crate::error::{Error, Kind, Result};

/// Where the kubelet puts a pod's credentials.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A longer file is no kubeconfig.
const MOST_KUBECONFIG: u64 = 8 << 20;

/// A client certificate and its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// Certificates, the leaf first.
    pub certificates: Vec<u8>,
    /// Private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

/// How to reach an API server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Scheme, host, port, and possibly a path before `/api`.
    pub server: String,
    /// The namespace of the context, or of the pod.
    pub namespace: String,
    /// PEM certificates that sign the API server's; without, the system's.
    pub authority: Option<Vec<u8>>,
    /// The name in the API server's certificate, if it is not the host of `server`.
    pub server_name: Option<String>,
    /// Client certificate.
    pub identity: Option<Identity>,
    /// Bearer token, or how to get one.
    pub credentials: Credentials,
    /// Requests in flight at once; watches are not counted.
    pub in_flight: usize,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl Config {
    /// For a server with nothing else set: 64 requests in flight, 30 s for an answer.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            namespace: "default".to_owned(),
            authority: None,
            server_name: None,
            identity: None,
            credentials: Credentials::None,
            in_flight: 64,
            timeout: Duration::from_secs(30),
        }
    }

    /// A program's configuration: the kubeconfig given on its command line; else those of `KUBECONFIG`; else the pod's
    /// ServiceAccount; else `~/.kube/config`.
    ///
    /// # Errors
    /// [`Kind::Config`] if none is there or what is there cannot be used.
    pub fn load(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self> {
        if let Some(path) = kubeconfig {
            return Self::kubeconfig(&[path.to_owned()], context);
        }
        if let Some(paths) = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
            let paths: Vec<PathBuf> = env::split_paths(&paths).filter(|path| path.exists()).collect();
            return Self::kubeconfig(&paths, context);
        }
        if context.is_none() && env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Self::in_cluster();
        }
        let home = env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
        match home.filter(|path| path.exists()) {
            Some(path) => Self::kubeconfig(&[path], context),
            None => Err(Error::new(
                Kind::Config,
                "no cluster is configured: pass --kubeconfig, set KUBECONFIG, or run in a pod with a ServiceAccount token",
            )),
        }
    }

    /// The API server of the cluster this pod runs in. The token is read again as the kubelet replaces it.
    ///
    /// # Errors
    /// [`Kind::Config`] if the pod has no ServiceAccount token.
    pub fn in_cluster() -> Result<Self> {
        let variable = |name: &str| {
            env::var(name).map_err(|error| {
                Error::caused(Kind::Config, format!("the variable {name} is not set"), error)
            })
        };
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let folder = Path::new(SERVICE_ACCOUNT);
        let namespace = fs::read_to_string(folder.join("namespace")).unwrap_or_default();
        let namespace = if namespace.trim().is_empty() { "default" } else { namespace.trim() };
        Ok(Self {
            authority: Some(read(&folder.join("ca.crt"))?),
            credentials: Credentials::file(folder.join("token")),
            namespace: namespace.to_owned(),
            ..Self::new(format!("https://{host}:{port}"))
        })
    }

    /// A context of kubeconfig files; the first file that has a name decides what it means.
    ///
    /// # Errors
    /// [`Kind::Config`] for files that cannot be read, names that do not exist, and settings that are not supported.
    pub fn kubeconfig(paths: &[PathBuf], context: Option<&str>) -> Result<Self> {
        let mut merged = Kubeconfig::default();
        for path in paths {
            let size = fs::metadata(path).map(|file| file.len());
            if size.is_ok_and(|size| size > MOST_KUBECONFIG) {
                return Err(Error::new(
                    Kind::Config,
                    format!("{} is too large for a kubeconfig", path.display()),
                ));
            }
            let text = String::from_utf8(read(path)?).map_err(|error| {
                Error::caused(Kind::Config, format!("{} is not UTF-8", path.display()), error)
            })?;
            merged.merge(&text, path)?;
        }
        merged.choose(context)
    }
}

/// A kubeconfig as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: Option<User>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    auth_provider: Option<serde_json::Value>,
    #[serde(rename = "as")]
    impersonate: Option<String>,
    exec: Option<Exec>,
}

impl Kubeconfig {
    fn merge(&mut self, text: &str, path: &Path) -> Result<()> {
        // serde-saphyr's message quotes the text around a fault, which may be a key or a token.
        let read: Self = serde_saphyr::from_str(text).map_err(|_| {
            Error::new(Kind::Config, format!("{} is not a kubeconfig: check its YAML", path.display()))
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let beside = |file: &mut Option<PathBuf>| {
            if let Some(file) = file {
                *file = folder.join(&*file);
            }
        };
        self.current_context =
            self.current_context.take().filter(|name| !name.is_empty()).or(read.current_context);
        for mut one in read.clusters {
            beside(&mut one.cluster.certificate_authority);
            self.clusters.push(one);
        }
        for mut one in read.users {
            if let Some(user) = &mut one.user {
                beside(&mut user.client_certificate);
                beside(&mut user.client_key);
                beside(&mut user.token_file);
            }
            self.users.push(one);
        }
        self.contexts.extend(read.contexts);
        Ok(())
    }

    fn choose(self, context: Option<&str>) -> Result<Config> {
        let absent = |what: &str, name: &str| {
            Error::new(Kind::Config, format!("the kubeconfig has no {what} named {name:?}"))
        };
        let unsupported = |what: &str| {
            Error::new(Kind::Config, format!("the kubeconfig uses {what}, which is not supported"))
        };
        let name = context.map(str::to_owned).or(self.current_context).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            Error::new(
                Kind::Config,
                "the kubeconfig has no current-context: select one with kubectl config use-context",
            )
        })?;
        let context = self.contexts.into_iter().find(|one| one.name == name);
        let context = context.ok_or_else(|| absent("context", &name))?.context;
        let cluster = self.clusters.into_iter().find(|one| one.name == context.cluster);
        let cluster = cluster.ok_or_else(|| absent("cluster", &context.cluster))?.cluster;
        let user = match context.user.as_str() {
            "" => User::default(),
            name => {
                let user = self.users.into_iter().find(|one| one.name == name);
                user.ok_or_else(|| absent("user", name))?.user.unwrap_or_default()
            }
        };
        for (used, what) in [
            (cluster.insecure_skip_tls_verify, "insecure-skip-tls-verify"),
            (cluster.proxy_url.is_some(), "proxy-url"),
            (user.username.is_some(), "a user name with password"),
            (user.auth_provider.is_some(), "auth-provider"),
            (user.impersonate.is_some(), "impersonation (as)"),
        ] {
            if used {
                return Err(unsupported(what));
            }
        }
        let authority = either(cluster.certificate_authority_data, cluster.certificate_authority.as_deref())?;
        let certificates = either(user.client_certificate_data, user.client_certificate.as_deref())?;
        let key = either(user.client_key_data, user.client_key.as_deref())?;
        let identity = match (certificates, key) {
            (Some(certificates), Some(key)) => Some(Identity { certificates, key }),
            (None, None) => None,
            _ => {
                return Err(Error::new(
                    Kind::Config,
                    "the kubeconfig's user needs both client-certificate and client-key",
                ));
            }
        };
        let credentials = match (user.token, user.token_file, user.exec) {
            (_, Some(path), _) => Credentials::file(path),
            (Some(token), None, _) if !token.is_empty() => Credentials::token(&token)?,
            (_, None, Some(exec)) => Credentials::exec(exec),
            _ => Credentials::None,
        };
        Ok(Config {
            namespace: context.namespace.filter(|name| !name.is_empty()).unwrap_or("default".to_owned()),
            authority,
            server_name: cluster.tls_server_name,
            identity,
            credentials,
            ..Config::new(cluster.server)
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|error| Error::caused(Kind::Config, format!("cannot read {}", path.display()), error))
}

/// Base64 text, or a file; the text wins, as in client-go.
fn either(data: Option<String>, path: Option<&Path>) -> Result<Option<Vec<u8>>> {
    match (data.filter(|data| !data.is_empty()), path) {
        (Some(data), _) => {
            let bytes = BASE64_STANDARD.decode(data.trim());
            bytes
                .map(Some)
                .map_err(|_| Error::new(Kind::Config, "certificate data in the kubeconfig is not base64"))
        }
        (None, Some(path)) => read(path).map(Some),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u, namespace: shop}}
- {name: b, context: {cluster: c, user: v}}
clusters:
- {name: c, cluster: {server: 'https://h:6443/x', certificate-authority-data: aGk=, tls-server-name: kubernetes}}
users:
- {name: u, user: {token: t}}
- {name: v, user: {client-certificate-data: Yw==, client-key: key.pem}}
";

    fn chosen(text: &str, context: Option<&str>) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, text).unwrap();
        fs::write(folder.path().join("key.pem"), "k").unwrap();
        Config::kubeconfig(&[path], context)
    }

    #[test]
    fn kubeconfig_contexts_are_read() {
        let config = chosen(GOOD, None).unwrap();
        assert_eq!((config.server.as_str(), config.namespace.as_str()), ("https://h:6443/x", "shop"));
        assert_eq!(config.authority.as_deref(), Some(&b"hi"[..]));
        assert_eq!(config.server_name.as_deref(), Some("kubernetes"));
        let config = chosen(GOOD, Some("b")).unwrap();
        assert_eq!(config.identity.unwrap().key, b"k", "file names are relative to the kubeconfig");
        assert_eq!(config.namespace, "default");
    }

    #[test]
    fn settings_that_cannot_be_honoured_are_refused() {
        for (from, to, expected) in [
            ("current-context: a", "current-context: z", "no context named \"z\""),
            ("current-context: a", "x: a", "no current-context"),
            ("cluster: c, user: u", "cluster: z, user: u", "no cluster named \"z\""),
            ("user: u,", "user: z,", "no user named \"z\""),
            ("{token: t}", "{as: eve}", "impersonation"),
            ("{token: t}", "{username: a, password: b}", "password"),
            ("aGk=", "'%'", "not base64"),
            ("tls-server-name: kubernetes", "insecure-skip-tls-verify: true", "insecure-skip-tls-verify"),
            ("tls-server-name: kubernetes", "proxy-url: 'http://p'", "proxy-url"),
            ("{token: t}", "{client-certificate-data: Yw==}", "both client-certificate and client-key"),
            ("clusters:", "clusters: [", "check its YAML"),
        ] {
            let error = chosen(&GOOD.replacen(from, to, 1), None).unwrap_err();
            assert!(error.to_string().contains(expected), "{to}: {error}");
            assert_eq!(error.kind(), Kind::Config);
        }
    }
}
