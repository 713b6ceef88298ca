//! Wires a process together: arguments, environment, logs, signals, the poll, the termination message. Not here: what is
//! read and written.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;

use serve::signals::Signal;
use tokio::sync::watch;

use crate::args::Args;
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::plan::Change;
use crate::{apply, digest};

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = arguments.into_iter().map(serve::start::two_dashes);
    let args = match serve::start::start(arguments, |args: &Args| args.log) {
        Ok(args) => args,
        Err(code) => return code,
    };
    // Variables that are not UTF-8 are not the contract's.
    let variables =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let config = match Config::new(args, variables.collect()) {
        Ok(config) => config,
        Err(error) => return failed(&error),
    };
    until_stopped(&config).unwrap_or_else(|error| {
        if error.kind() != Kind::Importer {
            report(&config, &error);
        }
        failed(&error)
    })
}

fn failed(error: &Error) -> ExitCode {
    tracing::error!(error = error.chain(), "the poll failed");
    error.exit_code()
}

/// Puts an error into the termination log of the pod, if there is one: the importer has left its success there.
fn report(config: &Config, error: &Error) {
    let path = &config.termination_log;
    if let Ok(mut file) = File::options().write(true).truncate(true).open(path)
        && let Err(error) = file.write_all(error.chain().as_bytes())
    {
        tracing::warn!(%error, path = %path.display(), "the termination message cannot be written");
    }
}

/// Polls, until a signal ends it.
fn until_stopped(config: &Config) -> Result<ExitCode> {
    let (stop, mut stopped) = watch::channel(None);
    serve::signals::watch(move |signal| {
        let _ = stop.send(Some(signal));
    })
    .map_err(|e| Error::with(Kind::Process, "cannot watch for signals", e))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::with(Kind::Process, "cannot start the runtime", e))?;
    let code = runtime.block_on(async {
        tokio::select! {
            polled = poll(config) => polled.map(|()| ExitCode::SUCCESS),
            signal = stopped.wait_for(Option::is_some) => {
                let code = signal.ok().and_then(|signal| *signal).map_or(1, Signal::exit_code);
                Ok(ExitCode::from(code))
            }
        }
    });
    runtime.shutdown_background();
    code
}

async fn poll(config: &Config) -> Result<()> {
    let cron = &config.cron;
    // First: without a cluster, the registry need not be asked.
    let client = apply::client(config)?;
    let digest = digest::read(config).await?;
    match apply::write(&client, cron, &digest).await? {
        Change::NewDigest => tracing::info!(%cron, digest, "the DataImportCron has a new digest"),
        Change::TimeOnly => tracing::info!(%cron, digest, "the digest is unchanged"),
    }
    Ok(())
}
