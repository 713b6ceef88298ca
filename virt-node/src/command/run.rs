//! `virt-node run`: stores documents, and prints the progress of their guests, a line for each step, until they run. Without
//! guests among the documents it prints the progress of their DataVolumes until they are filled.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use api::kind::Kind;

use super::{Daemon, console, say, text, unexpected};
use crate::error::{Error, Kind as ErrorKind};
use crate::protocol::{Answer, Change, Request, Stream, Target, Verb};
use guest::signals::{Signal, block_signals, next_signal};
use virt::fields::Place;
use virt::validate::{Checked, Documents, SourceDocument};

/// How often it is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// States in which a guest does not come up by itself, or not soon.
const TROUBLE: [&str; 4] = ["DataVolumeError", "ErrImagePull", "ErrorPvcNotFound", "CrashLoopBackOff"];
/// States of a guest that came up.
const UP: [&str; 2] = ["Running", "Paused"];
/// Phases of a DataVolume from which on nothing is awaited of the daemon.
const FILLED: [&str; 2] = ["Succeeded", "UploadReady"];
/// States of a guest that does not run and is not going to.
const STILL: [&str; 3] = ["Stopped", "Succeeded", "Failed"];
/// Looks after which a guest that is still is not going to run.
const IDLE_POLLS_MAX: u32 = 50;
/// Polls after which a volume that was reported as failed is given up.
const UNMADE: u32 = 150;
/// Starts that fail before it is not waited for any more: what they lack does not come by itself.
const STARTS: u32 = 4;

/// The arguments of the command.
pub(crate) struct Run {
    pub(crate) detach: bool,
    pub(crate) console: bool,
}

/// A guest that is followed, or a DataVolume.
struct Followed {
    target: Target,
    /// It runs or ran; it is filled, or a person's turn to fill it.
    ran: bool,
    /// Looks in a row that found it still, and that it never ran.
    still: u32,
    /// Starts of it that failed.
    failures: u32,
    /// Why a volume of its namespace could not be made, and looks since then at which it waited for volumes.
    unmade: Option<(String, u32)>,
}

impl Followed {
    fn new(target: Target) -> Self {
        Self { target, ran: false, still: 0, failures: 0, unmade: None }
    }
}

/// Objects that were kept, and what became of each.
type Kept = Vec<(Target, Change)>;

/// Has the documents stored, and prints the changes.
pub(crate) fn apply(state: &Path, texts: &[(String, Vec<u8>)]) -> Result<(), Error> {
    keep(state, texts, |_, _| Ok(())).map(drop)
}

/// Has the documents kept, after `before` with the daemon and the namespaces of the objects.
fn keep<T>(
    state: &Path,
    texts: &[(String, Vec<u8>)],
    before: impl FnOnce(&mut Daemon, BTreeSet<String>) -> Result<T, Error>,
) -> Result<(Daemon, T, Kept), Error> {
    let parsed = Documents::parse(texts.iter().map(|(name, text)| (name.as_str(), text.as_slice())));
    let Checked { documents, report } = parsed.validate(Place::Machine);
    if !report.is_valid() {
        // Lines for a person; names in them come from the documents.
        for line in report.text(false).lines() {
            drop(writeln!(io::stderr(), "{}", ::error::escape(line)));
        }
        return Err(Error::new(
            ErrorKind::Content,
            "the documents are refused, and nothing of them is stored",
        ));
    }
    // A daemon that is started here would inherit what is blocked.
    let mut daemon = Daemon::or_start(state)?;
    let documents = documents.iter().map(SourceDocument::from).collect();
    let namespaces = report.objects.iter().map(|checked| checked.namespace.clone()).collect();
    let before = before(&mut daemon, namespaces)?;
    let Answer::Applied { objects, findings } = daemon.call(Request::Apply { documents })? else {
        return Err(unexpected());
    };
    for (target, findings) in findings {
        for finding in findings {
            let about = format!("{} {}/{}", target.kind, target.namespace, target.name);
            say(&format!("{about}: {} {}: {}", finding.verdict.word(), finding.path, finding.text))?;
        }
    }
    for (target, change) in &objects {
        say(&format!("{} {}/{} {}", target.kind, target.namespace, target.name, change.word()))?;
    }
    Ok((daemon, before, objects))
}

/// Keeps the documents, starts their guests, and follows them.
pub(crate) fn run(state: &Path, typed: &Run, texts: &[(String, Vec<u8>)]) -> Result<bool, Error> {
    let begin = |daemon: &mut Daemon, namespaces| {
        block_signals()
            .map_err(|error| Error::with(ErrorKind::System, "signals cannot be blocked", error))?;
        last_events(daemon, namespaces)
    };
    let (mut daemon, seen, objects) = keep(state, texts, begin)?;
    let (mut guests, mut volumes) = (Vec::new(), Vec::new());
    for (target, _) in objects {
        let kinds = [Kind::VirtualMachine.name(), Kind::VirtualMachineInstance.name()];
        if kinds.contains(&target.kind.as_str()) {
            guests.push(Followed::new(target));
        } else if target.kind == Kind::DataVolume.name() {
            volumes.push(Followed::new(target));
        }
    }
    for guest in &guests {
        switch_on(&mut daemon, &guest.target)?;
    }
    if !guests.is_empty() {
        return follow(&mut daemon, &mut guests, seen, typed);
    }
    if volumes.is_empty() || typed.detach {
        return Ok(true);
    }
    // They are filled with or without a follower.
    follow(&mut daemon, &mut volumes, seen, &Run { detach: true, console: false })
}

/// The number of the last event of each namespace so far.
fn last_events(daemon: &mut Daemon, namespaces: BTreeSet<String>) -> Result<Vec<(String, u64)>, Error> {
    let mut last = Vec::new();
    for namespace in namespaces {
        let request = Request::Events { namespace: namespace.clone(), name: None, after: 0 };
        if let Answer::Events(events) = daemon.call(request)? {
            last.push((namespace, events.last().map_or(0, |event| event.number)));
        }
    }
    Ok(last)
}

/// Starts a VM whose run strategy does not, once, unless it runs. Its strategy stays.
fn switch_on(daemon: &mut Daemon, target: &Target) -> Result<(), Error> {
    if target.kind != Kind::VirtualMachine.name() {
        return Ok(());
    }
    let Some(machine) = daemon.object(target)? else { return Ok(()) };
    let halted = machine["spec"]["running"] == false;
    if !halted && !["Halted", "Manual", "RerunOnFailure"].contains(&text(&machine, "/spec/runStrategy")) {
        return Ok(());
    }
    let (namespace, name) = (target.namespace.clone(), target.name.clone());
    match daemon.call(Request::Power { namespace, name, verb: Verb::Start { paused: false, once: true } }) {
        // It runs already.
        Err(error) if error.kind() == ErrorKind::Content => Ok(()),
        answer => answer.map(drop),
    }
}

/// A DataVolume's phase, or what a guest's state would be that waits for it.
fn volume_state(daemon: &mut Daemon, target: &Target) -> Result<String, Error> {
    let Some(object) = daemon.object(target)? else {
        let Target { namespace, name, .. } = target;
        return Err(Error::new(
            ErrorKind::Content,
            format!("{namespace}/{name} was deleted during the command"),
        ));
    };
    let failed = object["status"]["restartCount"].as_i64().is_some_and(|count| count > 0);
    let state = match text(&object, "/status/phase") {
        phase if FILLED.contains(&phase) => phase,
        _ if failed => "DataVolumeError",
        "Pending" | "" => "Provisioning",
        phase => phase,
    };
    Ok(state.to_owned())
}

/// A guest's state in one word.
fn guest_state(daemon: &mut Daemon, target: &Target) -> Result<String, Error> {
    let Some(object) = daemon.object(target)? else { return Ok("Stopped".to_owned()) };
    let machine = text(&object, "/status/printableStatus");
    // A run without a machine has no printable status.
    let (phase, reason) = (text(&object, "/status/phase"), text(&object, "/status/reason"));
    let run = if TROUBLE.contains(&reason) { reason } else { phase };
    Ok(if machine.is_empty() { run } else { machine }.to_owned())
}

/// Prints events until all guests run; in the foreground until none does.
fn follow(
    daemon: &mut Daemon,
    guests: &mut [Followed],
    mut seen: Vec<(String, u64)>,
    typed: &Run,
) -> Result<bool, Error> {
    let mut told = Progress::new();
    loop {
        print_events(daemon, guests, &mut seen, &mut told)?;
        let mut states = Vec::new();
        for guest in guests.iter_mut() {
            let (state, there) = if guest.target.kind == Kind::DataVolume.name() {
                (volume_state(daemon, &guest.target)?, FILLED)
            } else {
                (guest_state(daemon, &guest.target)?, UP)
            };
            guest.ran |= there.contains(&state.as_str());
            guest.still = if STILL.contains(&state.as_str()) && !guest.ran { guest.still + 1 } else { 0 };
            match &mut guest.unmade {
                Some((_, looks)) if state == "Provisioning" => *looks += 1,
                _ => guest.unmade = None,
            }
            states.push(state);
        }
        if let Some(place) = states.iter().position(|state| TROUBLE.contains(&state.as_str())) {
            // The reason may have arrived after the last printed event.
            print_events(daemon, guests, &mut seen, &mut told)?;
            let (Target { namespace, name, .. }, state) = (&guests[place].target, &states[place]);
            let text = format!(
                "{namespace}/{name}: {state}; the daemon tries again, virt-node events -n {namespace} {name} shows why"
            );
            return Err(Error::new(ErrorKind::System, text));
        }
        if let Some(Followed { target, .. }) = guests.iter().find(|guest| guest.still > IDLE_POLLS_MAX) {
            let Target { namespace, name, .. } = target;
            let text = format!(
                "{namespace}/{name} does not run, by its runStrategy: virt-node start -n {namespace} {name}"
            );
            return Err(Error::new(ErrorKind::Content, text));
        }
        if let Some(Followed { target: Target { namespace, name, .. }, .. }) =
            guests.iter().find(|guest| !guest.ran && guest.failures >= STARTS)
        {
            let text = format!("{namespace}/{name} cannot be started; the daemon tries again");
            return Err(Error::new(ErrorKind::System, text));
        }
        if let Some((Target { namespace, name, .. }, why)) =
            guests.iter().find_map(|guest| match &guest.unmade {
                Some((why, UNMADE..)) => Some((&guest.target, why)),
                Some(_) | None => None,
            })
        {
            let text = format!("{namespace}/{name} waits for a volume: {why}; the daemon tries again");
            return Err(Error::new(ErrorKind::System, text));
        }
        let all_ran = guests.iter().all(|guest| guest.ran);
        if all_ran && typed.detach {
            // The last events may have come between the two looks of this round.
            print_events(daemon, guests, &mut seen, &mut told)?;
            return Ok(true);
        }
        if all_ran && typed.console {
            let target = &guests[0].target;
            return console::stream(daemon.another()?, &target.namespace, &target.name, Stream::Console)
                .map(|()| true);
        }
        let over = |(guest, state): (&Followed, &String)| guest.ran && STILL.contains(&state.as_str());
        if guests.iter().zip(&states).all(over) {
            print_events(daemon, guests, &mut seen, &mut told)?;
            return Ok(true);
        }
        let signal = next_signal(Some(POLL_INTERVAL));
        let signal =
            signal.map_err(|error| Error::with(ErrorKind::System, "signals cannot be waited for", error))?;
        if signal == Some(Signal::Stop) {
            if typed.detach {
                say("no longer waiting; the daemon continues")?;
                return Ok(false);
            }
            stop(daemon, guests)?;
        }
    }
}

/// Has all guests end.
fn stop(daemon: &mut Daemon, guests: &mut [Followed]) -> Result<(), Error> {
    for guest in guests {
        let Target { kind, namespace, name } = &guest.target;
        say(&format!("{namespace}/{name}: stopping"))?;
        guest.ran = true;
        let (namespace, name) = (namespace.clone(), name.clone());
        let request = if *kind == Kind::VirtualMachine.name() {
            Request::Power { namespace, name, verb: Verb::Stop { grace_seconds: None } }
        } else {
            Request::Delete { targets: vec![guest.target.clone()], grace_seconds: None }
        };
        match daemon.call(request) {
            Ok(_) => {}
            // It has just stopped by itself.
            Err(error) if error.kind() == ErrorKind::Content => say(&error.chain())?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Volumes by namespace and name, and how far they were, in per cent.
type Progress = BTreeMap<(String, String), String>;

/// Prints new events.
fn print_events(
    daemon: &mut Daemon,
    guests: &mut [Followed],
    seen: &mut [(String, u64)],
    told: &mut Progress,
) -> Result<(), Error> {
    for (namespace, after) in seen {
        let request = Request::Events { namespace: namespace.clone(), name: None, after: *after };
        let Answer::Events(events) = daemon.call(request)? else { continue };
        for event in events {
            *after = event.number;
            let mark = if event.warning { "! " } else { "" };
            say(&format!("{mark}{} {}: {}: {}", event.kind, event.name, event.reason, event.message))?;
            if event.reason == "ProvisioningFailed" {
                for guest in guests.iter_mut().filter(|guest| guest.target.namespace == event.namespace) {
                    guest.unmade = Some((event.message.clone(), 0));
                }
            }
            let failed = event.reason == "StartFailed";
            let of = |guest: &&mut Followed| {
                guest.target.namespace == event.namespace && guest.target.name == event.name
            };
            for guest in guests.iter_mut().filter(of).filter(|_| failed) {
                guest.failures += 1;
            }
        }
    }
    let (_, volumes) = daemon.rows()?;
    for volume in volumes.into_iter().filter(|volume| !volume.progress.is_empty()) {
        let key = (volume.namespace, volume.name);
        // A line for every tenth.
        let tens =
            |text: &str| text.split('.').next().and_then(|whole| whole.parse::<u32>().ok()).map(|n| n / 10);
        if told.get(&key).is_some_and(|before| tens(before) == tens(&volume.progress)) {
            continue;
        }
        if volume.state != "Succeeded" {
            say(&format!("DataVolume {}: {}", key.1, volume.progress))?;
        }
        told.insert(key, volume.progress);
    }
    Ok(())
}
