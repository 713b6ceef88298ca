//! The platform in a cluster, as `operator manifests` installs it: operator, node agent, MAC pool and CSI driver as pods.
//!
//! ```text
//! prepare: images, pool ─► install: manifests, operator, HyperConverged, Available ─► uninstall
//! ```
//!
//! Not here: virtual machines.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use operator::install::{Settings, custom_resources, manifests, yaml};
use serde_json::Value;

use crate::{Cluster, programs, storage};

/// How long the platform may take until it is available.
const READY: Duration = Duration::from_secs(120);

/// The settings for a node of this harness: guests in software, one replica of everything, stock sidecars may be asked for.
pub fn settings() -> Settings {
    Settings { replicas: 1, emulation: true, sidecars: true, ..Settings::default() }
}

/// Loads the platform's images and makes what an administrator has on a node: a pool of `size` bytes for the CSI driver.
///
/// # Errors
/// When an image is not built, or the node refuses an object.
pub fn prepare(cluster: &Cluster, size: u64) -> Result<()> {
    cluster.import_images(&programs::image()?)?;
    cluster.import_images(&programs::launcher_image()?)?;
    storage::prepare(cluster, size)
}

/// Installs the platform and waits until it is available; gives the time that took. Applied again, it changes nothing.
///
/// # Errors
/// When the API server refuses an object, or the platform is not available in time.
pub fn install(cluster: &Cluster, settings: &Settings) -> Result<Duration> {
    let begun = Instant::now();
    apply(cluster, "platform.yaml", &manifests(settings))?;
    wait(cluster, &["--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=ferrovirt"])?;
    let rollout = format!("--timeout={}s", READY.as_secs());
    kubectl(
        cluster,
        &["-n", &settings.namespace, "rollout", "status", "deployment/ferrovirt-operator", &rollout],
    )
    .with_context(|| pods(cluster, &settings.namespace))?;
    switch_on(cluster, settings)?;
    Ok(begun.elapsed())
}

/// Makes the objects that switch an installed platform on, and waits until they are available.
///
/// # Errors
/// When the API server refuses an object, or one is not available in time.
pub fn switch_on(cluster: &Cluster, settings: &Settings) -> Result<()> {
    let begun = Instant::now();
    let switches = custom_resources(settings);
    // The API server learns of the webhook's endpoints after the kubelet reported them.
    while let Err(error) = apply(cluster, "platform-switches.yaml", &switches) {
        ensure!(begun.elapsed() < READY, "{error:#}");
        thread::sleep(Duration::from_millis(200));
    }
    for object in &switches {
        let mut arguments = vec!["--for=condition=Available".to_owned(), reference(object)];
        if let Some(namespace) = object["metadata"]["namespace"].as_str() {
            arguments.extend(["-n".to_owned(), namespace.to_owned()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        wait(cluster, &arguments).with_context(|| pods(cluster, &settings.namespace))?;
    }
    Ok(())
}

/// Removes the platform as `operator uninstall` does; VMs and DataVolumes must be gone. Gives the time that took.
///
/// # Errors
/// When an object is not removed in time.
pub fn uninstall(cluster: &Cluster, settings: &Settings) -> Result<Duration> {
    let begun = Instant::now();
    let run = removal(cluster, settings, &[])?.output().context("cannot run operator")?;
    let why = String::from_utf8_lossy(&run.stderr);
    ensure!(
        run.status.success(),
        "operator uninstall: {}\n{}",
        why.trim(),
        pods(cluster, &settings.namespace)
    );
    Ok(begun.elapsed())
}

/// The command `operator uninstall` for this cluster.
///
/// # Errors
/// When the operator is not built.
pub fn removal(cluster: &Cluster, settings: &Settings, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(programs::of_this_build("operator")?);
    let timeout = format!("--timeout={}", READY.as_secs());
    command.args(["uninstall", "--namespace", &settings.namespace, &timeout]).args(arguments);
    command.arg("--kubeconfig").arg(cluster.kubeconfig()).stdin(Stdio::null());
    Ok(command)
}

/// The command that collects a support bundle in a directory.
///
/// # Errors
/// When the operator is not built.
pub fn bundle(cluster: &Cluster, directory: &Path) -> Result<Command> {
    let mut command = Command::new(programs::of_this_build("operator")?);
    command.arg("support-bundle").arg("--output").arg(directory);
    command.arg("--kubeconfig").arg(cluster.kubeconfig()).stdin(Stdio::null());
    Ok(command)
}

/// kubectl's name of an object.
fn reference(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = text(&object["apiVersion"]);
    let group = group.split('/').next().unwrap_or_default();
    format!("{}.{group}/{}", text(&object["kind"]).to_lowercase(), text(&object["metadata"]["name"]))
}

fn apply(cluster: &Cluster, name: &str, objects: &[Value]) -> Result<()> {
    let file = write(cluster, name, objects)?;
    kubectl(cluster, &["apply", "--server-side", "-f", &file])
}

fn write(cluster: &Cluster, name: &str, objects: &[Value]) -> Result<String> {
    let file = cluster.place().path(name);
    fs::write(&file, yaml(objects)?)?;
    Ok(path(&file))
}

fn path(file: &Path) -> String {
    file.display().to_string()
}

fn wait(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    let timeout = format!("--timeout={}s", READY.as_secs());
    let all: Vec<&str> = ["wait", &timeout].into_iter().chain(arguments.iter().copied()).collect();
    kubectl(cluster, &all)
}

/// The platform's pods, for the text of an error.
fn pods(cluster: &Cluster, namespace: &str) -> String {
    let shown = cluster.kubectl().args(["-n", namespace, "get", "pods", "-o", "wide"]).output();
    shown.map_or_else(|error| error.to_string(), |shown| String::from_utf8_lossy(&shown.stdout).into_owned())
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    let run = cluster.kubectl().args(arguments).output().context("cannot run kubectl")?;
    let why = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "kubectl {}: {}", arguments.join(" "), why.trim());
    Ok(())
}
