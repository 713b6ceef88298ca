//! Wires a process together: arguments, environment, logs, signals, the metric, the clone, the termination message. Not
//! here: what is sent, and how.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::import::Outcome;
use api::names;
use api::upload::CloneOf;
use api::upload::clone::{CLONE_PROGRESS, Source};
use serve::failure::{Error, Kind, Result};
use serve::http::Route;
use serve::metrics::{Kind as Metric, Page};
use serve::peer;
use serve::signals::Signal;
use serve::tls::Identity;
use tokio::sync::watch;

use crate::args::Args;
use crate::config::Config;
use crate::pack::Volume;
use crate::send;

/// After a signal the process is gone within two seconds, whatever hangs.
const LAST_MOMENT: Duration = Duration::from_millis(1700);

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match serve::start::start(arguments, |args: &Args| args.log) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match clone(args.answer_timeout) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(error = error.chain(), "the clone failed");
            error.exit_code()
        }
    }
}

fn clone(answer_timeout: Duration) -> Result<ExitCode> {
    let config = configured()?;
    let (stop, stopped) = watch::channel(None);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping");
        let _ = stop.send(Some(signal));
    })
    .map_err(|e| Error::with(Kind::Process, "cannot watch for signals", e))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::with(Kind::Process, "cannot start the runtime", e))?;
    let code = runtime.block_on(work(config, answer_timeout, stopped));
    runtime.shutdown_timeout(LAST_MOMENT);
    code
}

fn configured() -> Result<Config> {
    // Variables that are not UTF-8 are not the contract's.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    let given = |wanted: &str| variables.iter().find(|(name, _)| name == wanted).map(|(_, v)| v.clone());
    let root = PathBuf::from(given(names::CLONE_ROOT_VARIABLE).unwrap_or_else(|| "/".into()));
    let port = given(names::CLONE_METRICS_PORT_VARIABLE)
        .map(|port| port.parse::<u16>())
        .transpose()
        .map_err(|e| {
            Error::with(
                Kind::Usage,
                format!("the variable {} is not a port", names::CLONE_METRICS_PORT_VARIABLE),
                e,
            )
        })?;
    let source = Source::from_env(variables)
        .map_err(|e| Error::with(Kind::Usage, "the environment has malformed variables", e))?;
    Config::from_source(source, &root, port.unwrap_or(names::METRICS_PORT))
}

async fn work(
    config: Config,
    answer_timeout: Duration,
    mut stopped: watch::Receiver<Option<Signal>>,
) -> Result<ExitCode> {
    let Config { kind, volume, to, tls, owner_uid, metrics, termination_log } = config;
    let unread = |path: &PathBuf, e| Error::with(Kind::Process, format!("cannot read {}", path.display()), e);
    let volume = Volume { kind, path: volume };
    let looked = volume.clone();
    let size = blocking(move || looked.size()).await.map_err(|e| unread(&volume.path, e))?;
    if kind == CloneOf::Device && size == 0 {
        let what = format!("{} has no bytes: there is nothing to clone", volume.path.display());
        return Err(Error::new(Kind::Usage, what));
    }
    let read = Arc::new(AtomicU64::new(0));
    serve_metric(metrics, owner_uid, read.clone(), size);
    tracing::info!(volume = %volume.path.display(), host = to.host, bytes = size, "cloning");

    let (pieces, body) = serve::body::written();
    let (reading, counted) = (volume.clone(), read.clone());
    let (end, whole) = tokio::sync::oneshot::channel();
    let packing = tokio::spawn(async move {
        let packed = blocking(move || reading.write(pieces, &counted)?.end()).await;
        // Without a request there is no answer to wait for.
        _ = end.send(());
        packed
    });
    let whole = async {
        // A task that panicked has ended, too.
        _ = whole.await;
    };
    let sent = send::send(&to, &tls, kind, size, body);
    let sent = peer::answer(sent, whole, answer_timeout, &to.host, names::CLONE_ANSWER_TIMEOUT_VARIABLE);
    let sent = tokio::select! {
        sent = sent => sent.unwrap_or_else(|error| Err(error.into())),
        signal = stopped.wait_for(Option::is_some) => {
            let code = signal.ok().and_then(|signal| *signal).map_or(1, Signal::exit_code);
            return Ok(ExitCode::from(code));
        }
    };
    // It ends by itself now: its reader is gone.
    let packed = packing.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    match (sent, packed) {
        (Ok(()), Ok(())) => {}
        (_, Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(unread(&volume.path, error));
        }
        (Ok(()), Err(_)) => {
            return Err(Error::new(
                Kind::Refused,
                "the upload server ended the clone before the end of the volume; see its log",
            ));
        }
        (Err(error), _) => return Err(error),
    }
    read.fetch_max(size, Ordering::Relaxed);
    tracing::info!("Clone Complete");
    if let Err(error) = std::fs::write(&termination_log, Outcome::message("Clone Complete").to_line()) {
        tracing::warn!(%error, path = %termination_log.display(), "the termination message cannot be written");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs what waits for a disk on a thread where waiting is allowed.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

/// Serves the progress. A clone works without it: a failure is a warning.
fn serve_metric(address: std::net::SocketAddr, owner: String, read: Arc<AtomicU64>, size: u64) {
    let page = move || {
        let mut page = Page::default();
        page.begin(CLONE_PROGRESS, Metric::Counter, "The clone progress in percentage");
        let percent = percent(read.load(Ordering::Relaxed), size);
        page.sample(CLONE_PROGRESS, &[(names::OWNER_LABEL, &owner)], percent);
        Ok(page.text())
    };
    let routes = vec![Route { path: names::METRICS_PATH, body: Box::new(page) }];
    match serve::http::serve(address, Some(&Identity::self_signed()), None, routes) {
        Ok(local) => tracing::info!(%local, "serving metrics"),
        Err(error) => tracing::warn!(%error, "metrics are not served"),
    }
}

/// `read` of `size` in per cent, a plain decimal.
fn percent(read: u64, size: u64) -> String {
    let hundredths = u128::from(read.min(size)) * 10_000 / u128::from(size.max(1));
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_cents_are_plain_decimals() {
        for (read, size, expected) in
            [(0, 0, "0.00"), (1, 3, "33.33"), (5, 4, "100.00"), (u64::MAX, u64::MAX, "100.00")]
        {
            assert_eq!(percent(read, size), expected);
        }
    }
}
