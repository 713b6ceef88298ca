//! The meaning of the command line, checked.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::args::{Manifests, Run};
use crate::error::{Error, Kind, Result};
use crate::install::Settings;

/// Names of the groups of controllers, which are also the ends of their leases' names.
pub const AREAS: [&str; 4] = ["compute", "storage", "volumes", "platform"];

/// Stands for a program's name in the template of images.
const PROGRAM: &str = "{program}";

/// A checked configuration of `operator run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Kubeconfig file, if one was named.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the installation.
    pub namespace: String,
    /// Name of this replica.
    pub identity: String,
    /// Areas that run here.
    pub areas: Vec<&'static str>,
    /// Whether guests run without KVM on nodes that lack it.
    pub emulation: bool,
    /// Whether the operator decides about its own replicas.
    pub scale: bool,
    /// The kubelet's directory on nodes.
    pub kubelet_directory: String,
    /// URL of the pages about alerts with `%s` for the name, if one was given.
    pub runbooks: Option<String>,
    /// Address of probes and metrics.
    pub health: SocketAddr,
    /// Address of the aggregated APIs.
    pub serve: SocketAddr,
    image: String,
}

impl Config {
    /// Checks what was typed.
    ///
    /// # Errors
    /// [`Kind::Usage`] for unknown areas, a template without `{program}` or `%s`, an invalid namespace, and a directory
    /// that the kubelet cannot have.
    pub fn new(run: &Run) -> Result<Self> {
        let usage = |text: String| Error::new(Kind::Usage, text);
        check(&run.namespace, &run.image)?;
        let known: Vec<&'static str> = AREAS.to_vec();
        let unknown = run.areas.iter().find(|name| !known.contains(&name.as_str()));
        if let Some(name) = unknown {
            return Err(usage(format!("--area {name}: the areas are {}", known.join(", "))));
        }
        // A chart sets the variable also without a value.
        let runbooks = run.runbook_url_template.clone().filter(|template| !template.is_empty());
        if let Some(template) = runbooks.as_ref().filter(|template| template.matches("%s").count() != 1) {
            return Err(usage(format!("--runbook-url-template {template}: it must contain %s once")));
        }
        let chosen = |name: &&'static str| run.areas.is_empty() || run.areas.iter().any(|one| one == name);
        Ok(Self {
            kubeconfig: run.kubeconfig.clone(),
            namespace: run.namespace.clone(),
            identity: run.identity.clone().unwrap_or_else(host_name),
            areas: known.into_iter().filter(chosen).collect(),
            emulation: run.kvm_emulation,
            scale: run.scale,
            kubelet_directory: kubelet_directory(&run.kubelet_directory)?,
            runbooks,
            health: run.health,
            serve: run.serve,
            image: run.image.clone(),
        })
    }

    /// The installation, as far as the operator makes objects of it.
    pub fn installation(&self) -> Settings {
        Settings {
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            replicas: 1,
            emulation: self.emulation,
            kubelet_directory: self.kubelet_directory.clone(),
            ..Settings::default()
        }
    }

    /// The image of a worker program, such as `importer`.
    pub fn image(&self, program: &str) -> String {
        self.image.replace(PROGRAM, program)
    }
}

/// The output of `operator manifests`.
///
/// # Errors
/// [`Kind::Usage`] for an image template without `{program}`, an invalid namespace or claim, and unusable directories.
pub fn settings(arguments: &Manifests) -> Result<Settings> {
    let Manifests {
        namespace,
        image,
        replicas,
        emulation,
        clients_claim,
        sidecars,
        cni_directory,
        kubelet_directory: kubelet,
        shared_network_namespaces,
        manual_roles,
        machines,
        custom_resources: _,
    } = arguments;
    check(namespace, image)?;
    let claim = clients_claim.as_deref().unwrap_or_default();
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if claim.len() > 253 || !claim.bytes().all(valid) {
        return Err(Error::new(Kind::Usage, format!("--clients-claim {claim:?} is not the name of a claim")));
    }
    if !cni_directory.starts_with('/') || cni_directory.contains(',') {
        let text = format!("--cni-directory {cni_directory:?} is not an absolute path");
        return Err(Error::new(Kind::Usage, text));
    }
    if let Some(name) = shared_network_namespaces.iter().find(|name| *name != "*" && !is_namespace(name)) {
        let text = format!("--shared-network-namespaces {name:?} is not the name of a namespace");
        return Err(Error::new(Kind::Usage, text));
    }
    Ok(Settings {
        namespace: namespace.clone(),
        image: image.clone(),
        replicas: *replicas,
        emulation: *emulation,
        clients_claim: claim.to_owned(),
        sidecars: *sidecars,
        cni_directory: cni_directory.clone(),
        kubelet_directory: kubelet_directory(kubelet)?,
        shared_networks: shared_network_namespaces.join(","),
        manual_roles: *manual_roles,
        machines: *machines,
    })
}

/// Longest directory of a kubelet: sockets below it have paths of at most 107 bytes, and the driver's
/// `plugins_registry/kubevirt.io.hostpath-provisioner-reg.sock` is the longest.
const KUBELET_LENGTH: usize = 48;

/// The kubelet's directory without a slash at its end.
fn kubelet_directory(text: &str) -> Result<String> {
    let usage =
        |problem: String| Err(Error::new(Kind::Usage, format!("--kubelet-directory {text:?} {problem}")));
    let path = text.trim_end_matches('/');
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return usage("is not an absolute path without `..`".to_owned());
    }
    if path.len() > KUBELET_LENGTH {
        return usage(format!(
            "is longer than {KUBELET_LENGTH} bytes: paths of sockets below it would be too long"
        ));
    }
    Ok(path.to_owned())
}

fn check(namespace: &str, image: &str) -> Result<()> {
    let usage = |text: String| Err(Error::new(Kind::Usage, text));
    if !image.contains(PROGRAM) {
        return usage(format!("--image {image}: it must contain {PROGRAM}"));
    }
    if !is_namespace(namespace) {
        return usage(format!("--namespace {namespace:?} is not the name of a namespace"));
    }
    Ok(())
}

/// Whether a text can be the name of a namespace.
fn is_namespace(text: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(valid)
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "operator".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};
    use crate::defaults::NAMESPACE;

    fn config(arguments: &[&str]) -> Result<Config> {
        let args = Args::try_parse_from(["operator", "run"].iter().chain(arguments)).unwrap();
        let Command::Run(run) = args.command else { panic!("{args:?}") };
        Config::new(&run)
    }

    #[test]
    fn defaults_are_those_of_the_platform() {
        let config = config(&["--identity", "a"]).unwrap();
        assert_eq!((config.namespace.as_str(), config.identity.as_str()), (NAMESPACE, "a"));
        assert_eq!(config.image("importer"), "localhost/ferrovirt:importer");
        assert_eq!(config.areas.len(), AREAS.len());
    }

    #[test]
    fn unusable_settings_of_nodes_are_refused() {
        let of = |arguments: &[&str]| {
            let args = Args::try_parse_from(["operator", "manifests"].iter().chain(arguments)).unwrap();
            let Command::Manifests(manifests) = args.command else { panic!("{args:?}") };
            settings(&manifests)
        };
        let networks = |list: &str| of(&["--shared-network-namespaces", list]).map(|one| one.shared_networks);
        assert_eq!(networks("lan,dmz").unwrap(), "lan,dmz");
        assert_eq!(networks("*").unwrap(), "*");
        let long = format!("/{}", "k".repeat(48));
        for (arguments, expected) in [
            (["--shared-network-namespaces", "lan,A b"], "\"A b\" is not the name of a namespace"),
            (["--cni-directory", "cni/bin"], "is not an absolute path"),
            (["--kubelet-directory", "var/lib/kubelet"], "is not an absolute path"),
            (["--kubelet-directory", "/"], "is not an absolute path"),
            (["--kubelet-directory", "/var/../kubelet"], "is not an absolute path"),
            (["--kubelet-directory", long.as_str()], "is longer than 48 bytes"),
        ] {
            let error = of(&arguments).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let kubelet = of(&["--kubelet-directory", "/var/lib/k0s/kubelet/"]).unwrap().kubelet_directory;
        assert_eq!(kubelet, "/var/lib/k0s/kubelet");
    }

    #[test]
    fn unusable_settings_are_refused() {
        for (arguments, expected) in [
            (["--area", "magic"], "--area magic: the areas are"),
            (["--image", "registry/x:1"], "must contain {program}"),
            (["--namespace", "A b"], "not the name of a namespace"),
            (["--runbook-url-template", "https://wiki"], "must contain %s once"),
            (["--kubelet-directory", "kubelet"], "is not an absolute path"),
        ] {
            let error = config(&arguments).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.kind(), Kind::Usage);
        }
    }
}
