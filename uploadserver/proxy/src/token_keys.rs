//! Public keys that verify tokens, from the environment and from files. The files are read again for each token, and every
//! second, so that a key which was replaced before its first token came is known. Not here: the content of a token, and how
//! long a replaced key stays valid (`api::upload::token`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use api::upload::token::{Claims, Keys, PublicKey, TokenError};

use serve::failure::{Error, Kind, Result};

/// How often keys are read without a token.
const AGAIN: Duration = Duration::from_secs(1);

/// Where keys come from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// In PEM.
    pub(crate) text: Option<String>,
    /// A file in PEM, which goes over `text` while it is there.
    pub(crate) file: Option<PathBuf>,
    /// A file in PEM of revoked keys. It may be absent.
    pub(crate) revoked: Option<PathBuf>,
}

impl Origin {
    fn current(&self) -> Result<Vec<PublicKey>> {
        let file = self.file.as_deref().map(read).transpose()?.flatten();
        let text = file.or_else(|| self.text.clone());
        let text = text.ok_or_else(|| Error::new(Kind::Usage, "the public key of upload tokens is empty"))?;
        PublicKey::all_from_pem(&text)
            .map_err(|e| Error::with(Kind::Usage, "the public key of tokens cannot be read", e))
    }

    fn revoked(&self) -> Result<Vec<PublicKey>> {
        let text = self.revoked.as_deref().map(read).transpose()?.flatten();
        match text.filter(|text| !text.trim().is_empty()) {
            None => Ok(Vec::new()),
            Some(text) => PublicKey::all_from_pem(&text)
                .map_err(|e| Error::with(Kind::Usage, "the revoked keys cannot be read", e)),
        }
    }
}

/// The text of a file; `None` when it is not there.
fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::with(Kind::Usage, format!("cannot read {}", path.display()), error)),
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct TrustedKeys {
    origin: Origin,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    keys: Keys,
    current: Vec<PublicKey>,
    revoked: Vec<PublicKey>,
    /// Problems of the last reading; each is logged once.
    problem: Vec<String>,
}

impl TrustedKeys {
    /// The keys as they are now.
    ///
    /// # Errors
    /// There is no key, or a key cannot be read.
    pub(crate) fn new(origin: Origin) -> Result<Self> {
        let mut known = Known { current: origin.current()?, revoked: origin.revoked()?, ..Known::default() };
        known.apply(now());
        Ok(Self { origin, known: Mutex::new(known) })
    }

    /// The claims of a valid token.
    ///
    /// # Errors
    /// [`TokenError`].
    pub(crate) fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let now = now();
        self.reload(now).verify(token, now)
    }

    /// Reads the keys again, every second.
    pub(crate) async fn follow(&self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            self.reload(now());
        }
    }

    fn reload(&self, now: u64) -> Keys {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.current.clone();
        let Known { current, revoked, problem, .. } = &mut *known;
        let mut problems = Vec::new();
        for (read, kept) in [(self.origin.current(), current), (self.origin.revoked(), revoked)] {
            match read {
                Ok(read) => *kept = read,
                // A half-written file, for example: the known keys stay.
                Err(error) => problems.push(error.chain()),
            }
        }
        if *problem != problems && !problems.is_empty() {
            tracing::warn!(
                error = problems.join("; "),
                "keys of tokens cannot be reloaded; the loaded ones stay in use"
            );
        }
        *problem = problems;
        if known.current != before {
            tracing::info!(
                "the key of tokens was replaced; the old one stays valid until its tokens have expired"
            );
        }
        known.apply(now);
        known.keys.clone()
    }
}

impl Known {
    fn apply(&mut self, now: u64) {
        self.keys.replace(self.current.clone(), &self.revoked, now);
    }
}

/// Seconds of Unix time.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
