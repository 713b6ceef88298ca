//! Verbs about the KubeVirt object: `permitted-devices`, and `adm log-verbosity` for its components. [`change`] decides
//! and is pure.
//!
//! Not here: levels of single VMs (virtctl's `--vm` and `--level`), which are a label that launchers of ferrovirt do not read.

use cluster::{JsonPatch, Key, Resource, Scope};
use serde_json::{Map, Value, json};

use crate::error::{Error, Kind, Result, usage};
use crate::site::{Site, text};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");
/// The level of a component that has none, as virtctl prints it.
const DEFAULT: u64 = 2;
/// Value of a flag without a level.
const SHOW: &str = "show";

/// Flags of `adm log-verbosity`. A flag without a level shows the level of its component.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Levels {
    /// Level (0 to 9) of virt-api
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = SHOW)]
    virt_api: Option<String>,
    /// Level of virt-controller
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = SHOW)]
    virt_controller: Option<String>,
    /// Level of virt-handler
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = SHOW)]
    virt_handler: Option<String>,
    /// Level of virt-launcher
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = SHOW)]
    virt_launcher: Option<String>,
    /// Level of virt-operator
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = SHOW)]
    virt_operator: Option<String>,
    /// Level of all components
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = SHOW)]
    all: Option<String>,
    /// Reset the levels of all components
    #[arg(long, value_name = "all", num_args = 0..=1, require_equals = true, default_missing_value = "all",
          value_parser = ["all"])]
    reset: Option<String>,
}

impl Levels {
    /// The components by name: the name, the field of the KubeVirt object, and the argument.
    fn components(&self) -> [(&'static str, &'static str, Option<&str>); 5] {
        [
            ("virt-api", "virtAPI", self.virt_api.as_deref()),
            ("virt-controller", "virtController", self.virt_controller.as_deref()),
            ("virt-handler", "virtHandler", self.virt_handler.as_deref()),
            ("virt-launcher", "virtLauncher", self.virt_launcher.as_deref()),
            ("virt-operator", "virtOperator", self.virt_operator.as_deref()),
        ]
    }
}

/// The request of a command line.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// To print these lines.
    Show(String),
    /// To write these levels, and to print these lines.
    Set(Map<String, Value>, String),
}

/// Prints the devices of nodes that VMs may have.
///
/// # Errors
/// There is no KubeVirt object in the namespace.
pub(crate) async fn permitted_devices(site: &Site) -> Result<String> {
    let all: Vec<Value> = site.client.list(KUBEVIRTS, &Scope::all().namespace(&site.namespace)).await?;
    let Some(kubevirt) = all.first() else {
        let what = format!("no KubeVirt resource in {:?} namespace", site.namespace);
        return Err(Error::new(Kind::Refused, what));
    };
    Ok(devices(kubevirt))
}

fn devices(kubevirt: &Value) -> String {
    let of = |field: &str| {
        let list = &kubevirt["spec"]["configuration"]["permittedHostDevices"][field];
        let names = list.as_array().into_iter().flatten().map(|one| text(one, "/resourceName"));
        names.collect::<Vec<_>>().join(", ")
    };
    let (host, mediated) = (of("pciHostDevices"), of("mediatedDevices"));
    format!("Permitted Devices: \nHost Devices: \n{host} \nGPU Devices: \n{mediated}\n")
}

/// Shows, sets or resets the levels of the components' logs.
///
/// # Errors
/// The flags contradict each other, or there is not one KubeVirt object.
pub(crate) async fn log_verbosity(site: &Site, typed: &Levels) -> Result<String> {
    let all: Vec<Value> = site.client.list(KUBEVIRTS, &Scope::all()).await?;
    let kubevirt = match all.as_slice() {
        [one] => one,
        [] => return Err(Error::new(Kind::Refused, "could not detect a KubeVirt installation")),
        [..] => {
            let text = "invalid kubevirt installation, more than one KubeVirt resource found";
            return Err(Error::new(Kind::Refused, text));
        }
    };
    match change(kubevirt, typed)? {
        Change::Show(lines) => Ok(lines),
        Change::Set(levels, lines) => {
            let key = Key::new(text(kubevirt, "/metadata/namespace"), text(kubevirt, "/metadata/name"));
            let patch = patch(kubevirt, levels);
            site.client.json_patch::<serde::de::IgnoredAny>(KUBEVIRTS, &key, &patch).await?;
            Ok(lines)
        }
    }
}

/// The change of the object that the flags ask for.
fn change(kubevirt: &Value, typed: &Levels) -> Result<Change> {
    let developer = &kubevirt["spec"]["configuration"]["developerConfiguration"];
    let mut levels = developer["logVerbosity"].as_object().cloned().unwrap_or_default();
    let asked: Vec<(&str, &str)> = typed
        .components()
        .into_iter()
        .filter_map(|(name, _, typed)| Some((name, typed?)))
        .chain(typed.all.as_deref().map(|typed| ("all", typed)))
        .collect();
    for (name, level) in &asked {
        if *level != SHOW && level.parse::<u8>().ok().is_none_or(|level| level > 9) {
            return usage(format!("{name}: log verbosity must be 0-9"));
        }
    }
    let shows = asked.iter().any(|(_, level)| *level == SHOW);
    let sets = asked.iter().any(|(_, level)| *level != SHOW);
    match (shows, sets || typed.reset.is_some()) {
        (true, true) => usage("only show or set is allowed"),
        (false, false) => usage("no flag specified - expecting at least one flag"),
        (true, false) => {
            let chosen =
                typed.components().into_iter().filter(|(_, _, one)| one.or(typed.all.as_deref()).is_some());
            let line = |(name, field, _): (&str, &str, Option<&str>)| {
                format!("{name} = {}\n", levels.get(field).and_then(Value::as_u64).unwrap_or(DEFAULT))
            };
            Ok(Change::Show(chosen.map(line).collect()))
        }
        (false, true) => {
            let mut lines = String::new();
            if typed.reset.is_some() {
                levels.clear();
                lines
                    .push_str("successfully reset the verbosity of all KubeVirt components to default (2)\n");
            }
            for (_, field, one) in typed.components() {
                let level = one.or(typed.all.as_deref()).and_then(|level| level.parse::<u8>().ok());
                if let Some(level) = level {
                    levels.insert(field.to_owned(), json!(level));
                }
            }
            if sets {
                lines.push_str("successfully set the verbosity of the KubeVirt component(s)\n");
            }
            Ok(Change::Set(levels, lines))
        }
    }
}

/// The patch that writes levels.
fn patch(kubevirt: &Value, levels: Map<String, Value>) -> JsonPatch {
    const CONFIGURATION: &str = "/spec/configuration";
    let developer = format!("{CONFIGURATION}/developerConfiguration");
    let is_there = |path: &str| kubevirt.pointer(path).is_some_and(Value::is_object);
    if is_there(&developer) {
        return JsonPatch::new().add(format!("{developer}/logVerbosity"), levels);
    }
    let of_developer = json!({"logVerbosity": levels});
    if is_there(CONFIGURATION) {
        return JsonPatch::new().add(developer, of_developer);
    }
    JsonPatch::new().add(CONFIGURATION, json!({"developerConfiguration": of_developer}))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        levels: Levels,
    }

    fn kubevirt() -> Value {
        json!({"spec": {"configuration": {
            "developerConfiguration": {"logVerbosity": {"virtHandler": 5}},
            "permittedHostDevices": {
                "pciHostDevices": [{"resourceName": "n.com/T4"}, {"resourceName": "i.com/qat"}],
                "mediatedDevices": [{"resourceName": "n.com/GRID"}],
            },
        }}})
    }

    fn asked(words: &str) -> Result<Change> {
        let words = ["x"].into_iter().chain(words.split(' ').filter(|word| !word.is_empty()));
        let typed =
            Typed::try_parse_from(words).map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        change(&kubevirt(), &typed.levels)
    }

    #[test]
    fn devices_are_printed_as_virtctl_does() {
        let text = "Permitted Devices: \nHost Devices: \nn.com/T4, i.com/qat \nGPU Devices: \nn.com/GRID\n";
        assert_eq!(devices(&kubevirt()), text);
        assert_eq!(devices(&json!({})), "Permitted Devices: \nHost Devices: \n \nGPU Devices: \n\n");
    }

    #[test]
    fn levels_are_shown_set_and_reset() {
        const SET: &str = "successfully set the verbosity of the KubeVirt component(s)\n";
        const RESET: &str = "successfully reset the verbosity of all KubeVirt components to default (2)\n";
        let shown = |words: &str| match asked(words).unwrap() {
            Change::Show(lines) => lines,
            Change::Set(..) => panic!("{words}"),
        };
        assert_eq!(shown("--virt-handler --virt-api"), "virt-api = 2\nvirt-handler = 5\n");
        assert_eq!(shown("--all").lines().count(), 5);
        for (words, levels, lines) in [
            ("--virt-api=7", json!({"virtHandler": 5, "virtAPI": 7}), SET.to_owned()),
            ("--reset", json!({}), RESET.to_owned()),
            ("--reset --virt-api=3", json!({"virtAPI": 3}), format!("{RESET}{SET}")),
            (
                "--all=3 --virt-handler=7",
                json!({"virtAPI": 3, "virtController": 3, "virtHandler": 7, "virtLauncher": 3, "virtOperator": 3}),
                SET.to_owned(),
            ),
        ] {
            let Value::Object(levels) = levels else { panic!("{levels}") };
            assert_eq!(asked(words).unwrap(), Change::Set(levels, lines), "{words}");
        }
        for words in
            ["", "--all --virt-api=3", "--virt-api --reset", "--virt-api=10", "--all=-1", "--virt-api=x"]
        {
            assert_eq!(asked(words).unwrap_err().kind(), Kind::Usage, "{words}");
        }
    }

    #[test]
    fn patches_make_what_is_missing() {
        let levels = || Map::from_iter([("virtAPI".to_owned(), json!(3))]);
        for (object, path, value) in [
            (kubevirt(), "/spec/configuration/developerConfiguration/logVerbosity", json!({"virtAPI": 3})),
            (
                json!({"spec": {"configuration": {}}}),
                "/spec/configuration/developerConfiguration",
                json!({"logVerbosity": {"virtAPI": 3}}),
            ),
            (
                json!({"spec": {}}),
                "/spec/configuration",
                json!({"developerConfiguration": {"logVerbosity": {"virtAPI": 3}}}),
            ),
        ] {
            let wanted = json!({"op": "add", "path": path, "value": value});
            assert_eq!(patch(&object, levels()).operations(), [wanted]);
        }
    }
}
