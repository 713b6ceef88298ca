//! VMs with a guest that runs commands of its serial console.

#![expect(clippy::print_stdout, reason = "what a guest says is shown when a test fails")]

use std::time::Duration;

use guests::shell;
use serde_json::Value;

use crate::platform::console::Console;
use crate::platform::place::PLACE;

/// How long a command of a guest may take before it is given again.
const ANSWER: Duration = Duration::from_secs(20);
/// Memory of such a guest.
pub(crate) const MEMORY: &str = "192Mi";

/// The guest's disk, raw.
pub(crate) fn disk() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("shell.raw");
    shell::disk(&disk);
    std::fs::read(&disk).unwrap()
}

/// Puts a VM on a further network: a name in the spec, and that of the definition.
pub(crate) fn join(spec: &mut Value, name: &str, definition: &str) {
    let interfaces = spec["domain"]["devices"]["interfaces"].as_array_mut().unwrap();
    interfaces.push(serde_json::json!({"name": name, "bridge": {}}));
    let network = serde_json::json!({"name": name, "multus": {"networkName": definition}});
    spec["networks"].as_array_mut().unwrap().push(network);
}

/// A guest that runs commands.
pub(crate) struct Guest {
    namespace: &'static str,
    name: &'static str,
    console: Option<Console<'static>>,
    count: u32,
}

impl Guest {
    /// The guest of a VM.
    pub(crate) fn of(namespace: &'static str, name: &'static str) -> Self {
        Self { namespace, name, console: None, count: 0 }
    }

    /// Output of a command, once it succeeds.
    #[track_caller]
    pub(crate) fn until(&mut self, command: &str) -> String {
        let (namespace, what) = (self.namespace, format!("{}: {command}", self.name));
        PLACE.until(namespace, &what, || {
            let failed = match self.run(command) {
                Ok((printed, 0)) => return Some(printed),
                Ok((printed, status)) => format!("exit code {status}: {printed}"),
                Err(error) => error,
            };
            println!("{what}: {failed}");
            std::thread::sleep(Duration::from_millis(500));
            None
        })
    }

    fn run(&mut self, command: &str) -> Result<(String, u8), String> {
        let mut console = match self.console.take() {
            Some(console) => console,
            None => Console::open(&PLACE, self.namespace, self.name)?,
        };
        self.count += 1;
        let word = format!("w{}", self.count);
        let text = console.say(&shell::line(&word, command), &shell::last(&word), ANSWER)?;
        // Only a console that answered is used again.
        let answer = shell::answer(&text, &word).ok_or_else(|| format!("no answer in {text:?}"))?;
        self.console = Some(console);
        Ok(answer)
    }

    /// The name that the guest gave the network card of an address.
    #[track_caller]
    pub(crate) fn card(&mut self, mac: &str) -> String {
        let file = self.until(&format!("grep -il {mac} /sys/class/net/*/address"));
        file.trim_end_matches("/address").rsplit('/').next().unwrap_or_default().to_owned()
    }
}
