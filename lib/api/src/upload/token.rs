//! Tokens of uploads and clones: JSON web tokens (RFC 7519), signed by RSA-PSS (PS256) with the key of upstream's Secret
//! `cdi-api-signing-key` (`pkg/token`). Signers and verifiers share these types.
//!
//! ```text
//!  Grant ─► Signer ─► token ─► Keys ─► Claims ─► Grant::upload_target
//!           private            public, those of today and those replaced a moment ago
//! ```
//!
//! Not here: clocks (times are passed in, in seconds of Unix time), files, what a token opens.

use std::collections::BTreeMap;
use std::fmt;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The issuer of tokens for clients.
pub const ISSUER: &str = "cdi-apiserver";
/// Seconds that a token for a client is good.
pub const LIFETIME: u64 = 300;
/// Seconds by which the clocks of two machines may differ.
pub const LEEWAY: u64 = 10;
/// Keys that are trusted at once.
pub const KEYS_MAX: usize = 64;
/// Bytes of a token that is looked at.
pub const TOKEN_MAX: usize = 16 << 10;
/// Resource that tokens are for.
const CLAIMS: &str = "persistentvolumeclaims";

/// Purpose of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// An upload into the claim.
    Upload,
    /// A clone of the claim.
    Clone,
    /// An unknown purpose.
    #[default]
    #[serde(other)]
    Other,
}

/// Grant of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grant {
    /// The operation.
    pub operation: Operation,
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The object's namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The kind of object.
    pub resource: Resource,
    /// For clones: `targetNamespace`, `targetName`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

/// A kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// API group; that of Kubernetes itself is empty.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Its name in paths.
    pub resource: String,
}

/// A claim that may be uploaded to. Both names are well-formed, and fit into a path and a host's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    namespace: String,
    name: String,
}

impl Target {
    /// The claim `name` of `namespace`; `None` when either is no name that Kubernetes has (RFC 1123).
    pub fn new(namespace: &str, name: &str) -> Option<Self> {
        let label = |text: &str| {
            let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
        };
        let good =
            label(namespace) && namespace.len() <= 63 && name.len() <= 253 && name.split('.').all(label);
        good.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Reads `namespace/name`.
    pub fn parse(text: &str) -> Option<Self> {
        text.split_once('/').and_then(|(namespace, name)| Self::new(namespace, name))
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Grant {
    /// An upload to `target`.
    pub fn upload(target: &Target) -> Self {
        Self {
            operation: Operation::Upload,
            name: target.name.clone(),
            namespace: target.namespace.clone(),
            resource: Resource {
                group: String::new(),
                version: "v1".to_owned(),
                resource: CLAIMS.to_owned(),
            },
            params: BTreeMap::new(),
        }
    }

    /// The claim that may be uploaded to; `None` when this grants something else. The name in a token is chosen by its
    /// client, so it is validated here.
    pub fn upload_target(&self) -> Option<Target> {
        let upload = self.operation == Operation::Upload && self.resource.resource == CLAIMS;
        upload.then(|| Target::new(&self.namespace, &self.name)).flatten()
    }
}

/// Content of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Its grant.
    #[serde(flatten)]
    pub grant: Grant,
    /// The issuer.
    pub iss: String,
    /// When it was signed.
    #[serde(default)]
    pub iat: u64,
    /// When it begins to be good.
    #[serde(default)]
    pub nbf: u64,
    /// When it ends to be good.
    pub exp: u64,
}

/// Why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// Malformed, of another algorithm, or not signed by a trusted key.
    #[error("the token is malformed or not signed by a trusted key")]
    Forged,
    /// It was good once.
    #[error("the token has expired; request a new one")]
    Expired,
    /// It will be good.
    #[error("the token is not valid yet; check the clocks of the servers")]
    Early,
    /// It is signed for something else.
    #[error("the token has another issuer; request one as an UploadTokenRequest")]
    Issuer,
}

/// Why there is no key.
#[derive(Clone, Debug, Error)]
pub enum KeyError {
    /// A text is no RSA key in PEM.
    #[error("not an RSA key in PEM")]
    Pem(#[source] jsonwebtoken::errors::Error),
    /// A private key where a public one belongs.
    #[error("a private key in place of a public key")]
    Private,
    /// A text holds no key.
    #[error("no key in PEM at all")]
    None,
    /// A text holds more keys than may be trusted at once.
    #[error("more than {KEYS_MAX} keys in one file")]
    TooMany,
    /// The key cannot sign, for example because it is too short.
    #[error("the key cannot sign")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

/// Signs tokens.
pub struct Signer(EncodingKey);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer (not shown)")
    }
}

impl Signer {
    /// With a private key in PEM: PKCS #1 as upstream's `id_rsa`, or PKCS #8.
    ///
    /// # Errors
    /// [`KeyError::Pem`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        EncodingKey::from_rsa_pem(pem.as_bytes()).map(Self).map_err(KeyError::Pem)
    }

    /// A token of [`ISSUER`] that is good from `now` for `lifetime` seconds.
    ///
    /// # Errors
    /// [`KeyError::Sign`].
    pub fn sign(&self, grant: &Grant, now: u64, lifetime: u64) -> Result<String, KeyError> {
        self.sign_claims(&Claims {
            grant: grant.clone(),
            iss: ISSUER.to_owned(),
            iat: now,
            nbf: now,
            exp: now.saturating_add(lifetime),
        })
    }

    /// A token with this content.
    ///
    /// # Errors
    /// [`KeyError::Sign`].
    pub fn sign_claims(&self, claims: &Claims) -> Result<String, KeyError> {
        jsonwebtoken::encode(&Header::new(Algorithm::PS256), claims, &self.0).map_err(KeyError::Sign)
    }
}

/// A public key.
#[derive(Clone)]
pub struct PublicKey(DecodingKey);

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicKey")
    }
}

impl PartialEq for PublicKey {
    /// Whether both are one key, however they were written.
    fn eq(&self, other: &Self) -> bool {
        let bytes = |key: &Self| key.0.try_get_as_bytes().ok().map(<[u8]>::to_vec);
        bytes(self).is_some() && bytes(self) == bytes(other)
    }
}

impl PublicKey {
    /// All keys of a text in PEM: PKCS #1, or SPKI as upstream's `id_rsa.pub`.
    ///
    /// # Errors
    /// When one of them is no RSA key, or there is none, or there are more than [`KEYS_MAX`].
    pub fn all_from_pem(pem: &str) -> Result<Vec<Self>, KeyError> {
        let begins: Vec<usize> = pem.match_indices("-----BEGIN ").map(|(at, _)| at).collect();
        if begins.len() > KEYS_MAX {
            return Err(KeyError::TooMany);
        }
        let ends = begins.iter().skip(1).copied().chain([pem.len()]);
        let blocks = begins.iter().copied().zip(ends).filter_map(|(begin, end)| pem.get(begin..end));
        let read = |block: &str| match block.contains("PRIVATE KEY") {
            true => Err(KeyError::Private),
            false => DecodingKey::from_rsa_pem(block.as_bytes()).map(Self).map_err(KeyError::Pem),
        };
        let keys = blocks.map(read).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(KeyError::None) } else { Ok(keys) }
    }
}

/// The trusted keys.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    current: Vec<PublicKey>,
    /// Replaced keys, the last one first, and until when they are trusted.
    replaced: Vec<(PublicKey, u64)>,
}

impl Keys {
    /// Trusts `current` from `now` on. A replaced key stays trusted until the last token that it signed has expired; one of
    /// `revoked` is rejected at once, wherever else it is listed.
    pub fn replace(&mut self, current: Vec<PublicKey>, revoked: &[PublicKey], now: u64) {
        let until = now.saturating_add(LIFETIME + LEEWAY);
        let before = std::mem::replace(&mut self.current, current);
        self.replaced.splice(0..0, before.into_iter().map(|key| (key, until)));
        self.replaced
            .retain(|(key, until)| *until >= now && !self.current.contains(key) && !revoked.contains(key));
        self.current.retain(|key| !revoked.contains(key));
        self.current.truncate(KEYS_MAX);
        self.replaced.truncate(KEYS_MAX - self.current.len());
    }

    /// Keys that may be trusted.
    pub fn len(&self) -> usize {
        self.current.len() + self.replaced.len()
    }

    /// Whether no key is trusted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Content of a token of [`ISSUER`], if it is valid at `now`.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(&self, token: &str, now: u64) -> Result<Claims, TokenError> {
        if token.len() > TOKEN_MAX {
            return Err(TokenError::Forged);
        }
        let mut rules = Validation::new(Algorithm::PS256);
        // Times are checked below, by the clock that was passed in; tokens have no audience.
        (rules.validate_exp, rules.validate_aud) = (false, false);
        rules.required_spec_claims.clear();
        let replaced = self.replaced.iter().filter(|(_, until)| *until >= now).map(|(key, _)| key);
        let claims = self
            .current
            .iter()
            .chain(replaced)
            .find_map(|key| jsonwebtoken::decode::<Claims>(token, &key.0, &rules).ok())
            .ok_or(TokenError::Forged)?
            .claims;
        if claims.iss != ISSUER {
            return Err(TokenError::Issuer);
        }
        if claims.exp.saturating_add(LEEWAY) < now {
            return Err(TokenError::Expired);
        }
        if claims.nbf.max(claims.iat) > now.saturating_add(LEEWAY) {
            return Err(TokenError::Early);
        }
        Ok(claims)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    struct Pair {
        private: String,
        public: String,
        /// PKCS #8.
        der: Vec<u8>,
    }

    fn pair() -> Pair {
        let size = rcgen::RsaKeySize::_2048;
        let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
        Pair { private: key.serialize_pem(), public: key.public_key_pem(), der: key.serialize_der() }
    }

    fn public(pair: &Pair) -> PublicKey {
        PublicKey::all_from_pem(&pair.public).unwrap().remove(0)
    }

    fn keys(pairs: &[&Pair]) -> Keys {
        let mut keys = Keys::default();
        keys.replace(pairs.iter().map(|pair| public(pair)).collect(), &[], NOW);
        keys
    }

    fn grant() -> Grant {
        Grant::upload(&Target::new("ns", "disk").unwrap())
    }

    fn encoded(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    #[test]
    fn a_token_holds_its_grant() {
        let pair = pair();
        let token = Signer::from_pem(&pair.private).unwrap().sign(&grant(), NOW, LIFETIME).unwrap();
        let claims = keys(&[&pair]).verify(&token, NOW).unwrap();
        assert_eq!(claims.grant.upload_target(), Target::parse("ns/disk"));
        assert_eq!((claims.iat, claims.nbf, claims.exp), (NOW, NOW, NOW + 300));
        // The fields are upstream's.
        let middle = token.split('.').nth(1).unwrap();
        let written: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(middle).unwrap()).unwrap();
        assert_eq!(
            written,
            json!({
                "operation": "Upload", "name": "disk", "namespace": "ns",
                "resource": {"group": "", "version": "v1", "resource": "persistentvolumeclaims"},
                "iss": "cdi-apiserver", "iat": NOW, "nbf": NOW, "exp": NOW + 300,
            })
        );
    }

    #[test]
    fn keys_are_read_as_upstream_writes_them() {
        let pair = pair();
        // PKCS #8 is a header of 26 bytes around PKCS #1 for keys of this size.
        let inner = STANDARD.encode(&pair.der[26..]);
        let old = format!("-----BEGIN RSA PRIVATE KEY-----\n{inner}\n-----END RSA PRIVATE KEY-----\n");
        let token = Signer::from_pem(&old).unwrap().sign(&grant(), NOW, LIFETIME).unwrap();
        assert!(keys(&[&pair]).verify(&token, NOW).is_ok());
        let other = super::tests::pair();
        let two = PublicKey::all_from_pem(&format!("words\n{}\n{}", pair.public, other.public)).unwrap();
        assert_eq!(two, [public(&pair), public(&other)]);
        for (text, expected) in [
            ("", "no key"),
            ("nothing", "no key"),
            ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "not an RSA key"),
            ("-----BEGIN PUBLIC KEY-----", "not an RSA key"),
            (&pair.private, "private"),
            (&pair.public.repeat(65), "more than 64"),
        ] {
            let error = PublicKey::all_from_pem(text).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
        assert!(Signer::from_pem(&pair.public).is_err() || Signer::from_pem("x").is_err());
        assert!(!format!("{:?}", Signer::from_pem(&pair.private)).contains("MII"));
    }

    #[test]
    fn verify_rejects_invalid_tokens() {
        let (good, other) = (pair(), pair());
        let signer = Signer::from_pem(&good.private).unwrap();
        let believed = keys(&[&good]);
        let claims = Claims { grant: grant(), iss: ISSUER.into(), iat: NOW, nbf: NOW, exp: NOW + LIFETIME };
        let token = signer.sign_claims(&claims).unwrap();
        let parts: Vec<&str> = token.split('.').collect();
        let [head, body, signature] = parts[..] else { unreachable!() };
        let none = encoded(&json!({"alg": "none", "typ": "JWT"}));
        let shared = encoded(&json!({"alg": "HS256", "typ": "JWT"}));
        let weaker = encoded(&json!({"alg": "RS256", "typ": "JWT"}));
        let changed = encoded(&json!({"operation": "Upload", "name": "mine", "namespace": "ns"}));
        let by_other = Signer::from_pem(&other.private).unwrap().sign_claims(&claims).unwrap();
        let hmac = jsonwebtoken::encode(
            &Header::new(Algorithm::HS256),
            &claims,
            &EncodingKey::from_secret(good.public.as_bytes()),
        );
        for forged in [
            String::new(),
            "..".into(),
            "a.b".into(),
            "x".repeat(TOKEN_MAX + 1),
            format!("{none}.{body}."),
            format!("{none}.{body}.{signature}"),
            format!("{shared}.{body}.{signature}"),
            format!("{weaker}.{body}.{signature}"),
            format!("{head}.{changed}.{signature}"),
            format!("{head}.{body}."),
            format!("{head}.{body}.{}", &signature[..signature.len() - 4]),
            format!("{token}.{signature}"),
            by_other,
            hmac.unwrap(),
        ] {
            assert_eq!(believed.verify(&forged, NOW), Err(TokenError::Forged), "{forged}");
        }
        let signed = |change: &dyn Fn(&mut Claims)| {
            let mut claims = claims.clone();
            change(&mut claims);
            believed.verify(&signer.sign_claims(&claims).unwrap(), NOW).map(|_| ())
        };
        for (change, expected) in [
            (&(|claims: &mut Claims| claims.exp = NOW - LEEWAY) as &dyn Fn(&mut Claims), Ok(())),
            (&|claims| claims.exp = NOW - LEEWAY - 1, Err(TokenError::Expired)),
            (&|claims| claims.nbf = NOW + LEEWAY, Ok(())),
            (&|claims| claims.nbf = NOW + LEEWAY + 1, Err(TokenError::Early)),
            (&|claims| claims.iat = NOW + LEEWAY + 1, Err(TokenError::Early)),
            (&|claims| claims.iss = "cdi-deployment".into(), Err(TokenError::Issuer)),
            (&|claims| claims.iss = String::new(), Err(TokenError::Issuer)),
        ] {
            assert_eq!(signed(change), expected);
        }
        assert!(Keys::default().is_empty());
        assert_eq!(Keys::default().verify(&token, NOW), Err(TokenError::Forged));
    }

    #[test]
    fn a_replaced_key_is_trusted_until_its_last_token_has_expired() {
        let (old, new) = (pair(), pair());
        let sign = |pair: &Pair, at| Signer::from_pem(&pair.private).unwrap().sign(&grant(), at, LIFETIME);
        let mut keys = keys(&[&old]);
        let last = sign(&old, NOW).unwrap();
        keys.replace(vec![public(&new)], &[], NOW);
        assert_eq!(keys.len(), 2);
        assert!(keys.verify(&sign(&new, NOW).unwrap(), NOW).is_ok());
        for (later, expected) in
            [(0, true), (LIFETIME, true), (LIFETIME + LEEWAY, true), (LIFETIME + LEEWAY + 1, false)]
        {
            assert_eq!(keys.verify(&last, NOW + later).is_ok(), expected, "{later}");
        }
        // Tokens that it signs later are not trusted for ever.
        let forever = sign(&old, NOW + LIFETIME).unwrap();
        assert!(keys.verify(&forever, NOW + LIFETIME + LEEWAY + 1).is_err());
        // Reading the same keys again changes nothing.
        keys.replace(vec![public(&new)], &[], NOW + 100);
        assert_eq!(keys.len(), 2);
        assert!(keys.verify(&last, NOW + LIFETIME).is_ok());
        keys.replace(vec![public(&new)], &[], NOW + LIFETIME + LEEWAY + 1);
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn a_revoked_key_fails_at_once() {
        let (old, new) = (pair(), pair());
        let sign =
            |pair: &Pair| Signer::from_pem(&pair.private).unwrap().sign(&grant(), NOW, LIFETIME).unwrap();
        let mut keys = keys(&[&old]);
        assert!(keys.verify(&sign(&old), NOW).is_ok());
        keys.replace(vec![public(&new)], &[public(&old)], NOW);
        assert!(keys.verify(&sign(&old), NOW).is_err());
        assert!(keys.verify(&sign(&new), NOW).is_ok());
        // Also when it is still listed as the signing key.
        keys.replace(vec![public(&old), public(&new)], &[public(&new)], NOW);
        assert!(keys.verify(&sign(&old), NOW).is_ok());
        assert!(keys.verify(&sign(&new), NOW).is_err());
        keys.replace(vec![public(&old)], &[public(&old)], NOW);
        assert!(keys.is_empty());
    }

    #[test]
    fn at_most_sixty_four_keys_are_trusted() {
        let pairs: Vec<Pair> = (0..3).map(|_| pair()).collect();
        let mut keys = Keys::default();
        // The same two in turns count once each.
        for turn in 0..200 {
            keys.replace(vec![public(&pairs[turn % 2])], &[], NOW);
        }
        assert_eq!(keys.len(), 2);
        keys.replaced = vec![(public(&pairs[0]), NOW + 5); 100];
        keys.replace(vec![public(&pairs[2])], &[], NOW);
        assert_eq!(keys.len(), KEYS_MAX);
        // The one that was replaced last is among them.
        let token = Signer::from_pem(&pairs[1].private).unwrap().sign(&grant(), NOW, LIFETIME).unwrap();
        assert!(keys.verify(&token, NOW).is_ok());
    }

    #[test]
    fn only_uploads_to_well_formed_claims() {
        for name in ["disk", "a.b-c", "0", &"x".repeat(63)] {
            assert!(Target::new("ns", name).is_some(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "../secrets/x",
            "A",
            "a..b",
            "-a",
            "a-",
            "a?b",
            "a%2fb",
            "ä",
            &"x".repeat(254),
        ] {
            assert!(Target::new("ns", name).is_none(), "{name}");
            assert!(Grant { name: name.to_owned(), ..grant() }.upload_target().is_none(), "{name}");
        }
        for namespace in ["", "a.b", "a/b", &"x".repeat(64)] {
            assert!(Target::new(namespace, "disk").is_none(), "{namespace}");
        }
        let resource = Resource { resource: "secrets".into(), ..grant().resource };
        assert!(Grant { resource, ..grant() }.upload_target().is_none());
        for operation in [Operation::Clone, Operation::Other] {
            assert!(Grant { operation, ..grant() }.upload_target().is_none());
        }
        // Unknown values are read, and grant nothing.
        let unknown = json!({"operation": "Delete", "iss": ISSUER, "exp": 5, "aud": "x", "more": {}});
        let claims: Claims = serde_json::from_value(unknown).unwrap();
        assert_eq!((claims.grant.operation, claims.grant.upload_target()), (Operation::Other, None));
    }
}
