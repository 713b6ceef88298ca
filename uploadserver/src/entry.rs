//! Wires a process together: arguments, environment, logs, signals, the server, the deadline, the termination message.
//! Not here: any decision about an upload.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::names;
use api::upload::Server as Job;
use disk_image::volume::error::chain;
use disk_image::volume::{Error, Kind};
use jiff::Timestamp;
use serve::signals::Signal;
use serve::tls::{Current, Reloading};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::admission::Admission;
use crate::answer::{self, Ended};
use crate::args::Args;
use crate::config::Config;
use crate::server::{self, Server};

/// How often the clock is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A client that comes just after the upload still gets the answer that it succeeded.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// A piece of memory of this size, mapped and given back, has glibc keep free memory below twice of it (mallopt(3),
/// M_TRIM_THRESHOLD). A connection frees its buffers at once; without this, each would come from the kernel page by page.
const KEPT: usize = 4 << 20;
/// After a signal the process is gone within two seconds, whatever hangs.
const LAST_MOMENT: Duration = Duration::from_millis(1700);

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    if let Err(code) = serve::start::start(arguments, |args: &Args| args.log) {
        return code;
    }
    match serve() {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(error = chain(&error), "UploadServer failed");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<ExitCode, Error> {
    let config = configured()?;
    let (stop, stopped) = watch::channel(None);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping");
        let _ = stop.send(Some(signal));
    })
    .map_err(|e| Error::with(Kind::Process, "cannot watch for signals", e))?;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT)));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| Error::with(Kind::Process, "cannot start the runtime", e))?;
    let code = runtime.block_on(work(config, stopped));
    runtime.shutdown_timeout(LAST_MOMENT);
    code
}

fn configured() -> Result<Config, Error> {
    // Variables that are not UTF-8 are not the contract's.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    let root = variables.iter().find(|(name, _)| name == names::UPLOAD_ROOT_VARIABLE);
    let root = PathBuf::from(root.map_or("/", |(_, folder)| folder));
    let job = Job::from_env(variables)
        .map_err(|e| Error::with(Kind::Usage, "the environment has malformed variables", e))?;
    Config::from_server(job, &root)
}

async fn work(config: Config, mut stopped: watch::Receiver<Option<Signal>>) -> Result<ExitCode, Error> {
    let tls: Arc<dyn Current> = Reloading::new(config.identity, Some(config.clients), false)
        .map_err(|e| Error::with(Kind::Usage, "cannot set up TLS", e))?;
    let listener = serve::server::listen(config.listen)
        .and_then(TcpListener::from_std)
        .map_err(|e| Error::with(Kind::Process, format!("cannot listen on {}", config.listen), e))?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "waiting for an upload");
    }
    let admission = Admission::new(config.volume);
    let (close, closing) = watch::channel(false);
    let server =
        Server { admission: admission.clone(), client_name: config.client_name, owner_uid: config.owner_uid };
    let serving = serve::server::serve(listener, Some(tls), server::LIMITS, Arc::new(server), closing);
    let serving = tokio::spawn(serving);
    let ended = tokio::select! {
        ended = until_end(&admission, config.deadline) => ended,
        signal = stopped.wait_for(Option::is_some) => {
            let code = signal.ok().and_then(|signal| *signal).map_or(1, Signal::exit_code);
            if let Some(upload) = admission.last() {
                upload.cancel();
                drop(tokio::time::timeout(LAST_MOMENT, upload.end()).await);
            }
            return Ok(ExitCode::from(code));
        }
    };
    let message = answer::termination(&ended);
    if let Err(error) = std::fs::write(&config.termination_log, message) {
        tracing::warn!(%error, path = %config.termination_log.display(), "the termination message cannot be written");
    }
    if ended != Ended::DeadlinePassed {
        tokio::time::sleep(LAST_ANSWERS).await;
    }
    let _ = close.send(true);
    drop(serving.await);
    Ok(ExitCode::SUCCESS)
}

async fn until_end(admission: &Admission, deadline: Option<Timestamp>) -> Ended {
    let watching = async {
        loop {
            admission.look_after(deadline.is_some_and(|deadline| Timestamp::now() >= deadline));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        ended = admission.end() => ended,
        () = watching => Ended::DeadlinePassed,
    }
}
