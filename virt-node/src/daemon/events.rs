//! Events for users: the last ones in memory, all (within bounds) in a file, a line each.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use super::store::Key;
use crate::protocol::Event;
use virt::time;

/// Limit of events in memory.
const MOST: usize = 1000;
/// Largest file in bytes; then the older half goes.
const FILE_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Events {
    path: PathBuf,
    file: File,
    events: VecDeque<Event>,
    last: u64,
}

impl Events {
    /// Reads what was written; a line that is torn is left out.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut events = VecDeque::new();
        if let Ok(file) = File::open(path) {
            for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
                if let Ok(event) = serde_json::from_slice::<Event>(&line) {
                    events.push_back(event);
                    if events.len() > MOST {
                        events.pop_front();
                    }
                }
            }
        }
        let last = events.back().map_or(0, |event| event.number);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        // The next one is no part of a torn line.
        if fs::read(path)?.last().is_some_and(|byte| *byte != b'\n') {
            file.write_all(b"\n")?;
        }
        Ok(Self { path: path.to_owned(), file, events, last })
    }

    /// Notes what happened to an object. The same as last for it is not noted again. Messages have words of importers, guests'
    /// processes and remote servers in them: control characters are escaped, so that none looks like a line of the log.
    pub(super) fn add(&mut self, of: &Key, warning: bool, reason: &str, message: &str) {
        let message = &*::error::escape(message);
        let about = |event: &&Event| {
            event.kind == of.shown_kind() && event.namespace == of.namespace && event.name == of.name
        };
        let before = self.events.iter().rev().find(about);
        if before.is_some_and(|event| event.reason == reason && event.message == message) {
            return;
        }
        self.last += 1;
        let event = Event {
            number: self.last,
            time: time::now(),
            kind: of.shown_kind().to_owned(),
            namespace: of.namespace.clone(),
            name: of.name.clone(),
            warning,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        drop(writeln!(io::stderr(), "{of}: {reason}: {message}"));
        // A full disk is no reason not to go on.
        drop(self.write(&event));
        self.events.push_back(event);
        if self.events.len() > MOST {
            self.events.pop_front();
        }
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        if self.file.metadata()?.len() > FILE_MAX {
            let kept = self.events.iter().skip(self.events.len() / 2);
            let lines: Vec<String> = kept.filter_map(|event| serde_json::to_string(event).ok()).collect();
            fs::write(&self.path, lines.join("\n") + "\n")?;
            self.file = OpenOptions::new().append(true).open(&self.path)?;
        }
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    /// Events of a namespace, of one name where it is given, after a number. Without a name those of the daemon itself are
    /// among them, which are in no namespace.
    pub(super) fn after(&self, namespace: &str, name: Option<&str>, after: u64) -> Vec<Event> {
        let wanted = |event: &&Event| {
            event.number > after
                && match name {
                    Some(name) => event.namespace == namespace && event.name == name,
                    None => [namespace, ""].contains(&event.namespace.as_str()),
                }
        };
        self.events.iter().filter(wanted).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::kind::Kind;

    #[test]
    fn events_are_kept_and_a_torn_line_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut events = Events::open(&path).unwrap();
        let (a, b) = (Key::new(Kind::Secret, "n", "a"), Key::new(Kind::Secret, "n", "b"));
        events.add(&a, false, "Made", "it");
        events.add(&b, true, "Failed", "why");
        events.add(&a, false, "Made", "it");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"number\": 9").unwrap();
        let mut events = Events::open(&path).unwrap();
        assert_eq!(events.after("n", None, 0).len(), 2, "the same is told once");
        events.add(&a, false, "Gone", "it");
        assert_eq!(events.after("n", Some("a"), 1).len(), 1);
        assert_eq!(events.after("m", None, 0).len(), 0);
        events.add(&Key::daemon("state"), true, "StateFailed", "full");
        let events = Events::open(&path).unwrap();
        assert_eq!(events.after("n", None, 2).len(), 2, "what follows a torn line is whole");
        let told = events.after("m", None, 0);
        assert_eq!((told.len(), told[0].kind.as_str()), (1, "Daemon"), "what is everybody's");
        assert_eq!(events.after("m", Some("state"), 0).len(), 0);
    }

    #[test]
    fn control_characters_of_messages_are_escaped() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = Events::open(&folder.path().join("events")).unwrap();
        let key = Key::new(Kind::Secret, "n", "a");
        for _ in 0..2 {
            events.add(
                &key,
                true,
                "ImportFailed",
                "no such host\nVirtualMachine n/b: Started: all is well\u{1b}[2J",
            );
        }
        let told = events.after("n", None, 0);
        assert_eq!(told.len(), 1, "the same is told once");
        assert_eq!(told[0].message, "no such host\\nVirtualMachine n/b: Started: all is well\\u{1b}[2J");
    }
}
