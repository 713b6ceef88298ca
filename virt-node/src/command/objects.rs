//! Objects and events as people and programs read them, and the verbs that change when a machine runs.

use api::kind::Kind;
use serde_json::{Value, json};

use super::table::{age, table};
use super::{Daemon, Named, text, unexpected};
use crate::error::{Error, Kind as ErrorKind};
use crate::format::Format;
use crate::protocol::{Answer, Request, Verb};
use virt::time;

/// `virt-node list`: machines, runs without a machine, volumes.
pub(crate) fn list(daemon: &mut Daemon, namespace: Option<&str>, format: Format) -> Result<String, Error> {
    if format == Format::Json {
        let mut objects = daemon.objects(Request::List)?;
        objects.retain(|object| namespace.is_none_or(|one| text(object, "/metadata/namespace") == one));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        return Ok(format!("{list:#}\n"));
    }
    let (mut guests, mut volumes) = daemon.rows()?;
    guests.retain(|row| namespace.is_none_or(|one| row.namespace == one));
    volumes.retain(|row| namespace.is_none_or(|one| row.namespace == one));
    let now = time::now();
    let since = |created: u64| age(now.saturating_sub(created));
    let guests: Vec<_> = guests
        .into_iter()
        .map(|row| vec![row.namespace, row.name, since(row.created), row.state, row.ready])
        .collect();
    let volumes: Vec<_> = volumes
        .into_iter()
        .map(|row| vec![row.namespace, row.name, since(row.created), row.state, row.size, row.progress])
        .collect();
    let mut told = table(&["NAMESPACE", "NAME", "AGE", "STATUS", "READY"], &guests);
    if !volumes.is_empty() {
        told.push('\n');
        told.push_str(&table(&["NAMESPACE", "VOLUME", "AGE", "STATUS", "SIZE", "PROGRESS"], &volumes));
    }
    Ok(told)
}

/// `virt-node get`: an object as it is kept; a machine with its run.
pub(crate) fn get(
    daemon: &mut Daemon,
    namespace: &str,
    named: &Named,
    format: Output,
) -> Result<String, Error> {
    let kinds = match named.kind {
        Some(kind) => vec![kind],
        None => vec![Kind::VirtualMachine, Kind::VirtualMachineInstance],
    };
    let mut objects = Vec::new();
    for kind in &kinds {
        objects.extend(daemon.object(&named.target(*kind, namespace))?);
    }
    if objects.is_empty() {
        let kind = kinds.first().map_or("object", |kind| kind.name());
        return Err(Error::new(ErrorKind::Content, format!("there is no {kind} {namespace}/{}", named.name)));
    }
    match format {
        Output::Json => {
            let one = objects.len() == 1;
            let value = if one {
                objects.swap_remove(0)
            } else {
                json!({"apiVersion": "v1", "kind": "List", "items": objects})
            };
            Ok(format!("{value:#}\n"))
        }
        Output::Yaml => {
            let texts = objects.iter().map(serde_saphyr::to_string).collect::<Result<Vec<String>, _>>();
            let texts = texts.map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
            Ok(texts.join("---\n"))
        }
    }
}

/// How an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// YAML, as it can be kept again.
    Yaml,
    /// JSON.
    Json,
}

/// `virt-node events`.
pub(crate) fn events(
    daemon: &mut Daemon,
    namespace: &str,
    name: Option<String>,
    format: Format,
) -> Result<String, Error> {
    let request = Request::Events { namespace: namespace.to_owned(), name, after: 0 };
    let Answer::Events(events) = daemon.call(request)? else {
        return Err(unexpected());
    };
    if format == Format::Json {
        let all: Vec<Value> = events.iter().map(|event| json!(event)).collect();
        return Ok(format!("{:#}\n", Value::from(all)));
    }
    let row = |event: &crate::protocol::Event| {
        let kind = if event.warning { "Warning" } else { "Normal" };
        vec![
            time::text(event.time),
            kind.to_owned(),
            event.reason.clone(),
            format!("{}/{}", event.kind, event.name),
            event.message.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = events.iter().map(row).collect();
    Ok(table(&["TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"], &rows))
}

/// start, stop and the like.
pub(crate) fn power(daemon: &mut Daemon, namespace: &str, name: &str, verb: Verb) -> Result<String, Error> {
    let told = match &verb {
        Verb::Start { .. } => "was scheduled to start",
        Verb::Stop { .. } => "was scheduled to stop",
        Verb::Restart { .. } => "was scheduled to restart",
        Verb::Pause => "was paused",
        Verb::Unpause => "was unpaused",
        Verb::SoftReboot => "was asked to reboot",
        Verb::Reset => "was reset",
    };
    daemon.call(Request::Power { namespace: namespace.to_owned(), name: name.to_owned(), verb })?;
    Ok(format!("{namespace}/{name} {told}\n"))
}
