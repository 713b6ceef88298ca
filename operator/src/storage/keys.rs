//! The signing keys of tokens in Secret `cdi-api-signing-key`: read, written, and replaced when they are due.
//!
//! Entries: `id_rsa`, the key that signs; `id_rsa.pub`, the public halves of all trusted keys, which the upload proxy
//! mounts; `ring`, all keys with their times; `extended`, the key of tokens that outlive rotations, which only the operator
//! verifies. A Secret with upstream's two entries is taken over.
//!
//! When a key is due is decided by [`super::tokens`] (pure).

use api::upload::token::{Claims, Grant, KeyError, Keys, PublicKey, Signer, TokenError};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cluster::{Client, Key as ObjectKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::resources::SECRETS;
use super::tokens::{Change, Key, Ring};

/// Seconds for which an extended token is good: ten years, as upstream's.
const EXTENDED: u64 = 10 * 365 * 24 * 3600;

/// The Secret.
pub const SECRET: &str = "cdi-api-signing-key";

/// All keys of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningKeys {
    /// Keys of tokens for clients.
    pub ring: Ring,
    /// The key of tokens that outlive rotations.
    pub extended: Option<Key>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    made: u64,
    private: String,
    public: String,
}

impl From<Stored> for Key {
    fn from(Stored { made, private, public }: Stored) -> Self {
        Self { made, private, public }
    }
}

impl From<&Key> for Stored {
    fn from(Key { made, private, public }: &Key) -> Self {
        Self { made: *made, private: private.clone(), public: public.clone() }
    }
}

impl From<&Value> for SigningKeys {
    fn from(secret: &Value) -> Self {
        let entry = |name: &str| {
            let text = BASE64_STANDARD.decode(secret["data"][name].as_str()?).ok()?;
            String::from_utf8(text).ok()
        };
        let stored = entry("ring").and_then(|text| serde_json::from_str::<Vec<Stored>>(&text).ok());
        let keys = match (stored, entry("id_rsa"), entry("id_rsa.pub")) {
            (Some(stored), ..) => stored.into_iter().map(Key::from).collect(),
            // Upstream's: it gets a successor at once.
            (None, Some(private), Some(public)) => vec![Key { made: 0, private, public }],
            (None, ..) => Vec::new(),
        };
        let extended = entry("extended").and_then(|text| serde_json::from_str::<Stored>(&text).ok());
        Self { ring: Ring::new(keys), extended: extended.map(Key::from) }
    }
}

impl SigningKeys {
    /// The Secret's data.
    fn data(&self, now: u64) -> Value {
        let encoded = |text: String| json!(BASE64_STANDARD.encode(text));
        let list: Vec<Stored> = self.ring.keys().iter().map(Stored::from).collect();
        let mut data = json!({
            "ring": encoded(json!(list).to_string()),
            "id_rsa": encoded(self.ring.private(now).unwrap_or_default().to_owned()),
            "id_rsa.pub": encoded(self.ring.published()),
        });
        if let Some(key) = &self.extended {
            data["extended"] = encoded(json!(Stored::from(key)).to_string());
        }
        data
    }
}

impl SigningKeys {
    /// A token for a clone by a client.
    ///
    /// # Errors
    /// When there is no key yet.
    pub fn sign(&self, grant: &Grant, now: u64) -> Result<String, KeyError> {
        self.ring.sign(grant, now)
    }

    /// The content of a client's token.
    ///
    /// # Errors
    /// When it is not trusted.
    pub fn verify(&self, token: &str, now: u64) -> Result<Claims, TokenError> {
        trusted(&self.ring.published(), now).verify(token, now)
    }

    /// A token that outlives rotations.
    ///
    /// # Errors
    /// When there is no key yet.
    pub fn extend(&self, grant: &Grant, now: u64) -> Result<String, KeyError> {
        let key = self.extended.as_ref().ok_or(KeyError::None)?;
        Signer::from_pem(&key.private)?.sign(grant, now, EXTENDED)
    }

    /// The content of such a token.
    ///
    /// # Errors
    /// When it is not trusted.
    pub fn verify_extended(&self, token: &str, now: u64) -> Result<Claims, TokenError> {
        let public = self.extended.as_ref().map(|key| key.public.as_str()).unwrap_or_default();
        trusted(public, now).verify(token, now)
    }
}

/// The keys of a PEM text; none when it holds none, so that no token is trusted.
fn trusted(pem: &str, now: u64) -> Keys {
    let mut keys = Keys::default();
    keys.replace(PublicKey::all_from_pem(pem).unwrap_or_default(), &[], now);
    keys
}

/// Reads the keys.
///
/// # Errors
/// Those of the API server.
pub async fn read(client: &Client, namespace: &str) -> cluster::Result<SigningKeys> {
    let secret: Option<Value> = client.find_cached(SECRETS, &ObjectKey::new(namespace, SECRET)).await?;
    Ok(secret.as_ref().map(SigningKeys::from).unwrap_or_default())
}

/// Makes and drops keys that are due, and writes the Secret.
///
/// # Errors
/// Those of the API server, and when the system makes no key.
pub(super) async fn keep(client: &Client, namespace: &str, now: u64) -> cluster::Result<()> {
    let key = ObjectKey::new(namespace, SECRET);
    let secret: Option<Value> = client.find(SECRETS, &key).await?;
    let before = secret.as_ref().map(SigningKeys::from).unwrap_or_default();
    let mut keys = before.clone();
    loop {
        match keys.ring.change(now) {
            Change::Make => keys.ring.add(make(now).await?),
            Change::Drop => keys.ring.drop_expired(now),
            Change::None(_) => break,
        }
    }
    if keys.extended.is_none() {
        keys.extended = Some(make(now).await?);
    }
    let data = keys.data(now);
    // The key that signs changes some time after its successor was made.
    if keys == before && secret.as_ref().is_some_and(|secret| secret["data"]["id_rsa"] == data["id_rsa"]) {
        return Ok(());
    }
    let mut object = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {"name": SECRET, "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "ferrovirt-operator", "app.kubernetes.io/part-of": "ferrovirt"}}});
    tracing::info!(keys = keys.ring.keys().len(), "signing keys changed");
    let _: Value = match secret {
        None => client.create(SECRETS, namespace, &object).await?,
        Some(secret) => {
            object["metadata"]["resourceVersion"] = secret["metadata"]["resourceVersion"].clone();
            client.replace(SECRETS, &key, &object).await?
        }
    };
    Ok(())
}

/// Makes a key pair, on a thread: it takes up to a second.
async fn make(now: u64) -> cluster::Result<Key> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        cluster::Error::caused(cluster::Kind::Input, "cannot make a key pair", error)
    };
    let made = tokio::task::spawn_blocking(|| {
        rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
    });
    let pair = made.await.map_err(|error| failed(error.into()))?.map_err(|error| failed(error.into()))?;
    Ok(Key { made: now, private: pair.serialize_pem(), public: pair.public_key_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(made: u64) -> Key {
        Key { made, private: format!("private {made}"), public: format!("public {made}\n") }
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let keys = SigningKeys { ring: Ring::new(vec![key(1), key(2)]), extended: Some(key(3)) };
        assert_eq!(SigningKeys::from(&json!({"data": keys.data(9)})), keys);
        assert_eq!(SigningKeys::from(&Value::Null), SigningKeys::default());
    }

    #[test]
    fn upstreams_key_is_taken_over_and_followed_by_one_of_ours() {
        let encoded = |text: &str| json!(BASE64_STANDARD.encode(text));
        let secret = json!({"data": {"id_rsa": encoded("private"), "id_rsa.pub": encoded("public")}});
        let keys = SigningKeys::from(&secret);
        assert_eq!(keys.ring.keys().len(), 1);
        assert_eq!(keys.ring.change(1_800_000_000), Change::Make);
    }
}
