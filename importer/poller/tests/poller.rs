//! The program against a real registry (Debian's docker-registry) over TLS with a password, and a stand-in for the API server
//! that keeps one DataImportCron. The real API server and its rules of access are in `e2e/tests/integration/importer/poller.rs`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sources::images::{GZIP, Layer, PASSWORD, USER};
use sources::registry::{Login, Registry, Store, Tls};
use support::ApiServer;

const DESIRED: &str = "cdi.kubevirt.io/storage.import.sourceDesiredDigest";
const LAST: &str = "cdi.kubevirt.io/storage.import.lastCronTime";

/// A registry with images, an API server with a DataImportCron, and a pod's files.
struct Place {
    store: Store,
    tls: Tls,
    registry: Registry,
    server: ApiServer,
    pod: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let (store, tls) = (Store::start(), Tls::make());
        let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
        let server = ApiServer::start(json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron",
            "metadata": {"name": "nightly", "namespace": "images", "resourceVersion": "1", "labels": {"a": "b"}},
            "spec": {"schedule": "0 3 * * *", "unknown": {"deep": [1]}},
        }));
        let pod = tempfile::tempdir().unwrap();
        fs::create_dir(pod.path().join("dev")).unwrap();
        fs::write(pod.path().join("dev/termination-log"), "").unwrap();
        server.write_config(&pod.path().join("kubeconfig"));
        Self { store, tls, registry, server, pod }
    }

    /// Pushes `disks/small:latest` with this content; its digest.
    fn push(&self, content: &[u8]) -> String {
        self.store.push("disks/small", "latest", &[Layer::new(GZIP, &[("disk/disk.img", content)])]).0
    }

    /// The program as CDI's CronJob starts it: flags with one dash, the rest in the environment.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cdi-source-update-poller"));
        // Next to it in the image, and in the build of the workspace.
        places::program("importer");
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("KUBECONFIG", self.pod.path().join("kubeconfig"))
            .env("FERROVIRT_IMPORTER_ROOT", self.pod.path())
            .env("IMPORTER_ACCESS_KEY_ID", USER)
            .env("IMPORTER_SECRET_KEY", PASSWORD)
            .args(["-ns", "images", "-cron", "nightly"]);
        command
    }

    fn poll(&self, command: &mut Command) -> Output {
        let url = self.registry.image("disks/small:latest");
        let output = places::output(command.args(["-url", &url])).unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!log.contains(PASSWORD), "a password in the log: {log}");
        assert!(output.stdout.is_empty());
        output
    }

    /// A poll that trusts the registry's certificate.
    fn trusting(&self) -> Output {
        self.poll(self.command().arg("-certdir").arg(self.tls.certs()))
    }

    fn termination(&self) -> String {
        fs::read_to_string(self.pod.path().join("dev/termination-log")).unwrap()
    }

    fn annotation(&self, name: &str) -> Value {
        self.server.object()["metadata"]["annotations"][name].clone()
    }
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{log}");
}

#[test]
fn a_new_digest_is_written_and_an_old_one_stays() {
    let place = Place::new();
    let first = place.push(b"first");
    let before = place.server.object();
    assert_exit(&place.trusting(), 0);
    assert_eq!(place.annotation(DESIRED), first);
    assert!(place.annotation(LAST).as_str().unwrap().ends_with('Z'));
    let mut after = place.server.object();
    after["metadata"].as_object_mut().unwrap().remove("annotations");
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    assert_eq!(after, before, "fields that are no annotation of a poll stay");

    let output = place.trusting();
    assert_exit(&output, 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the digest is unchanged"));
    assert_eq!(place.annotation(DESIRED), first);

    let second = place.push(b"second");
    assert_ne!(first, second);
    assert_exit(&place.trusting(), 0);
    assert_eq!(place.annotation(DESIRED), second);
    // The rights of upstream's ServiceAccount.
    assert!(place.server.methods().iter().all(|method| ["GET", "PUT"].contains(&method.as_str())));
}

#[test]
fn a_registry_without_a_trusted_certificate_is_polled_only_if_insecure() {
    let place = Place::new();
    let digest = place.push(b"disk");
    let output = place.poll(&mut place.command());
    assert_exit(&output, 1);
    assert!(place.termination().contains("not trusted"), "{}", place.termination());
    assert!(place.server.methods().is_empty(), "nothing to write");
    assert_exit(&place.poll(place.command().env("INSECURE_TLS", "true")), 0);
    assert_eq!(place.annotation(DESIRED), digest);
}

#[test]
fn wrong_passwords_and_missing_images_fail_with_a_reason() {
    let place = Place::new();
    place.push(b"disk");
    let certs = place.tls.certs();
    let output = place.poll(place.command().env("IMPORTER_SECRET_KEY", "wrong").arg("-certdir").arg(&certs));
    assert_exit(&output, 1);
    assert!(place.termination().starts_with("Unable to connect to registry data source: "));
    let mut command = place.command();
    command.arg("-certdir").arg(&certs).args(["-url", &place.registry.image("disks/other")]);
    assert_exit(&places::output(&mut command).unwrap(), 1);
    assert!(place.termination().contains("404"), "{}", place.termination());
    assert!(place.server.methods().is_empty());
}

#[test]
fn changes_of_others_are_kept_and_refusals_reported() {
    let place = Place::new();
    let digest = place.push(b"disk");
    place.server.conflict(2);
    assert_exit(&place.trusting(), 0);
    assert_eq!(place.annotation(DESIRED), digest);
    assert_eq!(place.annotation("other"), "2", "what another program has written in between stays");

    place.server.conflict(100);
    let output = place.trusting();
    assert_exit(&output, 3);
    let reason = place.termination();
    assert!(reason.starts_with("cannot update DataImportCron images/nightly: "), "{reason}");

    let mut command = place.command();
    command.arg("-certdir").arg(place.tls.certs()).args(["-cron", "absent"]);
    assert_exit(&place.poll(&mut command), 3);
    let reason = place.termination();
    assert!(reason.starts_with("cannot read DataImportCron images/absent: "), "{reason}");
}

#[test]
fn an_image_that_is_named_by_another_digest_is_rejected() {
    let place = Place::new();
    let url = format!("{}@sha512:{}", place.registry.image("disks/small"), "0".repeat(128));
    let output = places::output(place.command().args(["-url", &url])).unwrap();
    assert_exit(&output, 1);
    assert!(place.termination().contains("sha256 digests only"), "{}", place.termination());
    assert!(place.server.methods().is_empty());
}

#[test]
fn without_a_cluster_or_flags_it_is_wrong_usage() {
    let place = Place::new();
    let output = place.poll(place.command().env_remove("KUBECONFIG").env("HOME", place.pod.path()));
    assert_exit(&output, 2);
    assert!(place.termination().contains("credentials cannot be used"), "{}", place.termination());
    assert_exit(&places::output(&mut place.command()).unwrap(), 2);
}

#[test]
fn a_signal_ends_the_poll_and_the_importer() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("docker://{}/disks/small", silent.local_addr().unwrap());
    let mut command = place.command();
    command.args(["-url", &url]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut poller = command.spawn().unwrap();
    let (mut connection, _) = silent.accept().unwrap();
    assert!(Command::new("kill").arg(poller.id().to_string()).status().unwrap().success());
    assert_eq!(poller.wait().unwrap().code(), Some(143));
    // It ends with the process that made it.
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    connection.read_to_end(&mut Vec::new()).unwrap();
}
