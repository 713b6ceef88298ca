//! `create vm`: a VirtualMachine from flags, printed and not sent. [`machine`] is pure but for the names it is given.
//!
//! Not here: the volumes ([`volumes`]), cloud-init ([`init`]), access credentials ([`credentials`]), instance types and
//! preferences ([`flavor`]).

mod credentials;
pub(crate) mod flavor;
mod init;
mod parameters;
mod volumes;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result, usage};
use crate::output::{Document, render};

/// Run strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Strategy {
    Always,
    Halted,
    Manual,
    RerunOnFailure,
    Once,
}

/// Flags of a machine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Name [default: vm- and five random characters]
    #[arg(long)]
    name: Option<String>,
    /// Run strategy
    #[arg(long, value_enum, ignore_case = true, default_value = "Always", rename_all = "PascalCase")]
    run_strategy: Strategy,
    /// Seconds between the request to shut down and the kill
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    termination_grace_period: u32,
    /// Memory of the guest [default: 512Mi, without an instance type]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["instancetype", "infer_instancetype", "infer_instancetype_from"])]
    memory: Option<String>,
    /// Instance type: NAME, or KIND/NAME with kind virtualmachineinstancetype or virtualmachineclusterinstancetype
    #[arg(long, value_name = "NAME", conflicts_with_all = ["infer_instancetype", "infer_instancetype_from"])]
    instancetype: Option<String>,
    /// Infer the instance type from the volume that boots first
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    infer_instancetype: Option<bool>,
    /// Infer the instance type from this volume
    #[arg(long, value_name = "VOLUME", conflicts_with = "infer_instancetype")]
    infer_instancetype_from: Option<String>,
    /// Preference: NAME, or KIND/NAME with kind virtualmachinepreference or virtualmachineclusterpreference
    #[arg(long, value_name = "NAME", conflicts_with_all = ["infer_preference", "infer_preference_from"])]
    preference: Option<String>,
    /// Infer the preference from the volume that boots first
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    infer_preference: Option<bool>,
    /// Infer the preference from this volume
    #[arg(long, value_name = "VOLUME", conflicts_with = "infer_preference")]
    infer_preference_from: Option<String>,
    #[command(flatten)]
    volumes: volumes::Options,
    #[command(flatten)]
    init: init::Options,
    #[command(flatten)]
    credentials: credentials::Options,
    /// Format
    #[arg(short, long, value_enum, default_value_t = Document::Yaml)]
    output: Document,
}

/// Prints a machine.
///
/// # Errors
/// The flags contradict each other, or a password file cannot be read.
pub(crate) fn vm(typed: &Options, namespace: Option<&str>) -> Result<String> {
    let name = named(typed.name.as_deref(), "vm-");
    render(&machine(typed, &name, namespace)?, typed.output)
}

/// The name that was given, or the prefix and five random characters.
fn named(given: Option<&str>, prefix: &str) -> String {
    let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(5).collect();
    given.map_or_else(|| format!("{prefix}{}", random.to_lowercase()), str::to_owned)
}

fn machine(typed: &Options, name: &str, namespace: Option<&str>) -> Result<Value> {
    let strategy = match typed.run_strategy {
        Strategy::Always => "Always",
        Strategy::Halted => "Halted",
        Strategy::Manual => "Manual",
        Strategy::RerunOnFailure => "RerunOnFailure",
        Strategy::Once => "Once",
    };
    let mut volumes = volumes::volumes(&typed.volumes, name)?;
    let credentials = credentials::credentials(&typed.credentials, typed.init.user())?;
    if let Some(volume) = init::volume(&typed.init, &credentials)? {
        volumes.add("cloudinitdisk", volume)?;
    }
    let mut domain = json!({"devices": {}});
    if !volumes.disks.is_empty() {
        domain["devices"]["disks"] = json!(volumes.disks);
    }
    let mut spec = json!({"runStrategy": strategy});
    let implicit = typed.memory.is_none() && typed.infer_instancetype.is_none();
    let types = [
        (
            "instancetype",
            &typed.instancetype,
            typed.infer_instancetype,
            &typed.infer_instancetype_from,
            implicit,
        ),
        (
            "preference",
            &typed.preference,
            typed.infer_preference,
            &typed.infer_preference_from,
            typed.infer_preference.is_none(),
        ),
    ];
    for (field, named, inferred, from, implicit) in types {
        let first = || volumes.inferable.first().cloned();
        let matcher = match (named, from, inferred) {
            (Some(named), ..) => Some(matcher(field, named)?),
            (None, Some(volume), _) if volumes.inferable.contains(volume) => {
                Some(json!({"inferFromVolume": volume}))
            }
            (None, Some(volume), _) => {
                return usage(format!(
                    "no volume {volume:?} to infer the {field} from: use a PVC or an import of one"
                ));
            }
            (None, None, Some(true)) => match first() {
                Some(volume) => Some(json!({"inferFromVolume": volume})),
                None => {
                    return usage(format!(
                        "no volume to infer the {field} from: use a PVC or an import of one"
                    ));
                }
            },
            (None, None, _) if implicit => first()
                .map(|volume| json!({"inferFromVolume": volume, "inferFromVolumeFailurePolicy": "Ignore"})),
            (None, None, _) => None,
        };
        if let Some(matcher) = matcher {
            spec[field] = matcher;
        }
    }
    let certain = spec["instancetype"].is_object()
        && spec.pointer("/instancetype/inferFromVolumeFailurePolicy").is_none();
    if !certain {
        domain["memory"] = json!({"guest": typed.memory.as_deref().unwrap_or("512Mi")});
    }
    let mut inside =
        json!({"domain": domain, "terminationGracePeriodSeconds": typed.termination_grace_period});
    if !credentials.list.is_empty() {
        inside["accessCredentials"] = json!(credentials.list);
    }
    if !volumes.volumes.is_empty() {
        inside["volumes"] = json!(volumes.volumes);
    }
    if !volumes.templates.is_empty() {
        spec["dataVolumeTemplates"] = json!(volumes.templates);
    }
    spec["template"] = json!({"spec": inside});
    let mut metadata = json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    Ok(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec}))
}

/// An instance type or preference by name; the kind is that of the cluster unless it is typed.
fn matcher(field: &str, named: &str) -> Result<Value> {
    let Some((kind, name)) = named.split_once('/') else { return Ok(json!({"name": named})) };
    let wanted = kind.to_ascii_lowercase();
    let known = [format!("virtualmachine{field}"), format!("virtualmachinecluster{field}")];
    if known.contains(&wanted) && !name.is_empty() {
        return Ok(json!({"kind": wanted, "name": name}));
    }
    let text = format!("--{field} {named:?} is not NAME, {}/NAME or {}/NAME", known[0], known[1]);
    Err(Error::new(Kind::Usage, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        options: Options,
    }

    fn made(words: &[&str]) -> Result<Value> {
        let typed = Typed::try_parse_from(["x"].iter().chain(words))
            .map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        machine(&typed.options, "a", None)
    }

    #[test]
    fn without_flags_the_defaults_are_those_of_virtctl() {
        assert_eq!(
            made(&[]).unwrap(),
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"}, "spec": {
                "runStrategy": "Always",
                "template": {"spec": {
                    "domain": {"devices": {}, "memory": {"guest": "512Mi"}},
                    "terminationGracePeriodSeconds": 180}}}})
        );
    }

    #[test]
    fn instance_types_replace_memory() {
        let of = |words: &[&str]| {
            let made = made(words).unwrap();
            let memory = made.pointer("/spec/template/spec/domain/memory/guest").cloned();
            (made["spec"]["instancetype"].clone(), memory)
        };
        assert_eq!(of(&["--instancetype", "small"]), (json!({"name": "small"}), None));
        let kind = "virtualmachineinstancetype/small";
        let named = json!({"kind": "virtualmachineinstancetype", "name": "small"});
        assert_eq!(of(&["--instancetype", kind]), (named, None));
        let pvc = ["--volume-pvc", "src:disk"];
        let ignored = json!({"inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"});
        assert_eq!(of(&pvc), (ignored, Some(json!("512Mi"))));
        let inferred = [&pvc[..], &["--infer-instancetype"]].concat();
        assert_eq!(of(&inferred), (json!({"inferFromVolume": "disk"}), None));
        let not = [&pvc[..], &["--infer-instancetype=false"]].concat();
        assert_eq!(of(&not), (Value::Null, Some(json!("512Mi"))));
        let sized = [&pvc[..], &["--memory", "1Gi"]].concat();
        assert_eq!(of(&sized), (Value::Null, Some(json!("1Gi"))));
    }

    #[test]
    fn credentials_bring_the_volume_that_they_need() {
        let of = |words: &[&str]| {
            let made = made(words).unwrap();
            let spec = made.pointer("/spec/template/spec").unwrap();
            (spec["accessCredentials"].as_array().unwrap().len(), spec["volumes"][0].clone())
        };
        let (count, volume) = of(&["--access-cred", "src:keys,method:configdrive"]);
        assert_eq!((count, &volume["name"]), (1, &json!("cloudinitdisk")));
        assert!(volume["cloudInitConfigDrive"]["userDataBase64"].is_string());
        let password = ["--access-cred", "type:password,src:words"];
        assert_eq!(of(&password), (1, Value::Null));
    }

    #[test]
    fn contradictions_are_wrong_usage() {
        for words in [
            &["--access-cred", "src:keys,method:nocloud", "--cloud-init", "configdrive"][..],
            &["--access-cred", "src:keys,method:nocloud", "--cloud-init", "none"],
            &["--memory", "1Gi", "--instancetype", "small"],
            &["--infer-instancetype"],
            &["--infer-preference-from", "nothing"],
            &["--instancetype", "pod/small"],
            &["--run-strategy", "Sometimes"],
            &["--volume-pvc", "name:x"],
        ] {
            assert_eq!(made(words).unwrap_err().kind(), Kind::Usage, "{words:?}");
        }
    }
}
