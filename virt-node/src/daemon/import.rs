//! Filling a volume: the importer, executed by its environment contract, with the volume's folder as the root that a pod
//! would give it.
//!
//! ```text
//! claims/UID/data, dev/cdi-block-volume   the target, as in a pod        certs/, extraheaders/   what Secrets hold
//! claims/UID/dev/termination-log          how it ended                   progress, log           how far it is
//! ```
//!
//! An importer outlives the daemon; the next one waits for it. One that was killed is started again and goes on by its own
//! journal. Files of this machine (`file:///`, `oci-archive:`) are read with root's rights, everything else as a
//! user of the transfer's own.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::cdi::{DataVolumeSource, DataVolumeSpec};
use api::core::{ConfigMap, Secret};
use api::import::{Content, Job, Outcome, SourceKind};
use api::names;
use api::upload::Server;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dir::{Dir, Owner};

use super::ids::Transfer;
use super::{process, upload};
use crate::error::{Error, Kind};
use virt::resolve::Objects;

/// The importer's word about its end, in `dev`, and its longest, in bytes.
const WORD: &str = "termination-log";
const WORD_MAX: u64 = 64 << 10;
/// How often it is looked how far an import is.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long an importer or an upload server may take to end after it was asked to.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether it is done as the transfer's user; files of this machine are read with root's rights.
pub(super) fn runs_as_user(origin: &Origin) -> bool {
    match origin {
        Origin::Contract(job, _) => !job.endpoint.starts_with("oci-archive:"),
        Origin::Upload(_) => true,
        Origin::File(_) | Origin::Claim(_) => false,
    }
}

/// Where the bytes come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Origin {
    /// The importer's contract, with the files that it names: `certs/…`, `extraheaders/…`.
    Contract(Box<Job>, Vec<(PathBuf, Vec<u8>)>),
    /// A file of this machine.
    File(PathBuf),
    /// Another claim's blocks.
    Claim(String),
    /// An upload by a client, and the configuration of the server that accepts it.
    Upload(Box<Server>),
}

/// The parameters of an import.
///
/// # Errors
/// A sentence about what is missing.
pub(super) fn from(spec: &DataVolumeSpec, uid: &str, size: u64, objects: &Objects) -> Result<Origin, String> {
    let source = spec.source.clone().unwrap_or_default();
    let mut job = Job {
        image_size: Some(size),
        owner_uid: uid.to_owned(),
        preallocation: spec.preallocation.unwrap_or(false),
        content: match spec.content_type.as_deref() {
            Some("archive") => Content::Archive,
            Some(_) | None => Content::Kubevirt,
        },
        ..Job::default()
    };
    let mut files = Vec::new();
    let mut access = Access { objects, job: &mut job, files: &mut files };
    let DataVolumeSource {
        http,
        s3,
        gcs,
        registry,
        pvc,
        blank,
        upload,
        glance: _,
        imageio: _,
        snapshot: _,
        vddk: _,
    } = source;
    if let Some(claim) = pvc {
        return Ok(Origin::Claim(claim.name));
    } else if upload.is_some() {
        let (owner_uid, preallocation) = (uid.to_owned(), job.preallocation);
        let server = Server { image_size: Some(size), owner_uid, preallocation, ..Server::default() };
        return Ok(Origin::Upload(Box::new(server)));
    } else if let Some(http) = http {
        if let Some(path) = http.url.strip_prefix("file://") {
            return Ok(Origin::File(PathBuf::from(path)));
        }
        access.job.endpoint = http.url;
        access.job.checksum = http.checksum.unwrap_or_default();
        access.job.insecure_tls = http.insecure_skip_verify.unwrap_or(false);
        access.job.extra_headers = http.extra_headers;
        access.login(http.secret_ref.as_deref())?;
        access.certificates(http.cert_config_map.as_deref())?;
        for name in &http.secret_extra_headers {
            access.headers(name)?;
        }
    } else if let Some(object) = s3 {
        access.job.source = SourceKind::S3;
        access.job.endpoint = object.url;
        access.login(object.secret_ref.as_deref())?;
        access.certificates(object.cert_config_map.as_deref())?;
    } else if let Some(object) = gcs {
        access.job.source = SourceKind::Gcs;
        access.job.endpoint = object.url;
        access.account(object.secret_ref.as_deref())?;
    } else if let Some(registry) = registry {
        access.job.source = SourceKind::Registry;
        access.job.endpoint = registry.url.unwrap_or_default();
        access.job.registry_architecture =
            registry.platform.and_then(|platform| platform.architecture).unwrap_or_default();
        access.login(registry.secret_ref.as_deref())?;
        access.certificates(registry.cert_config_map.as_deref())?;
    } else if blank.is_some() {
        access.job.source = SourceKind::None;
    } else {
        return Err("no source".to_owned());
    }
    Ok(Origin::Contract(Box::new(job), files))
}

/// A disk of a container image.
pub(super) fn image(reference: &str, objects: &Objects, secret: Option<&str>) -> Result<Origin, String> {
    let known = ["docker://", "oci-archive:"].iter().any(|start| reference.starts_with(start));
    let endpoint = if known { reference.to_owned() } else { format!("docker://{reference}") };
    let insecure_tls = is_local(&endpoint);
    let mut job = Job { source: SourceKind::Registry, endpoint, insecure_tls, ..Job::default() };
    let mut files = Vec::new();
    if let Some(secret) = secret {
        let content = entry(objects, secret, ".dockerconfigjson")?;
        job.registry_auth_file = "auth.json".to_owned();
        files.push((PathBuf::from("auth.json"), content));
    }
    Ok(Origin::Contract(Box::new(job), files))
}

/// Whether an image is of a registry on this machine, which container runtimes reach without TLS, too.
fn is_local(endpoint: &str) -> bool {
    let Some(rest) = endpoint.strip_prefix("docker://") else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The contents of Secrets and ConfigMaps for a job.
struct Access<'a> {
    objects: &'a Objects,
    job: &'a mut Job,
    files: &'a mut Vec<(PathBuf, Vec<u8>)>,
}

impl Access<'_> {
    fn login(&mut self, name: Option<&str>) -> Result<(), String> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
        let text =
            |key| Ok::<_, String>(String::from_utf8_lossy(&entry(self.objects, name, key)?).into_owned());
        self.job.access_key_id = text("accessKeyId")?;
        self.job.secret_key = text("secretKey")?;
        Ok(())
    }

    /// An account of Google's: a file, as CDI has it.
    fn account(&mut self, name: Option<&str>) -> Result<(), String> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
        let path = names::GOOGLE_CREDENTIALS.trim_start_matches('/');
        let key = path.rsplit('/').next().unwrap_or(path);
        self.files.push((PathBuf::from(path), entry(self.objects, name, key)?));
        self.job.google_credentials = path.to_owned();
        Ok(())
    }

    fn certificates(&mut self, name: Option<&str>) -> Result<(), String> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
        let map: &ConfigMap =
            self.objects.config_maps.get(name).ok_or_else(|| format!("there is no ConfigMap {name:?}"))?;
        self.job.cert_dir = "certs".to_owned();
        let certificates = map.data.iter().filter(|(key, _)| is_file_name(key));
        self.files.extend(
            certificates.map(|(key, text)| (Path::new("certs").join(key), text.clone().into_bytes())),
        );
        Ok(())
    }

    fn headers(&mut self, name: &str) -> Result<(), String> {
        let secret: &Secret =
            self.objects.secrets.get(name).ok_or_else(|| format!("there is no Secret {name:?}"))?;
        let keys = secret.data.keys().chain(secret.string_data.keys());
        for key in keys.filter(|key| is_file_name(key)) {
            let path = Path::new(names::SECRET_HEADERS_DIR.trim_start_matches('/')).join(name).join(key);
            self.files.push((path, entry(self.objects, name, key)?));
        }
        Ok(())
    }
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// An entry of a Secret.
fn entry(objects: &Objects, name: &str, key: &str) -> Result<Vec<u8>, String> {
    let secret = objects.secrets.get(name).ok_or_else(|| format!("there is no Secret {name:?}"))?;
    if let Some(text) = secret.string_data.get(key) {
        return Ok(text.0.clone().into_bytes());
    }
    let text = secret.data.get(key).ok_or_else(|| format!("Secret {name:?} has no entry {key:?}"))?;
    let text: String = text.0.split_ascii_whitespace().collect();
    STANDARD.decode(text).map_err(|_| format!("Secret {name:?}: entry {key:?} is not base64"))
}

/// Fills the volume in the directory `root`. `progress` receives per cent; `stop` ends it.
///
/// # Errors
/// The error of the importer or the upload server, or that it was stopped.
pub(super) fn fill(
    root: &Path,
    from: &Origin,
    size: Option<u64>,
    transfer: Transfer<'_>,
    stop: &AtomicBool,
    mut progress: impl FnMut(f64),
) -> Result<(), Error> {
    let (uploaded, user) = (matches!(from, Origin::Upload(_)), transfer.user);
    let program = if uploaded { "upload server" } else { "importer" };
    let failed = |error| process::unstarted(if uploaded { "uploadserver" } else { "importer" }, error);
    let (log, word) = (root.join("log"), root.join("dev").join(WORD));
    let mut child = if process::lives(&log) {
        None
    } else {
        let (command, _program) = prepare(root, from, size, user).map_err(failed)?;
        // A word is of this try, and the disk's journal of all.
        let made = Dir::open(root.join("dev")).and_then(|dir| {
            dir.replace(WORD, b"", 0o600, dir::Durability::Volatile)?;
            dir.chown(WORD, user)
        });
        made.map_err(|error| failed(error.into()))?;
        Some(process::start(command, &log).map_err(failed)?)
    };
    let mut last = None;
    let code = loop {
        let ended = match &mut child {
            Some(child) => child.try_wait().map_err(failed)?.map(|status| status.code()),
            None => (!process::lives(&log)).then_some(None),
        };
        // The sender sees how far it is.
        let now = if uploaded { upload::door(root).map(|_| 0.0) } else { percent(root) };
        if now != last {
            last = now;
            progress(now.unwrap_or(0.0));
        }
        if let Some(code) = ended {
            break code;
        }
        if stop.load(Ordering::Relaxed) {
            end(child.as_mut(), &log, transfer);
            return Err(Error::new(Kind::System, "stopped"));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    // Nothing of it is left that could change what it made.
    if runs_as_user(from) {
        transfer.end();
    }
    let said = dir::read(&word, WORD_MAX).ok().flatten().unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let outcome: Option<Outcome> = serde_json::from_str(&said).ok();
    match (code, outcome) {
        (Some(0) | None, Some(outcome)) if outcome.scratch_space_required == Some(true) => {
            let text = format!("the image must be converted first: {}", outcome.message.unwrap_or_default());
            Err(Error::new(Kind::Content, text))
        }
        (Some(0) | None, Some(outcome)) if is_complete(&outcome) => Ok(()),
        // Files of this machine, and empty devices, leave no word.
        (Some(0), None) => Ok(()),
        (_, Some(outcome)) => Err(Error::new(Kind::Content, outcome.message.unwrap_or_default())),
        (code, None) => {
            let said = if said.trim().is_empty() { process::last_words(&log) } else { said };
            let how = code.map_or_else(|| "was killed".to_owned(), |code| format!("ended with code {code}"));
            Err(Error::new(Kind::System, format!("the {program} {how}: {}", said.trim())))
        }
    }
}

/// A checksum that does not match is exit code 0 too, with another message.
fn is_complete(outcome: &Outcome) -> bool {
    let complete = ["Import Complete", "Upload Complete"];
    outcome.message.as_deref().is_none_or(|message| complete.iter().any(|start| message.starts_with(start)))
}

/// Writes the files next to the target. Returns the command, with the descriptors that must stay open until it is started.
fn prepare(
    root: &Path,
    from: &Origin,
    size: Option<u64>,
    user: Owner,
) -> io::Result<(Command, Option<fs::File>)> {
    if let Origin::Upload(server) = from {
        return upload::prepare(root, server, user);
    }
    fs::create_dir_all(root.join("dev"))?;
    let (mut command, file) = process::command("importer");
    command.current_dir(root).env(names::PROGRESS_VARIABLE, "1");
    let log = fs::File::create(root.join("progress"))?;
    command.stdout(Stdio::from(log));
    match from {
        Origin::Contract(job, files) => {
            let job = within(root, job);
            for (path, content) in files {
                let path = root.join(path);
                let folder = path.parent().unwrap_or(root);
                fs::create_dir_all(folder)?;
                let name = path.file_name().unwrap_or_default();
                let dir = Dir::open(folder)?;
                dir.replace(name, content, 0o400, dir::Durability::Volatile)?;
                dir.chown(name, user)?;
            }
            command.env(names::ROOT_VARIABLE, root).env(names::METRICS_PORT_VARIABLE, "0");
            command.envs(job.to_env());
            for name in ["http_proxy", "https_proxy", "no_proxy"] {
                if let Some(proxy) = std::env::var_os(name) {
                    command.env(name, proxy);
                }
            }
            if runs_as_user(from) {
                command.uid(user.uid).gid(user.gid);
            }
        }
        Origin::File(path) => {
            let device = root.join("dev/cdi-block-volume");
            let target = if device.exists() { device } else { root.join("data/disk.img") };
            if let Some(size) = size.filter(|_| target.starts_with(root.join("data"))) {
                command.arg("--size").arg(size.to_string());
            }
            command.args(["--force", "--progress=none"]).arg(path).arg(target);
        }
        // Its blocks are there when the volume is made; the upload server is prepared above.
        Origin::Claim(_) | Origin::Upload(_) => {}
    }
    Ok((command, file))
}

/// The job with paths as they are here.
fn within(root: &Path, job: &Job) -> Job {
    let mut job = job.clone();
    for path in [&mut job.cert_dir, &mut job.registry_auth_file, &mut job.google_credentials] {
        if !path.is_empty() {
            *path = root.join(&*path).to_string_lossy().into_owned();
        }
    }
    job
}

/// The progress that the importer reports.
fn percent(root: &Path) -> Option<f64> {
    let text = process::end_of(&root.join("progress")).ok()?;
    String::from_utf8_lossy(&text).lines().next_back()?.parse().ok()
}

/// Ends an importer or an upload server; one that an earlier daemon started is known by its log. One that does not end when
/// it is asked to is killed.
fn end(child: Option<&mut std::process::Child>, log: &Path, transfer: Transfer<'_>) {
    let Some(child) = child else {
        // One that cannot be asked is killed.
        drop(process::stop(log));
        if !process::ended(log, STOP_TIMEOUT) {
            transfer.end();
            process::ended(log, STOP_TIMEOUT);
        }
        return;
    };
    let id = rustix::process::Pid::from_child(child);
    _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    let until = Instant::now() + STOP_TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > until {
            drop(child.kill());
            drop(child.wait());
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: serde_json::Value) -> DataVolumeSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn registries_of_this_machine_need_no_tls() {
        for (endpoint, wanted) in [
            ("docker://localhost:5000/a", true),
            ("docker://127.0.0.1:5000/a:b", true),
            ("docker://[::1]:5000/a", true),
            ("docker://localhost.example/a", false),
            ("docker://quay.io/a/b:1", false),
            ("docker://a", false),
            ("oci-archive:/localhost/a", false),
        ] {
            assert_eq!(is_local(endpoint), wanted, "{endpoint}");
        }
    }

    #[test]
    fn a_source_becomes_the_importers_job() {
        let mut objects = Objects::default();
        let secret = json!({"stringData": {"accessKeyId": "me"}, "data": {"secretKey": "aHVudGVyMg=="}});
        objects.secrets.insert("login".into(), serde_json::from_value(secret).unwrap());
        let map = json!({"data": {"ca.crt": "PEM", "../x": "no"}});
        objects.config_maps.insert("ca".into(), serde_json::from_value(map).unwrap());
        let http = spec(json!({"source": {"http": {
            "url": "https://a/b", "secretRef": "login", "certConfigMap": "ca", "checksum": "md5:0",
        }}}));
        let Origin::Contract(job, files) = from(&http, "uid", 7, &objects).unwrap() else { panic!() };
        assert_eq!(
            (job.endpoint.as_str(), job.image_size, job.secret_key.as_str()),
            ("https://a/b", Some(7), "hunter2")
        );
        assert_eq!(files, [(PathBuf::from("certs/ca.crt"), b"PEM".to_vec())]);
        assert_eq!(within(Path::new("/r"), &job).cert_dir, "/r/certs");
        let missing = spec(json!({"source": {"http": {"url": "https://a", "secretRef": "other"}}}));
        assert_eq!(from(&missing, "", 1, &objects), Err("there is no Secret \"other\"".to_owned()));
        for (source, wanted) in [
            (json!({"http": {"url": "file:///a"}}), Origin::File("/a".into())),
            (json!({"pvc": {"name": "c"}}), Origin::Claim("c".into())),
        ] {
            assert_eq!(from(&spec(json!({"source": source})), "", 1, &objects), Ok(wanted));
        }
        let upload = spec(json!({"source": {"upload": {}}, "preallocation": true}));
        let Origin::Upload(server) = from(&upload, "uid", 7, &objects).unwrap() else { panic!() };
        assert_eq!((server.image_size, server.preallocation), (Some(7), true));
        let blank = spec(json!({"source": {"blank": {}}}));
        let Origin::Contract(job, _) = from(&blank, "", 1, &objects).unwrap() else { panic!() };
        assert_eq!(job.source, SourceKind::None);
    }
}
