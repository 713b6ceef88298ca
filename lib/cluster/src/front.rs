//! The user of a request from the API server's aggregator.
//!
//! The aggregator authenticates the user, then connects with a client certificate of its own and names the user in
//! headers. The headers count only if the certificate is signed by the authority, and has one of the names, that the
//! ConfigMap kube-system/extension-apiserver-authentication gives. Without both checks any client that reaches the pod could
//! claim to be any user.

use std::collections::BTreeMap;
use std::time::SystemTime;

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use serde::Deserialize;
use std::sync::Arc;

use crate::access::User;
use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::key::Key;
use crate::resource::Resource;
use crate::transport::certificates;

const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
/// Where the API server publishes its front proxy's authority.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// The entry of its data with the authority that signs the front proxy's certificate, PEM.
pub const AUTHORITY: &str = "requestheader-client-ca-file";

/// Identity of the aggregator, and its headers that name the user. To be reloaded regularly: the API server replaces its authority.
#[derive(Clone, Debug)]
pub struct Front {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Common names that may speak for users; empty: any that the authority signed.
    names: Vec<String>,
    users: Vec<String>,
    groups: Vec<String>,
    extras: Vec<String>,
}

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl Front {
    /// Reads the ConfigMap. Needs the Role `extension-apiserver-authentication-reader`.
    ///
    /// # Errors
    /// As every call, and [`Kind::Unreadable`] if the API server has no aggregation layer configured.
    pub async fn read(client: &Client) -> Result<Self> {
        Self::parse(&Self::data(client).await?)
    }

    /// The ConfigMap's data, to see whether it changed.
    ///
    /// # Errors
    /// As every call.
    pub async fn data(client: &Client) -> Result<BTreeMap<String, String>> {
        let map: ConfigMap = client.get(CONFIG_MAPS, &Key::new(NAMESPACE, NAME)).await?;
        Ok(map.data)
    }

    /// The same from the ConfigMap's data.
    ///
    /// # Errors
    /// [`Kind::Unreadable`] if an entry is missing or cannot be read.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self> {
        let entry = |name: &str| {
            data.get(name).filter(|text| !text.trim().is_empty()).ok_or_else(|| {
                let text = format!(
                    "the ConfigMap {NAMESPACE}/{NAME} has no {name}: configure the API server's aggregation layer"
                );
                Error::new(Kind::Unreadable, text)
            })
        };
        let list = |name: &str, required: bool| -> Result<Vec<String>> {
            let text = match data.get(name) {
                None if !required => return Ok(Vec::new()),
                _ => entry(name)?,
            };
            serde_json::from_str(text).map_err(|error| {
                Error::caused(Kind::Unreadable, format!("{NAMESPACE}/{NAME}: {name}"), error)
            })
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(entry(AUTHORITY)?.as_bytes())? {
            roots.add(certificate).map_err(|error| {
                Error::caused(
                    Kind::Unreadable,
                    format!("{NAMESPACE}/{NAME}: requestheader-client-ca-file"),
                    error,
                )
            })?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| {
            Error::caused(
                Kind::Unreadable,
                "the certificates of the front proxy's authority cannot be used",
                error,
            )
        })?;
        Ok(Self {
            verifier,
            names: list("requestheader-allowed-names", false)?,
            users: list("requestheader-username-headers", true)?,
            groups: list("requestheader-group-headers", false)?,
            extras: list("requestheader-extra-headers-prefix", false)?,
        })
    }

    /// The authority, for the list of accepted issuers that a TLS server sends.
    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }

    /// The user of a request that came over a connection with this client certificate chain (leaf first), whose leaf
    /// has the common name `common_name`. TLS must have checked that the client has the certificate's key.
    ///
    /// # Errors
    /// [`Kind::Unauthorized`] without certificate, with one of another authority or name, or without user header.
    pub fn user(
        &self,
        chain: &[CertificateDer<'_>],
        common_name: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<User> {
        let refused = |text: &str| Error::new(Kind::Unauthorized, text);
        let Some((leaf, between)) = chain.split_first() else {
            return Err(refused("a client certificate of the API server's front proxy is required"));
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let checked = self.verifier.verify_client_cert(leaf, between, UnixTime::since_unix_epoch(now));
        checked.map_err(|error| {
            Error::caused(
                Kind::Unauthorized,
                "the client certificate is not the API server's front proxy's",
                error,
            )
        })?;
        let name = common_name.unwrap_or_default();
        if !self.names.is_empty() && !self.names.iter().any(|allowed| allowed == name) {
            return Err(refused(
                "the client certificate's name is not one of the front proxy's allowed names",
            ));
        }
        self.named(headers).ok_or_else(|| refused("the request names no user"))
    }

    fn named(&self, headers: &HeaderMap) -> Option<User> {
        let text = |value: &http::HeaderValue| String::from_utf8(value.as_bytes().to_vec()).ok();
        let username =
            self.users.iter().find_map(|name| text(headers.get(name)?).filter(|user| !user.is_empty()))?;
        let groups = self.groups.iter().flat_map(|name| headers.get_all(name)).filter_map(text).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extras {
            let prefix = prefix.to_ascii_lowercase();
            for (name, value) in headers {
                if let (Some(key), Some(value)) = (name.as_str().strip_prefix(&prefix), text(value)) {
                    // Keys are escaped, because they may hold a slash.
                    let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
                    extra.entry(key).or_default().push(value);
                }
            }
        }
        Some(User { username, uid: String::new(), groups, extra })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn leaf(issuer: &CertifiedIssuer<'static, KeyPair>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap().der().clone()
    }

    fn front(issuer: &CertifiedIssuer<'static, KeyPair>) -> Front {
        let data = [
            ("requestheader-client-ca-file", issuer.pem()),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#.to_owned()),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#.to_owned()),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#.to_owned()),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#.to_owned()),
        ];
        let data: BTreeMap<_, _> = data.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        Front::parse(&data).unwrap()
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", "bob".parse().unwrap());
        headers.append("x-remote-group", "a".parse().unwrap());
        headers.append("x-remote-group", "b".parse().unwrap());
        headers.insert("x-remote-extra-example.com%2fnode", "n1".parse().unwrap());
        headers
    }

    #[test]
    fn users_are_taken_from_headers_of_the_front_proxy_only() {
        let (ours, other) = (authority(), authority());
        let front = front(&ours);
        let user = front.user(&[leaf(&ours)], Some("front-proxy-client"), &headers()).unwrap();
        assert_eq!(
            (user.username.as_str(), user.groups.as_slice()),
            ("bob", &["a".to_owned(), "b".to_owned()][..])
        );
        assert_eq!(user.extra["example.com/node"], ["n1"]);
        let refused: [(Vec<CertificateDer<'static>>, _, HeaderMap); 5] = [
            (vec![], Some("front-proxy-client"), headers()),
            (vec![leaf(&other)], Some("front-proxy-client"), headers()),
            (vec![leaf(&ours)], Some("eve"), headers()),
            (vec![leaf(&ours)], None, headers()),
            (vec![leaf(&ours)], Some("front-proxy-client"), HeaderMap::new()),
        ];
        for (chain, name, headers) in refused {
            let error = front.user(&chain, name, &headers).unwrap_err();
            assert_eq!(error.kind(), Kind::Unauthorized, "{name:?} {headers:?}");
        }
    }

    #[test]
    fn missing_aggregation_layer_is_an_error() {
        assert!(Front::parse(&BTreeMap::new()).unwrap_err().to_string().contains("aggregation layer"));
    }
}
