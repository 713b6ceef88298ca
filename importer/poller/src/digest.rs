//! The image's digest, by `importer inspect`: the environment names the image, standard output has the answer, standard
//! error and termination log have the reason of a failure. Not here: registries.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use api::names;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::plan;

/// The program that reads the digest.
const IMPORTER: &str = "importer";
/// Variables of this process that the importer has too.
const INHERITED: [&str; 5] = ["PATH", "RUST_LOG", "SSL_CERT_DIR", "SSL_CERT_FILE", names::ROOT_VARIABLE];
/// Longest time for the digest: CDI's CronJob starts no poll while another one runs.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest answer that is read, in bytes. A digest has 71.
const ANSWER_MAX: u64 = 1 << 10;

/// The importer: next to this program, or on the PATH.
fn program() -> PathBuf {
    let near = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(IMPORTER)));
    near.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(IMPORTER))
}

/// Reads the digest of the image's manifest, or of its index of manifests.
///
/// # Errors
/// [`Kind::Importer`] when it fails, [`Kind::Image`] when the digest is late or cannot be used, [`Kind::Process`] when the
/// importer cannot be started.
pub(crate) async fn read(config: &Config) -> Result<String> {
    let program = program();
    let mut command = Command::new(&program);
    command.arg("inspect").arg(format!("--v={}", config.log.v));
    if config.log.log_json {
        command.arg("--log-json");
    }
    let inherited = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    command.env_clear().envs(inherited).envs(config.job.to_env());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let failed = |what: &str, e| {
        Error::with(Kind::Process, format!("cannot {what} {}, which reads the digest", program.display()), e)
    };
    let mut child = command.spawn().map_err(|e| failed("start", e))?;
    let answer = async {
        let mut text = String::new();
        if let Some(output) = child.stdout.take() {
            output.take(ANSWER_MAX).read_to_string(&mut text).await?;
        }
        std::io::Result::Ok((child.wait().await?, text))
    };
    let late = |_| {
        let seconds = READ_TIMEOUT.as_secs();
        Error::new(Kind::Image, format!("the registry has not given the image's digest within {seconds} s"))
    };
    let answer = timeout(READ_TIMEOUT, answer).await.map_err(late)?;
    let (status, text) = answer.map_err(|e| failed("read from", e))?;
    if !status.success() {
        let what = format!(
            "the image's digest cannot be read: {} ended with {status}; its last log line has the reason",
            program.display()
        );
        return Err(Error::new(Kind::Importer, what));
    }
    let digest = text.trim();
    if !plan::is_digest(digest) {
        let what = format!("the image's digest is {digest:?}, and imports are named by sha256 digests only");
        return Err(Error::new(Kind::Image, what));
    }
    Ok(digest.to_owned())
}
